"""The encode side's shell: listens for language workers and sends them their embeddings."""

import asyncio
import logging
import socket
from collections.abc import Coroutine, Sequence
from pathlib import Path as FilePath
from typing import Final

from pointsman.process.ending import end
from pointsman.workers.multimodal.transfer.actions import CloseLink, ReceiverAction, SenderAction, Write
from pointsman.workers.multimodal.transfer.allocator import ReqToMetadataBlockAllocator
from pointsman.workers.multimodal.transfer.buffers import Embedding, MultimodalDataBuffers
from pointsman.workers.multimodal.transfer.connection import Connection, greet_language_side
from pointsman.workers.multimodal.transfer.data_paths import (
    DEFAULT_TRANSPORTS,
    NIXL,
    SHARED_MEMORY,
    EncodePath,
    SharedMemoryEncodePath,
    SharedRegion,
    StreamEncodePath,
)
from pointsman.workers.multimodal.transfer.errors import BadMessage, TransferError
from pointsman.workers.multimodal.transfer.messages import (
    Cancel,
    Fetch,
    Incoming,
    Landed,
    Message,
    Payload,
    Pull,
    Pulled,
    Resume,
)
from pointsman.workers.multimodal.transfer.nixl_path import NIXL_S, NixlEncodePath
from pointsman.workers.multimodal.transfer.sender import EmbeddingSender
from pointsman.workers.multimodal.transfer.shell import Link, Shell, possible_paths

log = logging.getLogger(__name__)

MAX_HANDSHAKES: Final = 64  # at once: whoever connects costs memory before it has proved anything
ACCEPT_AGAIN_S: Final = 0.2


class EmbeddingServer(Shell[EmbeddingSender, EncodePath]):
    """Serves embeddings of ``embedding_bytes`` a token out of one buffer of ``allocator``'s blocks.

    ``transports``: the data paths that may be used; the language side chooses.
    """

    def __init__(
        self,
        allocator: ReqToMetadataBlockAllocator,
        embedding_bytes: int,
        token: str,
        timeout_s: float,
        *,
        sizes_first: bool = True,
        transports: Sequence[str] = DEFAULT_TRANSPORTS,
    ) -> None:
        self._region = SharedRegion(MultimodalDataBuffers.region_bytes(allocator, embedding_bytes))
        self._buffers = MultimodalDataBuffers(allocator, embedding_bytes, self._region.view)
        super().__init__(EmbeddingSender(allocator, self._buffers, timeout_s))
        self._token = token
        self._sizes_first = sizes_first
        self._transports = frozenset(transports)
        self._handshakes = 0
        self._listeners: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def listen_tcp(self, host: str, port: int = 0) -> tuple[str, int]:
        """Listen on this address only; returns it with its port. Raises OSError."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family)
        self._listen(listening)
        bound: tuple[str, int] = listening.getsockname()[:2]
        return bound

    def listen_unix(self, path: FilePath) -> None:
        """Listen on a Unix socket, for shared memory; replaces one that a killed process left. Raises OSError."""
        path.unlink(missing_ok=True)
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(str(path))
        listening.listen()
        self._listen(listening)

    def put(self, request_id: str, embedding: Embedding) -> None:
        """The embedding of a request is there; its memory may be used until it is fetched. Raises NoAllocation."""
        self._perform(self._machine.put(request_id, embedding, self._loop.time()))

    def fail(self, request_id: str, reason: str) -> None:
        """The embedding of a request will not come: who fetches it now is told."""
        self._perform(self._machine.fail(request_id, reason, self._loop.time()))

    async def close(self) -> None:
        """End all connections, and with them all transfers."""
        await end(self._tasks)
        for listening in self._listeners:
            listening.close()
        if self._timer is not None:
            self._timer.cancel()
        self._region.close()

    def _listen(self, listening: socket.socket) -> None:
        listening.setblocking(False)
        self._listeners.append(listening)
        self._start(self._accept(listening))

    def _start(self, what: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(what)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                sock, _ = await self._loop.sock_accept(listening)
            except OSError as error:  # too many open files: it may be over soon
                log.error("language workers cannot connect", extra={"reason": str(error)})
                await asyncio.sleep(ACCEPT_AGAIN_S)
                continue
            if self._handshakes >= MAX_HANDSHAKES:
                sock.close()
                continue
            self._handshakes += 1
            self._start(self._welcome(Connection(sock)))

    async def _welcome(self, connection: Connection) -> None:
        try:
            agreed = await greet_language_side(
                connection,
                self._token,
                embedding_bytes=self._buffers.token_bytes[0],
                sizes_first=self._sizes_first,
                choose_path=lambda paths: self._path(connection, paths),
            )
            path = await self._opened(connection, agreed.path)
        except (TransferError, TimeoutError) as error:
            log.warning("a language worker is refused", extra={"reason": str(error) or "it was silent"})
            connection.close()
            return
        except BaseException:
            connection.close()
            raise
        finally:
            self._handshakes -= 1
        number = next(self._numbers)
        self._links[number] = Link(number, connection, path, sizes_first=agreed.sizes_first)
        await self._serve(self._links[number])

    def _path(self, connection: Connection, paths: Sequence[str]) -> str | None:
        possible = possible_paths(connection) & self._transports
        return next((path for path in paths if path in possible), None)

    async def _opened(self, connection: Connection, name: str) -> EncodePath:
        if name == SHARED_MEMORY:
            self._region.hand_over(connection)
            return SharedMemoryEncodePath(connection, self._buffers)
        if name == NIXL:
            async with asyncio.timeout(NIXL_S):
                path = await NixlEncodePath.open(connection, self._buffers)
            if path is not None:
                return path
        return StreamEncodePath(connection, self._buffers)

    async def _receive(self, link: Link[EncodePath], message: Message) -> None:
        match message:
            case Fetch() | Resume() | Cancel():
                self._perform(self._machine.receive(link.number, message, self._loop.time()))
            case Payload() | Pull() | Pulled() | Incoming() | Landed():
                link.path.receive(message)
            case _:
                raise BadMessage(f"a {type(message).__name__} came from a language worker")

    def _act(self, action: SenderAction | ReceiverAction) -> None:
        match action:
            case Write():
                self._write(action)
            case CloseLink():
                self._shut_down(action.peer, action.reason)

    def _write(self, write: Write) -> None:
        link = self._links.get(write.peer)
        if link is None:
            self._loop.call_soon(self._write_failed, write, "the connection was closed")
            return
        task = asyncio.create_task(link.path.write(write))
        link.writes.add(task)

        def report(task: asyncio.Task[None]) -> None:
            link.writes.discard(task)
            error = None if task.cancelled() else task.exception()
            if task.cancelled() or error is not None:
                self._write_failed(write, str(error) if error is not None else "the connection was closed")
            else:
                self._bytes[link.path.name] += self._buffers.part_bytes(write.num_tokens)
                self._perform(self._machine.written(write.peer, write.transfer, self._loop.time()))

        task.add_done_callback(report)

    def _write_failed(self, write: Write, reason: str) -> None:
        self._perform(self._machine.write_failed(write.peer, write.transfer, reason, self._loop.time()))
