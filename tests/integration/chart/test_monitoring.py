"""PodMonitors that find the pods there are, and dashboards that Prometheus can read."""

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from charts.dashboards.__main__ import DASHBOARDS, generated
from charts.dashboards.service import SERVICE

from fixtures.exported import exported
from fixtures.helm_release import CHART, REGISTRY
from fixtures.pod_monitors import scrape_configs
from pointsman.api.protocol.names import SERVICE_LABEL, Role
from pointsman.api.v1alpha1.elasticgroup import ElasticGroup
from pointsman.operator.core.adapters import adapter_for
from pointsman.operator.core.elastic.manifests import group_objects
from pointsman.operator.core.gateway import gateway_objects
from pointsman.operator.core.install import Install
from unit.operator.world import service, spec

INSTALL = Install(worker_image="worker:1", gateway_image="gateway:1", nats_url="nats://nats:4222")
MONITORS = ("monitoring.podMonitors.enabled=true",)

Binary = Callable[[str], Path]
Rendered = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def rendered(binary: Binary) -> Rendered:
    """``rendered(kind, settings…)``: the chart's objects of a kind."""

    def run(kind: str, *settings: str) -> list[dict[str, Any]]:
        flags = [part for setting in settings for part in ("--set", setting)]
        chart = [str(CHART), "--namespace", "pointsman-system", *REGISTRY]
        command = [str(binary("helm")), "template", "pointsman", *chart, *flags]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
        assert done.returncode == 0, done.stderr
        return [item for item in yaml.safe_load_all(done.stdout) if item and item["kind"] == kind]

    return run


def pods_of_a_service() -> dict[str, dict[str, Any]]:
    """A gateway's and a worker's pod, as the operator makes them, by component."""
    wanted = service(spec(worker={"gpus": 1}))
    return {
        "worker": adapter_for(wanted.spec).pod(wanted, INSTALL, "chat-r-0", Role.DECODE),
        "gateway": gateway_objects(wanted, INSTALL)[-1]["spec"]["template"],
    }


def finds(monitor: dict[str, Any], pod: dict[str, Any]) -> bool:
    """Whether the monitor's selector takes the pod, and its port and relabelings leave one container of it."""
    selector, (endpoint,) = monitor["spec"]["selector"], monitor["spec"]["podMetricsEndpoints"]
    labels = pod["metadata"]["labels"]
    taken = all(labels.get(key) == value for key, value in selector["matchLabels"].items())
    taken &= all(expression["key"] in labels for expression in selector.get("matchExpressions", []))
    kept = [rule["regex"] for rule in endpoint.get("relabelings", []) if rule["action"] == "keep"]
    containers = [
        container["name"]
        for container in pod["spec"]["containers"]
        if any(port.get("name") == endpoint["port"] for port in container.get("ports", []))
        and all(container["name"] == name for name in kept)
    ]
    return taken and len(containers) == 1


def test_each_pod_with_metrics_is_found_by_one_monitor(rendered: Rendered) -> None:
    monitors = rendered("PodMonitor", *MONITORS)
    deployments = rendered("Deployment", *MONITORS)
    pods = pods_of_a_service() | {
        item["metadata"]["labels"]["app.kubernetes.io/component"]: item["spec"]["template"] for item in deployments
    }
    assert pods.keys() == {"gateway", "worker", "operator", "planner"}
    for component, pod in pods.items():
        (found,) = (monitor for monitor in monitors if finds(monitor, pod))
        assert found["metadata"]["labels"]["app.kubernetes.io/component"] == component


