"""Plans against a real API server: what is carried out in which order, what ends one, and who owns the replicas."""

from datetime import UTC, datetime, timedelta
from typing import Any

from pointsman.api.protocol import names
from pointsman.api.protocol.names import Role
from pointsman.api.v1alpha1.plan import PlanPhase, PlanReason
from pointsman.api.v1alpha1.plannerpolicy import Mode
from pointsman.api.v1alpha1.roleswitch import SwitchPhase
from pointsman.kube import resources
from pointsman.kube.client import Kube
from pointsman.kube.resources import Resource
from pointsman.local.control_plane import ControlPlane
from pointsman.planner.core.types import RoutingNumbers
from waiting import eventually

from .conftest import Cluster
from .plan_objects import NUMBERS, layout, plan, policy, publish, routing, scale

AUTOSCALERS = Resource("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler")


async def decide(cluster: Cluster, name: str, decision: str) -> None:
    """What a person does: ``kubectl patch plan``."""
    answer = {"spec": {"approval": {"decision": decision, "by": "a person"}}}
    await cluster.kube.patch(resources.PLANS, name, cluster.namespace, answer)


def budgets(cluster: Cluster, role: Role) -> list[int | None]:
    """The prefill token budget of each worker with this role."""
    return [w.prefill_token_budget for w in cluster.kubelet.workers.values() if w.role is role]


async def test_a_plans_prefill_token_budget_is_pushed_to_workers_that_serve(cluster: Cluster) -> None:
    await layout(cluster, 2, 1, Mode.ACTIVE)
    assert budgets(cluster, Role.PREFILL) == [8192, 8192], "the default comes with the role"
    routed = {"maxLocalPrefillTokens": 100, "maxPrefillQueueSize": 8, "prefillTokenBudget": 2048}
    name = await plan(cluster, 1, 2, 1, changesLayout=False, routing=routed)
    await eventually(lambda: budgets(cluster, Role.PREFILL) == [2048, 2048], "both prefill workers have it")
    assert (await routing(cluster))["setBy"] == f"plan/{name}"
    objectives = {"ttftMs": 1000, "ttftMsPerPromptToken": 0, "tpotMs": 50}
    assert (await routing(cluster))["objectives"] == objectives, (
        "a plan's numbers leave the policy's objectives in force"
    )
    asked = [what for worker in cluster.kubelet.workers.values() for what in worker.asked]
    assert asked.count("budget 2048") == 2, "once each, and to no decode worker"
    assert asked.count("role Prefill") == 2, "no role is given again"


async def test_a_plan_routes_then_switches_then_scales_and_what_others_write_is_put_back(cluster: Cluster) -> None:
    await layout(cluster, 1, 3, Mode.ACTIVE)
    worker = next(iter(cluster.kubelet.workers.values()))
    for worker in cluster.kubelet.workers.values():
        worker.in_flight = 1
    name = await plan(cluster, 1, 2, 3, switches=1)
    await cluster.until_switch(SwitchPhase.DRAINING, f"{name}-0")
    assert (await routing(cluster))["maxLocalPrefillTokens"] == 100, (
        "routing acts on the next request, nothing is waited for"
    )
    assert (await routing(cluster))["setBy"] == f"plan/{name}"
    assert await cluster.books() == {Role.PREFILL: 1, Role.DECODE: 3}, "what is scaled waits for the switch"
    assert len(cluster.kubelet.created) == 4
    for worker in cluster.kubelet.workers.values():
        worker.in_flight = 0
    done = await cluster.until_plan(PlanPhase.COMPLETED, name)
    await cluster.until_layout(2, 3)
    assert done.status.switches == (f"{name}-0",)
    assert done.status.started_at is not None
    assert done.status.ended_at is not None
    assert len(cluster.kubelet.created) == 5
    [made] = cluster.switches.objects()
    owners = [(owner.kind, owner.uid) for owner in made.metadata.owner_references]
    assert owners == [("Plan", done.metadata.uid)], "it is kept as long as its plan, and goes with it"

    await scale(cluster, "chat-decode", 4)
    said = await cluster.until_event("ReplicasPutBack")
    assert "plans own this pool" in said
    await cluster.until_layout(2, 3)


