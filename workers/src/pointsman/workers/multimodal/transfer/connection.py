"""Authenticated frames over one socket, TCP or Unix.

A frame is its length (4 bytes, big endian) and a MessagePack message; raw bytes may follow. asyncio's streams would
copy these twice, so this reads from the socket into their place, and sends from where they lie.
"""

import asyncio
import hmac
import secrets
import socket
import struct
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from pointsman.api.protocol.control import accepted_tokens
from pointsman.workers.multimodal.transfer.errors import BadMessage, HandshakeRefused, LinkClosed
from pointsman.workers.multimodal.transfer.messages import (
    VERSION,
    Challenge,
    EncodeHello,
    LanguageHello,
    Message,
    Refused,
    decode,
    encode,
)

HANDSHAKE_S: Final = 5.0
MAX_FRAME_BYTES: Final = 65536
_NONCE_BYTES: Final = 32
_LENGTH: Final = struct.Struct("!I")


class Connection:
    """Messages over ``sock``, which belongs to this from now on. One task receives; any may send."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = sock
        self._loop = asyncio.get_running_loop()
        self._sending = asyncio.Lock()

    @property
    def same_host(self) -> bool:
        """Whether file descriptors can be handed over."""
        return self.sock.family == socket.AF_UNIX

    async def send(self, message: Message, payload: Sequence[memoryview] = (), *, then: Message | None = None) -> None:
        """Send a frame, the raw bytes that follow it, and the frame of ``then``. Raises LinkClosed."""
        first, last = _frame(message), _frame(then) if then is not None else b""
        async with self._sending:
            try:
                if payload:
                    await self._loop.sock_sendall(self.sock, first)
                    for view in payload:
                        await self._loop.sock_sendall(self.sock, view)
                    await self._loop.sock_sendall(self.sock, last)
                else:  # at once, or the peer wakes up twice
                    await self._loop.sock_sendall(self.sock, first + last)
            except OSError as error:
                raise LinkClosed(f"the connection broke: {error}") from error

    async def receive(self) -> Message:
        """The next message. Raises LinkClosed; BadMessage if it cannot be understood."""
        head = bytearray(_LENGTH.size)
        await self.read_into((memoryview(head),))
        (size,) = _LENGTH.unpack(head)
        if size > MAX_FRAME_BYTES:
            raise BadMessage(f"a frame has {size} bytes: at most {MAX_FRAME_BYTES}")
        frame = bytearray(size)
        await self.read_into((memoryview(frame),))
        try:
            message: Message = decode(frame)
        except msgspec.DecodeError as error:
            raise BadMessage(f"a frame cannot be understood: {error}") from error
        return message

    async def read_into(self, views: Iterable[memoryview]) -> None:
        """Fill ``views`` with the raw bytes that come next. Raises LinkClosed."""
        for view in views:
            done = 0
            while done < len(view):
                try:
                    got = await self._loop.sock_recv_into(self.sock, view[done:])
                except OSError as error:
                    raise LinkClosed(f"the connection broke: {error}") from error
                if not got:
                    raise LinkClosed("the peer has closed the connection")
                done += got

    async def discard(self, size_bytes: int) -> None:
        """Read ``size_bytes`` that nobody wants. Raises LinkClosed."""
        scratch = memoryview(bytearray(min(size_bytes, MAX_FRAME_BYTES)))
        while size_bytes > 0:
            piece = scratch[:size_bytes]
            await self.read_into((piece,))
            size_bytes -= len(piece)

    def shut_down(self) -> None:
        """End the connection for both sides: what waits here raises LinkClosed."""
        with suppress(OSError):  # it has ended already
            self.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Release the socket; no task may use it any more."""
        self.sock.close()


def _frame(message: Message) -> bytes:
    frame = encode(message)
    if len(frame) > MAX_FRAME_BYTES:
        raise BadMessage(f"a {type(message).__name__} has {len(frame)} bytes: at most {MAX_FRAME_BYTES}")
    return _LENGTH.pack(len(frame)) + frame


def _proof(token: str, side: str, encode_nonce: bytes, language_nonce: bytes) -> bytes:
    return hmac.digest(token.encode(), side.encode() + encode_nonce + language_nonce, "sha256")


async def greet_language_side(
    connection: Connection,
    token: str,
    *,
    embedding_bytes: int,
    sizes_first: bool,
    choose_path: Callable[[Sequence[str]], str | None],
) -> EncodeHello:
    """Handshake of the encode side; returns what was agreed.

    Raises HandshakeRefused after telling the peer why it is refused, and LinkClosed, BadMessage,
    TimeoutError.
    """
    async with asyncio.timeout(HANDSHAKE_S):
        nonce = secrets.token_bytes(_NONCE_BYTES)
        await connection.send(Challenge(nonce))
        hello = await connection.receive()
        if not isinstance(hello, LanguageHello):
            raise BadMessage(f"the first message is {type(hello).__name__}, not LanguageHello")
        path = choose_path(hello.paths)
        proofs = {each: _proof(each, "language", nonce, hello.nonce) for each in accepted_tokens(token)}
        theirs = [each for each, proof in proofs.items() if hmac.compare_digest(hello.proof, proof)]
        if not theirs:
            refusal = "the service's control token is missing or wrong"
        elif hello.version != VERSION:
            refusal = f"version is {hello.version}: it must be {VERSION}"
        elif hello.embedding_bytes != embedding_bytes:
            refusal = f"embedding_bytes is {hello.embedding_bytes}: it must be {embedding_bytes}, as on the encode side"
        elif path is None:
            refusal = f"paths is {list(hello.paths)}: none of them is possible on this connection"
        else:
            proof = _proof(theirs[0], "encode", nonce, hello.nonce)
            agreed = EncodeHello(proof, path, sizes_first and hello.sizes_first)
            await connection.send(agreed)
            return agreed
        await connection.send(Refused(refusal))
        raise HandshakeRefused(refusal)


async def greet_encode_side(
    connection: Connection, token: str, *, embedding_bytes: int, sizes_first: bool, paths: tuple[str, ...]
) -> EncodeHello:
    """Handshake of the language side; returns what was agreed.

    Raises HandshakeRefused, LinkClosed, BadMessage and TimeoutError.
    """
    async with asyncio.timeout(HANDSHAKE_S):
        challenge = await connection.receive()
        if not isinstance(challenge, Challenge):
            raise BadMessage(f"the first message is {type(challenge).__name__}, not Challenge")
        nonce = secrets.token_bytes(_NONCE_BYTES)
        token = accepted_tokens(token)[0]
        proof = _proof(token, "language", challenge.nonce, nonce)
        await connection.send(LanguageHello(VERSION, nonce, proof, paths, sizes_first, embedding_bytes))
        match await connection.receive():
            case Refused(reason=reason):
                raise HandshakeRefused(f"the encode worker refuses the connection: {reason}")
            case EncodeHello() as agreed:
                if not hmac.compare_digest(agreed.proof, _proof(token, "encode", challenge.nonce, nonce)):
                    raise HandshakeRefused("the encode worker does not have the service's control token")
                return agreed
            case other:
                raise BadMessage(f"the answer is {type(other).__name__}, not EncodeHello")
