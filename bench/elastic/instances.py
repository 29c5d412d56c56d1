"""Elastic instances as processes of their own, told what to compute without a manager: for timing single iterations."""

import asyncio
import itertools
import os
import subprocess
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Protocol

import aiohttp

from pointsman.serving.elastic.iterations import Prompt, Sampling, Step
from pointsman.workers.elastic.protocol import (
    LINK_PATH,
    Broken,
    Done,
    FromInstance,
    Hello,
    Iterate,
    Release,
    decode_from_instance,
    encode,
)

TOKEN = "a-token-of-the-benchmark"
PROGRAM = "pointsman.workers.elastic.instance"
ROOT = Path(__file__).parents[2]
START_S = 120.0
VOCABULARY = 90


class Environment(Protocol):
    """Where instances run: an `EngineEnvironment`, or a Python that has what they import."""

    @property
    def python(self) -> Path:
        """Its interpreter."""

    def variables(self, base: Mapping[str, str] | None = None) -> dict[str, str]:
        """``base`` with what a process there needs."""


@dataclass
class Instances:
    """Linked instances. ``iterate`` returns how long an iteration took, from its telling to the last answer."""

    links: dict[str, aiohttp.ClientWebSocketResponse]
    hellos: dict[str, Hello]
    answers: dict[str, "asyncio.Queue[FromInstance]"]
    _groups: dict[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict)
    _numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    async def iterate(
        self, members: Sequence[str], prompts: Sequence[Prompt] = (), steps: Sequence[Step] = ()
    ) -> float:
        """Seconds. Raises RuntimeError if it breaks."""
        requests = [*(each.request for each in prompts), *(each.request for each in steps)]
        what = encode(
            Iterate(
                next(self._numbers),
                self._epoch(tuple(members)),
                tuple(members),
                self.hellos[members[0]].store,
                tuple(prompts),
                tuple(steps),
                (),
                dict.fromkeys(requests, Sampling(temperature=0)),
            )
        )
        began_s = time.monotonic()
        for name in members:
            await self.links[name].send_bytes(what)
        for name in members:
            answer = await self.answers[name].get()
            if not isinstance(answer, Done):
                raise RuntimeError(f"{name}: {answer.why if isinstance(answer, Broken) else answer}")
        return time.monotonic() - began_s

    def _epoch(self, members: tuple[str, ...]) -> str:
        """Of the group of ``members``; a group that none of them has left since is used again."""
        if any(self._groups.get(name) != self._groups.get(members[0]) for name in members) or (
            self._groups.get(members[0], ("", ()))[1] != members
        ):
            self._groups |= dict.fromkeys(members, (f"e-{next(self._numbers)}", members))
        return self._groups[members[0]][0]

    async def release(self, *requests: str) -> None:
        """Free what they have, everywhere."""
        for link in self.links.values():
            await link.send_bytes(encode(Release(requests)))


def prompt(request: str, tokens: int, owners: Sequence[tuple[int, int]], seed: int = 0) -> Prompt:
    """A drawn prompt whose KV goes to ``owners``."""
    rng = Random(f"{seed}/{tokens}")
    return Prompt(request, tuple(rng.randrange(VOCABULARY) for _ in range(tokens)), tuple(owners))


@asynccontextmanager
async def running_instances(
    environment: Environment,
    model: Path,
    folder: Path,
    count: int,
    slots: int,
    *,
    program: str = PROGRAM,
    network: int = 7,
    gpus: int = 0,
    dtype: str = "float32",
) -> AsyncIterator[Instances]:
    """``count`` instances, on CPU a thread each; they end with the block.

    ``program``: the module that each runs. ``network``: their addresses begin at 127.9.network.1. ``gpus``: 1 puts all
    of them on the first GPU, at ports of 127.0.0.1, because NCCL needs an interface that has their address.
    """
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        links, hellos = dict[str, aiohttp.ClientWebSocketResponse](), dict[str, Hello]()
        addresses = {
            f"i-{number}": ("127.0.0.1", 8001 + number) if gpus else (f"127.9.{network}.{number + 1}", 8000)
            for number in range(count)
        }
        for name, (address, port) in addresses.items():
            settings = {
                "WORKER": name, "MODEL": str(model), "DTYPE": dtype, "SLOTS": str(slots), "GPUS": str(gpus),
                "BIND_HOST": address, "BIND_PORT": str(port),
            }  # fmt: skip
            process = _start(environment, folder / f"{address}-{port}.log", program, address, settings)
            stack.callback(process.wait)
            stack.callback(process.kill)
        for name, (address, port) in addresses.items():
            links[name] = await _linked(session, f"http://{address}:{port}{LINK_PATH}")
            hello = decode_from_instance(await links[name].receive_bytes())
            assert isinstance(hello, Hello)
            hellos[name] = hello
        answers = {name: asyncio.Queue[FromInstance]() for name in links}
        async with asyncio.TaskGroup() as group:
            reading = [group.create_task(_read(link, answers[name])) for name, link in links.items()]
            yield Instances(links, hellos, answers)
            for task in reading:
                task.cancel()
        for link in links.values():
            await link.close()


async def _read(link: aiohttp.ClientWebSocketResponse, answers: "asyncio.Queue[FromInstance]") -> None:
    """All the time: a link whose heartbeats are not answered is closed."""
    async for message in link:
        answers.put_nowait(decode_from_instance(message.data))


def _start(
    environment: Environment, log: Path, program: str, address: str, settings: dict[str, str]
) -> "subprocess.Popen[bytes]":
    settings |= {"NAMESPACE": "bench", "SERVICE_UID": "bench", "CONTROL_TOKEN": TOKEN}
    variables = {f"POINTSMAN_{key}": value for key, value in settings.items()} | {"POD_IP": address}
    base = {"PATH": os.environ["PATH"]} if settings["GPUS"] == "0" else None  # a GPU's libraries may need more
    variables = environment.variables(base) | variables | {"OMP_NUM_THREADS": "1"}
    variables["PYTHONPATH"] += f":{ROOT}"  # for programs of the benchmark
    with log.open("w") as opened:
        return subprocess.Popen([str(environment.python), "-m", program], env=variables, stdout=opened, stderr=opened)


async def _linked(session: aiohttp.ClientSession, url: str) -> aiohttp.ClientWebSocketResponse:
    deadline_s = time.monotonic() + START_S
    while True:
        try:
            return await session.ws_connect(url, headers={"Authorization": f"Bearer {TOKEN}"}, max_msg_size=0)
        except aiohttp.ClientError:
            if time.monotonic() > deadline_s:
                raise
            await asyncio.sleep(0.2)
