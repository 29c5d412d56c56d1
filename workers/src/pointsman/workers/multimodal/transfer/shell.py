"""What both sides' shells have in common: connections, their tasks, and the machine's timer."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from itertools import count
from typing import Generic, TypeVar

from pointsman.process.ending import end
from pointsman.workers.multimodal.transfer.actions import ReceiverAction, Send, SenderAction
from pointsman.workers.multimodal.transfer.allocator import BlockUsage
from pointsman.workers.multimodal.transfer.connection import Connection
from pointsman.workers.multimodal.transfer.data_paths import NIXL, SHARED_MEMORY, TCP, EncodePath, LanguagePath
from pointsman.workers.multimodal.transfer.errors import TransferError
from pointsman.workers.multimodal.transfer.messages import Message
from pointsman.workers.multimodal.transfer.metrics import RESULTS, TransferStatistics
from pointsman.workers.multimodal.transfer.nixl_path import is_installed
from pointsman.workers.multimodal.transfer.receiver import EmbeddingReceiver
from pointsman.workers.multimodal.transfer.sender import EmbeddingSender

log = logging.getLogger(__name__)

Machine = TypeVar("Machine", EmbeddingSender, EmbeddingReceiver)
Path = TypeVar("Path", EncodePath, LanguagePath)


def possible_paths(connection: Connection) -> frozenset[str]:
    """The data paths that this side can use on ``connection``."""
    shared = {SHARED_MEMORY} if connection.same_host else set()
    nixl = {NIXL} if is_installed() else set()
    return frozenset({TCP} | shared | nixl)


class Link(Generic[Path]):
    """A connection past its handshake. ``writes``: the writes under way."""

    def __init__(self, number: int, connection: Connection, path: Path, *, sizes_first: bool) -> None:
        self.number = number
        self.connection = connection
        self.path: Path = path
        self.sizes_first = sizes_first
        self.outgoing: asyncio.Queue[Message] = asyncio.Queue()
        self.writes: set[asyncio.Task[None]] = set()


class Shell(ABC, Generic[Machine, Path]):
    """Carries out what ``machine`` decides. Lives in the event loop that makes it."""

    def __init__(self, machine: Machine) -> None:
        self._loop = asyncio.get_running_loop()
        self._machine: Machine = machine
        self._bytes: Counter[str] = Counter()  # by transport
        self._shown: Counter[str] = Counter()
        self._links: dict[int, Link[Path]] = {}
        self._numbers = count()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def usage(self) -> BlockUsage:
        """Blocks of the buffer now."""
        return self._machine.usage

    def statistics(self) -> TransferStatistics:
        """Blocks now, and what happened since the last call."""
        usage, news = self.usage, self._machine.counts - self._shown
        statistics = TransferStatistics(
            used_blocks=usage.used_blocks,
            total_blocks=usage.total_blocks,
            fragmentation=usage.fragmentation,
            ended={result: news[result] for result in RESULTS if news[result]},
            resumes=news["resumes"],
            sent_bytes=dict(self._bytes),
            seconds=tuple(self._machine.seconds),
        )
        self._shown = self._machine.counts.copy()
        self._bytes.clear()
        self._machine.seconds.clear()
        return statistics

    @abstractmethod
    async def _receive(self, link: Link[Path], message: Message) -> None:
        """A message of the peer."""

    @abstractmethod
    def _act(self, action: SenderAction | ReceiverAction) -> None:
        """An action that is no Send."""

    def _perform(self, actions: Sequence[SenderAction | ReceiverAction]) -> None:
        for action in actions:
            if not isinstance(action, Send):
                self._act(action)
            elif action.peer in self._links:
                self._links[action.peer].outgoing.put_nowait(action.message)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline_s = self._machine.next_deadline_s
        if deadline_s < float("inf"):
            self._timer = self._loop.call_at(deadline_s, self._expire)

    def _expire(self) -> None:
        self._timer = None
        self._perform(self._machine.expire(self._loop.time()))

    def _shut_down(self, peer: int, reason: str) -> None:
        if peer in self._links:
            log.warning("closing a connection", extra={"peer": peer, "reason": reason})
            self._links[peer].connection.shut_down()

    async def _serve(self, link: Link[Path]) -> None:
        """Until the connection is closed. Afterwards nothing of it reads or writes a block."""
        sending = asyncio.create_task(self._send(link), name="sending")
        try:
            while True:
                await self._receive(link, await link.connection.receive())
        except TransferError as error:
            log.info("a connection has ended", extra={"peer": link.number, "reason": str(error)})
        finally:
            del self._links[link.number]
            link.connection.shut_down()
            link.path.close()
            await end([sending, *link.writes])
            link.connection.close()
            self._perform(self._machine.closed(link.number, self._loop.time()))

    async def _send(self, link: Link[Path]) -> None:
        try:
            while True:
                await link.connection.send(await link.outgoing.get())
        except TransferError as error:
            self._shut_down(link.number, str(error))