def test_of_an_elastic_group_the_gateway_and_the_manager_are_scraped_as_its_name(rendered: Rendered) -> None:
    monitors = {monitor["metadata"]["name"]: monitor for monitor in rendered("PodMonitor", *MONITORS)}
    manifest = {
        "metadata": {"name": "long-chat", "namespace": "models", "uid": "u-1"},
        "spec": {"model": {"source": "file:///models/tiny"}, "instances": {"replicas": 2}},
    }
    pods = {
        item["metadata"]["name"]: item["spec"]["template"]
        for item in group_objects(ElasticGroup.model_validate(manifest), INSTALL)
        if "template" in item.get("spec", {})
    }
    scraped = {
        name: [found for found, monitor in monitors.items() if finds(monitor, pod)] for name, pod in pods.items()
    }
    assert scraped == {
        "long-chat-gateway": ["pointsman-gateways"],
        "long-chat-manager": ["pointsman-workers"],
        "long-chat": [],  # instances have no metrics
    }
    assert pods["long-chat-manager"]["metadata"]["labels"][SERVICE_LABEL] == "long-chat", "Prometheus adds it"
    (gateway,) = pods["long-chat-gateway"]["spec"]["containers"]
    assert {"name": "POINTSMAN_SERVICE", "value": "long-chat"} in gateway["env"], "its metrics have it as a label"


def test_a_container_that_a_user_adds_with_a_port_of_the_same_name_is_left_out(rendered: Rendered) -> None:
    (monitor,) = (m for m in rendered("PodMonitor", *MONITORS) if m["metadata"]["name"] == "pointsman-workers")
    pod = pods_of_a_service()["worker"]
    sidecar = {"name": "proxy", "ports": [{"name": "http", "containerPort": 9}]}
    both = {**pod, "spec": {**pod["spec"], "containers": [*pod["spec"]["containers"], sidecar]}}
    assert finds(monitor, both)
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    endpoint["relabelings"] = []
    assert not finds(monitor, both), "both containers would be scraped"


@pytest.mark.parametrize(
    ("address", "label", "scraped"),
    [
        ("10.0.0.7:8000", "8090", "10.0.0.7:8090"),
        ("[fd00::7]:8000", "8090", "[fd00::7]:8090"),
        ("10.0.0.7:8000", "", "10.0.0.7:8000"),
        ("10.0.0.7:8000", "10.0.0.8:80", "10.0.0.7:8000"),
    ],
)
def test_a_worker_is_scraped_on_the_port_that_it_reported(
    rendered: Rendered, address: str, label: str, scraped: str
) -> None:
    (monitor,) = (m for m in rendered("PodMonitor", *MONITORS) if m["metadata"]["name"] == "pointsman-workers")
    (config,) = scrape_configs([monitor], Path("kubeconfig"), "1s")
    (rule,) = (rule for rule in config["relabel_configs"] if rule.get("target_label") == "__address__")
    assert rule["source_labels"] == ["__meta_kubernetes_pod_label_pointsman_dev_metrics_port", "__address__"]
    found = re.fullmatch(rule["regex"], f"{label};{address}")
    assert (found.expand(rule["replacement"].replace("$", "\\")) if found else address) == scraped


def test_no_label_that_is_added_takes_the_place_of_one_of_ours(rendered: Rendered) -> None:
    prefixes = {"operator": "pointsman_operator_", "planner": "pointsman_planner_", "gateway": "pointsman_gateway_"}
    for monitor in rendered("PodMonitor", *MONITORS):
        component = monitor["metadata"]["labels"]["app.kubernetes.io/component"]
        families = (
            ("pointsman_worker_", "pointsman_elastic_", "vllm:") if component == "worker" else (prefixes[component],)
        )
        (config,) = scrape_configs([monitor], Path("kubeconfig"), "1s")
        rules = config["relabel_configs"]
        dropped = {rule["regex"] for rule in rules if rule.get("action") == "labeldrop"}
        added = {rule["target_label"] for rule in rules if "target_label" in rule} - dropped
        ours = {label for name, labels in exported().items() if name.startswith(families) for label in labels}
        assert config["honor_labels"] or added & ours == set(), component
        assert added >= {"namespace", "pod"}


