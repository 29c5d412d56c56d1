"""How the bytes of a part get from the encode side's region into the language side's: one seam, several paths.

A path promises three things. ``write`` sends ``Part`` once all bytes are in the peer's blocks, or in front of it on the
connection, and returns when nothing reads the source any more. A ``write`` that ends early raises. After ``close`` of
the language side's end nothing lands in its blocks.
"""

import asyncio
import fcntl
import mmap
import os
import socket
from collections.abc import Callable
from typing import Final, Protocol

from pointsman.workers.multimodal.transfer.actions import Write
from pointsman.workers.multimodal.transfer.buffers import MultimodalDataBuffers
from pointsman.workers.multimodal.transfer.connection import Connection
from pointsman.workers.multimodal.transfer.copying import Copier
from pointsman.workers.multimodal.transfer.errors import BadMessage, LinkClosed
from pointsman.workers.multimodal.transfer.messages import Incoming, Landed, Payload, Pull, Pulled

SHARED_MEMORY: Final = "shared_memory"
NIXL: Final = "nixl"
TCP: Final = "tcp"
DEFAULT_TRANSPORTS: Final = (SHARED_MEMORY, TCP)
TRANSPORTS: Final = (SHARED_MEMORY, NIXL, TCP)
"""All of them, best first."""

PathMessage = Payload | Pull | Pulled | Incoming | Landed
Place = Callable[[int, int, int], tuple[memoryview, ...] | None]
"""(transfer, start_token, num_tokens) to where the part belongs; None: nobody waits for it."""


class EncodePath(Protocol):
    """The encode side's end, for one connection. ``name``: of the data path."""

    name: str

    async def write(self, write: Write) -> None:
        """Carry out ``write``, and send its ``Part``. Raises LinkClosed."""

    def receive(self, message: PathMessage) -> None:
        """A message of the path. Raises BadMessage."""

    def close(self) -> None:
        """The connection is closed: a write that waits ends."""


class LanguagePath(Protocol):
    """The language side's end, for one connection.

    ``name``: of the data path. ``one_sided``: the peer writes into the blocks; else ``receive`` puts a part in place.
    """

    name: str
    one_sided: bool

    async def receive(self, message: PathMessage, place: Place) -> None:
        """A message of the path. Raises BadMessage and LinkClosed."""

    def close(self) -> None:
        """The connection is closed: nothing lands in the blocks any more."""


class StreamEncodePath:
    """Sends the bytes on the connection itself."""

    name = TCP

    def __init__(self, connection: Connection, buffers: MultimodalDataBuffers) -> None:
        self._connection = connection
        self._buffers = buffers

    async def write(self, write: Write) -> None:
        """See EncodePath."""
        chunks = self._buffers.get_buf_chunk_info(write.source, write.start_token, write.num_tokens)
        payload = Payload(write.transfer, write.start_token, write.num_tokens)
        await self._connection.send(payload, self._buffers.views(chunks), then=write.part)

    def receive(self, message: PathMessage) -> None:
        """There is none."""
        raise BadMessage(f"a {type(message).__name__} came on a connection whose data path is {TCP}")

    def close(self) -> None:
        """Nothing waits."""


class StreamLanguagePath:
    """Reads the bytes from the connection into their blocks."""

    name = TCP
    one_sided = False

    def __init__(self, connection: Connection, buffers: MultimodalDataBuffers) -> None:
        self._connection = connection
        self._buffers = buffers

    async def receive(self, message: PathMessage, place: Place) -> None:
        """See LanguagePath."""
        if not isinstance(message, Payload):
            raise BadMessage(f"a {type(message).__name__} came on a connection whose data path is {TCP}")
        if not 0 < message.num_tokens <= self._buffers.layout.num_tokens:
            raise BadMessage(f"{message}: num_tokens must be 1 to {self._buffers.layout.num_tokens}")
        views = place(message.transfer, message.start_token, message.num_tokens)
        if views is None:
            await self._connection.discard(self._buffers.part_bytes(message.num_tokens))
        else:
            await self._connection.read_into(views)

    def close(self) -> None:
        """There is no memory of the peer."""


