"""The KV index against the plainest model of what it says, and the example of the radix tree it replaces."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from pointsman.gateway.core.index import SWEEP_BLOCKS, USES_COUNTED, KvIndex
from pointsman.gateway.types import WorkerKey
from pointsman.serving.block_hashes import chained_block_hashes

A, B, C = WorkerKey("a"), WorkerKey("b"), WorkerKey("c")


def store(index: KvIndex, worker: WorkerKey, tokens: list[int]) -> list[int]:
    """Store ``tokens`` from the start of a prompt, in blocks of two."""
    chain = chained_block_hashes(tokens, 2)
    index.stored_chain(worker, chain, parent=None)
    return chain


def test_the_radix_trees_example_comes_out() -> None:
    # workers 1, 2 and 3 hold the first block, 1 and 2 the second, 1 the third: scores 3, 2, 1
    prompt = [432, 265, 251, 234, 673, 654]
    index = KvIndex()
    store(index, A, prompt)
    store(index, B, prompt[:4])
    store(index, C, prompt[:2])
    assert index.matches(chained_block_hashes(prompt, 2)) == {A: 3, B: 2, C: 1}


def test_blocks_stored_behind_a_parent_continue_its_prefix() -> None:
    index = KvIndex()
    chain = chained_block_hashes([1, 2, 3, 4, 5, 6], 2)
    assert store(index, A, [1, 2, 3, 4]) == chain[:2]
    assert index.stored_chain(A, chain[2:], parent=chain[1])
    assert index.matches(chain) == {A: 3}
    assert index.matches(chained_block_hashes([5, 6], 2)) == {}


def test_a_hole_in_a_prefix_ends_it() -> None:
    index = KvIndex()
    chain = store(index, A, [1, 2, 3, 4, 5, 6])
    index.removed_chain(A, [chain[1]])
    assert index.matches(chained_block_hashes([1, 2, 3, 4, 5, 6], 2)) == {A: 1}
    index.removed_chain(A, [chain[0]])
    assert index.matches(chained_block_hashes([1, 2, 3, 4, 5, 6], 2)) == {}


def test_a_worker_that_is_cleared_leaves_no_block_behind() -> None:
    index = KvIndex()
    store(index, A, [1, 2, 3, 4])
    store(index, B, [1, 2])
    index.cleared(A)
    assert index.matches(chained_block_hashes([1, 2, 3, 4], 2)) == {B: 1}
    index.cleared(B)
    assert len(index) == 0


def linear_walk(held: dict[WorkerKey, set[int]], chain: list[int]) -> dict[WorkerKey, int]:
    """The plainest search: for each worker, count leading blocks that it holds."""
    found = {}
    for worker, blocks in held.items():
        depth = 0
        while depth < len(chain) and chain[depth] in blocks:
            depth += 1
        if depth:
            found[worker] = depth
    return found


def chain_of(tokens: Sequence[int]) -> list[int]:
    return chained_block_hashes(tokens, 1)


def test_a_chain_behind_a_block_that_the_worker_does_not_hold_is_left_out() -> None:
    index = KvIndex()
    first, second, third = chain_of([1, 2, 3])
    index.stored_chain(B, [first], parent=None)
    assert not index.stored_chain(A, [second, third], parent=first)
    assert index.stored_chain(B, [second, third], parent=first)
    assert index.matches([first, second, third]) == {B: 3}


def test_blocks_behind_a_hole_count_again_once_they_are_stored_again() -> None:
    index = KvIndex()
    chain = chain_of([1, 2, 3, 4])
    index.stored_chain(A, chain, parent=None)
    index.removed_chain(A, [chain[1]])
    assert index.matches(chain) == {A: 1}
    # The worker reports what follows the second block again, see tests/unit/test_kv_feed_agreement.py.
    index.stored_chain(A, [chain[1]], parent=chain[0])
    assert index.matches(chain) == {A: 2}
    index.stored_chain(A, chain[2:], parent=chain[1])
    assert index.matches(chain) == {A: 4}


def test_a_replacement_shows_all_at_once_and_what_it_lacks_is_gone() -> None:
    index = KvIndex()
    old, new = chain_of([1, 2, 3]), chain_of([7, 8, 9])
    index.stored_chain(A, old, parent=None)
    index.stored_chain(B, old[:1], parent=None)
    with index.replace(A) as content:
        assert content.add(new[:2], parent=None)
        assert content.add(new[2:], parent=new[1])
        assert not content.add([5], parent=old[0])
        assert index.matches(old) == {A: 3, B: 1}
        assert index.matches(new) == {}
        content.finish()
    assert index.matches(old) == {B: 1}
    assert index.matches(new) == {A: 3}
    assert index.blocks_held(A) == 3
    assert len(index) == 4
    index.stored_chain(A, chain_of([7, 8, 9, 10])[3:], parent=new[2])
    assert index.matches(chain_of([7, 8, 9, 10])) == {A: 4}


def test_a_replacement_that_is_not_finished_changes_nothing() -> None:
    index = KvIndex()
    old, new = chain_of([1, 2, 3]), chain_of([7, 8, 9])
    index.stored_chain(A, old, parent=None)
    with pytest.raises(ConnectionError), index.replace(A) as content:
        content.add(new, parent=None)
        raise ConnectionError("the stream broke")
    assert index.matches(old) == {A: 3}
    assert index.matches(new) == {}
    assert len(index) == 3
    with pytest.raises(RuntimeError):
        content.add(new, parent=None)
    with pytest.raises(RuntimeError):
        content.finish()


def test_what_a_cleared_worker_held_is_dropped_in_slices_and_never_found() -> None:
    index = KvIndex()
    chain = chain_of(range(3 * SWEEP_BLOCKS))
    index.stored_chain(A, chain, parent=None)
    index.cleared(A)
    assert index.matches(chain) == {}
    assert index.blocks_held(A) == 0
    assert len(index) == 2 * SWEEP_BLOCKS
    index.stored_chain(B, chain[:10], parent=None)
    assert index.matches(chain) == {B: 10}
    index.removed_chain(B, chain[4:5])
    assert index.matches(chain) == {B: 4}
    while index.sweep(100):
        pass
    assert len(index) == 4


class Clock:
    """Moved by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_early_exit_names_the_only_holder_and_stops_there() -> None:
    chain = chain_of(range(10))
    index = KvIndex()
    index.stored_chain(A, chain[:8], parent=None)
    index.stored_chain(B, chain[:3], parent=None)
    index.stored_chain(C, chain[:1], parent=None)
    assert index.find_matches(chain).scores == {A: 8, B: 3, C: 1}
    # The fourth block is the first that only one worker has.
    assert index.find_matches(chain, early_exit=True).scores == {A: 4, B: 3, C: 1}
    index.cleared(B)
    index.cleared(C)
    assert index.find_matches(chain, early_exit=True).scores == {A: 1}
    index.stored_chain(B, chain[:8], parent=None)
    assert index.find_matches(chain, early_exit=True).scores == {A: 8, B: 8}


