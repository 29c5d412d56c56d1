"""Requests with the lengths of LoongServe's data sets. The sets are not here, so lengths are drawn from their ranges.

Prompts: log-uniform between the shortest and the longest that the paper names. Outputs: log-uniform between 4 tokens
and the most that the data set's own evaluation, or the paper's artifact, lets a model write. Arrivals are Poisson.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from bench.elastic.simulation import Asked
from bench.rows import data

Lengths = Callable[[Random], tuple[int, int]]
"""Draws the tokens of a prompt and of its output."""


def log_uniform(rng: Random, least: int, most: int) -> int:
    """Every doubling is as likely as any other."""
    return round(math.exp(rng.uniform(math.log(least), math.log(most))))


@dataclass(frozen=True, slots=True)
class DataSet:
    """``prompt`` and ``output``: the fewest and the most tokens."""

    prompt: Sequence[int]
    output: Sequence[int]

    def __call__(self, rng: Random) -> tuple[int, int]:
        """The lengths of one request."""
        return log_uniform(rng, *self.prompt), log_uniform(rng, *self.output)


EVALUATION: Final = data("loongserve")
DATA_SETS: Final = {name: DataSet(**ranges) for name, ranges in EVALUATION["data_sets"].items()}


def mixed(rng: Random) -> tuple[int, int]:
    """Of any of the data sets, evenly."""
    return rng.choice([*DATA_SETS.values()])(rng)


LENGTHS: Final[Mapping[str, Lengths]] = {**DATA_SETS, "Mixed": mixed}
"""By the name of a mix."""


@dataclass(frozen=True, slots=True)
class Mix:
    """Requests arrive for ``seconds``, which is the same for all systems and rates."""

    name: str
    lengths: Lengths
    seconds: float
    first_rate: float

    def draw(self, rate: float, seed: int) -> list[Asked]:
        """At ``rate`` a second. With another rate the same requests come, in the same order, at other times."""
        rng, found = Random(f"{self.name}/{seed}"), list[Asked]()
        at_s = rng.expovariate(1) / rate
        while at_s < self.seconds:
            found.append(Asked(at_s, *self.lengths(rng)))
            at_s += rng.expovariate(1) / rate
        return found

    def sample(self, count: int = 2000) -> list[tuple[int, int]]:
        """Lengths for the objectives, which are fixed before anything is measured."""
        rng = Random(f"{self.name}/objectives")
        return [self.lengths(rng) for _ in range(count)]
