"""The chart's alerts, as Prometheus itself evaluates them."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from pointsman.api.protocol import metrics as names
from pointsman.gateway.errors import Overloaded
from pointsman.gateway.metrics import GatewayMetrics

CHART = Path(__file__).parents[3] / "charts" / "pointsman"
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
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
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


def test_a_gateway_counts_what_it_refuses_from_zero_so_that_the_first_is_an_increase() -> None:
    page = GatewayMetrics("chat").expose().decode()
    for reason in Overloaded.reasons:
        assert f'pointsman_gateway_failures_total{{reason="{reason}",service="chat"}} 0.0' in page


def test_the_rules_name_metrics_and_reasons_that_there_are() -> None:
    known = {metric.name for metric in vars(names).values() if isinstance(metric, names.Metric)}
    asked = " ".join(rule["expr"] for group in GROUPS for rule in group["rules"])
    assert set(re.findall(r"pointsman_\w+", asked)) <= known
    assert re.findall(r'reason=~"([^"]*)"', asked) == ["|".join(Overloaded.reasons)]


def test_the_chart_makes_a_rule_of_them_only_when_asked_to(binary: Binary) -> None:
    def rendered(*flags: str) -> list[dict[str, Any]]:
        command = [str(binary("helm")), "template", "pointsman", str(CHART), "--namespace", "pointsman-system", *flags]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        return [item for item in yaml.safe_load_all(done.stdout) if item and item["kind"] == "PrometheusRule"]

    assert rendered() == []
    (rule,) = rendered("--set", "alerts.enabled=true", "--set", "alerts.labels.release=prometheus")
    assert rule["spec"]["groups"] == GROUPS
    assert rule["metadata"]["labels"]["release"] == "prometheus"
    assert rule["metadata"]["namespace"] == "pointsman-system"
