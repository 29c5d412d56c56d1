"""An elastic group: the objects it is made of, what is said about it, and what is news."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from pointsman.api.protocol import names
from pointsman.api.protocol.elastic import ElasticState, InstanceState, IterationState, PrefillTimeState, Totals
from pointsman.api.v1alpha1.conditions import Reason
from pointsman.api.v1alpha1.elasticgroup import ElasticGroup
from pointsman.gateway.discovery.kubernetes import worker_of as gateways_worker_of
from pointsman.kube.pods import Pod
from pointsman.operator.core.elastic.manifests import group_objects, instance_name
from pointsman.operator.core.elastic.news import news
from pointsman.operator.core.elastic.status import GroupReport, GroupView, group_report
from pointsman.operator.core.install import Install
from pointsman.operator.core.problems import Problem
from pointsman.operator.core.snapshot import Container, GatewayPod, Worker
from pointsman.operator.errors import NotMergeable, Refused

ONE_GATEWAY = {"gateway": {"replicas": 1}}
INSTALL = Install(worker_image="worker:1", gateway_image="gateway:1", nats_url="nats://nats:4222")
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def group(**spec: Any) -> ElasticGroup:
    """Four instances, with ``spec`` over it."""
    manifest = {
        "metadata": {"name": "long-chat", "namespace": "team", "uid": "u-1", "generation": 3},
        "kind": "ElasticGroup",
        "spec": {"model": {"source": "file:///models/tiny"}, "instances": {"replicas": 4}, **ONE_GATEWAY, **spec},
    }
    return ElasticGroup.model_validate(manifest)


def made(of: ElasticGroup, kind: str, name: str) -> dict[str, Any]:
    """The one object of that kind and name."""
    (found,) = [
        item for item in group_objects(of, INSTALL) if item["kind"] == kind and item["metadata"]["name"] == name
    ]
    return found


def environment(stateful_set: dict[str, Any]) -> dict[str, Any]:
    """Of its engine container, plain values only."""
    (engine,) = stateful_set["spec"]["template"]["spec"]["containers"]
    return {item["name"]: item["value"] for item in engine["env"] if "value" in item}


def test_instances_get_the_number_type_and_slots_and_no_arguments_of_the_server() -> None:
    wanted = group(
        engine={"args": ["--dtype=float32", "--max-model-len=4096"]},
        instance={"gpus": 2, "tensorParallel": 2, "kvTokens": 5000},
        instances={"replicas": 3, "maxReplicas": 3},
    )
    instances = made(wanted, "StatefulSet", "long-chat")
    assert instances["spec"]["replicas"] == 3
    (engine,) = instances["spec"]["template"]["spec"]["containers"]
    assert engine["command"][-1] == "pointsman.workers.elastic.instance"
    assert "args" not in engine
    assert engine["resources"] == {
        "limits": {"nvidia.com/gpu": "2"},
        "requests": {"cpu": "500m", "memory": "8Gi"},
    }
    assert environment(instances)[names.ENV_TENSOR_PARALLEL] == environment(instances)[names.ENV_GPUS] == "2"
    assert environment(instances)[names.ENV_SLOTS] == "5000"
    assert environment(instances)[names.ENV_DTYPE] == "float32"
    manager = made(wanted, "StatefulSet", "long-chat-manager")
    (engine,) = manager["spec"]["template"]["spec"]["containers"]
    assert manager["spec"]["replicas"] == 1
    assert engine["args"] == ["--dtype=float32", "--max-model-len=4096"]
    assert "limits" not in engine["resources"], "the manager needs no GPU"
    assert environment(manager)[names.ENV_MAX_DEGREE] == "3", "the default is bounded by maxReplicas"


def test_a_user_can_exclude_nccl() -> None:
    """As docs/use/elastic.md says."""
    engine = {"name": "engine", "env": [{"name": names.ENV_TENSOR_TRANSPORT, "value": "gloo"}]}
    wanted = group(instance={"gpus": 1, "template": {"spec": {"containers": [engine]}}})
    assert environment(made(wanted, "StatefulSet", "long-chat"))[names.ENV_TENSOR_TRANSPORT] == "gloo"


def test_a_changed_template_restarts_nothing_and_pods_outlast_their_drain() -> None:
    for name in ("long-chat", "long-chat-manager"):
        spec = made(group(drain={"timeoutSeconds": 700}), "StatefulSet", name)["spec"]
        assert spec["updateStrategy"] == {"type": "OnDelete"}
        assert spec["podManagementPolicy"] == "Parallel"
        assert spec["template"]["spec"]["terminationGracePeriodSeconds"] > 700


def test_gateways_take_the_manager_for_a_decode_worker_and_instances_for_nothing() -> None:
    found = []
    for name in ("long-chat", "long-chat-manager"):
        template = made(group(), "StatefulSet", name)["spec"]["template"]
        status = {"podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}
        meta = {
            "name": name,
            "namespace": "team",
            "uid": name,
            "resourceVersion": "1",
            "labels": template["metadata"]["labels"],
        }
        found.append(gateways_worker_of(Pod.model_validate({"metadata": meta, "status": status})))
        selector = made(group(), "StatefulSet", name)["spec"]["selector"]["matchLabels"]
        assert selector.items() <= template["metadata"]["labels"].items()
    instance, manager = found
    assert instance is None
    assert manager is not None
    assert manager.role is names.Role.DECODE


def test_everything_belongs_to_the_group() -> None:
    for item in group_objects(group(), INSTALL):
        (owner,) = item["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["uid"]) == ("ElasticGroup", "long-chat", "u-1")


def test_a_template_that_sets_what_pointsman_sets_is_refused() -> None:
    template = {"spec": {"containers": [{"name": "engine", "image": "mine"}]}}
    with pytest.raises(Refused, match=r"spec\.instance\.template\..*image is set by Pointsman"):
        group_objects(group(instance={"template": template}), INSTALL)


def test_a_template_that_cannot_be_merged_is_refused_with_its_own_path() -> None:
    with pytest.raises(NotMergeable, match=r"spec\.instance\.template: spec\.volumes\[0\] has no name"):
        group_objects(group(instance={"template": {"spec": {"volumes": [{"emptyDir": {}}]}}}), INSTALL)


def test_a_setting_that_only_workers_of_a_service_have_is_refused() -> None:
    env = [{"name": "POINTSMAN_INPUT_BROADCAST_MODE", "value": "auto"}]
    template = {"spec": {"containers": [{"name": "engine", "env": env}]}}
    with pytest.raises(Refused, match="env POINTSMAN_INPUT_BROADCAST_MODE is set by Pointsman"):
        group_objects(group(instance={"template": template}), INSTALL)


# --- what is said ---


def pod(name: str, *, ready: bool = True, **more: Any) -> Worker:
    """A pod of the group."""
    worker = Worker(
        name=name, uid=name, resource_version="1", created_s=0.0, role=None, revision="", kv_compatibility="",
        pod_ready=ready, pod_ip="10.0.0.1", container=Container(running=True),
    )  # fmt: skip
    return replace(worker, **more)


def state(count: int = 4, leaving: tuple[InstanceState, ...] = (), **more: Any) -> ElasticState:
    """What a manager says that works with ``count`` instances of 100 slots, 10 of them used, and with ``leaving``."""
    named = tuple(InstanceState(name=instance_name("long-chat", n), slots=100, used_slots=10) for n in range(count))
    empty: dict[str, Any] = {
        "iterations": (), "running": 0, "waiting": 0, "latency_model": (), "totals": Totals(), "manager": "m1"
    }  # fmt: skip
    return ElasticState(**{**empty, "instances": (*named, *leaving), **more})


def view(**more: Any) -> GroupView:
    """A group of which all is there."""
    whole = GroupView(
        group=group(),
        instances=tuple(pod(instance_name("long-chat", number)) for number in range(4)),
        manager=pod("long-chat-manager-0"),
        gateways=(GatewayPod(name="g", ready=True),),
        state=state(),
    )
    return replace(whole, **more)


def said(of: GroupView, *problems: Problem) -> GroupReport:
    return group_report(of, problems, endpoint="http://x/v1", now=NOW)


def condition(outcome: GroupReport, kind: str) -> tuple[str, str, str]:
    (found,) = [each for each in outcome.status.conditions if each.type == kind]
    return str(found.status), found.reason, found.message


def test_a_group_with_all_its_instances_is_ready_and_says_what_it_computes() -> None:
    iterations = (
        IterationState(phase="Decode", instances=("long-chat-3",), requests=12, tokens=400),
        IterationState(phase="Prefill", instances=("long-chat-0", "long-chat-1"), requests=1, tokens=900),
        IterationState(phase="Decode", instances=("long-chat-2",), requests=3, tokens=70),
    )
    model = (PrefillTimeState(degree=1, alpha_seconds=0.01, beta_seconds=1e-4, gamma_seconds=2e-9, error=0.04),)
    outcome = said(view(state=state(iterations=iterations, latency_model=model)))
    assert condition(outcome, "Ready") == ("True", "AsDesired", "4 of 4 instances joined; 1 of 1 gateway is ready")
    assert outcome.status.summary == "4 instances, 3 groups (1x2 Prefill, 2x1 Decode)"
    assert [each.degree for each in outcome.status.groups] == [2, 1, 1]
    assert outcome.status.degrees == "1-2"
    assert outcome.status.slots is not None
    assert (outcome.status.slots.total, outcome.status.slots.free) == (400, 360)
    (time_of,) = outcome.status.latency_model
    assert (time_of.alpha_ms, time_of.error_percent) == (10.0, 4.0)


def test_what_is_not_known_is_absent_and_not_zero() -> None:
    outcome = said(view(state=None))
    assert outcome.status.instances is not None
    assert outcome.status.instances.joined is None
    assert outcome.status.slots is None
    assert outcome.status.summary == "4 instances, groups not known"
    assert condition(outcome, "Ready")[1] == "ManagerNotReady"
    assert condition(outcome, "Available")[0] == "True", "a manager that is busy answers requests all the same"


@pytest.mark.parametrize(
    ("seen", "kind", "reason"),
    [
        (view(state=state(3)), "Ready", Reason.TOO_FEW_INSTANCES),
        (view(state=state(0)), "Available", Reason.NO_INSTANCE),
        (view(manager=None, state=None), "Available", Reason.MANAGER_NOT_READY),
        (view(gateways=()), "Available", Reason.GATEWAY_NOT_READY),
        (view(gateways=()), "Ready", Reason.GATEWAY_STARTING),
        (view(instances=(pod("long-chat-0", ready=False),)), "Ready", Reason.INSTANCES_STARTING),
        (view(instances=(pod("long-chat-0", terminating=True),)), "Progressing", Reason.INSTANCES_DRAINING),
        (view(instances=(pod("long-chat-0"),)), "Progressing", Reason.SCALING),
        (view(group=group(paused=True)), "Progressing", Reason.PAUSED),
        (
            view(instances=(pod("long-chat-0", ready=False, unschedulable="0/3 nodes have a GPU"),)),
            "Degraded",
            Reason.UNSCHEDULABLE,
        ),
    ],
)
def test_conditions_have_the_reason_of_what_is_wrong(seen: GroupView, kind: str, reason: Reason) -> None:
    assert condition(said(seen), kind)[1] == reason


def test_an_instance_that_leaves_is_not_counted_among_those_that_exist() -> None:
    leaving = state(3, (InstanceState(name="long-chat-3", slots=100, used_slots=5, draining=True),))
    pods = (*(pod(instance_name("long-chat", number)) for number in range(3)), pod("long-chat-3", terminating=True))
    counts = said(view(instances=pods, state=leaving)).status.instances
    assert counts is not None
    assert (counts.existing, counts.joined, counts.draining) == (3, 3, 1)


# --- news ---


def told(before: ElasticState, now: ElasticState) -> dict[str, str]:
    return {each.reason: each.note for each in news(before, now)}


def test_instances_that_come_and_go_are_news() -> None:
    assert told(state(2), state(2)) == {}
    assert "long-chat-2 joined the manager" in told(state(2), state(3))["InstanceJoined"]
    assert "it had 10 tokens" in told(state(3), state(2))["InstanceLost"]
    leaving = InstanceState(name="long-chat-2", slots=100, used_slots=10, draining=True)
    before = state(2, (leaving,))
    assert "handed over" in told(before, state(2))["InstanceDrained"]


def test_counts_are_told_once_and_say_what_was_moved() -> None:
    before = state(totals=Totals(scaled_down=5, scaled_up=1, recomputed=2))
    moved = {"scale_down": 64, "scale_up": 0, "drain": 9}
    after = state(totals=Totals(scaled_down=7, scaled_up=2, recomputed=3, moved_bytes=moved))
    found = told(before, after)
    assert found["GroupScaledDown"] == "2 groups shrank after a prefill; 64 bytes of KV were moved"
    assert found["GroupScaledUp"] == "1 group grew by one instance; 0 bytes of KV were moved"
    assert found["RequestRecomputed"].startswith("1 request lost KV")
    earlier = state(totals=Totals(scaled_down=7, scaled_up=2, recomputed=3))
    assert told(before, earlier)["GroupScaledDown"] == "2 groups shrank after a prefill", "bytes are not counted there"


def test_a_manager_that_was_started_again_counts_from_zero() -> None:
    before = state(totals=Totals(scaled_down=5))
    found = told(before, state(manager="m2", totals=Totals(scaled_down=2)))
    assert found["GroupScaledDown"].startswith("2 groups")
    assert "ManagerRestarted" in found
    assert "InstanceLost" not in told(before, state(1, manager="m2")), "it has not found all its instances again"


def test_a_policy_that_is_not_there_degrades_a_group_which_serves_on() -> None:
    outcome = said(view(), Problem(reason=Reason.POLICY_NOT_FOUND, message="there is no such PlannerPolicy"))
    assert condition(outcome, "Ready")[0] == "True"
    assert condition(outcome, "Degraded")[:2] == ("True", "PolicyNotFound")
