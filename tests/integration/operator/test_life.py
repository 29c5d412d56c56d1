"""A service is made, becomes ready, and mends itself."""

import asyncio

import pytest
from pydantic_core import from_json

from pointsman.api.protocol import names
from pointsman.api.protocol.names import Role
from pointsman.api.v1alpha1.conditions import ConditionType
from pointsman.api.v1alpha1.workerpool import WorkerPool
from pointsman.kube import resources
from pointsman.kube.errors import Throttled
from pointsman.kube.request import Target
from waiting import eventually

from .conftest import Cluster
from .stand_in import StandInWorker


async def test_a_service_becomes_ready_once_every_worker_proved_its_role(cluster: Cluster) -> None:
    await cluster.create(pools={"prefill": {"replicas": 1}, "decode": {"replicas": 2}})
    await cluster.until_summary("1P2D")

    found = cluster.service()
    assert found is not None
    assert found.status.endpoint == f"http://chat-gateway.{cluster.namespace}.svc:8000/v1"
    assert found.status.pools is not None
    counts = {"desired": 2, "existing": 2, "ready": 2, "routable": 2, "draining": 0, "starting": 0, "switching": 0}
    assert found.status.pools.decode.manifest() == counts
    assert found.status.observed_generation == found.metadata.generation
    for kind in ("Available", "PrefillReady", "DecodeReady", "GatewayReady"):
        assert cluster.condition(ConditionType(kind))[0] == "True", kind
    assert cluster.condition(ConditionType.DEGRADED)[0] == "False"

    for worker in cluster.kubelet.workers.values():
        role = worker.pod.metadata.labels[names.ROLE_LABEL].capitalize()
        assert worker.asked == [f"role {role}", f"verify {role}"], "each is asked once"
        assert worker.pod.metadata.name in {
            pod.metadata.name
            for pod in cluster.kubelet.worker_pods(Role.PREFILL) + cluster.kubelet.worker_pods(Role.DECODE)
            if pod.metadata.labels[names.METRICS_PORT_LABEL] == "8090"
        }, "where Prometheus finds its metrics"
    prefill = cluster.kubelet.worker_pods(Role.PREFILL)[0].metadata.name
    partner = cluster.kubelet.workers[prefill].partners[0]
    decode_urls = {f"http://{pod.status.pod_ip}:8000" for pod in cluster.kubelet.worker_pods(Role.DECODE)}
    assert partner in decode_urls, "a prefill worker is proved with one that pulls its KV"

    pool = WorkerPool.model_validate(await cluster.kube.get(resources.WORKER_POOLS, "chat-decode", cluster.namespace))
    assert pool.status.routable == 2
    assert pool.status.selector is not None
    target = Target("get", resources.WORKER_POOLS, cluster.namespace, "chat-decode", "scale")
    scale = from_json(await cluster.kube.requests.read(target))
    assert scale["status"] == {"replicas": 2, "selector": pool.status.selector}
    assert await cluster.until_event("WorkerRoutable")

    # What is beside the workers belongs to the service, and no secret is anywhere but in the Secret.
    secret = await cluster.kube.get(resources.SECRETS, "chat-pointsman", cluster.namespace)
    deployment = await cluster.kube.get(resources.DEPLOYMENTS, "chat-gateway", cluster.namespace)
    for resource, name in (
        (resources.SERVICES, "chat-gateway"),
        (resources.SERVICE_ACCOUNTS, "chat-gateway"),
        (resources.ROLES, "chat-gateway"),
        (resources.ROLE_BINDINGS, "chat-gateway-role"),
        (resources.POD_DISRUPTION_BUDGETS, "chat-gateway"),
        (resources.POD_DISRUPTION_BUDGETS, "chat-decode"),
        (resources.POD_DISRUPTION_BUDGETS, "chat-prefill"),
        (resources.NETWORK_POLICIES, "chat-pointsman-workers"),
        (resources.NETWORK_POLICIES, "chat-pointsman-worker-metrics"),
    ):
        live = await cluster.kube.get(resource, name, cluster.namespace)
        assert live["metadata"]["ownerReferences"][0]["uid"] == found.metadata.uid
    token = next(iter(cluster.kubelet.workers.values())).token
    assert secret["metadata"]["ownerReferences"][0]["uid"] == found.metadata.uid
    said = cluster.operator.log + str(deployment) + str(found) + str(cluster.events.objects())
    assert token not in said
    assert "a-password-of-nats" not in said


