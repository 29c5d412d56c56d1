"""How many requests a second a system serves within the objectives of LoongServe's evaluation.

An objective is 25 times the latency of a request that is alone on all eight GPUs, with nothing to schedule. The paper's
throughput is the rate at which a mean normalised latency (seconds a token) reaches it. The goodput is the rate at which
less than 90 % of the requests are in time.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import mean
from typing import Final

from bench.elastic.paper_costs import TensorParallel
from bench.elastic.paper_mixes import Mix
from bench.elastic.simulation import Outcome

REFERENCE: Final = TensorParallel(8)
FACTOR: Final = 25.0
GOOD: Final = 0.9
COARSE: Final = 1.6  # and its eighth root is below BRACKET
BRACKET: Final = 1.0605

MEASURES = (TOTAL, INPUT, ALL, GOODPUT) = ("total", "input", "total, input and output", "goodput")

Judged = Mapping[str, float]
"""By measure: 1 where its objective is just met, and more beyond."""


def normalised(prompt_tokens: int, output_tokens: int, first_s: float, end_s: float) -> tuple[float, float, float]:
    """Seconds a token of the whole request, to its first token, and between further tokens."""
    further_s = (end_s - first_s) / max(output_tokens - 1, 1)
    return end_s / (prompt_tokens + output_tokens), first_s / prompt_tokens, further_s


def objectives_of(mix: Mix) -> list[float]:
    """FACTOR times the mean normalised latencies of requests that are alone."""
    alone = [normalised(*lengths, *REFERENCE.alone_s(*lengths)) for lengths in mix.sample()]
    return [FACTOR * mean(latencies) for latencies in zip(*alone, strict=True)]


class Tally:
    """The measures of a run of ``count`` requests. While some have not ended they are lower bounds."""

    def __init__(self, objectives: Sequence[float], count: int) -> None:
        self._objectives, self._count = objectives, count
        self._sums = [0.0, 0.0, 0.0]
        self._late = 0

    def add(self, outcome: Outcome) -> None:
        """One has ended."""
        asked = outcome.asked
        lengths = (asked.prompt_tokens, asked.output_tokens)
        first_s, end_s = outcome.first_s - asked.at_s, outcome.end_s - asked.at_s
        found = normalised(*lengths, first_s, end_s)
        self._sums = [before + each for before, each in zip(self._sums, found, strict=True)]
        self._late += end_s > FACTOR * REFERENCE.alone_s(*lengths)[1]

    @property
    def judged(self) -> Judged:
        """By measure."""
        pairs = zip(self._sums, self._objectives, strict=True)
        total, first, further = (each / self._count / objective for each, objective in pairs)
        late = self._late / ((1 - GOOD) * self._count)
        return {TOTAL: total, INPUT: first, ALL: max(total, first, further), GOODPUT: late}


def find_rates(judge: Callable[[float], Judged], measures: Sequence[str], first_rate: float) -> dict[str, float]:
    """The first rate at which each of ``measures`` exceeds 1, to 3 %: the middle of two rates on both sides.

    Rates a factor COARSE apart are tried until all measures lie on both sides, then the geometric means between.
    """
    tried = {first_rate: judge(first_rate)}
    while any(tried[min(tried)][each] > 1 for each in measures):
        rate = min(tried) / COARSE
        tried[rate] = judge(rate)
    while any(tried[max(tried)][each] <= 1 for each in measures):
        rate = max(tried) * COARSE
        tried[rate] = judge(rate)
    for measure in measures:
        low, high = _around(tried, measure)
        while high / low > BRACKET:
            middle = math.sqrt(low * high)
            tried[middle] = judge(middle)
            low, high = _around(tried, measure)
    return {each: math.sqrt(math.prod(_around(tried, each))) for each in measures}


def _around(tried: Mapping[float, Judged], measure: str) -> tuple[float, float]:
    """The first rate at which ``measure`` is above 1, and the one before."""
    rates = sorted(tried)
    above = next(number for number, rate in enumerate(rates) if tried[rate][measure] > 1)
    return rates[above - 1], rates[above]
