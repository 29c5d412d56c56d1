"""An operating point, from what a test varies of it."""

from dataclasses import replace

from pointsman.planner.core.engine.performance_model import PerformanceModel
from pointsman.planner.core.sizing.operating_point import OperatingPoint, operating_point
from pointsman.planner.core.types import Objectives, RoutingNumbers
from unit.planner.scenes import LLAMA_8B_H100, observed

OBJECTIVES = Objectives(ttft_ms=1500, tpot_ms=40)


def point(
    prompt: float = 4000, output: float = 250, threshold: int = 0, model: PerformanceModel = LLAMA_8B_H100,
    objectives: Objectives = OBJECTIVES, **limits: float | RoutingNumbers,
) -> OperatingPoint:  # fmt: skip
    return operating_point(
        model, replace(observed(0, None), **limits), objectives,  # type: ignore[arg-type]  # names of real fields
        lengths=((prompt, 1.0),), threshold_tokens=threshold,
        prompt_tokens=prompt, cached_share=0.0,
        output_tokens=output, context_tokens=prompt + output / 2, prefill_scv=0.1, context_scv=0.1,
    )  # fmt: skip
