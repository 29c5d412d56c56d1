"""The planner live, on real engines: the load shifts to long prompts and back, and it follows without being asked."""

import itertools
import json
import math
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import Any

import pytest
import yaml
from charts.dashboards.grafana import Kind
from charts.dashboards.health import HEALTH
from charts.dashboards.service import SERVICE

from engine.product.served import Served, errors, served
from fixtures.helm_release import CHART, REGISTRY
from fixtures.pod_monitors import scrape_configs
from fixtures.prometheus_server import PrometheusServer, running_prometheus
from pointsman.api.v1alpha1.plan import Plan, PlanPhase
from pointsman.api.v1alpha1.roleswitch import RoleSwitch, SwitchPhase
from pointsman.local.cluster import RELEASE, SYSTEM_NAMESPACE, LocalCluster
from pointsman.local.engine.models import ModelSize, ensure_model
from pointsman.local.quickstart.shift import measure, read_policy, shift_load, with_objectives
from pointsman.local.traffic import Api, PrefillPath, Prompt, Record
from waiting import eventually, until

SEED = 91
SCRAPE_S = 2
MAY_BE_EMPTY = {
    # What does not happen in this load, or need not.
    ("Conditions", "PlannerHealthy: False, {{reason}}"),
    ("Planned", "False: {{reason}}"),
    ("Arrivals and their forecast", "bursts"),
    ("Time in the admission queue", "p50"),
    ("Time in the admission queue", "p95"),
    # A service without images and without an encode pool.
    ("Time of an image", "p50"),
    ("Time of an image", "p95"),
    ("Time of an image", "at the worker, mean"),
    ("Encode workers", "{{condition}}"),
    ("Encode workers", "needed now"),
    ("Encode workers", "needed soon"),
    ("Failed requests", "{{reason}}"),
    ("Retried attempts", "{{reason}}"),
    ("Drained workers", "lossless: {{lossless}}"),
    ("Failed requests", "{{status}} {{verb}} {{resource}}"),
}
"""(panel, legend) of queries that may have no series."""


@pytest.fixture
async def shifting(cluster: LocalCluster) -> AsyncIterator[Served]:
    """A service of its own at 1P2D: an Active policy takes the pools' replicas out of the tests' hands.

    With the larger model workers are the bottleneck; the tiny one's gateway and clients are.
    """
    model = ensure_model(cluster.environment, ModelSize.SMALL)
    async with served(cluster, model, name="shifting") as service:
        service.apply()
        await service.ready(prefill=1, decode=2)
        yield service
        service.kubectl("delete", "llms,ppol", "shifting", "--wait=false")
        await service.until("the end of the service", lambda view: view.service is None and not view.workers)


@pytest.fixture
def watched(cluster: LocalCluster) -> Iterator[PrometheusServer]:
    """A Prometheus that scrapes what the chart's PodMonitors say."""
    values = (*REGISTRY, "--set", "monitoring.podMonitors.enabled=true", "--show-only", "templates/pod-monitors.yaml")
    monitors = yaml.safe_load_all(cluster.helm("template", RELEASE, str(CHART), *values))
    with running_prometheus(scrape_configs(monitors, cluster.kubeconfig, f"{SCRAPE_S}s")) as server:
        yield server


