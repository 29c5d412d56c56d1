"""Step 3 of a round: which prompts are prefilled together, and where (LoongServe, arXiv 2404.09526, batching).

Prompts are sorted by length, the longest first. Instances keep the order of the allocation. A batch takes neighbours of
both orders. The objective is the sum over all prompts of the time of their batch divided by their own length, so that
a short prompt does not wait as long as a long one::

    f[0][0] = 0
    f[i][k] = min over j < i, l < k of  f[j][l] + C(j, i, k - l)
              where the prompts j+1 … i fit into the free slots of the instances l+1 … k
    C(j, i, d) = T_d(prompts j+1 … i) * sum(1 / length of the prompts j+1 … i)
    result  = min over k of f[n][k]

Every split is compared. The code released with the paper restricts the last batch by the best splits of its neighbours.
That restriction does not hold for lengths in descending order, and leaves a single batch for nearly every input.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import add
from typing import Final

from pointsman.serving.elastic.latency_model import LatencyModel, PrefillTime
from pointsman.serving.elastic.memory import NoRoom

INFINITE: Final = float("inf")


@dataclass(frozen=True, slots=True)
class Batch:
    """Prompts ``prompts`` are prefilled together on instances ``instances``; ranges of the given order."""

    prompts: range
    instances: range


@dataclass(frozen=True, slots=True)
class Split:
    """The batches and their ``cost``: seconds per prompt token, summed over the prompts."""

    batches: tuple[Batch, ...]
    cost: float


def split_prompts(
    lengths: Sequence[int],
    free_slots: Sequence[int],
    model: LatencyModel,
    time_limits_s: Sequence[float] | None = None,
) -> Split:
    """The cheapest split of prompts of ``lengths`` tokens (descending) over instances with ``free_slots`` each.

    The last instances may stay without a prompt. A batch uses only degrees that ``model`` has measured.
    ``time_limits_s``: the longest prefill with which each prompt meets its TTFT objective. If no split meets all of
    them, the limits are ignored. O(prompts² x instances²) time. Raises NoRoom, NotMeasured when no degree fits the
    instances, and ValueError for lengths that are below 1 or not sorted.
    """
    if list(lengths) != sorted(lengths, reverse=True) or (lengths and lengths[-1] < 1):
        raise ValueError(f"lengths are {list(lengths)[:8]}…; they must be at least 1, the longest first")
    if not lengths:
        return Split((), 0.0)
    model.largest(len(free_slots))  # raises NotMeasured
    degrees = model.degrees_up_to(len(free_slots))
    costs = {degree: list(_costs(model.prefill_time(degree), lengths, time_limits_s)) for degree in degrees}
    split = _cheapest(lengths, free_slots, costs)
    if split is None and time_limits_s is not None:
        return split_prompts(lengths, free_slots, model)
    if split is None:
        raise NoRoom(
            f"{sum(lengths)} prompt tokens do not fit on {len(free_slots)} instances with {sum(free_slots)} free slots "
            f"in groups of at most {degrees[-1]}"
        )
    return split


def _cheapest(lengths: Sequence[int], free_slots: Sequence[int], costs: dict[int, list[list[float]]]) -> Split | None:
    """The dynamic programme. ``costs``: by degree, [end][start]. None if no split is possible."""
    count, size = len(lengths), len(free_slots)
    tokens = list(accumulate(lengths, initial=0))
    slots = list(accumulate(free_slots, initial=0))
    # cost[k][i]: of the first i prompts on exactly the first k instances; origin[k][i]: where the last batch begins.
    cost = [[INFINITE] * (count + 1) for _ in range(size + 1)]
    origin = [[(0, 0)] * (count + 1) for _ in range(size + 1)]
    cost[0][0] = 0.0
    for last in range(1, size + 1):
        cost_here, origin_here = cost[last], origin[last]
        for first in range(last):
            if last - first not in costs:
                continue
            before, of_degree = cost[first], costs[last - first]
            for start, end in _fitting_runs(tokens, slots[last] - slots[first], range(1, count + 1)):
                sums = list(map(add, before[start:end], of_degree[end][start:]))
                smallest = min(sums)
                if smallest < cost_here[end]:
                    cost_here[end], origin_here[end] = smallest, (start + sums.index(smallest), first)
    last = min(range(1, size + 1), key=lambda used: cost[used][count], default=0)
    total, end = cost[last][count], count
    if total == INFINITE:
        return None
    batches: list[Batch] = []
    while end:
        start, first = origin[last][end]
        batches.append(Batch(range(start, end), range(first, last)))
        end, last = start, first
    return Split(tuple(reversed(batches)), total)


def _fitting_runs(tokens: Sequence[int], room: int, ends: Iterable[int]) -> Iterator[tuple[int, int]]:
    """For each end, the longest run of prompts (start, end) that fits into ``room`` slots; none if it is empty."""
    start = 0
    for end in ends:
        while tokens[end] - tokens[start] > room:
            start += 1
        if start < end:
            yield start, end


def _costs(time: PrefillTime, lengths: Sequence[int], time_limits_s: Sequence[float] | None) -> Iterator[list[float]]:
    """For each end, a list by start: the cost of prompts ``start`` … ``end - 1`` in a batch that takes ``time``.

    Prefix sums make each cost O(1): the time is ``until_s[end] - before_s[start]``.
    """
    tokens = accumulate(lengths, initial=0)
    squares = accumulate((length * length for length in lengths), initial=0)
    before_s = [time.beta_s * t + time.gamma_s * s for t, s in zip(tokens, squares, strict=True)]
    inverses = list(accumulate((1 / length for length in lengths), initial=0.0))
    # A batch that is too slow stays so with more prompts. So the first start that is in time only grows with the end.
    # ``tightest``: the prompts that may have the smallest limit of a batch, the smallest first.
    in_time, tightest = 0, deque[int]()
    for end in range(len(lengths) + 1):
        until_s, until_inverse = time.alpha_s + before_s[end], inverses[end]
        costs = [
            (until_s - start_s) * (until_inverse - inverse)
            for start_s, inverse in zip(before_s[:end], inverses, strict=False)
        ]
        if time_limits_s is not None and end:
            while tightest and time_limits_s[tightest[-1]] >= time_limits_s[end - 1]:
                tightest.pop()
            tightest.append(end - 1)
            while in_time < end and until_s - before_s[in_time] > time_limits_s[tightest[0]]:
                in_time += 1
                if tightest[0] < in_time:
                    tightest.popleft()
            costs[:in_time] = [INFINITE] * in_time
        yield costs
