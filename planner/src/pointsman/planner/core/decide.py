"""One decision: what is seen, what is expected, what was considered, what is chosen and why.

The ladder, cheapest and fastest first: the threshold (next request), a role switch (seconds), scale-out (minutes),
scale-in (only when the load stayed low). Each tick takes the lowest rung that brings the objectives back.
"""

import math
from dataclasses import dataclass, field, replace

from pointsman.planner.core import guards
from pointsman.planner.core.forecast import RateForecaster
from pointsman.planner.core.learning import Learner
from pointsman.planner.core.objective import Demand, Estimate, estimate
from pointsman.planner.core.performance import PerformanceModel
from pointsman.planner.core.routing import threshold
from pointsman.planner.core.types import (
    Alternative,
    Decision,
    Load,
    NextTick,
    Observation,
    Policy,
    Reason,
    RoutingNumbers,
    Switch,
    WorkerRole,
)

STATE_VERSION = 1
SWITCH_HORIZON_TICKS = 4  # a switch takes seconds
SCALE_HORIZON_TICKS = 48  # a new worker takes a minute or two
DEAD_BAND = 0.05  # a layout must promise this much more attainment
SCALE_IN_MARGIN = 0.01
LENGTH_HALF_LIFE_S = 5.0  # as fast as the rate is followed: a new rate times the old lengths is a load that never was
MOST_GROWTH = 1.3  # of the rate within a switch's few seconds: right after a shift trend and bounds are about the shift
GPU_COST = 0.01  # of attainment, per GPU: breaks ties towards the smaller layout
MOVE_COST = 0.005  # per switch or start
BOX = 4  # how far a layout may be from the present one, per pool


@dataclass(frozen=True, slots=True)
class Lengths:
    """Smoothed lengths of requests, in tokens."""

    prompt_tokens: float
    cached_tokens: float
    output_tokens: float
    shares: tuple[tuple[float, float], ...]

    def toward(self, load: Load, weight: float) -> "Lengths":
        """Moved towards what was just seen; parts that were not seen stay."""
        return Lengths(
            _mix(self.prompt_tokens, load.prompt_tokens, weight),
            _mix(self.cached_tokens, load.cached_tokens, weight),
            _mix(self.output_tokens, load.output_tokens, weight),
            _mix_shares(self.shares, load.prompt_length_shares, weight),
        )

    @classmethod
    def first(cls, load: Load) -> "Lengths | None":
        """From the first load with both lengths known."""
        if load.prompt_tokens is None or load.output_tokens is None:
            return None
        shares = load.prompt_length_shares or ((load.prompt_tokens, 1.0),)
        return cls(load.prompt_tokens, load.cached_tokens or 0.0, load.output_tokens, shares)


@dataclass(frozen=True, slots=True)
class State:
    """What the planner remembers of one service. Bounded, made of plain values, versioned."""

    version: int = STATE_VERSION
    forecaster: RateForecaster = field(
        default_factory=lambda: RateForecaster.for_horizons(SWITCH_HORIZON_TICKS, SCALE_HORIZON_TICKS)
    )
    learner: Learner = field(default_factory=Learner)
    lengths: Lengths | None = None
    history: guards.History = field(default_factory=guards.History)
    wanting: tuple[int, int] | None = None  # the layout the last ticks would have liked
    wanting_ticks: int = 0
    spare_since_s: float | None = None