async def test_the_planner_gives_long_prompts_a_second_prefill_worker_and_takes_it_back_when_they_are_gone(
    shifting: Served, watched: PrometheusServer
) -> None:
    began_s = time.time()
    measured = await measure(shifting.endpoint, seed=SEED)
    policy = with_objectives(read_policy(), measured.objectives)
    policy["metadata"]["name"] = "shifting"
    shifting.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(policy))
    reference = json.dumps({"spec": {"policyRef": {"name": "shifting"}}})
    shifting.kubectl("patch", "llms", "shifting", "--type=merge", "-p", reference)
    records: list[Record] = []
    # Raises if a layout is not reached, or is left again while its load goes on.
    view = await shift_load(
        shifting.observer,
        shifting.endpoint,
        seed=SEED,
        on_turn=lambda turn: print(turn.title),
        on_view=lambda _: None,
        on_record=records.append,
    )
    print(measured, *(_words(plan) for plan in view.plans), sep="\n")

    assert errors(records) == []
    moves = [plan for plan in view.plans if plan.spec.changes_layout]
    assert [plan.spec.target for plan in moves] == [(2, 1), (1, 2)]
    for plan, switch in zip(moves, view.switches, strict=True):
        assert plan.status.phase is PlanPhase.COMPLETED, plan.status
        assert plan.status.switches == (switch.metadata.name,)
        assert switch.status.phase is SwitchPhase.COMPLETED, switch.status
        assert "within objectives" in plan.spec.message
        _says_why(plan)
    assert len(moves) == len(view.plans), "flow bounds and thresholds become no plan"
    assert view.service is not None
    routing = view.service.status.routing
    assert routing is not None
    assert routing.set_by == "planner"
    assert routing.pending_tokens_per_prefill_worker is not None, "gateways know from when on to queue requests"
    assert routing.decoding_per_decode_worker is not None
    assert routing.slack_milliseconds is not None
    await _computes_where_the_threshold_says(shifting)
    _is_scraped(watched, shifting)
    _is_on_the_dashboards(watched, shifting, began_s)
    _is_marked(watched, shifting, began_s, moves, view.switches)


def _is_scraped(watched: PrometheusServer, service: Served) -> None:
    """Every pod of the service, planner and operator are scraped, once, with the labels that queries choose by."""

    def names(*arguments: str) -> set[str]:
        items: list[dict[str, Any]] = json.loads(service.cluster.kubectl("get", "pods", *arguments, "-o", "json"))[
            "items"
        ]
        return {item["metadata"]["name"] for item in items}

    def scraped() -> list[str]:
        return [series["metric"]["pod"] for series in watched.query("up == 1")]

    of_service = names("-n", service.namespace, "-l", f"pointsman.dev/service={service.name}")
    system = names("-n", SYSTEM_NAMESPACE, "-l", "app.kubernetes.io/component in (operator,planner)")
    assert len(system) == 2
    until(lambda: of_service | system <= set(scraped()), f"all of {of_service | system} are scraped")
    assert len(scraped()) == len(set(scraped())), "no pod twice"
    chosen = f'namespace="{service.namespace}",service="{service.name}"'
    for metric in ("pointsman_gateway_in_flight", "pointsman_worker_in_flight", "vllm:num_requests_running"):
        assert {series["metric"]["pod"] for series in watched.query(f"{metric}{{{chosen}}}")} <= of_service
        assert watched.query(f"{metric}{{{chosen}}}"), metric
    asked = watched.query(f'pointsman_gateway_arrivals_total{{{chosen},endpoint="chat"}}')
    assert asked, "what was asked for, not the port that was scraped"
    assert watched.query(f"pointsman_planner_gpus{{{chosen}}}"), "about the service, though scraped elsewhere"


def _is_on_the_dashboards(watched: PrometheusServer, service: Served, began_s: float) -> None:
    """Each query of each panel about services had a number at some time of this load."""
    silent = set()
    for board in (SERVICE, HEALTH):
        for panel in board.panels:
            for query in panel.queries:
                expr = query.expr.replace("$__rate_interval", f"{8 * SCRAPE_S}s")
                expr = expr.replace("$namespace", service.namespace).replace("$service", service.name)
                found = watched.range(expr, began_s, time.time(), SCRAPE_S)
                values = [float(value) for series in found for _, value in series["values"]]
                if not any(math.isfinite(value) for value in values):
                    silent.add((panel.title, query.legend))
    print("without a number:", sorted(silent))
    assert silent - MAY_BE_EMPTY == set()


