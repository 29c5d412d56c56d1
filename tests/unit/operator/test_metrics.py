"""The operator's /metrics of a service: what its conditions say now, counts from zero, and nothing when it is gone."""

import gc
import itertools
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from types import FrameType
from typing import Any
from unittest.mock import create_autospec

from prometheus_client import generate_latest

from pointsman.api.protocol.elastic import ElasticState, InstanceState, Totals
from pointsman.api.v1alpha1.conditions import Condition, ConditionStatus
from pointsman.api.v1alpha1.elasticgroup import ElasticGroup, InstanceCounts
from pointsman.kube.events import EventRecorder
from pointsman.kube.mirror import MirrorStats
from pointsman.operator.announce import Announcer
from pointsman.operator.core.elastic.manifests import service_of
from pointsman.operator.core.elastic.news import news
from pointsman.operator.metrics import GROUP_EVENTS, OperatorMetrics
from pointsman.operator.work_queue import QueueStats


def condition(kind: str, status: ConditionStatus, reason: str) -> Condition:
    return Condition(type=kind, status=status, reason=reason, last_transition_time=datetime.now(UTC))


def lines(metrics: OperatorMetrics, family: str) -> list[str]:
    page = generate_latest(metrics.registry).decode().splitlines()
    return [line for line in page if line.startswith(f"pointsman_operator_{family}{{")]


def test_a_condition_is_shown_with_its_last_status_and_reason_only() -> None:
    metrics = OperatorMetrics()
    for status, reason in ((ConditionStatus.FALSE, "WorkersStarting"), (ConditionStatus.TRUE, "AsDesired")):
        metrics.looked("models", "chat", [condition("Ready", status, reason)])
    (shown,) = lines(metrics, "service_condition")
    labels = 'kind="LLMService",namespace="models",reason="AsDesired",service="chat",status="True",type="Ready"'
    assert shown.endswith(f"{{{labels}}} 1.0")


def test_ends_are_counted_from_zero_and_a_further_look_resets_nothing() -> None:
    metrics = OperatorMetrics()
    metrics.looked("models", "chat", [])
    assert len(lines(metrics, "role_switches_total")) > 1
    assert all(line.endswith(" 0.0") for line in lines(metrics, "role_switches_total") + lines(metrics, "plans_total"))
    metrics.plans.labels("models", "chat", "Completed", "Done").inc()
    metrics.looked("models", "chat", [])
    assert [line for line in lines(metrics, "plans_total") if not line.endswith(" 0.0")] == [
        'pointsman_operator_plans_total{namespace="models",phase="Completed",reason="Done",service="chat"} 1.0'
    ]


def test_of_a_service_that_is_gone_nothing_is_left_and_of_others_all() -> None:
    metrics = OperatorMetrics()
    for service in ("chat", "other"):
        metrics.looked("models", service, [condition("Ready", ConditionStatus.TRUE, "AsDesired")])
    metrics.forget("models", "chat")
    page = generate_latest(metrics.registry).decode()
    assert 'service="chat"' not in page
    assert len(lines(metrics, "service_condition")) == 1


def test_a_group_shows_its_instances_by_state_and_no_joined_ones_while_the_manager_does_not_answer() -> None:
    metrics = OperatorMetrics()
    ready = condition("Ready", ConditionStatus.TRUE, "AsDesired")
    metrics.set_group("models", "long-chat", [ready], InstanceCounts(desired=4, existing=4, ready=3, joined=2))
    of_it = 'namespace="models",service="long-chat"'
    assert set(lines(metrics, "elastic_instances")) == {
        f'pointsman_operator_elastic_instances{{{of_it},state="{state}"}} {count}.0'
        for state, count in {"desired": 4, "existing": 4, "ready": 3, "joined": 2, "draining": 0}.items()
    }
    (shown,) = lines(metrics, "service_condition")
    assert 'kind="ElasticGroup"' in shown
    metrics.set_group("models", "long-chat", [], InstanceCounts(desired=4))
    assert 'state="joined"' not in "".join(lines(metrics, "elastic_instances"))
    assert lines(metrics, "service_condition") == []


