"""Which pods are workers to be used, and what an endpoints file may say."""

from pathlib import Path
from typing import Any

import pytest

from pointsman.api.protocol.names import Role
from pointsman.gateway.discovery.kubernetes import Service, WorkerPod, discovered, worker_of, workers_of
from pointsman.gateway.discovery.static import EndpointsFileInvalid, read_file
from pointsman.serving.flow_control import UNBOUNDED, FlowBounds
from pointsman.serving.local_remote import RoutingRule
from pointsman.serving.objectives import Objectives


def pod(**changes: Any) -> WorkerPod:
    """A routable, Ready decode pod, but for ``changes``."""
    labels = {"pointsman.dev/role": "decode", "pointsman.dev/routable": "true"} | changes.get("labels", {})
    metadata = {"name": "chat-1", "namespace": "ns", "uid": "u1", "resourceVersion": "1", "labels": labels}
    metadata |= changes.get("metadata", {})
    ready = changes.get("ready", "True")
    status = {"podIP": changes.get("ip", "10.0.0.7"), "conditions": [{"type": "Ready", "status": ready}]}
    variables = [{"name": name, "value": value} for name, value in changes.get("env", {}).items()]
    containers = [{"name": "beside"}, {"name": "engine", "env": [{"name": "POD_IP", "valueFrom": {}}, *variables]}]
    return WorkerPod.model_validate({"metadata": metadata, "spec": {"containers": containers}, "status": status})


def test_a_routable_ready_pod_is_a_worker_with_its_addresses() -> None:
    worker = worker_of(pod())
    assert worker is not None
    assert (worker.key, worker.name, worker.url, worker.role) == ("u1", "chat-1", "http://10.0.0.7:8000", Role.DECODE)


def test_ipv6_addresses_are_bracketed() -> None:
    worker = worker_of(pod(ip="fd00::7"))
    assert worker is not None
    assert worker.url == "http://[fd00::7]:8000"


@pytest.mark.parametrize(
    "changes",
    [
        {"labels": {"pointsman.dev/routable": "false"}},
        {"labels": {"pointsman.dev/role": ""}},
        {"labels": {"pointsman.dev/role": "embed"}},
        {"ready": "False"},
        {"ip": None},
        {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}},
    ],
)
def test_label_and_readiness_are_both_needed(changes: dict[str, Any]) -> None:
    assert worker_of(pod(**changes)) is None


def test_the_routing_numbers_come_from_the_services_status() -> None:
    metadata = {"name": "chat", "namespace": "ns", "uid": "svc", "resourceVersion": "1"}
    routing = {"maxLocalPrefillTokens": 700, "maxPrefillQueueSize": 3, "prefillTokenBudget": None, "setBy": "x"}
    service = Service.model_validate({"metadata": metadata, "status": {"routing": routing, "summary": "1P2D"}})
    found = discovered([pod()], service)
    assert found.rule == RoutingRule(700, 3)
    assert found.bounds == UNBOUNDED
    assert found.service_uid == "svc"
    assert discovered([], Service.model_validate({"metadata": metadata})).rule is None
    assert discovered([], None).rule is None


def test_the_bounds_of_flow_control_come_from_there_too_each_by_itself() -> None:
    metadata = {"name": "chat", "namespace": "ns", "uid": "svc", "resourceVersion": "1"}
    routing = {"maxLocalPrefillTokens": 700, "maxPrefillQueueSize": 3, "pendingTokensPerPrefillWorker": 9000}
    for more, decode in (({}, None), ({"decodingPerDecodeWorker": 12}, 12)):
        service = Service.model_validate({"metadata": metadata, "status": {"routing": routing | more}})
        assert discovered([], service).bounds == FlowBounds(9000, decode)


