"""An operating point, from what a test varies of it."""

from dataclasses import replace

from pointsman.planner.core.engine.performance_model import PerformanceModel
from pointsman.planner.core.sizing.operating_point import OperatingPoint, operating_point
from pointsman.planner.core.types import Objectives, Policy, RoutingNumbers
from pointsman.planner.core.workload.length_variability import Shape
from pointsman.planner.core.workload.request_lengths import Lengths
from unit.planner.scenes import LLAMA_8B_H100, observed

OBJECTIVES = Objectives(ttft_ms=1500, tpot_ms=40)


def point(
    prompt: float = 4000, output: float = 250, threshold: int = 0, model: PerformanceModel = LLAMA_8B_H100,
    objectives: Objectives = OBJECTIVES, **limits: float | RoutingNumbers,
) -> OperatingPoint:  # fmt: skip
    seen = replace(observed(0, None), **limits)  # type: ignore[arg-type]  # names of real fields
    seen = replace(seen, routing=replace(seen.routing, max_local_prefill_tokens=threshold))
    lengths = Lengths(shares=((prompt, 1.0),), prompt_tokens=prompt, output_tokens=output)
    return operating_point(model, seen, Policy(objectives=objectives), lengths, Shape())
