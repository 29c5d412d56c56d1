"""One decision about an elastic group: how many instances, why, and what else was considered."""

from dataclasses import dataclass, field, replace
from typing import Final

from pointsman.planner.core.elastic.choice import Choice, stays
from pointsman.planner.core.elastic.derating import Margin
from pointsman.planner.core.elastic.sizing import Expected, GroupLoad, GroupModel, StepTime
from pointsman.planner.core.elastic.types import GroupDecision, GroupObservation
from pointsman.planner.core.engine.startup_time import Leads
from pointsman.planner.core.messages import decisions, groups
from pointsman.planner.core.tuning import Tuning
from pointsman.planner.core.types import Bounds, Load, Policy, Reason
from pointsman.planner.core.workload.arrival_forecast import RateForecaster
from pointsman.planner.core.workload.request_lengths import Lengths
from pointsman.serving.words import quantity

GROUP_STATE_VERSION: Final = 2


@dataclass(frozen=True, slots=True)
class GroupState:
    """What is remembered of a group between looks. ``wanted``: (when, instances) of the looks that still count."""

    version: int = GROUP_STATE_VERSION
    forecaster: RateForecaster = field(default_factory=RateForecaster)
    lengths: Lengths = field(default_factory=Lengths)
    steps: StepTime = field(default_factory=StepTime)
    leads: Leads = field(default_factory=Leads)
    margin: Margin = field(default_factory=Margin)
    wanted: tuple[tuple[float, int], ...] = ()
    unwanted_s: float | None = None  # for how long the plan that awaits approval was not wanted


