"""How many requests a second a system serves within the objectives of LoongServe's evaluation.

An objective is 25 times the latency of a request that is alone, on the same reference for all systems. The paper's
throughput is the rate at which a mean normalised latency (seconds a token) reaches it. The goodput is the rate at which
less than 90 % of the requests are in time.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import mean
from typing import Final

from bench.elastic.paper_costs import TensorParallel
from bench.elastic.paper_mixes import Mix
from bench.elastic.simulation import GOOD, Outcome

FACTOR: Final = 25.0
COARSE: Final = 1.6
REFINEMENTS: Final = 2
ABLATION_TTFT_S: Final = 15.0
ABLATION_TPOT_S: Final = 0.05


class Measure(StrEnum):
    """What a rate is judged by. Each is 1 where the objective is just met, and more beyond."""

    TOTAL = "total"
    INPUT = "input"
    OUTPUT = "output"
    GOODPUT = "goodput"
    ABLATION = "ablation goodput"


@dataclass(frozen=True, slots=True)
class Objectives:
    """Mean normalised latencies in seconds a token: whole requests, first tokens, and further tokens."""

    reference: TensorParallel
    total_s: float
    input_s: float
    output_s: float

    @classmethod
    def of(cls, mix: Mix, reference: TensorParallel) -> "Objectives":
        """FACTOR times the means of requests that are alone on ``reference``."""
        total, first, further = [], [], []
        for prompt, output in mix.sample():
            first_s, end_s = reference.alone_s(prompt, output)
            total.append(end_s / (prompt + output))
            first.append(first_s / prompt)
            further.append((end_s - first_s) / max(output - 1, 1))
        return cls(reference, FACTOR * mean(total), FACTOR * mean(first), FACTOR * mean(further))

    def judge(self, outcomes: Sequence[Outcome]) -> dict[Measure, float]:
        """Every measure of a run in which nothing was refused."""
        total, first, further = [], [], []
        late = late_ablation = 0
        for each in outcomes:
            asked, first_s = each.asked, each.first_s - each.asked.at_s
            further_s = (each.latency_s - first_s) / max(asked.output_tokens - 1, 1)
            total.append(each.latency_s / (asked.prompt_tokens + asked.output_tokens))
            first.append(first_s / asked.prompt_tokens)
            further.append(further_s)
            alone_first_s, alone_s = self.reference.alone_s(asked.prompt_tokens, asked.output_tokens)
            late += each.latency_s > FACTOR * alone_s
            late_ablation += first_s > max(FACTOR * alone_first_s, ABLATION_TTFT_S) or further_s > ABLATION_TPOT_S
        may_be_late = (1 - GOOD) * len(outcomes)
        return {
            Measure.TOTAL: mean(total) / self.total_s,
            Measure.INPUT: mean(first) / self.input_s,
            Measure.OUTPUT: mean(further) / self.output_s,
            Measure.GOODPUT: late / may_be_late,
            Measure.ABLATION: late_ablation / may_be_late,
        }


Judged = Mapping[Measure, float]


def find_rates(judge: Callable[[float], Judged], measures: Sequence[Measure], first_rate: float) -> dict[Measure, float]:
    """The rate at which each of ``measures`` reaches 1, between two rates that were tried.

    Rates a factor COARSE apart are tried until all measures lie on both sides, then the geometric means between.
    """
    tried = {first_rate: judge(first_rate)}
    while any(tried[min(tried)][each] > 1 for each in measures):
        rate = min(tried) / COARSE
        tried[rate] = judge(rate)
    while any(tried[max(tried)][each] <= 1 for each in measures):
        rate = max(tried) * COARSE
        tried[rate] = judge(rate)
    for _ in range(REFINEMENTS):
        for measure in measures:
            low, high = _around(tried, measure)
            if high / low > COARSE ** (1 / 2**REFINEMENTS) * 1.01:
                middle = math.sqrt(low * high)
                tried[middle] = judge(middle)
    return {each: _crossing(tried, each) for each in measures}


def _around(tried: Mapping[float, Judged], measure: Measure) -> tuple[float, float]:
    """The first rate at which ``measure`` is above 1, and the one before."""
    rates = sorted(tried)
    above = next(number for number, rate in enumerate(rates) if tried[rate][measure] > 1)
    return rates[above - 1], rates[above]


def _crossing(tried: Mapping[float, Judged], measure: Measure) -> float:
    """Interpolated, as the paper's plots are read."""
    low, high = _around(tried, measure)
    before, after = tried[low][measure], tried[high][measure]
    return low + (high - low) * (1 - before) / (after - before)


