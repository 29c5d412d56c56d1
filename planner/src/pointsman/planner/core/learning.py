"""A performance model learned from the running service alone, for when no table fits it.

Two least-squares lines with forgetting: ``prefill = a + b·n`` and ``decode step = d0 + d1·B``. One observation already
gives a usable slope (through the origin), none gives none: ``model`` is None until both roles were seen. Coefficients
are kept at 0 or above, since no engine gets faster by more work.
"""

from dataclasses import dataclass, replace

from pointsman.planner.core.performance import LinearModel
from pointsman.planner.core.types import EngineSample, WorkerRole

FORGETTING = 0.97  # of the past, per observation: a memory of about 33 observations
PRIOR_WEIGHT = 1e-3
PREFILL_FIXED_SHARE = 0.0  # a prompt's time is proportional to its length until it is known better
STEP_FIXED_SHARE = 0.8  # a decode step mostly reads weights: 5.5 ms alone, 7 ms for eight (26 M model on CPU)


@dataclass(frozen=True, slots=True)
class Line:
    """``y = intercept + slope·x`` by weighted sums; forgetting is on the sums."""

    weight: float = 0.0
    x: float = 0.0
    y: float = 0.0
    xx: float = 0.0
    xy: float = 0.0

    def observe(self, x: float, y: float) -> "Line":
        """Take one point."""
        f = FORGETTING
        return Line(f * self.weight + 1, f * self.x + x, f * self.y + y, f * self.xx + x * x, f * self.xy + x * y)

    def fit(self, fixed_share: float) -> tuple[float, float] | None:
        """(intercept, slope), neither below 0; None before the first point.

        While only one value of x was seen, ``fixed_share`` of y is taken as intercept and the rest as slope.
        """
        if self.weight <= 0 or self.xx <= 0:
            return None
        spread = self.weight * self.xx - self.x * self.x
        through_origin = self.xy / self.xx
        if spread <= PRIOR_WEIGHT * self.weight * self.xx:
            return fixed_share * self.y / self.weight, (1 - fixed_share) * through_origin
        slope = (self.weight * self.xy - self.x * self.y) / spread
        intercept = (self.y - slope * self.x) / self.weight
        if slope < 0:
            return self.y / self.weight, 0.0
        if intercept < 0:
            return 0.0, through_origin
        return intercept, slope


@dataclass(frozen=True, slots=True)
class Learner:
    """What the service itself taught. ``steps`` is a decode step's time over its batch."""

    prefills: Line = Line()
    steps: Line = Line()

    def observe(self, sample: EngineSample) -> "Learner":
        """Take one measurement; one that cannot be a time is not taken."""
        if not 0 < sample.observed_ms < 1e7:
            return self
        if sample.role is WorkerRole.PREFILL:
            return replace(self, prefills=self.prefills.observe(sample.tokens, sample.observed_ms))
        return replace(self, steps=self.steps.observe(sample.batch, sample.observed_ms))

    @property
    def model(self) -> LinearModel | None:
        """The learned model; None until both a prefill and a decode step were measured."""
        prefill, step = self.prefills.fit(PREFILL_FIXED_SHARE), self.steps.fit(STEP_FIXED_SHARE)
        if prefill is None or step is None:
            return None
        return LinearModel(
            prefill_a=prefill[0],
            prefill_b=prefill[1],
            prefill_c=0.0,
            decode_d0=step[0],
            decode_d1=step[1],
            decode_d2=0.0,
        )
