"""Clients that send requests through a real gateway, which follows the pods of a service in the API server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import openai

from fixtures.gateways import Gateway, connected, gateway_process
from fixtures.plain_tokenizer import make_tokenizer
from integration.gateway.stand_in_worker import SERVED_NAME
from integration.gateway.stand_in_worker import StandInWorker as StandInEngine
from pointsman.local.control_plane import ControlPlane
from waiting import eventually

from .conftest import Cluster
from .stand_in import StandInWorker

PACE_SECONDS: Final = 0.05
MODEL: Final = {"source": "hf://test/tiny", "servedName": SERVED_NAME}


@dataclass
class Clients:
    """What the clients got."""

    answers: int = 0
    failures: list[str] = field(default_factory=list)

    async def get_answers(self) -> None:
        """Wait for some more answers, whole and streamed. Raises AssertionError if a request has failed."""
        before = self.answers
        await eventually(lambda: self.answers > before + 4 or self.failures, "clients get answers")
        assert not self.failures

    async def run(self, gateway: Gateway, *, stream: bool) -> None:
        """One client: one request after another."""
        ask: dict[str, Any] = {"model": SERVED_NAME, "prompt": "Which line is free?", "max_tokens": 4}
        while True:
            try:
                if stream:
                    chunks = await gateway.client.completions.create(**ask, stream=True)
                    reasons = [choice.finish_reason async for chunk in chunks for choice in chunk.choices]
                else:
                    answer = await gateway.client.completions.create(**ask)
                    reasons = [choice.finish_reason for choice in answer.choices]
                assert reasons[-1] == "length", reasons
                self.answers += 1
            except (openai.OpenAIError, AssertionError) as error:
                self.failures.append(repr(error))
            await asyncio.sleep(PACE_SECONDS)


def serve_requests(cluster: Cluster, folder: Path) -> None:
    """Workers that start from now on answer requests."""
    from transformers import AutoTokenizer

    model = folder / "model"
    model.mkdir()
    make_tokenizer(model)
    tokenizer = AutoTokenizer.from_pretrained(model)
    cluster.kubelet.engine = lambda worker: StandInEngine(
        worker.pod.metadata.name, model, tokenizer, token=worker.token
    ).routes()


@asynccontextmanager
async def clients_of(cluster: Cluster, control_plane: ControlPlane, folder: Path) -> AsyncIterator[Clients]:
    """Clients that send requests all the time, through a gateway that lives as long as the context."""
    workers: list[StandInWorker] = list(cluster.kubelet.workers.values())
    environment = {"KUBECONFIG": str(control_plane.kubeconfig)}
    with gateway_process(
        folder / "gateway", token=workers[0].token, environment=environment, namespace=cluster.namespace
    ) as process:
        async with connected(process) as gateway:
            clients = Clients()
            tasks = [asyncio.create_task(clients.run(gateway, stream=stream)) for stream in (False, True)]
            try:
                await clients.get_answers()
                yield clients
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
