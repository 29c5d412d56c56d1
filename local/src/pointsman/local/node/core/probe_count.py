"""Counting a probe's answers up to its thresholds."""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class ProbeCount:
    """``verdict`` is None until a threshold is reached for the first time; ``streak`` equal answers came last."""

    success_threshold: int
    failure_threshold: int
    verdict: bool | None = None
    last: bool | None = None
    streak: int = 0

    def after(self, success: bool) -> "ProbeCount":
        """With one more answer."""
        streak = self.streak + 1 if success == self.last else 1
        enough = streak >= (self.success_threshold if success else self.failure_threshold)
        return replace(self, verdict=success if enough else self.verdict, last=success, streak=streak)
