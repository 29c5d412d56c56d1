"""NIXL data path: the encode side writes into the language side's registered region, one-sided.

Each connection has an agent of its own on both sides. Neither releasing a transfer nor forgetting its peer stops a
write that is under way: only the end of the agent does, so ``close`` destroys it. Reads by the language side instead of
writes would need a live encode side as well, and the UCX of NIXL 1.5.1 may abort a process that is read from over TCP
when its reader is killed. No agent has a progress thread, for each of these keeps a core busy; a write is driven from
both sides while it is under way, and only then.
"""

import asyncio
import ctypes
import importlib
import importlib.util
import logging
import os
import time
import uuid
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, Final

from pointsman.workers.multimodal.transfer.actions import Write
from pointsman.workers.multimodal.transfer.buffers import Chunk, MultimodalDataBuffers, RegionLayout
from pointsman.workers.multimodal.transfer.connection import Connection
from pointsman.workers.multimodal.transfer.data_paths import NIXL, PathMessage, Place
from pointsman.workers.multimodal.transfer.errors import (
    BadMessage,
    LinkClosed,
    NixlUnavailable,
    NoAllocation,
)
from pointsman.workers.multimodal.transfer.messages import Incoming, Landed, NixlReady, NixlTarget

log = logging.getLogger(__name__)

PROBE_S: Final = 5.0  # the first write also connects: 0.05 s on an idle computer
PROBE_BYTES: Final = 64
SLICE_S: Final = 0.0005  # of the event loop that a write may have at once, as a copy would
BUSY_S: Final = 1.0  # of a write; then its peer stands still
POLL_S: Final = 0.001
NIXL_S: Final = 15.0  # to make both agents and try a write
MAX_WRITES: Final = 1024  # under way on one connection
_PROBE: Final = (-1, -1)

# What one process writes into another with a system call on the address. Nothing of the other process stops it.
_IRREVOCABLE: Final = frozenset({"cma", "knem", "xpmem"})
_WITH_IRREVOCABLE: Final = _IRREVOCABLE | {"all", "sm", "shm"}
_UCX_TLS: Final = "^sm"


def is_installed() -> bool:
    """Whether NIXL can be imported, without doing so."""
    return importlib.util.find_spec("nixl") is not None


def refusal(environment: Mapping[str, str]) -> str | None:
    """Why the UCX transports that ``environment`` names cannot be used; None: they can."""
    tls = environment.get("UCX_TLS", _UCX_TLS)
    named = set(tls.removeprefix("^").split(","))
    if tls.startswith("^"):
        safe = named >= _IRREVOCABLE or not named.isdisjoint({"sm", "shm"})
    else:
        safe = named.isdisjoint(_WITH_IRREVOCABLE)
    if safe:
        return None
    return (
        f"UCX_TLS is {tls!r}: it must leave out cma, knem and xpmem, whose writes land after the connection is closed"
    )


