"""What is said about a service: the right reason, and times that move only when something flips."""

from dataclasses import replace
from datetime import timedelta

import pytest

from pointsman.api.protocol.names import LANGUAGE_ROLES, Role
from pointsman.api.v1alpha1.conditions import Condition, ConditionStatus, ConditionType, Reason
from pointsman.api.v1alpha1.llmservice import LLMServiceStatus
from pointsman.api.v1alpha1.plannerpolicy import Mode, PlannerPolicySpec
from pointsman.operator.core.problems import Problem
from pointsman.operator.core.snapshot import (
    Container,
    DrainReason,
    DrainScore,
    GatewayDeployment,
    GatewayPod,
    Policy,
    Pool,
)
from pointsman.operator.core.status import report
from unit.operator.reports import NOW, of, told
from unit.operator.scenes import leaving, snapshot, worker
from unit.operator.world import service, spec

PREFILL = worker("p", Role.PREFILL)
DECODE = worker("d")
TWO_DECODE = service(spec(decode=(2, 1, 4)))


def test_a_service_with_all_it_asked_for_is_ready() -> None:
    outcome = told(snapshot(PREFILL, DECODE))
    assert outcome.status.summary == "1P1D"
    assert outcome.reason is Reason.AS_DESIRED
    ready = (ConditionType.READY, ConditionType.AVAILABLE, ConditionType.PREFILL_READY, ConditionType.DECODE_READY)
    assert {of(outcome, kind).status for kind in (*ready, ConditionType.GATEWAY_READY)} == {ConditionStatus.TRUE}
    assert of(outcome, ConditionType.DEGRADED).status is ConditionStatus.FALSE
    assert of(outcome, ConditionType.PROGRESSING).reason == Reason.IDLE


def test_times_move_only_when_a_status_flips() -> None:
    first = told(snapshot(PREFILL, DECODE)).status
    later = NOW + timedelta(minutes=5)
    again = told(snapshot(PREFILL, DECODE), before=first, now=later)
    assert again.status == first, "an unchanged service is said in the same words"
    broken = told(snapshot(PREFILL), before=first, now=later)
    assert of(broken, ConditionType.DECODE_READY).last_transition_time == later
    assert of(broken, ConditionType.PREFILL_READY).last_transition_time == NOW


@pytest.mark.parametrize(
    ("mode", "words"), [(Mode.ACTIVE, "only plans change"), (Mode.EXTERNAL, "an autoscaler changes"), (Mode.SHADOW, "")]
)
def test_a_number_in_the_service_that_is_not_followed_is_said_with_who_owns_it(mode: Mode, words: str) -> None:
    wanted = {"mode": mode, "objectives": {"ttftMs": 1000, "tpotMs": 50}, "budget": {"maxGpus": 8}}
    policy = Policy(name="thrifty", spec=PlannerPolicySpec.model_validate(wanted))
    found = replace(snapshot(PREFILL, DECODE), policy=policy)
    edited = replace(found, service=service(spec(decode=(3, 1, 4))))
    assert "has no effect" not in of(told(found), ConditionType.DECODE_READY).message
    message = of(told(edited), ConditionType.DECODE_READY).message
    assert (f"replicas 3 has no effect: PlannerPolicy 'thrifty' is in mode {mode}" in message) is bool(words)
    assert words in message


def test_a_full_budget_is_named_where_workers_are_missing() -> None:
    wanted = {"mode": "Active", "objectives": {"ttftMs": 1000, "tpotMs": 50}, "budget": {"maxGpus": 2}}
    policy = Policy(name="thrifty", spec=PlannerPolicySpec.model_validate(wanted))
    found = replace(snapshot(PREFILL, leaving(Role.DECODE)), policy=policy)
    condition = of(told(found), ConditionType.DECODE_READY)
    assert (condition.status, condition.reason) == (ConditionStatus.FALSE, Reason.BUDGET_REACHED)
    assert "all 2 GPUs of budget.maxGpus" in condition.message


def test_conditions_of_others_are_left_where_they_are() -> None:
    theirs = Condition(type="PlannerHealthy", status=ConditionStatus.TRUE, reason="Well", last_transition_time=NOW)
    outcome = told(snapshot(PREFILL, DECODE), before=LLMServiceStatus(conditions=(theirs,)))
    assert theirs not in outcome.status.conditions, "they are written by their own field manager"