def test_labels_of_pods_in_users_namespaces_never_count_and_those_of_the_planner_do(rendered: Rendered) -> None:
    honoured = {
        monitor["metadata"]["name"]: monitor["spec"]["podMetricsEndpoints"][0].get("honorLabels", False)
        for monitor in rendered("PodMonitor", *MONITORS)
    }
    assert honoured == {
        "pointsman-operator": True,
        "pointsman-planner": True,
        "pointsman-gateways": False,
        "pointsman-workers": False,
    }


def test_monitors_look_where_the_services_are(rendered: Rendered) -> None:
    def places(*settings: str) -> dict[str, Any]:
        return {
            monitor["metadata"]["name"]: monitor["spec"].get("namespaceSelector", "its own")
            for monitor in rendered("PodMonitor", *MONITORS, *settings)
        }

    own = {"pointsman-operator": "its own", "pointsman-planner": "its own"}
    everywhere, one = {"any": True}, {"matchNames": ["models"]}
    assert places() == {**own, "pointsman-gateways": everywhere, "pointsman-workers": everywhere}
    assert places("watchNamespace=models") == {**own, "pointsman-gateways": one, "pointsman-workers": one}
    assert "pointsman-planner" not in places("planner.enabled=false")


def test_monitors_are_made_only_when_asked_to_with_the_labels_and_times_that_are_given(rendered: Rendered) -> None:
    assert rendered("PodMonitor") == []
    wanted = ("monitoring.podMonitors.labels.release=prometheus", "monitoring.podMonitors.interval=5s")
    for monitor in rendered("PodMonitor", *MONITORS, *wanted, "monitoring.podMonitors.scrapeTimeout="):
        assert monitor["metadata"]["labels"]["release"] == "prometheus"
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        assert endpoint["interval"] == "5s"
        assert "scrapeTimeout" not in endpoint


def test_what_the_monitors_say_is_a_configuration_that_prometheus_takes(
    rendered: Rendered, binary: Binary, tmp_path: Path
) -> None:
    (tmp_path / "kubeconfig").write_text("")
    rule = "monitoring.podMonitors.metricRelabelings[0]"
    drop = (f"{rule}.action=drop", f"{rule}.sourceLabels[0]=__name__", f"{rule}.regex=http_.*")
    configs = scrape_configs(rendered("PodMonitor", *MONITORS, *drop), tmp_path / "kubeconfig", "1s")
    told = {"action": "drop", "source_labels": ["__name__"], "regex": "http_.*"}
    assert [config["metric_relabel_configs"] for config in configs] == [[told]] * 4
    file = tmp_path / "prometheus.yaml"
    file.write_text(yaml.safe_dump({"scrape_configs": configs}))
    command = [str(binary("promtool")), "check", "config", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr


def substituted(expr: str, interval: str) -> str:
    """With what Grafana puts in for its variables."""
    intervals = expr.replace("$__rate_interval", interval).replace("$__interval", interval)
    return intervals.replace("$namespace", "models").replace("$service", "chat")


def test_prometheus_parses_every_query_of_the_dashboards(binary: Binary, tmp_path: Path) -> None:
    queries = [query.expr for board in DASHBOARDS for panel in board.panels for query in panel.queries]
    queries += [mark.expr for board in DASHBOARDS for mark in board.annotations]
    # What Grafana puts in; a recording rule of it is read by the parser that answers queries.
    rules = [{"record": f"panel:{index}", "expr": substituted(text, "1m")} for index, text in enumerate(queries)]
    assert len(rules) > 50

    def check(rules: list[dict[str, str]]) -> subprocess.CompletedProcess[str]:
        file = tmp_path / "rules.yaml"
        file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
        command = [str(binary("promtool")), "check", "rules", "--lint=none", str(file)]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)

    done = check(rules)
    assert done.returncode == 0, done.stdout + done.stderr
    assert check([{"record": "wrong", "expr": rules[0]["expr"] + ")"}]).returncode != 0


