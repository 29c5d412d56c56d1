"""The gate for a policy change: is the new replay worse than the kept one, by more than is tolerated?

Two figures are compared, because either alone can be had for nothing by giving up the other: attainment (the share of
all requests within both objectives) and GPU-hours. A replay is **worse** when

* its attainment is lower by more than the tolerance, or
* its GPU-hours are higher by more than the tolerance while its attainment did not rise by more than the tolerance.

Both are judged by the objectives of the baseline: a policy does not get better by promising less.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pointsman.planner.core.types import Objectives
from pointsman.planner.errors import CompareError
from pointsman.planner.replay.summary import rounded_attainment, rounded_gpu_hours
from pointsman.planner.simulator.types import Served


@dataclass(frozen=True, slots=True)
class Comparison:
    """Before and after, and whether that is worse. ``sentences`` says why, one a finding."""

    baseline: str
    tolerance: float
    attainment_before: float
    attainment_after: float
    gpu_hours_before: float
    gpu_hours_after: float
    worse: bool
    sentences: tuple[str, ...]

    @property
    def rows(self) -> tuple[tuple[str, str, str], ...]:
        """(name, before, after) of what is compared."""
        return (
            ("attainment", f"{self.attainment_before:.2%}", f"{self.attainment_after:.2%}"),
            ("GPU-hours", f"{self.gpu_hours_before:.2f}", f"{self.gpu_hours_after:.2f}"),
        )

    @property
    def verdict(self) -> str:
        """Whether it is worse, and by how much it may be."""
        by = f" by more than {self.tolerance:.2%}" if self.tolerance else ""
        return f"worse{by}" if self.worse else f"not worse{by}"


def compare(
    baseline: Mapping[str, Any],
    result: Served,
    trace_digest: str,
    simulation: Mapping[str, object],
    *,
    name: str,
    tolerance: float,
) -> Comparison:
    """The result against a baseline's document of this name; ``tolerance`` is a share, 0.01 for 1 %.

    Raises CompareError when the two were not run on the same trace and simulation: a difference would say nothing.
    """
    if baseline["trace"].get("digest") != trace_digest:
        raise CompareError(
            f"the baseline was run on another trace ({baseline['trace'].get('name')}, "
            f"{baseline['trace'].get('requests')} requests): replay both on the same one"
        )
    of_baseline = {what: value for what, value in baseline["simulation"].items() if what != "planner"}
    for what in dict.fromkeys((*simulation, *of_baseline)):
        before, value = of_baseline.get(what), simulation.get(what)
        if before != value:
            raise CompareError(f"the baseline was run with {what} {before}, this with {value}: use the same")
    objectives = Objectives(**baseline["objectives"])
    now = replace(result, objectives=objectives)  # rounded as the baseline's: the same run is not worse
    before, after = float(baseline["figures"]["attainment"]), rounded_attainment(now)
    hours_before, hours_after = float(baseline["figures"]["gpu_hours"]), rounded_gpu_hours(now)
    fewer = before - after > tolerance * before + 1e-9
    dearer = hours_after - hours_before > tolerance * hours_before + 1e-9
    better = after - before > tolerance * before
    sentences = []
    if objectives != result.objectives:
        sentences.append("judged by the baseline's objectives, which are not this policy's")
    if fewer:
        sentences.append(f"attainment fell from {before:.2%} to {after:.2%}")
    if dearer:
        excuse = f", for an attainment of {after:.2%} instead of {before:.2%}" if better else ""
        sentences.append(f"GPU-hours rose from {hours_before:.2f} to {hours_after:.2f}{excuse}")
    return Comparison(
        baseline=name,
        tolerance=tolerance,
        attainment_before=before,
        attainment_after=after,
        gpu_hours_before=hours_before,
        gpu_hours_after=hours_after,
        worse=fewer or (dearer and not better),
        sentences=tuple(sentences),
    )


def parse_tolerance(text: str) -> float:
    """``1%`` or ``0.01`` as a share. Raises ValueError for what is no share of 0 to 1."""
    share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    if not math.isfinite(share) or not 0 <= share < 1:
        raise ValueError(f"{text} is no share below 100%")
    return share
