"""What only steers dies under load: requests are served on, right answers come, and it takes up its work by itself."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta

import pytest
import yaml

from engine.product.served import ASKED, WAIT_SECONDS, Served, differences, errors
from fixtures.kube_calls import WatchedMirror
from pointsman.api.protocol.names import API_VERSION, Role
from pointsman.api.v1alpha1.plan import Plan, PlanPhase
from pointsman.kube import resources
from pointsman.kube.client import Kube
from pointsman.local.cluster import SYSTEM_NAMESPACE
from pointsman.local.control_plane import APISERVER
from pointsman.local.observation import ServiceView
from pointsman.local.traffic import PrefillPath, Prompt, Record, Traffic, running_load

# Objectives that nothing here can miss: plans come from the tests alone, and may switch a role and start a worker.
POLICY = {
    "apiVersion": API_VERSION,
    "kind": "PlannerPolicy",
    "metadata": {"name": "by-hand"},
    "spec": {
        "mode": "Active",
        "objectives": {"ttftMs": 600_000, "tpotMs": 60_000},
        "budget": {"maxGpus": 5},
        "actions": {
            "remotePrefill": {"enabled": False},
            "flowControl": {"enabled": False},
            "scaleIn": {"enabled": False},
        },
    },
}


GATEWAY, NODE, API_SERVER = ASKED[:20], ASKED[20:44], ASKED[44:76]
PLANS = {"planner": ASKED[76:96], "operator": ASKED[96:116]}


async def all_answered(traffic: Traffic, asked: list[Prompt]) -> None:
    await traffic.until(lambda records: len(records) == len(asked), timeout_seconds=120)


def uids(view: ServiceView) -> set[str]:
    return {worker.pod.metadata.uid for worker in view.workers}


def system_pods_ready(chat: Served) -> None:
    """Wait for operator, planner and NATS."""
    chat.cluster.kubectl(
        "wait", "pods", "--all", "-n", SYSTEM_NAMESPACE, "--for=condition=Ready", "--timeout=120s", timeout_s=130
    )


async def test_a_killed_gateway_comes_back_and_clients_that_ask_again_get_the_right_tokens(
    chat: Served, answers: list[Record]
) -> None:
    gateway = (await chat.look()).gateways[0].metadata.name
    async with chat.patient() as client, running_load(client, iter(GATEWAY), clients=6) as traffic:
        await traffic.answered(4, timeout_seconds=120)
        before = chat.kill(gateway)
        await all_answered(traffic, GATEWAY)
    assert errors(traffic.records) == []
    assert differences(answers, traffic.records) == ()
    await chat.restarted(gateway, since=before)
    view = await chat.until(
        "the gateway's own container serves again",
        lambda view: [(pod.metadata.name, pod.ready) for pod in view.gateways] == [(gateway, True)],
    )
    assert len(uids(view)) == 3
    await chat.at_rest()  # what the dead gateway had asked for is computed for nobody any more


async def test_pods_serve_on_without_their_node_and_what_died_meanwhile_is_started_when_it_is_back(
    chat: Served, answers: list[Record]
) -> None:
    before = await chat.look()
    victim = before.routable(Role.DECODE)[0].name
    started = {worker.name: chat.restarts(worker.name) for worker in before.workers}
    async with running_load(chat.endpoint, iter(NODE), clients=4) as traffic:
        await traffic.answered(4, timeout_seconds=120)
        chat.cluster.node.kill()
        try:
            chat.kill(victim)  # nobody says so to the API server: the gateway finds out by itself
            await traffic.answered(12, timeout_seconds=120)
        finally:
            chat.cluster.node.start_again()
        await all_answered(traffic, NODE)
    assert errors(traffic.records) == []
    assert differences(answers, traffic.records) == ()
    await chat.restarted(victim, since=started[victim])
    after = await chat.ready(prefill=1, decode=2)
    assert uids(after) == uids(before), "no pod was made anew"
    assert {name: chat.restarts(name) for name in started} == {**started, victim: started[victim] + 1}
    await chat.at_rest()


async def test_requests_are_served_without_the_api_server_and_everything_finds_it_again(
    chat: Served, answers: list[Record]
) -> None:
    before = await chat.look()
    control_plane = chat.cluster.control_plane
    async with running_load(chat.endpoint, iter(API_SERVER), clients=4) as traffic:
        await traffic.answered(4, timeout_seconds=120)
        control_plane.kill(APISERVER)
        at_kill = len(traffic.records)
        try:
            await traffic.answered(16, timeout_seconds=120)
        finally:
            await asyncio.to_thread(control_plane.start_part, APISERVER)
        meanwhile = traffic.records[at_kill:]
        await all_answered(traffic, API_SERVER)
    assert errors(traffic.records) == []
    assert differences(answers, traffic.records) == ()
    assert {record.path for record in meanwhile} == set(PrefillPath)
    chat.scale(Role.DECODE, 3)
    after = await chat.ready(prefill=1, decode=3)
    assert uids(before) < uids(after), "the operator goes on with what there is"
    system_pods_ready(chat)
    await chat.at_rest()


@pytest.fixture
async def plans(chat: Served) -> AsyncIterator[WatchedMirror[Plan]]:
    """The service under a policy that has plans carried out, and the plans as they are."""
    chat.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(POLICY))
    chat.kubectl("patch", "llms", chat.name, "--type=merge", "-p", '{"spec": {"policyRef": {"name": "by-hand"}}}')
    async with await Kube.connect(chat.cluster.kubeconfig, field_manager="pointsman-tests") as kube:
        seen = WatchedMirror(kube, resources.PLANS, Plan, namespace=chat.namespace)
        watching = asyncio.create_task(seen.run())
        await seen.synced.wait()
        yield seen
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    chat.kubectl("patch", "llms", chat.name, "--type=merge", "-p", '{"spec": {"policyRef": null}}')
    chat.kubectl("delete", "pplan", "--all")
    chat.kubectl("delete", "ppol", "by-hand")


def two_and_two(chat: Served, name: str) -> str:
    """From 1P2D to 2P2D: a decode worker becomes a prefill worker, and a decode worker is added."""
    now = datetime.now(UTC)
    body = {
        "apiVersion": API_VERSION,
        "kind": "Plan",
        "metadata": {"name": name},
        "spec": {
            "serviceRef": {"name": chat.name},
            "sequence": 90_001,
            "mode": "Active",
            "observedAt": now.isoformat(),
            "pools": {"prefill": {"replicas": 2}, "decode": {"replicas": 2}},
            "switches": [{"from": "Decode", "to": "Prefill", "count": 1}],
            "routing": {"maxLocalPrefillTokens": 400, "maxPrefillQueueSize": 8},
            "changesLayout": True,
            "reason": "PrefillShort",
            "message": "a test's decision",
            "expiresAt": (now + timedelta(minutes=5)).isoformat(),
        },
    }
    chat.kubectl("create", "-f", "-", stdin=json.dumps(body))
    return name


async def reaches(plans: WatchedMirror[Plan], holds: Callable[[Plan], bool], name: str) -> Plan:
    def found() -> bool:
        plan = plans.get(name, "default")
        return plan is not None and holds(plan)

    async with asyncio.timeout(WAIT_SECONDS):
        await plans.until(found)
    plan = plans.get(name, "default")
    assert plan is not None
    return plan


def in_the_middle(plan: Plan) -> bool:
    return plan.status.phase is PlanPhase.EXECUTING and bool(plan.status.switches)


def has_ended(plan: Plan) -> bool:
    return plan.status.phase is not None and plan.status.phase.ended


@pytest.mark.parametrize("part", ["planner", "operator"])
async def test_a_plan_is_carried_out_once_though_a_part_dies_in_the_middle_of_it(
    chat: Served, plans: WatchedMirror[Plan], answers: list[Record], part: str
) -> None:
    before = await chat.look()
    async with running_load(chat.endpoint, iter(PLANS[part]), clients=3) as traffic:
        await traffic.answered(3, timeout_seconds=120)
        name = two_and_two(chat, f"{chat.name}-dies-{part}")
        await reaches(plans, in_the_middle, name)
        restarts = chat.restarts(chat.part(part), SYSTEM_NAMESPACE)
        pod = chat.kill_part(part)
        plan = await reaches(plans, has_ended, name)
        await all_answered(traffic, PLANS[part])
    assert plan.status.phase is PlanPhase.COMPLETED, plan.status
    assert errors(traffic.records) == []
    assert differences(answers, traffic.records) == ()
    after = await chat.ready(prefill=2, decode=2)
    assert uids(before) < uids(after), "three of the four workers are the old ones, none was replaced"
    assert len(plan.status.switches) == 1
    made = json.loads(chat.kubectl("get", "rsw", "-o", "json"))["items"]
    assert [item["status"]["phase"] for item in made if item["metadata"]["name"].startswith(name)] == ["Completed"]
    assert after.service is not None
    assert after.service.status.routing is not None
    assert after.service.status.routing.max_local_prefill_tokens == 400
    await chat.restarted(pod, since=restarts, namespace=SYSTEM_NAMESPACE)
    system_pods_ready(chat)
    assert [found.metadata.name for found in plans.objects()] == [name], "nobody decided anything else"
    await chat.at_rest()