async def test_a_person_approves_denies_or_lets_a_plan_expire(cluster: Cluster) -> None:
    await layout(cluster, 1, 2, Mode.APPROVE)
    asks: dict[str, Any] = {"approval": {"required": True}, "mode": Mode.APPROVE}
    late = await plan(cluster, 1, 1, 3, lives_s=2, **asks)
    expired = await cluster.until_plan(PlanPhase.EXPIRED, late)
    assert "not approved before" in (expired.status.message or "")
    denied = await plan(cluster, 2, 1, 3, **asks)
    waits = await cluster.until_plan(PlanPhase.AWAITING_APPROVAL, denied)
    assert f"kubectl patch plan {denied}" in (waits.status.message or "")
    await decide(cluster, denied, "Denied")
    said = await cluster.until_plan(PlanPhase.DENIED, denied)
    assert "a person" in (said.status.message or "")
    assert await cluster.books() == {Role.PREFILL: 1, Role.DECODE: 2}
    assert (await routing(cluster)).keys() == {"objectives"}, "nothing of a plan happens before it is approved"
    approved = await plan(cluster, 3, 2, 1, switches=1, **asks)
    await cluster.until_plan(PlanPhase.AWAITING_APPROVAL, approved)
    assert cluster.switches.objects() == ()
    await decide(cluster, approved, "Approved")
    await cluster.until_plan(PlanPhase.COMPLETED, approved)
    await cluster.until_layout(2, 1)


async def test_a_newer_plan_supersedes_one_in_the_middle_of_its_switch(cluster: Cluster) -> None:
    await layout(cluster, 1, 3, Mode.ACTIVE)
    for worker in cluster.kubelet.workers.values():
        worker.in_flight = 1
    first = await plan(cluster, 1, 3, 1, switches=2)
    began = await cluster.until_switch(SwitchPhase.DRAINING, f"{first}-0")
    second = await plan(cluster, 2, 2, 3)
    assert "newer" in ((await cluster.until_plan(PlanPhase.SUPERSEDED, first)).status.message or "")
    not_begun = {f"{first}-0", f"{first}-1"} - {began.metadata.name}
    for worker in cluster.kubelet.workers.values():
        worker.in_flight = 0
    await cluster.until_plan(PlanPhase.COMPLETED, second)
    await cluster.until_layout(2, 3)
    ended = {switch.metadata.name: switch.status.phase for switch in cluster.switches.objects()}
    assert ended[began.metadata.name] is SwitchPhase.COMPLETED, "what had begun is ended in order"
    for name in not_begun & set(ended):
        assert ended[name] in (SwitchPhase.COMPLETED, SwitchPhase.FAILED)
    assert len(cluster.kubelet.created) - len(cluster.kubelet.ended) == 5


async def test_a_switch_that_fails_ends_its_plan_and_nothing_is_scaled_to_make_up_for_it(cluster: Cluster) -> None:
    await layout(cluster, 1, 2, Mode.ACTIVE)
    for worker in cluster.kubelet.workers.values():
        worker.cannot_prove = {Role.PREFILL}
    name = await plan(cluster, 1, 2, 2, switches=1)
    failed = await cluster.until_plan(PlanPhase.FAILED, name)
    assert failed.status.reason == PlanReason.SWITCH_FAILED
    assert "RolledBack" in (failed.status.message or "")
    await cluster.until_layout(1, 2)
    assert len(cluster.kubelet.created) == 3


