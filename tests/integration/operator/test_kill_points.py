"""The operator, killed with SIGKILL at any write or command of a switch or a plan: another one finishes it, exactly.

The real process speaks to the real API server through a proxy that counts what it writes. At a drawn write it is
killed: before the API server has seen the request, or after (the answer then reaches nobody). The same for what it
asks of workers. Then another process leads, and in the end the replica counts, the pods and the routing numbers are
those that were asked for, no pod was made or deleted beside them, and no phase was gone through twice.

The long form does the same while nodes are lost or full, workers drain themselves, KV groups are mixed, policies change
their mode in the middle of a plan, and objects of a newer version exist.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
from aiohttp import web

from fixtures.fault_proxy import Fault, FaultProxy, LoseAnswer, Refuse, Reply, Request
from fixtures.operators import OperatorProcess
from fixtures.seeds import drawn_seed
from pointsman.api.protocol import names
from pointsman.api.protocol.names import LANGUAGE_ROLES, Role
from pointsman.api.v1alpha1.plan import PlanPhase, PlanReason
from pointsman.api.v1alpha1.plannerpolicy import Mode
from pointsman.api.v1alpha1.roleswitch import SwitchPhase
from pointsman.kube import resources
from pointsman.kube.errors import NotFound
from pointsman.kube.pods import Pod
from pointsman.kube.resources import Resource
from pointsman.operator.core.naming import OWNED_REPLICAS_ANNOTATION, SWITCH_ANNOTATION
from waiting import eventually

from .conftest import Cluster
from .newer_versions import newer_crds as newer_crds
from .newer_versions import store
from .plan_objects import layout, plan, policy, routing
from .proxied import operator as operator
from .proxied import proxy as proxy
from .stand_in import NODE

# About as many writes as an undisturbed one takes.
MOST_WRITES: Final = {"switch": 18, "refused switch": 18, "plan": 34, "deleted pool": 6, "change of hands": 10}
MOST_WRITES_LONG: Final = {
    **MOST_WRITES,
    "no node": 20,
    "worker drains itself": 10,
    "lost node": 14,
    "mixed KV groups": 24,
    "mode in the middle": 16,
    "newer objects": 34,
}
MOST_OF_A_ROLE: Final = 4
BUDGET: Final = 7
LEAST_WORKERS: Final = 3  # so that one can change its role
WORKER_NODES: Final = tuple(f"{NODE}-{letter}" for letter in "bcd")
_WRITTEN: Final = ("llmservices", "workerpools", "roleswitches", "plans", "pods")


class Killer:
    """Counts the writes and commands of an operator, and kills it at one of them."""

    def __init__(self, operator: OperatorProcess) -> None:
        self.operator = operator
        self.points: Counter[str] = Counter()
        self.struck = asyncio.Event()
        self._left: int | None = None
        self._after = False

    def arm(self, at: int, *, after: bool) -> None:
        """Kill it at the ``at``-th write from now on, before or after that is executed."""
        self._left, self._after = at, after

    def disarm(self) -> None:
        self._left = None

    def request(self, request: Request) -> Fault | None:
        """For the proxy: what becomes of a request."""
        kind = next((kind for kind in _WRITTEN if f"/{kind}" in request.path), None)
        if request.method == "GET" or kind is None:
            return None
        status = " status" if request.path.endswith("/status") else ""
        if not self._strikes(f"{request.method.lower()} {kind}{status}"):
            return None
        return LoseAnswer() if self._after else Refuse()

    def command(self, what: str) -> None:
        """For workers: what becomes of a command. Raises where it is not executed."""
        if self._strikes(f"ask {what.split()[0]}") and not self._after:
            raise web.HTTPServiceUnavailable

    def _strikes(self, what: str) -> bool:
        if self._left is None:
            return False
        self._left -= 1
        if self._left > 0:
            return False
        self._left = None
        self.operator.kill()
        self.points[f"{'after' if self._after else 'before'} {what}"] += 1
        self.struck.set()
        return True


class Trial:
    """A service that is switched and planned again and again; each time its operator is killed once."""

    def __init__(self, cluster: Cluster, proxy: FaultProxy, seed: int, kinds: Mapping[str, int] = MOST_WRITES) -> None:
        self.cluster, self.seed, self.most_writes = cluster, seed, kinds
        self.dice = random.Random(seed)
        self.killer = Killer(cluster.operator)
        self.kinds: Counter[str] = Counter()
        self._now = {Role.PREFILL: 2, Role.DECODE: 3}
        self._number = 0
        self._newer: tuple[tuple[Resource, str], ...] = ()
        proxy.plan = self.killer.request

    async def run(self, points: int) -> dict[str, object]:
        """Until the operator was killed at so many points; returns what was killed how often."""
        await self._spread_over_nodes()
        await layout(self.cluster, self._now[Role.PREFILL], self._now[Role.DECODE], Mode.ACTIVE)
        reviver = asyncio.create_task(self._revive())
        try:
            while (done := self.killer.points.total()) < points:
                kind = self.dice.choice(list(self.most_writes))
                await self._one(kind)
                self.kinds[kind] += self.killer.points.total() - done
        finally:
            reviver.cancel()
        assert self.cluster.kubelet.lost_work == []
        return {"points": points, "seed": self.seed, "of": dict(self.kinds), "killed": dict(self.killer.points)}

    async def _spread_over_nodes(self) -> None:
        """Workers run on nodes that some trials lose, the gateway on another one."""
        kubelet = self.cluster.kubelet
        for node in WORKER_NODES:
            await kubelet.add_node(node)

        def node_for(pod: Pod) -> str:
            if pod.metadata.labels.get(names.COMPONENT_LABEL) != names.COMPONENT_WORKER:
                return NODE
            left = [node for node in WORKER_NODES if node not in kubelet.silent_nodes]
            return left[int(pod.metadata.uid[-2:], 16) % len(left)]

        kubelet.node_for = node_for

    async def _revive(self) -> None:
        """The killed one surely leads no more; how long others wait for its Lease is the test of elections."""
        while True:
            await self.killer.struck.wait()
            self.killer.struck.clear()
            with suppress(NotFound):
                await self.cluster.kube.delete(resources.LEASES, "pointsman-operator", self.cluster.namespace)
            self.cluster.operator.start()

    async def _one(self, kind: str) -> None:
        kubelet, after = self.cluster.kubelet, self.dice.random() < 0.5
        for worker in kubelet.workers.values():
            worker.finishes_when_drained, worker.in_flight = True, self.dice.randrange(2)
            worker.cannot_prove, worker.asked = set(), []
            worker.before_command = self.killer.command
        made, gone = len(kubelet.created), len(kubelet.ended)
        self._number += 1
        if kind == "change of hands":
            await self._edit_what_is_not_followed()
        elif kind == "mixed KV groups":
            await self._change_default_image()
        elif kind == "newer objects":
            await self._roll_back()
        self.killer.arm(self.dice.randint(1, self.most_writes[kind]), after=after)
        grown, shrunk, roles = await self._do(kind)
        self.killer.disarm()
        await self._exact()
        self._expect(len(kubelet.created) - made, grown, "pods were made")
        self._expect(len(kubelet.ended) - gone, shrunk, "pods were deleted")
        given = sum(asked.startswith("role") for worker in kubelet.workers.values() for asked in worker.asked)
        self._expect(given, roles, "times a worker was given a role")

    async def _do(self, kind: str) -> tuple[int, int, int]:
        """Pods that are to be made, to be deleted, and roles that are to be given."""
        match kind:
            case "plan":
                return await self._plan()
            case "no node":
                return await self._plan_without_nodes()
            case "deleted pool":
                return await self._delete_pool()
            case "change of hands":
                return await self._change_hands()
            case "worker drains itself":
                return await self._drain_itself()
            case "lost node":
                return await self._lose_node()
            case "mixed KV groups":
                return await self._replace_all_workers()
            case "mode in the middle":
                return await self._change_mode_in_the_middle()
            case "newer objects":
                return await self._plan_beside_newer_objects()
            case _:
                return await self._switch(refused=kind != "switch")

    async def _delete_pool(self) -> tuple[int, int, int]:
        """``kubectl delete wpool``: it comes back with the number of its workers."""
        cluster, role = self.cluster, self.dice.choice(LANGUAGE_ROLES)
        pool = await cluster.kube.get(resources.WORKER_POOLS, f"chat-{role.label}", cluster.namespace)
        await cluster.kube.delete(resources.WORKER_POOLS, f"chat-{role.label}", cluster.namespace)

        def is_back() -> bool:
            found = cluster.pools.get(f"chat-{role.label}", cluster.namespace)
            owned = found is not None and OWNED_REPLICAS_ANNOTATION in found.metadata.annotations
            return owned and found is not None and found.metadata.uid != pool["metadata"]["uid"]

        await cluster.until(cluster.pools, is_back, self._words(f"the {role} pool is back, and plans own it"))
        return 0, 0, 0

    async def _edit_what_is_not_followed(self) -> None:
        """An edit of the service's numbers while plans write the pools."""
        edited = {role.label: {"replicas": self.dice.randint(1, MOST_OF_A_ROLE)} for role in LANGUAGE_ROLES}
        await self.cluster.edit({"pools": edited})
        await self._exact()

    async def _change_hands(self, to: Mode | None = None) -> tuple[int, int, int]:
        """The planner is stopped, or the policy is deleted, and it comes back: nothing is scaled."""
        cluster = self.cluster

        def owned_is(expected: bool) -> bool:
            pools = [cluster.pools.get(f"chat-{role.label}", cluster.namespace) for role in LANGUAGE_ROLES]
            return all(
                p is not None and (OWNED_REPLICAS_ANNOTATION in p.metadata.annotations) is expected for p in pools
            )

        if to is not None or self.dice.random() < 0.5:
            await policy(cluster, to or Mode.SHADOW)
        else:
            await cluster.kube.delete(resources.PLANNER_POLICIES, "chat", cluster.namespace)
        await cluster.until(cluster.pools, lambda: owned_is(False), self._words("no plan owns the pools any more"))
        await policy(cluster, Mode.ACTIVE)
        await cluster.until(cluster.pools, lambda: owned_is(True), self._words("plans own the pools again"))
        return 0, 0, 0

    async def _plan_without_nodes(self) -> tuple[int, int, int]:
        """A plan adds a worker that finds no node: it is given up, and nothing else."""
        cluster, role = self.cluster, self.dice.choice(LANGUAGE_ROLES)
        wanted = {each: self._now[each] + (each is role) for each in LANGUAGE_ROLES}
        if max(wanted.values()) > MOST_OF_A_ROLE or sum(wanted.values()) > BUDGET:
            return 0, 0, 0
        cluster.kubelet.places_workers = False
        name = await plan(cluster, self._number, *wanted.values())
        await self._ended(lambda: cluster.plans.get(name, cluster.namespace), name)
        ended = cluster.plans.get(name, cluster.namespace)
        assert ended is not None
        self._expect((ended.status.phase, ended.status.reason), (PlanPhase.FAILED, PlanReason.UNSCHEDULABLE), name)
        await self._exact()
        cluster.kubelet.places_workers = True
        return 1, 1, 0

    async def _drain_itself(self) -> tuple[int, int, int]:
        """A worker refuses requests although its pod is Ready and its label says routable: it gets its role again."""
        kubelet = self.cluster.kubelet
        pod = self.dice.choice(kubelet.worker_pods())
        worker = kubelet.workers[pod.metadata.name]
        role = worker.role
        worker.drain_itself()

        async def serves() -> bool:
            found = await self.cluster.kube.get(resources.PODS, pod.metadata.name, self.cluster.namespace)
            routable = found["metadata"]["labels"][names.ROUTABLE_LABEL] == "true"
            return f"role {role}" in worker.asked and worker.verified is role and routable

        await eventually(serves, self._words(f"{pod.metadata.name} serves again"), timeout_s=90)
        return 0, 0, 1

    async def _lose_node(self) -> tuple[int, int, int]:
        """Kubernetes deletes the pods of a node that does not answer; later the node is back, and they end."""
        cluster, kubelet = self.cluster, self.cluster.kubelet
        node = self.dice.choice(kubelet.worker_pods()).spec.node_name
        lost = [pod.metadata.name for pod in kubelet.worker_pods() if pod.spec.node_name == node]
        for name in lost:
            kubelet.workers[name].in_flight = 0  # it ends with the node, and clients try elsewhere
        # Until a container is seen to end, it holds its GPUs: the budget has room for so many at once.
        room = min(len(lost), BUDGET - sum(self._now.values()))
        replaced = len(kubelet.created) + room
        await kubelet.silence_node(node)
        for name in lost:
            await kubelet.mark_lost(name)
            await cluster.kube.delete(resources.PODS, name, cluster.namespace)
        await cluster.until(
            kubelet.pods, lambda: len(kubelet.created) >= replaced, self._words(f"{room} of {lost} are replaced")
        )
        await kubelet.return_node(node)
        await cluster.until(kubelet.pods, lambda: not set(lost) - set(kubelet.ended), self._words(f"{lost} have ended"))
        return len(lost), len(lost), len(lost)

    async def _change_default_image(self) -> None:
        """The chart is upgraded, and the service follows its worker image: new workers are of another KV group."""
        cluster = self.cluster
        follow = {"metadata": {"annotations": {names.FOLLOW_DEFAULT_IMAGE_ANNOTATION: "true"}}}
        await cluster.kube.patch(resources.LLM_SERVICES, "chat", cluster.namespace, follow)
        await asyncio.to_thread(cluster.operator.stop)
        cluster.operator.set(worker_image=f"worker:{self._number}")
        cluster.operator.start()

    async def _replace_all_workers(self) -> tuple[int, int, int]:
        """``kubectl delete pod`` of one worker after another; on the way none can exchange KV with some others."""
        cluster, kubelet = self.cluster, self.cluster.kubelet
        before = kubelet.worker_pods()
        self.dice.shuffle(before)
        for pod in before:
            running = len(kubelet.workers)
            kubelet.workers[pod.metadata.name].in_flight = 0  # its preStop hook has waited for it
            await cluster.kube.delete(resources.PODS, pod.metadata.name, cluster.namespace)

            def replaced(uid: str = pod.metadata.uid, running: int = running) -> bool:
                gone = all(other.metadata.uid != uid for other in kubelet.pods.objects())
                return gone and len(kubelet.workers) == running

            await cluster.until(kubelet.pods, replaced, self._words(f"{pod.metadata.name} has a successor"))
        return len(before), len(before), len(before)

    async def _change_mode_in_the_middle(self) -> tuple[int, int, int]:
        """A plan is under way when the planner is stopped, and goes no further than the step it is at."""
        cluster, before = self.cluster, dict(self._now)
        role, step = self.dice.choice(LANGUAGE_ROLES), self.dice.choice(("grow", "shrink", "switch"))
        other = Role.DECODE if role is Role.PREFILL else Role.PREFILL
        change = {role: -1 if step == "shrink" else 1, other: -1 if step == "switch" else 0}
        wanted = {each: before[each] + change[each] for each in LANGUAGE_ROLES}
        in_bounds = all(1 <= number <= MOST_OF_A_ROLE for number in wanted.values())
        if not in_bounds or not LEAST_WORKERS <= sum(wanted.values()) <= BUDGET:
            return 0, 0, 0
        switches = change[Role.PREFILL] if step == "switch" else 0
        name = await plan(cluster, self._number, *wanted.values(), switches=switches)

        def began() -> bool:
            found = cluster.plans.get(name, cluster.namespace)
            return found is not None and found.status.phase is not None

        await cluster.until(cluster.plans, began, self._words(f"{name} has a phase"))
        await self._change_hands(Mode.SHADOW)
        await self._ended(lambda: cluster.plans.get(name, cluster.namespace), name)
        made = f"{name}-0"
        if cluster.switches.get(made, cluster.namespace) is not None:
            await self._ended(lambda: cluster.switches.get(made, cluster.namespace), made)
        self._now = await cluster.books()
        moved = self._now != before
        assert not moved or self._now == wanted, self._words(f"{name}: {before} became {self._now}, planned {wanted}")
        grown, shrunk = int(moved and step == "grow"), int(moved and step == "shrink")
        return grown, shrunk, int(moved and step != "shrink")

    async def _roll_back(self) -> None:
        """While no operator runs, there come to be a switch and a plan of a newer version."""
        cluster, now = self.cluster, datetime.now(UTC)
        await asyncio.to_thread(cluster.operator.stop)
        switch = {"serviceRef": {"name": "chat"}, "from": "Decode", "to": "Prefill"}
        newer_plan = {
            "serviceRef": {"name": "chat"},
            "sequence": 90_000 + self._number,
            "mode": "Active",
            "observedAt": now.isoformat(),
            "expiresAt": (now + timedelta(hours=1)).isoformat(),
            "pools": {"prefill": {"replicas": 1}, "decode": {"replicas": 1}},
            "routing": {"maxLocalPrefillTokens": 512, "maxPrefillQueueSize": 8},
            "changesLayout": True,
            "reason": "DecodeShort",
            "message": "of a newer version",
        }
        under_way = {"phase": "Switching", "way": "Restart"}
        self._newer = (
            (resources.ROLE_SWITCHES, f"newer-{self._number}"),
            (resources.PLANS, f"chat-9{self._number:04}"),
        )
        await store(cluster, *self._newer[0], {"spec": switch, "status": under_way})
        await store(cluster, *self._newer[1], {"spec": newer_plan, "status": {"phase": "Paused"}})
        cluster.operator.start()

    async def _plan_beside_newer_objects(self) -> tuple[int, int, int]:
        """A plan is carried out beside a switch and a plan that this version cannot read."""
        expected = await self._plan()
        for resource, name in self._newer:
            await self.cluster.kube.delete(resource, name, self.cluster.namespace)
        return expected

    async def _switch(self, *, refused: bool) -> tuple[int, int, int]:
        cluster, name = self.cluster, f"switch-{self._number}"
        source = Role.PREFILL if self._now[Role.PREFILL] > self._now[Role.DECODE] else Role.DECODE
        target = Role.DECODE if source is Role.PREFILL else Role.PREFILL
        if refused:
            for worker in cluster.kubelet.workers.values():
                worker.cannot_prove = {target}
        await cluster.switch(source, name, drainFirst=self.dice.random() < 0.5)
        await self._ended(lambda: cluster.switches.get(name, cluster.namespace), name)
        ended = cluster.switches.get(name, cluster.namespace)
        assert ended is not None
        self._expect(ended.status.phase, SwitchPhase.ROLLED_BACK if refused else SwitchPhase.COMPLETED, name)
        phases = [entry.phase for entry in ended.status.phases]
        self._expect(len(set(phases)), len(phases), f"phases once each: {phases}")
        if not refused:
            self._now[source] -= 1
            self._now[target] += 1
        return 0, 0, 2 if refused else 1

    async def _plan(self) -> tuple[int, int, int]:
        cluster, now = self.cluster, self._now
        numbers = range(1, MOST_OF_A_ROLE + 1)
        layouts = [
            (p, d)
            for p in numbers
            for d in numbers
            if LEAST_WORKERS <= p + d <= BUDGET and (p, d) != tuple(now.values())
        ]
        wanted = dict(zip(LANGUAGE_ROLES, self.dice.choice(layouts), strict=True))
        change = {role: wanted[role] - now[role] for role in LANGUAGE_ROLES}
        switched = min(map(abs, change.values())) if change[Role.PREFILL] * change[Role.DECODE] < 0 else 0
        to_prefill = switched if change[Role.PREFILL] > 0 else -switched
        name = await plan(cluster, self._number, *wanted.values(), switches=to_prefill)
        await self._ended(lambda: cluster.plans.get(name, cluster.namespace), name)
        ended = cluster.plans.get(name, cluster.namespace)
        assert ended is not None
        self._expect(ended.status.phase, PlanPhase.COMPLETED, f"{name}: {ended.status.message}")
        made = [switch for switch in cluster.switches.objects() if switch.metadata.name.startswith(f"{name}-")]
        self._expect(len(made), switched, "switches were made")
        assert (await routing(cluster))["setBy"] == f"plan/{name}", self._words("its routing numbers stand")
        rest = [abs(change[role]) - switched for role in LANGUAGE_ROLES]
        grown, shrunk = (sum(r for r, c in zip(rest, change.values(), strict=True) if c * sign > 0) for sign in (1, -1))
        self._now = wanted
        return grown, shrunk, switched + grown

    async def _ended(self, find: Callable[[], Any], name: str) -> None:
        mirror = self.cluster.plans if name.startswith("chat-") else self.cluster.switches

        def says() -> bool:
            found = find()
            return found is not None and found.status.phase is not None and found.status.phase.ended

        await self.cluster.until(mirror, says, self._words(f"the end of {name}"))

    async def _exact(self) -> None:
        """The pools ask for exactly what is wanted, as many serve, and no worker is held any more."""
        kubelet = self.cluster.kubelet

        def released() -> bool:
            held = [pod for pod in kubelet.pods.objects() if SWITCH_ANNOTATION in pod.metadata.annotations]
            return not held and len(kubelet.created) - len(kubelet.ended) == sum(self._now.values())

        await self.cluster.until(kubelet.pods, released, self._words("every worker is released"))
        await self.cluster.until_layout(self._now[Role.PREFILL], self._now[Role.DECODE])

    def _expect(self, found: object, expected: object, what: str) -> None:
        assert found == expected, self._words(f"{what}: {found}, expected {expected}")

    def _words(self, what: str) -> str:
        killed = dict(self.killer.points)
        return f"seed {self.seed}, trial {self._number}: {what}\nkilled: {killed}\n{self.cluster.operator.log[-4000:]}"