async def test_a_restarted_container_comes_back_without_a_role_and_gets_the_one_of_its_label(cluster: Cluster) -> None:
    await cluster.create()
    await cluster.until_summary("1P1D")
    name = cluster.kubelet.worker_pods(Role.DECODE)[0].metadata.name
    await cluster.kubelet.crash(name)
    await cluster.until(
        cluster.kubelet.pods,
        lambda: (
            cluster.kubelet.workers[name].asked == ["role Decode", "verify Decode"]
            and len(cluster.kubelet.worker_pods(Role.DECODE, routable=True)) == 1
        ),
        "the new container got its role, proved it, and is routable again",
    )
    assert cluster.kubelet.worker_pods(Role.DECODE)[0].metadata.name == name, "the pod stays"
    assert (await cluster.until_event("WorkerUnroutable", name)).startswith(name)
    await cluster.until_summary("1P1D")


async def _evict(cluster: Cluster, name: str) -> None:
    """As ``kubectl drain`` does it. Raises Throttled where a PodDisruptionBudget does not allow it."""
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": cluster.namespace}}
    await cluster.kube.create(resources.PODS, body, name=name, subresource="eviction")


async def test_no_second_worker_is_evicted_before_the_replacement_of_the_first_is_routable(cluster: Cluster) -> None:
    """Two quick evictions would else leave nobody routable while the replacement is verified."""
    await cluster.create(pools={"prefill": {"replicas": 1}, "decode": {"replicas": 2}})
    await cluster.until_summary("1P2D")
    before = cluster.kubelet.worker_pods(Role.DECODE)
    first, second = (pod.metadata.name for pod in before)
    cluster.kubelet.fails_verify = "the answer was empty"
    await eventually(lambda: _evicted(cluster, first), "the first worker is evicted")

    def replacement() -> StandInWorker | None:
        """By uid: it takes the name of the first worker where that one has gone already."""
        known = {pod.metadata.uid for pod in before}
        made = [pod for pod in cluster.kubelet.worker_pods(Role.DECODE) if pod.metadata.uid not in known]
        running = (cluster.kubelet.workers.get(pod.metadata.name) for pod in made)
        return next((each for each in running if each is not None and each.pod.metadata.uid not in known), None)

    await eventually(
        lambda: (made := replacement()) and len(made.partners) > 1, "its replacement fails to prove itself"
    )
    with pytest.raises(Throttled, match="disruption budget"):
        await _evict(cluster, second)
    made = replacement()
    assert made is not None
    made.fail_verify = cluster.kubelet.fails_verify = None
    await cluster.until_summary("1P2D")
    await eventually(lambda: _evicted(cluster, second), "the second worker is evicted once the replacement serves")
    await cluster.until_summary("1P2D")


async def _evicted(cluster: Cluster, name: str) -> bool:
    """Evict a pod; False where its budget, which a controller counts a moment later, does not allow it yet."""
    try:
        await _evict(cluster, name)
    except Throttled:
        return False
    return True


async def test_a_worker_on_a_lost_node_is_said_to_be_lost_and_replaced_when_kubernetes_deletes_it(
    cluster: Cluster,
) -> None:
    await cluster.create(pools={"prefill": {"replicas": 1}, "decode": {"replicas": 2}}, drain={"timeoutSeconds": 1})
    await cluster.until_summary("1P2D")
    name = cluster.kubelet.worker_pods(Role.DECODE)[0].metadata.name
    await cluster.kubelet.workers[name].stop()
    await cluster.kubelet.mark_lost(name)
    said = await cluster.until_condition(ConditionType.DECODE_READY, "False", "NodeLost")
    assert said.startswith("1 of 2 decode workers serve")
    assert f"{name} is on node operator-stand-in, which does not answer" in said
    assert cluster.condition(ConditionType.DEGRADED)[:2] == ("True", "NodeLost")
    assert cluster.condition(ConditionType.AVAILABLE)[0] == "True"
    await cluster.kube.delete(resources.PODS, name, cluster.namespace)
    await cluster.until_summary("1P2D")
    assert cluster.condition(ConditionType.DEGRADED)[0] == "False"


