"""Which worker holds which prefix: one dictionary from chained block hash to a set of workers.

A chained hash names a whole prefix, so no tree is walked: worker sets are bit sets in one integer, and the longest
prefix of a prompt on a worker ends at the last hash whose set contains that worker. The blocks of a worker are always
closed under prefixes (a block is held only together with all blocks before it), so the sets along a prompt only shrink,
and a search looks at a few of its blocks instead of all of them. To keep them closed, a removed block takes with it
what follows it: an engine cannot use a block whose prefix it lost. It is reported again with the missing block.

Uses are remembered only where an option needs them: see ``KvIndex``.
"""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise
from types import TracebackType
from typing import NamedTuple, Self

from pointsman.gateway.types import WorkerKey

SWEEP_BLOCKS = 4096
"""How many blocks of workers that are gone one call drops at most: about two milliseconds."""

USES_COUNTED = 128
"""The access frequency of a block stops growing here, which bounds what is kept for it."""

USES_MATTER_FROM = 0.75
"""Share of ``max_blocks`` from which uses are remembered, so that the eviction to come knows them."""

PASSED_OVER = 256
"""Recently used blocks that one eviction passes over at most, so that no call takes long."""


class OverlapScores(NamedTuple):
    """The answer of ``find_matches``.

    ``scores``: matched blocks by worker. ``frequencies``: for each matched block in order, how often prompts matched it
    within the expiration time before this one; blocks that none had matched have no entry.
    """

    scores: dict[WorkerKey, int]
    frequencies: list[int]


