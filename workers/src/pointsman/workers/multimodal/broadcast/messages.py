"""What the ranks of a group send each other: MessagePack, one message a packet.

The entry rank sends every message to all other ranks, in one order. ``sequence`` is the number of a request's inputs
in the group, ascending and never used again.
"""

from enum import StrEnum
from typing import Final

import msgspec

from pointsman.workers.multimodal.broadcast.errors import (
    BroadcastError,
    GroupClosed,
    InputsCancelled,
    NotMaterialised,
    RankLost,
)

VERSION: Final = 1
_MESSAGE_LETTERS: Final = 2000


class ErrorKind(StrEnum):
    """Which error the ranks raise."""

    MATERIALISE = "materialise"
    CANCELLED = "cancelled"
    RANK_LOST = "rank_lost"
    CLOSED = "closed"


_ERRORS: Final[dict[ErrorKind, type[BroadcastError]]] = {
    ErrorKind.MATERIALISE: NotMaterialised,
    ErrorKind.CANCELLED: InputsCancelled,
    ErrorKind.RANK_LOST: RankLost,
    ErrorKind.CLOSED: GroupClosed,
}


class ErrorEnvelope(msgspec.Struct, frozen=True):
    """An error as it travels between ranks. ``error_type``: name of the original exception's class, or empty."""

    kind: ErrorKind
    message: str
    error_type: str = ""

    def exception(self) -> BroadcastError:
        """A new exception that says this."""
        return _ERRORS[self.kind](self.message)


def envelope(kind: ErrorKind, message: str, error_type: str = "") -> ErrorEnvelope:
    """An envelope that fits a packet, whatever a request is called and an exception says."""
    printable = message[:_MESSAGE_LETTERS].encode(errors="replace").decode()
    return ErrorEnvelope(kind, printable, error_type)


def cancelled_envelope(request_id: str) -> ErrorEnvelope:
    """What every rank gets when a request was aborted."""
    return envelope(ErrorKind.CANCELLED, f"request {request_id} was cancelled before its inputs were there")


class Layout(msgspec.Struct, frozen=True):
    """Where the bytes of one parcel are: in the message (``inline``), or in a segment of shared memory.

    ``part_bytes``: sizes of the pickle stream and of the buffers that follow it, each at the next multiple of 64.
    """

    part_bytes: tuple[int, ...]
    inline: bytes = b""
    segment: int = -1
    segment_bytes: int = 0  # not 0: the packet brings the file descriptor of a segment of this size


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """First message of every other rank."""

    version: int
    rank: int
    world_size: int


class Welcome(msgspec.Struct, frozen=True, tag="welcome"):
    """Answer to Hello: all ranks are there. ``refusal``: the rank cannot join, and why."""

    refusal: str = ""


class Object(msgspec.Struct, frozen=True, tag="object"):
    """Entry rank: the materialised inputs. They count as delivered on every rank."""

    sequence: int
    layout: Layout


class Raw(msgspec.Struct, frozen=True, tag="raw"):
    """Entry rank: materialise this, report, and wait for the verdict."""

    sequence: int
    layout: Layout


class Verdict(msgspec.Struct, frozen=True, tag="verdict"):
    """Entry rank: how a request's inputs ended on every rank. Without an error they are delivered."""

    sequence: int
    error: ErrorEnvelope | None = None


class Retire(msgspec.Struct, frozen=True, tag="retire"):
    """Entry rank: the segment is not used any more."""

    segment: int


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """Entry rank: answer at once. The only message that has no place in the order."""


class End(msgspec.Struct, frozen=True, tag="end"):
    """Entry rank: the last message of the group, and why what is undecided ends."""

    error: ErrorEnvelope


class Report(msgspec.Struct, frozen=True, tag="report"):
    """Other rank: it has materialised the raw inputs, or could not."""

    sequence: int
    error: ErrorEnvelope | None = None


class Released(msgspec.Struct, frozen=True, tag="released"):
    """Other rank: nothing there reads the parcel any more."""

    sequence: int


class Pong(msgspec.Struct, frozen=True, tag="pong"):
    """Other rank: it follows."""


class Goodbye(msgspec.Struct, frozen=True, tag="goodbye"):
    """Other rank: it leaves, after the last message or because it cannot go on; ``reason`` says why then."""

    reason: str = ""


FromEntry = Welcome | Object | Raw | Verdict | Retire | Ping | End
ToEntry = Hello | Report | Released | Pong | Goodbye

_encoder: Final = msgspec.msgpack.Encoder()
_from_entry: Final = msgspec.msgpack.Decoder(FromEntry)
_to_entry: Final = msgspec.msgpack.Decoder(ToEntry)


def encode(message: FromEntry | ToEntry) -> bytes:
    """One packet."""
    return _encoder.encode(message)


def decode_from_entry(packet: bytes) -> FromEntry:
    """Raises msgspec.DecodeError."""
    message: FromEntry = _from_entry.decode(packet)
    return message


def decode_to_entry(packet: bytes) -> ToEntry:
    """Raises msgspec.DecodeError."""
    message: ToEntry = _to_entry.decode(packet)
    return message
