"""Role switches against a real API server: what moves, what is refused, and how each of them ends."""

import asyncio
from typing import Any

import pytest

from pointsman.api.protocol.names import Role
from pointsman.api.v1alpha1.conditions import ConditionType
from pointsman.api.v1alpha1.roleswitch import SwitchPhase, SwitchReason
from pointsman.kube import resources
from pointsman.operator.core.switching import KEPT_SWITCHES

from .conftest import DEADLINE_S, Cluster
from .stand_in import StandInWorker


async def layout(cluster: Cluster, prefill: int, decode: int, **spec: Any) -> None:
    """The service ``chat`` with so many workers, all of them serving."""
    pools = {"prefill": {"replicas": prefill, "maxReplicas": 4}, "decode": {"replicas": decode, "maxReplicas": 4}}
    await cluster.create(pools=pools, **spec)
    await cluster.until_layout(prefill, decode)


async def answered(worker: StandInWorker, times: int = 3) -> None:
    """Wait until the operator has asked the worker for its state so many times more."""
    async with asyncio.timeout(DEADLINE_S):
        most = worker.answers + times
        while worker.answers < most:
            await worker.answered.wait()


def words(cluster: Cluster, source: Role) -> list[str]:
    return [pod.metadata.name for pod in cluster.kubelet.worker_pods(source)]


async def test_a_switch_and_the_one_back_move_one_worker_and_one_replica_and_no_pod(cluster: Cluster) -> None:
    await layout(cluster, 1, 3)
    name = words(cluster, Role.DECODE)[0]
    worker = cluster.kubelet.workers[name]
    worker.in_flight = 1
    await cluster.switch(Role.DECODE, "there", workerName=name)
    await cluster.until_switch(SwitchPhase.DRAINING, "there")
    await answered(worker)
    assert worker.role is Role.DECODE, "it finishes its stream in the old role"
    assert await cluster.books() == {Role.PREFILL: 1, Role.DECODE: 3}, "replicas move at the end"
    assert cluster.condition(ConditionType.SWITCH_IN_PROGRESS)[0] == "True"
    worker.in_flight = 0
    there = await cluster.until_switch(SwitchPhase.COMPLETED, "there")
    assert await cluster.books() == {Role.PREFILL: 2, Role.DECODE: 2}, "Completed is said after both pools have it"
    await cluster.until_layout(2, 2)

    # A container that restarts after a switch comes back in the new role.
    await cluster.kubelet.crash(name)
    worker = cluster.kubelet.workers[name]
    await cluster.until(
        cluster.kubelet.pods,
        lambda: (
            worker.asked == ["role Prefill", "verify Prefill"]
            and len(cluster.kubelet.worker_pods(Role.PREFILL, routable=True)) == 2
        ),
        "the new container was proved as prefill worker",
    )
    await cluster.until_layout(2, 2)

    worker.in_flight = 1
    await cluster.switch(Role.PREFILL, "back", workerName=name, drainFirst=False)
    back = await cluster.until_switch(SwitchPhase.COMPLETED, "back")
    assert worker.in_flight == 1, "without drainFirst nothing is waited for"
    await cluster.until_layout(1, 3)

    assert [entry.phase for entry in there.status.phases] == [
        "Unrouting",
        "Draining",
        "Switching",
        "Verifying",
        "Completed",
    ]
    assert [entry.phase for entry in back.status.phases] == ["Switching", "Verifying", "Completed"]
    for switch in (there, back):
        assert switch.status.worker == name
        assert [(item.type, item.status) for item in switch.status.conditions] == [("Complete", "True")]
    assert worker.asked == ["role Prefill", "verify Prefill", "role Decode", "verify Decode"]
    assert len(cluster.kubelet.created) == 4, "no pod was made"
    assert cluster.kubelet.ended == [], "no pod was deleted"
    assert cluster.condition(ConditionType.SWITCH_IN_PROGRESS)[0] == "False"


async def test_a_worker_that_cannot_prove_its_new_role_goes_back_and_nothing_moves(cluster: Cluster) -> None:
    await layout(cluster, 1, 2)
    name = words(cluster, Role.DECODE)[0]
    worker = cluster.kubelet.workers[name]
    worker.cannot_prove = {Role.PREFILL}
    await cluster.switch(Role.DECODE, workerName=name)
    ended = await cluster.until_switch(SwitchPhase.ROLLED_BACK)
    assert ended.status.reason == SwitchReason.VERIFY_FAILED
    assert "it answered nothing" in (ended.status.message or "")
    assert [(item.type, item.status) for item in ended.status.conditions] == [("Failed", "True")]
    await cluster.until_layout(1, 2)
    assert worker.role is Role.DECODE
    assert cluster.kubelet.ended == []
    assert "it answered nothing" in await cluster.until_event("SwitchRolledBack", "by-hand")


async def test_a_worker_that_serves_in_neither_role_is_replaced_in_its_old_pool(cluster: Cluster) -> None:
    await layout(cluster, 1, 2)
    name = words(cluster, Role.DECODE)[0]
    cluster.kubelet.workers[name].cannot_prove = {Role.PREFILL, Role.DECODE}
    await cluster.switch(Role.DECODE, workerName=name)
    ended = await cluster.until_switch(SwitchPhase.FAILED)
    assert ended.status.reason == SwitchReason.ROLLBACK_FAILED
    assert "it is replaced" in (ended.status.message or "")
    await cluster.until_layout(1, 2)
    assert cluster.kubelet.ended == [name]
    assert len(cluster.kubelet.created) == 4, "one was made for the one that went"