async def test_a_plan_beyond_what_the_policy_allows_is_refused_by_name(cluster: Cluster) -> None:
    await layout(cluster, 1, 1, Mode.ACTIVE)
    dear = await cluster.until_plan(PlanPhase.FAILED, await plan(cluster, 1, 4, 4))
    assert (dear.status.reason, dear.status.message) == (
        PlanReason.NOT_ALLOWED,
        "the plan needs 8 GPUs, more than budget.maxGpus of the policy (7)",
    )
    beyond = await cluster.until_plan(PlanPhase.FAILED, await plan(cluster, 2, 1, 5))
    assert "spec.pools.decode does not allow (1 to 4)" in (beyond.status.message or "")
    await policy(cluster, Mode.SHADOW)
    recorded = await cluster.until_plan(PlanPhase.SHADOW, await plan(cluster, 3, 1, 2, mode=Mode.SHADOW))
    assert recorded.status.reason == PlanReason.RECORDED
    assert (await routing(cluster)).keys() == {"objectives"}
    await cluster.until_layout(1, 1)


async def test_an_autoscaler_and_kubectl_scale_are_left_alone_where_the_policy_is_external(cluster: Cluster) -> None:
    await layout(cluster, 1, 1, Mode.EXTERNAL)
    await scale(cluster, "chat-prefill", 2)
    # It asks for one more than there are before it looks at any metric, which this cluster does not have.
    autoscaler = {
        "metadata": {"name": "chat-decode"},
        "spec": {
            "scaleTargetRef": {"apiVersion": names.API_VERSION, "kind": "WorkerPool", "name": "chat-decode"},
            "minReplicas": 2,
            "maxReplicas": 4,
            "metrics": [
                {
                    "type": "Pods",
                    "pods": {"metric": {"name": "queue"}, "target": {"type": "AverageValue", "averageValue": "1"}},
                }
            ],
        },
    }
    await cluster.kube.create(AUTOSCALERS, autoscaler, cluster.namespace)
    await cluster.until_layout(2, 2)
    replicas = {"pools": {"prefill": {"replicas": 3}}}
    await cluster.edit(replicas)  # where the pools began; it is not copied over what the owner wrote
    await cluster.until_layout(2, 2)
    put_back = [event for event in cluster.events.objects() if event.get("reason") == "ReplicasPutBack"]
    assert put_back == []


async def until_routing(cluster: Cluster, what: str, **numbers: object) -> None:
    """``status.routing`` is as said; None: the field is not set."""

    def holds() -> bool:
        service = cluster.service()
        found = service.status.routing.manifest() if service and service.status.routing else {}
        return all(found.get(name) == value for name, value in numbers.items())

    await cluster.until(cluster.services, holds, what)


async def until_operator_has_read(cluster: Cluster) -> None:
    """The operator's copy of the service is as new as this moment: it reports the generation of an edit made now."""
    edit = {"spec": {"pools": {"decode": {"maxReplicas": 5}}}}
    edited = await cluster.kube.patch(resources.LLM_SERVICES, "chat", cluster.namespace, edit)
    generation = edited["metadata"]["generation"]

    def reported() -> bool:
        service = cluster.service()
        return service is not None and service.status.observed_generation == generation

    await cluster.until(cluster.services, reported, f"the operator has read generation {generation}")