@pytest.mark.parametrize(
    ("container", "reason"),
    [
        (Container(waiting_reason="CrashLoopBackOff", restarts=4, last_exit_code=1), Reason.CRASH_LOOP),
        (Container(restarts=1, last_exit_code=137, running=True), Reason.WORKER_CRASHED),
        (Container(waiting_reason="ImagePullBackOff"), Reason.IMAGE_PULL_FAILED),
        (Container(waiting_reason="CreateContainerConfigError"), Reason.CONTAINER_NOT_STARTED),
    ],
)
def test_a_failed_worker_degrades_its_service_with_the_reason(container: Container, reason: Reason) -> None:
    broken = replace(DECODE, pod_ready=False, container=container)
    outcome = told(snapshot(PREFILL, broken))
    degraded = of(outcome, ConditionType.DEGRADED)
    assert (degraded.status, degraded.reason) == (ConditionStatus.TRUE, reason)
    assert broken.name in degraded.message
    assert of(outcome, ConditionType.DECODE_READY).reason == reason
    assert of(outcome, ConditionType.PREFILL_READY).status is ConditionStatus.TRUE


def test_the_last_lines_of_a_crashed_engine_are_in_the_message_and_bounded() -> None:
    text = "x" * 5000 + "\nRuntimeError: out of memory"
    container = Container(waiting_reason="CrashLoopBackOff", restarts=4, last_exit_code=1, last_exit_message=text)
    message = of(told(snapshot(PREFILL, replace(DECODE, container=container))), ConditionType.DEGRADED).message
    assert "RuntimeError: out of memory" in message
    assert len(message) < 1000


def test_a_worker_no_node_takes_is_said_in_the_schedulers_words() -> None:
    waiting = replace(DECODE, unschedulable="0/3 nodes have a GPU", container=Container(), pod_ready=False)
    outcome = told(snapshot(PREFILL, waiting))
    assert outcome.reason is Reason.UNSCHEDULABLE
    assert "0/3 nodes have a GPU" in of(outcome, ConditionType.READY).message


def test_without_prefill_workers_requests_are_still_answered() -> None:
    outcome = told(snapshot(DECODE))
    available = of(outcome, ConditionType.AVAILABLE)
    assert available.status is ConditionStatus.TRUE
    assert "without a prefill worker" in available.message
    assert of(outcome, ConditionType.READY).status is ConditionStatus.FALSE


def test_a_leaving_worker_is_counted_as_draining_only() -> None:
    counts = told(snapshot(PREFILL, DECODE, leaving(name="gone"))).status.pools
    assert counts is not None
    assert (counts.decode.existing, counts.decode.routable, counts.decode.draining) == (1, 1, 1)


def test_a_pool_shows_who_leaves_and_what_it_was_chosen_by() -> None:
    first = leaving(name="first", drain_started_s=80.0, drain_score=DrainScore.parse("120/34"))
    second = leaving(name="second", drain_score=DrainScore.parse(str(DrainScore())))
    switched = leaving(name="switched", drain_reason=DrainReason.UNHEALTHY)
    victims = told(snapshot(PREFILL, DECODE, second, switched, first)).pools[Role.DECODE].victims
    assert [item.manifest() for item in victims or ()] == [
        {"worker": "first", "inFlightTokens": 120, "cachedBlocks": 34},
        {"worker": "second"},
    ]
    assert told(snapshot(PREFILL, DECODE)).pools[Role.DECODE].victims is None


def test_a_terminating_worker_is_not_there() -> None:
    counts = told(snapshot(PREFILL, DECODE, worker("gone", terminating=True))).status.pools
    assert counts is not None
    assert (counts.decode.existing, counts.decode.draining) == (1, 0)


def test_no_ready_gateway_means_not_available() -> None:
    outcome = told(snapshot(PREFILL, DECODE, gateways=(GatewayPod(name="g", ready=False),)))
    assert of(outcome, ConditionType.AVAILABLE).reason == Reason.GATEWAY_NOT_READY
    assert of(outcome, ConditionType.GATEWAY_READY).reason == Reason.GATEWAY_STARTING


