"""The language side's shell: fetches embeddings from encode workers."""

import asyncio
import logging
import socket
from collections.abc import Sequence
from typing import Final

from pointsman.process.ending import end
from pointsman.workers.multimodal.transfer.actions import CloseLink, Delivered, Ended, ReceiverAction, SenderAction
from pointsman.workers.multimodal.transfer.allocator import ReqToMetadataBlockAllocator
from pointsman.workers.multimodal.transfer.buffers import Embedding, MultimodalDataBuffers
from pointsman.workers.multimodal.transfer.connection import HANDSHAKE_S, Connection, greet_encode_side
from pointsman.workers.multimodal.transfer.data_paths import (
    DEFAULT_TRANSPORTS,
    NIXL,
    SHARED_MEMORY,
    LanguagePath,
    SharedMemoryLanguagePath,
    StreamLanguagePath,
)
from pointsman.workers.multimodal.transfer.errors import BadMessage, LinkClosed, TransferFailed
from pointsman.workers.multimodal.transfer.messages import (
    Failed,
    Incoming,
    Landed,
    Message,
    Offer,
    Part,
    Payload,
    Pull,
    Pulled,
)
from pointsman.workers.multimodal.transfer.nixl_path import NIXL_S, NixlLanguagePath
from pointsman.workers.multimodal.transfer.receiver import Allocate, EmbeddingReceiver
from pointsman.workers.multimodal.transfer.shell import Link, Shell, possible_paths

log = logging.getLogger(__name__)

UNIX: Final = "unix:"