class SharedRegion:
    """``size_bytes`` of memory without a name, which the kernel frees with its last process, however that ends."""

    def __init__(self, size_bytes: int) -> None:
        self._fd = os.memfd_create("pointsman-embeddings", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self._fd, size_bytes)
        fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        self.view = memoryview(mmap.mmap(self._fd, size_bytes))

    def hand_over(self, connection: Connection) -> None:
        """Give the peer of a Unix socket the means to read it."""
        try:
            socket.send_fds(connection.sock, [b"\0"], [self._fd])
        except OSError as error:
            raise LinkClosed(f"the connection broke: {error}") from error

    def close(self) -> None:
        """Let go of it; views of it that are in use keep it."""
        os.close(self._fd)


class SharedMemoryEncodePath:
    """Tells the peer, which has the region mapped, what to copy, and waits until it has."""

    name = SHARED_MEMORY

    def __init__(self, connection: Connection, buffers: MultimodalDataBuffers) -> None:
        self._connection = connection
        self._buffers = buffers
        self._pulls: dict[tuple[int, int], asyncio.Future[None]] = {}

    async def write(self, write: Write) -> None:
        """See EncodePath."""
        key = (write.transfer, write.start_token)
        pulled = self._pulls[key] = asyncio.get_running_loop().create_future()
        chunks = self._buffers.get_buf_chunk_info(write.source, write.start_token, write.num_tokens)
        try:
            await self._connection.send(Pull(*key, write.num_tokens, chunks), then=write.part)  # read after the copy
            await pulled
        finally:
            del self._pulls[key]

    def receive(self, message: PathMessage) -> None:
        """See EncodePath."""
        if not isinstance(message, Pulled):
            raise BadMessage(f"a {type(message).__name__} came on a connection whose data path is {SHARED_MEMORY}")
        pulled = self._pulls.get((message.transfer, message.start_token))
        if pulled is not None and not pulled.done():
            pulled.set_result(None)

    def close(self) -> None:
        """See EncodePath."""
        for pulled in self._pulls.values():
            if not pulled.done():
                pulled.set_exception(LinkClosed("the connection was closed"))


class SharedMemoryLanguagePath:
    """Copies out of the encode side's region, which it can read only. Use ``open``."""

    name = SHARED_MEMORY
    one_sided = False

    def __init__(self, connection: Connection, region: mmap.mmap) -> None:
        self._connection = connection
        self._region = region
        self._view = memoryview(region)
        self._copier = Copier()

    @classmethod
    async def open(cls, connection: Connection) -> "SharedMemoryLanguagePath":
        """Take the region that the peer hands over. Raises BadMessage and LinkClosed.

        The kernel ends a process that reads past the end of a file, so the file must be one that cannot shrink.
        """
        fd = await _received_fd(connection.sock)
        try:
            if not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
                raise BadMessage("the encode worker handed a region over that can shrink")
            return cls(connection, mmap.mmap(fd, 0, prot=mmap.PROT_READ))
        except (OSError, ValueError) as error:
            raise BadMessage(f"the region cannot be mapped: {error}") from error
        finally:
            os.close(fd)

    async def receive(self, message: PathMessage, place: Place) -> None:
        """See LanguagePath."""
        if not isinstance(message, Pull):
            raise BadMessage(f"a {type(message).__name__} came on a connection whose data path is {SHARED_MEMORY}")
        views = place(message.transfer, message.start_token, message.num_tokens)
        if views is not None:
            chunks = message.chunks
            fit = all(0 <= offset <= len(self._view) - size for offset, size in chunks)
            if not fit or [size for _, size in chunks] != [len(view) for view in views]:
                raise BadMessage(f"{message} does not fit the region of {len(self._view)} bytes")
            sources = (self._view[offset : offset + size] for offset, size in chunks)
            self._copier.copy(zip(views, sources, strict=True))
        await self._connection.send(Pulled(message.transfer, message.start_token))

    def close(self) -> None:
        """See LanguagePath."""
        self._copier.close()
        self._view.release()
        self._region.close()


async def _received_fd(sock: socket.socket) -> int:
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(sock, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(sock)
    try:
        _, fds, _, _ = socket.recv_fds(sock, 1, 1)
    except OSError as error:
        raise LinkClosed(f"the connection broke: {error}") from error
    if not fds:
        raise BadMessage("the encode worker handed no region over")
    return fds[0]