def test_frequencies_count_the_uses_within_the_expiration_time() -> None:
    clock = Clock()
    index = KvIndex(expiration_seconds=10, clock=clock)
    chain = chain_of(range(4))
    index.stored_chain(A, chain, parent=None)
    assert index.find_matches(chain[:2]).frequencies == []  # this use itself does not count
    clock.now_s += 6
    assert index.find_matches(chain).frequencies == [1, 1]  # nobody had matched the third and the fourth
    clock.now_s += 4
    assert index.matches(chain) == {A: 4}  # a use like any other, as old as 10 s is recent
    assert index.find_matches(chain).frequencies == [3, 3, 2, 2]
    clock.now_s += 1
    assert index.find_matches(chain[:1]).frequencies == [3]  # the first one expired
    clock.now_s += 100
    assert index.find_matches(chain).frequencies == []


def test_frequencies_are_kept_of_blocks_that_are_held_and_up_to_a_number() -> None:
    index = KvIndex(expiration_seconds=10, clock=Clock())
    chain = chain_of(range(3))
    index.stored_chain(A, chain, parent=None)
    for _ in range(USES_COUNTED + 5):
        index.matches(chain)
    assert index.find_matches(chain).frequencies == [USES_COUNTED] * 3
    index.cleared(A)
    assert not index._recent_uses
    index.stored_chain(A, chain, parent=None)
    assert index.find_matches(chain).frequencies == []


def test_without_options_nothing_is_remembered_of_a_search() -> None:
    index = KvIndex()
    chain = chain_of(range(3))
    index.stored_chain(A, chain, parent=None)
    assert index.find_matches(chain) == ({A: 3}, [])
    assert not index._used
    assert not index._recent_uses


@pytest.mark.parametrize("options", [{"max_blocks": 0}, {"expiration_seconds": 0.0}, {"expiration_seconds": 1.0}])
def test_options_that_mean_nothing_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        KvIndex(**options)


