"""Events as the real API server takes them and ``kubectl`` shows them."""

from fixtures.fault_proxy import FaultProxy, Reply, healthy
from pointsman.kube.client import Kube
from pointsman.kube.events import EventRecorder, Reference
from pointsman.kube.resources import CONFIG_MAPS, EVENTS, NAMESPACES
from pointsman.local.control_plane import ControlPlane


async def test_events_are_accepted_as_they_are_and_a_repeated_one_is_a_series(
    kube: Kube, control_plane: ControlPlane, namespace: str
) -> None:
    made = await kube.create(CONFIG_MAPS, {"metadata": {"name": "a" * 253, "namespace": namespace}})
    recorder = EventRecorder(kube, controller="pointsman.dev/operator", instance="operator-0")
    about = Reference.of(CONFIG_MAPS, made)
    recorder.record(about, "WorkerLost", "worker llama-0 died: " + "ö" * 2000, warning=True, action="Replace")
    await recorder.flush()
    for _ in range(2):
        recorder.record(about, "Scaled", "scaled to 3 workers")
        await recorder.flush()
    recorder.record(Reference.of(NAMESPACES, await kube.get(NAMESPACES, namespace)), "Seen", "namespace seen")
    await recorder.flush()
    assert recorder.dropped == 0
    events = {event["reason"]: event for event in (await kube.list(EVENTS, namespace)).items}
    assert set(events) == {"WorkerLost", "Scaled"}
    assert events["Scaled"]["series"]["count"] == 2
    shown = control_plane.kubectl("describe", "configmap", made["metadata"]["name"], f"--namespace={namespace}")
    assert "scaled to 3 workers" in shown


async def test_an_unwilling_api_server_costs_events_and_nothing_else(proxy: FaultProxy, namespace: str) -> None:
    proxy.plan = lambda _: Reply(500)
    async with await Kube.connect(proxy.kubeconfig) as kube:
        recorder = EventRecorder(kube, controller="pointsman.dev/operator", instance="operator-0")
        for number in range(3):
            recorder.record(Reference("v1", "ConfigMap", namespace, "a", "u"), "Tried", f"try {number}")
        await recorder.flush()
        assert (recorder.dropped, len(proxy.requests)) == (3, 3)
        proxy.plan = healthy
        recorder.record(Reference("v1", "ConfigMap", namespace, "a", "u"), "Tried", "try again")
        await recorder.flush()
        assert [event["note"] for event in (await kube.list(EVENTS, namespace)).items] == ["try again"]
