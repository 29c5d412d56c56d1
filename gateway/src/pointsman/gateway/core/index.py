"""Which worker holds which prefix: one dictionary from chained block hash to a set of workers.

A chained hash names a whole prefix, so no tree is needed: the longest prefix of a prompt on a worker is the number of
leading hashes whose set holds that worker. Worker sets are bit sets in one integer. The engine names blocks by hashes
of its own; they matter only to find a stored block again when it is removed or gets a child.
"""

from collections.abc import Sequence

from pointsman.gateway.types import EngineHash, WorkerKey
from pointsman.serving.block_hashes import chained_block_hashes


class KvIndex:
    """Prefixes by worker. Not thread-safe: one event loop owns it."""

    def __init__(self) -> None:
        self._holders: dict[int, int] = {}  # chained hash -> bit set of slots
        self._slots: dict[WorkerKey, int] = {}
        self._keys: dict[int, WorkerKey] = {}  # slot -> worker
        self._blocks: dict[WorkerKey, dict[EngineHash, int]] = {}  # worker -> engine's hash -> chained hash

    def stored(
        self,
        worker: WorkerKey,
        *,
        engine_hashes: Sequence[EngineHash],
        engine_parent: EngineHash | None,
        token_ids: Sequence[int],
        block_size: int,
    ) -> bool:
        """Worker now holds these blocks, which follow ``engine_parent`` (None: they begin a prompt).

        False when the parent is not known here, so the prefix these blocks end cannot be named; they are left out.
        """
        blocks = self._blocks.setdefault(worker, {})
        parent: int | None = None
        if engine_parent is not None:
            parent = blocks.get(engine_parent)
            if parent is None:
                return False
        chain = chained_block_hashes(token_ids, block_size, parent=parent)
        bit = 1 << self._slot(worker)
        holders = self._holders
        for engine_hash, chained in zip(engine_hashes, chain, strict=False):
            blocks[engine_hash] = chained
            holders[chained] = holders.get(chained, 0) | bit
        return True

    def removed(self, worker: WorkerKey, engine_hashes: Sequence[EngineHash]) -> None:
        """Worker evicted these blocks. Unknown ones are none of ours."""
        blocks = self._blocks.get(worker)
        if not blocks:
            return
        bit = 1 << self._slots[worker]
        for engine_hash in engine_hashes:
            chained = blocks.pop(engine_hash, None)
            if chained is not None:
                self._drop(chained, bit)

    def cleared(self, worker: WorkerKey) -> None:
        """Worker holds nothing any more: its cache was reset, its engine restarted, or it is gone."""
        blocks = self._blocks.pop(worker, None)
        slot = self._slots.pop(worker, None)
        if slot is None:
            return
        del self._keys[slot]
        for chained in set((blocks or {}).values()):
            self._drop(chained, 1 << slot)

    def matches(self, chain: Sequence[int]) -> dict[WorkerKey, int]:
        """Length in blocks of the longest prefix of ``chain`` that each worker holds; workers with none are absent."""
        holders = self._holders
        found: dict[WorkerKey, int] = {}
        depth = 0
        alive = -1
        for chained in chain:
            here = holders.get(chained, 0) & alive
            if here != alive:
                if depth:
                    self._record(found, alive & ~here, depth)
                if not here:
                    return found
                alive = here
            depth += 1
        if depth:
            self._record(found, alive, depth)
        return found

    def blocks_held(self, worker: WorkerKey) -> int:
        """Blocks known to be on ``worker``."""
        return len(self._blocks.get(worker, ()))

    def __len__(self) -> int:
        return len(self._holders)

    def _record(self, found: dict[WorkerKey, int], slots: int, depth: int) -> None:
        while slots:
            lowest = slots & -slots
            found[self._keys[lowest.bit_length() - 1]] = depth
            slots ^= lowest

    def _drop(self, chained: int, bit: int) -> None:
        left = self._holders.get(chained, 0) & ~bit
        if left:
            self._holders[chained] = left
        else:
            self._holders.pop(chained, None)

    def _slot(self, worker: WorkerKey) -> int:
        slot = self._slots.get(worker)
        if slot is None:
            slot = 0
            while slot in self._keys:
                slot += 1
            self._slots[worker] = slot
            self._keys[slot] = worker
        return slot