def conversation(number: int, turns: int = 1) -> list[int]:
    """A prompt behind a system prompt of two blocks that all share."""
    return chain_of([1, 2, *(1000 * number + n for n in range(10 * turns))])


def test_over_the_bound_unused_ends_go_first_the_oldest_of_them_first() -> None:
    index = KvIndex(max_blocks=100)
    for number in range(1, 9):
        index.stored_chain(A, conversation(number), parent=None)
    assert (index.pairs, index.evictions) == (82, 0)
    for _ in range(2):
        assert index.matches(conversation(1)) == {A: 12}
    for number in range(9, 15):
        index.stored_chain(A, conversation(number), parent=None)
        assert index.pairs <= 100
    assert index.evictions == 2 + 14 * 10 - 100
    assert index.matches(conversation(1)) == {A: 12}  # used
    for number in (2, 3, 4, 5):
        assert index.matches(conversation(number)) == {A: 2}  # as old, and not used
    for number in (7, 8, 9, 10, 11, 12, 13, 14):
        assert index.matches(conversation(number)) == {A: 12}


def test_with_an_expiration_a_recent_use_protects_from_eviction_and_an_old_one_does_not() -> None:
    clock = Clock()
    index = KvIndex(max_blocks=30, expiration_seconds=10, clock=clock)
    index.stored_chain(A, conversation(1), parent=None)
    index.stored_chain(A, conversation(2), parent=None)
    index.matches(conversation(1))
    clock.now_s += 11
    index.matches(conversation(2))
    index.stored_chain(A, conversation(3), parent=None)
    assert index.matches(conversation(2)) == {A: 12}
    assert index.matches(conversation(1)) == {A: 10}


def test_the_bound_holds_when_everything_was_used_a_moment_ago() -> None:
    index = KvIndex(max_blocks=2000, expiration_seconds=10, clock=Clock())
    for number in range(300):
        index.stored_chain(A, conversation(number), parent=None)
        index.matches(conversation(number))
        assert index.pairs <= 2000


def test_the_worker_with_most_blocks_gives_way() -> None:
    index = KvIndex(max_blocks=20)
    small, large, more = chain_of([1, 2]), chain_of(range(10, 28)), chain_of([3, 4])
    index.stored_chain(A, small, parent=None)
    index.stored_chain(B, large, parent=None)
    index.stored_chain(A, more, parent=None)
    assert index.matches(small) == {A: 2}
    assert index.matches(more) == {A: 2}
    assert index.matches(large) == {B: 16}


