"""The planner's own account: what it said that clients would get, beside what they got.

In Shadow this is what a policy is judged by: had its plans been carried out, what would have been kept within
objectives, and how far is its word to be trusted?
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Score:
    """Shares of requests within objectives, means over the last requests; None: nothing was compared yet.

    ``predicted``: for the workers that served, ``observed``: what clients got, ``error``: mean distance of the two in
    single looks, ``if_executed``: for the workers that decisions would have made, where they are not carried out.
    """

    predicted: float | None = None
    observed: float | None = None
    error: float | None = None
    if_executed: float | None = None

    def observe(self, predicted: float, if_executed: float | None, observed: float, requests: float) -> "Score":
        """Take one look, of so many ``requests``; ``if_executed`` None: decisions are carried out."""
        weight = min(1.0, requests / 500)

        def mean(so_far: float | None, value: float) -> float:
            return value if so_far is None else so_far + weight * (value - so_far)

        return Score(
            mean(self.predicted, predicted),
            mean(self.observed, observed),
            mean(self.error, abs(observed - predicted)),
            None if if_executed is None else mean(self.if_executed, if_executed),
        )
