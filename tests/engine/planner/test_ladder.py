"""A shift of the load on real engines: threshold, then switch, then scale, as the simulator foretold.

Each worker has a CPU limit of 0.35 cores: four fit on two cores, so a worker more serves more. New ones take 45 s and
the engine's own start.
The simulator knows what ``pointsman profile`` measured on this very service.
"""

import asyncio
import itertools
import json
import random
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import yaml

from fixtures.ladder import answers, came_down, first_of_each, layouts, live_steps, note_threshold, predicted_steps
from pointsman.api.protocol import names
from pointsman.api.v1alpha1.engine_flags import ENGINE_CONTAINER
from pointsman.api.v1alpha1.plan import Plan, PlanPhase
from pointsman.api.v1alpha1.plannerpolicy import PlannerPolicySpec
from pointsman.kube.client import Kube
from pointsman.local.cluster import LocalCluster
from pointsman.local.engine.models import ModelSize, ensure_model
from pointsman.local.observation import Observer, ServiceView
from pointsman.local.quickstart.examples import read_example, with_model
from pointsman.local.quickstart.waiting import wait_until
from pointsman.local.traffic import Api, Endpoint, Prompt, Record
from pointsman.planner.core.types import Bounds
from pointsman.planner.policies import planner_policy
from pointsman.planner.profile import command as profile
from pointsman.planner.shipped_engines import table_engine, table_network
from pointsman.planner.simulator.baselines import PLANNERS
from pointsman.planner.simulator.simulate import simulate
from pointsman.planner.simulator.types import Leads, Result, Simulation, Trace
from pointsman.planner.table_files import Table, read_table

SERVICE = "ladder"
CORES = "350m"
START_S = 45.0
ENGINE_START_S = 12.0
READY_S = 300.0
SEED = 1
SHORT, LONG, OUTPUT = 300, 2000, 20
STEP_TOKENS = 2048  # vLLM's default on CPU


def capacity(table: Table) -> float:
    """Long prompts a second that one worker prefills."""
    return 1000 / table_engine(table).performance.prefill_ms(LONG, 0)


def policy(table: Table) -> dict[str, Any]:
    """Objectives: five long prompts' time for the first token, four steps' for the others.

    Gateways hold nothing back: what waits is in the prefill queue, where it raises the threshold.
    """
    engine = table_engine(table)
    return {
        "mode": "Active",
        "objectives": {
            "ttftMs": round(5 * engine.performance.prefill_ms(LONG, 0)),
            "tpotMs": round(4 * engine.performance.decode_step_ms(1, LONG)),
        },
        "budget": {"maxGpus": 4},
        "metrics": {"intervalSeconds": 2, "staleAfterSeconds": 20},
        "actions": {
            "flowControl": {"enabled": False},
            "scaleIn": {"enabled": False},
        },
        "performance": {"configMap": {"name": SERVICE}},
    }


def shift(table: Table) -> Trace:
    """Short prompts; then a few long ones; then more than one worker prefills; then more than two do."""
    rng = np.random.default_rng(SEED)
    arrivals, prompts = [], []
    begin_s = 0.0
    for seconds, rate, tokens in (
        (20, 2.2, SHORT),
        (30, 0.29 * capacity(table), LONG),
        (20, 1.55 * capacity(table), LONG),
        (100, 2.3 * capacity(table), LONG),
    ):
        count = round(seconds * rate)
        arrivals.append(begin_s + (np.arange(count) + rng.uniform(0.2, 0.8, count)) / rate)
        prompts.append(rng.integers(int(0.97 * tokens), int(1.03 * tokens), count))
        begin_s += seconds
    prompt_tokens = np.concatenate(prompts)
    return Trace("shift", np.concatenate(arrivals), prompt_tokens, np.full(len(prompt_tokens), OUTPUT))


def foretold(trace: Trace, table: Table) -> Result:
    engine = replace(table_engine(table), max_batched_tokens=STEP_TOKENS)
    leads = Leads(start_s=START_S + ENGINE_START_S, flip_s=0.5)
    simulation = Simulation(engine, 1, 2, network=table_network(table), leads=leads)
    spec = PlannerPolicySpec.model_validate(policy(table))
    return simulate(trace, simulation, planner_policy(spec, Bounds(1, 4), Bounds(1, 4)), PLANNERS["pointsman"]())


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Where a new worker takes as long to start as image pull and weight loading take."""
    with LocalCluster(start_seconds=START_S) as running:
        running.install()
        yield running


def service(cluster: LocalCluster) -> dict[str, Any]:
    """The quick start's example, one prefill and two decode workers with as much CPU as each may have."""
    manifest = with_model(read_example(), ensure_model(cluster.environment, ModelSize.TINY))
    manifest["metadata"] = {"name": SERVICE}
    manifest["spec"]["model"]["servedName"] = SERVICE
    manifest["spec"]["pools"] = {
        "prefill": {"replicas": 1, "minReplicas": 1, "maxReplicas": 4},
        "decode": {"replicas": 2, "minReplicas": 1, "maxReplicas": 4},
    }
    limited = {"name": ENGINE_CONTAINER, "resources": {"limits": {"cpu": CORES}}}
    manifest["spec"]["worker"]["template"] = {"spec": {"containers": [limited]}}
    return manifest


def profiled(cluster: LocalCluster, out: Path) -> Table:
    """As a user does it."""
    which = ["--service", SERVICE, "--kubeconfig", str(cluster.kubeconfig), "--gpu", "cpu"]
    bounds = ["--max-prompt-tokens", "2048", "--max-batch", "8", "--minutes", "1"]
    assert profile.main([*which, *bounds, "--out", str(out)]) == 0
    return read_table(out)


