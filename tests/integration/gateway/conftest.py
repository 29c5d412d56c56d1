"""A real gateway process over stand-in workers."""

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
import yaml

from fixtures.plain_tokenizer import make_tokenizer
from integration.gateway.stand_in_worker import SERVED_NAME, TOKEN, StandInWorker, running

DEADLINE_SECONDS = 60.0


@dataclass
class Gateway:
    """One gateway process and how to reach it."""

    url: str
    endpoints_file: Path
    process: asyncio.subprocess.Process
    logs: list[dict[str, Any]] = field(default_factory=list)

    @property
    def client(self) -> openai.AsyncOpenAI:
        """The official client, without retries of its own: what a test sees is what the gateway did."""
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=DEADLINE_SECONDS)

    def write_endpoints(self, workers: list[StandInWorker], **more: Any) -> None:
        """Replace the endpoints file as editors do: a new file in its place."""
        write_endpoints(self.endpoints_file, workers, **more)

    async def report(self) -> dict[str, Any]:
        """The gateway's own report of its routable set."""
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{self.url}/pointsman/v1/endpoints", headers={"Authorization": f"Bearer {TOKEN}"}) as answer,
        ):
            assert answer.status == 200, await answer.text()
            return dict(await answer.json())

    async def metrics(self) -> dict[str, float]:
        """All samples of /metrics by ``name{labels}``."""
        async with aiohttp.ClientSession() as session, session.get(f"{self.url}/metrics") as answer:
            lines = (await answer.text()).splitlines()
        return {key: float(value) for key, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


def write_endpoints(path: Path, workers: list[StandInWorker], **more: Any) -> None:
    """An endpoints file with ``workers`` as decode workers."""
    content = {"workers": [{"name": w.name, "url": w.url, "role": "Decode"} for w in workers], **more}
    part = path.with_suffix(".part")
    part.write_text(yaml.safe_dump(content))
    part.replace(path)


async def eventually(condition: Callable[[], Awaitable[bool] | bool], what: str) -> None:
    """Return when ``condition`` holds; fail after the deadline."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + DEADLINE_SECONDS
    while True:
        holds = condition()
        if not isinstance(holds, bool):
            holds = await holds
        if holds:
            return
        assert loop.time() < deadline, f"not within {DEADLINE_SECONDS:g} s: {what}"
        await asyncio.sleep(0.02)


@asynccontextmanager
async def gateway_process(
    folder: Path, workers: list[StandInWorker], *, wait_usable: bool = True, **settings: Any
) -> AsyncIterator[Gateway]:
    """Run ``python -m pointsman.gateway`` over ``workers`` until the block ends."""
    folder.mkdir(parents=True, exist_ok=True)
    endpoints = folder / "endpoints.yaml"
    routing = {"maxLocalPrefillTokens": 123, "maxPrefillQueueSize": 4}
    write_endpoints(endpoints, workers, routing=routing)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("POINTSMAN_")} | {
        "POINTSMAN_SERVICE": "chat",
        "POINTSMAN_ENDPOINTS_FILE": str(endpoints),
        "POINTSMAN_CONTROL_TOKEN": TOKEN,
        "POINTSMAN_BIND_HOST": "127.0.0.1",
        "POINTSMAN_PORT": "0",
        "POINTSMAN_LOG_LEVEL": "debug",
        "POINTSMAN_ROUTER_SEED": "1",
        **{f"POINTSMAN_{name.upper()}": str(value) for name, value in settings.items()},
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "pointsman.gateway", env=environment, stderr=asyncio.subprocess.PIPE, limit=2**22
    )
    gateway = Gateway("", endpoints, process)
    listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    reader = asyncio.create_task(_read_logs(process, gateway.logs, listening))
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            gateway.url = await listening
        if wait_usable:
            await eventually(
                lambda: sum(line["message"] == "model known" for line in gateway.logs) >= len(workers),
                "the gateway knows the model of every worker",
            )
        yield gateway
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(DEADLINE_SECONDS):
                    await process.wait()
            except TimeoutError:
                process.kill()
                raise
        await reader
    assert process.returncode == 0


async def _read_logs(
    process: asyncio.subprocess.Process, logs: list[dict[str, Any]], listening: asyncio.Future[str]
) -> None:
    assert process.stderr is not None
    async for raw in process.stderr:
        text = raw.decode()
        try:
            line = json.loads(text)
        except ValueError:
            line = {"message": "not JSON", "text": text}
        logs.append(line)
        sys.stderr.write(text)
        if line.get("message") == "listening" and not listening.done():
            listening.set_result(re.sub(r"/$", "", line["address"]))
    if not listening.done():
        listening.set_exception(RuntimeError(f"the gateway ended: {logs[-3:]}"))


@dataclass
class Room:
    """Makes workers and gateways for one test."""

    folder: Path
    model_folder: Path
    tokenizer: Any
    stack: AsyncExitStack

    async def workers(self, count: int) -> list[StandInWorker]:
        """``count`` running stand-in workers of one model."""
        return [
            await self.stack.enter_async_context(
                running(StandInWorker(f"decode-{number}", self.model_folder, self.tokenizer))
            )
            for number in range(count)
        ]

    async def gateway(self, workers: list[StandInWorker], **settings: Any) -> Gateway:
        """A gateway process over them."""
        return await self.stack.enter_async_context(
            gateway_process(self.folder / f"gateway-{len(list(self.folder.iterdir()))}", workers, **settings)
        )


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a model without weights."""
    folder = tmp_path_factory.mktemp("model")
    make_tokenizer(folder)
    return folder


@pytest.fixture
async def room(tmp_path: Path, model_folder: Path) -> AsyncIterator[Room]:
    """See Room."""
    from transformers import AutoTokenizer

    async with AsyncExitStack() as stack:
        yield Room(tmp_path, model_folder, AutoTokenizer.from_pretrained(model_folder), stack)


__all__ = ["SERVED_NAME", "Gateway", "Room", "eventually"]
