"""``make bench-elastic-planned``: LoongServe's mixes over a day, with Pointsman's planner and with fixed instances.

The rate rises from the least to the most and falls again. The planner sees pages of metrics only, new instances take
two minutes, and those that leave hand their KV over. GPUs, model and lengths are those of ``bench.elastic.paper``.
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from statistics import mean
from typing import Final

import numpy as np

from bench.elastic.paper import ELASTIC, SEEDS
from bench.elastic.paper_mixes import EVALUATION, LENGTHS, Lengths
from bench.rows import RESULTS, Row, measure_parts, row
from pointsman.planner.core.types import Bounds, Objectives, Policy
from pointsman.planner.simulator.elastic.planners import GROUP_PLANNERS
from pointsman.planner.simulator.elastic.simulate import simulate_group
from pointsman.planner.simulator.elastic.types import GroupLeads, GroupResult, GroupSimulation, Instances
from pointsman.planner.simulator.types import Trace

COMMAND: Final = "make bench-elastic-planned"
PATH: Final = RESULTS / "elastic_planned.json"
MOST: Final = 8  # instances of two GPUs
MAX_DEGREE: Final = len(ELASTIC.domains)
GOAL: Final = 0.9
START_S: Final = 120.0
FIXED: Final = (4, 6, 8)
"""Numbers of instances beside the planner."""

INSTANCES: Final = Instances(ELASTIC.times, ELASTIC.model, ELASTIC.slots, gpus=2)
POLICY: Final = Policy(
    objectives=Objectives(ttft_ms=2000, tpot_ms=100, ttft_ms_per_prompt_token=0.3, attainment=GOAL),
    max_gpus=2 * MOST,
    start_s=START_S,
    scale_in_stabilization_s=600.0,  # as examples/policies/long-context.yaml: requests are few and differ much
)


@dataclass(frozen=True, slots=True)
class Day:
    """Requests for ``seconds``; their rate is a sine's square between ``low`` and ``high`` a second.

    ``least``: instances that the longest request needs for its KV.
    """

    name: str
    lengths: Lengths
    seconds: float
    low: float
    high: float
    least: int

    def trace(self, seed: int) -> Trace:
        """Drawn by thinning a Poisson process of the highest rate."""
        rng, found = Random(f"{self.name}/{seed}"), []
        at_s = rng.expovariate(self.high)
        while at_s < self.seconds:
            rate = self.low + (self.high - self.low) * math.sin(math.pi * at_s / self.seconds) ** 2
            if rng.random() * self.high < rate:
                found.append((at_s, *self.lengths(rng)))
            at_s += rng.expovariate(self.high)
        arrivals, prompts, outputs = map(np.array, zip(*found, strict=True))
        return Trace(self.name, arrivals, prompts, outputs)


DAYS: Final = [Day(name, LENGTHS[name], **each) for name, each in EVALUATION["days"].items()]


def simulated(day: Day, seed: int, fixed: int | None) -> GroupResult:
    """``fixed``: instances all the time; None: the planner's number, at the start the least."""
    simulation = GroupSimulation(
        instances=INSTANCES,
        ready=fixed or day.least,
        bounds=Bounds(day.least, MOST),
        max_degree=MAX_DEGREE,
        settings=ELASTIC.settings,
        leads=GroupLeads(start_s=START_S, start_spread=0.2),
        noise_sigma=0.08,
        seed=seed,
    )
    planner = GROUP_PLANNERS["static" if fixed else "pointsman"]()
    return simulate_group(day.trace(seed), simulation, POLICY, planner)


def rows_of(day: Day, seeds: Sequence[int] = SEEDS) -> list[Row]:
    """Attainment beside each fixed number, and GPU-hours beside the fewest that keep the goal (else the most)."""
    found = {number: [simulated(day, seed, number) for seed in seeds] for number in (None, *FIXED)}
    attainment = {number: [each.attainment for each in results] for number, results in found.items()}
    ours = attainment.pop(None)
    number = next((number for number in FIXED if mean(attainment[number]) >= GOAL), FIXED[-1])
    hours = ([each.gpu_hours for each in found[which]] for which in (None, number))
    beside = partial(row, of_means=True, command=COMMAND)
    rows = [
        beside(f"{day.name}: attainment", "in time", ours, shares, peer_name=f"{fixed} instances", at_least=GOAL)
        for fixed, shares in attainment.items()
    ]
    peer = f"{number} instances"
    return [*rows, beside(f"{day.name}: GPU-hours", "GPU-hours", *hours, peer_name=peer, of_ratio=True, at_most=1.0)]


def main(argv: Sequence[str]) -> int:
    """Simulate, write the rows; 1 if a target was missed."""
    return measure_parts(PATH.stem, COMMAND, __doc__, argv, {day.name: partial(rows_of, day) for day in DAYS})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