def decide(
    state: GroupState, observation: GroupObservation, policy: Policy, bounds: Bounds, now_s: float
) -> tuple[GroupState, GroupDecision]:
    """One look. Never raises for what it does not know: it holds still and says so."""
    seen, unwanted_s = observation.seen, state.unwanted_s
    leads = state.leads.look(observation.instances, now_s, policy.interval_s, policy.start_s, policy.tuning)
    lead_s = leads.lead_s(policy.start_s)
    # The time that a plan was not wanted begins anew, unless this look shows that it still is not.
    state = replace(state, leads=leads, unwanted_s=None)
    observation = replace(observation, stuck=leads.stuck(now_s, policy.start_s, policy.tuning))
    if seen.load is None or seen.age_s > policy.stale_after_s:
        gap = state.forecaster.observe(None, policy.interval_s, now_s, policy.tuning)
        stale = decisions.metrics_stale(seen.age_s, policy.stale_after_s)
        why = stale if seen.age_s > policy.stale_after_s else decisions.LOAD_UNREADABLE
        return replace(state, forecaster=gap), stays(observation, Reason.STALE_METRICS, why)
    state = _learned(state, observation, seen.load, now_s, policy.tuning)
    model = _model(state, observation, policy)
    forecaster = state.forecaster
    if forecaster.trend is None or isinstance(model, str) or state.lengths.prompt_tokens is None:
        why = model if isinstance(model, str) else groups.NO_REQUEST
        return state, stays(observation, Reason.NOT_ENOUGH_DATA, why)
    waiting = observation.manager.waiting if observation.manager else 0.0
    expected_per_s = forecaster.expected(lead_s + policy.interval_s, policy.tuning)
    # Waiting requests are to be computed by the time that a new instance would serve.
    rate_per_s = expected_per_s + waiting / max(lead_s, seen.window_s)
    load = GroupLoad(
        rate_per_s=rate_per_s / state.margin.share,
        lengths=state.lengths.shares,
        output_tokens=max(1.0, state.lengths.output_tokens or 1.0),
        arrival_scv=forecaster.dispersion,
        waiting=waiting,
    )
    bounds = replace(bounds, most=max(bounds.least, min(bounds.most, policy.max_gpus // observation.gpus_each)))
    needed = model.needed(load, bounds.most, policy.tuning)
    stable_s = max(policy.scale_in_stabilization_s, lead_s)
    # Those that remain must be enough for a little more than is expected, or the next look starts one again.
    more = replace(load, rate_per_s=policy.tuning.rate_headroom * load.rate_per_s)
    minimum = max(needed.instances, model.needed(more, bounds.most, policy.tuning).instances)
    # While some gateways are not read, their requests may need the instances that are there.
    wanted = max(minimum, observation.desired if seen.unread_gateways else 0)
    recent = (*(each for each in state.wanted if each[0] > now_s - stable_s), (now_s, wanted))
    margin = state.margin.interrupted()
    if needed.instances <= observation.serving and not seen.unread_gateways:
        answer_s = load.output_tokens * policy.objectives.tpot_ms / 1000
        margin = state.margin.observe(seen, policy, answer_s, now_s)
    state = replace(state, wanted=recent, margin=margin)
    choice = Choice(observation, policy, bounds, model, load, needed, minimum, recent, stable_s, lead_s)
    decision = choice.decision()
    if observation.stuck:
        decision = replace(decision, message=groups.stuck_instances(decision.message, sorted(observation.stuck)))
    inputs = (("ratePerSecond", expected_per_s), *_inputs(state, model, load, needed), ("leadSeconds", lead_s))
    decision = replace(decision, inputs=inputs, alternatives=choice.alternatives(decision.instances))
    return _awaiting(state, unwanted_s, decision, observation, policy)


def _learned(state: GroupState, observation: GroupObservation, load: Load, now_s: float, tuning: Tuning) -> GroupState:
    window_s = observation.seen.window_s
    manager, trend, arrivals_per_s = observation.manager, state.forecaster.trend, load.arrivals_per_s
    if observation.seen.new_gateways and trend is not None:
        arrivals_per_s = max(arrivals_per_s, trend.level)  # requests at new gateways are not counted yet
    return replace(
        state,
        forecaster=state.forecaster.observe(arrivals_per_s * window_s, window_s, now_s, tuning),
        lengths=state.lengths.observe(load, window_s, now_s, tuning),
        steps=state.steps if manager is None else state.steps.observe(manager.steps),
    )


def _model(state: GroupState, observation: GroupObservation, policy: Policy) -> GroupModel | str:
    """The model, or what is not known yet."""
    manager, serving = observation.manager, observation.serving
    if not serving:
        return groups.NO_INSTANCE
    if manager is None or manager.slots <= 0:
        return groups.NO_REPORT
    if not observation.latency.by_degree:
        return groups.NO_PREFILL
    if state.steps.line is None:
        return groups.NO_STEP
    slots_each, objectives = manager.slots / serving, policy.objectives
    return GroupModel(observation.latency, observation.max_degree, state.steps, slots_each, serving, objectives)


def _inputs(state: GroupState, model: GroupModel, load: GroupLoad, needed: Expected) -> tuple[tuple[str, float], ...]:
    fixed_s, each_s = model.step.line or (0.0, 0.0)
    return (
        ("highRatePerSecond", load.rate_per_s),
        ("promptTokens", sum(length * share for length, share in load.lengths)),
        ("outputTokens", load.output_tokens),
        ("stepSeconds", fixed_s),
        ("stepSecondsPerRequest", each_s),
        ("slotsPerInstance", model.slots_each),
        ("waitingRequests", load.waiting),
        ("instancesNeeded", float(needed.instances)),
        ("expectedPrompts", needed.prompts),
        ("expectedTokens", needed.tokens),
        ("expectedMemory", needed.memory),
        ("share", state.margin.share),
    )


def _awaiting(
    state: GroupState, unwanted_s: float | None, decision: GroupDecision, observation: GroupObservation, policy: Policy
) -> tuple[GroupState, GroupDecision]:
    """The decision beside the plan that awaits approval: the same change is not planned again, and a plan that was not
    wanted for as long as a scale-in waits is withdrawn."""
    asked = observation.awaiting_approval
    if decision.changes_layout and decision.instances == asked and observation.needs_approval:
        message = decisions.awaits_approval(decision.message)
        decision = decision.without_change((observation.desired,))
        return state, replace(decision, reason=Reason.AWAITING_APPROVAL, message=message)
    # With a part of the load not known, the plan may be needed.
    if asked is None or decision.reason is not Reason.STEADY or observation.seen.unread_gateways:
        return state, decision
    unwanted_s = 0.0 if unwanted_s is None else unwanted_s + observation.seen.window_s
    if unwanted_s < policy.scale_in_stabilization_s:
        return replace(state, unwanted_s=unwanted_s), decision
    message = decisions.withdrawn(quantity(asked, "instance"), unwanted_s, decision.message)
    return state, replace(decision, reason=Reason.WITHDRAWN, message=message, withdraws=True)
