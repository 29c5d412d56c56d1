"""``make bench-elastic-planned``: LoongServe's mixes over a day, with Pointsman's planner and with fixed instances.

The rate rises from the least to the most and falls again. The planner sees pages of metrics only, new instances take
two minutes, and those that leave hand their KV over. GPUs, model and lengths are those of ``bench.elastic.paper``.
"""

import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from statistics import mean
from typing import Final

import numpy as np

from bench.elastic.paper_costs import SLOTS, SequenceParallel, TensorParallel
from bench.elastic.paper_mixes import L_EVAL, LV_EVAL, SHARE_GPT, Lengths, mixed
from bench.elastic.paper_search import mixes_and_seeds
from bench.rows import RESULTS, Row, finish, read, row, write
from pointsman.planner.core.elastic.types import GroupBounds
from pointsman.planner.core.types import Objectives, Policy
from pointsman.planner.simulator.elastic.planners import GROUP_PLANNERS
from pointsman.planner.simulator.elastic.simulate import simulate_group
from pointsman.planner.simulator.elastic.types import GroupLeads, GroupResult, GroupSimulation, Instances
from pointsman.planner.simulator.types import Trace
from pointsman.serving.elastic.types import Settings

COMMAND: Final = "make bench-elastic-planned"
PATH: Final = RESULTS / "elastic_planned.json"
MOST: Final = 8  # instances of two GPUs
MAX_DEGREE: Final = 4
GOAL: Final = 0.9
START_S: Final = 120.0

TIMES: Final = SequenceParallel(TensorParallel(2))
INSTANCES: Final = Instances(TIMES, TIMES.latency_model(range(1, MAX_DEGREE + 1)), SLOTS[2], gpus=2)
SETTINGS: Final = Settings(migration_s_per_token=TIMES.move_s_per_token)
POLICY: Final = Policy(
    objectives=Objectives(ttft_ms=2000, tpot_ms=100, ttft_ms_per_prompt_token=0.3, attainment=GOAL),
    max_gpus=2 * MOST,
    start_s=START_S,
    scale_in_stabilization_s=600.0,  # as examples/policies/long-context.yaml: requests are few and differ much
)


@dataclass(frozen=True, slots=True)
class Day:
    """Requests for ``seconds``; their rate is a sine's square between ``low`` and ``high`` a second.

    ``least``: instances that the longest request needs for its KV. ``fixed``: numbers of instances beside the planner.
    """

    name: str
    lengths: Lengths
    seconds: float
    low: float
    high: float
    least: int
    fixed: tuple[int, ...]

    def trace(self, seed: int) -> Trace:
        """Drawn by thinning a Poisson process of the highest rate."""
        arrivals, prompts, outputs = zip(*self._draw(Random(f"{self.name}/{seed}")), strict=True)
        return Trace(self.name, np.array(arrivals), np.array(prompts), np.array(outputs))

    def _draw(self, rng: Random) -> Iterator[tuple[float, int, int]]:
        at_s = rng.expovariate(self.high)
        while at_s < self.seconds:
            rate = self.low + (self.high - self.low) * math.sin(math.pi * at_s / self.seconds) ** 2
            if rng.random() * self.high < rate:
                yield at_s, *self.lengths(rng)
            at_s += rng.expovariate(self.high)


DAYS: Final = (
    Day("ShareGPT", SHARE_GPT, 600, 2.0, 25.0, 1, (1, 2)),
    Day("L-Eval", L_EVAL, 1800, 0.05, 0.6, 2, (4, 6, 8)),
    Day("LV-Eval", LV_EVAL, 3600, 0.01, 0.1, 3, (4, 6, 8)),
    Day("Mixed", mixed, 3600, 0.03, 0.35, 3, (4, 6, 8)),
)


def simulated(day: Day, seed: int, fixed: int | None) -> GroupResult:
    """``fixed``: instances all the time; None: the planner's number, at the start the least."""
    simulation = GroupSimulation(
        instances=INSTANCES,
        ready=fixed or day.least,
        bounds=GroupBounds(day.least, MOST),
        max_degree=MAX_DEGREE,
        settings=SETTINGS,
        leads=GroupLeads(start_s=START_S, start_spread=0.2),
        noise_sigma=0.08,
        seed=seed,
    )
    planner = GROUP_PLANNERS["pointsman" if fixed is None else "static"]()
    return simulate_group(day.trace(seed), simulation, POLICY, planner)


def rows_of(day: Day, seeds: Sequence[int], command: str) -> list[Row]:
    """Attainment beside each fixed number, and GPU-hours beside the fewest that keep the goal (else the most)."""
    planned = [_said(day, seed, None) for seed in seeds]
    fixed = {number: [_said(day, seed, number) for seed in seeds] for number in day.fixed}
    attainment = {number: [each.attainment for each in found] for number, found in fixed.items()}
    enough = [number for number, shares in attainment.items() if mean(shares) >= GOAL]
    number = min(enough, default=max(day.fixed))
    beside = partial(row, of_means=True, command=command)
    ours = [each.attainment for each in planned]
    hours = ([each.gpu_hours for each in found] for found in (planned, fixed[number]))
    return [
        *(
            beside(f"{day.name}: attainment", "in time", ours, shares, peer_name=_named(each), at_least=GOAL)
            for each, shares in attainment.items()
        ),
        beside(f"{day.name}: GPU-hours", "GPU-hours", *hours, peer_name=_named(number), of_ratio=True, at_most=1.0),
    ]


def _named(number: int) -> str:
    return f"{number} instance{'' if number == 1 else 's'}"


def _said(day: Day, seed: int, fixed: int | None) -> GroupResult:
    began_s = time.process_time()
    result = simulated(day, seed, fixed)
    print(
        f"{day.name}, seed {seed}, {'planner' if fixed is None else _named(fixed)}: {result.attainment:.3f} in time "
        f"(first token {result.ttft_met.mean():.3f}, tokens {result.tpot_met.mean():.3f}), "
        f"{result.gpu_hours:.2f} GPU-hours, up to {result.peak_instances} instances, "
        f"{len(result.transitions)} changes; {time.process_time() - began_s:.0f} s of a core",
        flush=True,
    )
    return result


def main(argv: list[str]) -> int:
    """Simulate, write the rows; 1 if a target was missed."""
    asked = mixes_and_seeds(COMMAND, __doc__, argv, [day.name for day in DAYS])
    rows = read(PATH) if asked.some and PATH.exists() else []
    for day in DAYS:
        if day.name in asked.mixes:
            rows = [each for each in rows if not each.name.startswith(f"{day.name}:")]
            rows += rows_of(day, asked.seeds, asked.command)
            write(PATH.stem, in_order(rows))
    return finish(PATH.stem, in_order(rows))


def in_order(rows: Sequence[Row]) -> list[Row]:
    """As the days are."""
    names = [day.name for day in DAYS]
    return sorted(rows, key=lambda each: names.index(each.name.split(":")[0]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
