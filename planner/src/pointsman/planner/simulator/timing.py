"""Times of the simulated engine: the performance model times what the truth makes of it, as fast as a table look-up.

Checked against the mixed-step columns of the shipped tables: a step that decodes and prefills takes the decode step
plus the prefill without its fixed part.
"""

import math
from dataclasses import dataclass
from random import Random

from pointsman.planner.core.engine.performance_model import PerformanceModel
from pointsman.planner.simulator.types import Engine, Truth

NODES = 128  # per batch size, over the KV cache's capacity


@dataclass(frozen=True, slots=True)
class TrueModel:
    """The engine's true times, as somebody has them who measured it."""

    believed: PerformanceModel
    truth: Truth

    def prefill_ms(self, new_tokens: float, prefix_tokens: float) -> float:
        return self.believed.prefill_ms(new_tokens, prefix_tokens) * self.truth.prefill_kappa

    def decode_step_ms(self, batch: float, kv_tokens: float) -> float:
        return self.believed.decode_step_ms(batch, kv_tokens) * self.truth.decode_kappa


class Timing:
    """Seconds of batches and steps.

    Decode steps are tabulated per batch size over the KV tokens, linear between nodes.
    """

    def __init__(self, engine: Engine, truth: Truth, rng: Random) -> None:
        self._model = engine.performance
        self._prefill_s = truth.prefill_kappa / 1000
        self._decode_s = truth.decode_kappa / 1000
        self._sigma = truth.noise_sigma
        self._rng = rng
        self._node_tokens = max(engine.kv_capacity_tokens / NODES, 1.0)
        self._rows: list[list[float] | None] = [None] * (engine.max_batch + 1)
        self.prefill_fixed_s = self._model.prefill_ms(0, 0) * self._prefill_s

    def prefill_work_s(self, new_tokens: float, prefix_tokens: float) -> float:
        """What a prompt adds to the time of the batch or step it is in.

        The batch's fixed part is ``prefill_fixed_s``.
        """
        took = self._model.prefill_ms(new_tokens, prefix_tokens) * self._prefill_s - self.prefill_fixed_s
        return took if took > 0 else 0.0

    def step_s(self, batch: int, kv_tokens: float) -> float:
        """One decode step of ``batch`` ≥ 1 sequences holding ``kv_tokens`` tokens."""
        row = self._rows[batch]
        if row is None:
            row = self._rows[batch] = [
                self._model.decode_step_ms(batch, node * self._node_tokens) * self._decode_s
                for node in range(NODES + 1)
            ]
        position = kv_tokens / self._node_tokens
        node = min(int(position), NODES - 1)
        return row[node] + (position - node) * (row[node + 1] - row[node])

    def noise(self) -> float:
        """A factor for one batch or segment: log-normal with median 1; exactly 1 without noise."""
        return math.exp(self._rng.gauss(0.0, self._sigma)) if self._sigma > 0 else 1.0
