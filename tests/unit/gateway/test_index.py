"""The KV index against the plainest model of what it says, and the example of the radix tree it replaces."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from pointsman.gateway.core.index import KvIndex
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


class IndexMachine(RuleBasedStateMachine):
    """Random stores, removals and clears on three workers, against one set of prefixes per worker."""

    prompts = Bundle("prompts")

    def __init__(self) -> None:
        super().__init__()
        self.index = KvIndex()
        self.held: dict[WorkerKey, set[tuple[int, ...]]] = {A: set(), B: set(), C: set()}

    @rule(target=prompts, tokens=st.lists(st.integers(0, 1), min_size=2, max_size=10))
    def prompt(self, tokens: list[int]) -> list[int]:
        return tokens

    @rule(worker=st.sampled_from([A, B, C]), tokens=prompts)
    def store(self, worker: WorkerKey, tokens: list[int]) -> None:
        store(self.index, worker, tokens)
        self.held[worker] |= {tuple(tokens[:end]) for end in range(2, len(tokens) + 1, 2)}

    @rule(worker=st.sampled_from([A, B, C]), tokens=prompts)
    def remove_last(self, worker: WorkerKey, tokens: list[int]) -> None:
        chain = chained_block_hashes(tokens, 2)
        self.index.removed(worker, [-chain[-1]])
        self.held[worker].discard(tuple(tokens[: len(chain) * 2]))

    @rule(worker=st.sampled_from([A, B, C]))
    def clear(self, worker: WorkerKey) -> None:
        self.index.cleared(worker)
        self.held[worker] = set()

    @rule(tokens=prompts)
    def match(self, tokens: list[int]) -> None:
        expected = {}
        for worker, prefixes in self.held.items():
            depth = 0
            while 2 * (depth + 1) <= len(tokens) and tuple(tokens[: 2 * (depth + 1)]) in prefixes:
                depth += 1
            if depth:
                expected[worker] = depth
        assert self.index.matches(chained_block_hashes(tokens, 2)) == expected

    @invariant()
    def holds_exactly_the_prefixes(self) -> None:
        assert len(self.index) == len(set().union(*self.held.values()))
        for worker, prefixes in self.held.items():
            assert self.index.blocks_held(worker) == len(prefixes)


TestIndexMachine = IndexMachine.TestCase
TestIndexMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
