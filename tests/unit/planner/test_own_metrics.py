"""The planner's own /metrics: what is unknown is not there, and nothing is left of a service that is not planned."""

from dataclasses import replace

from prometheus_client import generate_latest

from pointsman.api.protocol.names import Role
from pointsman.planner.core.types import (
    Decision,
    Load,
    Objectives,
    Observation,
    Policy,
    Reason,
    RoutingNumbers,
    Worker,
    WorkerCondition,
)
from pointsman.planner.metrics import PlannerMetrics
from pointsman.serving.flow_control import FlowBounds
from unit.planner.own_metrics import shown

POLICY = Policy(objectives=Objectives(1000, 50, ttft_ms_per_prompt_token=0.5, attainment=0.9), max_gpus=8)
ROUTING = RoutingNumbers(512, 32, FlowBounds(8192, None, 700))
WORKERS = (
    Worker("a", Role.PREFILL, WorkerCondition.ACTIVE, gpus=2),
    Worker("b", Role.DECODE, WorkerCondition.ACTIVE, gpus=2),
    Worker("c", Role.DECODE, WorkerCondition.STARTING, gpus=2),
)
SEEN = Observation(100, 5, 1, WORKERS, ROUTING, load=Load(3, prompt_tokens=600))
DECIDED = Decision(Reason.STEADY, "enough", 1, 2, ROUTING, inputs=(("ratePerSecond", 3.0), ("backlog", 0.0)))


def test_a_look_is_shown_with_objectives_budget_workers_and_the_numbers_in_force() -> None:
    metrics = PlannerMetrics()
    metrics.ticked("models", "chat", SEEN, DECIDED, POLICY)
    assert shown(metrics, "input") == {("ratePerSecond",): 3, ("backlog",): 0}
    assert shown(metrics, "ttft_objective_seconds") == {(): 1.3}
    assert shown(metrics, "tpot_objective_seconds") == {(): 0.05}
    assert shown(metrics, "attainment_objective") == {(): 0.9}
    assert (shown(metrics, "gpus"), shown(metrics, "budget_gpus")) == ({(): 6}, {(): 8})
    workers = {labels: value for labels, value in shown(metrics, "workers").items() if value}
    assert workers == {("Active", "Prefill"): 1, ("Active", "Decode"): 1, ("Starting", "Decode"): 1}
    assert shown(metrics, "routing") == {
        ("maxLocalPrefillTokens",): 512,
        ("maxPrefillQueueSize",): 32,
        ("prefillTokenBudget",): 8192,
        ("pendingTokensPerPrefillWorker",): 8192,
        ("slackMilliseconds",): 700,
    }


def test_what_was_renamed_is_shown_under_both_names_for_one_version() -> None:
    metrics, queued = PlannerMetrics(), (("queuedRequests", 4.0),)
    withdrawn = replace(DECIDED, reason=Reason.WITHDRAWN, inputs=queued)
    metrics.ticked("models", "chat", SEEN, withdrawn, POLICY)
    metrics.planned("models", "chat", withdrawn.reason)
    metrics.planned("models", "chat", Reason.BOTH_SHORT)
    assert shown(metrics, "input") == {("queuedRequests",): 4, ("held",): 4}
    for family in ("ticks_total", "plans_total"):
        counts = shown(metrics, family)
        assert (counts["Withdrawn",], counts["NoLongerWanted",]) == (1, 1)
    assert shown(metrics, "plans_total")["BothShort",] == 1


def test_what_was_known_and_is_not_any_more_is_absent_and_not_what_it_was() -> None:
    metrics = PlannerMetrics()
    metrics.ticked("models", "chat", SEEN, DECIDED, POLICY)
    blind = Observation(105, 0, float("inf"), WORKERS, RoutingNumbers(512, 32), gateways_age_s=float("inf"))
    metrics.ticked("models", "chat", blind, Decision(Reason.STALE_METRICS, "", 1, 2, blind.routing), POLICY)
    assert shown(metrics, "input") == {}
    assert shown(metrics, "ttft_objective_seconds") == {}, "it depends on prompts that nobody knows"
    in_force = {("maxLocalPrefillTokens",): 512, ("maxPrefillQueueSize",): 32, ("prefillTokenBudget",): 8192}
    assert shown(metrics, "routing") == in_force
    assert shown(metrics, "observation_age_seconds") == {("gateways",): float("inf")}, "of workers nobody says"


def test_the_age_of_what_was_read_is_told_of_gateways_and_of_workers() -> None:
    metrics = PlannerMetrics()
    metrics.ticked("models", "chat", replace(SEEN, gateways_age_s=1.5, workers_age_s=9.0), DECIDED, POLICY)
    assert shown(metrics, "observation_age_seconds") == {("gateways",): 1.5, ("workers",): 9.0}


def test_every_reason_is_counted_from_zero_so_that_the_first_of_it_is_an_increase() -> None:
    metrics = PlannerMetrics()
    metrics.ticked("models", "chat", SEEN, DECIDED, POLICY)
    metrics.planned("models", "chat", Reason.THRESHOLD)
    ticks, plans = shown(metrics, "ticks_total"), shown(metrics, "plans_total")
    reasons = {*Reason, "NoLongerWanted"}
    assert ticks == {(reason,): float(reason == Reason.STEADY) for reason in reasons}
    assert plans == {(reason,): float(reason == Reason.THRESHOLD) for reason in reasons}


def test_health_has_one_reason_at_a_time() -> None:
    metrics = PlannerMetrics()
    metrics.health("models", "chat", False, "StaleMetrics")
    metrics.health("models", "chat", True, "Planning")
    assert shown(metrics, "healthy") == {("Planning",): 1}


def test_when_nothing_is_known_of_a_service_only_what_was_counted_stays() -> None:
    metrics = PlannerMetrics()
    for name in ("other", "chat"):
        metrics.ticked("models", name, SEEN, DECIDED, POLICY)
        metrics.health("models", name, True, "Planning")
    metrics.unknown("models", "chat")
    page = generate_latest(metrics.registry).decode().splitlines()
    names = {line.split("{")[0] for line in page if 'service="chat"' in line and "_created" not in line}
    assert names == {f"pointsman_planner_{name}_total" for name in ("ticks", "plans", "routing_updates")}
    assert shown(metrics, "gpus") == {(): 6}, "of the other one"


def test_of_a_service_that_is_not_planned_any_more_nothing_is_left_and_of_others_all() -> None:
    metrics = PlannerMetrics()
    metrics.ticked("models", "other", SEEN, DECIDED, POLICY)
    metrics.health("models", "other", True, "Planning")
    before = generate_latest(metrics.registry)
    metrics.ticked("models", "chat", SEEN, DECIDED, POLICY)
    metrics.planned("models", "chat", DECIDED.reason)
    metrics.health("models", "chat", True, "Planning")
    metrics.forget("models", "chat")
    assert b"chat" not in generate_latest(metrics.registry)
    timed = b"_created"
    assert [line for line in generate_latest(metrics.registry).splitlines() if timed not in line] == [
        line for line in before.splitlines() if timed not in line
    ]
