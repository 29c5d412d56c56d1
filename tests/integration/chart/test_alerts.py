"""The chart's alerts, as Prometheus itself evaluates them."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from fixtures.exported import exported
from fixtures.helm_release import CHART, REGISTRY
from pointsman.api.v1alpha1.conditions import ConditionType, Reason
from pointsman.api.v1alpha1.elasticgroup import InstanceCounts
from pointsman.api.v1alpha1.roleswitch import SwitchPhase
from pointsman.gateway.errors import Overloaded
from pointsman.gateway.metrics import IMAGE_REASONS, SERVERS_FAULTS, GatewayMetrics
from pointsman.operator.metrics import GROUP_EVENTS
from pointsman.planner.core.types import Reason as PlannerReason

RULES = CHART / "files" / "alerts.yaml"
GROUPS: list[dict[str, Any]] = yaml.safe_load(RULES.read_text())["groups"]
HELD = 'pointsman_gateway_held{namespace="models",service="chat",pod="%s"}'
REFUSED = 'pointsman_gateway_failures_total{namespace="models",service="chat",pod="a",reason="%s"}'

Binary = Callable[[str], Path]


@pytest.fixture
def fires(binary: Binary, tmp_path: Path) -> Callable[..., None]:
    """``fires(series, alert, {minute: labels of those that fire})``; series by name, in promtool's notation."""

    def sample(labels: dict[str, str]) -> dict[str, Any]:
        return {"labels": "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}", "value": 1}

    def check(series: dict[str, str], alert: str, expected: dict[int, list[dict[str, str]]]) -> None:
        # Not an alert_rule_test, which compares every word of an alert.
        firing = f'sum by (namespace, service, reason) (ALERTS{{alertname="{alert}",alertstate="firing"}})'
        asked = [
            {"expr": firing, "eval_time": f"{minute}m", "exp_samples": [sample(labels) for labels in alerts]}
            for minute, alerts in expected.items()
        ]
        given = [{"series": name, "values": values} for name, values in series.items()]
        test = {"interval": "1m", "input_series": given, "promql_expr_test": asked}
        file = tmp_path / "test.yaml"
        file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [test]}))
        command = [str(binary("promtool")), "test", "rules", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
        assert done.returncode == 0, done.stdout + done.stderr

    return check


CHAT = {"namespace": "models", "service": "chat"}


def test_requests_that_are_held_for_ten_minutes_are_an_alert_of_their_service(fires: Callable[..., None]) -> None:
    series = {
        HELD % "a": "0 0 3x15 0x10",
        HELD % "b": "0x30",
        'pointsman_gateway_held{namespace="models",service="calm",pod="c"}': "0 5x6 0x30",
    }
    fires(series, "PointsmanRequestsHeld", {11: [], 12: [CHAT], 17: [CHAT], 19: [], 28: []})


def test_gateways_that_hold_in_turn_hold_without_a_break(fires: Callable[..., None]) -> None:
    fires({HELD % "a": "3x6 0x20", HELD % "b": "0x5 4x20"}, "PointsmanRequestsHeld", {9: [], 10: [CHAT]})


@pytest.mark.parametrize("reason", Overloaded.reasons)
def test_the_first_request_that_is_refused_is_an_alert_and_its_memory_fades(
    fires: Callable[..., None], reason: str
) -> None:
    series = {REFUSED % reason: "0x5 1x20", REFUSED % "stream-broken": "0+7x25"}
    fires(series, "PointsmanRequestsRefused", {5: [], 6: [{**CHAT, "reason": reason}], 12: []})


CONDITION = (
    'pointsman_operator_service_condition{namespace="models",service="chat",kind="LLMService",pod="%s",type="%s",'
    'status="%s",reason="%s"}'
)
PLANNER = 'pointsman_planner_%s{namespace="models",service="chat"%s}'


def test_a_service_that_answered_and_does_not_is_an_alert_one_that_never_did_is_not(fires: Callable[..., None]) -> None:
    up, down = ("a", "Available", "True", "Serving"), ("a", "Available", "False", "NoDecodeWorker")
    gone = {CONDITION % up: "1x9 _x30", CONDITION % down: "_x9 1x30"}
    fires(gone, "PointsmanServiceUnavailable", {13: [], 20: [CHAT]})
    long_outage = {CONDITION % up: "1x9 _x600", CONDITION % down: "_x9 1x500 0x100"}
    fires(long_outage, "PointsmanServiceUnavailable", {20: [CHAT], 500: [CHAT], 520: []})
    restarted = {CONDITION % up: "1x9 _x600", CONDITION % down: "_x9 1x440 _x2 1x100"}  # the operator, in the outage
    fires(restarted, "PointsmanServiceUnavailable", {440: [CHAT], 500: [CHAT]})
    fires({CONDITION % down: "1x40"}, "PointsmanServiceUnavailable", {40: []})
    deleting = {**gone, CONDITION % ("a", "Progressing", "True", "Deleting"): "_x9 1x30"}
    fires(deleting, "PointsmanServiceUnavailable", {20: []})


def test_a_new_leader_of_the_operator_says_nothing_new_of_a_service(fires: Callable[..., None]) -> None:
    series = {
        CONDITION % ("a", "Available", "True", "Serving"): "1x5 stale",
        CONDITION % ("b", "Available", "False", "NoDecodeWorker"): "_x5 1x10",
        CONDITION % ("b", "Degraded", "True", "CrashLoop"): "_x5 1x20",
    }
    fires(series, "PointsmanServiceUnavailable", {13: [CHAT]})
    fires(series, "PointsmanServiceDegraded", {14: [], 17: [{**CHAT, "reason": "CrashLoop"}]})


def test_a_service_that_is_not_ready_for_longer_than_a_start_takes_is_an_alert(fires: Callable[..., None]) -> None:
    why = {**CHAT, "reason": "WorkersStarting"}
    series = {CONDITION % ("a", "Ready", "False", "WorkersStarting"): "1x60"}
    fires(series, "PointsmanServiceNotReady", {44: [], 46: [why]})
    fires({CONDITION % ("a", "Ready", "False", "Deleting"): "1x60"}, "PointsmanServiceNotReady", {50: []})


def test_one_of_a_hundred_requests_that_fail_is_no_alert_and_two_are(fires: Callable[..., None]) -> None:
    arrivals = 'pointsman_gateway_arrivals_total{namespace="models",service="chat",pod="a",endpoint="%s"}'
    failed = REFUSED % "workers-failed"
    whole = {arrivals % "completions": "0+50x30", arrivals % "chat/completions": "0+50x30"}
    fires({**whole, failed: "0+1x30"}, "PointsmanRequestsFail", {20: []})
    fires({**whole, failed: "0+2x30"}, "PointsmanRequestsFail", {20: [CHAT]})
    fires({**whole, REFUSED % "invalid-request": "0+50x30"}, "PointsmanRequestsFail", {20: []})


LONG_CHAT = {"namespace": "models", "service": "long-chat"}
OF_GROUP = CONDITION.replace("LLMService", "ElasticGroup").replace('"chat"', '"long-chat"')
INSTANCES = 'pointsman_operator_elastic_instances{namespace="models",service="long-chat",pod="a",state="%s"}'
SLOTS = 'pointsman_elastic_slots{namespace="models",service="long-chat",pod="long-chat-manager-0",state="%s"}'
RECOMPUTED = 'pointsman_elastic_recomputed_requests_total{namespace="models",service="long-chat",pod="%s"}'
EVENTS = 'pointsman_operator_elastic_events_total{namespace="models",service="long-chat",pod="%s",reason="%s"}'


@pytest.mark.parametrize("reason", [Reason.NO_INSTANCE, Reason.MANAGER_NOT_READY])
def test_an_elastic_group_without_instances_or_manager_is_unavailable(fires: Callable[..., None], reason: str) -> None:
    up, down = OF_GROUP % ("a", "Available", "True", "Serving"), OF_GROUP % ("a", "Available", "False", reason)
    fires({up: "1x9 _x30", down: "_x9 1x30"}, "PointsmanServiceUnavailable", {13: [], 20: [LONG_CHAT]})
    fires({down: "1x40"}, "PointsmanServiceUnavailable", {40: []})


def test_a_service_that_was_available_before_an_upgrade_of_the_operator_is_unavailable_after_it(
    fires: Callable[..., None],
) -> None:
    earlier = (CONDITION % ("a", "Available", "True", "Serving")).replace('kind="LLMService",', "")
    series = {earlier: "1x9 stale", CONDITION % ("b", "Available", "False", "NoDecodeWorker"): "_x9 1x30"}
    fires(series, "PointsmanServiceUnavailable", {13: [], 20: [CHAT]})


def test_images_that_encode_workers_leave_are_an_alert_if_there_is_an_encode_pool(
    fires: Callable[..., None],
) -> None:
    condition = (
        'pointsman_operator_service_condition{namespace="models",service="chat",kind="LLMService",type="EncodeReady",'
        'status="False",reason="NoEncodeWorker"}'
    )
    images = 'pointsman_gateway_images_total{namespace="models",service="%s",pod="a",path="%s",reason="x"}'
    series = {
        condition: "1x40",
        images % ("chat", "encode"): "0+60x10 600+0x30",
        images % ("chat", "local"): "0x10 0+60x30",
        images % ("chat", "bypass"): "0+6000x40",
        images % ("text", "local"): "0+60x40",  # a service without an encode pool
        images % ("text", "encode"): "0x40",
    }
    fires(series, "PointsmanImagesNotEncoded", {10: [], 15: [], 25: [CHAT], 38: [CHAT]})


@pytest.mark.parametrize(
    ("status", "reason", "alerted"), [("True", "AsDesired", []), ("False", "NoEncodeWorker", [CHAT])]
)
def test_an_encode_pool_without_workers_is_an_alert_unless_none_are_desired(
    fires: Callable[..., None], status: str, reason: str, alerted: list[str]
) -> None:
    images = 'pointsman_gateway_images_total{namespace="models",service="chat",pod="a",path="local",reason="%s"}'
    series = {CONDITION % ("b", "EncodeReady", status, reason): "1x40", images % "no-encode-worker": "0+60x40"}
    fires(series, "PointsmanImagesNotEncoded", {5: [], 20: alerted, 38: alerted})


def test_instances_that_have_not_joined_for_ten_minutes_are_an_alert(fires: Callable[..., None]) -> None:
    alert, desired = "PointsmanElasticInstancesMissing", {INSTANCES % "desired": "4x40"}
    fires({**desired, INSTANCES % "joined": "4x5 3x20 4x15"}, alert, {15: [], 17: [LONG_CHAT], 27: []})
    fires({**desired, INSTANCES % "joined": "4x40", INSTANCES % "ready": "2x40"}, alert, {30: []})
    fires({**desired, INSTANCES % "ready": "2x40"}, alert, {30: []})  # the manager does not answer


def test_less_than_a_twentieth_of_the_kv_free_for_ten_minutes_is_an_alert(fires: Callable[..., None]) -> None:
    alert = "PointsmanElasticKvFull"
    fires({SLOTS % "total": "1000x40", SLOTS % "free": "500x5 49x20 50x15"}, alert, {15: [], 17: [LONG_CHAT], 27: []})
    fires({SLOTS % "total": "0x40", SLOTS % "free": "0x40"}, alert, {30: []})  # without an instance


def test_kv_that_is_lost_repeatedly_is_an_alert_and_one_lost_instance_is_none(fires: Callable[..., None]) -> None:
    alert, pod = "PointsmanElasticRequestsRecomputed", "long-chat-manager-0"
    fires({RECOMPUTED % pod: "0x5 7x40"}, alert, {10: [], 20: [], 30: []})
    fires({RECOMPUTED % pod: "0x5 3x7 5x7 6x40"}, alert, {15: [], 22: [LONG_CHAT], 40: []})


def test_the_third_restart_of_a_manager_within_an_hour_is_an_alert(fires: Callable[..., None]) -> None:
    alert = "PointsmanElasticManagerRestarts"
    series = {EVENTS % ("a", "ManagerRestarted"): "0 1x10 2x10 3x60", EVENTS % ("a", "InstanceJoined"): "0+1x90"}
    fires(series, alert, {15: [], 30: [LONG_CHAT], 85: []})
    fires({EVENTS % ("a", "InstanceLost"): "0+1x90"}, alert, {60: []})


def test_a_planner_that_cannot_plan_a_service_says_why(fires: Callable[..., None]) -> None:
    series = {
        PLANNER % ("healthy", ',reason="StaleMetrics"'): "0x20",
        'pointsman_planner_healthy{namespace="models",service="other",reason="Planning"}': "1x20",
    }
    fires(series, "PointsmanPlannerUnhealthy", {9: [], 11: [{**CHAT, "reason": "StaleMetrics"}]})


def test_missed_objectives_are_an_alert_while_requests_come(fires: Callable[..., None]) -> None:
    ended = 'pointsman_gateway_ended_total{namespace="models",service="chat",pod="%s",ttft="%s",tpot="%s"}'
    goal = PLANNER % ("attainment_objective", "")
    of_two_gateways = {
        ended % ("a", "met", "met"): "0+20x30 600x60",
        ended % ("b", "met", "met"): "0+16x30 480x60",
        ended % ("b", "met", "none"): "0+12x30 360x60",  # a single token, within both
        ended % ("a", "missed", "met"): "0+6x30 180x60",
        ended % ("a", "met", "failed"): "0+6x30 180x60",
        ended % ("a", "unknown", "unknown"): "0+900x30 27000x60",  # 48 of 60 are within both, and these say nothing
    }
    missed = {**of_two_gateways, goal: "0.95x90"}
    fires(missed, "PointsmanObjectivesMissed", {10: [], 25: [CHAT], 60: []})
    fires({**of_two_gateways, goal: "0.79x90"}, "PointsmanObjectivesMissed", {25: []})


def test_a_policy_that_allows_too_little_for_ten_minutes_is_an_alert(fires: Callable[..., None]) -> None:
    ticks = PLANNER % ("ticks_total", ',reason="%s"')
    fires({ticks % "Unsatisfiable": "0x5 0+10x30"}, "PointsmanPolicyTooSmall", {10: [], 20: [CHAT]})
    fires({ticks % "Unsatisfiable": "0x30", ticks % "Steady": "0+10x30"}, "PointsmanPolicyTooSmall", {25: []})


def test_the_third_switch_of_an_hour_that_goes_back_is_an_alert(fires: Callable[..., None]) -> None:
    ended = 'pointsman_operator_role_switches_total{namespace="models",service="chat",pod="a",phase="%s",reason="%s"}'
    series = {
        ended % ("RolledBack", "VerifyFailed"): "0 1x10 2x10 3x60",
        ended % ("Completed", "Switched"): "0+1x80",
    }
    fires(series, "PointsmanSwitchesFail", {15: [], 30: [{**CHAT, "reason": "VerifyFailed"}]})


def test_without_a_leader_there_are_alerts_and_with_a_standby_there_are_none(fires: Callable[..., None]) -> None:
    leads = 'pointsman_%s_leader{namespace="pointsman-system",pod="%s"}'
    both = {leads % (part, pod): f"{int(pod == 'a')}x20" for part in ("operator", "planner") for pod in "ab"}
    nobody = dict.fromkeys(both, "0x20")
    for alert in ("PointsmanOperatorWithoutLeader", "PointsmanPlannerWithoutLeader"):
        fires(both, alert, {15: []})
        fires(nobody, alert, {4: [], 10: [{}]})
    fires({"unrelated": "1x20"}, "PointsmanOperatorWithoutLeader", {10: [{}]})
    fires({"unrelated": "1x20"}, "PointsmanPlannerWithoutLeader", {10: []})


def test_a_planner_that_led_and_is_not_there_is_an_alert_and_one_that_never_was_is_not(
    fires: Callable[..., None],
) -> None:
    leads = 'pointsman_planner_leader{namespace="pointsman-system",pod="%s"}'
    gone = {leads % "a": "1x9 stale", leads % "b": "0x9 stale"}
    fires(gone, "PointsmanPlannerGone", {9: [], 14: [], 16: [{}], 1400: [{}], 1460: []})
    fires({leads % "a": "1x9 stale", leads % "b": "_x9 1x30"}, "PointsmanPlannerGone", {30: []})
    fires({leads % "a": "1x9 0x30"}, "PointsmanPlannerGone", {30: []})
    fires({leads % "a": "0x9 stale", "unrelated": "1x40"}, "PointsmanPlannerGone", {30: []})


def test_an_operator_that_fails_at_services_for_long_is_an_alert(fires: Callable[..., None]) -> None:
    fires({'pointsman_operator_queue_failing{pod="a"}': "2x30"}, "PointsmanOperatorFails", {14: [], 16: [{}]})
    fires({'pointsman_operator_queue_failing{pod="a"}': "2x10 0x20"}, "PointsmanOperatorFails", {25: []})


def test_a_gateway_counts_what_it_refuses_from_zero_so_that_the_first_is_an_increase() -> None:
    page = GatewayMetrics("chat").expose().decode()
    for reason in SERVERS_FAULTS:
        assert f'pointsman_gateway_failures_total{{reason="{reason}",service="chat"}} 0.0' in page


def test_the_rules_name_metrics_and_reasons_that_there_are() -> None:
    asked = " ".join(rule["expr"] for group in GROUPS for rule in group["rules"])
    assert set(re.findall(r"pointsman_\w+", asked)) <= exported().keys()
    refused, failed = "|".join(Overloaded.reasons), "|".join(SERVERS_FAULTS[len(Overloaded.reasons) :])
    assert set(re.findall(r'reason=~"([^"]*)"', asked)) == {refused, failed}
    assert set(re.findall(r'[{,]type="([^"]*)"', asked)) <= {kind.value for kind in ConditionType}
    states = set(re.findall(r'[{,]state="([^"]*)"', asked))
    assert states == {"desired", "joined", "free", "total"} <= {*InstanceCounts.model_fields, "free", "total"}
    phases = {phase for found in re.findall(r'phase=~"([^"]*)"', asked) for phase in found.split("|")}
    assert phases <= {phase.value for phase in SwitchPhase}
    reasons = {*Reason, *PlannerReason, *GROUP_EVENTS, *(reason for _, reason in IMAGE_REASONS)}
    assert set(re.findall(r'reason!?="([^"]*)"', asked)) <= {str(reason) for reason in reasons}


def test_the_chart_makes_a_rule_of_them_only_when_asked_to(binary: Binary) -> None:
    def rendered(*flags: str) -> list[dict[str, Any]]:
        chart = [str(CHART), "--namespace", "pointsman-system", *REGISTRY]
        command = [str(binary("helm")), "template", "pointsman", *chart, *flags]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=240)
        return [item for item in yaml.safe_load_all(done.stdout) if item and item["kind"] == "PrometheusRule"]

    assert rendered() == []
    (rule,) = rendered("--set", "alerts.enabled=true", "--set", "alerts.labels.release=prometheus")
    assert rule["spec"]["groups"] == GROUPS
    assert rule["metadata"]["labels"]["release"] == "prometheus"
    assert rule["metadata"]["namespace"] == "pointsman-system"