async def test_a_worker_that_drained_itself_is_unrouted_and_serves_again_after_a_real_request(cluster: Cluster) -> None:
    """Its pod stays Ready, so nothing but its own word says that it refuses every request."""
    await cluster.create()
    await cluster.until_summary("1P1D")
    for role in (Role.DECODE, Role.PREFILL):
        name = cluster.kubelet.worker_pods(role)[0].metadata.name
        worker = cluster.kubelet.workers[name]
        worker.asked.clear()
        worker.drain_itself()
        expected = [f"role {role}", f"verify {role}"]
        await cluster.until(
            cluster.kubelet.pods,
            lambda worker=worker, role=role, expected=expected: (  # type: ignore[misc]
                worker.asked == expected and len(cluster.kubelet.worker_pods(role, routable=True)) == 1
            ),
            f"{name} got its role again, proved it, and is routable",
        )
        assert "Draining" in await cluster.until_event("WorkerUnroutable", name)
    await cluster.until_summary("1P1D")
    assert len(cluster.kubelet.created) == 2


async def test_a_new_default_image_reaches_a_service_only_when_it_follows_it(cluster: Cluster) -> None:
    """Images do not share KV: a prefill worker of another image than all decode workers would prefill for nobody."""
    kubelet = cluster.kubelet
    await cluster.create(pools={"prefill": {"replicas": 1}, "decode": {"replicas": 2}})
    await cluster.until_summary("1P2D")

    async def replace(role: Role) -> None:
        """``kubectl delete pod`` of a worker of the first image; returns when there is another one that runs."""
        before = next(pod for pod in kubelet.worker_pods(role) if pod.image("engine") == "worker:test").metadata
        others = {pod.metadata.uid for pod in kubelet.worker_pods(role)} - {before.uid}
        await cluster.kube.delete(resources.PODS, before.name, cluster.namespace)

        def replaced() -> bool:
            found = [pod for pod in kubelet.worker_pods(role) if pod.metadata.uid != before.uid]
            running = [pod for pod in found if pod.container("engine") and pod.metadata.name in kubelet.workers]
            return len(running) == len(found) > len(others)

        await cluster.until(kubelet.pods, replaced, f"{before.name} has a successor")

    def images() -> list[str]:
        return sorted(str(pod.image("engine")) for pod in kubelet.worker_pods())

    await asyncio.to_thread(cluster.operator.stop)
    cluster.operator.set(worker_image="worker:next")
    cluster.operator.start()
    await replace(Role.PREFILL)
    kept = "nothing to do; workers keep image worker:test, the operator's default is worker:next"
    await cluster.until(cluster.services, lambda: cluster.condition(ConditionType.PROGRESSING)[2] == kept, kept)
    await cluster.until_layout(1, 2)
    assert images() == ["worker:test"] * 3

    follow = {"metadata": {"annotations": {names.FOLLOW_DEFAULT_IMAGE_ANNOTATION: "true"}}}
    await cluster.kube.patch(resources.LLM_SERVICES, "chat", cluster.namespace, follow)

    def followed() -> bool:
        found = cluster.service()
        return found is not None and found.status.worker_image == "worker:next"

    await cluster.until(cluster.services, followed, "the operator has seen the annotation")
    await replace(Role.PREFILL)
    said = await cluster.until_condition(ConditionType.DEGRADED, "True", "KvIncompatible")
    assert "worker:next" in said
    assert all(pod.metadata.name in said for pod in kubelet.worker_pods(Role.DECODE))
    assert cluster.condition(ConditionType.PREFILL_READY)[:2] == ("False", "KvIncompatible")
    assert cluster.condition(ConditionType.AVAILABLE)[0] == "True", "decode workers compute the prompts"
    while "worker:test" in images():
        await replace(Role.DECODE)
    await cluster.until_layout(1, 2)
    assert images() == ["worker:next"] * 3
    assert cluster.condition(ConditionType.DEGRADED)[0] == "False"
    found = cluster.service()
    assert found is not None
    assert found.status.worker_image == "worker:next"


