"""What is measured: within what the worker holds, the coarse grid first."""

from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from pointsman.planner.profile.points import CAPACITY_SHARE, prefill_lengths, rounds
from pointsman.planner.profile.types import PrefillPoint, StepPoint, TransferPoint, WorkerFacts


def facts(context: int = 8192, capacity: int = 100_000, block: int = 16) -> WorkerFacts:
    return WorkerFacts("m", context, capacity, block, None, None)


def test_the_first_points_already_span_lengths_batches_and_contexts() -> None:
    points = list(rounds(facts(), most_prompt_tokens=16_384, most_batch=64, transfers=True))
    distinct = len(set(points))
    assert len(points) == 3 * distinct
    first = points[: distinct // 2]
    lengths = {p.new_tokens for p in first if isinstance(p, PrefillPoint)}
    assert min(lengths) == 16
    assert max(lengths) == 8191, "the longest prompt leaves room for one token"
    assert {p.batch for p in first if isinstance(p, StepPoint)} >= {1, 64}
    assert any(isinstance(p, TransferPoint) for p in first)
    lengths_soon = {p.new_tokens for p in points[:4] if isinstance(p, PrefillPoint)}
    batches_soon = {p.batch for p in points[:4] if isinstance(p, StepPoint)}
    assert min(len(lengths_soon), len(batches_soon)) >= 2, "four measurements are enough for a table"


def test_prefixes_are_whole_blocks_since_nothing_else_is_cached() -> None:
    points = rounds(facts(block=128), most_prompt_tokens=5000, most_batch=8, transfers=False)
    prefixes = {p.prefix_tokens for p in points if isinstance(p, PrefillPoint)}
    assert len(prefixes) == 3
    assert all(prefix % 128 == 0 for prefix in prefixes)


def test_without_transfers_nobody_is_asked_to_prefill_for_another() -> None:
    points = rounds(facts(), most_prompt_tokens=4096, most_batch=8, transfers=False)
    assert not any(isinstance(p, TransferPoint) for p in points)


@given(
    context=st.integers(64, 200_000),
    capacity=st.integers(512, 1_000_000),
    block=st.sampled_from([1, 16, 128]),
    prompt=st.integers(32, 200_000),
    batch=st.integers(2, 512),
)
def test_nothing_is_asked_that_the_worker_cannot_hold(
    context: int, capacity: int, block: int, prompt: int, batch: int
) -> None:
    worker = facts(context, capacity, block)
    points = list(islice(rounds(worker, most_prompt_tokens=prompt, most_batch=batch, transfers=True), 2000))
    for point in points:
        if isinstance(point, PrefillPoint):
            assert point.new_tokens >= 1
            assert point.new_tokens + point.prefix_tokens <= min(context - 1, prompt, capacity * CAPACITY_SHARE)
        elif isinstance(point, StepPoint):
            assert 1 <= point.batch <= batch
            assert 1 <= point.context_tokens < context
            assert point.batch == 1 or point.batch * point.context_tokens <= capacity * CAPACITY_SHARE
        else:
            assert point.tokens < context
    assert prefill_lengths(worker, prompt) == sorted(set(prefill_lengths(worker, prompt)))
