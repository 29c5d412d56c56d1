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
from bench.elastic.paper_systems import FACTOR
from bench.elastic.simulation import GOOD, Outcome
from bench.rows import options, repeated

SEEDS: Final = (1, 2, 3)
COARSE: Final = 1.6  # and its eighth root is below BRACKET
BRACKET: Final = 1.0605
ABLATION_TTFT_S: Final = 15.0
ABLATION_TPOT_S: Final = 0.05


class Measure(StrEnum):
    """What a rate is judged by. Each is 1 where the objective is just met, and more beyond."""

    TOTAL = "total"
    INPUT = "input"
    OUTPUT = "output"
    ALL = "total, input and output"
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
        alone = [Normalised(*lengths, *reference.alone_s(*lengths)) for lengths in mix.sample()]
        total_s, input_s = mean(each.total_s for each in alone), mean(each.input_s for each in alone)
        output_s = mean(each.output_s for each in alone)
        return cls(reference, FACTOR * total_s, FACTOR * input_s, FACTOR * output_s)


@dataclass(frozen=True, slots=True)
class Normalised:
    """The latencies of a request, divided by its tokens."""

    prompt_tokens: int
    output_tokens: int
    first_s: float
    end_s: float

    @property
    def total_s(self) -> float:
        """Of the whole request."""
        return self.end_s / (self.prompt_tokens + self.output_tokens)

    @property
    def input_s(self) -> float:
        """To the first token."""
        return self.first_s / self.prompt_tokens

    @property
    def output_s(self) -> float:
        """Between two tokens."""
        return (self.end_s - self.first_s) / max(self.output_tokens - 1, 1)


@dataclass
class Tally:
    """The measures of a run of ``count`` requests. While some have not ended they are lower bounds."""

    objectives: Objectives
    count: int
    _total: float = 0.0
    _input: float = 0.0
    _output: float = 0.0
    _late: int = 0
    _late_ablation: int = 0
    refused: int = 0

    def add(self, outcome: Outcome) -> None:
        """One has ended, or was refused."""
        if outcome.end_s is None:
            self.refused += 1
            return
        asked, of = outcome.asked, self.objectives
        lengths = (asked.prompt_tokens, asked.output_tokens)
        found = Normalised(*lengths, outcome.first_s - asked.at_s, outcome.latency_s)
        alone = Normalised(*lengths, *of.reference.alone_s(*lengths))
        self._total += found.total_s
        self._input += found.input_s
        self._output += found.output_s
        self._late += found.end_s > FACTOR * alone.end_s
        first_by_s = max(FACTOR * alone.first_s, ABLATION_TTFT_S)
        self._late_ablation += found.first_s > first_by_s or found.output_s > ABLATION_TPOT_S

    @property
    def judged(self) -> "Judged":
        """By measure."""
        of, may_be_late = self.objectives, (1 - GOOD) * self.count
        total = self._total / self.count / of.total_s
        first = self._input / self.count / of.input_s
        further = self._output / self.count / of.output_s
        return {
            Measure.TOTAL: total,
            Measure.INPUT: first,
            Measure.OUTPUT: further,
            Measure.ALL: max(total, first, further),
            Measure.GOODPUT: self._late / may_be_late,
            Measure.ABLATION: self._late_ablation / may_be_late,
        }


Judged = Mapping[Measure, float]


def find_rates(
    judge: Callable[[float], Judged], measures: Sequence[Measure], first_rate: float
) -> dict[Measure, float]:
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


def _around(tried: Mapping[float, Judged], measure: Measure) -> tuple[float, float]:
    """The first rate at which ``measure`` is above 1, and the one before."""
    rates = sorted(tried)
    above = next(number for number, rate in enumerate(rates) if tried[rate][measure] > 1)
    return rates[above - 1], rates[above]


@dataclass(frozen=True, slots=True)
class Part:
    """What a command measures: mixes by name, with these seeds; ``some``: not all mixes, beside what is kept."""

    mixes: Sequence[str]
    seeds: tuple[int, ...]
    command: str
    some: bool


def mixes_and_seeds(command: str, description: str | None, argv: Sequence[str], mixes: Sequence[str]) -> Part:
    """The part that a command line asks for."""
    seeds = (SEEDS, "of arrivals and lengths")
    asked = options(command, description, argv, mixes=((*mixes,), "that are measured again"), seeds=seeds)
    chosen = tuple(asked.seeds)
    told = () if chosen == SEEDS else ("--seeds", *map(str, chosen))
    return Part(asked.mixes, chosen, repeated(command, told), some={*asked.mixes} != {*mixes})