class NixlAgent:
    """An agent with one registered ``region``, for one peer. To be used by one thread at a time.

    It takes up to half a second to make. Raises NixlUnavailable if NIXL does not work here.
    """

    def __init__(self, region: memoryview) -> None:
        if (reason := refusal(os.environ)) is not None:
            raise NixlUnavailable(reason)
        self._memory = (ctypes.c_char.from_buffer(region), ctypes.create_string_buffer(PROBE_BYTES))
        self.address, self.probe_address = (ctypes.addressof(each) for each in self._memory)
        self._peer: Any = None
        self._writes: dict[int, Any] = {}  # kept here only, so that none of them outlives the agent in close
        self._numbers = count()
        try:
            api = importlib.import_module("nixl._api")
            bindings = importlib.import_module("nixl._bindings")
            self._agent: Any = api.nixl_agent(
                f"pointsman-{uuid.uuid4()}", api.nixl_agent_config(enable_prog_thread=False, backends=[])
            )
            self._agent.create_backend("UCX", {"engine_config": f"TLS={_UCX_TLS}"})
            places = [(self.address, len(region), 0, ""), (self.probe_address, PROBE_BYTES, 0, "")]
            self._agent.register_memory(places, "DRAM")
            self.metadata: bytes = self._agent.get_agent_metadata()
        except Exception as error:
            raise NixlUnavailable(f"NIXL cannot be used: {error!r}") from error
        errors = (getattr(bindings, name) for name in dir(bindings) if name.endswith("Error"))
        self._errors: tuple[type[Exception], ...] = tuple(errors)  # they have no base of their own

    def meet(self, metadata: bytes) -> None:
        """Have the peer that ``metadata`` describes. Raises NixlUnavailable."""
        try:
            self._peer = self._agent.add_remote_agent(metadata)
        except self._errors as error:
            raise NixlUnavailable(f"NIXL does not understand the peer: {error!r}") from error

    async def write(self, source: Sequence[Chunk], target: Sequence[Chunk]) -> None:
        """Write from addresses here to addresses of the peer; returns once the bytes are there. Raises LinkClosed.

        A cancelled write goes on until ``close``.
        """
        if self._agent is None:
            raise LinkClosed("the connection was closed")
        number = next(self._numbers)
        try:
            here, there = (
                self._agent.get_xfer_descs([(address, size, 0) for address, size in chunks], "DRAM")
                for chunks in (source, target)
            )
            self._writes[number] = self._agent.initialize_xfer("WRITE", here, there, self._peer)
            state = self._agent.transfer(self._writes[number])
            pauses = _Pauses()
            while state == "PROC":
                await pauses.next()
                if self._agent is None:
                    raise LinkClosed("the connection was closed")
                until_s = time.perf_counter() + SLICE_S
                while state == "PROC" and time.perf_counter() < until_s:
                    state = self._agent.check_xfer_state(self._writes[number])
            if state != "DONE":
                raise LinkClosed("a write by NIXL failed")
            self._writes.pop(number).release()
        except self._errors as error:
            raise LinkClosed(f"a write by NIXL failed: {error!r}") from error

    def progress(self) -> None:
        """Let a write of the peer go on, for a while. Raises LinkClosed."""
        until_s = time.perf_counter() + SLICE_S
        try:
            while time.perf_counter() < until_s:
                self._agent.get_new_notifs()
        except self._errors as error:
            raise LinkClosed(f"NIXL failed: {error!r}") from error

    def close(self) -> None:
        """Afterwards no write reads here or lands here."""
        for each in self._writes.values():
            try:
                each.release()
            except self._errors:  # it is under way: what follows ends it
                each._released = True
        self._writes.clear()
        self._agent = None


class _Pauses:
    """Between looks at a write: none at first, so that a short write is not slowed down."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._busy_until_s = self._loop.time() + BUSY_S

    async def next(self) -> None:
        await asyncio.sleep(0 if self._loop.time() < self._busy_until_s else POLL_S)


class NixlEncodePath:
    """Writes into the peer's blocks. Use ``open``."""

    name = NIXL

    def __init__(
        self, connection: Connection, buffers: MultimodalDataBuffers, agent: NixlAgent, target: NixlTarget
    ) -> None:
        self._connection = connection
        self._buffers = buffers
        self._agent = agent
        self._base = target.address
        self._layout = RegionLayout(target.num_blocks, target.block_size, buffers.token_bytes[0])
        if not 0 < target.address < 2**63 - self._layout.size_bytes or not 0 < target.probe_address < 2**63:
            raise NoAllocation(f"no region of {self._layout.size_bytes} bytes is at {target.address}")

    @classmethod
    async def open(cls, connection: Connection, buffers: MultimodalDataBuffers) -> "NixlEncodePath | None":
        """Take the peer's description and try a first write; None: it does not come through, the path is TCP.

        Raises BadMessage and LinkClosed.
        """
        target = await connection.receive()
        if not isinstance(target, NixlTarget):
            raise BadMessage(f"a {type(target).__name__} came instead of the target of writes by NIXL")
        path = None
        if target.metadata:
            try:
                path = await cls._tried(connection, buffers, target)
            except (NixlUnavailable, LinkClosed, NoAllocation, TimeoutError) as error:
                log.warning("NIXL does not reach a language worker", extra={"reason": str(error) or "it was silent"})
        try:
            await connection.send(NixlReady(path is not None))
        except BaseException:
            if path is not None:
                path.close()
            raise
        return path

    @classmethod
    async def _tried(
        cls, connection: Connection, buffers: MultimodalDataBuffers, target: NixlTarget
    ) -> "NixlEncodePath":
        agent = await _agent(buffers)
        try:
            path = cls(connection, buffers, agent, target)
            agent.meet(target.metadata)
            async with asyncio.timeout(PROBE_S):
                await agent.write([(agent.probe_address, PROBE_BYTES)], [(target.probe_address, PROBE_BYTES)])
        except BaseException:
            agent.close()
            raise
        return path

    async def write(self, write: Write) -> None:
        """See EncodePath."""
        try:
            self._layout.check(write.target)
        except NoAllocation as error:
            raise BadMessage(str(error)) from error
        source = self._buffers.get_buf_chunk_info(write.source, write.start_token, write.num_tokens)
        target = self._layout.get_buf_chunk_info(write.target, 0, write.num_tokens)
        await self._connection.send(Incoming(write.transfer, write.start_token, write.num_tokens))
        try:
            await self._agent.write(_moved(source, self._agent.address), _moved(target, self._base))
        except LinkClosed:
            self._connection.shut_down()  # the rest of it may still land until the peer has destroyed its agent
            raise
        await self._connection.send(Landed(write.transfer, write.start_token), then=write.part)

    def receive(self, message: PathMessage) -> None:
        """There is none."""
        raise BadMessage(f"a {type(message).__name__} came on a connection whose data path is {NIXL}")

    def close(self) -> None:
        """See EncodePath."""
        self._agent.close()