def test_prefix_hits_are_shown_right_after_a_role_switch_where_scrapes_add_the_pods_role(
    binary: Binary, tmp_path: Path
) -> None:
    (text,) = (q.expr for b in DASHBOARDS for panel in b.panels if panel.title == "Prefix hits" for q in panel.queries)
    expr = text.replace("$__rate_interval", "10m").replace("$namespace", "models").replace("$service", "chat")
    of = 'namespace="models",service="chat",pod="a"'
    series = {  # the pod's label changed at minute 5, its counters went on
        f'vllm:prefix_cache_hits_total{{{of},role="decode"}}': "0+10x5 stale",
        f'vllm:prefix_cache_hits_total{{{of},role="prefill"}}': "_x5 60+10x5",
        f'vllm:prefix_cache_queries_total{{{of},role="decode"}}': "0+20x5 stale",
        f'vllm:prefix_cache_queries_total{{{of},role="prefill"}}': "_x5 120+20x5",
        f'pointsman_worker_role{{{of},role="Decode"}}': "1x5 0x5",
        f'pointsman_worker_role{{{of},role="Prefill"}}': "0x5 1x5",
    }
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {"expr": expr, "eval_time": "10m", "exp_samples": [{"labels": '{role="Prefill"}', "value": 0.5}]}
        ],
    }
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump({"evaluation_interval": "1m", "tests": [test]}))
    command = [str(binary("promtool")), "test", "rules", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_plan_is_marked_once_whenever_it_was_written_and_whoever_counts_it(binary: Binary, tmp_path: Path) -> None:
    """Also one between two steps, one that the next planner counts, and two in one step."""
    (mark,) = (mark for mark in SERVICE.annotations if mark.name == "Plans")
    of = 'namespace="models",service="chat"'
    counted = "pointsman_planner_plans_total"
    series = {  # every 15 s; the planner's pod is replaced after 3.5 minutes
        f'{counted}{{{of},pod="a",reason="PrefillShort"}}': "0 0 0 1 1 1 1 1 2 3 3 3 3 3 3 stale",
        f'{counted}{{{of},pod="b",reason="PrefillShort"}}': "_x15 0 0 0 0 0 0 1 1 1 1 1 1",
        f'{counted}{{{of},pod="a",reason="DecodeShort"}}': "0x14 stale",
        f'{counted}{{{of},pod="b",reason="DecodeShort"}}': "_x15 0x12",
    }
    marks = {60: 1, 120: 1, 150: 1, 330: 1}  # by the second of a step of 30 s: the first one at or after it was counted
    expected = [
        {
            "expr": substituted(mark.expr, "30s"),
            "eval_time": f"{at_s}s",
            "exp_samples": [{"labels": '{reason="PrefillShort"}', "value": marks[at_s]}] if at_s in marks else [],
        }
        for at_s in range(30, 400, 30)
    ]
    test = {
        "interval": "15s",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": expected,
    }
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump({"evaluation_interval": "15s", "tests": [test]}))
    command = [str(binary("promtool")), "test", "rules", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_chart_makes_a_config_map_of_the_dashboards_only_when_asked_to(rendered: Rendered) -> None:
    enabled = "monitoring.dashboards.enabled=true"
    assert not [item for item in rendered("ConfigMap") if "dashboards" in item["metadata"]["name"]]
    (made,) = (item for item in rendered("ConfigMap", enabled) if "dashboards" in item["metadata"]["name"])
    assert made["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert made["metadata"]["annotations"] == {"grafana_folder": "Pointsman"}
    assert made["metadata"]["namespace"] == "pointsman-system"
    assert {name: json.loads(text) for name, text in made["data"].items()} == {
        path.name: json.loads(text) for path, text in generated().items()
    }
    assert len(json.dumps(made)) < 900_000, "an object holds 1 MiB"
    settings = ("monitoring.dashboards.namespace=grafana", "monitoring.dashboards.annotations.grafana_folder=LLMs")
    (elsewhere,) = (i for i in rendered("ConfigMap", enabled, *settings) if "dashboards" in i["metadata"]["name"])
    assert elsewhere["metadata"]["namespace"] == "grafana"
    assert elsewhere["metadata"]["annotations"] == {"grafana_folder": "LLMs"}
