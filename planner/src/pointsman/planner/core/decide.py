"""One decision: what is seen, what is expected, what was considered, what is chosen and why.

The ladder, cheapest and fastest first: flow control and the threshold (next request), a role switch (seconds),
scale-out (minutes), scale-in (only when the load stayed low). Each tick takes the lowest rung that brings the
objectives back.
"""

from dataclasses import replace

from pointsman.api.protocol.names import LANGUAGE_ROLES, Role
from pointsman.api.v1alpha1.plannerpolicy import Mode
from pointsman.planner.core.encode.decision import add_encode_decision, keep_encode_pool, shared
from pointsman.planner.core.encode.target import EncodeTarget, target
from pointsman.planner.core.engine.performance_model import PerformanceModel
from pointsman.planner.core.engine.startup_time import with_pods_start
from pointsman.planner.core.hysteresis import RaiseHoldoff
from pointsman.planner.core.layout.choose import layout
from pointsman.planner.core.layout.plan_withdrawal import withdrawal
from pointsman.planner.core.layout.stuck_starts import add_stuck_workers, exclude_stuck_workers
from pointsman.planner.core.layout.unread_gateways import without_removals
from pointsman.planner.core.messages import decisions
from pointsman.planner.core.prediction_score import Score
from pointsman.planner.core.routing.flow_bounds import flow_bounds, queue_limit
from pointsman.planner.core.routing.prefill_threshold import threshold
from pointsman.planner.core.routing.prefill_token_budget import prefill_token_budget
from pointsman.planner.core.sizing.backlog import held, most_queued, prefill_wait_ms, waiting
from pointsman.planner.core.sizing.demand import (
    DemandSnapshot,
    Pool,
    deviations,
    kept_s,
    reachable_attainment,
)
from pointsman.planner.core.sizing.operating_point import OperatingPoint, operating_point
from pointsman.planner.core.sizing.pool_targets import Targets, targets
from pointsman.planner.core.state import State, horizon_s, learn, model_of, seasonal, seen_starting, seen_switching
from pointsman.planner.core.types import (
    Decision,
    Load,
    NextTick,
    Observation,
    Policy,
    Reason,
    RoutingNumbers,
    Service,
    WorkerCondition,
)
from pointsman.planner.core.virtual_fleet import VirtualFleet
from pointsman.serving.flow_control import UNBOUNDED


def decide(
    state: State,
    observation: Observation,
    policy: Policy,
    now_s: float,
    base: PerformanceModel | None = None,
) -> tuple[State, Decision, NextTick]:
    """One tick. ``base``: a performance table for this model and GPU; None: what was learned from the service.

    Never raises for what it does not know: it holds still and says so.
    """
    next_tick = NextTick(policy.interval_s)
    policy = with_pods_start(policy, observation.pods_start_s)
    state = seen_switching(state, observation, policy)  # also where nothing is known of the load
    # 1. Freeze where nothing is known of the load.
    load = observation.load
    if load is None or observation.age_s > policy.stale_after_s:
        why = decisions.LOAD_UNREADABLE
        if load is not None:
            why = decisions.metrics_stale(observation.age_s, policy.stale_after_s)
        stays = _stay(observation, Reason.STALE_METRICS, why)
        return _frozen(state, observation, policy, now_s), keep_encode_pool(stays, observation, policy), next_tick
    # 2. Learn.
    state = learn(state, observation, load, policy, base)
    model = model_of(state, base, policy.tuning)
    if model is None or state.lengths.prompt_tokens is None:
        stays = _stay(observation, Reason.NOT_ENOUGH_DATA, decisions.NOTHING_MEASURED)
        return replace(state, unwanted_s=None), keep_encode_pool(stays, observation, policy), next_tick
    # 3. What one worker of each role can do.
    point = _point(state, observation, policy, model)
    state, encode = _encode(state, observation, policy, load, point)
    if encode is not None:
        # A mean over all requests: those without images have more time for their prefill, those with images less.
        point = replace(point, encode_s=encode.share * encode.mean_s)
    # 4. How many are wanted.
    counted, within = exclude_stuck_workers(state, observation, policy)
    state, wanted = _targets(state, counted, within, load, point)
    shares = shared(encode, counted, within, wanted)
    within, wanted = shares.policy, shares.wanted
    # 5. Routing.
    state, routing = _routing(state, observation, policy, model, point, wanted.rate_per_s)
    # 6. What was foretold, beside what came.
    in_force = replace(observation, routing=replace(observation.routing, flow=routing.flow))
    state, if_executed = _imagined(state, in_force, within, load, wanted.rate_per_s, point)
    state = replace(state, score=_scored(state, observation, policy, load, wanted, point, encode, if_executed))
    # 7. The layout, or what is awaited.
    if _awaits_plan(observation):
        decision = _stay(observation, Reason.PLAN_IN_PROGRESS, decisions.PLAN_EXECUTING)
    else:
        state, decision = layout(state, counted, within, wanted, point)
        decision = add_stuck_workers(decision, observation, counted, policy)
    decision = _awaiting(add_encode_decision(decision, observation, policy, shares), observation, policy)
    state, decision = withdrawal(state, decision, observation, policy)
    decision = without_removals(decision, observation, policy)
    return state, _with_routing(decision, routing, policy), next_tick