class Lived(NamedTuple):
    """When the load began, the plans in their order, the thresholds by time, and what was answered."""

    begin: datetime
    plans: list[Plan]
    thresholds: dict[datetime, int]
    records: list[Record]


async def send(endpoint: Endpoint, trace: Trace, records: list[Record]) -> None:
    """The trace, whatever becomes of it, with prompts that nobody has seen; ``records`` of what was answered."""
    rng = random.Random(SEED)

    async def ask(index: int, after_s: float, tokens: int) -> None:
        ids = tuple(rng.choices(range(3, 256), k=tokens))
        await asyncio.sleep(after_s)
        prompt = Prompt(index, Api.COMPLETION, True, OUTPUT, ignore_eos=True, token_ids=ids)
        records.append(await endpoint.send(prompt))

    async with asyncio.TaskGroup() as group:
        for index, (arrival_s, tokens) in enumerate(zip(trace.arrival_s, trace.prompt_tokens, strict=True)):
            group.create_task(ask(index, float(arrival_s), int(tokens)))


async def lived(cluster: LocalCluster, observer: Observer, table: Table, out: Path) -> Lived:
    """Give the service the policy and send the trace until a new worker serves."""
    made: dict[str, Plan] = {}
    thresholds: dict[datetime, int] = {}
    records: list[Record] = []
    document = {"apiVersion": names.API_VERSION, "kind": "PlannerPolicy", "metadata": {"name": SERVICE}}
    cluster.kubectl("create", "configmap", SERVICE, f"--from-file=table.json={out}")
    cluster.kubectl("apply", "-f", "-", stdin=yaml.safe_dump({**document, "spec": policy(table)}))
    cluster.kubectl(
        "patch", "llms", SERVICE, "--type=merge", "-p", json.dumps({"spec": {"policyRef": {"name": SERVICE}}})
    )

    def healthy(view: ServiceView) -> bool:
        conditions = view.service.status.conditions if view.service is not None else ()
        return any(c.type == "PlannerHealthy" and c.status == "True" for c in conditions)

    view = await wait_until(observer, "a healthy planner", healthy, timeout_seconds=60)

    def scaled(view: ServiceView) -> bool:
        made.update((plan.metadata.name, plan) for plan in view.plans)
        note_threshold(view.service, thresholds)
        return any(
            plan.spec.changes_layout and not plan.spec.switches and plan.status.phase is PlanPhase.COMPLETED
            for plan in view.plans
        )

    assert view.gateway_url is not None
    async with Endpoint(view.gateway_url, SERVICE, timeout_seconds=READY_S) as endpoint:
        begin = datetime.now(UTC)
        load = asyncio.create_task(send(endpoint, shift(table), records))
        try:
            await wait_until(observer, "a completed scale-out", scaled, timeout_seconds=240, look_seconds=0.5)
        finally:
            load.cancel()
            (ended,) = await asyncio.gather(load, return_exceptions=True)
    assert ended is None or isinstance(ended, asyncio.CancelledError), ended
    return Lived(begin, sorted(made.values(), key=lambda plan: plan.spec.sequence), thresholds, records)


@pytest.mark.verify
@pytest.mark.usefixtures("cpu_limits")
@pytest.mark.timeout(900)
async def test_a_shift_on_real_engines_is_answered_by_threshold_then_switch_then_scale_as_the_simulator_foretold(
    cluster: LocalCluster, tmp_path: Path, findings: dict[str, object]
) -> None:
    out = tmp_path / "table.json"
    async with (
        await Kube.connect(cluster.kubeconfig) as kube,
        Observer(kube, "default", SERVICE) as observer,
    ):
        cluster.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(service(cluster)))
        await wait_until(observer, "a Ready service", lambda view: view.ready, timeout_seconds=READY_S)
        assert "CpuLimitNotKept" not in cluster.kubectl("get", "events", "-o", "jsonpath={.items[*].reason}")
        table = await asyncio.to_thread(profiled, cluster, out)
        told = foretold(shift(table), table)
        found = await lived(cluster, observer, table, out)

    expected, steps = list(predicted_steps(told)), list(live_steps(found.plans, found.thresholds, found.begin, (1, 2)))
    print("foretold:", *expected, "lived:", *steps, *(plan.spec.message for plan in found.plans), sep="\n")
    assert [step.kind for step in first_of_each(expected)] == ["threshold", "switch", "scale"], expected
    assert answers(first_of_each(steps)) == answers(first_of_each(expected))
    assert layouts(steps)[:2] == layouts(expected)[:2]
    (scaled,) = (plan for plan in found.plans if plan.spec.changes_layout and not plan.spec.switches)
    assert scaled.status.started_at is not None
    assert scaled.status.ended_at is not None
    took_s = (scaled.status.ended_at - scaled.status.started_at).total_seconds()
    assert took_s >= START_S - 2, "the new worker took its time"
    failed = [record.error for record in found.records if not record.served]
    thresholds = [each for each, _ in itertools.groupby(tokens for _, tokens in sorted(found.thresholds.items()))]
    findings |= {
        "foretold": [str(step) for step in first_of_each(expected)],
        "lived": [str(step) for step in first_of_each(steps)],
        "answered": len(found.records) - len(failed),
        "failed": len(failed),
        "thresholds": thresholds,
    }
    assert came_down(thresholds) <= 2, "it goes to and fro"
    assert len(found.records) >= 100, "of those that ended before the new worker served"
    assert failed == []