class NixlLanguagePath:
    """Lets the peer's writes go on while there are any. Use ``open``."""

    name = NIXL
    one_sided = True

    def __init__(self, agent: NixlAgent) -> None:
        self._agent = agent
        self._incoming: set[tuple[int, int]] = set()
        self._driving: asyncio.Task[None] | None = None
        self._pauses = _Pauses()

    @classmethod
    async def open(cls, connection: Connection, buffers: MultimodalDataBuffers) -> "NixlLanguagePath | None":
        """Describe the region to the peer, which tries a first write; None: it does not come through, the path is TCP.

        Raises BadMessage and LinkClosed.
        """
        try:
            agent = await _agent(buffers)
        except NixlUnavailable as error:
            log.warning("NIXL is not used", extra={"reason": str(error)})
            await connection.send(NixlTarget(b""))
            await _answer(connection)
            return None
        path = cls(agent)
        try:
            layout = buffers.layout
            await connection.send(
                NixlTarget(agent.metadata, agent.address, agent.probe_address, layout.num_blocks, layout.block_size)
            )
            path._begin(_PROBE)
            usable = await _answer(connection)
            path._end(_PROBE)
        except BaseException:
            path.close()
            raise
        if not usable:
            path.close()
            return None
        return path

    async def receive(self, message: PathMessage, place: Place) -> None:
        """See LanguagePath."""
        match message:
            case Incoming():
                self._begin((message.transfer, message.start_token))
            case Landed():
                self._end((message.transfer, message.start_token))
            case _:
                raise BadMessage(f"a {type(message).__name__} came on a connection whose data path is {NIXL}")

    def close(self) -> None:
        """See LanguagePath."""
        self._incoming.clear()
        self._agent.close()

    def _begin(self, write: tuple[int, int]) -> None:
        if len(self._incoming) >= MAX_WRITES:
            raise BadMessage(f"more than {MAX_WRITES} writes by NIXL are under way at once")
        self._incoming.add(write)
        self._pauses = _Pauses()
        if self._driving is None or self._driving.done():
            self._driving = asyncio.create_task(self._drive(), name="progress of NIXL")

    def _end(self, write: tuple[int, int]) -> None:
        self._incoming.discard(write)

    async def _drive(self) -> None:
        try:
            while self._incoming:
                self._agent.progress()
                await self._pauses.next()
        except LinkClosed as error:  # the peer's writes fail, or time out
            log.warning("writes of an encode worker do not continue", extra={"reason": str(error)})


async def _agent(buffers: MultimodalDataBuffers) -> NixlAgent:
    """Made in a thread, so that others are served meanwhile. Raises NixlUnavailable."""
    return await asyncio.to_thread(NixlAgent, buffers.region)


async def _answer(connection: Connection) -> bool:
    ready = await connection.receive()
    if not isinstance(ready, NixlReady):
        raise BadMessage(f"a {type(ready).__name__} came instead of the result of a first write by NIXL")
    return ready.usable


def _moved(chunks: Sequence[Chunk], address: int) -> list[Chunk]:
    return [(address + offset, size) for offset, size in chunks]