def _frozen(state: State, observation: Observation, policy: Policy, now_s: float) -> State:
    """Nothing is learned of the load; who starts and who serves is known all the same."""
    gap = state.forecaster.observe(None, policy.interval_s, now_s, policy.tuning)
    return replace(
        state, forecaster=gap, leads=seen_starting(state, observation, policy),
        encode=state.encode.observe(replace(observation, encode=None), policy),
        history=state.history.nothing_wanted(), unwanted_s=None,
    )  # fmt: skip


def _routing(
    state: State,
    observation: Observation,
    policy: Policy,
    model: PerformanceModel,
    point: OperatingPoint,
    rate_per_s: float,
) -> tuple[State, RoutingNumbers]:
    waits_ms, spread = prefill_wait_ms(observation, point), deviations(_goal(policy, point))
    rest, routing = threshold(state.routing, observation, policy, point, rate_per_s, spread, waits_ms)
    routing = replace(
        routing,
        flow=flow_bounds(observation, policy, point, rate_per_s),
        prefill_token_budget=prefill_token_budget(model, observation, policy, point.ttft_s),
    )
    if policy.remote_prefill:
        routing = replace(routing, max_prefill_queue_size=queue_limit(observation, policy, point))
    return replace(state, routing=rest), routing


def _awaits_plan(observation: Observation) -> bool:
    """Whether a plan is under way that must end first. One that only waits for workers to start is no reason to look
    away for minutes: they count when they are ready."""
    conditions = [worker.condition for worker in observation.workers]
    starting, switching = WorkerCondition.STARTING in conditions, WorkerCondition.SWITCHING in conditions
    return observation.plan_in_progress and (switching or not starting)


def _point(state: State, observation: Observation, policy: Policy, model: PerformanceModel) -> OperatingPoint:
    missed = 1 - (state.score.observed or 0.0)  # unknown: any may be late
    per_token_s = state.transfers.s_per_token
    return operating_point(
        model, observation, policy, state.lengths, state.shape, transfer_s_per_token=per_token_s, missed_share=missed
    )


def _goal(policy: Policy, point: OperatingPoint) -> float:
    """Of the requests that can meet the objectives, the share that must."""
    return reachable_attainment(policy.objectives.attainment, point.unreachable.share)


def _encode(
    state: State, observation: Observation, policy: Policy, load: Load, point: OperatingPoint
) -> tuple[State, EncodeTarget | None]:
    all_per_s = state.forecaster.trend.level if state.forecaster.trend else load.arrivals_per_s
    memory, wanted = target(state.encode, observation, policy, point, all_per_s)
    return replace(state, encode=memory), wanted


