"""The text of an explanation: what was seen, expected, considered, chosen and why, and what would change its mind."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from pointsman.api.protocol.names import LANGUAGE_ROLES, Role
from pointsman.api.v1alpha1.conditions import Condition, ConditionStatus
from pointsman.api.v1alpha1.plan import Plan, PlanPhase
from pointsman.api.v1alpha1.plannerpolicy import Mode
from pointsman.planner.core.routing.flow_bounds import in_words
from pointsman.planner.core.routing.publication import Publication, changes
from pointsman.planner.core.types import Alternative, Decision, Observation, Policy, Reason, WorkerCondition
from pointsman.planner.core.unreachable_objectives import unreachable_share
from pointsman.planner.core.what_if import WIDEST, TurningPoint, TurningPoints
from pointsman.planner.core.workload.seasonality import SeasonalForecast
from pointsman.planner.memory import NEVER_S, SAVE_EVERY_S
from pointsman.serving.flow_control import UNBOUNDED

_SHOWN_ALTERNATIVES = 8
_SHOWN_PUBLICATIONS = 8
_SHOWN_SHARE = 0.01  # of requests
_LATE_S = 30.0  # beyond what is normal, before somebody is said to be silent
WHAT_MODE_MEANS = {
    Mode.SHADOW: "The decision is only recorded: the policy's mode is Shadow.",
    Mode.APPROVE: "The plan needs an approval: the policy's mode is Approve.",
    Mode.EXTERNAL: "Only routing is set: the policy's mode is External, so others set replicas.",
}


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
            section("Alternatives", considered(told.decision.alternatives)),
            section("Decision", _chosen(told)),
            section("Loads at which the decision changes", _turning(told)),
            section("Accuracy of past estimates", _score(told)),
        ]
    if told.publications:
        sections.append(section("Latest published routing numbers", _published(told)))
    sections.append(section("Latest plans", plans_so_far(told.plans, told.now)))
    return "\n\n".join(sections) + "\n"


def _heading(told: Told) -> str:
    line = f"{told.namespace}/{told.service}: policy {told.policy_name}, mode {told.policy.mode}"
    if told.observation is not None:
        looked = datetime.fromtimestamp(told.observation.at_s, told.now.tzinfo)
        line += f"; evaluated {ago(told.now - looked)}"
    return line


def section(title: str, lines: Sequence[str]) -> str:
    """Lines below a title."""
    return "\n".join([title, *(f"  {line}" for line in lines)])


def _published(told: Told) -> list[str]:
    """A line for each publication, the newest first."""
    newest = reversed(told.publications[-_SHOWN_PUBLICATIONS:])
    return [
        f"{ago(told.now - datetime.fromtimestamp(each.at_s, told.now.tzinfo))}, {each.reason}: "
        + ", ".join(changes(each.before, each.after))
        for each in newest
    ]


def _wrong(told: Told) -> list[str]:
    """What the planner says is wrong, and what it cannot say itself: that it, or the operator, is silent."""
    lines = []
    if told.health is not None and told.health.status is not ConditionStatus.TRUE:
        lines.append(f"{told.health.reason}: {told.health.message}")
    observation = told.observation
    if observation is not None:
        lines += planner_is_silent(told.now, observation.at_s, told.policy)
        taken = sum(observation.committed(role) for role in LANGUAGE_ROLES) * observation.gpus_each
        taken += sum(w.gpus for w in observation.encode_workers if w.condition is not WorkerCondition.DRAINING)
        if taken > told.policy.max_gpus and told.policy.mode in (Mode.ACTIVE, Mode.APPROVE):
            lines.append(
                f"{taken} GPUs are in use, more than budget.maxGpus ({told.policy.max_gpus}): plans above the "
                "budget are not executed"
            )
    return [*lines, *operator_is_silent(told.now, told.plans)]


def planner_is_silent(now: datetime, looked_s: float, policy: Policy) -> list[str]:
    """A line if it has written down nothing for too long; ``looked_s``: Unix time of its last look."""
    silent_s = now.timestamp() - looked_s
    # A source that is scraped seldom is looked at again when it is stale.
    if silent_s <= SAVE_EVERY_S + policy.stale_after_s + policy.interval_s + _LATE_S:
        return []
    return [
        (
            f"the planner has saved no evaluation for {silent_s:.0f} s, so all below is old; check that it "
            "runs: kubectl get pods -A -l app.kubernetes.io/component=planner"
        )
    ]


def operator_is_silent(now: datetime, plans: Sequence[Plan]) -> list[str]:
    """A line if it has not seen the newest plan for too long."""
    newest = max(plans, key=lambda plan: plan.spec.sequence, default=None)
    if newest is None or newest.status.phase is not None:
        return []
    waits_s = (now - newest.spec.observed_at).total_seconds()
    if waits_s <= _LATE_S:
        return []
    return [
        (
            f"the operator has not handled plan {newest.metadata.name} for {waits_s:.0f} s; check that it "
            "runs: kubectl get pods -A -l app.kubernetes.io/component=operator"
        )
    ]


def _seen(observation: Observation, decision: Decision, policy: Policy) -> list[str]:
    prefill, decode = observation.active(Role.PREFILL), observation.active(Role.DECODE)
    lines = [f"{prefill} prefill and {decode} decode workers serve{_others(observation)}"]
    if policy.encode is not None:
        lines += _encoding(observation)
    ages = [
        f"the oldest {source}'s page {'was never read' if age_s >= NEVER_S else f'is {age_s:.0f} s old'}"
        for source, age_s in (("gateway", observation.gateways_age_s), ("worker", observation.workers_age_s))
        if age_s is not None
    ]
    lines += [", ".join(ages)] if ages else []
    load, service = observation.load, observation.service
    if load is None:
        early = decision.reason is Reason.NOT_ENOUGH_DATA
        unknown = (
            "the load is unknown until the second evaluation, because a rate needs two"
            if early
            else "the load could not be read: it is unknown, not zero"
        )
        return [*lines, unknown]
    lengths = (
        f" of {load.prompt_tokens:.0f} prompt and {load.output_tokens:.0f} answer tokens"
        if load.prompt_tokens is not None and load.output_tokens is not None
        else ", of unknown length"
    )
    lines.append(f"{load.arrivals_per_s:.2f} requests/s{lengths}")
    if service is not None:
        goals = policy.objectives
        lines.append(
            f"first tokens within {goals.ttft_ms:g} ms for {share(service.ttft_attainment)} of requests, "
            f"{goals.tpot_ms:g} ms a token for {share(service.tpot_attainment)}, both for {share(service.attainment)}"
        )
        waiting = service.prefill_queue_depth
        lines.append(
            f"{'unknown how many' if waiting is None else f'{waiting:.0f}'} requests wait for a prefill worker"
        )
    routing = observation.routing
    if service is not None and service.held:
        lines.append(f"{service.held:.0f} requests are queued at gateways, because they would be late and delay others")
    lines.append(f"prompts of up to {routing.max_local_prefill_tokens} new tokens are prefilled on their decode worker")
    lines.append(f"a prefill worker computes up to {routing.prefill_token_budget} prompt tokens at one time")
    if load.uncached is not None and load.uncached.only_local:
        shares = load.uncached.only_local
        reasons = ", ".join(f"{reason} {share(part)}" for reason, part in shares)
        lines.append(f"{share(sum(part for _, part in shares))} of prompts cannot be prefilled remotely: {reasons}")
    if routing.flow != UNBOUNDED:
        lines.append(in_words(routing.flow))
    if observation.plan_in_progress:
        lines.append("a plan is being executed")
    if observation.awaiting_approval is not None:
        lines.append(f"the plan for {observation.awaiting_approval} awaits approval")
    return lines


def _encoding(observation: Observation) -> list[str]:
    """What is seen of the encode pool and of the images that come to it."""
    workers, load = observation.encode_workers, observation.encode
    active = sum(worker.condition is WorkerCondition.ACTIVE for worker in workers)
    starting = sum(worker.condition is WorkerCondition.STARTING for worker in workers)
    lines = [f"{active} encode workers serve{f', {starting} starting' if starting else ''}"]
    if load is None:
        return [*lines, "no gateway counts images, so the load of the encode workers is unknown"]
    each = f", {load.images:.1f} of each" if load.images is not None else ""
    took = f", {load.image_ms:.0f} ms for one" if load.image_ms is not None else ""
    return [*lines, f"{load.requests_per_s:.2f} requests/s have images for encode workers{each}{took}"]


def _others(observation: Observation) -> str:
    counted = [
        (sum(worker.condition is condition for worker in observation.workers), words)
        for condition, words in (
            (WorkerCondition.STARTING, "starting"),
            (WorkerCondition.SWITCHING, "switching"),
            (WorkerCondition.DRAINING, "draining"),
            (WorkerCondition.UNREACHABLE, "unreachable"),
        )
    ]
    return "".join(f", {count} {words}" for count, words in counted if count)


def _expected(decision: Decision, policy: Policy, season: SeasonalForecast | None) -> list[str]:
    numbers = dict(decision.inputs)
    if "ratePerSecond" not in numbers:
        return ["none: too few metrics"]
    lines = [f"{numbers['ratePerSecond']:.2f} requests/s now"]
    if "expectedRatePerSecond" in numbers:
        lines[0] += f", {numbers['expectedRatePerSecond']:.2f} when a worker started now would serve"
    if season is not None:
        lines.append(_season(season))
    if {"prefillNeeded", "decodeNeeded"} <= numbers.keys():
        lines.append(
            f"that needs {numbers['prefillNeeded']:.0f} prefill and {numbers['decodeNeeded']:.0f} decode workers"
            + _now_needed(numbers)
        )
    share = unreachable_share(decision)
    if share >= _SHOWN_SHARE:
        longest = numbers.get("longestReachablePromptTokens")
        of = "" if longest is None else f" (prompts above about {longest:.0f} tokens)"
        lines.append(f"about {share:.0%} of requests miss an objective even on an idle worker{of}")
    if numbers.get("backlog", 0) >= 1:
        lines.append(f"{numbers['backlog']:.0f} more requests are already waiting")
    return lines


def _season(season: SeasonalForecast) -> str:
    days = f"the last {season.days} days" if season.days > 1 else "the day before"
    of = "the same day a week ago" if season.weekly else days
    believed = f"{season.share:.0%} of such rises recurred recently"
    if season.share == 0:
        believed = "not used, because no such rise recurred recently"
    return f"as on {of}: {season.per_s:.2f} requests/s then, a rise of {season.rise_per_s:.2f} ({believed})"


def _now_needed(numbers: dict[str, float]) -> str:
    now = [numbers.get(name) for name in ("prefillNeededNow", "decodeNeededNow")]
    if None in now or now == [numbers["prefillNeeded"], numbers["decodeNeeded"]]:
        return ""
    return f" (the present load alone: {now[0]:.0f} and {now[1]:.0f})"


def considered(alternatives: Sequence[Alternative]) -> list[str]:
    """A line for each, the chosen one first."""
    if not alternatives:
        return ["no other layout"]
    shown = alternatives[:_SHOWN_ALTERNATIVES]
    return [f"{' ' if other.rejected_because else '→'} {_alternative(other)}" for other in shown]


def _alternative(other: Alternative) -> str:
    why = f"; {other.rejected_because}" if other.rejected_because else ""
    gpus = f"{other.gpus} GPU{'s' if other.gpus != 1 else ''}"
    when = f", serves in {other.lead_s:.0f} s" if other.lead_s > 0 else ""
    return f"{other.in_words}  {other.action}, {gpus}{when}: {other.expected_attainment:.0%} expected{why}"


def _chosen(told: Told) -> list[str]:
    decision = told.decision
    assert decision is not None
    if decision.changes_pools:
        moves = [f"{s.count} {s.source} to {s.target}" for s in decision.switches]
        how = f", switching {' and '.join(moves)}" if moves else ""
        lines = [f"go to {decision.in_words}{how} ({decision.reason})"]
    elif decision.reason is Reason.SWITCH_DEFERRED:
        lines = ["wait: another split would be better, but the guards defer a switch"]
    elif decision.reason is Reason.AWAITING_APPROVAL:
        lines = ["wait: the plan for this layout awaits approval"]
    else:
        lines = [f"stay at {decision.in_words} ({decision.reason})"]
    lines.append(decision.message)
    if decision.changes_pools and told.policy.mode in WHAT_MODE_MEANS:
        lines.append(WHAT_MODE_MEANS[told.policy.mode])
    if decision.changes_routing and told.observation is not None:
        numbers = ", ".join(changes(told.observation.routing, decision.routing))
        shadow = told.policy.mode is Mode.SHADOW
        lines.append(f"routing numbers{' (not published: the policy is in mode Shadow)' if shadow else ''}: {numbers}")
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
    ended = ago(told.now - ended_at)
    if phase is PlanPhase.DENIED:
        patience = f"{told.denied_for_s:.0f} s after that (approvals.expireAfterSeconds)"
        return [f"{name} for this layout was denied {ended}; the next plan is made {patience}"]
    if phase in (PlanPhase.FAILED, PlanPhase.EXPIRED):
        return [f"{name} for this layout {phase.lower()} {ended}; the planner retries after 30 s, with back-off"]
    return []


def _turning(told: Told) -> list[str]:
    points, observation = told.turning, told.observation
    if points is None or observation is None:
        return ["any load: none was measured"]
    held_s = told.policy.scale_in_stabilization_s
    lines: list[str] = []
    if points.more_requests is not None and points.more_requests.already:
        lines.append(f"once the guards no longer defer it, {_goal(points.more_requests)}")
    else:
        asked = (
            ("more than {value:.2f} requests/s", points.more_requests),
            ("prompts of {value:.0f} tokens", points.longer_prompts),
            ("answers of {value:.0f} tokens", points.longer_answers),
        )
        lines += [f"{words.format(value=at.value)}: {_goal(at)}" for words, at in asked if at is not None]
    fewer = points.fewer_requests
    if fewer is not None:
        low = "the present load" if fewer.already else f"fewer than {fewer.value:.2f} requests/s"
        lines.append(f"{low} for {held_s:.0f} s: {_goal(fewer)}")
    return lines or [f"none within {WIDEST:g} times the present load: the policy allows no other layout that helps"]


def _score(told: Told) -> list[str]:
    assert told.decision is not None
    numbers = dict(told.decision.inputs)
    predicted, observed = numbers.get("predictedAttainment"), numbers.get("observedAttainment")
    if predicted is None or observed is None:
        return ["no estimate has been compared yet"]
    lines = [
        (
            f"expected {predicted:.0%} of requests within objectives with the recent workers; observed "
            f"{observed:.0%}; mean error of one evaluation {numbers['predictionError'] * 100:.0f} points"
        )
    ]
    if_executed, gpus = numbers.get("attainmentIfExecuted"), numbers.get("gpusIfExecuted")
    if if_executed is not None and gpus is not None and told.policy.mode is Mode.SHADOW:
        lines.append(
            f"with the recorded plans executed, estimated {if_executed:.0%} on {gpus:.0f} GPUs; start and "
            "switch times as usual"
        )
    return lines


def _goal(point: TurningPoint) -> str:
    decision = point.decision
    return f"the planner would change to {decision.in_words} ({decision.reason})"


def plans_so_far(plans: Sequence[Plan], now: datetime) -> list[str]:
    """The newest plan, and the newest that changes the layout."""
    made = sorted(plans, key=lambda plan: plan.spec.sequence)
    if not made:
        return ["no plan was made"]
    layouts = [plan for plan in made if plan.spec.changes_layout]
    shown = [layouts[-1]] if layouts else []
    if made[-1] not in shown:
        shown.append(made[-1])
    return [line for plan in shown for line in _plan(plan, now)]


def _plan(plan: Plan, now: datetime) -> list[str]:
    spec, status = plan.spec, plan.status
    what = spec.target_in_words if spec.changes_layout else "routing"
    became = f"{status.phase}" if status.phase is not None else "not handled by the operator yet"
    lines = [f"{plan.metadata.name} ({ago(now - spec.observed_at)}): {what}, {spec.reason}; {became}", spec.message]
    if status.message:
        lines.append(status.message)
    return [lines[0], *(f"  {line}" for line in lines[1:])]


def share(value: float | None) -> str:
    """In percent."""
    return "an unknown share" if value is None else f"{value:.0%}"


def ago(past: timedelta) -> str:
    """How long ago, in words."""
    seconds = past.total_seconds()
    if seconds < 0:
        return f"{-seconds:.0f} s ahead of the clock of this computer"
    if seconds < 120:
        return f"{seconds:.0f} s ago"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min ago"
    return f"{seconds / 3600:.0f} h ago"
