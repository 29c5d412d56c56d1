"""The KV feed: what a worker streams to its gateways about the prefixes in its engine's KV cache.

``GET /pointsman/v1/kv-events`` is answered by a body that does not end: frames, each 4 bytes big-endian length and a
msgpack array whose first element names its kind::

    (Heartbeat* Snapshot Blocks* (Increment | Heartbeat)*)+

``Blocks`` follow a ``Snapshot`` until one is the ``last``; the first increment after it has the snapshot's sequence
number plus one. A second ``Snapshot`` replaces everything before it: the worker sends one when a subscriber was too
slow. Blocks are chained 64-bit hashes (``pointsman.serving.block_hashes``), packed little-endian, in runs of blocks
that follow each other; a run comes after the block that it follows. Token ids are never sent.
"""

import sys
from array import array
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

FEED_VERSION: Final = 1
HEARTBEAT_SECONDS: Final = 1.0  # the longest silence of a healthy worker
MAX_FRAME_BYTES: Final = 1 << 22
_LENGTH_BYTES: Final = 4


class MalformedFeed(ValueError):
    """Bytes that are no frames of this version."""


class Snapshot(msgspec.Struct, frozen=True, array_like=True, tag="snapshot"):
    """The worker's whole index follows in ``Blocks``, as of increment ``sequence``."""

    version: int
    instance: str  # new at every start of the worker's process
    block_size: int  # tokens
    sequence: int


class Run(msgspec.Struct, frozen=True, array_like=True):
    """Blocks that follow each other: packed hashes. ``parent``: the block before them; None: they begin a prompt."""

    parent: int | None
    hashes: bytes


class Blocks(msgspec.Struct, frozen=True, array_like=True, tag="blocks"):
    """A piece of a snapshot."""

    runs: list[Run]
    last: bool


class Stored(msgspec.Struct, frozen=True, array_like=True, tag="stored"):
    """The engine now holds the blocks of this run."""

    parent: int | None
    hashes: bytes


class Removed(msgspec.Struct, frozen=True, array_like=True, tag="removed"):
    """The engine no longer holds these blocks: packed hashes, in any order.

    What follows them cannot be hit. When the engine stores such a block again, ``Stored`` repeats what follows it.
    """

    hashes: bytes


class Cleared(msgspec.Struct, frozen=True, array_like=True, tag="cleared"):
    """The engine's cache is empty, or what it holds is no longer known."""


Change = Stored | Removed | Cleared


class Increment(msgspec.Struct, frozen=True, array_like=True, tag="increment"):
    """Changes since increment ``sequence - 1``, in order."""

    sequence: int
    changes: list[Change]


class Heartbeat(msgspec.Struct, frozen=True, array_like=True, tag="heartbeat"):
    """Nothing happened since increment ``sequence``; before the first snapshot: the worker's cache is unknown yet."""

    sequence: int


Frame = Snapshot | Blocks | Increment | Heartbeat

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Frame).decode


def pack_hashes(hashes: Iterable[int]) -> bytes:
    """64-bit hashes as little-endian bytes."""
    packed = array("Q", hashes)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack_hashes(packed: bytes) -> Sequence[int]:
    """The hashes in ``packed``. Raises MalformedFeed."""
    hashes = array("Q")
    try:
        hashes.frombytes(packed)
    except ValueError as error:
        raise MalformedFeed(f"{len(packed)} bytes are no whole 64-bit hashes") from error
    if sys.byteorder == "big":
        hashes.byteswap()
    return hashes.tolist()


def encode_frame(frame: Frame) -> bytes:
    """One frame with its length before it."""
    body = _encode(frame)
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body


class FrameReader:
    """Cuts a stream of bytes into frames, one at a time, so that a caller can pause between any two."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._position = 0

    def push(self, data: bytes) -> None:
        """Bytes that came."""
        if self._position:
            del self._buffer[: self._position]
            self._position = 0
        self._buffer += data

    def next(self) -> Frame | None:
        """The next whole frame; None until more bytes are pushed. Raises MalformedFeed."""
        start = self._position + _LENGTH_BYTES
        if len(self._buffer) < start:
            return None
        length = int.from_bytes(self._buffer[self._position : start], "big")
        if length > MAX_FRAME_BYTES:
            raise MalformedFeed(f"a frame announces {length} bytes; at most {MAX_FRAME_BYTES} are allowed")
        if len(self._buffer) < start + length:
            return None
        self._position = start + length
        try:
            frame: Frame = _decode(self._buffer[start : start + length])
        except msgspec.MsgspecError as error:
            raise MalformedFeed(f"a frame of {length} bytes: {error}") from error
        return frame
