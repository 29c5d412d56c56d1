"""The KV index against the plainest model of what it says, and the example of the radix tree it replaces."""

from collections.abc import Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from pointsman.gateway.core.index import SWEEP_BLOCKS, KvIndex
from pointsman.gateway.types import WorkerKey
from pointsman.serving.block_hashes import chained_block_hashes

A, B, C = WorkerKey("a"), WorkerKey("b"), WorkerKey("c")


def store(index: KvIndex, worker: WorkerKey, tokens: list[int], block_size: int = 2) -> list[int]:
    """Store ``tokens`` from the start of a prompt, as an engine whose own hashes are those negated."""
    chain = chained_block_hashes(tokens, block_size)
    names = [-hash_ for hash_ in chain]
    index.stored(worker, engine_hashes=names, engine_parent=None, token_ids=tokens, block_size=block_size)
    return names


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
    names = store(index, A, [1, 2, 3, 4])
    assert index.stored(A, engine_hashes=[99], engine_parent=names[-1], token_ids=[5, 6], block_size=2)
    assert index.matches(chained_block_hashes([1, 2, 3, 4, 5, 6], 2)) == {A: 3}
    assert index.matches(chained_block_hashes([5, 6], 2)) == {}


def test_blocks_behind_an_unknown_parent_are_left_out() -> None:
    index = KvIndex()
    assert not index.stored(A, engine_hashes=[1], engine_parent=12345, token_ids=[1, 2], block_size=2)
    assert index.matches(chained_block_hashes([1, 2], 2)) == {}


def test_a_hole_in_a_prefix_ends_it() -> None:
    index = KvIndex()
    names = store(index, A, [1, 2, 3, 4, 5, 6])
    index.removed(A, [names[1]])
    assert index.matches(chained_block_hashes([1, 2, 3, 4, 5, 6], 2)) == {A: 1}
    index.removed(A, [names[0]])
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
    # An engine that lost the second block computes it and all behind it again, so it stores them again.
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
