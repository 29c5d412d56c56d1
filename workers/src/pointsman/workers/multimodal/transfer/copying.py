"""Copies of large buffers, during which other threads of the interpreter go on: an engine's, above all."""

import ctypes
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

LARGE_BYTES: Final = 1 << 20  # from here on, what a thread costs is less than what it saves
_PAGE_BYTES: Final = 4096


class _PyBuffer(ctypes.Structure):
    """``Py_buffer``."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.py_object),
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


def address_of(view: memoryview) -> int:
    """Where the bytes of ``view`` lie, also if they can only be read; valid while the view is kept.

    Raises BufferError unless they are contiguous.
    """
    buffer = _PyBuffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(view), ctypes.byref(buffer), 0)
    try:
        return buffer.buf or 0
    finally:
        ctypes.pythonapi.PyBuffer_Release(ctypes.byref(buffer))


def copy(target: memoryview, source: memoryview) -> None:
    """Copy all of ``source``, bytes, into ``target``. Raises ValueError unless both have the same size."""
    if len(target) < LARGE_BYTES or len(target) != len(source):
        target[:] = source
        return
    if target.readonly:
        raise ValueError("the target can only be read")
    ctypes.memmove(address_of(target), address_of(source), len(target))


class Copier:
    """Copies with a second thread beside the caller's, if there is a second core. Returns when all is copied."""

    def __init__(self) -> None:
        cores = len(os.sched_getaffinity(0))
        self._second = ThreadPoolExecutor(1, thread_name_prefix="embedding-copy") if cores > 1 else None

    def copy(self, pairs: Iterable[tuple[memoryview, memoryview]]) -> None:
        """Copy each second view into the first. Raises ValueError unless both have the same size."""
        for target, source in pairs:
            if self._second is None or len(target) < 2 * LARGE_BYTES or len(target) != len(source):
                copy(target, source)
                continue
            middle = len(target) // 2 // _PAGE_BYTES * _PAGE_BYTES
            rest = self._second.submit(copy, target[middle:], source[middle:])
            try:
                copy(target[:middle], source[:middle])
            finally:
                rest.result()

    def close(self) -> None:
        """End the second thread."""
        if self._second is not None:
            self._second.shutdown()