async def test_work_that_outlasts_its_time_rolls_the_switch_back_and_is_not_lost(cluster: Cluster) -> None:
    await layout(cluster, 1, 2)
    name = words(cluster, Role.DECODE)[0]
    worker = cluster.kubelet.workers[name]
    worker.in_flight = 1
    await cluster.switch(Role.DECODE, workerName=name, drainTimeoutSeconds=1)
    ended = await cluster.until_switch(SwitchPhase.ROLLED_BACK)
    assert ended.status.reason == SwitchReason.DRAIN_TIMED_OUT
    assert "1 request in flight" in (ended.status.message or "")
    await cluster.until_layout(1, 2)
    assert worker.in_flight == 1
    assert worker.role is Role.DECODE
    assert cluster.kubelet.lost_work == []


async def test_what_cannot_be_switched_is_refused_with_a_sentence(cluster: Cluster) -> None:
    await layout(cluster, 1, 2)
    chart = {"name": "chart"}
    refused: dict[str, tuple[dict[str, Any], SwitchReason, str]] = {
        "alone": ({"source": Role.PREFILL}, SwitchReason.BELOW_MINIMUM, "minReplicas (1)"),
        "unknown": ({"source": Role.DECODE, "workerName": "nobody"}, SwitchReason.WORKER_NOT_FOUND, "are: chat-"),
        "no-service": ({"source": Role.DECODE, "serviceRef": chart}, SwitchReason.SERVICE_NOT_FOUND, "chart"),
    }
    for name, (fields, _, _) in refused.items():
        await cluster.switch(name=name, **fields)
    # The last routable worker: the other one of its role does not come back.
    first, second = words(cluster, Role.DECODE)
    await cluster.kubelet.crash(first, again=False)
    await cluster.until_condition(ConditionType.DECODE_READY, "False")
    await cluster.switch(Role.DECODE, "last", workerName=second)
    waits = await cluster.until_switch(SwitchPhase.PENDING, "last")
    assert waits.status.reason == SwitchReason.LAST_ROUTABLE_WORKER, "another worker may come back in a moment"
    refused["last"] = ({}, SwitchReason.LAST_ROUTABLE_WORKER, "the last routable worker is never switched")
    for name, (_, reason, part) in refused.items():
        ended = await cluster.until_switch(SwitchPhase.FAILED, name)
        assert (ended.status.reason, part in (ended.status.message or "")) == (reason, True), ended.status
    assert await cluster.books() == {Role.PREFILL: 1, Role.DECODE: 2}
    assert cluster.kubelet.workers[second].asked == ["role Decode", "verify Decode"], "nobody touched it"


async def test_of_two_switches_of_one_worker_the_second_waits_and_then_says_why_not(cluster: Cluster) -> None:
    await layout(cluster, 1, 3)
    name = words(cluster, Role.DECODE)[0]
    worker = cluster.kubelet.workers[name]
    worker.in_flight = 1
    await cluster.switch(Role.DECODE, "first", workerName=name)
    await cluster.until_switch(SwitchPhase.DRAINING, "first")
    await cluster.switch(Role.DECODE, "second", workerName=name)
    waits = await cluster.until_switch(SwitchPhase.PENDING, "second")
    assert waits.status.reason == SwitchReason.WORKER_BUSY
    assert "first" in (waits.status.message or "")
    worker.in_flight = 0
    await cluster.until_switch(SwitchPhase.COMPLETED, "first")
    refused = await cluster.until_switch(SwitchPhase.FAILED, "second")
    assert refused.status.reason == SwitchReason.WRONG_ROLE
    await cluster.until_layout(2, 2)


@pytest.mark.parametrize("what", ["its pod", "the switch"])
async def test_what_is_deleted_in_the_middle_of_a_switch_leaves_the_books_as_they_were(
    cluster: Cluster, what: str
) -> None:
    await layout(cluster, 1, 2)
    name = words(cluster, Role.DECODE)[0]
    cluster.kubelet.workers[name].in_flight = 1
    await cluster.switch(Role.DECODE, workerName=name)
    await cluster.until_switch(SwitchPhase.DRAINING)
    if what == "its pod":
        await cluster.kube.delete(resources.PODS, name, cluster.namespace)
        ended = await cluster.until_switch(SwitchPhase.FAILED)
        assert ended.status.reason == SwitchReason.WORKER_LOST
        assert "no replica was moved" in (ended.status.message or "")
    else:
        await cluster.kube.delete(resources.ROLE_SWITCHES, "by-hand", cluster.namespace)
        await cluster.until_event("WorkerReleased", name)
    await cluster.until_layout(1, 2)
    assert (name in cluster.kubelet.ended) is (what == "its pod")


async def test_of_ended_switches_that_people_created_the_newest_stay(cluster: Cluster) -> None:
    await layout(cluster, 1, 1)
    names = [f"by-hand-{number:03}" for number in range(KEPT_SWITCHES + 2)]
    for name in names:
        await cluster.switch(Role.DECODE, name, workerName="nobody")

    def left() -> set[str]:
        found = cluster.switches.objects()
        return {switch.metadata.name for switch in found if switch.status.phase is SwitchPhase.FAILED}

    await cluster.until(cluster.switches, lambda: len(left()) == KEPT_SWITCHES, "the newest stay")
    await cluster.until(cluster.switches, lambda: len(cluster.switches.objects()) == KEPT_SWITCHES, "and no others")
    assert names[-1] in left()
