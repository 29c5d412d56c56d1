"""The text of an explanation: what was seen, expected, considered, chosen and why, and what would change its mind."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from pointsman.api.protocol.names import LANGUAGE_ROLES, Role
from pointsman.api.v1alpha1.conditions import Condition, ConditionStatus
from pointsman.api.v1alpha1.plan import Plan, PlanPhase
from pointsman.api.v1alpha1.plannerpolicy import Mode
from pointsman.planner.core.messages import explanations as text
from pointsman.planner.core.routing.flow_bounds import in_words
from pointsman.planner.core.routing.publication import Publication, changes
from pointsman.planner.core.types import (
    Alternative,
    Decision,
    Observation,
    Policy,
    Reason,
    WorkerCondition,
    target_in_words,
)
from pointsman.planner.core.unreachable_objectives import unreachable_share
from pointsman.planner.core.what_if import WIDEST, TurningPoint, TurningPoints
from pointsman.planner.core.workload.seasonality import SeasonalForecast
from pointsman.planner.memory import NEVER_S, SAVE_EVERY_S
from pointsman.planner.policies import STALE_INTERVALS
from pointsman.serving.flow_control import UNBOUNDED

_SHOWN_ALTERNATIVES = 8
_SHOWN_PUBLICATIONS = 8
_SHOWN_SHARE = 0.01  # of requests
_LATE_S = 30.0  # beyond what is normal, before somebody is said to be silent


@dataclass(frozen=True, slots=True)
class Told:
    """Everything an explanation is made of. ``observation`` and ``decision`` None: ``unknown`` says why."""

    service: str
    namespace: str
    policy_name: str
    policy: Policy
    now: datetime
    observation: Observation | None
    decision: Decision | None
    turning: TurningPoints | None
    plans: Sequence[Plan]
    health: Condition | None
    unknown: str = ""
    season: SeasonalForecast | None = None  # None: it says nothing yet, or is switched off
    publications: Sequence[Publication] = ()  # of routing numbers, the newest last
    shows_inputs: bool = False  # of the decision
    denied_for_s: float = 900.0  # approvals.expireAfterSeconds: a plan that was denied is not made again sooner


def explanation(told: Told) -> str:
    """The whole text."""
    sections = [_heading(told)]
    wrong = _wrong(told)
    if wrong:
        sections.append(section("Problems", wrong))
    if told.observation is None or told.decision is None:
        sections.append(told.unknown)
    else:
        sections += [
            section("Metrics", _seen(told.observation, told.decision, told.policy)),
            section("Forecast", _expected(told.decision, told.policy, told.season)),
            section(text.ALTERNATIVES_TITLE, considered(told.decision.alternatives)),
            section("Decision", _chosen(told)),
            section(text.LOADS_TITLE, _turning(told)),
            section(text.ACCURACY_TITLE, _score(told)),
        ]
        if told.shows_inputs:
            sections.append(section(text.INPUTS_TITLE, input_lines(told.decision.inputs)))
    if told.publications:
        sections.append(section(text.PUBLICATIONS_TITLE, _published(told)))
    sections.append(section("Latest plans", plans_so_far(told.plans, told.now)))
    return "\n\n".join(sections) + "\n"


def _heading(told: Told) -> str:
    looked_s = None if told.observation is None else told.now.timestamp() - told.observation.at_s
    return text.heading(told.namespace, told.service, told.policy_name, told.policy.mode, looked_s)


def section(title: str, lines: Sequence[str]) -> str:
    """Lines below a title."""
    return "\n".join([title, *(f"  {line}" for line in lines)])


def _published(told: Told) -> list[str]:
    """A line for each publication, the newest first."""
    newest = reversed(told.publications[-_SHOWN_PUBLICATIONS:])
    now_s = told.now.timestamp()
    return [text.publication(now_s - each.at_s, each.reason, changes(each.before, each.after)) for each in newest]


def _wrong(told: Told) -> list[str]:
    """What the planner says is wrong, and what it cannot say itself: that it, or the operator, is silent."""
    lines = []
    if told.health is not None and told.health.status is not ConditionStatus.TRUE:
        lines.append(f"{told.health.reason}: {told.health.message}")
    observation = told.observation
    if observation is not None:
        lines += planner_is_silent(told.now, observation, told.policy)
        taken = sum(observation.committed(role) for role in LANGUAGE_ROLES) * observation.gpus_each
        taken += sum(w.gpus for w in observation.encode_workers if w.condition is not WorkerCondition.DRAINING)
        if taken > told.policy.max_gpus and told.policy.mode in (Mode.ACTIVE, Mode.APPROVE):
            lines.append(text.over_budget(taken, told.policy.max_gpus))
    return [*lines, *operator_is_silent(told.now, told.plans)]


def planner_is_silent(now: datetime, looked: Observation, policy: Policy) -> list[str]:
    """A line if it has written down nothing for too long since it ``looked``."""
    silent_s = now.timestamp() - looked.at_s
    # A source that is scraped seldom is looked at again when it is stale.
    stale_s = max(policy.stale_after_s, STALE_INTERVALS * looked.window_s)
    if silent_s <= SAVE_EVERY_S + stale_s + policy.interval_s + _LATE_S:
        return []
    return [text.silent("planner", None, silent_s)]


def operator_is_silent(now: datetime, plans: Sequence[Plan]) -> list[str]:
    """A line if it has not seen the newest plan for too long."""
    newest = max(plans, key=lambda plan: plan.spec.sequence, default=None)
    if newest is None or newest.status.phase is not None:
        return []
    waits_s = (now - newest.spec.observed_at).total_seconds()
    if waits_s <= _LATE_S:
        return []
    return [text.silent("operator", newest.metadata.name, waits_s)]


def _seen(observation: Observation, decision: Decision, policy: Policy) -> list[str]:
    prefill, decode = observation.active(Role.PREFILL), observation.active(Role.DECODE)
    lines = [text.workers_serve(prefill, decode, _others(observation))]
    if policy.encode is not None:
        lines += _encoding(observation)
    ages = [
        text.page_age(source, None if age_s >= NEVER_S else age_s)
        for source, age_s in (("gateway", observation.gateways_age_s), ("worker", observation.workers_age_s))
        if age_s is not None
    ]
    lines += [", ".join(ages)] if ages else []
    load, service = observation.load, observation.service
    if load is None:
        early = decision.reason is Reason.NOT_ENOUGH_DATA
        return [*lines, text.LOAD_NOT_YET if early else text.LOAD_UNREAD]
    lines.append(text.load(load.arrivals_per_s, load.prompt_tokens, load.output_tokens))
    if service is not None:
        goals = policy.objectives
        shares = (service.ttft_attainment, service.tpot_attainment, service.attainment)
        lines.append(text.attainment(goals.ttft_ms, goals.tpot_ms, *shares))
        lines.append(text.prefill_queue(service.prefill_queue_depth))
    routing = observation.routing
    if service is not None and service.held:
        lines.append(text.queued_at_gateways(service.held))
    lines.append(text.local_prefill(routing.max_local_prefill_tokens))
    lines.append(text.prefill_budget(routing.prefill_token_budget))
    if load.uncached is not None and load.uncached.only_local:
        lines.append(text.only_local(load.uncached.only_local))
    if routing.flow != UNBOUNDED:
        lines.append(in_words(routing.flow))
    if observation.plan_in_progress:
        lines.append(text.PLAN_EXECUTING)
    if observation.awaiting_approval is not None:
        lines.append(text.plan_awaits_approval(target_in_words(observation.awaiting_approval)))
    return lines


def _encoding(observation: Observation) -> list[str]:
    """What is seen of the encode pool and of the images that come to it."""
    workers, load = observation.encode_workers, observation.encode
    active = sum(worker.condition is WorkerCondition.ACTIVE for worker in workers)
    starting = sum(worker.condition is WorkerCondition.STARTING for worker in workers)
    lines = [text.encode_workers(active, starting)]
    if load is None:
        return [*lines, text.ENCODE_LOAD_UNKNOWN]
    return [*lines, text.encode_load(load.requests_per_s, load.images, load.image_ms)]


def _others(observation: Observation) -> list[tuple[int, str]]:
    return [
        (sum(worker.condition is condition for worker in observation.workers), words)
        for condition, words in (
            (WorkerCondition.STARTING, "starting"),
            (WorkerCondition.SWITCHING, "switching"),
            (WorkerCondition.DRAINING, "draining"),
            (WorkerCondition.UNREACHABLE, "unreachable"),
        )
    ]


def _expected(decision: Decision, policy: Policy, season: SeasonalForecast | None) -> list[str]:
    numbers = dict(decision.inputs)
    if "ratePerSecond" not in numbers:
        return [text.NO_FORECAST]
    lines = [text.rate(numbers["ratePerSecond"], numbers.get("expectedRatePerSecond"))]
    if season is not None:
        lines.append(text.recurring_rise(season.per_s, season.rise_per_s, season.share, season.days, season.weekly))
    if {"prefillNeeded", "decodeNeeded"} <= numbers.keys():
        needed = (numbers["prefillNeeded"], numbers["decodeNeeded"])
        lines.append(text.workers_needed(*needed, _needed_now(numbers, needed)))
    share = unreachable_share(decision)
    if share >= _SHOWN_SHARE:
        lines.append(text.unreachable(share, numbers.get("longestReachablePromptTokens")))
    if numbers.get("backlog", 0) >= 1:
        lines.append(text.backlog(numbers["backlog"]))
    return lines


def _needed_now(numbers: Mapping[str, float], needed: tuple[float, float]) -> tuple[float, float] | None:
    """None: unknown, or the same."""
    prefill, decode = numbers.get("prefillNeededNow"), numbers.get("decodeNeededNow")
    if prefill is None or decode is None or (prefill, decode) == needed:
        return None
    return prefill, decode


def considered(alternatives: Sequence[Alternative]) -> list[str]:
    """A line for each, the chosen one first."""
    if not alternatives:
        return [text.NO_OTHER_LAYOUT]
    shown = alternatives[:_SHOWN_ALTERNATIVES]
    return [f"{' ' if other.rejected_because else '→'} {_alternative(other)}" for other in shown]


def _alternative(other: Alternative) -> str:
    return text.alternative(
        other.in_words, other.action, other.gpus, other.lead_s, other.expected_attainment, other.rejected_because
    )


def _chosen(told: Told) -> list[str]:
    decision = told.decision
    assert decision is not None
    lines = [text.outcome(decision.in_words, decision.reason, decision.changes_pools), decision.message]
    if decision.changes_pools and (consequence := text.consequence(told.policy.mode)):
        lines.append(consequence)
    if decision.changes_routing and told.observation is not None:
        numbers = changes(told.observation.routing, decision.routing)
        lines.append(text.routing_numbers(numbers, published=told.policy.mode is not Mode.SHADOW))
    return [*lines, *_tried(told, decision)]


def _tried(told: Told, decision: Decision) -> list[str]:
    """Why there is no new plan where the last one for the same layout has ended."""
    layouts = [plan for plan in told.plans if plan.spec.changes_layout]
    last = max(layouts, key=lambda plan: plan.spec.sequence, default=None)
    if not decision.changes_pools or last is None or last.spec.target != decision.target:
        return []
    name, phase, ended_at = last.metadata.name, last.status.phase, last.status.ended_at
    if phase is None or ended_at is None:
        return []
    ended_s = (told.now - ended_at).total_seconds()
    if phase not in (PlanPhase.DENIED, PlanPhase.FAILED, PlanPhase.EXPIRED):
        return []
    return [text.tried(name, phase, ended_s, told.denied_for_s if phase is PlanPhase.DENIED else None)]


def _turning(told: Told) -> list[str]:
    points, observation = told.turning, told.observation
    if points is None or observation is None:
        return [text.ANY_LOAD]
    more, fewer, lines = points.more_requests, points.fewer_requests, []
    if more is not None and more.already:
        lines.append(text.would_change(text.GUARDS_END, 0.0, *_goal(more)))
    else:
        higher = {
            "more_requests": more,
            "longer_prompts": points.longer_prompts,
            "longer_answers": points.longer_answers,
        }
        lines += [text.would_change(text.at_load(n, at.value), 0.0, *_goal(at)) for n, at in higher.items() if at]
    if fewer is not None:
        low = text.PRESENT_LOAD if fewer.already else text.at_load("fewer_requests", fewer.value)
        lines.append(text.would_change(low, told.policy.scale_in_stabilization_s, *_goal(fewer)))
    return lines or [text.no_load(WIDEST)]


def _score(told: Told) -> list[str]:
    assert told.decision is not None
    numbers = dict(told.decision.inputs)
    predicted, observed = numbers.get("predictedAttainment"), numbers.get("observedAttainment")
    if predicted is None or observed is None:
        return [text.NO_ESTIMATE]
    lines = [text.accuracy(predicted, observed, numbers["predictionError"])]
    if_executed, gpus = numbers.get("attainmentIfExecuted"), numbers.get("gpusIfExecuted")
    if if_executed is not None and gpus is not None and told.policy.mode is Mode.SHADOW:
        lines.append(text.if_executed(if_executed, gpus))
    return lines


def input_lines(numbers: Sequence[tuple[str, float]]) -> list[str]:
    """A line for each number that a decision is based on, in columns."""
    if not numbers:
        return [text.NO_INPUTS]
    of_names, of_values = max(len(name) for name, _ in numbers), max(len(f"{value:.10g}") for _, value in numbers)
    return [text.input_number(name, value, of_names, of_values) for name, value in numbers]


def _goal(point: TurningPoint) -> tuple[str, Reason]:
    return point.decision.in_words, point.decision.reason


def plans_so_far(plans: Sequence[Plan], now: datetime) -> list[str]:
    """The newest plan, and the newest that changes the layout."""
    made = sorted(plans, key=lambda plan: plan.spec.sequence)
    if not made:
        return [text.NO_PLAN]
    layouts = [plan for plan in made if plan.spec.changes_layout]
    shown = [layouts[-1]] if layouts else []
    if made[-1] not in shown:
        shown.append(made[-1])
    return [line for plan in shown for line in _plan(plan, now)]


def _plan(plan: Plan, now: datetime) -> list[str]:
    spec, status = plan.spec, plan.status
    layout = spec.target_in_words if spec.changes_layout else None
    made_s = (now - spec.observed_at).total_seconds()
    lines = [text.plan_so_far(plan.metadata.name, made_s, layout, spec.reason, status.phase), spec.message]
    if status.message:
        lines.append(status.message)
    return [lines[0], *(f"  {line}" for line in lines[1:])]