class KvIndex:
    """Prefixes by worker. Not thread-safe: one event loop owns it.

    ``max_blocks`` bounds memory: of pairs (worker, block) there are at most so many. Beyond that, blocks are evicted
    from the worker that has most of them: ends of prefixes, those stored longest ago first, except those that a prompt
    matched since eviction last saw them or, with ``expiration_seconds``, within that time. An evicted block is a hit
    that the router does not know of, never a wrong one.

    ``expiration_seconds``: for how long the use of a block counts in its access frequency. None: no frequencies are
    kept, and a search costs nothing for them. ``clock``: monotonic seconds, needed with ``expiration_seconds``.
    Raises ValueError for a bound below 1, and for an expiration that is not positive or comes without a clock.
    """

    def __init__(
        self,
        *,
        max_blocks: int | None = None,
        expiration_seconds: float | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        if max_blocks is not None and max_blocks < 1:
            raise ValueError(f"max_blocks is {max_blocks}: it must be at least 1")
        if expiration_seconds is not None and (expiration_seconds <= 0 or clock is None):
            raise ValueError(f"expiration_seconds is {expiration_seconds}: it must be positive and needs a clock")
        self.evictions = 0  # pairs (worker, block) evicted so far
        self._max_blocks = max_blocks
        self._expiration_seconds = expiration_seconds
        self._clock = clock or (lambda: 0.0)
        # Uses are remembered while there are more pairs than this.
        self._uses_from = float("inf") if max_blocks is None else USES_MATTER_FROM * max_blocks
        if expiration_seconds is not None:
            self._uses_from = -1
        self._used: set[int] = set()  # blocks matched since eviction last looked at them
        self._recent_uses: dict[int, deque[float]] = {}  # block -> times, oldest first
        self._pairs = 0
        self._holders: dict[int, int] = {}  # chained hash -> bit set of slots
        self._children: dict[int, int | set[int]] = {}  # chained hash -> the one or the several that follow it
        self._slots: dict[WorkerKey, _Slot] = {}
        self._keys: dict[int, WorkerKey] = {}  # slot number -> worker, of the visible slots
        self._contents: dict[int, _Slot] = {}  # slot number -> slot, of all that are not to be swept
        self._numbers: set[int] = set()  # slot numbers in use
        self._visible = 0  # bit set of slots that count in searches
        self._dead = 0  # bit set of slots that are to be swept
        self._garbage: list[_Slot] = []

    def stored_chain(self, worker: WorkerKey, chained: Sequence[int], *, parent: int | None) -> bool:
        """``worker`` now holds these consecutive blocks, which follow the block ``parent`` (None: they begin a prompt).

        False when the worker is not known to hold ``parent``: then no prompt can hit these blocks, and they are left
        out.
        """
        if self._garbage:
            self.sweep(SWEEP_BLOCKS)
        slot = self._slots.get(worker)
        if slot is None:
            slot = self._slots[worker] = self._new_slot()
            self._show(worker, slot)
        return self._store(slot, chained, parent)

    def removed_chain(self, worker: WorkerKey, chained: Sequence[int]) -> None:
        """``worker`` evicted these blocks, in any order. What follows them there goes too; unknown ones are ignored."""
        slot = self._slots.get(worker)
        if slot is None:
            return
        held = slot.held
        for block in chained:
            if block in held:
                self._forget(slot, block)

    def cleared(self, worker: WorkerKey) -> None:
        """``worker`` holds nothing any more: its cache was reset, its engine restarted, or it is gone.

        Takes effect at once; the memory of many blocks is released by ``sweep``.
        """
        slot = self._slots.pop(worker, None)
        if slot is not None:
            self._retire(slot)
            self.sweep(SWEEP_BLOCKS)

    def replace(self, worker: WorkerKey) -> "Replacement":
        """Start a new content of ``worker``, e.g. from a snapshot. Until it is finished, the present one stays."""
        return Replacement(self, worker)

    def sweep(self, blocks: int) -> bool:
        """Drop at most so many blocks of contents that were cleared or replaced. Returns whether some are left.

        Every store sweeps too; a caller needs it only to release memory while nothing is stored.
        """
        while self._garbage:
            slot = self._garbage[-1]
            held, bit = slot.held, slot.bit
            for _ in range(min(blocks, len(held))):
                self._drop(held.popitem()[0], bit)
                blocks -= 1
            if held:
                return True
            self._garbage.pop()
            self._dead &= ~bit
            self._numbers.discard(slot.number)
        return False

    def matches(self, chain: Sequence[int]) -> dict[WorkerKey, int]:
        """Length in blocks of the longest prefix of ``chain`` that each worker holds; workers with none are absent."""
        found = self._search(chain)
        if self._pairs > self._uses_from and found:
            self._remember_use(chain[: max(found.values())])
        return found

    def find_matches(self, chain: Sequence[int], *, early_exit: bool = False) -> OverlapScores:
        """``matches`` with access frequencies, by the rules of ``find_matches`` in Dynamo's KV indexer of 2025.

        With ``early_exit`` the search ends at the first block that only one worker has: that worker's score says that
        it has the longest prefix, not how long it is. Unlike there, a block behind one that a worker does not hold
        adds nothing to that worker's score, because the engine could not use it.
        """
        found = self._search(chain)
        if not found:
            return OverlapScores(found, [])
        best = max(found.values())
        if early_exit and sum(score == best for score in found.values()) == 1:
            second = max((score for score in found.values() if score < best), default=0)
            found = {worker: min(score, second + 1) for worker, score in found.items()}
            best = second + 1
        if self._pairs <= self._uses_from:
            return OverlapScores(found, [])
        return OverlapScores(found, self._remember_use(chain[:best]))

    def _search(self, chain: Sequence[int]) -> dict[WorkerKey, int]:
        """Worker sets only shrink along ``chain``: where two blocks have the same set, those between have it too."""
        found: dict[WorkerKey, int] = {}
        if not chain:
            return found
        holders, visible = self._holders.get, self._visible
        first = holders(chain[0], 0) & visible
        if not first:
            return found
        end = len(chain) - 1
        last = holders(chain[end], 0) & visible
        if last:
            self._record(found, last, end + 1)
        if first == last:
            return found
        intervals = [(0, first, end, last)]
        while intervals:
            low, low_set, high, high_set = intervals.pop()
            while high - low > 1:
                middle = (low + high) // 2
                middle_set = holders(chain[middle], 0) & visible
                if middle_set == low_set:
                    low = middle
                elif middle_set == high_set:
                    high = middle
                else:
                    intervals.append((middle, middle_set, high, high_set))
                    high, high_set = middle, middle_set
            self._record(found, low_set & ~high_set, low + 1)
        return found

    def blocks_held(self, worker: WorkerKey) -> int:
        """Blocks known to be on ``worker``."""
        slot = self._slots.get(worker)
        return 0 if slot is None else len(slot.held)

    @property
    def pairs(self) -> int:
        """Pairs (worker, block) in memory: what ``max_blocks`` bounds."""
        return self._pairs

    def __len__(self) -> int:
        """Different blocks known, on however many workers."""
        return len(self._holders)

    def _store(self, slot: "_Slot", chained: Sequence[int], parent: int | None) -> bool:
        held, bit, holders = slot.held, slot.bit, self._holders
        if parent is not None and parent not in held:
            return False
        if not chained:
            return True
        had = len(held)
        if not self._dead and chained[0] not in holders:
            # Nobody holds the first one, so nobody holds any: they are all new, and each is the next one's only parent.
            holders.update(dict.fromkeys(chained, bit))
            held.update(dict.fromkeys(chained))
            self._children.update(pairwise(chained))
            if parent is not None:
                self._link(parent, chained[0])
        else:
            alive = ~self._dead
            before = parent
            for block in chained:
                old = holders.get(block, 0)
                if not old & bit:
                    holders[block] = old | bit if old else bit
                    held[block] = None
                    # Where a worker holds it already, it is linked already; what is to be swept does not count.
                    if before is not None and not old & alive:
                        self._link(before, block)
                before = block
        self._pairs += len(held) - had
        if self._max_blocks is not None and self._pairs > self._max_blocks:
            self._evict(self._max_blocks)
        return True

    def _evict(self, max_blocks: int) -> None:
        """Down to ``max_blocks`` pairs, or until the worker that has most has none left.

        Only ends of prefixes go, so that what stays can still be hit: a block in the middle is looked at again when
        what was stored after it is gone.
        """
        self.sweep(self._pairs - max_blocks)
        slot = max(self._contents.values(), key=lambda each: len(each.held))
        held, passed_over = slot.held, 0
        while self._pairs > max_blocks and held:
            if not slot.to_look_at:
                slot.to_look_at, slot.inner = [*reversed(held)], []
            block = slot.to_look_at.pop()
            if block not in held:
                continue
            if passed_over < PASSED_OVER and self._recently_used(block):
                passed_over += 1
            elif self._children_in(held, block):
                slot.inner.append(block)
            else:
                del held[block]
                self._drop(block, slot.bit)
                self.evictions += 1
                if slot.inner:
                    slot.to_look_at.append(slot.inner.pop())

    def _recently_used(self, block: int) -> bool:
        """Whether eviction passes over ``block`` this time."""
        if self._expiration_seconds is not None:
            uses = self._recent_uses.get(block)
            return uses is not None and self._clock() - uses[-1] <= self._expiration_seconds
        if block in self._used:
            self._used.discard(block)
            return True
        return False

    def _remember_use(self, blocks: Sequence[int]) -> list[int]:
        """A prompt matched ``blocks``. Returns how often each was matched recently, if it was."""
        if self._expiration_seconds is None:
            self._used.update(blocks)
            return []
        now_s = self._clock()
        oldest_s = now_s - self._expiration_seconds
        frequencies = []
        for block in blocks:
            uses = self._recent_uses.get(block)
            if uses is None:
                uses = self._recent_uses[block] = deque(maxlen=USES_COUNTED)
            while uses and uses[0] < oldest_s:
                uses.popleft()
            if uses:
                frequencies.append(len(uses))
            uses.append(now_s)
        return frequencies

    def _link(self, parent: int, child: int) -> None:
        children = self._children
        known = children.get(parent)
        if known is None:
            children[parent] = child
        elif isinstance(known, set):
            known.add(child)
            for _ in range(2):  # children that nobody holds any more go little by little
                other = known.pop()
                if other in self._holders:
                    known.add(other)
        elif known != child:
            children[parent] = {known, child} if known in self._holders else child

    def _forget(self, slot: "_Slot", block: int) -> None:
        """Drop ``block`` and what follows it from the held blocks of ``slot``."""
        held, bit = slot.held, slot.bit
        behind = [block]
        while behind:
            block = behind.pop()
            behind += self._children_in(held, block)
            del held[block]
            self._drop(block, bit)

    def _children_in(self, held: dict[int, None], block: int) -> Sequence[int]:
        children = self._children.get(block)
        if children is None:
            return ()
        if isinstance(children, set):
            return [child for child in children if child in held]
        return (children,) if children in held else ()

    def _drop(self, block: int, bit: int) -> None:
        self._pairs -= 1
        left = self._holders[block] & ~bit
        if left:
            self._holders[block] = left
        else:
            del self._holders[block]
            self._children.pop(block, None)
            if self._used:
                self._used.discard(block)
            if self._recent_uses:
                self._recent_uses.pop(block, None)

    def _record(self, found: dict[WorkerKey, int], slots: int, depth: int) -> None:
        while slots:
            lowest = slots & -slots
            found[self._keys[lowest.bit_length() - 1]] = depth
            slots ^= lowest

    def _new_slot(self) -> "_Slot":
        number = 0
        while number in self._numbers:
            number += 1
        self._numbers.add(number)
        slot = self._contents[number] = _Slot(number)
        return slot

    def _show(self, worker: WorkerKey, slot: "_Slot") -> None:
        self._keys[slot.number] = worker
        self._visible |= slot.bit

    def _retire(self, slot: "_Slot") -> None:
        self._keys.pop(slot.number, None)
        del self._contents[slot.number]
        slot.to_look_at, slot.inner = [], []
        self._visible &= ~slot.bit
        self._dead |= slot.bit
        self._garbage.append(slot)


class _Slot:
    """One content of one worker: its place in the bit sets, and its blocks."""

    __slots__ = ("bit", "held", "inner", "number", "to_look_at")

    def __init__(self, number: int) -> None:
        self.number = number
        self.bit = 1 << number
        self.held: dict[int, None] = {}  # in the order in which they were stored
        self.to_look_at: list[int] = []  # by eviction, in this pass: the oldest last
        self.inner: list[int] = []  # what eviction saw in this pass that others follow


class Replacement:
    """A worker's new content while it is collected. Searches see the old one until ``finish``, then only the new one.

    A context manager: left without ``finish``, the collected blocks are dropped and the old content stays. No call
    takes time in proportion to the old content or to all that was collected.
    """

    def __init__(self, index: KvIndex, worker: WorkerKey) -> None:
        self._index = index
        self._worker = worker
        self._slot: _Slot | None = index._new_slot()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abandon()

    def add(self, chained: Sequence[int], *, parent: int | None) -> bool:
        """The new content has these consecutive blocks behind ``parent``: as ``KvIndex.stored_chain``.

        Prefixes come before what follows them: False, and left out, where ``parent`` was not added before.
        Raises RuntimeError after ``finish`` or ``abandon``.
        """
        if self._slot is None:
            raise RuntimeError("this replacement is finished or abandoned")
        return self._index._store(self._slot, chained, parent)

    def finish(self) -> None:
        """Show the new content in place of the old one. Raises RuntimeError after ``finish`` or ``abandon``."""
        if self._slot is None:
            raise RuntimeError("this replacement is finished or abandoned")
        slot, self._slot = self._slot, None
        self._index.cleared(self._worker)
        self._index._slots[self._worker] = slot
        self._index._show(self._worker, slot)

    def abandon(self) -> None:
        """Drop what was collected, unless it is finished."""
        if self._slot is not None:
            slot, self._slot = self._slot, None
            self._index._retire(slot)
            self._index.sweep(SWEEP_BLOCKS)
