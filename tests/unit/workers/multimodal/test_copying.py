"""Copies that leave the interpreter to other threads."""

import mmap
from random import Random

import pytest

from pointsman.workers.multimodal.transfer.copying import LARGE_BYTES, Copier, copy


@pytest.mark.parametrize("size", [0, 1, LARGE_BYTES - 1, LARGE_BYTES, 2 * LARGE_BYTES, 3 * LARGE_BYTES + 5])
def test_all_bytes_are_copied_and_no_other(size: int) -> None:
    source = Random(size).randbytes(size)
    whole = bytearray(b"\7" * (size + 20))
    copy(memoryview(whole)[10 : size + 10], memoryview(source))
    assert whole == b"\7" * 10 + source + b"\7" * 10
    copier = Copier()
    again = bytearray(b"\7" * (size + 20))
    copier.copy([(memoryview(again)[10 : size + 10], memoryview(source)), (memoryview(again)[:1], memoryview(b"1"))])
    copier.close()
    assert again == b"1" + b"\7" * 9 + source + b"\7" * 10


def test_memory_that_can_only_be_read_is_a_source_and_no_target() -> None:
    size = 2 * LARGE_BYTES
    mapped = memoryview(mmap.mmap(-1, size, prot=mmap.PROT_READ))
    target = bytearray(b"\1" * size)
    copy(memoryview(target), mapped)
    assert target == bytes(size)
    with pytest.raises((TypeError, ValueError)):
        copy(mapped, memoryview(target))


@pytest.mark.parametrize("sizes", [(1, 2), (2, 1), (3 * LARGE_BYTES, 3 * LARGE_BYTES - 1), (LARGE_BYTES, 0)])
def test_other_sizes_are_refused(sizes: tuple[int, int]) -> None:
    target, source = (memoryview(bytearray(size)) for size in sizes)
    copier = Copier()
    with pytest.raises(ValueError):
        copier.copy([(target, source)])
    copier.close()