def decide(
    state: State, observation: Observation, policy: Policy, now_s: float, base: PerformanceModel | None = None
) -> tuple[State, Decision, NextTick]:
    """One tick. ``base``: a performance table for this model and GPU; None: what was learned from the service.

    Never raises for what it does not know: it holds still and says so.
    """
    next_tick = NextTick(policy.interval_s)
    if observation.age_s > policy.stale_after_s or observation.load is None:
        sentence = (
            f"the metrics are {observation.age_s:.0f} s old (at most {policy.stale_after_s:.0f} s): nothing is changed"
            if observation.load is not None
            else "the load could not be read: nothing is changed"
        )
        frozen = replace(state, forecaster=state.forecaster.observe(None), wanting=None, wanting_ticks=0)
        return frozen, _stay(observation, Reason.STALE_METRICS, sentence), next_tick

    state = _learn(state, observation, observation.load)
    model = base or state.learner.model
    if model is None or state.lengths is None:
        sentence = "no prefill and no decode step was measured yet: nothing is changed"
        return state, _stay(observation, Reason.NOT_ENOUGH_DATA, sentence), next_tick

    demand = _demand(state, observation, state.lengths, SWITCH_HORIZON_TICKS)
    routing = threshold(observation, policy, _prefill_wait_ms(observation, demand, model))
    if observation.plan_in_progress:
        decision = _with_routing(
            _stay(observation, Reason.PLAN_IN_PROGRESS, "a plan is being executed: its end is awaited"), routing
        )
        return state, decision, next_tick
    state, decision = _layout(state, observation, policy, now_s, demand, routing, model)
    return state, decision, next_tick


# --- what is seen ---


def _learn(state: State, observation: Observation, load: Load) -> State:
    learner = state.learner
    for sample in observation.samples:
        learner = learner.observe(sample)
    weight = 1 - 0.5 ** (observation.window_s / LENGTH_HALF_LIFE_S)
    lengths = Lengths.first(load) if state.lengths is None else state.lengths.toward(load, weight)
    forecaster = state.forecaster.observe(load.arrivals_per_s)
    return replace(state, forecaster=forecaster, learner=learner, lengths=lengths)


def _demand(state: State, observation: Observation, lengths: Lengths, horizon_ticks: int) -> Demand:
    forecast = state.forecaster.at(horizon_ticks)
    now = math.expm1(state.forecaster.state.level) if state.forecaster.state is not None else 0.0
    rate = min(forecast.high, MOST_GROWTH * now) if forecast is not None else 0.0
    scale = max(lengths.prompt_tokens - lengths.cached_tokens, 0.0) / max(lengths.prompt_tokens, 1.0)
    return Demand(
        rate_per_s=rate,
        lengths=tuple((tokens * scale, share) for tokens, share in lengths.shares),
        prompt_tokens=lengths.prompt_tokens,
        output_tokens=lengths.output_tokens,
        arrival_scv=observation.load.arrival_scv if observation.load else 1.0,
        kv_capacity_tokens=observation.kv_capacity_tokens,
    )


def _prefill_wait_ms(observation: Observation, demand: Demand, model: PerformanceModel) -> float | None:
    """Waiting requests times the mean prefill, shared by the prefill workers; None when the queue is unknown."""
    depth = observation.service.prefill_queue_depth if observation.service else None
    workers = observation.active(WorkerRole.PREFILL)
    if depth is None or workers == 0:
        return None
    remote = [(n, s) for n, s in demand.lengths if n > observation.routing.max_local_prefill_tokens] or demand.lengths
    total = sum(share for _, share in remote)
    mean = sum(share * model.prefill_ms(n, 0) for n, share in remote) / total if total > 0 else 0.0
    return depth * mean / workers


# --- what is considered ---


