"""What each part of the planner is worth: ours beside ours without it, on all loads that run both."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import geometric_mean, mean
from typing import Final

from bench.planner.runs import ABLATION, OURS, Found, Run
from pointsman.planner.simulator.baselines.pointsman import PARTS

ACTIONS: Final = ("threshold", "flow control", "role switch", "scaling")
"""What a policy can turn off; the other parts have no switch, and are not in the tables of single loads."""
REAL: Final = ("moon_conv", "azure_conv", "real traces on 6 GPUs")
IN_THE_MEAN: Final = 0.005  # of all requests: what a part has to be worth …
ON_A_REAL_LOAD: Final = 0.02  # … or on one of ``REAL``


@dataclass(frozen=True)
class Worth:
    """Of a part: the share within objectives that it adds on each load, and its GPU-hours relative to those without."""

    part: str
    shares: Mapping[str, float]
    hours: Mapping[str, float]

    @property
    def mean(self) -> float:
        return mean(self.shares.values())

    @property
    def mean_hours(self) -> float:
        return geometric_mean(self.hours.values())

    @property
    def most(self) -> tuple[str, float]:
        """The load on which it adds most."""
        return max(self.shares.items(), key=lambda each: each[1])

    @property
    def on_real(self) -> dict[str, float]:
        return {load: self.shares[load] for load in REAL if load in self.shares}

    @property
    def is_enough(self) -> bool:
        """Whether it is worth its place, as the share that it adds is rounded in tables."""
        most_real = max(self.on_real.values(), default=0.0)
        return round(self.mean, 4) >= IN_THE_MEAN or round(most_real, 4) >= ON_A_REAL_LOAD


def worths(found: Mapping[str, Found]) -> list[Worth]:
    """Of each part, by runs of the same sources, on loads that ran without patience, as all of a full ablation do."""
    loads = {name: of_load for name, of_load in found.items() if _pairs(of_load, "patience")}
    made = []
    for part in PARTS:
        shares, hours = dict[str, float](), dict[str, float]()
        for name, of_load in loads.items():
            if pairs := _pairs(of_load, part):
                shares[name] = mean(mine.attainment - other.attainment for mine, other in pairs)
                hours[name] = mean(mine.gpu_hours for mine, _ in pairs) / mean(other.gpu_hours for _, other in pairs)
        if shares:
            made.append(Worth(part, shares, hours))
    return sorted(made, key=lambda each: -each.mean)


def _pairs(found: Found, part: str) -> list[tuple[Run, Run]]:
    """Runs with the part and without it: of the same seed, and of the same sources."""
    without = {(run.seed, run.sources): run for run in found.get(_without(part), ())}
    return [(run, without[run.seed, run.sources]) for run in found.get(OURS, ()) if (run.seed, run.sources) in without]


def is_inner(planner: str) -> bool:
    """Ours without a part that no policy turns off."""
    return planner.startswith(ABLATION) and planner not in map(_without, ACTIONS)


def _without(part: str) -> str:
    return f"{ABLATION} {part}"
