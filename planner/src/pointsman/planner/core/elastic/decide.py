"""One decision about an elastic group: how many instances, why, and what else was considered."""

import math
from dataclasses import dataclass, field, replace
from typing import Final

from pointsman.planner.core.elastic.derating import Margin
from pointsman.planner.core.elastic.sizing import Expected, GroupLoad, GroupModel
from pointsman.planner.core.elastic.steps import StepTime
from pointsman.planner.core.elastic.types import GroupDecision, GroupObservation
from pointsman.planner.core.engine.startup_time import Leads
from pointsman.planner.core.messages import decisions, groups
from pointsman.planner.core.tuning import Tuning
from pointsman.planner.core.types import Alternative, Bounds, Load, Observation, Policy, Reason
from pointsman.planner.core.workload.arrival_forecast import RateForecaster
from pointsman.planner.core.workload.request_lengths import Lengths

GROUP_STATE_VERSION: Final = 1


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
    unwanted_s: float | None = None  # for how long the plan that waits for a person was not wanted


def decide(
    state: GroupState, observation: GroupObservation, policy: Policy, bounds: Bounds, now_s: float
) -> tuple[GroupState, GroupDecision]:
    """One look. Never raises for what it does not know: it holds still and says so."""
    seen = observation.seen
    leads = state.leads.look(observation.instances, now_s, policy.interval_s, policy.start_s, policy.tuning)
    lead_s = leads.lead_s(policy.start_s)
    state = replace(state, leads=leads)
    observation = replace(observation, stuck=leads.stuck(now_s, policy.start_s, policy.tuning))
    if seen.load is None or seen.age_s > policy.stale_after_s:
        gap = state.forecaster.observe(None, policy.interval_s, now_s, policy.tuning)
        return replace(state, forecaster=gap, unwanted_s=None), _stays(observation, Reason.STALE_METRICS, _why(seen))
    state = _learned(state, observation, seen.load, now_s, policy.tuning)
    model = _model(state, observation)
    forecaster = state.forecaster
    if forecaster.trend is None or isinstance(model, str) or state.lengths.prompt_tokens is None:
        missing = model if isinstance(model, str) else groups.NO_REQUEST
        return replace(state, unwanted_s=None), _stays(observation, Reason.NOT_ENOUGH_DATA, groups.not_known(missing))
    waiting = observation.manager.waiting if observation.manager else 0.0
    expected_per_s = forecaster.expected(lead_s + policy.interval_s, policy.tuning)
    # What waits is to be computed by the time that a new instance would serve.
    rate_per_s = expected_per_s + waiting / max(lead_s, seen.window_s)
    load = GroupLoad(
        rate_per_s=rate_per_s / state.margin.share,
        lengths=state.lengths.shares,
        output_tokens=max(1.0, state.lengths.output_tokens or 1.0),
        arrival_scv=forecaster.dispersion,
    )
    most = max(bounds.least, min(bounds.most, policy.max_gpus // observation.gpus_each))
    needed = model.needed(load, policy.objectives, most)
    stable_s = max(policy.scale_in_stabilization_s, lead_s)
    recent = tuple(each for each in state.wanted if each[0] > now_s - stable_s)
    margin = _margin(state, observation, policy, needed.instances, now_s, load)
    # While some gateways are not read, what is there may be needed for what they ask.
    wanted = max(needed.instances, observation.desired if seen.unread_gateways else 0)
    state = replace(state, wanted=(*recent, (now_s, wanted)), margin=margin)
    inputs = _inputs(state, observation, model, load, needed, expected_per_s, lead_s)
    decision = _chosen(state, observation, policy, bounds, needed, most, stable_s)
    if observation.stuck:
        decision = replace(decision, message=groups.stuck_instances(decision.message, sorted(observation.stuck)))
    considered = _alternatives(model, load, policy, decision, most, lead_s, observation)
    return _awaiting(state, replace(decision, inputs=inputs, alternatives=considered), observation, policy)


def _why(seen: Observation) -> str:
    if math.isinf(seen.age_s):
        return groups.METRICS_NEVER_READ
    if seen.load is None:
        return decisions.load_unreadable()
    return groups.metrics_stale(seen.age_s)


def _learned(state: GroupState, observation: GroupObservation, load: Load, now_s: float, tuning: Tuning) -> GroupState:
    window_s = observation.seen.window_s
    manager, trend, arrivals_per_s = observation.manager, state.forecaster.trend, load.arrivals_per_s
    if observation.seen.new_gateways and trend is not None:
        arrivals_per_s = max(arrivals_per_s, trend.level)  # what new gateways got is not counted yet
    return replace(
        state,
        forecaster=state.forecaster.observe(arrivals_per_s * window_s, window_s, now_s, tuning),
        lengths=state.lengths.observe(load, window_s, now_s, tuning),
        steps=state.steps if manager is None else state.steps.observe(manager.steps),
    )


def _model(state: GroupState, observation: GroupObservation) -> GroupModel | str:
    """The model, or what is not known yet."""
    manager = observation.manager
    if not observation.serving:
        return groups.NO_INSTANCE
    if manager is None or manager.slots <= 0:
        return groups.NO_REPORT
    if not observation.latency.by_degree:
        return groups.NO_PREFILL
    if state.steps.line is None:
        return groups.NO_STEP
    slots_each = manager.slots / observation.serving
    return GroupModel(observation.latency, observation.max_degree, state.steps, slots_each, observation.serving)


def _margin(
    state: GroupState, observation: GroupObservation, policy: Policy, needed: int, now_s: float, load: GroupLoad
) -> Margin:
    """What clients got says whether instances do what the model says; see `derating.py`."""
    service, arrived = observation.seen.service, observation.seen.load
    shares = (service.ttft_attainment, service.tpot_attainment) if service else (None, None)
    if needed > observation.serving or observation.seen.unread_gateways:
        return state.margin.interrupted()
    if arrived is None or shares[0] is None or shares[1] is None or observation.seen.old_pages:
        return state.margin  # nobody got an answer in this window, or a part of it was judged before
    window_s = observation.seen.window_s
    answer_s = load.output_tokens * policy.objectives.tpot_ms / 1000
    requests = arrived.arrivals_per_s * window_s
    goal = policy.objectives.attainment
    return state.margin.observe(shares[0] * shares[1], requests, window_s, goal, now_s, answer_s, policy.tuning)


def _chosen(
    state: GroupState,
    observation: GroupObservation,
    policy: Policy,
    bounds: Bounds,
    needed: Expected,
    most: int,
    stable_s: float,
) -> GroupDecision:
    now, goal = observation.desired, policy.objectives.attainment
    wanted = min(max(needed.instances, bounds.least), most)
    highest = max(wanted, min(most, _with(max(number for _, number in state.wanted), observation.stuck)))
    keeps, short = needed.attainment, needed.attainment < goal
    if observation.seen.plan_in_progress and not observation.starting:
        return _stays(observation, Reason.PLAN_IN_PROGRESS, decisions.plan_executing())
    if wanted > now and policy.scale_out:
        message = groups.too_few(now, wanted, keeps)
        if short:
            message = groups.most_allowed(message, goal)
        return GroupDecision(Reason.INSTANCES_SHORT, message, wanted, changes_layout=True)
    if short and wanted == now:
        return _stays(observation, Reason.UNSATISFIABLE, groups.not_enough(now, keeps, goal))
    if wanted > now:
        return _stays(observation, Reason.STEADY, groups.no_scale_out(wanted))
    if highest < now and policy.scale_in and not observation.starting and not observation.seen.unread:
        (first_s, _), (last_s, _) = state.wanted[0], state.wanted[-1]
        if last_s - first_s >= 0.9 * stable_s:  # most of that time was looked at
            return GroupDecision(Reason.SPARE_CAPACITY, groups.spare(highest, stable_s), highest, changes_layout=True)
    message = groups.waiting(wanted) if wanted < now else groups.steady(wanted, keeps)
    return _stays(observation, Reason.STEADY, message)


def _with(working: int, stuck: frozenset[str]) -> int:
    """Instances to leave so that ``working`` of them are not stuck: those of the highest ordinals go first."""
    asked = working
    for ordinal in sorted(int(name.rpartition("-")[2]) for name in stuck):
        asked += ordinal < asked
    return asked


def _stays(observation: GroupObservation, reason: Reason, message: str) -> GroupDecision:
    return GroupDecision(reason, message, observation.desired)


def _inputs(
    state: GroupState,
    observation: GroupObservation,
    model: GroupModel,
    load: GroupLoad,
    needed: Expected,
    expected_per_s: float,
    lead_s: float,
) -> tuple[tuple[str, float], ...]:
    fixed, each = model.step.line or (0.0, 0.0)
    prompt = sum(length * share for length, share in load.lengths)
    return (
        ("ratePerSecond", expected_per_s),
        ("highRatePerSecond", load.rate_per_s),
        ("promptTokens", prompt),
        ("outputTokens", load.output_tokens),
        ("stepSeconds", fixed),
        ("stepSecondsPerRequest", each),
        ("slotsPerInstance", model.slots_each),
        ("waitingRequests", observation.manager.waiting if observation.manager else 0.0),
        ("instancesNeeded", float(needed.instances)),
        ("expectedPrompts", needed.prompts),
        ("expectedTokens", needed.tokens),
        ("expectedMemory", needed.memory),
        ("share", state.margin.share),
        ("leadSeconds", lead_s),
    )


def _alternatives(
    model: GroupModel,
    load: GroupLoad,
    policy: Policy,
    decision: GroupDecision,
    most: int,
    lead_s: float,
    observation: GroupObservation,
) -> tuple[Alternative, ...]:
    """The chosen number first, then its neighbours."""
    chosen, now, goal = decision.instances, observation.desired, policy.objectives.attainment
    found = []
    around = range(max(1, chosen - 2), min(most, chosen + 2) + 1)
    for instances in sorted({chosen, now, *around}, key=lambda number: (number != chosen, number)):
        kept = model.expected(load, policy.objectives, instances).attainment
        why = ""
        if instances != chosen:
            why = groups.keeps_fewer(goal) if kept < goal else groups.enough(chosen)
            if instances < chosen and kept >= goal:
                why = groups.NEEDED_RECENTLY
        action = "stay" if instances == now else "scale-out" if instances > now else "scale-in"
        gpus = instances * observation.gpus_each
        starts_s = lead_s if instances > now else 0.0
        found.append(Alternative(0, 0, gpus, kept, starts_s, action, why, instances=instances))
    return tuple(found)


def _awaiting(
    state: GroupState, decision: GroupDecision, observation: GroupObservation, policy: Policy
) -> tuple[GroupState, GroupDecision]:
    """Say that a person has the plan already; withdraw it when it was not wanted for as long as a scale-in takes."""
    asked = observation.awaiting_approval
    if asked is None:
        return replace(state, unwanted_s=None), decision
    if decision.changes_layout and decision.instances == asked:
        stays = _stays(observation, Reason.AWAITING_APPROVAL, decisions.awaits_approval(decision.message))
        return replace(state, unwanted_s=None), replace(
            stays, inputs=decision.inputs, alternatives=decision.alternatives
        )
    known = not observation.seen.unread_gateways  # of a part of the load nobody knows what is not wanted
    if decision.changes_layout or decision.reason is not Reason.STEADY or not known:
        return replace(state, unwanted_s=None), decision
    unwanted_s = 0.0 if state.unwanted_s is None else state.unwanted_s + observation.seen.window_s
    if unwanted_s < policy.scale_in_stabilization_s:
        return replace(state, unwanted_s=unwanted_s), decision
    message = groups.withdrawn(asked, unwanted_s, decision.message)
    withdrawn = replace(decision, reason=Reason.WITHDRAWN, message=message, withdraws=True)
    return replace(state, unwanted_s=None), withdrawn