def _layout(
    state: State,
    observation: Observation,
    policy: Policy,
    now_s: float,
    demand: Demand,
    routing: RoutingNumbers,
    model: PerformanceModel,
) -> tuple[State, Decision]:
    prefill, decode = observation.committed(WorkerRole.PREFILL), observation.committed(WorkerRole.DECODE)
    gpus_each = max((w.gpus for w in observation.workers), default=1)
    goal = policy.objectives.attainment

    def judged(p: int, d: int) -> Estimate:
        return estimate(demand, p, d, routing.max_local_prefill_tokens, policy.objectives, model)

    here = judged(prefill, decode)
    considered = []
    for p in range(max(policy.prefill.least, prefill - BOX), min(policy.prefill.most, prefill + BOX) + 1):
        for d in range(max(policy.decode.least, decode - BOX), min(policy.decode.most, decode + BOX) + 1):
            if (p, d) == (prefill, decode) or not policy.min_gpus <= (p + d) * gpus_each <= policy.max_gpus:
                continue
            action = _action(prefill, decode, p, d)
            allowed = {"switch": policy.role_switch, "scale-out": policy.scale_out, "scale-in": policy.scale_in}
            if all(allowed[word] for word in action.split("+")):
                considered.append((p, d, action, judged(p, d)))

    def cost(p: int, d: int, got: Estimate) -> float:
        moves = max(abs(p - prefill), abs(d - decode))
        return -min(got.attainment, goal) + GPU_COST * (p + d) * gpus_each + MOVE_COST * moves

    inputs = _inputs(demand, here, prefill, decode, routing, observation)
    table = sorted(considered, key=lambda c: (cost(c[0], c[1], c[3]), abs(c[0] - prefill) + abs(c[1] - decode)))
    same_size = [c for c in table if c[2] == "switch"]
    target, reason, sentence = _choose(here, (prefill, decode), table, same_size, goal, demand)
    alternatives = tuple(
        Alternative(p, d, (p + d) * gpus_each, round(got.attainment, 4), round(cost(p, d, got), 4), action)
        for p, d, action, got in table[:6]
    )
    base = Decision(reason, sentence, prefill, decode, observation.routing, inputs=inputs, alternatives=alternatives)
    if target is None:
        return replace(state, wanting=None, wanting_ticks=0, spare_since_s=None), _with_routing(base, routing)

    target = _step((prefill, decode), target, guards.switches_at_a_time(observation, policy))
    ticks = state.wanting_ticks + 1 if state.wanting == target else 1
    state = replace(state, wanting=target, wanting_ticks=ticks)
    held = _held(state, observation, policy, now_s, target, (prefill, decode), here, goal)
    if held is not None:
        shrinking = sum(target) < prefill + decode
        state = replace(state, spare_since_s=(state.spare_since_s or now_s) if shrinking else None)
        waiting = replace(base, reason=Reason.HELD_BACK, message=f"{sentence}; not yet: {held}")
        return state, _with_routing(waiting, routing)

    switches = _switches((prefill, decode), target)
    history = state.history.remember(switches, now_s)
    if sum(target) != prefill + decode:
        history = replace(history, last_scale_s=now_s)
    done = replace(base, prefill=target[0], decode=target[1], switches=switches, changes_layout=True)
    return (
        replace(state, history=history, wanting=None, wanting_ticks=0, spare_since_s=None),
        _with_routing(done, routing),
    )


def _choose(
    here: Estimate,
    now: tuple[int, int],
    table: list[tuple[int, int, str, Estimate]],
    same_size: list[tuple[int, int, str, Estimate]],
    goal: float,
    demand: Demand,
) -> tuple[tuple[int, int] | None, Reason, str]:
    """The layout to go to (None: stay), why, and a sentence."""
    seen = (
        f"{demand.rate_per_s:.2f} requests/s of {demand.prompt_tokens:.0f}+{demand.output_tokens:.0f} tokens expected"
    )
    if here.attainment >= goal:
        smaller = [c for c in table if c[2] == "scale-in" and c[3].attainment >= min(goal + SCALE_IN_MARGIN, 1.0)]
        if smaller:
            p, d, _, got = min(smaller, key=lambda c: c[0] + c[1])
            return (p, d), Reason.SPARE_CAPACITY, f"{seen}: {p}P{d}D is enough ({got.attainment:.0%} within objectives)"
        return None, Reason.STEADY, f"{seen}: {now[0]}P{now[1]}D keeps {here.attainment:.0%} within objectives"
    short = _short(here)
    lacking = f"{seen}: {now[0]}P{now[1]}D would keep {here.attainment:.0%} within objectives ({goal:.0%} wanted)"
    switchable = [c for c in same_size if c[3].attainment >= goal]
    if switchable:
        p, d, _, got = switchable[0]
        return (p, d), short, f"{lacking}; {p}P{d}D keeps {got.attainment:.0%} without another GPU"
    reaching = [c for c in table if c[3].attainment >= goal]
    if reaching:
        p, d, action, got = reaching[0]
        return (p, d), short, f"{lacking}; {action} to {p}P{d}D keeps {got.attainment:.0%}"
    better = [c for c in table if c[3].attainment >= here.attainment + DEAD_BAND]
    if better:
        p, d, action, got = max(better, key=lambda c: (round(c[3].attainment, 2), -c[0] - c[1]))
        best = f"no layout reaches that, {action} to {p}P{d}D keeps {got.attainment:.0%}"
        return (p, d), Reason.UNSATISFIABLE, f"{lacking}; {best}"
    return None, Reason.UNSATISFIABLE, f"{lacking}; no layout within the policy does better"


