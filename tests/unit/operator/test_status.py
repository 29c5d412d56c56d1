"""What is said about a service: the right reason, and times that move only when something flips."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from pointsman.api.protocol.names import LANGUAGE_ROLES, Role
from pointsman.api.v1alpha1.conditions import Condition, ConditionStatus, ConditionType, Reason
from pointsman.api.v1alpha1.llmservice import LLMServiceStatus
from pointsman.api.v1alpha1.plannerpolicy import Mode, PlannerPolicySpec
from pointsman.operator.core.snapshot import Container, GatewayPod, Policy, Pool, Snapshot
from pointsman.operator.core.status import Problem, Report, report
from unit.operator.test_decisions import leaving, snapshot, worker
from unit.operator.world import service, spec

NOW = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
PREFILL = worker("p", Role.PREFILL)
DECODE = worker("d")


def told(
    found: Snapshot,
    *problems: Problem,
    before: LLMServiceStatus | None = None,
    now: datetime = NOW,
    revision: str = "r",
) -> Report:
    """The report of a snapshot."""
    return report(
        found,
        problems,
        endpoint="http://chat",
        revision=revision,
        kv_compatibility="kv",
        before=before or LLMServiceStatus(),
        now=now,
    )


def of(outcome: Report, kind: ConditionType) -> Condition:
    """One condition of a report."""
    return next(item for item in outcome.status.conditions if item.type == kind)


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
    ("mode", "words"), [(Mode.ACTIVE, "plans own"), (Mode.EXTERNAL, "an autoscaler owns"), (Mode.SHADOW, "")]
)
def test_a_number_in_the_service_that_is_not_followed_is_said_with_who_owns_it(mode: Mode, words: str) -> None:
    wanted = {"mode": mode, "objectives": {"ttftMs": 1000, "tpotMs": 50}, "budget": {"maxGpus": 8}}
    policy = Policy(name="thrifty", spec=PlannerPolicySpec.model_validate(wanted))
    found = replace(snapshot(PREFILL, DECODE), policy=policy)
    edited = replace(found, service=service(spec(decode=(3, 1, 4))))
    assert "is not followed" not in of(told(found), ConditionType.DECODE_READY).message
    message = of(told(edited), ConditionType.DECODE_READY).message
    assert (f"replicas 3 is not followed: in mode {mode} of policy thrifty" in message) is bool(words)
    assert words in message


def test_a_full_budget_is_named_where_workers_are_missing() -> None:
    wanted = {"mode": "Active", "objectives": {"ttftMs": 1000, "tpotMs": 50}, "budget": {"maxGpus": 2}}
    policy = Policy(name="thrifty", spec=PlannerPolicySpec.model_validate(wanted))
    found = replace(snapshot(PREFILL, leaving(Role.DECODE)), policy=policy)
    condition = of(told(found), ConditionType.DECODE_READY)
    assert (condition.status, condition.reason) == (ConditionStatus.FALSE, Reason.BUDGET_REACHED)
    assert "budget.maxGpus 2" in condition.message


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


def test_a_pool_held_in_its_bounds_says_what_was_asked_and_what_is_allowed() -> None:
    bounded = service(spec(decode=(1, 1, 2)))
    pools = {role: Pool(uid=role, resource_version="1", replicas=9, copied_replicas=1) for role in LANGUAGE_ROLES}
    outcome = told(snapshot(PREFILL, DECODE, service=bounded, pools=pools))
    message = next(
        item for item in outcome.pools[Role.DECODE].conditions if item.reason == Reason.OUT_OF_BOUNDS
    ).message
    assert "asks for 9" in message
    assert "1 to 2" in message
    assert outcome.pools[Role.DECODE].desired == 2


def test_a_deleted_service_says_so() -> None:
    outcome = told(snapshot(PREFILL, DECODE, service=service(deleting_since_s=99.0), gateway_replicas=0))
    assert of(outcome, ConditionType.PROGRESSING).reason == Reason.DELETING
