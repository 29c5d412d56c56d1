"""Shared memory for large parcels: segments without a name, made by the entry rank and used again.

The kernel frees a segment with its last process, however that ends. Pages of a new segment cost far more than copying
into known ones, so a segment is used again as soon as no rank reads it, and every rank keeps its mapping.
"""

import ctypes
import mmap
import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

_SMALLEST_BYTES: Final = 1 << 20


class Segment:
    """``size_bytes`` of memory that other ranks can map by ``fd``."""

    def __init__(self, number: int, size_bytes: int) -> None:
        self.number = number
        self.size_bytes = size_bytes
        self.announced = False  # whether the other ranks have it
        self.fd = os.memfd_create("pointsman-inputs", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, size_bytes)
        self._map = mmap.mmap(self.fd, size_bytes)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    def copy(self, offset: int, piece: Any) -> None:
        """Copy ``piece`` to ``offset``. Other threads run meanwhile."""
        view = memoryview(piece).cast("B")
        if offset + len(view) > self.size_bytes:
            raise ValueError(f"{len(view)} bytes at {offset} do not fit a segment of {self.size_bytes}")
        with _pinned(view) as source:
            ctypes.memmove(self._address + offset, source, len(view))

    def close(self) -> None:
        """Give the memory back; ranks that map it keep it."""
        os.close(self.fd)


class SegmentPool:
    """Segments of one entry rank. Not thread-safe.

    ``max_idle_bytes``: unused segments beyond this are given back.
    """

    def __init__(self, max_idle_bytes: int) -> None:
        self._max_idle_bytes = max_idle_bytes
        self._idle: list[Segment] = []  # least recently used first
        self._next_number = 0

    @property
    def idle_bytes(self) -> int:
        """Bytes of segments that nobody uses."""
        return sum(each.size_bytes for each in self._idle)

    def take(self, size_bytes: int) -> Segment:
        """A segment of at least ``size_bytes``, for the caller alone."""
        fitting = [each for each in self._idle if size_bytes <= each.size_bytes <= 4 * max(size_bytes, _SMALLEST_BYTES)]
        if fitting:
            chosen = min(reversed(fitting), key=lambda each: each.size_bytes)
            self._idle.remove(chosen)
            return chosen
        self._next_number += 1
        return Segment(self._next_number, max(_SMALLEST_BYTES, 1 << (size_bytes - 1).bit_length()))

    def give_back(self, segment: Segment) -> list[int]:
        """Nobody uses ``segment`` any more. Returns the announced segments that were closed for it."""
        self._idle.append(segment)
        retired = []
        while self.idle_bytes > self._max_idle_bytes:
            oldest = self._idle.pop(0)
            oldest.close()
            if oldest.announced:
                retired.append(oldest.number)
        return retired

    def close(self) -> None:
        """Close what is unused."""
        for each in self._idle:
            each.close()
        self._idle.clear()


class MappedSegments:
    """The segments of the entry rank, as another rank sees them: it can only read. Not thread-safe."""

    def __init__(self) -> None:
        self._maps: dict[int, tuple[mmap.mmap, int]] = {}

    def add(self, number: int, fd: int, size_bytes: int) -> None:
        """Map segment ``number``; takes ``fd``. Raises OSError and ValueError."""
        try:
            mapped = mmap.mmap(fd, size_bytes, prot=mmap.PROT_READ)
        finally:
            os.close(fd)
        with _pinned(mapped) as address:
            self._maps[number] = (mapped, address)

    def view(self, number: int, size_bytes: int, when_unread: Callable[[], None]) -> memoryview:
        """The first ``size_bytes``, read-only. ``when_unread`` is called once nothing refers to them any more.

        Arrays made from the view refer to them as well. Raises KeyError for an unknown segment.
        """
        mapped, address = self._maps[number]
        if size_bytes > len(mapped):
            raise ValueError(f"a parcel of {size_bytes} bytes does not fit segment {number} of {len(mapped)} bytes")
        # What is made from a memoryview keeps the exporter alive, not the memoryview: so each parcel has its own.
        exporter = (ctypes.c_char * size_bytes).from_address(address)
        exporter.mapped = mapped  # type: ignore[attr-defined]  # the memory outlives its retirement
        weakref.finalize(exporter, when_unread).atexit = False
        return memoryview(exporter).cast("B").toreadonly()

    def retire(self, number: int) -> None:
        """The entry rank does not use segment ``number`` any more."""
        self._maps.pop(number, None)


@contextmanager
def _pinned(buffer: Any) -> Iterator[int]:
    """The address of ``buffer``, read-only or not; ctypes gives it for writable ones only."""
    view = _PyBuffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(buffer), ctypes.byref(view), 0)
    try:
        yield view.buf or 0
    finally:
        ctypes.pythonapi.PyBuffer_Release(ctypes.byref(view))


class _PyBuffer(ctypes.Structure):
    """``Py_buffer`` of the stable ABI."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )
