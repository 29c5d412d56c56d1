"""One decision: what is seen, what is expected, what was considered, what is chosen and why.

The ladder, cheapest and fastest first: the threshold (next request), a role switch (seconds), scale-out (minutes),
scale-in (only when the load stayed low). Each tick takes the lowest rung that brings the objectives back.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from pointsman.planner.core import guards
from pointsman.planner.core.flow import flow_bounds, in_words
from pointsman.planner.core.forecast import RateForecaster
from pointsman.planner.core.leads import Leads
from pointsman.planner.core.learning import Errors, LearnedModel, Learner, undisturbed
from pointsman.planner.core.lengths import Lengths
from pointsman.planner.core.margin import Margin
from pointsman.planner.core.objective import Demand, estimate
from pointsman.planner.core.performance import (
    CalibratedModel,
    Calibration,
    PerformanceModel,
    decode_bucket,
    prefill_bucket,
)
from pointsman.planner.core.routing import highest, threshold
from pointsman.planner.core.sizing import OperatingPoint, operating_point
from pointsman.planner.core.targets import SHIPPED, Memory, Pool, Targets, Tuning, targets
from pointsman.planner.core.transfers import Transfers
from pointsman.planner.core.types import (
    Alternative,
    Bounds,
    Decision,
    EngineSample,
    Load,
    NextTick,
    Observation,
    Policy,
    Reason,
    RoutingNumbers,
    Switch,
    WorkerCondition,
    WorkerRole,
)
from pointsman.serving.flow_control import NOTHING_HELD

STATE_VERSION: Final = 2
SWITCH_S: Final = 10.0  # until a switched worker serves
DEAD_BAND: Final = 0.05  # a switch must serve this much more of the need
REVERSAL_BAND: Final = 0.2  # … and this much if the last one went the other way
FAILING_SHARE: Final = 0.67  # of the workers needed: with less than two of three waiting for certainty only costs
REVERSAL_S: Final = 300.0  # … so recently
GPU_COST: Final = 0.01  # of attainment, per GPU: breaks ties towards the smaller layout
MOVE_COST: Final = 0.005  # per switch or start
BOX: Final = 4  # how far a layout of the same size may be from the present one
READY_REQUESTS: Final = 25.0  # before anything is scaled
REFIT_TICKS: Final = 12
SHAPE_WEIGHT: Final = 0.05  # of one tick, in means over what decodes
NEARLY_FULL: Final = 0.75  # of the prefill queue's limit: it is looked at once a tick and full in between
ANSWERS_S: Final = 30.0  # after prompts changed their kind, until the answers show what they need
SPREAD_WEIGHT: Final = 0.02  # of one prefill


@dataclass(frozen=True, slots=True)
class Shape:
    """How uneven requests are, and how their context compares with prompt + output/2."""

    prefill_tokens: float = 0.0  # mean and mean square of single prompts' tokens
    prefill_squares: float = 0.0
    prefill_scv: float = 0.1
    context_ratio: float = 1.0
    context_scv: float = 0.1


@dataclass(frozen=True, slots=True)
class State:
    """What the planner remembers of one service. Bounded, made of plain values, versioned."""

    version: int = STATE_VERSION
    forecaster: RateForecaster = field(default_factory=RateForecaster)
    learner: Learner = field(default_factory=Learner)
    learned: LearnedModel | None = None
    learned_error: Errors = field(default_factory=Errors)
    ticks: int = 0
    calibrated_prefill: Calibration = field(default_factory=Calibration)
    calibrated_decode: Calibration = field(default_factory=Calibration)
    lengths: Lengths = field(default_factory=Lengths)
    requests: float = 0.0
    shape: Shape = field(default_factory=Shape)
    transfers: Transfers = field(default_factory=Transfers)
    leads: Leads = field(default_factory=Leads)
    memory: Memory = field(default_factory=Memory)
    margin: Margin = field(default_factory=Margin)
    history: guards.History = field(default_factory=guards.History)
    wanting: tuple[int, int] | None = None  # the switch the last ticks would have liked, as the layout after it
    wanting_ticks: int = 0


def decide(
    state: State,
    observation: Observation,
    policy: Policy,
    now_s: float,
    base: PerformanceModel | None = None,
    tuning: Tuning = SHIPPED,
) -> tuple[State, Decision, NextTick]:
    """One tick. ``base``: a performance table for this model and GPU; None: what was learned from the service.

    Never raises for what it does not know: it holds still and says so.
    """
    next_tick = NextTick(policy.interval_s)
    load = observation.load
    if load is None or observation.age_s > policy.stale_after_s:
        sentence = (
            f"the metrics are {observation.age_s:.0f} s old (at most {policy.stale_after_s:.0f} s): nothing is changed"
            if load is not None
            else "the load could not be read: nothing is changed"
        )
        lead_s = state.leads.lead_s(policy.start_s)
        gap = state.forecaster.observe(None, policy.interval_s, now_s, lead_s)
        leads = _leads(state, observation, policy)  # who starts and who serves is known all the same
        frozen = replace(state, forecaster=gap, leads=leads, wanting=None, wanting_ticks=0)
        return frozen, _stay(observation, Reason.STALE_METRICS, sentence), next_tick

    state = learn(state, observation, load, policy, base)
    model = _model(state, base)
    if model is None or state.lengths.prompt_tokens is None:
        sentence = "no prefill and no decode step was measured yet: nothing is changed"
        return state, _stay(observation, Reason.NOT_ENOUGH_DATA, sentence), next_tick

    point = _point(state, observation, policy, model)
    counted, within = _without_stuck(state, observation, policy)
    state, wanted = _targets(state, counted, within, load, point, tuning)
    state = replace(state, margin=_margin(state, observation, policy, load, wanted, point))
    routing = threshold(
        observation, policy, point, wanted.rate_per_s, tuning.deviations, _prefill_wait_ms(observation, point)
    )
    routing = replace(routing, flow=flow_bounds(observation, policy, point, wanted.rate_per_s))
    starting = any(w.condition is WorkerCondition.STARTING for w in observation.workers)
    switching = any(w.condition is WorkerCondition.SWITCHING for w in observation.workers)
    # A plan that only waits for workers to start is no reason to look away for minutes: they count when they are ready.
    if observation.plan_in_progress and (switching or not starting):
        waiting = _stay(observation, Reason.PLAN_IN_PROGRESS, "a plan is being executed: its end is awaited")
        return state, _with_routing(waiting, routing), next_tick
    state, decision = _layout(state, counted, within, now_s, wanted, point, model)
    return state, _with_routing(_beside_stuck(decision, observation, counted, policy), routing), next_tick


# --- what is seen ---


def learn(
    state: State, observation: Observation, load: Load, policy: Policy, base: PerformanceModel | None = None
) -> State:
    """The state after an observation, before anything is decided."""
    window_s = observation.window_s
    leads = _leads(state, observation, policy)
    lengths = state.lengths.observe(load, window_s, observation.at_s)
    forecaster = state.forecaster.observe(
        load.arrivals_per_s * window_s, window_s, observation.at_s, leads.lead_s(policy.start_s)
    )
    known, samples = _model(state, base), list(observation.samples)
    if _overflows(observation):
        # Prompts of any length are prefilled between decode steps, and known of only when they are done.
        samples = [sample for sample in samples if sample.role is WorkerRole.PREFILL]
    if known is not None and lengths.prompt_tokens is not None:
        new_tokens = lengths.prompt_tokens * (1 - lengths.cached_share)
        samples = undisturbed(samples, known, max(1.0, new_tokens))
    learner, learned = state.learner.observe(samples), state.learned
    if learned is None or state.ticks % REFIT_TICKS == 0:
        learned = learner.model(observation.max_batch_tokens) or learned
    prefill, decode, learned_error = state.calibrated_prefill, state.calibrated_decode, state.learned_error
    if base is not None:
        if state.learned is not None:
            learned_error = learned_error.observe(samples, state.learned)
        for sample in samples:
            tokens = sample.tokens or 0.0
            if sample.observed_ms <= 0:
                continue
            if sample.role is WorkerRole.PREFILL:
                predicted_ms = base.prefill_ms(tokens, 0) if tokens > 0 else 0.0
                prefill = prefill.observe(
                    prefill_bucket(tokens), observed_ms=sample.observed_ms, predicted_ms=predicted_ms
                )
            elif tokens > 0 or lengths.prompt_tokens is not None:
                held = tokens or sample.batch * _context(lengths, state.shape)
                predicted_ms = base.decode_step_ms(sample.batch, held)
                decode = decode.observe(
                    decode_bucket(sample.batch, held), observed_ms=sample.observed_ms, predicted_ms=predicted_ms
                )
    return replace(
        state, leads=leads, lengths=lengths, transfers=state.transfers.observe(load.pulling_s, load.pulled_tokens),
        forecaster=forecaster, learner=learner, learned=learned,
        learned_error=learned_error,
        calibrated_prefill=prefill, calibrated_decode=decode, ticks=state.ticks + 1,
        requests=min(state.requests + (load.measured or load.arrivals_per_s * window_s), 1e9),
        shape=_shape(state.shape, samples, lengths),
    )  # fmt: skip


def _leads(state: State, observation: Observation, policy: Policy) -> Leads:
    """With who starts and who serves now; a lead that was told holds."""
    leads = state.leads.observe(observation, observation.window_s, policy.start_s)
    return replace(leads, start_s=None) if policy.start_is_told else leads


def _overflows(observation: Observation) -> bool:
    """Whether the prefill queue is, or in this window was, so long that prompts are prefilled where they decode."""
    depth = observation.service.prefill_queue_depth if observation.service else None
    return depth is not None and depth >= NEARLY_FULL * max(1, observation.routing.max_prefill_queue_size)


def _shape(shape: Shape, samples: Sequence[EngineSample], lengths: Lengths) -> Shape:
    """Take this tick's passes and steps."""
    mean, squares = shape.prefill_tokens, shape.prefill_squares
    held = sequences = spread = spread_of = 0.0
    for sample in samples:
        if sample.tokens is None or sample.tokens <= 0:
            continue
        each = sample.tokens / max(sample.batch, 1.0)
        if sample.role is WorkerRole.PREFILL:
            weight = SPREAD_WEIGHT if mean > 0 else 1.0
            mean += weight * (each - mean)
            squares += weight * (each * each * (1 + (sample.tokens_scv or 0.0)) - squares)
        else:
            held += sample.tokens
            sequences += sample.batch
            if sample.tokens_scv is not None:
                spread += sample.tokens_scv * each * each * sample.batch
                spread_of += sample.batch
    scv = shape.prefill_scv
    if len(lengths.shares) > 1:
        average = sum(n * share for n, share in lengths.shares)
        scv = sum(n * n * share for n, share in lengths.shares) / (average * average) - 1
    elif mean > 0:
        scv = squares / (mean * mean) - 1
    ratio, context_scv = shape.context_ratio, shape.context_scv
    if sequences > 3 and lengths.prompt_tokens is not None and lengths.output_tokens is not None:
        average = held / sequences
        expected = lengths.prompt_tokens + lengths.output_tokens / 2
        ratio += SHAPE_WEIGHT * (min(3.0, max(0.6, average / expected)) - ratio)
        # Where the engine does not tell, contexts are as uneven as the prompts they begin with.
        if spread_of <= 0:
            context_scv += SHAPE_WEIGHT * (min(4.0, max(0.0, scv)) - context_scv)
        else:
            context_scv += SHAPE_WEIGHT * (min(4.0, spread / spread_of / (average * average)) - context_scv)
    return Shape(mean, squares, min(4.0, max(0.05, scv)), ratio, context_scv)


def _context(lengths: Lengths, shape: Shape) -> float:
    """KV tokens of a decoding sequence, on average."""
    return max(1.0, ((lengths.prompt_tokens or 0.0) + (lengths.output_tokens or 0.0) / 2) * shape.context_ratio)


def _model(state: State, base: PerformanceModel | None) -> PerformanceModel | None:
    """The table as calibrated, or what the service taught: without a table, or where no factor mends it."""
    if base is None:
        return state.learned
    calibrated = CalibratedModel(base, state.calibrated_prefill, state.calibrated_decode)
    if calibrated.trusted or state.learned is None:
        return calibrated
    # Windows that mix long and short prompts are off for any model: only a better one takes its place.
    return state.learned if state.learned_error.below(calibrated) else calibrated


def _point(state: State, observation: Observation, policy: Policy, model: PerformanceModel) -> OperatingPoint:
    lengths = state.lengths
    prompt_tokens = lengths.prompt_tokens or 1.0
    return operating_point(
        model,
        observation,
        replace(policy.objectives, tpot_ms=policy.objectives.tpot_ms * state.margin.share),
        lengths=lengths.shares,
        threshold_tokens=observation.routing.max_local_prefill_tokens if policy.remote_prefill else 0,
        highest_threshold_tokens=highest(observation, policy),
        prompt_tokens=max(1.0, prompt_tokens),
        cached_share=lengths.cached_share,
        output_tokens=max(1.0, lengths.output_tokens or 1.0),
        context_tokens=_context(lengths, state.shape),
        prefill_scv=state.shape.prefill_scv,
        context_scv=state.shape.context_scv,
        transfer_s_per_token=state.transfers.s_per_token,
    )


def _targets(
    state: State, observation: Observation, policy: Policy, load: Load, point: OperatingPoint, tuning: Tuning
) -> tuple[State, Targets]:
    now_s = observation.at_s
    pools = {}
    for role in WorkerRole:
        of_role = [w.condition for w in observation.workers if w.role is role]
        serving = sum(c in (WorkerCondition.ACTIVE, WorkerCondition.UNREACHABLE) for c in of_role)
        switching = of_role.count(WorkerCondition.SWITCHING)
        starting = state.leads.ready_in_s(role, now_s, policy.start_s)
        pools[role] = Pool(serving, tuple(sorted([*starting, *[SWITCH_S] * switching])))
    memory, wanted = targets(
        state.memory,
        state.forecaster,
        point,
        pools[WorkerRole.PREFILL],
        pools[WorkerRole.DECODE],
        waiting=_waiting(observation, point) + _held(observation),
        holds_back=observation.routing.flow != NOTHING_HELD,
        most_queued=_most_queued(observation),
        arrived=load.arrivals_per_s * observation.window_s,
        window_s=observation.window_s,
        now_s=now_s,
        lead_s=state.leads.lead_s(policy.start_s) + policy.interval_s,
        memory_s=max(policy.scale_in_stabilization_s, state.leads.lead_s(policy.start_s)),
        most=max(2, policy.max_gpus // _gpus_each(observation), len(observation.workers)),
        tuning=tuning,
    )
    return replace(state, memory=memory), wanted


def _without_stuck(state: State, observation: Observation, policy: Policy) -> tuple[Observation, Policy]:
    """The service and its limits without workers that do not start: they only take up budget, and get no requests."""
    names = state.leads.stuck(observation.at_s, policy.start_s)
    if not names:
        return observation, policy
    stuck = [worker for worker in observation.workers if worker.name in names]
    counted = replace(observation, workers=tuple(w for w in observation.workers if w.name not in names))
    left = {
        role: Bounds(bounds.least, max(bounds.least, bounds.most - sum(w.role is role for w in stuck)))
        for role in WorkerRole
        for bounds in [policy.bounds(role)]
    }
    gpus = policy.max_gpus - sum(worker.gpus for worker in stuck)
    return counted, replace(policy, max_gpus=gpus, prefill=left[WorkerRole.PREFILL], decode=left[WorkerRole.DECODE])


def _beside_stuck(decision: Decision, observation: Observation, counted: Observation, policy: Policy) -> Decision:
    """The decision in replicas: workers that do not start are among them until others serve in their place."""
    each, replicas, words = _gpus_each(observation), [decision.prefill, decision.decode], []
    given_up = False
    for pool, role in enumerate((WorkerRole.PREFILL, WorkerRole.DECODE)):
        stuck = observation.committed(role) - counted.committed(role)
        if stuck == 0:
            continue
        enough = decision.reason in (Reason.STEADY, Reason.SPARE_CAPACITY) and not decision.changes_layout
        served = enough and counted.active(role) == replicas[pool] and policy.scale_in
        if served and sum(replicas) * each >= policy.min_gpus:
            given_up, end = True, "given up"
        else:
            replicas[pool] = min(replicas[pool] + stuck, max(replicas[pool], policy.bounds(role).most))
            end = "not counted"
        words.append(f"{stuck} {role.value.lower()} worker(s) that do not start: {end}")
    if not words:
        return decision
    more = replicas[0] - decision.prefill, replicas[1] - decision.decode
    return replace(
        decision,
        reason=Reason.SPARE_CAPACITY if given_up else decision.reason,
        message="; ".join((decision.message, *words)),
        prefill=replicas[0],
        decode=replicas[1],
        changes_layout=decision.changes_layout or given_up,
        alternatives=tuple(
            replace(a, prefill=a.prefill + more[0], decode=a.decode + more[1], gpus=a.gpus + sum(more) * each)
            for a in decision.alternatives
        ),
    )


def _margin(
    state: State, observation: Observation, policy: Policy, load: Load, wanted: Targets, point: OperatingPoint
) -> Margin:
    """What the window says of the decode model, if anything."""
    attainment = observation.service.tpot_attainment if observation.service else None
    if attainment is None:
        return state.margin
    enough = wanted.needed_now[1] <= observation.active(WorkerRole.DECODE) and wanted.backlog <= 0
    if not enough or point.local_s > 0 or _overflows(observation):
        return state.margin.interrupted()
    return state.margin.observe(attainment, load.arrivals_per_s * observation.window_s, policy.objectives.attainment)


def _waiting(observation: Observation, point: OperatingPoint) -> float:
    """Requests that wait for a prefill, or decode beyond the batch that keeps the token objective."""
    queue = observation.service.prefill_queue_depth if observation.service else None
    waiting, elsewhere, assigned, decoders = queue or 0.0, queue or 0.0, 0.0, 0
    for worker in observation.workers:
        if worker.role is WorkerRole.PREFILL:
            waiting += worker.queued or 0
            # With one queue for all, a decode worker has a request from its arrival on, also while that is prefilled.
            elsewhere += worker.in_flight or 0 if queue is not None else 0
        elif worker.in_flight is not None:
            assigned += worker.in_flight
            decoders += 1
    return waiting + max(0.0, assigned - elsewhere - decoders * point.batch)


def _held(observation: Observation) -> float:
    return (observation.service.held if observation.service else None) or 0.0


def _most_queued(observation: Observation) -> float:
    """Requests the prefill queue holds at most; endless where there is no queue with a limit."""
    known = observation.service is not None and observation.service.prefill_queue_depth is not None
    known = known and observation.routing.flow == NOTHING_HELD  # else what finds it full is held back
    return float(observation.routing.max_prefill_queue_size) if known else math.inf


def _prefill_wait_ms(observation: Observation, point: OperatingPoint) -> float | None:
    """Waiting requests times the mean prefill, shared by the prefill workers; None when the queue is unknown."""
    depth = observation.service.prefill_queue_depth if observation.service else None
    workers = observation.active(WorkerRole.PREFILL)
    if depth is None or workers == 0:
        return None
    return depth * point.prefill_alone_s * 1000 / workers


def _gpus_each(observation: Observation) -> int:
    return max((w.gpus for w in observation.workers), default=1)


# --- what is considered ---


def _layout(
    state: State,
    observation: Observation,
    policy: Policy,
    now_s: float,
    wanted: Targets,
    point: OperatingPoint,
    model: PerformanceModel,
) -> tuple[State, Decision]:
    now = observation.committed(WorkerRole.PREFILL), observation.committed(WorkerRole.DECODE)
    reason, sentence = _why(state, wanted, now)
    state, switched, held, coming = _switch(state, observation, policy, now_s, wanted, now)
    target, short = _scaled(observation, policy, wanted, now, switched, held is not None, coming, state)
    if short and reason not in (Reason.STEADY, Reason.SPARE_CAPACITY):
        # A change that helps as far as it goes says what it helps against.
        reason, sentence = reason if target != now else Reason.UNSATISFIABLE, f"{sentence}; {short}"
    alternatives = _alternatives(state, observation, policy, wanted, now, target, model)
    if reason not in (Reason.STEADY, Reason.SPARE_CAPACITY):
        here = next(a.expected_attainment for a in alternatives if (a.prefill, a.decode) == now)
        sentence = f"{sentence}; {now[0]}P{now[1]}D would keep {here:.0%} within objectives"
        if here >= policy.objectives.attainment:  # an estimate for a load that is even and has no past
            sentence += ", were nothing waiting" if wanted.backlog > 0 else ", with no margin for peaks"
    base = Decision(
        reason, sentence, now[0], now[1], observation.routing,
        inputs=_inputs(state, wanted, point, now, observation),
        alternatives=alternatives,
    )  # fmt: skip
    if target == now and switched == now:
        if held is not None:
            return state, replace(base, reason=Reason.HELD_BACK, message=f"{sentence}; not yet: {held}")
        return state, base
    switches = _switches(now, switched)
    history = state.history.remember(switches, now_s)
    if switches:
        if state.wanting == switched:  # else what is left of it was seen for long enough already
            state = replace(state, wanting=None, wanting_ticks=0)
        short = Reason.PREFILL_SHORT if switches[0].target is WorkerRole.PREFILL else Reason.DECODE_SHORT
        if reason in (Reason.STEADY, Reason.SPARE_CAPACITY):  # what starts would be enough, what serves is not
            base = replace(base, reason=short)
    words = f"{sentence}; {_action(now, switched, target)} from {now[0]}P{now[1]}D to {target[0]}P{target[1]}D"
    done = replace(base, message=words, prefill=target[0], decode=target[1], switches=switches, changes_layout=True)
    return replace(state, history=history), done


def _why(state: State, wanted: Targets, now: tuple[int, int]) -> tuple[Reason, str]:
    """What is expected and what that means for the present layout."""
    lengths = state.lengths
    need_p, need_d = (max(a, b) for a, b in zip(wanted.needed_now, wanted.up, strict=True))
    seen = (
        f"{wanted.rate_per_s:.2f} requests/s of {lengths.prompt_tokens:.0f}+{lengths.output_tokens:.0f} tokens now, "
        f"up to {wanted.high_rate_per_s:.2f} expected"
    )
    if wanted.backlog > 0:
        seen += f", {wanted.backlog:.0f} waiting"
    needs = f"{seen}: {need_p}P{need_d}D needed, {now[0]}P{now[1]}D there"
    more_prefill, more_decode = need_p > now[0], need_d > now[1]
    if more_prefill and more_decode:
        return Reason.BOTH_SHORT, needs
    if more_prefill:
        return Reason.PREFILL_SHORT, needs
    if more_decode:
        return Reason.DECODE_SHORT, needs
    if wanted.prefill < now[0] or wanted.decode < now[1]:
        return Reason.SPARE_CAPACITY, f"{seen}: {wanted.prefill}P{wanted.decode}D is enough, {now[0]}P{now[1]}D there"
    return Reason.STEADY, f"{seen}: {now[0]}P{now[1]}D is enough"


def _switch(
    state: State, observation: Observation, policy: Policy, now_s: float, wanted: Targets, now: tuple[int, int]
) -> tuple[State, tuple[int, int], str | None, tuple[int, int]]:
    """(the layout after switches that may be made now, why a wanted one must wait, the layout after that one)."""
    calm = replace(state, wanting=None, wanting_ticks=0)
    if not policy.role_switch:
        return calm, now, None, now
    best = _best_switch(observation, policy, wanted, now, state.history)
    if best == now:
        return calm, now, None, now
    same_way = state.wanting is not None and (state.wanting[0] > now[0]) == (best[0] > now[0])
    state = replace(state, wanting=best, wanting_ticks=state.wanting_ticks + 1 if same_way else 1)
    best = _step(now, best, guards.switches_at_a_time(observation, policy))
    sustained = 1 if _fails(observation, wanted) else guards.SUSTAINED_TICKS
    if state.wanting_ticks < sustained:
        return state, now, f"seen for {state.wanting_ticks} of {sustained} ticks", best
    for switch in _switches(now, best):
        why = guards.against_switch(switch, observation, policy, state.history)
        if why is not None:
            return state, now, why, now
    return state, best, None, best


def _fails(observation: Observation, wanted: Targets) -> bool:
    """Whether requests already wait because a role has far less than it needs: no noise to be waited out."""
    need_p, need_d = wanted.load_now
    has_p, has_d = observation.active(WorkerRole.PREFILL), observation.active(WorkerRole.DECODE)
    return wanted.backlog > 0 and min(has_p / need_p, has_d / need_d) < FAILING_SHARE


def _best_switch(
    observation: Observation, policy: Policy, wanted: Targets, now: tuple[int, int], history: guards.History
) -> tuple[int, int]:
    """The layout of the same size that serves the present best; the present one when no other is clearly better.

    What only starts serves nobody yet: it is the workers that serve which are weighed.
    """
    need_p, need_d = wanted.load_now
    serving = observation.active(WorkerRole.PREFILL), observation.active(WorkerRole.DECODE)
    recent = [r for r in history.switches if observation.at_s - r.at_s < REVERSAL_S]
    last = recent[-1].target if recent else None

    def served(p: int, d: int) -> float:
        """The share of the need that the scarcer role has."""
        return min(1.0, p / need_p, d / need_d)

    def band(moved: int) -> float:
        """What must be gained; more for undoing what was done a moment ago."""
        way = WorkerRole.PREFILL if moved > 0 else WorkerRole.DECODE
        return DEAD_BAND if last is None or last is way else REVERSAL_BAND

    best, best_worth = now, 0.0
    for moved in range(-BOX, BOX + 1):
        p, d = now[0] + moved, now[1] - moved
        if not (policy.prefill.least <= p <= policy.prefill.most and policy.decode.least <= d <= policy.decode.most):
            continue
        if min(p, d, serving[0] + moved, serving[1] - moved) < 1 or moved == 0:
            continue
        gain = served(serving[0] + moved, serving[1] - moved) - served(*serving)
        worth = gain - band(moved) - MOVE_COST * abs(moved)
        if worth > best_worth:
            best, best_worth = (p, d), worth
    return best


def _scaled(
    observation: Observation,
    policy: Policy,
    wanted: Targets,
    now: tuple[int, int],
    switched: tuple[int, int],
    held: bool,
    coming: tuple[int, int],
    state: State,
) -> tuple[tuple[int, int], str]:
    """(the layout after switches and scaling, what stands in the way of all that is wanted)."""
    if state.requests < READY_REQUESTS:
        return switched, ""
    changed_s = state.lengths.changed_s
    scale_in = policy.scale_in and (changed_s is None or observation.at_s - changed_s >= ANSWERS_S)
    target = []
    pools = zip(
        WorkerRole, (wanted.prefill, wanted.decode), wanted.needed_now, now, switched, coming,
        (policy.prefill, policy.decode), strict=True,
    )  # fmt: skip
    for role, want, need, was, has, soon, bounds in pools:
        if has < was:
            # It gives workers away: only what is needed now is started in their place, not what is kept in reserve.
            target.append(max(has, min(need, bounds.most)) if policy.scale_out else has)
        elif has > was and want < has:
            # The switch brings what would only have started; what serves stays.
            serves = observation.active(role) + has - was
            target.append(min(has, max(want, serves)) if scale_in else has)
        elif want > has:
            # What a switch that only waits to be sure will bring is not started as well.
            more = max(0, want - max(has, soon)) if policy.scale_out else 0
            target.append(max(has, min(has + more, bounds.most)))
        elif want < has and scale_in and switched == now and not held:
            target.append(min(has, max(want, bounds.least, 1)))
        else:
            target.append(has)
    each = _gpus_each(observation)
    leaving = sum(w.condition is WorkerCondition.DRAINING for w in observation.workers)
    most = max(policy.max_gpus // each - leaving, min(sum(now), sum(target)))
    p, d = target
    if p + d > most:
        # Where workers can change their role, one pool grows at the other's cost by a switch alone: guarded, and no
        # worker is deleted to start another.
        may_shrink = policy.scale_in and not policy.role_switch and not held and switched == now
        p, d = _squeezed((p, d), switched, most, may_shrink)
    while (p + d) * each < policy.min_gpus and (p, d) != switched and p + d < sum(switched):
        p, d = (p + 1, d) if p < switched[0] else (p, d + 1)
    short = ""
    if p < wanted.needed_now[0] or d < wanted.needed_now[1]:
        short = f"the policy allows {p}P{d}D"
    return (p, d), short


def _squeezed(target: tuple[int, int], has: tuple[int, int], most: int, may_shrink: bool) -> tuple[int, int]:
    """Within ``most`` workers, in the proportion of the target; a pool shrinks for the other only if it may."""
    least = (1, 1) if may_shrink else (min(has[0], target[0]), min(has[1], target[1]))
    share = round(most * target[0] / sum(target))
    p = max(least[0], min(share, target[0], most - least[1]))
    d = max(least[1], min(most - p, target[1]))
    return max(least[0], min(most - d, target[0])), d


def _alternatives(
    state: State,
    observation: Observation,
    policy: Policy,
    wanted: Targets,
    now: tuple[int, int],
    target: tuple[int, int],
    model: PerformanceModel,
) -> tuple[Alternative, ...]:
    """The chosen layout, the present one, and their neighbours, with what each would achieve."""
    each = _gpus_each(observation)
    demand = _demand(state, observation, wanted)
    goal = policy.objectives.attainment
    neighbours = [(now[0] + p, now[1] + d) for p, d in ((1, -1), (-1, 1), (1, 0), (0, 1))]
    found = []
    for p, d in dict.fromkeys([target, now, *neighbours]):
        if p < 1 or d < 1:
            continue
        got = estimate(demand, p, d, observation.routing.max_local_prefill_tokens, policy.objectives, model)
        moves = max(abs(p - now[0]), abs(d - now[1]))
        cost = -min(got.attainment, goal) + GPU_COST * (p + d) * each + MOVE_COST * moves
        why = "" if (p, d) == target else _against(policy, (p, d), target, each)
        switched = (p, d) if (p - now[0]) * (d - now[1]) < 0 else now
        action = "stay" if (p, d) == now else _action(now, switched, (p, d))
        found.append(Alternative(p, d, (p + d) * each, round(got.attainment, 4), round(cost, 4), action, why))
    return tuple(found)


def _against(policy: Policy, layout: tuple[int, int], target: tuple[int, int], each: int) -> str:
    if sum(layout) * each > policy.max_gpus:
        return f"{sum(layout) * each} GPUs, the budget is {policy.max_gpus}"
    less = [role for role, a, b in zip(("prefill", "decode"), layout, target, strict=True) if a < b]
    if less:
        return f"less {' and '.join(less)} than needed"
    return "more than needed"


def _demand(state: State, observation: Observation, wanted: Targets) -> Demand:
    lengths = state.lengths
    scale = 1 - lengths.cached_share
    return Demand(
        rate_per_s=max(wanted.rate_per_s, wanted.high_rate_per_s),
        lengths=tuple((tokens * scale, share) for tokens, share in lengths.shares),
        prompt_tokens=lengths.prompt_tokens or 1.0,
        output_tokens=lengths.output_tokens or 1.0,
        arrival_scv=state.forecaster.dispersion,
        kv_capacity_tokens=observation.kv_capacity_tokens,
    )


# --- small things ---


def _action(now: tuple[int, int], switched: tuple[int, int], target: tuple[int, int]) -> str:
    words = ["switch"] if switched != now else []
    if sum(target) > sum(now):
        words.append("scale-out")
    elif sum(target) < sum(now):
        words.append("scale-in")
    return "+".join(words) or "replace"


def _switches(now: tuple[int, int], target: tuple[int, int]) -> tuple[Switch, ...]:
    """Opposing changes are matched as switches; what is left over is scaling."""
    more_prefill, more_decode = target[0] - now[0], target[1] - now[1]
    if more_prefill > 0 > more_decode:
        return (Switch(WorkerRole.DECODE, WorkerRole.PREFILL, min(more_prefill, -more_decode)),)
    if more_decode > 0 > more_prefill:
        return (Switch(WorkerRole.PREFILL, WorkerRole.DECODE, min(more_decode, -more_prefill)),)
    return ()


def _step(now: tuple[int, int], target: tuple[int, int], most_switches: int) -> tuple[int, int]:
    """``target``, or as far on the way to it as ``most_switches`` lead; the rest follows when they have ended."""
    switches = _switches(now, target)
    if not switches or switches[0].count <= most_switches:
        return target
    toward = 1 if target[0] > now[0] else -1
    return now[0] + toward * most_switches, now[1] - toward * most_switches


def _stay(observation: Observation, reason: Reason, message: str) -> Decision:
    return Decision(
        reason,
        message,
        observation.committed(WorkerRole.PREFILL),
        observation.committed(WorkerRole.DECODE),
        observation.routing,
    )


def _with_routing(decision: Decision, routing: RoutingNumbers) -> Decision:
    if routing == decision.routing:
        return decision
    before, after = decision.routing.max_local_prefill_tokens, routing.max_local_prefill_tokens
    reason, words = decision.reason, [decision.message]
    if after != before:
        reason = reason if decision.changes_layout else Reason.THRESHOLD
        words.append(f"threshold {before} → {after} tokens")
    if routing.flow != decision.routing.flow:
        reason = Reason.FLOW_CONTROL if reason is Reason.STEADY else reason
        words.append(in_words(routing.flow))
    return replace(decision, reason=reason, message="; ".join(words), routing=routing, changes_routing=True)


def _inputs(
    state: State, wanted: Targets, point: OperatingPoint, now: tuple[int, int], observation: Observation
) -> tuple[tuple[str, float], ...]:
    service = observation.service
    numbers: dict[str, float | None] = {
        "ratePerSecond": wanted.rate_per_s,
        "highRatePerSecond": wanted.high_rate_per_s,
        "promptTokens": state.lengths.prompt_tokens,
        "outputTokens": state.lengths.output_tokens,
        "cachedShare": state.lengths.cached_share,
        "prefillWorkers": float(now[0]),
        "decodeWorkers": float(now[1]),
        "prefillNeededNow": float(wanted.needed_now[0]),
        "decodeNeededNow": float(wanted.needed_now[1]),
        "prefillNeeded": float(wanted.needed[0]),
        "decodeNeeded": float(wanted.needed[1]),
        "prefillKept": float(wanted.kept[0]),
        "decodeKept": float(wanted.kept[1]),
        "backlog": wanted.backlog,
        "prefillMilliseconds": point.prefill_s * 1000,
        "decodeBatch": point.batch,
        "stepMilliseconds": point.step_s * 1000,
        "transferMilliseconds": point.transfer_s * 1000,
        "thresholdTokens": float(observation.routing.max_local_prefill_tokens),
        "startSeconds": state.leads.start_s,
        "observedTtftAttainment": service.ttft_attainment if service else None,
        "observedTpotAttainment": service.tpot_attainment if service else None,
        "prefillQueueDepth": service.prefill_queue_depth if service else None,
        "held": service.held if service else None,
    }
    return tuple((name, round(value, 4)) for name, value in numbers.items() if value is not None)
