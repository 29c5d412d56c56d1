"""The gateway's stand-in for a worker keeps the contract of the real one."""

import pytest

from contracts.engine_api import *  # noqa: F403
from contracts.engine_api import Serving
from integration.gateway.conftest import Room
from integration.gateway.stand_in_worker import SERVED_NAME, TOKEN


@pytest.fixture
async def serving(room: Room) -> Serving:
    (worker,) = await room.workers(1)
    return Serving(worker.url, TOKEN, SERVED_NAME)
