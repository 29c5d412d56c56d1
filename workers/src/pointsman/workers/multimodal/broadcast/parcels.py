"""Objects to bytes and back: pickle with its large buffers apart, so that they are copied once and read in place.

Pickle, because the ranks of a group are processes of one engine and the objects are the engine's own (arrays, tensors).
A group's socket is in a folder that only its user can enter.
"""

import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

_ALIGNMENT: Final = 64
_APART_BYTES: Final = 64 * 1024  # smaller buffers stay in the stream: a packet names every part
_PROTOCOL: Final = 5


class Parcel:
    """The bytes of one object: the pickle stream, then its buffers. Nothing is copied before ``write_into``."""

    def __init__(self, stream: Sequence[Any], buffers: Sequence[memoryview]) -> None:
        self._parts = [list(stream), *([each] for each in buffers)]
        self.part_bytes = tuple(sum(memoryview(piece).nbytes for piece in part) for part in self._parts)
        self.size_bytes = sum(map(_padded, self.part_bytes))

    def write_into(self, copy: Callable[[int, Any], None]) -> None:
        """Have ``copy(offset, piece)`` copy every piece to its place."""
        start = 0
        for part, size in zip(self._parts, self.part_bytes, strict=True):
            offset = start
            for piece in part:
                copy(offset, piece)
                offset += memoryview(piece).nbytes
            start += _padded(size)

    def to_bytes(self) -> bytes:
        """All of it in one object."""
        target = bytearray(self.size_bytes)

        def copy(offset: int, piece: Any) -> None:
            view = memoryview(piece).cast("B")
            target[offset : offset + len(view)] = view

        self.write_into(copy)
        return bytes(target)


class _Pieces:
    """A file for the pickler that keeps what it writes: large bytes objects by reference."""

    def __init__(self) -> None:
        self.pieces: list[Any] = []

    def write(self, piece: Any) -> int:
        self.pieces.append(piece)
        return len(piece)


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        torch = sys.modules.get("torch")  # an engine that has tensors has imported it
        if torch is None or type(obj) is not torch.Tensor or obj.device.type != "cpu" or obj.requires_grad:
            return NotImplemented
        flat = obj.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
        return _tensor, (pickle.PickleBuffer(flat), str(obj.dtype).removeprefix("torch."), tuple(obj.shape))


def _tensor(buffer: Any, dtype: str, shape: tuple[int, ...]) -> Any:
    import torch

    if not memoryview(buffer).nbytes:
        return torch.empty(shape, dtype=getattr(torch, dtype))
    return torch.frombuffer(buffer, dtype=getattr(torch, dtype)).reshape(shape)


def pack(value: object) -> Parcel:
    """The parcel of ``value``. Raises whatever pickling raises."""
    buffers: list[memoryview] = []
    file = _Pieces()

    def stays_in_stream(buffer: pickle.PickleBuffer) -> bool:
        view = buffer.raw()
        if view.nbytes < _APART_BYTES:
            return True
        buffers.append(view)
        return False

    _Pickler(file, protocol=_PROTOCOL, buffer_callback=stays_in_stream).dump(value)
    return Parcel(file.pieces, buffers)


def unpack(view: memoryview, part_bytes: Sequence[int], *, private_copies: bool = False) -> object:
    """The object whose parcel is in ``view``. Its large arrays lie in ``view`` and cannot be written.

    ``private_copies``: they are copied out. Raises whatever unpickling raises.
    """
    parts: list[memoryview | bytearray] = []
    offset = 0
    for size in part_bytes:
        part = view[offset : offset + size]
        parts.append(bytearray(part) if private_copies and parts else part)
        offset += _padded(size)
    value: object = pickle.loads(parts[0], buffers=parts[1:])
    return value


def size_of(value: object) -> int:
    """About how many bytes ``value`` has, without looking into its bytes: containers, buffers, text and tensors."""
    if isinstance(value, str | bytes | bytearray):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(size_of, value.values()))
    if isinstance(value, list | tuple | set):
        return sum(map(size_of, value))
    return int(getattr(value, "nbytes", 0))


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
