"""What would change a decision: the nearest loads at which ``decide`` itself would choose another layout.

Nothing is modelled twice. A copy of the planner's state is shown the same service under another steady load until it
has settled, then asked; bisection finds where its answer turns.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from pointsman.planner.core.decide import decide
from pointsman.planner.core.engine.performance_model import PerformanceModel
from pointsman.planner.core.engine.startup_time import with_pods_start
from pointsman.planner.core.sizing.pool_targets import Memory
from pointsman.planner.core.state import State
from pointsman.planner.core.types import Decision, Load, Observation, Policy, Uncached, Worker, WorkerCondition
from pointsman.planner.core.workload.arrival_forecast import RateForecaster

WIDEST = 8.0  # nothing beyond so many times the present is looked at


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
    calm = _calm(with_pods_start(policy, observation.pods_start_s))
    growing, shrinking = replace(calm, scale_in=False), replace(calm, scale_out=False, role_switch=False)

    def asked(changed: Callable[[float], Load], allowed: Policy) -> Callable[[float], Decision | None]:
        return lambda factor: _asked(state, replace(observation, load=changed(factor)), allowed, base)

    rate = load.arrivals_per_s

    def requests(factor: float) -> Load:
        return replace(load, arrivals_per_s=rate * factor)

    return TurningPoints(
        more_requests=_turn(asked(requests, growing), rate, WIDEST),
        fewer_requests=_turn(asked(requests, shrinking), rate, 1 / WIDEST),
        longer_prompts=_turn(asked(lambda f: _prompts(load, f), growing), load.prompt_tokens, WIDEST),
        longer_answers=_turn(asked(lambda f: _answers(load, f), growing), load.output_tokens, WIDEST),
    )


def _prompts(load: Load, factor: float) -> Load:
    return replace(
        load,
        prompt_tokens=None if load.prompt_tokens is None else load.prompt_tokens * factor,
        prompt_length_shares=_times(load.prompt_length_shares, factor),
        pulled_tokens=None if load.pulled_tokens is None else load.pulled_tokens * factor,
        pulling_s=None if load.pulling_s is None else load.pulling_s * factor,
        uncached=None if load.uncached is None else _longer(load.uncached, factor),
    )


def _longer(uncached: Uncached, factor: float) -> Uncached:
    return replace(
        uncached,
        prompt_tokens=uncached.prompt_tokens * factor,
        tokens=uncached.tokens * factor,
        length_shares=_times(uncached.length_shares, factor),
        asked_tokens=uncached.asked_tokens * factor,
        computed_tokens=uncached.computed_tokens * factor,
    )


def _times(lengths: tuple[tuple[float, float], ...], factor: float) -> tuple[tuple[float, float], ...]:
    return tuple((tokens * factor, share) for tokens, share in lengths)


def _answers(load: Load, factor: float) -> Load:
    return replace(load, output_tokens=None if load.output_tokens is None else load.output_tokens * factor)


def _turn(asked: Callable[[float], Decision | None], present: float | None, widest: float) -> TurningPoint | None:
    """Between 1 and ``widest`` times the present: the nearest factor at which the answer is another layout."""
    if present is None or present <= 0:
        return None
    already = asked(1.0)
    if already is not None:
        return TurningPoint(present, already, already=True)
    found = asked(widest)
    if found is None:
        return None
    near, far = 1.0, widest
    for _ in range(6):  # to about 3 %
        middle = (near * far) ** 0.5
        answer = asked(middle)
        if answer is None:
            near = middle
        else:
            far, found = middle, answer
    return TurningPoint(present * far, found)


def _asked(state: State, observation: Observation, policy: Policy, base: PerformanceModel | None) -> Decision | None:
    """The first decision that changes the layout once the load has settled; None if it stays."""
    settled = replace(
        observation,
        age_s=0.0,
        workers=tuple(_serving(worker) for worker in observation.workers),
        service=None,
        samples=(),
        awaiting_approval=None,
    )
    # Steady from the start: what the way there would do to the forecast is not the question.
    # Workers that are taken as arrived have not shown how long a start takes.
    leads = replace(state.leads, starting=())
    state = replace(state, forecaster=RateForecaster(), memory=Memory(), leads=leads)
    # First ticks of the new load, longer ones than live since nothing changes meanwhile. They last for a start-up at
    # least: before that nothing is given back. Then as many as guards count.
    settling_ticks, asking_ticks = 30, 12
    settled_s = max(150.0, 1.1 * leads.lead_s(policy.start_s))
    settling_s = max(policy.interval_s, settled_s / settling_ticks)
    at_s = observation.at_s
    for tick in range(settling_ticks + asking_ticks):
        settling = tick < settling_ticks
        window_s = settling_s if settling else policy.interval_s
        at_s += window_s
        seen = replace(settled, at_s=at_s, window_s=window_s, plan_in_progress=settling)
        state, decision, _ = decide(state, seen, policy, at_s, base)
        if decision.changes_layout:
            return decision
    return None


def _serving(worker: Worker) -> Worker:
    """What is on its way has arrived."""
    arriving = worker.condition in (WorkerCondition.STARTING, WorkerCondition.SWITCHING)
    return replace(worker, condition=WorkerCondition.ACTIVE if arriving else worker.condition, role_since_s=None)


def _calm(policy: Policy) -> Policy:
    """Without the guards that only delay: the question is what is decided, not when."""
    return replace(policy, scale_in_stabilization_s=0.0, min_dwell_s=0.0, opposite_after_s=0.0, seasonal=False)
