"""What would change a decision: the nearest loads at which ``decide`` itself would choose another layout.

Nothing is modelled twice. A copy of the planner's state is shown the same service under another steady load until it
has settled, then asked; bisection finds where its answer turns.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from pointsman.planner.core.decide import decide
from pointsman.planner.core.engine.performance_model import PerformanceModel
from pointsman.planner.core.engine.startup_time import with_pods_start
from pointsman.planner.core.sizing.pool_targets import Memory
from pointsman.planner.core.state import State
from pointsman.planner.core.types import Decision, Load, Observation, Policy, Uncached, Worker, WorkerCondition
from pointsman.planner.core.workload.arrival_forecast import RateForecaster

WIDEST: Final = 8.0  # loads beyond so many times the present are not tried
# Fields that grow with the tokens of prompts.
_OF_PROMPTS: Final = ("prompt_tokens", "prompt_length_shares", "pulled_tokens", "pulling_s", "uncached")
_OF_UNCACHED: Final = ("prompt_tokens", "tokens", "length_shares", "asked_tokens", "computed_tokens")
L = TypeVar("L", Load, Uncached)


@dataclass(frozen=True, slots=True)
class TurningPoint:
    """At ``value`` (of what was varied) the planner would decide this; before it, not.

    ``already``: it would at the present value too, if no guard deferred it.
    """

    value: float
    decision: Decision
    already: bool = False


@dataclass(frozen=True, slots=True)
class TurningPoints:
    """Where the planner would add or switch workers, and (fewer requests) where it would remove some.

    None: nothing would change within a factor of ``WIDEST``, or the present value is not known.
    """

    more_requests: TurningPoint | None
    fewer_requests: TurningPoint | None
    longer_prompts: TurningPoint | None
    longer_answers: TurningPoint | None


def turning_points(
    state: State, observation: Observation, policy: Policy, base: PerformanceModel | None
) -> TurningPoints | None:
    """Around what was observed last; None when no load was."""
    load = observation.load
    if load is None or load.arrivals_per_s <= 0:
        return None
    # Without the guards that only delay: the question is what is decided, not when.
    calm = with_pods_start(policy, observation.pods_start_s)
    calm = replace(calm, scale_in_stabilization_s=0.0, seasonal=False)
    growing, shrinking = replace(calm, scale_in=False), replace(calm, scale_out=False, role_switch=False)

    def turn(allowed: Policy, widest: float, *fields: str) -> TurningPoint | None:
        """The nearest factor between 1 and ``widest`` at which another layout is decided."""

        def decided(factor: float) -> Decision | None:
            return _settled(state, replace(observation, load=_times(load, factor, fields)), allowed, base)

        present = getattr(load, fields[0])
        if not present:
            return None
        already = decided(1.0)
        if already is not None:
            return TurningPoint(present, already, already=True)
        near, far, found = 1.0, widest, decided(widest)
        if found is None:
            return None
        for _ in range(6):  # to about 3 %
            middle = (near * far) ** 0.5
            answer = decided(middle)
            if answer is None:
                near = middle
            else:
                far, found = middle, answer
        return TurningPoint(present * far, found)

    return TurningPoints(
        more_requests=turn(growing, WIDEST, "arrivals_per_s"),
        fewer_requests=turn(shrinking, 1 / WIDEST, "arrivals_per_s"),
        longer_prompts=turn(growing, WIDEST, *_OF_PROMPTS),
        longer_answers=turn(growing, WIDEST, "output_tokens"),
    )


def _times(of: L, factor: float, fields: Sequence[str]) -> L:
    """With these fields ``factor`` times as large: numbers, (tokens, share) of requests, or None."""

    def larger(value: Any) -> Any:
        if isinstance(value, Uncached):
            return _times(value, factor, _OF_UNCACHED)
        if isinstance(value, tuple):
            return tuple((tokens * factor, share) for tokens, share in value)
        return None if value is None else value * factor

    return replace(of, **{field: larger(getattr(of, field)) for field in fields})


def _settled(state: State, observation: Observation, policy: Policy, base: PerformanceModel | None) -> Decision | None:
    """The first decision that changes the layout once the load has settled; None if it stays."""
    workers = tuple(_serving(worker) for worker in observation.workers)
    settled = replace(
        observation, age_s=0.0, workers=workers, service=None, samples=(), awaiting_approval=None,
        # A page that is lost keeps workers for a moment, which is not the question. One lost for long keeps none.
        old_pages=0, new_gateways=0, unreadable_gateways=(), long_unread=len(observation.encode_workers),
    )  # fmt: skip
    # Steady from the start: what the way there would do to the forecast is not the question.
    # Workers that are taken as arrived have not shown how long a start takes.
    leads = replace(state.leads, starting=())
    state = replace(state, forecaster=RateForecaster(), memory=Memory(), leads=leads)
    # First ticks of the new load, longer ones than live since nothing changes meanwhile. They last for a start-up at
    # least: before that nothing is given back. Then as many as guards count.
    settled_s = max(150.0, 1.1 * leads.lead_s(policy.start_s))
    ticks = [(max(policy.interval_s, settled_s / 30), True)] * 30 + [(policy.interval_s, False)] * 12
    at_s = observation.at_s
    for window_s, settling in ticks:
        at_s += window_s
        seen = replace(settled, at_s=at_s, window_s=window_s, plan_in_progress=settling)
        state, decision, _ = decide(state, seen, policy, at_s, base)
        if decision.changes_layout:
            return decision
    return None


def _serving(worker: Worker) -> Worker:
    """Starting and switching workers have arrived, and all can be read."""
    drains = worker.condition is WorkerCondition.DRAINING
    return worker if drains else replace(worker, condition=WorkerCondition.ACTIVE)
