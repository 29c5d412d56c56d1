"""The future-memory bound: how many slots requests need until they end. A slot holds the KV of one token."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


class NoRoom(ValueError):
    """More tokens than free slots."""


@dataclass(frozen=True, slots=True)
class SlotDemand:
    """A request that occupies ``tokens`` slots and may take ``future_tokens`` more until it ends."""

    tokens: int
    future_tokens: int


def peak_slots(demands: Iterable[SlotDemand]) -> int:
    """The most slots that ``demands`` occupy together at any time, if all run side by side to their ends.

    When the request that runs i-th longest ends, i requests are alive. Each occupies what it has now and the future
    tokens of that one. The peak is the largest such sum, and with so many slots nothing is evicted (LoongServe,
    arXiv 2404.09526, dispatching; the formula is LightLLM's).
    """
    peak = tokens = 0
    for alive, demand in enumerate(sorted(demands, key=lambda each: each.future_tokens, reverse=True), 1):
        tokens += demand.tokens
        peak = max(peak, tokens + alive * demand.future_tokens)
    return peak


class MemoryBound:
    """Whether a further request keeps the peak within ``slots``, for many candidates in a row.

    The result is that of ``peak_slots``. It is computed only where two cheaper bounds leave it open: a request adds at
    most its tokens and future tokens to the peak, and one that is no smaller than a refused one is refused too.
    """

    def __init__(self, demands: Iterable[SlotDemand], slots: int) -> None:
        self._demands = list(demands)
        self._slots = slots
        self._upper_bound = peak_slots(self._demands)  # of the peak
        self._refused: list[SlotDemand] = []

    def copy(self) -> "MemoryBound":
        """With the same requests."""
        other = MemoryBound((), self._slots)
        other._demands, other._upper_bound = list(self._demands), self._upper_bound
        other._refused = list(self._refused)
        return other

    def fits(self, demand: SlotDemand) -> bool:
        """Whether the requests can run with this one and none is ever evicted."""
        if self._upper_bound + demand.tokens + demand.future_tokens <= self._slots:
            return True
        if any(
            demand.tokens >= refused.tokens and demand.future_tokens >= refused.future_tokens
            for refused in self._refused
        ):
            return False
        if peak_slots([*self._demands, demand]) <= self._slots:
            return True
        self._refused.append(demand)
        return False

    def add(self, demand: SlotDemand) -> None:
        """Count a request that fits."""
        self._demands.append(demand)
        self._upper_bound += demand.tokens + demand.future_tokens
        if self._upper_bound > self._slots:
            self._upper_bound = peak_slots(self._demands)


def is_safe(demands: Iterable[SlotDemand], slots: int) -> bool:
    """Whether every request can run to its end within ``slots`` if the others pause: the banker's algorithm.

    The request with the fewest future tokens runs first and frees its slots for the next one. ``peak_slots`` within
    ``slots`` implies this, but does not stay true while a prefill pauses some requests. This one can be kept true.
    """
    by_future = sorted(demands, key=lambda each: each.future_tokens)
    free = slots - sum(demand.tokens for demand in by_future)
    if free < 0:
        return False
    for demand in by_future:
        if demand.future_tokens > free:
            return False
        free += demand.tokens
    return True


def choose_safe_steps(candidates: Sequence[SlotDemand], others: Sequence[SlotDemand], slots: int) -> set[int]:
    """The indices of ``candidates`` that may each take one slot now so that the state stays safe.

    ``others`` take none now. Any part of the result is safe too, since a step only uses what its request was promised.
    In a state that is not safe (an instance was lost) all candidates may step: some requests may end early.
    """
    stepped = [_stepped(demand) for demand in candidates]
    if is_safe([*stepped, *others], slots) or not is_safe([*candidates, *others], slots):
        return set(range(len(candidates)))
    state, chosen = list(candidates), set[int]()
    for index in sorted(range(len(candidates)), key=lambda each: (candidates[each].future_tokens, each)):
        state[index] = stepped[index]
        if is_safe([*state, *others], slots):
            chosen.add(index)
        else:
            state[index] = candidates[index]
    return chosen


def _stepped(demand: SlotDemand) -> SlotDemand:
    return SlotDemand(demand.tokens + 1, max(demand.future_tokens - 1, 0))