async def test_a_look_alike_of_a_gateway_gets_no_token_and_holds_up_no_drain(cluster: Cluster) -> None:
    """``kubectl debug --copy-to --keep-labels`` makes one: a pod with a gateway's labels that no Deployment owns."""
    await cluster.create(pools={"prefill": {"replicas": 1}, "decode": {"replicas": 2}})
    await cluster.until_summary("1P2D")
    gateway = next(iter(cluster.kubelet.gateways))
    live = await cluster.kube.get(resources.PODS, gateway, cluster.namespace)
    labels = {key: value for key, value in live["metadata"]["labels"].items() if key != "pod-template-hash"}
    spec = {key: value for key, value in live["spec"].items() if key != "nodeName"}
    copy = {"metadata": {"name": "look-alike", "labels": labels}, "spec": spec}
    await cluster.kube.create(resources.PODS, copy, cluster.namespace)
    await cluster.until(
        cluster.kubelet.pods,
        lambda: any(pod.metadata.name == "look-alike" and pod.ready for pod in cluster.kubelet.pods.objects()),
        "it runs",
    )
    look_alike = cluster.kubelet.gateways["look-alike"]
    look_alike.frozen = look_alike.uses()  # it would say for ever that it uses both decode workers
    await cluster.edit({"pools": {"decode": {"replicas": 1}}})
    await cluster.until_summary("1P1D")
    assert look_alike.reports == 0
    assert cluster.condition(ConditionType.GATEWAY_READY)[2] == "1 of 1 gateway is ready"


async def test_a_worker_that_crashes_again_and_again_degrades_the_service_with_its_last_words(cluster: Cluster) -> None:
    await cluster.create()
    await cluster.until_summary("1P1D")
    name = cluster.kubelet.worker_pods(Role.PREFILL)[0].metadata.name
    await cluster.kubelet.crash(name, again=False, restarts=4, message="ValueError: no kernel image for this GPU")
    said = await cluster.until_condition(ConditionType.DEGRADED, "True", "CrashLoop")
    assert name in said
    assert "no kernel image" in said
    assert cluster.condition(ConditionType.PREFILL_READY)[:2] == ("False", "CrashLoop")
    assert cluster.condition(ConditionType.AVAILABLE)[0] == "True", "decode workers still answer"


async def test_a_worker_that_cannot_prove_its_role_is_never_routable_and_is_tried_again(cluster: Cluster) -> None:
    cluster.kubelet.fails_verify = "the answer was empty"
    await cluster.create()
    said = await cluster.until_condition(ConditionType.DEGRADED, "True", "VerificationFailed")
    assert "the answer was empty" in said
    assert cluster.kubelet.worker_pods(routable=True) == []
    for worker in cluster.kubelet.workers.values():
        worker.fail_verify = None
    cluster.kubelet.fails_verify = None
    await cluster.until_summary("1P1D")
    assert cluster.condition(ConditionType.DEGRADED)[0] == "False"


async def test_a_worker_deleted_by_hand_is_replaced_under_the_next_free_ordinal(cluster: Cluster) -> None:
    await cluster.create()
    await cluster.until_summary("1P1D")
    before = cluster.kubelet.worker_pods(Role.DECODE)[0].metadata
    await cluster.kube.delete(resources.PODS, before.name, cluster.namespace)
    await cluster.until(
        cluster.kubelet.pods,
        lambda: [pod.metadata.uid != before.uid for pod in cluster.kubelet.worker_pods(Role.DECODE)] == [True],
        "a successor",
    )
    await cluster.until_summary("1P1D")
