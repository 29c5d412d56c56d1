"""What the line of least squares through decode steps needs: five sums. The manager counts them, the planner reads."""

from dataclasses import astuple, dataclass
from typing import Final

TERMS: Final = ("steps", "requests", "seconds", "requests_squared", "request_seconds")
"""Names of the sums: of `StepSums` and of the label ``term`` of ``pointsman_elastic_decode_sums_total``."""


@dataclass(frozen=True, slots=True)
class StepSums:
    """Over steps of single instances: how many, and the sums of requests in it (r), seconds (t), r², and r·t."""

    steps: float
    requests: float
    seconds: float
    requests_squared: float
    request_seconds: float

    @classmethod
    def of_iteration(cls, members: int, requests: int, seconds: float) -> "StepSums":
        """One decode iteration of ``members`` instances, which share its requests."""
        each = requests / members
        return cls(members, requests, members * seconds, members * each * each, requests * seconds)

    def plus(self, other: "StepSums") -> "StepSums":
        """Both together."""
        return StepSums(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def scaled(self, factor: float) -> "StepSums":
        """Each sum times ``factor``."""
        return StepSums(*(factor * each for each in astuple(self)))
