"""The planner's own account: what it said that clients would get, beside what they got.

In Shadow this is what a policy is judged by: had its plans been carried out, what would have been kept within
objectives, and how far is its word to be trusted?
"""

from dataclasses import astuple, dataclass, replace

from pointsman.planner.core.types import Objectives, Service


@dataclass(frozen=True, slots=True)
class Score:
    """Shares of requests within the objectives, means over about the last 500 requests; None: nothing was compared.

    ``predicted``: for the workers that served, ``observed``: what clients got, ``error``: mean distance of the two in
    single looks, ``if_executed``: for the workers that decisions would have made, where they are not carried out.
    ``requests``: behind the means; ``objectives``: the numbers of those that it was compared with.
    """

    predicted: float | None = None
    observed: float | None = None
    error: float | None = None
    if_executed: float | None = None
    requests: float = 0.0
    objectives: tuple[float, ...] = ()

    def observe(
        self, predicted: float, if_executed: float | None, service: Service, requests: float, objectives: Objectives
    ) -> "Score":
        """Take one look, of so many ``requests``; ``if_executed`` None: decisions are carried out.

        Where no request ended, nothing is compared; what the virtual fleet would have kept counts all the same.
        What was counted against other objectives is forgotten.
        """
        known = self if self.objectives == astuple(objectives) else Score(objectives=astuple(objectives))
        count = min(known.requests + requests, 500.0)

        def mean(so_far: float | None, value: float) -> float:
            return value if so_far is None else so_far + min(1.0, requests / max(1.0, count)) * (value - so_far)

        known = replace(known, if_executed=None if if_executed is None else mean(known.if_executed, if_executed))
        if service.attainment is None:
            return known
        return replace(
            known,
            predicted=mean(known.predicted, predicted),
            observed=mean(known.observed, service.attainment),
            error=mean(known.error, abs(service.attainment - predicted)),
            requests=count,
        )
