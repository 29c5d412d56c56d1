"""Where embeddings lie: one region with an area for each kind of data, in the blocks of an allocation.

The region is any writable buffer: private memory, shared memory, or memory that a transport has registered.
"""

import mmap
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from pointsman.workers.multimodal.transfer.allocator import MetadataAllocation, ReqToMetadataBlockAllocator
from pointsman.workers.multimodal.transfer.copying import copy
from pointsman.workers.multimodal.transfer.errors import NoAllocation

FILL_ID_BYTES: Final = 4  # int32, one a token
MROPE_BYTES: Final = 12  # int32, three a token: time, height, width
AUX_BYTES: Final = 64  # 16 x int32, one row a block: the least that RDMA moves without a penalty

_FIELDS: Final = ("embeddings", "fill_ids", "mrope_positions")

Buffer = bytes | bytearray | memoryview
Chunk = tuple[int, int]
"""(offset in the region, size), both in bytes."""


@dataclass(frozen=True, slots=True)
class Embedding:
    """The embedding of one request, ``num_tokens`` long, token after token in each field.

    embeddings: (num_tokens, bytes of one token's vector); fill_ids: (num_tokens,) int32;
    mrope_positions: (num_tokens, 3) int32.
    """

    num_tokens: int
    embeddings: Buffer
    fill_ids: Buffer
    mrope_positions: Buffer


class RegionLayout:
    """Where each area of a region of ``num_blocks`` blocks lies, also of one in another process.

    Raises NoAllocation if a number is not positive.
    """

    def __init__(self, num_blocks: int, block_size: int, embedding_bytes: int) -> None:
        if embedding_bytes < 1:
            raise NoAllocation(f"embedding_bytes is {embedding_bytes}: it must be at least 1, the bytes of a token")
        if num_blocks < 1 or block_size < 1:
            raise NoAllocation(f"a region of {num_blocks} blocks of {block_size} tokens holds nothing")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.token_bytes = (embedding_bytes, FILL_ID_BYTES, MROPE_BYTES)
        self.num_tokens = num_blocks * block_size
        areas, end = [], 0
        for size in self.token_bytes:
            areas.append(end)
            end += size * self.num_tokens
        self._areas = tuple(areas)
        self._aux_area = end
        self.size_bytes = end + num_blocks * AUX_BYTES

    def get_buf_chunk_info(
        self, allocation: MetadataAllocation, offset_tokens: int = 0, max_tokens: int | None = None
    ) -> tuple[Chunk, Chunk, Chunk, Chunk]:
        """Where the tokens from ``offset_tokens`` on lie, at most ``max_tokens``: embeddings, fill ids, M-RoPE, aux.

        Raises NoAllocation if there is no such token in the allocation.
        """
        tokens = allocation.num_tokens - offset_tokens
        tokens = tokens if max_tokens is None else min(tokens, max_tokens)
        if offset_tokens < 0 or tokens < 1:
            raise NoAllocation(
                f"offset_tokens is {offset_tokens} and max_tokens {max_tokens}: the allocation has the tokens 0 to "
                f"{allocation.num_tokens - 1}, and at least one of them must be meant"
            )
        first = allocation.start_block * self.block_size + offset_tokens
        embeddings, fill_ids, mrope = (
            (area + first * size, tokens * size) for area, size in zip(self._areas, self.token_bytes, strict=True)
        )
        return embeddings, fill_ids, mrope, (self._aux_area + allocation.start_block * AUX_BYTES, AUX_BYTES)

    def check(self, allocation: MetadataAllocation) -> None:
        """Raises NoAllocation unless the tokens of ``allocation`` lie in its blocks, and these in the region."""
        start, blocks, tokens = allocation.start_block, allocation.num_blocks, allocation.num_tokens
        if start < 0 or not 0 < tokens <= blocks * self.block_size or start + blocks > self.num_blocks:
            raise NoAllocation(
                f"{allocation} is not possible: there are {self.num_blocks} blocks of {self.block_size} tokens"
            )