class EmbeddingClient(Shell[EmbeddingReceiver, LanguagePath]):
    """Fetches embeddings of ``embedding_bytes`` a token into one buffer of ``allocator``'s blocks.

    ``max_request_tokens``: no embedding is longer. ``transports``: the data paths that may be used, best first.
    ``allocate``: memory for an embedding, of so many bytes; memory that was in use before is several times faster.
    """

    def __init__(
        self,
        allocator: ReqToMetadataBlockAllocator,
        embedding_bytes: int,
        token: str,
        timeout_s: float,
        *,
        max_request_tokens: int,
        sizes_first: bool = True,
        transports: Sequence[str] = DEFAULT_TRANSPORTS,
        allocate: Allocate = bytearray,
    ) -> None:
        self._buffers = MultimodalDataBuffers(allocator, embedding_bytes)
        super().__init__(EmbeddingReceiver(allocator, self._buffers, timeout_s, max_request_tokens, allocate))
        self._token = token
        self._sizes_first = sizes_first
        self._transports = tuple(transports)
        self._connecting: dict[str, asyncio.Task[Link[LanguagePath]]] = {}
        self._serving: set[asyncio.Task[None]] = set()
        self._results: dict[tuple[int, int], asyncio.Future[Embedding]] = {}

    async def fetch(self, address: str, request_id: str, num_tokens: int | None = None) -> Embedding:
        """The embedding of a request from the encode worker at ``address``: ``host:port`` or ``unix:path``.

        ``num_tokens``: its length, if that is known: it saves a round trip, and another length then is an error.
        Shared memory is used on a Unix socket. Raises TransferFailed, and what the connection raises:
        HandshakeRefused, LinkClosed, BadMessage.
        """
        link = await self._link(address)
        if link.number not in self._links:
            raise LinkClosed(f"the connection to the encode worker at {address} was closed")
        number, actions = self._machine.fetch(
            link.number,
            request_id,
            self._loop.time(),
            sizes_first=link.sizes_first,
            one_sided=link.path.one_sided,
            num_tokens=num_tokens,
        )
        key = (link.number, number)
        result: asyncio.Future[Embedding] = self._loop.create_future()
        self._results[key] = result
        self._perform(actions)
        try:
            return await result
        finally:
            del self._results[key]
            self._perform(self._machine.cancel(*key, self._loop.time()))  # changes nothing after a result

    async def close(self) -> None:
        """End all connections, and with them all transfers."""
        await end([*self._connecting.values(), *self._serving])
        if self._timer is not None:
            self._timer.cancel()

    async def _link(self, address: str) -> Link[LanguagePath]:
        task = self._connecting.get(address)
        if task is None:
            task = self._connecting[address] = asyncio.create_task(self._connect(address))
            task.add_done_callback(lambda done: self._connected(address, done))
        return await asyncio.shield(task)

    def _connected(self, address: str, task: asyncio.Task[Link[LanguagePath]]) -> None:
        if task.cancelled() or task.exception() is not None:
            del self._connecting[address]
            return
        link = task.result()
        self._links[link.number] = link
        serving = asyncio.create_task(self._serve(link))
        self._serving.add(serving)

        def ended(serving: asyncio.Task[None]) -> None:
            self._serving.discard(serving)
            if self._connecting.get(address) is task:
                del self._connecting[address]

        serving.add_done_callback(ended)

    async def _connect(self, address: str) -> Link[LanguagePath]:
        connection = await self._dial(address)
        try:
            agreed = await greet_encode_side(
                connection,
                self._token,
                embedding_bytes=self._buffers.token_bytes[0],
                sizes_first=self._sizes_first,
                paths=self._paths(connection),
            )
            path = await self._opened(connection, agreed.path)
        except TimeoutError as error:
            connection.close()
            raise LinkClosed("the encode worker did not finish the handshake in time") from error
        except BaseException:
            connection.close()
            raise
        return Link(next(self._numbers), connection, path, sizes_first=agreed.sizes_first)

    def _paths(self, connection: Connection) -> tuple[str, ...]:
        possible = possible_paths(connection)
        return tuple(path for path in self._transports if path in possible)

    async def _opened(self, connection: Connection, name: str) -> LanguagePath:
        if name not in self._paths(connection):
            raise BadMessage(f"the encode worker chose the data path {name}, which was not offered")
        if name == SHARED_MEMORY:
            async with asyncio.timeout(HANDSHAKE_S):
                return await SharedMemoryLanguagePath.open(connection)
        if name == NIXL:
            async with asyncio.timeout(NIXL_S):
                path = await NixlLanguagePath.open(connection, self._buffers)
            if path is not None:
                return path
        return StreamLanguagePath(connection, self._buffers)

    async def _dial(self, address: str) -> Connection:
        where: str | tuple[str, int]
        if address.startswith(UNIX):
            family, where = socket.AF_UNIX, address.removeprefix(UNIX)
        else:
            host, _, port = address.rpartition(":")
            try:
                found = await self._loop.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
            except (OSError, ValueError) as error:
                raise LinkClosed(f"there is no encode worker at {address}: {error}") from error
            family, where = found[0][0], (str(found[0][4][0]), int(port))
        sock = socket.socket(family)
        sock.setblocking(False)
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                await self._loop.sock_connect(sock, where)
        except OSError as error:
            sock.close()
            raise LinkClosed(f"the encode worker at {address} cannot be reached: {error}") from error
        except asyncio.CancelledError:
            sock.close()
            raise
        return Connection(sock)

    async def _receive(self, link: Link[LanguagePath], message: Message) -> None:
        match message:
            case Offer() | Part() | Failed():
                if isinstance(message, Part) and message.num_tokens > 0:
                    self._bytes[link.path.name] += self._buffers.part_bytes(message.num_tokens)
                self._perform(self._machine.receive(link.number, message, self._loop.time()))
            case Payload() | Pull() | Pulled() | Incoming() | Landed():
                peer = link.number
                await link.path.receive(message, lambda *part: self._machine.place(peer, *part))
            case _:
                raise BadMessage(f"a {type(message).__name__} came from an encode worker")

    def _act(self, action: SenderAction | ReceiverAction) -> None:
        match action:
            case Delivered():
                result = self._results[action.peer, action.transfer]
                if not result.done():
                    result.set_result(action.embedding)
            case Ended():
                waiting = self._results.get((action.peer, action.transfer))
                if waiting is not None and not waiting.done():
                    waiting.set_exception(TransferFailed(action.reason))
            case CloseLink():
                self._shut_down(action.peer, action.reason)
