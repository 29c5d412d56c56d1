"""How long prefills of each degree and moves of KV take here: measured on instances that are idle."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from math import inf
from random import Random
from typing import Final

from pointsman.serving.elastic.iterations import Move, Prompt
from pointsman.serving.elastic.latency_model import BadFit, PrefillTime, fit_prefill_time

log = logging.getLogger(__name__)

SHORTEST: Final = 32
STEPS: Final = 6  # lengths at least, each twice the one before
EXTRAPOLATED: Final = 4  # the longest prompt has so many times as many tokens as the longest that is measured,
ENOUGH_S: Final = 1.0  # or more, if one took so long
REPEATS: Final = 3
TRIES: Final = 3

MOVED: Final = 1024  # tokens at most: enough to make what an iteration takes by itself small

Measure = Callable[[Sequence[Prompt]], Awaitable[float]]


async def measure_degree(measure: Measure, members: int, slots: int, longest: int) -> PrefillTime:
    """The model of a group of ``members`` with ``slots`` each, from prompts of up to ``longest`` tokens.

    ``measure`` computes prompts, frees them and returns the seconds. What disturbs it only adds to them, so the least
    of all repetitions is taken. A model that does not fit well is better than none: it is used, and said.
    """
    least: dict[tuple[int, ...], float] = {}

    async def measure_again(lengths: tuple[int, ...]) -> None:
        prompts = [_prompt(number, length, members) for number, length in enumerate(lengths)]
        for _ in range(REPEATS):
            least[lengths] = min(await measure(prompts), least.get(lengths, inf))
            if least[lengths] > ENOUGH_S / 2:
                break  # what disturbs it is little beside that

    most = min(longest, slots * members // 2)
    batches = batches_up_to(most)
    for _ in range(TRIES):
        for lengths in batches:
            await measure_again(lengths)
        while (longer := twice_as_long(batches, most)) and max(least.values()) < ENOUGH_S:
            batches += longer
            for lengths in longer:
                await measure_again(lengths)
        try:
            return fit_prefill_time(list(least.items()))
        except BadFit as error:
            log.info("measured once more", extra={"degree": members, "why": str(error)})
    found = fit_prefill_time(list(least.items()), inf)
    log.warning("prefills do not follow the model well", extra={"degree": members, "error": round(found.error, 2)})
    return found


async def measure_move(
    prefill: Measure, move: Callable[[Sequence[Move]], Awaitable[float]], slots: int, longest: int
) -> float:
    """Seconds to hand over a token's KV between two instances with ``slots`` each.

    ``prefill`` computes a prompt of up to ``longest`` tokens on the first one, and ``move`` hands it over. The least of
    all repetitions is taken: the first one forms the group of the two.
    """
    prompt = _prompt(0, max(1, min(MOVED, slots, longest)), 1)
    await prefill([prompt])
    ways = [(0, 1) if number % 2 == 0 else (1, 0) for number in range(REPEATS)]
    tokens = len(prompt.token_ids)
    return min([await move([Move(prompt.request, source, target, tokens)]) for source, target in ways]) / tokens


def batches_up_to(longest: int) -> list[tuple[int, ...]]:
    """Lengths of the prompts of each batch that is measured: single ones, and two that together are as long."""
    shortest = max(1, min(SHORTEST, longest >> (STEPS - 1)))
    singles = [(length,) for step in range(STEPS) if (length := shortest << step) <= max(longest, 1)]
    return [*singles, *((length // 2, length // 2) for (length,) in singles if length >= 4 * shortest)]


def twice_as_long(batches: Sequence[tuple[int, ...]], longest: int) -> list[tuple[int, ...]]:
    """Batches beyond those that were measured, where the longest prompt is so far beyond them that it needs them.

    A GPU takes as long for a prompt of a thousand tokens as for a short one, so those alone say nothing of long ones.
    """
    length = 2 * max(map(sum, batches))
    return [(length,), (length // 2, length // 2)] if length * EXTRAPOLATED <= longest else []


def _prompt(number: int, length: int, members: int) -> Prompt:
    rng = Random(length)
    share, more = divmod(length, members)
    owners = tuple((member, share + (member < more)) for member in range(members))
    return Prompt(f"profile-{number}", tuple(rng.randrange(10) for _ in range(length)), owners)