def _held(
    state: State,
    observation: Observation,
    policy: Policy,
    now_s: float,
    target: tuple[int, int],
    now: tuple[int, int],
    here: Estimate,
    goal: float,
) -> str | None:
    """Why the move must wait; None if it may be made now."""
    if state.wanting_ticks < guards.SUSTAINED_TICKS:
        return f"seen for {state.wanting_ticks} of {guards.SUSTAINED_TICKS} ticks"
    if sum(target) < sum(now):
        since = state.spare_since_s if state.spare_since_s is not None else now_s
        if now_s - since < policy.scale_in_stabilization_s:
            return f"spare for {now_s - since:.0f} of {policy.scale_in_stabilization_s:.0f} s"
    for switch in _switches(now, target):
        why = guards.against_switch(switch, observation, policy, state.history)
        if why is not None:
            return why
    return None


# --- small things ---


def _short(here: Estimate) -> Reason:
    if here.ttft < here.tpot - 0.02:
        return Reason.PREFILL_SHORT
    if here.tpot < here.ttft - 0.02:
        return Reason.DECODE_SHORT
    return Reason.BOTH_SHORT


def _action(prefill: int, decode: int, p: int, d: int) -> str:
    words = []
    if (p - prefill) * (d - decode) < 0:
        words.append("switch")
    if p + d > prefill + decode:
        words.append("scale-out")
    elif p + d < prefill + decode:
        words.append("scale-in")
    return "+".join(words) or "switch"


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
    words = f"threshold {decision.routing.max_local_prefill_tokens} → {routing.max_local_prefill_tokens} tokens"
    reason = decision.reason if decision.changes_layout else Reason.THRESHOLD
    return replace(
        decision, reason=reason, message=f"{decision.message}; {words}", routing=routing, changes_routing=True
    )


def _inputs(
    demand: Demand, here: Estimate, prefill: int, decode: int, routing: RoutingNumbers, observation: Observation
) -> tuple[tuple[str, float], ...]:
    numbers: dict[str, float | None] = {
        "ratePerSecond": demand.rate_per_s,
        "promptTokens": demand.prompt_tokens,
        "outputTokens": demand.output_tokens,
        "prefillWorkers": float(prefill),
        "decodeWorkers": float(decode),
        "thresholdTokens": float(routing.max_local_prefill_tokens),
        "expectedAttainment": here.attainment,
        "expectedTtftAttainment": here.ttft,
        "expectedTpotAttainment": here.tpot,
        "localPrefillShareOfDecode": here.local_busy,
        "observedTtftAttainment": observation.service.ttft_attainment if observation.service else None,
        "observedTpotAttainment": observation.service.tpot_attainment if observation.service else None,
        "prefillQueueDepth": observation.service.prefill_queue_depth if observation.service else None,
    }
    return tuple((name, round(value, 4)) for name, value in numbers.items() if value is not None)


def _mix(old: float, new: float | None, weight: float) -> float:
    return old if new is None else old + weight * (new - old)


def _mix_shares(
    old: tuple[tuple[float, float], ...], new: tuple[tuple[float, float], ...], weight: float
) -> tuple[tuple[float, float], ...]:
    if not new:
        return old
    mixed: dict[float, float] = {tokens: (1 - weight) * share for tokens, share in old}
    for tokens, share in new:
        mixed[tokens] = mixed.get(tokens, 0.0) + weight * share
    kept = {tokens: share for tokens, share in mixed.items() if share > 1e-3}
    total = sum(kept.values())
    return tuple((tokens, kept[tokens] / total) for tokens in sorted(kept)) if total > 0 else old