def test_a_refused_object_is_why_the_service_is_not_ready() -> None:
    problem = Problem(reason=Reason.NAME_CONFLICT, message="Service chat-gateway belongs to somebody else")
    outcome = told(snapshot(PREFILL, DECODE), problem)
    assert (outcome.reason, of(outcome, ConditionType.READY).message) == (Reason.NAME_CONFLICT, problem.message)


def test_workers_of_an_older_revision_are_named() -> None:
    progressing = of(told(snapshot(PREFILL, DECODE), revision="new"), ConditionType.PROGRESSING)
    assert progressing.reason == Reason.CHANGE_NEEDS_ROLLOUT
    assert "d, p" in progressing.message


def test_a_service_is_not_ready_while_workers_of_an_older_revision_serve() -> None:
    """Or kubectl wait, Argo CD and Flux would report a change that reached no worker as rolled out."""
    current = replace(DECODE, revision="new")
    outcome = told(snapshot(PREFILL, current), revision="new")
    ready, prefill = of(outcome, ConditionType.READY), of(outcome, ConditionType.PREFILL_READY)
    assert (ready.status, ready.reason) == (ConditionStatus.FALSE, Reason.CHANGE_NEEDS_ROLLOUT)
    assert (prefill.status, prefill.reason) == (ConditionStatus.FALSE, Reason.CHANGE_NEEDS_ROLLOUT)
    assert "1 of 1 prefill worker serves; 1 worker runs an older revision" in ready.message
    assert of(outcome, ConditionType.DECODE_READY).status is ConditionStatus.TRUE
    assert of(outcome, ConditionType.AVAILABLE).status is ConditionStatus.TRUE, "requests are answered"
    assert [item.status for item in outcome.pools[Role.PREFILL].conditions if item.type == "Ready"] == ["False"]


def test_a_refused_spec_makes_no_worker_outdated() -> None:
    outcome = report(
        snapshot(PREFILL, DECODE),
        [Problem(reason=Reason.TEMPLATE_REFUSED, message="a field is refused")],
        endpoint="http://chat",
        revision=None,
        before=LLMServiceStatus(),
        now=NOW,
    )
    assert of(outcome, ConditionType.READY).reason == Reason.TEMPLATE_REFUSED


LOST = replace(DECODE, node="n1", node_lost=True, pod_ready=False, verified_container="decode/c")
"""A worker that served, on a node that does not answer any more: its container is still said to run."""


def test_a_worker_on_a_lost_node_is_said_to_be_lost() -> None:
    outcome = told(snapshot(PREFILL, replace(DECODE, name="other", uid="other"), LOST, service=TWO_DECODE))
    degraded, decode = of(outcome, ConditionType.DEGRADED), of(outcome, ConditionType.DECODE_READY)
    assert (degraded.status, degraded.reason) == (ConditionStatus.TRUE, Reason.NODE_LOST)
    assert "d is on node n1, which does not answer" in degraded.message
    assert (decode.status, decode.reason) == (ConditionStatus.FALSE, Reason.NODE_LOST)
    counts = outcome.status.pools
    assert counts is not None
    assert (counts.decode.existing, counts.decode.routable, counts.decode.starting) == (2, 1, 0)
    assert of(outcome, ConditionType.PROGRESSING).reason == Reason.IDLE, "nothing is being started"


def test_a_worker_that_never_served_and_is_on_a_lost_node_is_not_being_started() -> None:
    outcome = told(snapshot(PREFILL, replace(LOST, verified_container=None)))
    counts = outcome.status.pools
    assert counts is not None
    assert (counts.decode.existing, counts.decode.starting) == (1, 0)
    assert of(outcome, ConditionType.DECODE_READY).reason == Reason.NODE_LOST


def test_an_engine_that_served_and_is_silent_now_does_not_load() -> None:
    outcome = told(snapshot(PREFILL, replace(DECODE, pod_ready=False)))
    degraded, counts = of(outcome, ConditionType.DEGRADED), outcome.status.pools
    assert degraded.reason == Reason.WORKER_UNRESPONSIVE
    assert counts is not None
    assert counts.decode.starting == 0
    assert "d served before and fails its readiness probe now" in degraded.message


