"""Contiguous blocks of one fixed buffer, given to requests."""

from bisect import bisect_left
from dataclasses import dataclass
from typing import Final

from pointsman.workers.multimodal.transfer.errors import NoAllocation

DEFAULT_BLOCK_SIZE: Final = 128
DEFAULT_BLOCKS: Final = 8


@dataclass(frozen=True, slots=True)
class MetadataAllocation:
    """The blocks ``start_block``, ``start_block + 1``, … (``num_blocks`` of them), for ``num_tokens`` tokens."""

    start_block: int
    num_blocks: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class BlockUsage:
    """Blocks of a buffer at one moment.

    lent_blocks: neither used nor free, but free as soon as they are needed; of the encode side.
    """

    total_blocks: int
    used_blocks: int
    largest_free_blocks: int
    lent_blocks: int = 0

    @property
    def occupancy(self) -> float:
        """Used share of all blocks, 0..1."""
        return self.used_blocks / self.total_blocks

    @property
    def fragmentation(self) -> float:
        """Share of the free blocks that are outside the largest free run, 0..1. 0: one run, or none."""
        free = self.total_blocks - self.used_blocks - self.lent_blocks
        return 1 - self.largest_free_blocks / free if free else 0.0


class ReqToMetadataBlockAllocator:
    """First fit over ``total_tokens // block_size`` blocks; a released run joins its free neighbours.

    Raises NoAllocation unless there are more blocks than the ``default_num_blocks`` of one default reservation.
    """

    def __init__(
        self, total_tokens: int, block_size: int = DEFAULT_BLOCK_SIZE, default_num_blocks: int = DEFAULT_BLOCKS
    ) -> None:
        for name, value in (("block_size", block_size), ("default_num_blocks", default_num_blocks)):
            if value < 1:
                raise NoAllocation(f"{name} is {value}: it must be at least 1")
        self.block_size = block_size
        self.num_blocks = total_tokens // block_size
        self.default_num_blocks = default_num_blocks
        if self.num_blocks <= default_num_blocks:
            raise NoAllocation(
                f"total_tokens is {total_tokens}, which is {self.num_blocks} blocks of {block_size} tokens: it must be "
                f"more than default_num_blocks ({default_num_blocks}) blocks, at least "
                f"{(default_num_blocks + 1) * block_size} tokens"
            )
        self._free_runs = [(0, self.num_blocks)]  # (start block, blocks), ascending, never adjacent
        self._owners: dict[MetadataAllocation, str] = {}

    @property
    def usage(self) -> BlockUsage:
        """Occupancy and fragmentation now."""
        free = sum(blocks for _, blocks in self._free_runs)
        largest = max((blocks for _, blocks in self._free_runs), default=0)
        return BlockUsage(self.num_blocks, self.num_blocks - free, largest)

    def blocks_of(self, num_tokens: int) -> int:
        """Blocks that hold ``num_tokens`` tokens, rounded up. Raises NoAllocation if they never fit."""
        blocks = -(-num_tokens // self.block_size)
        if num_tokens < 1 or blocks > self.num_blocks:
            raise NoAllocation(
                f"num_tokens is {num_tokens}: it must be 1 to {self.num_blocks * self.block_size}, "
                f"the tokens that the buffer holds"
            )
        return blocks

    def alloc_default(self, req_id: str) -> MetadataAllocation | None:
        """The default reservation of the language side, which does not know the length. None: no run is free."""
        return self.alloc(self.default_num_blocks * self.block_size, req_id)

    def alloc(self, num_tokens: int, req_id: str) -> MetadataAllocation | None:
        """Blocks for exactly ``num_tokens``. None: no free run is long enough now. Raises NoAllocation."""
        blocks = self.blocks_of(num_tokens)
        for at, (start, length) in enumerate(self._free_runs):
            if length >= blocks:
                return self._take(at, MetadataAllocation(start, blocks, num_tokens), req_id)
        return None

    def alloc_up_to(self, num_tokens: int, req_id: str) -> MetadataAllocation | None:
        """Blocks for ``num_tokens``, or for as many of them as the longest free run holds. None: no block is free.

        Raises NoAllocation if ``num_tokens`` is not positive. More than the buffer holds is allowed.
        """
        if num_tokens < 1:
            raise NoAllocation(f"num_tokens is {num_tokens}: it must be at least 1")
        largest = self.usage.largest_free_blocks * self.block_size
        return self.alloc(min(num_tokens, largest), req_id) if largest else None

    def free(self, allocation: MetadataAllocation, req_id: str) -> None:
        """Release all blocks of ``allocation``. Raises NoAllocation if ``req_id`` does not own it."""
        owner = self._owners.get(allocation)
        if owner != req_id:
            owned = "is not allocated" if owner is None else f"belongs to request {owner}"
            raise NoAllocation(f"request {req_id} cannot release {allocation}: it {owned}")
        del self._owners[allocation]
        start, blocks = allocation.start_block, allocation.num_blocks
        at = bisect_left(self._free_runs, (start, 0))
        if at < len(self._free_runs) and self._free_runs[at][0] == start + blocks:
            blocks += self._free_runs.pop(at)[1]
        if at and sum(self._free_runs[at - 1]) == start:
            at -= 1
            before, length = self._free_runs.pop(at)
            start, blocks = before, blocks + length
        self._free_runs.insert(at, (start, blocks))

    def _take(self, at: int, allocation: MetadataAllocation, req_id: str) -> MetadataAllocation:
        start, length = self._free_runs.pop(at)
        if length > allocation.num_blocks:
            self._free_runs.insert(at, (start + allocation.num_blocks, length - allocation.num_blocks))
        self._owners[allocation] = req_id
        return allocation
