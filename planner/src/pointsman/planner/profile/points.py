"""What is measured, and in which order: the coarse grid first, so that whenever time ends the table spans it."""

from collections.abc import Iterator
from itertools import chain, zip_longest
from typing import Final

from pointsman.planner.profile.types import Point, PrefillPoint, StepPoint, TransferPoint, WorkerFacts

LEAST_PREFILL: Final = 16
LEAST_CONTEXT: Final = 128
CAPACITY_SHARE: Final = 0.9  # of the KV cache: nothing is preempted while it is measured
STEP_TOKENS: Final = 512  # room for what a sequence generates while its steps are measured
ROUNDS: Final = 3  # of every point, time permitting; a table takes the median
TRANSFERS: Final = 3  # lengths


def rounds(facts: WorkerFacts, *, most_prompt_tokens: int, most_batch: int, transfers: bool) -> Iterator[Point]:
    """Every point ``ROUNDS`` times: coarse grid, the rest, then both again.

    ``most_prompt_tokens`` and ``most_batch`` bound the axes beside what the worker itself can hold.
    """
    lengths = prefill_lengths(facts, most_prompt_tokens)
    coarse, fine = _halves(lengths)
    coarse_steps, fine_steps = step_points(facts, most_prompt_tokens, most_batch)
    moved = [TransferPoint(tokens) for tokens in lengths[-TRANSFERS:]] if transfers else []
    first: list[Point] = [*_in_turns([PrefillPoint(n, 0) for n in coarse], coarse_steps), *moved]
    cached = prefixed(facts, coarse)
    rest: list[Point] = [*_in_turns([PrefillPoint(n, 0) for n in fine], fine_steps), *cached]
    return chain.from_iterable((*first, *rest) for _ in range(ROUNDS))


def prefill_lengths(facts: WorkerFacts, most_prompt_tokens: int) -> list[int]:
    """Doubling lengths; the last is the longest prompt there may be."""
    room = int(facts.kv_capacity_tokens * CAPACITY_SHARE)
    most = min(most_prompt_tokens, facts.max_context_tokens - 1, room)
    return _doubling(LEAST_PREFILL, most)


def prefixed(facts: WorkerFacts, lengths: list[int]) -> list[PrefillPoint]:
    """New tokens after cached ones: two prefixes of whole blocks, so that both effects are seen apart."""
    most = lengths[-1]
    prefixes = {most // part // facts.block_tokens * facts.block_tokens for part in (8, 2)} - {0}
    return [PrefillPoint(n, p) for p in sorted(prefixes) for n in lengths if n + p <= most]


def step_points(
    facts: WorkerFacts, most_prompt_tokens: int, most_batch: int
) -> tuple[list[StepPoint], list[StepPoint]]:
    """(coarse, the rest) of batches by contexts, as far as the KV cache holds them."""
    room = int(facts.kv_capacity_tokens * CAPACITY_SHARE)
    longest = max(min(most_prompt_tokens, facts.max_context_tokens - STEP_TOKENS, room - STEP_TOKENS), 1)
    contexts = _doubling(min(LEAST_CONTEXT, longest), longest)[::2]
    batches = _doubling(1, most_batch)
    coarse_contexts, _ = _halves(contexts)
    coarse_batches, _ = _halves(batches)
    holds = [
        StepPoint(batch, context)
        for context in contexts
        for batch in batches
        if batch * (context + STEP_TOKENS) <= room or batch == 1
    ]
    coarse = [p for p in holds if p.batch in coarse_batches and p.context_tokens in coarse_contexts]
    known = set(coarse)
    return coarse, [p for p in holds if p not in known]


def _doubling(least: int, most: int) -> list[int]:
    """``least``, twice that, …, and ``most`` itself; the last doubling is left out where it is close to ``most``."""
    found = []
    value = least
    while value < most / 1.2:
        found.append(value)
        value *= 2
    return [*found, most]


def _halves(values: list[int]) -> tuple[list[int], list[int]]:
    """(every other value counted from the last, and the first; the others)."""
    coarse = sorted({values[0], *values[::-1][::2]})
    return coarse, [value for value in values if value not in coarse]


def _in_turns(prefills: list[PrefillPoint], steps: list[StepPoint]) -> list[Point]:
    pairs = zip_longest(prefills, steps)
    return [point for pair in pairs for point in pair if point is not None]
