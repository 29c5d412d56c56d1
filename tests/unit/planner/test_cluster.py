"""The pods of a service as the planner sees them."""

from datetime import UTC, datetime, timedelta
from typing import Any

from pointsman.api.protocol import names
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
