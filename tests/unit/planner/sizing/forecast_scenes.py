"""Engine and policy of the tests that size pools for what is forecast."""

from pointsman.planner.core.engine.learned_model import LearnedModel
from pointsman.planner.core.types import (
    Bounds,
    Objectives,
    Policy,
)

ENGINE = LearnedModel((16.5, 0.0152, 4.2e-7), (5.74, 0.0, 2.06e-4, -3.75e-10))
TICK_S = 2.5
POLICY = Policy(
    objectives=Objectives(ttft_ms=1500, tpot_ms=25), max_gpus=16, prefill=Bounds(1, 15), decode=Bounds(1, 15),
    role_switch=False, start_s=45.0, scale_in_stabilization_s=120.0,
)  # fmt: skip
