"""Times of the engine in the usual roofline form: three coefficients each."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LinearModel:
    """``prefill = max(floor, a + b·n + c·(n·p + n²/2))``, ``decode step = d0 + d1·B + d2·K``; coefficients in ms."""

    prefill_a: float
    prefill_b: float
    prefill_c: float
    decode_d0: float
    decode_d1: float
    decode_d2: float
    prefill_floor_ms: float = 0.0

    def __post_init__(self) -> None:
        for name in ("prefill_a", "prefill_b", "prefill_c", "decode_d0", "decode_d1", "decode_d2", "prefill_floor_ms"):
            value = getattr(self, name)
            if not math.isfinite(value) or value < 0:
                raise ValueError(f"{name} is {value}: it must be a finite number of milliseconds, 0 or more")

    def prefill_ms(self, new_tokens: float, prefix_tokens: float) -> float:
        attention = new_tokens * prefix_tokens + new_tokens * new_tokens / 2
        return max(self.prefill_floor_ms, self.prefill_a + self.prefill_b * new_tokens + self.prefill_c * attention)

    def decode_step_ms(self, batch: float, kv_tokens: float) -> float:
        return self.decode_d0 + self.decode_d1 * batch + self.decode_d2 * kv_tokens
