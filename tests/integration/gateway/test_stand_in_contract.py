"""The gateway's stand-ins for workers keep the contracts of the real ones."""

from collections.abc import AsyncIterator

import pytest

from contracts.encode_api import *  # noqa: F403
from contracts.engine_api import *  # noqa: F403
from contracts.engine_api import Serving
from integration.gateway.conftest import Room
from integration.gateway.stand_in_encoder import StandInEncoder, encoding
from integration.gateway.stand_in_worker import SERVED_NAME, TOKEN


@pytest.fixture
async def serving(room: Room) -> Serving:
    (worker,) = await room.workers(1)
    return Serving(worker.url, TOKEN, SERVED_NAME)


@pytest.fixture
async def encoding_worker() -> AsyncIterator[Serving]:
    async with encoding(StandInEncoder("encode-0")) as encoder:
        yield Serving(encoder.url, TOKEN, SERVED_NAME)