def _targets(
    state: State, observation: Observation, policy: Policy, load: Load, point: OperatingPoint
) -> tuple[State, Targets]:
    now_s = observation.at_s
    pools = {}
    for role in LANGUAGE_ROLES:
        of_role = [w.condition for w in observation.workers if w.role is role]
        switching = of_role.count(WorkerCondition.SWITCHING)
        starting = state.leads.ready_in_s(role, now_s, policy.start_s, policy.tuning)
        pools[role] = Pool(
            observation.serving(role),
            tuple(sorted([*starting, *[state.switch_leads.lead_s(policy.tuning)] * switching])),
        )
    season = seasonal(state, policy, now_s)
    moment = DemandSnapshot(
        point=point,
        attainment=_goal(policy, point),
        forecaster=state.forecaster,
        prefill=pools[Role.PREFILL],
        decode=pools[Role.DECODE],
        waiting=waiting(observation, point) + held(observation),
        holds_back=observation.routing.flow != UNBOUNDED,
        most_queued=most_queued(observation),
        window_s=observation.window_s,
        now_s=now_s,
        lead_s=horizon_s(state, policy),
        switchable=policy.switchable,
        prompts_changed_s=state.lengths.changed_s,
        memory_s=kept_s(
            policy.scale_in_stabilization_s,
            state.leads.lead_s(policy.start_s),
            state.lengths.changed_s,
            now_s,
            policy.tuning,
        ),
        most=max(2, policy.max_gpus // observation.gpus_each, len(observation.workers)),
        seasonal_per_s=season.rise_per_s if season is not None else None,
        in_part=observation.unread_gateways > 0,
    )
    memory, wanted = targets(state.memory, moment)
    return replace(state, memory=memory), wanted


def _imagined(
    state: State, observation: Observation, policy: Policy, load: Load, rate_per_s: float, point: OperatingPoint
) -> tuple[State, float | None]:
    """(the state with what the service would be if decisions were carried out, the attainment that it would have).

    Where they are carried out: None.
    """
    if policy.mode is Mode.ACTIVE:
        return replace(state, virtual=None), None
    now_s, lead_s = observation.at_s, state.leads.lead_s(policy.start_s)
    policy = replace(policy, mode=Mode.ACTIVE, role_switch_needs_approval=False)
    fleet = state.virtual or VirtualFleet.of(observation)
    gpus_each = observation.gpus_each
    workers = tuple(worker.shown(now_s, gpus_each) for worker in fleet.workers)
    as_asked = Service(tpot_attainment=policy.objectives.attainment)
    seen = replace(observation, workers=workers, service=as_asked, old_pages=0, awaiting_approval=None)
    # What these decode workers can prefill beside their steps; what clients would get of it is not known.
    _, routing = threshold(RaiseHoldoff(), seen, policy, point, rate_per_s, deviations(_goal(policy, point)), None)
    point = point.at_threshold(routing.max_local_prefill_tokens)
    fleet = fleet.with_queue(point, load.arrivals_per_s, observation.window_s, now_s)
    usual = policy.tuning.queued_per_worker * sum(fleet.serving(role, now_s) for role in LANGUAGE_ROLES)
    seen = replace(seen, service=Service(held=usual + fleet.backlog))
    leads = fleet.leads(state.leads, lead_s, now_s)
    imagined = replace(state, memory=fleet.memory, history=fleet.history, leads=leads)
    imagined, wanted = _targets(imagined, seen, policy, load, point)
    if not fleet.switches(now_s):
        imagined, decision = layout(imagined, seen, policy, wanted, point)
        fleet = fleet.carried_out(decision, now_s, lead_s, state.switch_leads.lead_s(policy.tuning))
        begun = [switch.target for switch in decision.switches for _ in range(switch.count)]
        imagined = replace(imagined, history=imagined.history.begun(begun, decision.layout, now_s))
    fleet = replace(fleet, memory=imagined.memory, history=imagined.history)
    prefill, decode = (fleet.serving(role, now_s) for role in LANGUAGE_ROLES)
    scv, holds_back = state.forecaster.dispersion, policy.flow_control
    kept = point.attainment(rate_per_s, scv, prefill, decode, holds_back=holds_back) if prefill and decode else 0.0
    return replace(state, virtual=fleet), kept


def _scored(
    state: State,
    observation: Observation,
    policy: Policy,
    load: Load,
    wanted: Targets,
    point: OperatingPoint,
    encode: EncodeTarget | None,
    if_executed: float | None,
) -> Score:
    """What is predicted for the workers that serve, beside what clients got; and ``if_executed``."""
    service, serving = observation.service, [observation.serving(role) for role in LANGUAGE_ROLES]
    if service is None or min(serving) < 1 or observation.unread_gateways:
        return state.score
    scv, holds_back = state.forecaster.dispersion, observation.routing.flow != UNBOUNDED
    here = point.attainment(wanted.rate_per_s, scv, *serving, holds_back=holds_back)
    if encode is not None:
        here = here * encode.kept(encode.serving)
        if_executed = None if if_executed is None else if_executed * encode.kept(encode.workers)
    requests = load.arrivals_per_s * observation.window_s
    return state.score.observe(here, if_executed, service, requests, policy.objectives)


def _stay(observation: Observation, reason: Reason, message: str) -> Decision:
    return Decision(
        reason,
        message,
        observation.committed(Role.PREFILL),
        observation.committed(Role.DECODE),
        observation.routing,
    )


def _awaiting(decision: Decision, observation: Observation, policy: Policy) -> Decision:
    """The decision, unless a person has the plan for the same pools already and must approve it: then that is said."""
    if decision.target != observation.awaiting_approval or not (decision.changes_pools and observation.needs_approval):
        return decision
    stays = _stay(observation, Reason.AWAITING_APPROVAL, decisions.awaits_approval(decision.message))
    stays = replace(stays, inputs=decision.inputs, alternatives=decision.alternatives)
    return keep_encode_pool(stays, observation, policy)


def _with_routing(decision: Decision, routing: RoutingNumbers, policy: Policy) -> Decision:
    """The decision with these numbers. Where they are all that changes, they are its reason, whatever is awaited.

    In Shadow they change nothing: they are not published, and would be each decision's reason.
    """
    before = decision.routing
    if routing == before:
        return decision
    same_threshold = routing.max_local_prefill_tokens == before.max_local_prefill_tokens
    why = Reason.FLOW_CONTROL if same_threshold else Reason.THRESHOLD
    keeps = decision.changes_layout or decision.changes_encode or decision.withdraws or policy.mode is Mode.SHADOW
    return replace(decision, reason=decision.reason if keeps else why, routing=routing, routing_reason=why)