class MultimodalDataBuffers:
    """The areas embeddings, fill ids, M-RoPE positions and aux, in ``region`` (None: private memory).

    ``aux[0]`` of an allocation is the total number of tokens of its request, sent or not.
    Raises NoAllocation if the region has not exactly ``region_bytes``.
    """

    def __init__(
        self, allocator: ReqToMetadataBlockAllocator, embedding_bytes: int, region: bytearray | memoryview | None = None
    ) -> None:
        self.layout = RegionLayout(allocator.num_blocks, allocator.block_size, embedding_bytes)
        self.token_bytes = self.layout.token_bytes
        needed = self.layout.size_bytes
        self.region = memoryview(_private_memory(needed) if region is None else region).cast("B")
        if len(self.region) != needed:
            raise NoAllocation(f"region has {len(self.region)} bytes: it must have {needed}")

    @staticmethod
    def region_bytes(allocator: ReqToMetadataBlockAllocator, embedding_bytes: int) -> int:
        """Size of the region for all blocks of ``allocator``, bytes."""
        return RegionLayout(allocator.num_blocks, allocator.block_size, embedding_bytes).size_bytes

    def get_buf_chunk_info(
        self, allocation: MetadataAllocation, offset_tokens: int = 0, max_tokens: int | None = None
    ) -> tuple[Chunk, Chunk, Chunk, Chunk]:
        """See RegionLayout."""
        return self.layout.get_buf_chunk_info(allocation, offset_tokens, max_tokens)

    def views(self, chunks: Iterable[Chunk]) -> tuple[memoryview, ...]:
        """The bytes of ``chunks``, writable, without a copy."""
        return tuple(self.region[offset : offset + size] for offset, size in chunks)

    def get_buf(self, allocation: MetadataAllocation) -> tuple[memoryview, ...]:
        """Views of embeddings, fill ids, M-RoPE positions and aux, without a copy: valid until it is freed."""
        return self.views(self.get_buf_chunk_info(allocation))

    def part_bytes(self, num_tokens: int) -> int:
        """Size of ``num_tokens`` tokens and one row of aux, bytes."""
        return num_tokens * sum(self.token_bytes) + AUX_BYTES

    def check(self, embedding: Embedding) -> None:
        """Raises NoAllocation unless each field has the bytes of ``num_tokens`` tokens."""
        for name, size in zip(_FIELDS, self.token_bytes, strict=True):
            found, right = memoryview(getattr(embedding, name)).nbytes, embedding.num_tokens * size
            if found != right:
                raise NoAllocation(
                    f"{name} has {found} bytes: it must have {right}, {size} for each of {embedding.num_tokens} tokens"
                )

    def set_buf(self, embedding: Embedding, allocation: MetadataAllocation) -> None:
        """Copy a whole embedding into its allocation, and its length into ``aux[0]``.

        Raises NoAllocation if the allocation is for another length, or a field has another size.
        """
        if embedding.num_tokens != allocation.num_tokens:
            raise NoAllocation(
                f"num_tokens is {embedding.num_tokens}: it must be {allocation.num_tokens}, as in the allocation"
            )
        self.check(embedding)
        *fields, aux = self.get_buf(allocation)
        for name, target in zip(_FIELDS, fields, strict=True):
            copy(target, memoryview(getattr(embedding, name)).cast("B"))
        struct.pack_into("=i", aux, 0, embedding.num_tokens)

    def total_tokens(self, allocation: MetadataAllocation) -> int:
        """``aux[0]``: the tokens of the whole request."""
        total: int = struct.unpack_from("=i", self.get_buf(allocation)[3])[0]
        return total


def _private_memory(size_bytes: int) -> mmap.mmap:
    """Zeros, which take no time to make and are backed by memory page by page as they are written."""
    return mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