def test_the_objectives_come_from_there_too_and_what_cannot_be_read_is_none() -> None:
    metadata = {"name": "chat", "namespace": "ns", "uid": "svc", "resourceVersion": "1"}
    for goals, expected in (
        ({"ttftMs": 1500, "tpotMs": 40}, Objectives(1.5, 0.04)),
        ({"ttftMs": 1500, "tpotMs": 40, "ttftMsPerPromptToken": 0.5, "itlMs": 1}, Objectives(1.5, 0.04, 0.0005)),
        ({"ttftMs": "1.5s", "tpotMs": 40}, None),
        ({"ttftMs": 0, "tpotMs": 40}, None),
        (None, None),
    ):
        found = discovered(
            [], Service.model_validate({"metadata": metadata, "status": {"routing": {"objectives": goals}}})
        )
        assert found.objectives == expected
        assert (found.rule, found.bounds) == (None, UNBOUNDED)


def test_an_endpoints_file_with_the_keys_of_earlier_versions_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "endpoints.yaml"
    path.write_text(
        "workers:\n"
        "  - {name: d0, url: 'http://127.0.0.1:8100', role: Decode, kvEvents: 'tcp://127.0.0.1:5557',\n"
        "     kvEventsReplay: 'tcp://127.0.0.1:5558'}\n"
        "  - {name: p0, url: 'http://127.0.0.1:8200', role: Prefill}\n"
        "routing: {maxLocalPrefillTokens: 100, maxPrefillQueueSize: 2}\n"
    )
    found = read_file(path)
    assert [(w.name, w.role) for w in found.workers] == [("d0", Role.DECODE), ("p0", Role.PREFILL)]
    assert found.rule == RoutingRule(100, 2)
    assert found.bounds == UNBOUNDED
    path.write_text(path.read_text().replace("Size: 2", "Size: 2, decodingPerDecodeWorker: 7"))
    assert read_file(path).bounds == FlowBounds(None, 7)
    assert found.objectives is None
    path.write_text(path.read_text().replace("Worker: 7", "Worker: 7, objectives: {ttftMs: 900, tpotMs: 30}"))
    assert read_file(path).objectives == Objectives(0.9, 0.03)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("workers: [{name: a, url: 'http://h:1', role: decode}]", "workers.0.role"),
        ("workers: [{name: a, url: 'h:1', role: Decode}]", "workers.0.url"),
        ("workers: [{name: a, url: 'http://h:1', role: Decode, port: 1}]", "workers.0.port"),
        ("worker: []", "workers"),
        (
            "{workers: [], routing: {maxLocalPrefillTokens: 1, maxPrefillQueueSize: 1, decodingPerDecodeWorker: 0}}",
            "routing.decodingPerDecodeWorker",
        ),
        ("workers: [", "endpoints.yaml"),
        (
            "workers: [{name: a, url: 'http://h:1', role: Decode}, {name: a, url: 'http://h:2', role: Decode}]",
            "'a' appears twice",
        ),
    ],
)
def test_a_mistake_in_the_file_is_named(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "endpoints.yaml"
    path.write_text(text)
    with pytest.raises(EndpointsFileInvalid) as wrong:
        read_file(path)
    assert says in str(wrong.value)


def test_an_encode_worker_is_one_of_its_role() -> None:
    found = worker_of(pod(labels={"pointsman.dev/role": "encode"}))
    assert found is not None and found.role is Role.ENCODE


def test_a_worker_that_was_started_before_its_service_had_encode_workers_ignores_embeddings() -> None:
    old, new, encode = (
        pod(metadata={"name": name, "uid": name}, labels={"pointsman.dev/role": role}, env=env)
        for name, role, env in (
            ("a", "decode", {}),
            ("b", "prefill", {"POINTSMAN_EMBEDDING_ROLE": "ec_consumer"}),
            ("c", "encode", {"POINTSMAN_EMBEDDING_ROLE": "ec_producer"}),
        )
    )
    assert [worker.ignores_embeddings for worker in workers_of([encode, new, old])] == [True, False, False]
    assert not any(worker.ignores_embeddings for worker in workers_of([new, old])), "there is nothing to fetch"
