"""The planner's own account: what it said that clients would get, beside what they got.

In Shadow this is what a policy is judged by: had its plans been carried out, what would have been kept within
objectives, and how far is its word to be trusted?
"""

from dataclasses import astuple, dataclass, replace

from pointsman.planner.core.types import Objectives, Service


@dataclass(frozen=True, slots=True)
class Score:
    """Shares of requests within the objectives, means over the last requests; None: nothing was compared yet.

    ``predicted``: for the workers that served, ``observed``: what clients got, ``error``: mean distance of the two in
    single looks, ``if_executed``: for the workers that decisions would have made, where they are not carried out.
    ``objectives``: the numbers of those that it was compared with.
    """

    predicted: float | None = None
    observed: float | None = None
    error: float | None = None
    if_executed: float | None = None
    objectives: tuple[float, ...] = ()

    def observe(
        self,
        predicted: float,
        if_executed: float | None,
        service: Service,
        requests: float,
        objectives: Objectives,
    ) -> "Score":
        """Take one look, of so many ``requests``; ``if_executed`` None: decisions are carried out.

        Where no request ended, nothing is compared; what the virtual fleet would have kept counts all the same.
        What was counted against other objectives is forgotten.
        """
        known = self if self.objectives in ((), astuple(objectives)) else Score()
        weight = min(1.0, requests / 500)

        def mean(so_far: float | None, value: float) -> float:
            return value if so_far is None else so_far + weight * (value - so_far)

        executed = None if if_executed is None else mean(known.if_executed, if_executed)
        if service.attainment is None:
            return replace(known, if_executed=executed, objectives=astuple(objectives))
        return Score(
            mean(known.predicted, predicted),
            mean(known.observed, service.attainment),
            mean(known.error, abs(service.attainment - predicted)),
            executed,
            astuple(objectives),
        )
