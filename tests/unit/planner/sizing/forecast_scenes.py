"""Engine and policy of the tests that size pools for what is forecast."""

from pointsman.planner.core.types import (
    Bounds,
    Objectives,
    Policy,
)


class Engine:
    """Times in milliseconds of an engine whose steps grow less with more tokens."""

    def prefill_ms(self, new_tokens: float, prefix_tokens: float) -> float:
        return 16.5 + 0.0152 * new_tokens + 4.2e-7 * new_tokens * new_tokens

    def decode_step_ms(self, batch: float, kv_tokens: float) -> float:
        kv_tokens = min(kv_tokens, 2.06e-4 / (2 * 3.75e-10))
        return 5.74 + 2.06e-4 * kv_tokens - 3.75e-10 * kv_tokens * kv_tokens


ENGINE = Engine()

TICK_S = 2.5
POLICY = Policy(
    objectives=Objectives(ttft_ms=1500, tpot_ms=25), max_gpus=16, prefill=Bounds(1, 15), decode=Bounds(1, 15),
    role_switch=False, start_s=45.0, scale_in_stabilization_s=120.0,
)  # fmt: skip