def _is_marked(
    watched: PrometheusServer, service: Served, began_s: float, moves: list[Plan], switches: Sequence[RoleSwitch]
) -> None:
    """Each plan and each role switch has its mark with its reason, and the worker's bar its change of colour."""
    step_s = 2 * SCRAPE_S
    (history,) = (panel for panel in SERVICE.panels if panel.kind is Kind.STATES)
    marks = {mark.name: mark.expr for mark in SERVICE.annotations}

    def asked(expr: str) -> list[dict[str, Any]]:
        expr = expr.replace("$__interval", f"{step_s}s")
        expr = expr.replace("$namespace", service.namespace).replace("$service", service.name)
        return watched.range(expr, began_s, time.time(), step_s)

    def marked(name: str, since: datetime, **labels: str) -> bool:
        times_s = [
            float(at_s) for series in asked(marks[name]) if series["metric"] == labels for at_s, _ in series["values"]
        ]
        return any(at_s >= since.timestamp() for at_s in times_s)

    for plan in moves:
        created = plan.metadata.creation_timestamp
        assert created is not None
        until(partial(marked, "Plans", created, reason=plan.spec.reason), f"the mark of {_words(plan)}")
    for switch in switches:
        created = switch.metadata.creation_timestamp
        assert created is not None
        ended = {"phase": str(switch.status.phase), "reason": str(switch.status.reason)}
        until(partial(marked, "Role switches", created, **ended), f"the mark of {switch.metadata.name}")

    def has_both(worker: str | None) -> bool:
        bars = [series for series in asked(history.queries[0].expr) if series["metric"] == {"pod": worker}]
        return {history.states[int(value) - 1] for bar in bars for _, value in bar["values"]} == {"Prefill", "Decode"}

    for switch in switches:
        until(partial(has_both, switch.status.worker), f"both roles in the bar of {switch.status.worker}")
    assert asked(marks["Plans that were not executed"]) == []


def _says_why(plan: Plan) -> None:
    """The plan has the numbers it was made from, and what was not chosen, with the reason for each."""
    assert {"ratePerSecond", "promptTokens", "prefillNeeded", "decodeNeeded"} <= {n.name for n in plan.spec.inputs}
    assert {"switch", "stay"} <= {alternative.action for alternative in plan.spec.alternatives}
    chosen = [(a.prefill, a.decode) for a in plan.spec.alternatives if not a.rejected_because]
    assert chosen == [plan.spec.target]


async def _computes_where_the_threshold_says(service: Served) -> None:
    """A prompt just above the number in force is computed remotely, one just below by the decode worker itself.

    The planner still plans, so the number may change while they are asked, and the gateway knows it a moment later.
    """

    async def in_force() -> int:
        found = (await service.look()).service
        assert found is not None
        assert found.status.routing is not None
        threshold = found.status.routing.max_local_prefill_tokens
        assert threshold is not None
        return threshold

    attempts = itertools.count()

    async def is_kept() -> bool:
        attempt, threshold = next(attempts), await in_force()
        found = []
        for tokens in (threshold + 8, threshold - 8):
            ids = tuple(3 + (index * 7 + tokens + 31 * attempt) % 250 for index in range(tokens))  # in no cache
            answer = await service.endpoint.send(Prompt(tokens, Api.COMPLETION, True, 4, token_ids=ids))
            assert errors([answer]) == []
            found.append((answer.path, answer.path_reason))
        print(f"8 tokens above and below a threshold of {threshold}: {found}")
        is_still = await in_force() == threshold
        return is_still and [path for path, _ in found] == [PrefillPath.REMOTE, PrefillPath.LOCAL]

    await eventually(is_kept, "the threshold decides where a prompt is computed", 60)


def _words(plan: Plan) -> str:
    return f"{plan.metadata.name} {plan.status.phase} {plan.spec.reason}: {plan.spec.message}"
