"""The buffers of embeddings take memory only as they are used."""

import resource
from pathlib import Path

import pytest

from pointsman.workers.multimodal.transfer.allocator import ReqToMetadataBlockAllocator
from pointsman.workers.multimodal.transfer.buffers import MultimodalDataBuffers
from pointsman.workers.multimodal.transfer.data_paths import SharedRegion

TOKENS, TOKEN_BYTES = 1 << 16, 1 << 13  # 512 MiB
MANY_BYTES = 64 << 20


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.parametrize("shared", [False, True])
def test_a_new_buffer_is_not_resident_and_reads_as_zeros(*, shared: bool) -> None:
    allocator = ReqToMetadataBlockAllocator(TOKENS)
    before = resident_bytes()
    region = SharedRegion(MultimodalDataBuffers.region_bytes(allocator, TOKEN_BYTES)) if shared else None
    buffers = MultimodalDataBuffers(allocator, TOKEN_BYTES, None if region is None else region.view)
    assert resident_bytes() - before < MANY_BYTES
    buffers.region[-1:] = b"\1"
    assert bytes(buffers.region[:2]) + bytes(buffers.region[-2:]) == b"\0\0\0\1"
    if region is not None:
        region.close()
