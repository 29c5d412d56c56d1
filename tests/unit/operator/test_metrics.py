"""The operator's /metrics of a service: what its conditions say now, counts from zero, and nothing when it is gone."""

from datetime import UTC, datetime

from prometheus_client import generate_latest

from pointsman.api.v1alpha1.conditions import Condition, ConditionStatus
from pointsman.operator.metrics import OperatorMetrics


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
    assert shown.endswith('{namespace="models",reason="AsDesired",service="chat",status="True",type="Ready"} 1.0')


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
