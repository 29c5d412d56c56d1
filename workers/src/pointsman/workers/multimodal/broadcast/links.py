"""Packets between the ranks of a group, on one host: Unix sockets that keep the bounds of messages and carry memory.

The entry rank listens; every other rank connects. A process that ends closes its sockets, so the others notice at once.
"""

import os
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from pointsman.workers.multimodal.broadcast.errors import GroupNotJoined
from pointsman.workers.multimodal.broadcast.messages import (
    VERSION,
    FromEntry,
    Hello,
    ToEntry,
    Welcome,
    decode_from_entry,
    decode_to_entry,
    encode,
)

INLINE_BYTES: Final = 32 * 1024
"""Parcels up to this size travel in the packet itself."""
_PACKET_BYTES: Final = INLINE_BYTES + 8 * 1024
_MAX_FDS: Final = 1
_RETRY_S: Final = 0.02


class LinkBroken(OSError):
    """The other end is gone, or sent something that it must not send."""


class Link:
    """One connection between the entry rank and another rank."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def send(self, message: FromEntry | ToEntry, fds: Sequence[int] = ()) -> None:
        """Send one packet. Raises LinkBroken, also if the peer has not read for the time-out."""
        self.send_packet(encode(message), fds)

    def send_packet(self, packet: bytes, fds: Sequence[int] = ()) -> None:
        """The same for a packet that goes to several peers."""
        try:
            socket.send_fds(self.sock, [packet], fds) if fds else self.sock.send(packet)
        except (TimeoutError, BlockingIOError) as error:
            raise LinkBroken("it does not read its messages") from error
        except OSError as error:
            raise LinkBroken(f"the connection broke: {error}") from error

    def try_send(self, message: FromEntry) -> None:
        """Send one packet if the peer has room for it."""
        with suppress(OSError):  # a peer that reads nothing answers nothing; a broken link is seen by receiving
            self.sock.send(encode(message), socket.MSG_DONTWAIT)

    def receive(self) -> tuple[bytes, list[int]]:
        """The next packet and the file descriptors with it. Raises LinkBroken."""
        try:
            packet, fds, flags, _ = socket.recv_fds(self.sock, _PACKET_BYTES, _MAX_FDS, socket.MSG_CMSG_CLOEXEC)
        except OSError as error:
            raise LinkBroken(f"the connection broke: {error}") from error
        if not packet or flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            for fd in fds:
                os.close(fd)
            raise LinkBroken("a packet is too large" if packet else "the process ended")
        return packet, fds

    def receive_from_entry(self) -> tuple[FromEntry, list[int]]:
        """Other rank: the next message. Raises LinkBroken."""
        packet, fds = self.receive()
        try:
            return decode_from_entry(packet), fds
        except msgspec.DecodeError as error:
            raise LinkBroken(f"a message cannot be understood: {error}") from error

    def receive_to_entry(self) -> ToEntry:
        """Entry rank: the next message. Raises LinkBroken."""
        packet, _ = self.receive()
        try:
            return decode_to_entry(packet)
        except msgspec.DecodeError as error:
            raise LinkBroken(f"a message cannot be understood: {error}") from error

    def bound_sends(self, seconds: float) -> None:
        """Let a send fail after ``seconds``; receiving waits for ever."""
        whole = int(seconds)
        value = struct.pack("ll", whole, int((seconds - whole) * 1e6))
        self.sock.setblocking(True)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)

    def shut_down(self) -> None:
        """End the connection for both sides: what waits here is woken."""
        with suppress(OSError):  # it has ended already
            self.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Release the socket; no thread may use it any more."""
        self.sock.close()


class Meeting:
    """Where the ranks of a group meet: a socket that only this user can reach, at ``path``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        mask = os.umask(0o177)
        try:
            self._sock.bind(str(path))
        finally:
            os.umask(mask)
        self._sock.listen(64)

    def assemble(self, world_size: int, timeout_s: float) -> dict[int, Link]:
        """Wait for the other ranks; returns their links by rank. Raises GroupNotJoined; the socket is closed then."""
        links: dict[int, Link] = {}
        deadline_s = time.monotonic() + timeout_s
        try:
            while len(links) < world_size - 1:
                rank, link = self._accept(world_size, deadline_s, links)
                links[rank] = link
        except GroupNotJoined:
            for link in links.values():
                link.close()
            raise
        finally:
            self.close()
        for link in links.values():
            with suppress(LinkBroken):  # the first receive reports it
                link.send(Welcome())
        return links

    def _accept(self, world_size: int, deadline_s: float, links: dict[int, Link]) -> tuple[int, Link]:
        while True:
            missing = sorted(set(range(1, world_size)) - set(links))
            left_s = deadline_s - time.monotonic()
            late = GroupNotJoined(f"ranks {missing} of {world_size} did not join the group in time")
            if left_s <= 0:
                raise late
            try:
                self._sock.settimeout(left_s)
                link = Link(self._sock.accept()[0])
                link.sock.settimeout(max(0.001, deadline_s - time.monotonic()))
                hello = link.receive_to_entry()
            except TimeoutError as error:
                raise late from error
            except LinkBroken:
                continue  # it will try again, or be missed
            refusal = _refusal(hello, world_size, missing)
            if not refusal and isinstance(hello, Hello):
                return hello.rank, link
            with suppress(LinkBroken):
                link.send(Welcome(refusal))
            link.close()
            raise GroupNotJoined(refusal)

    def close(self) -> None:
        """Stop listening."""
        self._sock.close()
        self.path.unlink(missing_ok=True)


def _refusal(hello: ToEntry, world_size: int, missing: Sequence[int]) -> str:
    if not isinstance(hello, Hello):
        return f"the first message is {type(hello).__name__}, not Hello"
    if hello.version != VERSION:
        return f"version is {hello.version}: it must be {VERSION}"
    if hello.world_size != world_size:
        return f"world_size is {hello.world_size} on rank {hello.rank}: it must be {world_size}, as on the entry rank"
    if hello.rank not in missing:
        return f"rank is {hello.rank}: it must be one of {list(missing)}"
    return ""


def meet(path: Path, rank: int, world_size: int, timeout_s: float) -> Link:
    """Join the group whose entry rank listens, or will listen, at ``path``. Raises GroupNotJoined."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            sock.connect(str(path))
            break
        except OSError as error:
            sock.close()
            if time.monotonic() > deadline_s:
                raise GroupNotJoined(f"rank {rank} does not reach the entry rank at {path}: {error}") from error
            time.sleep(_RETRY_S)  # the entry rank has not started to listen
    link = Link(sock)
    sock.settimeout(max(0.001, deadline_s - time.monotonic()))
    try:
        link.send(Hello(VERSION, rank, world_size))
        answer, _ = link.receive_from_entry()
    except OSError as error:
        link.close()
        raise GroupNotJoined(f"rank {rank} was not accepted by the entry rank at {path}: {error}") from error
    if not isinstance(answer, Welcome) or answer.refusal:
        link.close()
        raise GroupNotJoined(f"rank {rank} was refused: {getattr(answer, 'refusal', answer)}")
    return link
