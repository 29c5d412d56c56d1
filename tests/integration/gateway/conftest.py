"""A real gateway process over stand-in workers."""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fixtures.gateways import Entry, Gateway, GatewayProcess, connected, gateway_process
from fixtures.plain_tokenizer import make_tokenizer
from integration.gateway.stand_in_worker import TOKEN, StandInWorker, running
from pointsman.serving.flow_control import FlowBounds
from waiting import eventually

ROUTING = {"maxLocalPrefillTokens": 123, "maxPrefillQueueSize": 4}


@dataclass
class Room:
    """Makes workers and gateways for one test."""

    folder: Path
    model_folder: Path
    tokenizer: Any
    shared: GatewayProcess
    stack: AsyncExitStack

    async def workers(self, count: int) -> list[StandInWorker]:
        """``count`` running stand-in workers of one model."""
        return [
            await self.stack.enter_async_context(
                running(StandInWorker(f"decode-{number}", self.model_folder, self.tokenizer))
            )
            for number in range(count)
        ]

    async def gateway(self, workers: Sequence[StandInWorker], **settings: Any) -> Gateway:
        """A gateway that uses exactly ``workers``: the shared one, or one with its own ``settings``."""
        process = self.shared
        if settings:
            process = self.stack.enter_context(gateway_process(self.folder, token=TOKEN, **settings))
        gateway = await self.stack.enter_async_context(connected(process))
        gateway.write_endpoints(workers, routing=ROUTING)
        await gateway.knows(*workers)
        return gateway


async def bounded(gateway: Gateway, workers: Sequence[StandInWorker | Entry], **bounds: int) -> None:
    """These workers and bounds are in force, which were not before."""
    names = {
        "pendingTokensPerPrefillWorker": "pending_tokens_per_prefill_worker",
        "decodingPerDecodeWorker": "decoding_per_decode_worker",
        "slackMilliseconds": "slack_ms",
    }
    said = str(FlowBounds(**{names[name]: bound for name, bound in bounds.items()}))
    seen = len(gateway.of.logged("flow control", bounds=said))
    gateway.write_endpoints(workers, routing=ROUTING | bounds)
    await eventually(lambda: len(gateway.of.logged("flow control", bounds=said)) > seen, "the bounds are known")


async def held(gateway: Gateway, count: int) -> None:
    """Wait until exactly so many are held."""

    async def holds() -> bool:
        return (await gateway.metrics())['pointsman_gateway_held{service="chat"}'] == count

    await eventually(holds, f"{count} requests are held")


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a model without weights."""
    folder = tmp_path_factory.mktemp("model")
    make_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def shared_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """One process for the tests that need no settings of their own. Round robin: a test knows who is next."""
    settings: dict[str, Any] = {
        "router": "round-robin",
        "suspect_seconds": 0,
        "patience_seconds": 30,
        "max_attempts": 4,
    }
    with gateway_process(tmp_path_factory.mktemp("gateway"), token=TOKEN, **settings) as process:
        yield process


@pytest.fixture
async def room(tmp_path: Path, model_folder: Path, shared_gateway: GatewayProcess) -> AsyncIterator[Room]:
    """See Room."""
    from transformers import AutoTokenizer

    async with AsyncExitStack() as stack:
        yield Room(tmp_path, model_folder, AutoTokenizer.from_pretrained(model_folder), shared_gateway, stack)
