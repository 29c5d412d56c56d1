"""Which prompts are prefilled together, and on which instances: LoongServe's dynamic programme (section 5.3, step 3).

Prompts are sorted by length, longest first, and instances as the allocation ordered them. A batch takes prompts and
instances that stand next to each other. What is made least is the sum over all prompts of their batch's time divided by
their own length: short prompts must not wait as long as long ones.

All splits are looked at. The code that was released with the paper looks at fewer, by bounds that do not hold for
lengths in descending order: it never found more than one batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import add

from pointsman.serving.elastic.latency_model import LatencyModel


class NoRoom(ValueError):
    """The prompts do not fit on the instances, however they are split."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Prompts ``prompts`` are prefilled together on instances ``instances``; ranges of the given order."""

    prompts: range
    instances: range


@dataclass(frozen=True, slots=True)
class Batches:
    """The split, and its ``cost``: seconds a token, summed over the prompts."""

    batches: tuple[Batch, ...]
    cost: float


def split(lengths: Sequence[int], free_slots: Sequence[int], model: LatencyModel) -> Batches:
    """The cheapest split of prompts of ``lengths`` tokens (descending) over instances with ``free_slots`` slots each.

    Some of the last instances may stay idle. Raises NoRoom, NotMeasured for a degree that ``model`` does not have, and
    ValueError for lengths that are not sorted or below 1. Takes time in O(prompts² x instances²).
    """
    if list(lengths) != sorted(lengths, reverse=True) or (lengths and lengths[-1] < 1):
        raise ValueError(f"lengths are {list(lengths)[:8]}…; they must be at least 1, the longest first")
    count, size = len(lengths), len(free_slots)
    tokens = list(accumulate(lengths, initial=0))
    squares = list(accumulate((length * length for length in lengths), initial=0))
    inverses = list(accumulate((1 / length for length in lengths), initial=0.0))
    slots = list(accumulate(free_slots, initial=0))
    costs = [_costs(degree, tokens, squares, inverses, model) for degree in range(1, size + 1)]
    infinite = float("inf")
    # least[k][i]: the first i prompts on exactly the first k instances; from_[k][i]: what the last batch began with.
    least = [[infinite] * (count + 1) for _ in range(size + 1)]
    from_: list[list[tuple[int, int]]] = [[(0, 0)] * (count + 1) for _ in range(size + 1)]
    least[0][0] = 0.0
    for last in range(1, size + 1):
        for first in range(last):
            room, before, of_degree = slots[last] - slots[first], least[first], costs[last - first - 1]
            start = 0  # the longest run of prompts that ends at `end` and fits
            for end in range(1, count + 1):
                while tokens[end] - tokens[start] > room:
                    start += 1
                if start == end:
                    continue
                sums = list(map(add, before[start:end], of_degree[end][start:end]))
                cost = min(sums)
                if cost < least[last][end]:
                    least[last][end], from_[last][end] = cost, (start + sums.index(cost), first)
    best = min(range(size + 1), key=lambda last: least[last][count])
    if least[best][count] == infinite:
        raise NoRoom(f"{tokens[-1]} prompt tokens do not fit on {size} instances with {slots[-1]} free slots")
    batches: list[Batch] = []
    end, last = count, best
    while end:
        start, first = from_[last][end]
        batches.append(Batch(range(start, end), range(first, last)))
        end, last = start, first
    return Batches(tuple(reversed(batches)), least[best][count])


def _costs(
    degree: int, tokens: Sequence[int], squares: Sequence[int], inverses: Sequence[float], model: LatencyModel
) -> list[list[float]]:
    """[end][start]: a batch of prompts ``start`` to ``end`` on ``degree`` instances, in seconds a token."""
    of = model.of(degree)
    alpha_s, beta_s, gamma_s = of.alpha_s, of.beta_s, of.gamma_s
    return [
        [
            (alpha_s + beta_s * (tokens[end] - tokens[start]) + gamma_s * (squares[end] - squares[start]))
            * (inverses[end] - inverses[start])
            for start in range(end)
        ]
        for end in range(len(tokens))
    ]
