"""The dynamic programme of elastic batches finds what trying all splits finds."""

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.serving.elastic.batching import Batch, NoRoom, split
from pointsman.serving.elastic.latency_model import LatencyModel, PrefillTime

MODEL = LatencyModel({degree: PrefillTime(0.002 * degree, 1e-4 / degree, 1e-8 / degree) for degree in range(1, 5)})


def parts(count: int) -> Iterator[list[range]]:
    """All ways to cut ``count`` things in a row into runs."""
    if count == 0:
        yield []
    for size in range(1, count + 1):
        for rest in parts(count - size):
            yield [*rest, range(count - size, count)]


def cost(lengths: Sequence[int], batches: Sequence[Batch]) -> float:
    """What the split costs, from its definition."""
    total = 0.0
    for batch in batches:
        of = [lengths[prompt] for prompt in batch.prompts]
        took_s = MODEL.of(len(batch.instances)).seconds(sum(of), sum(length * length for length in of))
        total += took_s * sum(1 / length for length in of)
    return total


def by_trying(lengths: Sequence[int], free_slots: Sequence[int]) -> float | None:
    """The least cost of all splits; None: nothing fits."""
    costs = []
    for used in range(len(free_slots) + 1):
        for instances in parts(used):
            for prompts in parts(len(lengths)):
                if len(prompts) != len(instances):
                    continue
                batches = [Batch(*pair) for pair in zip(prompts, instances, strict=True)]
                if all(
                    sum(lengths[i] for i in batch.prompts) <= sum(free_slots[i] for i in batch.instances)
                    for batch in batches
                ):
                    costs.append(cost(lengths, batches))
    return min(costs, default=None)


@given(
    st.lists(st.integers(1, 5000), max_size=6).map(lambda lengths: sorted(lengths, reverse=True)),
    st.lists(st.integers(0, 6000), min_size=1, max_size=4),
)
def test_the_split_is_the_best_of_all(lengths: list[int], free_slots: list[int]) -> None:
    best = by_trying(lengths, free_slots)
    if best is None:
        with pytest.raises(NoRoom, match="do not fit"):
            split(lengths, free_slots, MODEL)
        return
    found = split(lengths, free_slots, MODEL)
    assert found.cost == pytest.approx(best)
    assert found.cost == pytest.approx(cost(lengths, found.batches))
    assert [prompt for batch in found.batches for prompt in batch.prompts] == list(range(len(lengths)))
    used = [instance for batch in found.batches for instance in batch.instances]
    assert used == list(range(len(used)))
    for batch in found.batches:
        assert sum(lengths[i] for i in batch.prompts) <= sum(free_slots[i] for i in batch.instances)


def test_short_prompts_do_not_wait_for_a_long_one() -> None:
    """By hand: alone on one instance the short ones take 12 ms; with the long one on both they would take seconds."""
    found = split([40_000, 100, 100], [50_000, 50_000], MODEL)
    assert found.batches == (Batch(range(1), range(1)), Batch(range(1, 3), range(1, 2)))


@pytest.mark.parametrize("lengths", [[1, 2], [3, 0]])
def test_lengths_in_another_order_are_refused(lengths: list[int]) -> None:
    with pytest.raises(ValueError, match="the longest first"):
        split(lengths, [10], MODEL)