async def test_what_the_planner_publishes_is_its_own_and_the_operator_neither_keeps_nor_takes_it(
    cluster: Cluster,
) -> None:
    await layout(cluster, 1, 1, Mode.ACTIVE)
    await publish(cluster, NUMBERS)
    objectives = {"ttftMs": 1000, "ttftMsPerPromptToken": 0, "tpotMs": 50}
    await until_routing(cluster, "both owners' fields", objectives=objectives, decodingPerDecodeWorker=12)
    await plan(cluster, 1, 1, 2, routing=None)
    await cluster.until_layout(1, 2)  # the operator has written the status
    await until_routing(cluster, "published", setBy="planner", reason="FlowControl", maxLocalPrefillTokens=640)
    found = await cluster.kube.get(resources.LLM_SERVICES, "chat", cluster.namespace)
    owned = {
        entry["manager"]: set(entry["fieldsV1"]["f:status"].get("f:routing", {})) - {"."}
        for entry in found["metadata"]["managedFields"]
        if entry["operation"] == "Apply" and entry.get("subresource") == "status"
    }
    assert owned["pointsman-operator"] == {"f:objectives"}, "else it would put an older number over a newer one"
    assert "f:decodingPerDecodeWorker" in owned["pointsman-planner-routing"]
    await publish(cluster, RoutingNumbers(512, 8))
    await until_routing(cluster, "bounds are gone", pendingTokensPerPrefillWorker=None, decodingPerDecodeWorker=None)
    await policy(cluster, Mode.ACTIVE, objectives={"ttftMs": 2000, "tpotMs": 50})
    await until_routing(cluster, "new objectives", objectives=objectives | {"ttftMs": 2000}, maxLocalPrefillTokens=512)
    await cluster.kube.delete(resources.PLANNER_POLICIES, "chat", cluster.namespace)
    await until_routing(cluster, "objectives go with the policy", objectives=None, maxLocalPrefillTokens=512)
    cleared = {"status": {"routing": None}}
    await cluster.kube.patch(resources.LLM_SERVICES, "chat", cluster.namespace, cleared, subresource="status")
    await policy(cluster, Mode.SHADOW)
    await until_routing(cluster, "nobody brings back what a person took away", objectives=objectives, setBy=None)


async def test_numbers_of_an_earlier_operator_stay_until_the_planner_publishes_others(
    cluster: Cluster, control_plane: ControlPlane
) -> None:
    """It patched them in and applied them with the rest of the status, under the same field manager."""
    await layout(cluster, 1, 1, Mode.ACTIVE)
    service = cluster.service()
    assert service is not None
    numbers = {"maxLocalPrefillTokens": 600, "maxPrefillQueueSize": 8, "decodingPerDecodeWorker": 12, "setBy": "plan/x"}
    status = {**service.status.manifest(), "routing": numbers}
    async with await Kube.connect(control_plane.kubeconfig, field_manager="pointsman-operator") as earlier:
        kind, at = resources.LLM_SERVICES, {"name": "chat", "namespace": cluster.namespace}
        await earlier.patch(kind, "chat", cluster.namespace, {"status": {"routing": numbers}}, subresource="status")
        await earlier.apply(kind, {"metadata": at, "status": status}, subresource="status")
    await plan(cluster, 1, 1, 2, routing=None)
    await cluster.until_layout(1, 2)
    await until_routing(cluster, "they stay", **numbers)
    await publish(cluster, RoutingNumbers(600, 8))
    await until_routing(cluster, "published", setBy="planner", maxLocalPrefillTokens=600, decodingPerDecodeWorker=None)


async def test_routing_of_an_older_plan_is_not_put_over_what_was_published_since(cluster: Cluster) -> None:
    await layout(cluster, 1, 1, Mode.ACTIVE)
    await publish(cluster, NUMBERS)
    await until_routing(cluster, "published", setBy="planner", maxLocalPrefillTokens=640)
    await until_operator_has_read(cluster)
    minute = timedelta(minutes=1)
    older = await plan(cluster, 1, 1, 1, changesLayout=False, observedAt=(datetime.now(UTC) - minute).isoformat())
    await cluster.until_plan(PlanPhase.COMPLETED, older)
    assert (await routing(cluster))["maxLocalPrefillTokens"] == 640
    newer = await plan(cluster, 2, 1, 1, changesLayout=False, observedAt=(datetime.now(UTC) + minute).isoformat())
    await cluster.until_plan(PlanPhase.COMPLETED, newer)
    await until_routing(cluster, "after a rollback of the planner", setBy=f"plan/{newer}", reason=None, updatedAt=None)