async def test_an_operator_killed_in_the_middle_of_switches_and_plans_finishes_them_exactly(
    cluster: Cluster, proxy: FaultProxy
) -> None:
    print(await Trial(cluster, proxy, drawn_seed()).run(20))


async def test_a_write_that_the_api_server_gave_up_is_made_again_and_no_worker_is_replaced(
    cluster: Cluster, proxy: FaultProxy
) -> None:
    """A 409 says that another pod has the name, or that the API server gave up after retries of its own."""
    given_up: Counter[str] = Counter()

    def give_up_once(request: Request) -> Fault | None:
        if request.method not in ("PATCH", "DELETE") or "/pods/" not in request.path:
            return None
        given_up[f"{request.method} {request.path}"] += 1
        return Reply(409) if given_up[f"{request.method} {request.path}"] == 1 else None

    proxy.plan = give_up_once
    await cluster.create(pools={"prefill": {"replicas": 1}, "decode": {"replicas": 2}})
    await cluster.until_layout(1, 2)
    await cluster.edit({"pools": {"decode": {"replicas": 1}}})
    await cluster.until_layout(1, 1)
    assert {what.split()[0] for what in given_up} == {"PATCH", "DELETE"}
    assert (len(cluster.kubelet.created), len(cluster.kubelet.ended)) == (3, 1)


@pytest.mark.verify
@pytest.mark.verify_operator
@pytest.mark.usefixtures("newer_crds")
@pytest.mark.parametrize("seed", range(1, 11))
async def test_an_operator_killed_at_fifty_points_of_switches_and_plans_finishes_them_exactly(
    cluster: Cluster, proxy: FaultProxy, seed: int, findings: dict[str, object]
) -> None:
    findings |= await Trial(cluster, proxy, seed, MOST_WRITES_LONG).run(50)
