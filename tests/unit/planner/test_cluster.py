"""The pods of a service as the planner sees them."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from pointsman.api.protocol import names
from pointsman.api.v1alpha1.llmservice import LLMService
from pointsman.kube.pods import LOST_AFTER_S, Pod
from pointsman.planner.cluster import Cluster
from pointsman.planner.core.types import WorkerCondition

KEY = ("default", "chat")
GONE_BY = datetime(2026, 5, 4, 12, 1, 30, tzinfo=UTC)


class Known:
    """Objects that a mirror would have."""

    def __init__(self, *objects: Any) -> None:
        self._objects = objects

    def by(self, key: tuple[str, str]) -> tuple[Any, ...]:
        return self._objects


def pod(name: str, **metadata: Any) -> Pod:
    labels = {names.SERVICE_LABEL: "chat", names.COMPONENT_LABEL: names.COMPONENT_WORKER, names.ROLE_LABEL: "decode"}
    own = {"name": name, "namespace": "default", "uid": name, "resourceVersion": "1", "labels": labels, **metadata}
    return Pod.model_validate({"metadata": own, "status": {"phase": "Running"}})


def test_encode_workers_are_seen_apart_from_those_that_can_switch() -> None:
    cluster = Cluster(kube=None, namespace="default")  # type: ignore[arg-type]  # nothing is followed here
    labels = {**pod("x").metadata.labels, names.ROLE_LABEL: "encode"}
    cluster.pods = Known(pod("decodes"), pod("encodes", labels=labels))  # type: ignore[assignment]
    cluster.switches = Known()  # type: ignore[assignment]
    assert [worker.name for _, worker in cluster.workers(KEY, 4, 0.0)] == ["decodes"]
    (encoder,) = (worker for _, worker in cluster.encode_workers(KEY, 1, 0.0))
    assert (encoder.name, encoder.condition, encoder.gpus) == ("encodes", WorkerCondition.STARTING, 1)


def test_a_gateway_is_read_as_long_as_it_may_accept_requests() -> None:
    cluster = Cluster(kube=None, namespace="default")  # type: ignore[arg-type]  # nothing is followed here
    labels = {**pod("x").metadata.labels, names.COMPONENT_LABEL: names.COMPONENT_GATEWAY}

    def gateway(name: str, ready: bool = True, phase: str = "Running", **metadata: Any) -> Pod:
        conditions = [{"type": "Ready", "status": str(ready)}]
        made = pod(name, labels=labels, **metadata).model_dump(by_alias=True)
        made["status"] |= {"phase": phase, "podIP": "10.0.0.1", "conditions": conditions}
        return Pod.model_validate(made)

    ends = gateway("ends", deletionTimestamp=GONE_BY.isoformat())
    busy, ended = gateway("busy", ready=False), gateway("ended", ready=False, phase="Failed")
    cluster.pods = Known(gateway("serves"), ends, busy, ended)  # type: ignore[assignment]
    assert [target.key for target in cluster.gateways(KEY)] == ["serves"], "the others may only start"
    found = cluster.gateways(KEY, {"serves", "ends", "busy", "ended"})
    assert [(target.key, target.is_ready) for target in found] == [("serves", True), ("ends", False), ("busy", False)]


def test_a_pod_that_ends_takes_its_place_in_the_budget_until_its_node_is_given_up() -> None:
    cluster = Cluster(kube=None, namespace="default")  # type: ignore[arg-type]  # nothing is followed here
    cluster.pods = Known(pod("stays"), pod("ends", deletionTimestamp=GONE_BY.isoformat()))  # type: ignore[assignment]
    cluster.switches = Known()  # type: ignore[assignment]

    def shown(at: datetime) -> dict[str, WorkerCondition]:
        return {worker.name: worker.condition for _, worker in cluster.workers(KEY, 1, at.timestamp())}

    ends = {"stays": WorkerCondition.STARTING, "ends": WorkerCondition.DRAINING}
    assert shown(GONE_BY - timedelta(seconds=80)) == ends
    assert shown(GONE_BY + timedelta(seconds=LOST_AFTER_S - 1)) == ends
    assert shown(GONE_BY + timedelta(seconds=LOST_AFTER_S)) == {"stays": WorkerCondition.STARTING}


CREATED = datetime(2026, 5, 4, 12, 0, 0, tzinfo=UTC)


def started(
    name: str, took_s: float | None, labels: Mapping[str, str] = MappingProxyType({}), *,
    restarts: int = 0, service: str = "chat", switched_s: float | None = None,
) -> Pod:  # fmt: skip
    """A worker whose containers were ready so long after it was created; None: they are not. ``switched_s``: when it
    was routable again after a role switch."""
    made = pod(name, labels={**pod("x").metadata.labels, names.SERVICE_LABEL: service, **labels})
    conditions = [
        {
            "type": kind,
            "status": "False" if took_s is None else "True",
            "lastTransitionTime": (CREATED + timedelta(seconds=after_s)).isoformat(),
        }
        for kind, after_s in (("ContainersReady", took_s or 1.0), ("Ready", switched_s or took_s or 1.0))
    ]
    body = made.model_dump(mode="json", by_alias=True)
    body["metadata"]["creationTimestamp"] = CREATED.isoformat()
    body["status"] |= {"conditions": conditions, "containerStatuses": [{"name": "worker", "restartCount": restarts}]}
    return Pod.model_validate(body)


def service(name: str, model: str = "hf://a/b", **spec: Any) -> LLMService:
    metadata = {"name": name, "namespace": "default", "uid": name, "resourceVersion": "1"}
    return LLMService.model_validate({"metadata": metadata, "spec": {"model": {"source": model}, **spec}})


def start_s(pods: list[Pod], *others: LLMService) -> float | None:
    cluster = Cluster(kube=None, namespace="default")  # type: ignore[arg-type]  # nothing is followed here
    by_service = {
        key: tuple(each for each in pods if each.metadata.labels[names.SERVICE_LABEL] == key[1])
        for key in (KEY, *((other.metadata.namespace, other.metadata.name) for other in others))
    }
    cluster.pods = SimpleNamespace(by=by_service.get)  # type: ignore[assignment]
    cluster.services = SimpleNamespace(objects=lambda: others)  # type: ignore[assignment]
    return cluster.start_s(KEY, service("chat"))


def test_pods_that_serve_show_what_a_start_takes() -> None:
    assert start_s([started("a", 200), started("b", 220), started("c", 210)]) == 210
    assert start_s([]) is None
    assert start_s([started("begins", None)]) is None


def test_a_role_switch_is_no_start() -> None:
    """It closes the pod's readiness gate for a moment, long after the start."""
    switched = [started(name, 90, switched_s=after_s) for name, after_s in (("a", 1800.0), ("b", 3000.0))]
    assert start_s([*switched, started("c", 95)]) == 90


@pytest.mark.parametrize(
    "other",
    [
        started("was-not-ready-for-a-moment", 3000),
        started("was-not-ready-after-a-day", 86_400),
        started("restarted", 20, restarts=1),
        started("encodes", 20, {names.ROLE_LABEL: "encode"}),
        started("gateway", 2, {names.COMPONENT_LABEL: names.COMPONENT_GATEWAY}),
    ],
    ids=lambda pod: pod.metadata.name,
)
def test_what_is_no_start_of_a_worker_shows_nothing(other: Pod) -> None:
    assert start_s([started("a", 200), other]) == 200


def test_a_new_service_is_believed_to_start_as_others_of_its_model() -> None:
    pods = [started("a", 200, service="elder"), started("b", 20, service="small"), started("c", 30, service="larger")]
    others = service("elder"), service("small", "hf://a/c"), service("larger", worker={"gpus": 4})
    assert start_s(pods, *others) == 200
    assert start_s([started("own", 150), *pods], *others) == 150
    assert start_s(pods[1:], *others[1:]) is None
