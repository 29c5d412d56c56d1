"""How long a decode step of one instance takes by the requests in it: the line of least squares through all steps.

The manager adds up what the line needs (`pointsman_elastic_decode_sums_total`), so no single step is sent or kept.
"""

import math
from dataclasses import dataclass
from typing import Final

from pointsman.serving.elastic.step_sums import StepSums

NOTHING: Final = StepSums(0.0, 0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class StepTime:
    """``sums``: of all looks, the newest weighs most."""

    sums: StepSums = NOTHING

    def observe(self, added: StepSums) -> "StepTime":
        """Take what the manager counted since the last look; nothing fades while it decodes nothing."""
        return self if added.steps <= 0 else StepTime(self.sums.scaled(0.98).plus(added))

    @property
    def line(self) -> tuple[float, float] | None:
        """(seconds of any step, seconds for each request in it); None: nothing was measured.

        While the batches hardly differ, the whole time is taken to be the requests': twice as many take twice as long.
        """
        sums = self.sums
        if sums.steps <= 0 or sums.requests <= 0:
            return None
        batch, variance = self._batch
        if not self.slope_is_known:
            return 0.0, self.mean_s / batch
        slope = (sums.request_seconds / sums.steps - batch * self.mean_s) / variance
        slope = min(max(slope, 0.0), self.mean_s / batch)
        return self.mean_s - slope * batch, slope

    @property
    def mean_s(self) -> float:
        """Seconds of a step."""
        return self.sums.seconds / self.sums.steps

    @property
    def slope_is_known(self) -> bool:
        """Whether the batches differed enough, by a fifth of their mean."""
        batch, variance = self._batch
        return variance >= (0.2 * batch) ** 2

    @property
    def _batch(self) -> tuple[float, float]:
        """Mean and variance of the requests in a step."""
        mean = self.sums.requests / self.sums.steps
        return mean, self.sums.requests_squared / self.sums.steps - mean * mean

    def batch(self, seconds: float) -> float:
        """Requests in a step of so many seconds."""
        fixed, each = self.line or (math.inf, 0.0)
        if fixed >= seconds:
            return 0.0
        return min(1024.0, (seconds - fixed) / each) if each > 0 else 1024.0