def test_a_gateway_on_a_lost_node_is_said_to_be_lost() -> None:
    gateways = (GatewayPod(name="g", ready=False, node="n1", node_lost=True),)
    outcome = told(snapshot(PREFILL, DECODE, gateways=gateways))
    ready = of(outcome, ConditionType.GATEWAY_READY)
    assert ready.reason == Reason.GATEWAY_NOT_READY
    assert "gateway g is on node n1, which does not answer" in ready.message


SILENT = replace(DECODE, node="n1", asked=True, state=None)
"""A routable worker that did not answer the operator."""


def test_a_worker_that_neither_operator_nor_gateways_reach_does_not_serve() -> None:
    """Kubernetes takes 50 seconds to find a node lost."""
    gateways = tuple(GatewayPod(name=n, ready=True, uses=frozenset({"d"}), avoids=frozenset({"d"})) for n in "ab")
    outcome = told(snapshot(PREFILL, replace(SILENT, uid="d"), gateways=gateways))
    decode = of(outcome, ConditionType.DECODE_READY)
    assert (decode.status, decode.reason) == (ConditionStatus.FALSE, Reason.WORKER_UNREACHABLE)
    assert "d on node n1 answers neither the operator nor any gateway" in decode.message
    assert of(outcome, ConditionType.READY).status is ConditionStatus.FALSE
    assert outcome.status.summary == "1P0D"


@pytest.mark.parametrize(
    "gateways",
    [
        (GatewayPod(name="g", ready=True, uses=frozenset({"d"})),),  # it reaches the worker, or has not tried
        (GatewayPod(name="g", ready=True, unreachable=True),),
        (
            GatewayPod(name="g", ready=True, uses=frozenset({"d"}), avoids=frozenset({"d"})),
            GatewayPod(name="h", ready=True, uses=frozenset({"d"})),
        ),
        (),
    ],
)
def test_a_worker_that_only_the_operator_does_not_reach_serves(gateways: tuple[GatewayPod, ...]) -> None:
    """Unknown is not zero: the way from the operator to the worker may be what is broken."""
    outcome = told(snapshot(PREFILL, replace(SILENT, uid="d"), gateways=gateways))
    assert of(outcome, ConditionType.DECODE_READY).status is ConditionStatus.TRUE


def test_a_worker_that_waits_for_its_readiness_gates_says_so() -> None:
    closed = replace(DECODE, routable_condition=True, gates_open=False)
    outcome = told(snapshot(PREFILL, closed))
    decode = of(outcome, ConditionType.DECODE_READY)
    assert (decode.reason, "d waits for its readiness gates" in decode.message) == (Reason.WORKERS_STARTING, True)


def test_gpus_that_budgets_do_not_count_degrade_a_service_that_serves() -> None:
    outcome = told(snapshot(PREFILL, DECODE), Problem(reason=Reason.UNCOUNTED_GPUS, message="8 for container engine"))
    assert of(outcome, ConditionType.DEGRADED).reason == Reason.UNCOUNTED_GPUS
    assert of(outcome, ConditionType.READY).status is ConditionStatus.TRUE


def test_a_pool_held_in_its_bounds_says_what_was_asked_and_what_is_allowed() -> None:
    bounded = service(spec(decode=(1, 1, 2)))
    pools = {role: Pool(uid=role, resource_version="1", replicas=9, copied_replicas=1) for role in LANGUAGE_ROLES}
    outcome = told(snapshot(PREFILL, DECODE, service=bounded, pools=pools))
    message = next(
        item for item in outcome.pools[Role.DECODE].conditions if item.reason == Reason.OUT_OF_BOUNDS
    ).message
    assert "the WorkerPool has spec.replicas 9" in message
    assert "1 to 2" in message
    assert outcome.pools[Role.DECODE].desired == 2


def test_a_deleted_service_says_so() -> None:
    stopped = GatewayDeployment(replicas=0)
    deleted = service(deleting_since_s=99.0)
    outcome = told(snapshot(PREFILL, DECODE, service=deleted, gateway_deployment=stopped))
    assert of(outcome, ConditionType.PROGRESSING).reason == Reason.DELETING
