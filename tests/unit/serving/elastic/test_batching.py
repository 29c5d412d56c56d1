"""The dynamic programme of elastic batches finds what trying all splits finds."""

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.serving.elastic.batching import Batch, split_prompts
from pointsman.serving.elastic.latency_model import LatencyModel, NotMeasured, PrefillTime
from pointsman.serving.elastic.memory import NoRoom

MODEL = LatencyModel({degree: PrefillTime(0.002 * degree, 1e-4 / degree, 1e-8 / degree) for degree in range(1, 5)})


def cuts(count: int) -> Iterator[list[range]]:
    """All ways to cut ``count`` things in a row into runs."""
    if count == 0:
        yield []
    for size in range(1, count + 1):
        for rest in cuts(count - size):
            yield [*rest, range(count - size, count)]


def seconds(lengths: Sequence[int], batch: Batch, model: LatencyModel) -> float:
    of = [lengths[prompt] for prompt in batch.prompts]
    return model.prefill_time(len(batch.instances)).seconds(sum(of), sum(length * length for length in of))


def cost(lengths: Sequence[int], batches: Sequence[Batch], model: LatencyModel) -> float:
    """Of a split, from its definition."""
    return sum(
        seconds(lengths, batch, model) * sum(1 / lengths[prompt] for prompt in batch.prompts) for batch in batches
    )


def all_splits(lengths: Sequence[int], free_slots: Sequence[int], model: LatencyModel) -> Iterator[list[Batch]]:
    """Every split that fits, with degrees of the model."""
    for used in range(len(free_slots) + 1):
        for instances in cuts(used):
            for prompts in cuts(len(lengths)):
                if len(prompts) != len(instances):
                    continue
                batches = [Batch(*pair) for pair in zip(prompts, instances, strict=True)]
                if all(
                    len(batch.instances) in model.by_degree
                    and sum(lengths[i] for i in batch.prompts) <= sum(free_slots[i] for i in batch.instances)
                    for batch in batches
                ):
                    yield batches


LENGTHS = st.lists(st.integers(1, 5000), max_size=6).map(lambda lengths: sorted(lengths, reverse=True))
SLOTS = st.lists(st.integers(0, 6000), min_size=1, max_size=4)
TIMES = st.builds(PrefillTime, st.floats(0, 0.02), st.floats(1e-6, 1e-3), st.floats(0, 1e-7))
SOME_DEGREES = st.dictionaries(st.integers(2, 4), TIMES).map(lambda more: LatencyModel({1: MODEL.by_degree[1], **more}))
MODELS = st.one_of(st.just(MODEL), SOME_DEGREES)


@given(LENGTHS, SLOTS, MODELS)
def test_the_split_is_the_best_of_all(lengths: list[int], free_slots: list[int], model: LatencyModel) -> None:
    best = min((cost(lengths, batches, model) for batches in all_splits(lengths, free_slots, model)), default=None)
    if best is None:
        with pytest.raises(NoRoom, match="do not fit"):
            split_prompts(lengths, free_slots, model)
        return
    found = split_prompts(lengths, free_slots, model)
    assert found.cost == pytest.approx(best)
    assert found.cost == pytest.approx(cost(lengths, found.batches, model))
    assert [prompt for batch in found.batches for prompt in batch.prompts] == list(range(len(lengths)))
    used = [instance for batch in found.batches for instance in batch.instances]
    assert used == list(range(len(used)))
    for batch in found.batches:
        assert sum(lengths[i] for i in batch.prompts) <= sum(free_slots[i] for i in batch.instances)


@given(LENGTHS, SLOTS, st.data())
def test_time_limits_are_met_by_the_best_split_that_can(
    lengths: list[int], free_slots: list[int], data: st.DataObject
) -> None:
    limits = data.draw(st.lists(st.floats(0, 1), min_size=len(lengths), max_size=len(lengths)))
    splits = list(all_splits(lengths, free_slots, MODEL))
    if not splits or not lengths:
        return
    in_time = [
        batches
        for batches in splits
        if all(seconds(lengths, batch, MODEL) <= min(limits[i] for i in batch.prompts) for batch in batches)
    ]
    found = split_prompts(lengths, free_slots, MODEL, limits)
    assert found.cost == pytest.approx(min(cost(lengths, batches, MODEL) for batches in in_time or splits))


def test_short_prompts_do_not_wait_for_a_long_one() -> None:
    """By hand: alone on one instance the short ones take 12 ms; with the long one on both they would take seconds."""
    found = split_prompts([40_000, 100, 100], [50_000, 50_000], MODEL)
    assert found.batches == (Batch(range(1), range(1)), Batch(range(1, 3), range(1, 2)))


def test_a_split_without_a_measured_degree_is_refused() -> None:
    with pytest.raises(NotMeasured, match="no degree up to 1 was measured; measured are: 2"):
        split_prompts([5], [10], LatencyModel({2: PrefillTime(1, 1, 1)}))


@pytest.mark.parametrize("lengths", [[1, 2], [3, 0]])
def test_lengths_in_another_order_are_refused(lengths: list[int]) -> None:
    with pytest.raises(ValueError, match="the longest first"):
        split_prompts(lengths, [10], MODEL)
