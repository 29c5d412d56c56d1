"""A shift of the load, live: real planner and operator, new workers that take 45 s, and what the simulator foretold."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from fixtures.control_plane_process import ControlPlaneProcess
from fixtures.kube_calls import WatchedMirror
from fixtures.ladder import answers, first_of_each, layouts, live_steps, note_threshold, predicted_steps
from fixtures.operators import ForkedOperator, OperatorProcess
from pointsman.api.protocol import names
from pointsman.api.v1alpha1.llmservice import LLMService
from pointsman.api.v1alpha1.plan import PlanPhase
from pointsman.api.v1alpha1.plannerpolicy import PlannerPolicySpec
from pointsman.kube import resources
from pointsman.kube.client import Kube
from pointsman.kube.pods import Pod
from pointsman.local.control_plane import ControlPlane
from pointsman.planner.core.types import Bounds, Policy
from pointsman.planner.policies import planner_policy
from pointsman.planner.shipped_engines import shipped_engine
from pointsman.planner.simulator.baselines import PLANNERS
from pointsman.planner.simulator.simulate import simulate
from pointsman.planner.simulator.types import Leads, Result, Simulation, Trace

from ..operator.conftest import Cluster, operator_kubeconfig
from ..operator.stand_in import StandInKubelet
from .live_engines import LiveEngines

__all__ = ["operator_kubeconfig"]

START_S = 45.0
SEED = 1
MODEL, GPU = "meta-llama/Meta-Llama-3.1-8B", "a100_sxm"
POLICY = {
    "mode": "Active",
    # Flow control keeps the prefill queue within the TTFT objective. Where that is short, the queue that raises the
    # threshold and the need that calls for a switch are seen in the same second; here the threshold is first by six.
    "objectives": {"ttftMs": 2500, "tpotMs": 50},
    "budget": {"maxGpus": 4},
    "metrics": {"intervalSeconds": 1, "staleAfterSeconds": 10},
    "actions": {"scaleIn": {"enabled": False}},
    "performance": {"table": {"model": MODEL, "gpu": GPU, "engine": "vllm", "tp": 1}},
}
DEADLINE_S = 200.0
PHASES = ((0, 8, 2, 500, 60), (8, 14, 6, 3500, 30), (22, 60, 10, 3500, 30))
"""(begin, seconds, requests a second, prompt and answer tokens)."""


class SlowKubelet(StandInKubelet):
    """New workers take ``start_s``, as image pull and weight loading do."""

    def __init__(self, kube: Kube, namespace: str) -> None:
        super().__init__(kube, namespace)
        self.start_s = 0.0
        self._due_s: dict[str, float] = {}

    async def _start(self, pod: Pod) -> None:
        loop, name = asyncio.get_running_loop(), pod.metadata.name
        takes_s = self.start_s if pod.metadata.labels.get(names.COMPONENT_LABEL) == names.COMPONENT_WORKER else 0.0
        due_s = self._due_s.setdefault(name, loop.time() + takes_s)
        if loop.time() < due_s:
            loop.call_at(due_s + 0.01, self._dirty.put_nowait, name)
            return
        await super()._start(pod)


def shift() -> Trace:
    """Short prompts; then long ones, too many for one prefill worker; then more of them than two of three can take."""
    rng = np.random.default_rng(SEED)
    arrivals, prompts, outputs = [], [], []
    for begin_s, seconds, rate, prompt, output in PHASES:
        count = seconds * rate
        arrivals.append(begin_s + (np.arange(count) + rng.uniform(0.2, 0.8, count)) / rate)
        prompts.append(rng.integers(int(0.9 * prompt), int(1.1 * prompt), count))
        outputs.append(np.full(count, output))
    return Trace("shift", np.concatenate(arrivals), np.concatenate(prompts), np.concatenate(outputs))


def simulation() -> Simulation:
    return Simulation(shipped_engine(MODEL, GPU, "vllm", 1), 1, 2, leads=Leads(start_s=START_S, flip_s=0.5))


def policy_of_core() -> Policy:
    return planner_policy(PlannerPolicySpec.model_validate(POLICY), Bounds(1, 4), Bounds(1, 4))


def foretold(trace: Trace) -> Result:
    return simulate(trace, simulation(), policy_of_core(), PLANNERS["pointsman"]())


@pytest.fixture
def operator(operator_kubeconfig: Path, namespace: str) -> Iterator[OperatorProcess]:
    process = ForkedOperator(operator_kubeconfig, namespace)
    process.start()
    yield process
    process.kill()


@pytest.fixture
def planner(control_plane: ControlPlane, namespace: str) -> Iterator[ControlPlaneProcess]:
    process = ControlPlaneProcess("planner", control_plane.kubeconfig, namespace, lease_seconds="9")
    yield process
    process.kill()


@pytest.fixture
async def cluster(control_plane: ControlPlane, namespace: str, operator: OperatorProcess) -> AsyncIterator[Cluster]:
    async with (
        await Kube.connect(control_plane.kubeconfig, field_manager="test") as kube,
        SlowKubelet(kube, namespace) as kubelet,
    ):
        found = Cluster(kube, namespace, kubelet, operator)
        tasks = [asyncio.create_task(mirror.run()) for mirror in found.mirrors()]
        try:
            yield found
        finally:
            for item in found.services.objects():
                await kube.patch(
                    resources.LLM_SERVICES, item.metadata.name, namespace, {"metadata": {"finalizers": []}}
                )
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_shift_is_answered_by_threshold_then_switch_then_scale_as_the_simulator_foretold(
    cluster: Cluster, planner: ControlPlaneProcess
) -> None:
    trace = shift()
    told = foretold(trace)
    expected = first_of_each(predicted_steps(told))
    assert [step.kind for step in expected] == ["threshold", "switch", "scale"], expected

    policy = {"apiVersion": names.API_VERSION, "kind": "PlannerPolicy", "spec": POLICY}
    await cluster.kube.apply(
        resources.PLANNER_POLICIES, {**policy, "metadata": {"name": "chat", "namespace": cluster.namespace}}
    )
    pools = {"prefill": {"replicas": 1, "maxReplicas": 4}, "decode": {"replicas": 2, "maxReplicas": 4}}
    await cluster.create(pools=pools, policyRef={"name": "chat"})
    await cluster.until_layout(1, 2)
    assert isinstance(cluster.kubelet, SlowKubelet)
    cluster.kubelet.start_s = START_S
    engines = LiveEngines(cluster, trace, simulation(), policy_of_core().objectives)
    thresholds: dict[datetime, int] = {}
    versions = WatchedMirror(  # calls on_change for each version of the service
        cluster.kube,
        resources.LLM_SERVICES,
        LLMService,
        namespace=cluster.namespace,
        on_change=lambda _, service: note_threshold(service, thresholds),
    )
    following = asyncio.create_task(versions.run())
    await cluster.until(versions, versions.synced.is_set, "the service is followed")
    planner.start()

    def is_planned() -> bool:
        service = cluster.service()
        return service is not None and any(item.type == "PlannerHealthy" for item in service.status.conditions)

    # The load begins when the planner looks: on a busy computer it takes long to start, and the load is by the clock.
    await cluster.until(cluster.services, is_planned, "the planner looks")
    playing, begin = asyncio.create_task(engines.run()), datetime.now(UTC)
    try:

        def scaled() -> bool:
            return any(
                not plan.spec.switches and plan.status.phase is PlanPhase.COMPLETED for plan in cluster.plans.objects()
            )

        await cluster.until(cluster.plans, lambda: playing.done() or scaled(), "a completed scale-out", DEADLINE_S)
    finally:
        playing.cancel()
        following.cancel()
        await asyncio.gather(playing, following, return_exceptions=True)
    if not playing.cancelled():
        playing.result()

    plans = sorted(cluster.plans.objects(), key=lambda plan: plan.spec.sequence)
    assert all(plan.spec.changes_layout for plan in plans), "routing numbers become no plan"
    steps = list(live_steps(plans, thresholds, begin, (1, 2)))
    moves = [record for record in told.decisions if record.decision.changes_layout]
    print("foretold:", *(f"{r.at_s:.0f} s {r.decision.reason}: {r.decision.message}" for r in moves), sep="\n")
    print("lived:", *(f"{p.metadata.name} {p.spec.reason}: {p.spec.message}" for p in plans), sep="\n")
    assert answers(first_of_each(steps)) == answers(expected)
    assert layouts(steps)[:2] == layouts(predicted_steps(told))[:2]
    switched = next(plan for plan in plans if plan.spec.switches)
    scale_outs = [plan for plan in plans if not plan.spec.switches]
    scaled_out = next(plan for plan in scale_outs if plan.status.phase is PlanPhase.COMPLETED)
    assert switched.status.phase is PlanPhase.COMPLETED
    assert switched.status.ended_at is not None
    assert scaled_out.status.ended_at is not None
    started_at = min(plan.status.started_at for plan in scale_outs if plan.status.started_at is not None)
    assert switched.status.ended_at < scaled_out.status.ended_at
    took_s = (scaled_out.status.ended_at - started_at).total_seconds()
    assert took_s >= START_S - 2, "the new worker took its time, also if a newer plan superseded the one that began"