def test_a_group_and_a_service_of_one_name_keep_their_own_conditions() -> None:
    metrics = OperatorMetrics()
    ready = condition("Ready", ConditionStatus.TRUE, "AsDesired")
    metrics.looked("models", "chat", [ready])
    metrics.set_group("models", "chat", [ready], InstanceCounts(desired=1))
    assert len(lines(metrics, "service_condition")) == 2
    metrics.remove_group("models", "chat")
    (left,) = lines(metrics, "service_condition")
    assert 'kind="LLMService"' in left
    assert lines(metrics, "elastic_instances") + lines(metrics, "elastic_events_total") == []


def test_changes_of_instances_and_manager_are_counted_from_zero() -> None:
    manifest = {
        "metadata": {"name": "long-chat", "namespace": "models", "uid": "u-1", "generation": 1},
        "spec": {"model": {"source": "file:///models/tiny"}, "instances": {"replicas": 2}},
    }
    metrics, service = OperatorMetrics(), service_of(ElasticGroup.model_validate(manifest))
    announcer = Announcer(create_autospec(EventRecorder, instance=True), metrics)
    metrics.set_group("models", "long-chat", [], None)
    assert [line.rsplit(" ", 1)[1] for line in lines(metrics, "elastic_events_total")] == ["0.0"] * len(GROUP_EVENTS)

    def state(manager: str, *instances: InstanceState, recomputed: int = 0) -> ElasticState:
        rest: dict[str, Any] = {"iterations": (), "running": 0, "waiting": 0, "latency_model": ()}
        return ElasticState(manager=manager, instances=instances, totals=Totals(recomputed=recomputed), **rest)

    one, two, leaving = (
        InstanceState(name=f"long-chat-{n}", slots=10, used_slots=0, draining=n == 2) for n in range(3)
    )
    states = [state("a", one, leaving), state("a", one, two), state("a", two, recomputed=3), state("b", two)]
    for before, now in pairwise(states):
        for item in news(before, now):
            announcer.record_group_event(service, item)
    counted = {line.split('reason="')[1].split('"')[0]: line[-3:] for line in lines(metrics, "elastic_events_total")}
    assert counted == dict.fromkeys(GROUP_EVENTS, "1.0")


def lines_run(call: Callable[[], None]) -> int:
    """How many lines of Python a call runs: its work, whatever the computer."""
    count = 0

    def trace(_: FrameType, event: str, __: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    gc.collect()
    gc.disable()  # finalizers of what other tests left run lines too
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
        gc.enable()
    return count


def test_a_look_costs_the_same_however_many_services_there_are() -> None:
    metrics = OperatorMetrics()

    def fill(first: int, last: int) -> None:
        for number in range(first, last):
            metrics.looked("models", f"service-{number}", [condition("Ready", ConditionStatus.TRUE, "AsDesired")])
            metrics.set_group("models", f"group-{number}", [], InstanceCounts(joined=1))

    statuses = itertools.cycle((ConditionStatus.TRUE, ConditionStatus.FALSE))

    def look() -> None:
        metrics.looked("models", "service-0", [condition("Ready", next(statuses), "Any")])
        metrics.set_group("models", "group-0", [], InstanceCounts(joined=2))

    fill(0, 2)
    look()
    few = lines_run(look)
    fill(2, 300)
    assert lines_run(look) == few


def test_objects_that_cannot_be_read_are_counted_by_resource() -> None:
    metrics = OperatorMetrics()
    found = {"pods": 0, "roleswitches.pointsman.dev": 2}
    mirrors = {kind: partial(MirrorStats, 5, 0.0, left_out) for kind, left_out in found.items()}
    metrics.watch(mirrors, lambda: QueueStats(0, 0, 0, 0, 0.0))
    shown = lines(metrics, "unreadable_objects")
    assert {line.split('"')[1]: line[-3:] for line in shown} == {"pods": "0.0", "roleswitches.pointsman.dev": "2.0"}