class IndexMachine(RuleBasedStateMachine):
    """Random stores, holes, clears and replacements on three workers, against one set of blocks per worker.

    The model is as plain as can be: the linear walk over sets, where a removed block takes those behind it along.
    ``raw`` is what an engine that kept blocks behind a hole would hold: the index never reports more than that.
    """

    prompts = Bundle("prompts")

    def __init__(self) -> None:
        super().__init__()
        self.index = KvIndex()
        self.held: dict[WorkerKey, set[int]] = {A: set(), B: set(), C: set()}
        self.raw: dict[WorkerKey, set[int]] = {A: set(), B: set(), C: set()}
        self.prefixes: dict[int, list[int]] = {}

    @rule(target=prompts, tokens=st.lists(st.integers(0, 1), min_size=1, max_size=12))
    def prompt(self, tokens: list[int]) -> list[int]:
        chain = chain_of(tokens)
        for end, block in enumerate(chain, start=1):
            self.prefixes[block] = chain[:end]
        return chain

    @rule(worker=st.sampled_from([A, B, C]), chain=prompts, start=st.integers(0, 11))
    def store(self, worker: WorkerKey, chain: list[int], start: int) -> None:
        start = min(start, len(chain) - 1)
        parent = chain[start - 1] if start else None
        known = parent is None or parent in self.held[worker]
        assert self.index.stored_chain(worker, chain[start:], parent=parent) is known
        if known:
            self.held[worker] |= set(chain[start:])
        self.raw[worker] |= set(chain[start:])

    @rule(worker=st.sampled_from([A, B, C]), chain=prompts, which=st.sets(st.integers(0, 11), max_size=3))
    def remove(self, worker: WorkerKey, chain: list[int], which: set[int]) -> None:
        removed = [chain[at] for at in which if at < len(chain)]
        self.index.removed_chain(worker, removed)
        self.raw[worker] -= set(removed)
        self.held[worker] = {block for block in self.held[worker] if not set(removed) & set(self.prefixes[block])}

    @rule(worker=st.sampled_from([A, B, C]))
    def clear(self, worker: WorkerKey) -> None:
        self.index.cleared(worker)
        self.held[worker] = set()
        self.raw[worker] = set()

    @rule(worker=st.sampled_from([A, B, C]), chains=st.lists(prompts, max_size=3), finished=st.booleans())
    def replace(self, worker: WorkerKey, chains: list[list[int]], finished: bool) -> None:
        with self.index.replace(worker) as content:
            for chain in chains:
                half = len(chain) // 2
                content.add(chain[:half], parent=None)
                content.add(chain[half:], parent=chain[half - 1] if half else None)
            if finished:
                content.finish()
        if finished:
            self.held[worker] = set().union(*chains)
            self.raw[worker] = set(self.held[worker])

    @rule(worker=st.sampled_from([A, B, C]), chain=prompts)
    def retire_without_sweeping(self, worker: WorkerKey, chain: list[int]) -> None:
        """As ``clear`` of a worker with more blocks than one sweep drops."""
        slot = self.index._slots.pop(worker, None)
        if slot is not None:
            self.index._retire(slot)
        self.held[worker] = set()
        self.raw[worker] = set()

    @rule(blocks=st.integers(1, 5))
    def sweep(self, blocks: int) -> None:
        self.index.sweep(blocks)

    @rule(chain=prompts)
    def match(self, chain: list[int]) -> None:
        found = self.index.matches(chain)
        assert found == linear_walk(self.held, chain)
        most = linear_walk(self.raw, chain)
        assert all(depth <= most[worker] for worker, depth in found.items())

    @invariant()
    def holds_exactly_the_blocks(self) -> None:
        for worker, blocks in self.held.items():
            assert self.index.blocks_held(worker) == len(blocks)

    def teardown(self) -> None:
        while self.index.sweep(1000):
            pass
        assert len(self.index) == len(set().union(*self.held.values()))
        for worker in self.held:
            self.index.cleared(worker)
        assert len(self.index) == 0
        assert not self.index._children
        assert not self.index._numbers


TestIndexMachine = IndexMachine.TestCase
TestIndexMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


class BoundedMachine(RuleBasedStateMachine):
    """The same with a bound: never more than it, never a block too many, and always prefixes."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.index = self.make()
        self.raw: dict[WorkerKey, set[int]] = {A: set(), B: set(), C: set()}

    def make(self) -> KvIndex:
        return KvIndex(max_blocks=12)

    @rule(worker=st.sampled_from([A, B, C]), tokens=st.lists(st.integers(0, 1), min_size=1, max_size=8))
    def store(self, worker: WorkerKey, tokens: list[int]) -> None:
        self.index.stored_chain(worker, chain_of(tokens), parent=None)
        self.raw[worker] |= set(chain_of(tokens))

    @rule(worker=st.sampled_from([A, B, C]), tokens=st.lists(st.integers(0, 1), min_size=1, max_size=8))
    def remove(self, worker: WorkerKey, tokens: list[int]) -> None:
        self.index.removed_chain(worker, chain_of(tokens)[-1:])
        self.raw[worker] -= set(chain_of(tokens)[-1:])

    @rule(worker=st.sampled_from([A, B, C]), tokens=st.lists(st.integers(0, 1), min_size=1, max_size=8))
    def replace(self, worker: WorkerKey, tokens: list[int]) -> None:
        with self.index.replace(worker) as content:
            content.add(chain_of(tokens), parent=None)
            content.finish()
        self.raw[worker] = set(chain_of(tokens))

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=8), seconds=st.floats(0, 5))
    def match(self, tokens: list[int], seconds: float) -> None:
        self.clock.now_s += seconds
        chain = chain_of(tokens)
        most = linear_walk(self.raw, chain)
        assert all(depth <= most[worker] for worker, depth in self.index.find_matches(chain).scores.items())

    @invariant()
    def is_within_the_bound_and_counts_right(self) -> None:
        held = [set(slot.held) for slot in self.index._slots.values()]
        assert self.index.pairs == sum(map(len, held)) <= 12
        assert len(self.index) == len(set().union(*held))


class ExpiringMachine(BoundedMachine):
    """The same with an expiration."""

    def make(self) -> KvIndex:
        return KvIndex(max_blocks=12, expiration_seconds=3, clock=self.clock)


TestBoundedMachine = BoundedMachine.TestCase
TestBoundedMachine.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
TestExpiringMachine = ExpiringMachine.TestCase
TestExpiringMachine.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
