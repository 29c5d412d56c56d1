"""A service's world for the pure core: pods, workers, gateways and time, with seeded misfortune.

It executes the core's actions as the shell and the cluster would, loses some of them, and checks at every step what may
never happen. No I/O, no clock.
"""

import random
from dataclasses import dataclass, field, replace
from typing import Any

from pointsman.api.protocol import names
from pointsman.api.protocol.control import WorkerPhase, WorkerState
from pointsman.api.protocol.names import Role
from pointsman.api.v1alpha1.llmservice import LLMServiceSpec
from pointsman.api.v1alpha1.plannerpolicy import Mode
from pointsman.api.v1alpha1.roleswitch import RoleSwitchSpec
from pointsman.kube.pods import LOST_AFTER_S
from pointsman.operator.core import actions as act
from pointsman.operator.core.decide import Decision, decide, workers_to_ask
from pointsman.operator.core.desired import first_replicas
from pointsman.operator.core.kv_groups import worker_image
from pointsman.operator.core.ledger import ChangeKind, PoolChange
from pointsman.operator.core.naming import DRAIN_REASON_ANNOTATION, SWITCH_ANNOTATION, VERIFIED_CONTAINER_ANNOTATION
from pointsman.operator.core.plans import executes
from pointsman.operator.core.roles import serves
from pointsman.operator.core.snapshot import (
    Container,
    DrainReason,
    GatewayDeployment,
    GatewayPod,
    Plan,
    Policy,
    Pool,
    Service,
    Snapshot,
    Switch,
    SwitchClaim,
    Worker,
)
from pointsman.serving.token_budget import DEFAULT_PREFILL_TOKEN_BUDGET

KV = "c0ffee12"
NODES = ("n-0", "n-1", "n-2")
FOUND_LOST_S = 4.0  # of the world: from a node's last word until Kubernetes finds it lost
LOST_NODE_S = 6.0  # from then until Kubernetes deletes its pods
IMAGE = "worker:1"


def kv_of(image: str) -> str:
    """The KV group of workers with this image."""
    return KV if image == IMAGE else f"of-{image}"


def spec(
    *,
    prefill: tuple[int, int, int] = (1, 1, 4),
    decode: tuple[int, int, int] = (1, 1, 4),
    encode: tuple[int, int, int] | None = None,
    drain_s: int = 60,
    **fields: Any,
) -> LLMServiceSpec:
    """A spec; pools as (replicas, min, max)."""

    def pool(numbers: tuple[int, int, int]) -> dict[str, int]:
        return dict(zip(("replicas", "minReplicas", "maxReplicas"), numbers, strict=True))

    return LLMServiceSpec.model_validate(
        {
            "model": {"source": "file:///models/tiny"},
            "worker": {"gpus": 0},
            "pools": {"prefill": pool(prefill), "decode": pool(decode)} | ({"encode": pool(encode)} if encode else {}),
            **({"encode": {}} if encode else {}),
            "drain": {"timeoutSeconds": drain_s},
            "gateway": {"replicas": 1},
            **fields,
        }
    )


def service(wanted: LLMServiceSpec | None = None, **fields: Any) -> Service:
    """A service called chat."""
    return Service(
        **{"namespace": "default", "name": "chat", "uid": "u-chat", "generation": 1, "spec": wanted or spec(), **fields}
    )


def state(
    worker: str = "chat-r-0", phase: WorkerPhase = WorkerPhase.SERVING, role: Role | None = None, **fields: Any
) -> WorkerState:
    """What a worker says about itself; idle unless told otherwise."""
    numbers = {"in_flight": 0, "in_flight_tokens": 0, "queued_prefills": 0, "leases": 0, "block_size": 128}
    numbers["prefill_token_budget"] = DEFAULT_PREFILL_TOKEN_BUDGET
    return WorkerState(
        **{"worker": worker, "instance": "i", "phase": phase, "role": role, "kv_compatibility": KV, **numbers, **fields}
    )


@dataclass(frozen=True)
class Render:
    """Stands where an engine adapter would."""

    image: str = IMAGE

    def revision(self, role: Role) -> str:
        return "e" if role is Role.ENCODE else "r"

    def __call__(self, name: str, role: Role) -> dict[str, Any]:
        return {"metadata": {"name": name}, "role": role, "image": self.image}


@dataclass
class Engine:
    """The inside of one worker."""

    phase: WorkerPhase = WorkerPhase.STARTING
    role: Role | None = None
    verified: Role | None = None
    in_flight: int = 0
    leases: int = 0
    budget: int | None = None  # None: started by an earlier version, which has no limit until it is told one


@dataclass
class World:
    """Pods by uid, the engines in them, two gateways that follow the labels with a delay."""

    service: Service
    dice: random.Random
    now_s: float = 1000.0
    pools: dict[Role, Pool] = field(default_factory=dict)
    pods: dict[str, Worker] = field(default_factory=dict)
    engines: dict[str, Engine] = field(default_factory=dict)
    gateways: dict[str, set[str]] = field(default_factory=lambda: {"g-0": set(), "g-1": set()})
    misfortune: float = 0.0  # chance that an action is lost, a worker crashes, an answer is missing
    nodes: int | None = None  # workers that nodes have room for; None: as many as there are
    unplaceable: set[str] = field(default_factory=set)  # uids of pods that no node ever takes
    uids: int = 0
    switches: dict[str, Switch] = field(default_factory=dict)
    plans: dict[str, Plan] = field(default_factory=dict)
    policy: Policy | None = None
    routing_set_by: str | None = None
    prefill_token_budget: int = DEFAULT_PREFILL_TOKEN_BUDGET  # in force, as status.routing has it
    confirmed_budgets: dict[str, tuple[str | None, int | None]] = field(default_factory=dict)  # the operator's memory
    acting_since_s: float = 0.0
    cannot_prove: set[tuple[str, Role]] = field(default_factory=set)  # (pod uid, role) that never answers
    lost_nodes: dict[str, float] = field(default_factory=dict)  # since when a node does not answer
    default_image: str = IMAGE  # the operator's
    stored_image: str | None = None  # in the service's status
    suspects: set[str] = field(default_factory=set)  # uids of workers whose last poll raised a doubt
    served_once: set[Role] = field(default_factory=set)
    lost_work: list[str] = field(default_factory=list)
    newer: set[str] = field(
        default_factory=set
    )  # uids of objects that a newer version wrote: this one cannot read them

    def __post_init__(self) -> None:
        for role in self.service.spec.roles:
            wanted = self.service.spec.pools.of(role).replicas
            self.pools.setdefault(
                role, Pool(uid=f"p-{role}", resource_version="1", replicas=wanted, copied_replicas=wanted)
            )

    def snapshot(self, *, answers: bool = True) -> Snapshot:
        """What the operator would see, workers asked as the core wants."""
        image = worker_image(
            self.service,
            default=self.default_image,
            stored=self.stored_image,
            workers=self.pods.values(),
            compatibility_of=kv_of,
        )
        bare = Snapshot(
            now_s=self.now_s,
            service=self.service,
            pools={role: pool for role, pool in self.pools.items() if pool.uid not in self.newer},
            workers=tuple(
                replace(pod, confirmed_budget=self._confirmed(pod), suspect=pod.uid in self.suspects)
                for pod in self.pods.values()
            ),
            worker_image=image,
            default_image=self.default_image,
            kv_compatibility=kv_of(image),
            gateways=tuple(GatewayPod(name=name, ready=True) for name in self.gateways),
            switches=tuple(switch for switch in self.switches.values() if switch.uid not in self.newer),
            plans=tuple(plan for plan in self.plans.values() if plan.uid not in self.newer),
            policy=None if "policy" in self.newer else self.policy,
            routing_set_by=self.routing_set_by,
            prefill_token_budget=self.prefill_token_budget,
            acting_since_s=self.acting_since_s,
            gateway_deployment=GatewayDeployment(replicas=len(self.gateways)),
        )
        asked = {worker.uid for worker in workers_to_ask(bare)}
        workers = tuple(
            replace(worker, asked=worker.uid in asked, state=self._answer(worker) if worker.uid in asked else None)
            for worker in bare.workers
        )
        for worker in workers:
            if worker.state is not None:
                self.confirmed_budgets[worker.uid] = worker.container.id, worker.state.prefill_token_budget
                if serves(worker.state, worker.role):
                    self.suspects.discard(worker.uid)
        gateways = tuple(
            GatewayPod(name=name, ready=True, uses=None if self._unlucky() else frozenset(uids))
            for name, uids in self.gateways.items()
        )
        return replace(bare, workers=workers, gateways=gateways)

    def _confirmed(self, pod: Worker) -> int | None:
        container, budget = self.confirmed_budgets.get(pod.uid, (None, None))
        return budget if container == pod.container.id else None

    def _answer(self, worker: Worker) -> WorkerState | None:
        engine = self.engines[worker.uid]
        if self._unlucky() or not worker.container.running or worker.node in self.lost_nodes:
            return None
        return _state_of(worker, engine)

    def _unlucky(self) -> bool:
        return self.dice.random() < self.misfortune

    # --- the operator acts ---

    def make_pools(self) -> None:
        """The shell makes the pools that are missing."""
        bare = replace(self.snapshot(), pools={}) if set(self.service.spec.roles) - set(self.pools) else None
        for role in self.service.spec.roles if bare is not None and not self.service.spec.paused else ():
            if role not in self.pools and bare is not None and not self._unlucky():
                self.uids += 1
                copied = self.service.spec.pools.of(role).replicas
                self.pools[role] = Pool(
                    uid=f"p-{self.uids}",
                    resource_version="1",
                    replicas=first_replicas(bare, role),
                    copied_replicas=copied,
                )

    def reconcile(self) -> Decision:
        """One pass: decide, execute what is not lost, in any order where something goes wrong."""
        if self.service.has_finalizer and self.service.deleting_since_s is None:
            self.make_pools()
        snapshot = self.snapshot()
        assert snapshot.worker_image is not None
        decision = decide(snapshot, Render(snapshot.worker_image))
        if not self._unlucky():
            self.stored_image = snapshot.worker_image
        todo = list(decision.actions)
        if self.misfortune:
            self.dice.shuffle(todo)
        for action in todo:
            if not self._unlucky():
                self.execute(action)
        return decision

    def execute(self, action: act.Action) -> None:
        """Do what the shell would do, checking what may never happen."""
        match action:
            case act.AddFinalizer():
                self.service = replace(self.service, has_finalizer=True)
            case act.RemoveFinalizer():
                self.service = replace(self.service, has_finalizer=False)
            case act.StopGateway():
                self.gateways.clear()
            case act.DeletePool():
                assert not any(pod.role is action.role for pod in self.pods.values()), "its workers are still there"
                self.pools.pop(action.role, None)
            case act.WritePool():
                pool = self.pools[action.role]
                for change in action.changes:
                    self._check(pool, action.role, change)
                if pool.resource_version == action.resource_version:
                    version = str(int(pool.resource_version) + 1)
                    self.pools[action.role] = replace(pool.after(action.changes), resource_version=version)
            case act.CreateSwitch():
                if all(switch.name != action.name for switch in self.switches.values()):
                    self.switches[f"s-{action.name}"] = self.switch(
                        action.source,
                        name=action.name,
                        uid=f"s-{action.name}",
                        drainFirst=action.drain_first,
                        reason=f"plan/{action.plan}",
                    )
            case act.DeleteSwitch():
                switch = self.switches.pop(action.uid, None)
                assert switch is None or switch.ended, f"{action.name} runs"
            case act.SetRouting():
                self.routing_set_by = action.set_by
                self.prefill_token_budget = action.routing.prefill_token_budget or DEFAULT_PREFILL_TOKEN_BUDGET
            case act.SetPlanStatus():
                assert not self.plans[action.uid].ended, f"{action.name} has ended and was written again: {action.why}"
                self.plans[action.uid] = replace(self.plans[action.uid], status=action.status)
            case act.SetSwitchStatus():
                if action.uid in self.switches:
                    before = self.switches[action.uid]
                    assert not before.ended, f"{before.name} has ended and was written again: {action.why}"
                    self.switches[action.uid] = replace(before, status=action.status)
            case act.CreateWorker():
                self._create(action)
            case act.WorkerAction() if action.uid in self.pods:
                self._touch(action, self.pods[action.uid])
            case act.WorkerAction():
                pass  # gone meanwhile: the API server answers 404 or a uid conflict
            case _:
                raise AssertionError(f"the world does not know {action}")

    def _check(self, pool: Pool, role: Role, change: PoolChange) -> None:
        """What may never be written into a pool."""
        if change.kind is ChangeKind.COPY:
            assert pool.owned_replicas is None, f"pool {role} is written by plans"
            assert not pool.external, f"pool {role} is written by others"
        if change.kind is ChangeKind.MOVE:
            assert change.uid not in pool.moved_by, f"{change.uid} was moved twice"
        if change.kind is ChangeKind.SET:
            assert executes(self.policy), change.why

    def _create(self, action: act.CreateWorker) -> None:
        if any(pod.name == action.name for pod in self.pods.values()):
            return  # 409
        self.uids += 1
        uid = f"w-{self.uids}"
        self.pods[uid] = Worker(
            name=action.name,
            uid=uid,
            resource_version="1",
            created_s=self.now_s,
            role=action.role,
            revision=Render().revision(action.role),
            kv_compatibility=kv_of(action.manifest["image"]),
            image=action.manifest["image"],
            pod_ip=f"127.0.{self.uids // 250}.{self.uids % 250 + 1}",
            gates_open=False,
            routable_condition=False,
        )
        self.engines[uid] = Engine()
        assert action.role in self.service.spec.roles, f"a {action.role} worker of a service without that pool"
        assert action.role in self.pools, f"a {action.role} worker, and nobody knows how many there are to be"
        limit = self.service.spec.pools.of(action.role).max_replicas
        there = [
            pod for pod in self.pods.values() if pod.role is action.role and not pod.terminating and not pod.finished
        ]
        assert len(there) <= limit, f"{len(there)} {action.role} workers, maxReplicas is {limit}"
        if self.policy is not None and self.policy.mode in (Mode.ACTIVE, Mode.APPROVE):
            budget = self.policy.spec.budget.max_gpus
            # Also while their containers still end; one on a lost node is given up a while after its grace period.
            living = sum(
                not pod.finished and (pod.lost_at_s is None or self.now_s < pod.lost_at_s) for pod in self.pods.values()
            )
            assert living <= budget, f"{living} workers, budget.maxGpus is {budget}"

    def _touch(self, action: act.WorkerAction, pod: Worker) -> None:
        engine, uid = self.engines[pod.uid], pod.uid
        match action:
            case act.GiveRole() if pod.container.running and engine.phase is not WorkerPhase.STARTING:
                if engine.role is not action.role:
                    engine.verified = None
                assert (action.role is Role.ENCODE) == (pod.revision == "e"), f"{pod.name} has another engine"
                engine.role, engine.phase = action.role, WorkerPhase.SERVING
                engine.budget = action.prefill_token_budget
            case act.SetPrefillTokenBudget() if pod.container.running and engine.role is Role.PREFILL:
                assert engine.phase is WorkerPhase.SERVING or self.misfortune, f"{pod.name} is not serving"
                engine.budget = action.prefill_token_budget
            case act.PatchPod():
                self.pods[uid] = self._patched(action, pod)
            case act.VerifyWorker() if self._partner_group(action) not in (None, pod.kv_compatibility):
                raise AssertionError(f"{pod.name} is verified with a worker of another KV group")
            case act.VerifyWorker() if (uid, action.role) in self.cannot_prove:
                self.pods[uid] = replace(pod, verify_error="it answered nothing")
            case act.VerifyWorker() if engine.role is action.role:
                engine.verified = action.role
            case act.AskDrain() if pod.container.running:
                engine.phase = WorkerPhase.DRAINING
            case act.SetRoutableCondition():
                assert pod.routable_condition is not None, f"{pod.name} has no readiness gate"
                self.pods[uid] = replace(pod, routable_condition=action.routable)
            case act.DeleteWorker():
                self._delete(action, pod)

    def _partner_group(self, action: act.VerifyWorker) -> str | None:
        """The KV group of the worker that is to pull; None: there is none, or it is gone."""
        partners = (pod for pod in self.pods.values() if action.partner_url and pod.control_url == action.partner_url)
        return next((pod.kv_compatibility for pod in partners), None)

    def _patched(self, action: act.PatchPod, pod: Worker) -> Worker:
        """The pod as the operator reads it after the write."""
        labels, notes = action.labels, action.annotations
        if names.ROLE_LABEL in labels:
            role = Role.from_label(labels[names.ROLE_LABEL])
            assert role is not None
            self._check_role(role, pod)
            pod = replace(pod, role=role, verify_error=None)
        if DRAIN_REASON_ANNOTATION in notes:
            reason = notes[DRAIN_REASON_ANNOTATION]
            leaves = reason is not None and DrainReason(reason) is DrainReason.SCALE_DOWN
            assert not leaves or pod.role in self.pools, f"{pod.name} leaves, and nobody knows how many there are to be"
            started_s = None if reason is None else self.now_s
            pod = replace(pod, drain_started_s=started_s, drain_reason=None if reason is None else DrainReason(reason))
        if SWITCH_ANNOTATION in notes:
            pod = replace(pod, claim=SwitchClaim.parse(notes[SWITCH_ANNOTATION]))
        if VERIFIED_CONTAINER_ANNOTATION in notes:
            pod = replace(pod, verified_container=notes[VERIFIED_CONTAINER_ANNOTATION])
        return replace(pod, routable_label=labels.get(names.ROUTABLE_LABEL, str(pod.routable_label).lower()) == "true")

    def _check_role(self, role: Role, pod: Worker) -> None:
        engine = self.engines[pod.uid]
        assert pod.claim is not None, f"{pod.name} changes its role without a switch"
        switch = self.switches.get(pod.claim.uid)
        if switch is not None and switch.spec.drain_first and role is pod.claim.target and pod.container.running:
            assert not (engine.in_flight or engine.leases), f"{pod.name} changes its role with work in the old one"

    def _delete(self, action: act.DeleteWorker, pod: Worker) -> None:
        engine = self.engines[pod.uid]
        if pod.container.running and (engine.in_flight or engine.leases):
            began = pod.drain_started_s
            assert began is not None, f"{pod.name} was deleted without a drain: {action.why}"
            since = min(began, self.service.deleting_since_s or began)
            over = self.now_s >= since + self.service.spec.drain.timeout_seconds
            assert over and not action.lossless, f"{pod.name} was deleted with work before its deadline: {action.why}"
            self.lost_work.append(pod.name)
        self.terminate(pod)

    def terminate(self, pod: Worker) -> None:
        """Somebody deleted the pod: its container has its grace period to end."""
        grace_s = self.service.spec.drain.timeout_seconds + 30
        self.pods[pod.uid] = replace(pod, terminating=True, lost_at_s=self.now_s + grace_s + LOST_AFTER_S)

    # --- the rest of the world goes on ---

    def tick(self, seconds: float = 1.0) -> None:
        """Time passes: kubelets start containers, engines load, gateways follow labels, streams end, things break."""
        self.now_s += seconds
        self.poll()
        for uid, pod in list(self.pods.items()):
            engine = self.engines[uid]
            if pod.node in self.lost_nodes:
                self._pass_on_lost_node(pod, self.lost_nodes[pod.node])
                continue
            if pod.routable_condition is not None:
                pod = self.pods[uid] = replace(pod, gates_open=pod.routable_condition)
            if pod.terminating:
                if self.dice.random() < 0.5:
                    del self.pods[uid], self.engines[uid]
                continue
            if pod.finished:
                continue  # no kubelet starts it again
            if self._unlucky() and self.dice.random() < 0.3:
                self._crash(uid, pod)
            elif not pod.container.running and not self._finds_node(pod):
                self.pods[uid] = replace(pod, unschedulable="0/3 nodes are available")
            elif not pod.container.running:
                self.pods[uid] = replace(
                    pod,
                    phase="Running",
                    unschedulable=None,
                    node=pod.node or self.dice.choice([node for node in NODES if node not in self.lost_nodes]),
                    container=replace(pod.container, running=True, id=f"c{pod.container.restarts}"),
                )
            elif engine.phase is WorkerPhase.STARTING:
                engine.phase = WorkerPhase.IDLE
                self.pods[uid] = replace(pod, pod_ready=True)
            elif engine.phase is WorkerPhase.SERVING and self._unlucky() and self.dice.random() < 0.3:
                self.drain_itself(uid)
            elif engine.phase is WorkerPhase.DRAINING or not pod.routable_label:
                engine.in_flight = max(0, engine.in_flight - 1)
                engine.leases = max(0, engine.leases - 1)
        for uses in self.gateways.values():
            if self.dice.random() < 0.7:
                uses.clear()
                uses.update(uid for uid, pod in self.pods.items() if pod.routable and not pod.terminating)
            for uid in uses & set(self.engines):
                if self.pods[uid].node in self.lost_nodes:
                    continue
                if self.engines[uid].phase is WorkerPhase.SERVING and self.dice.random() < 0.5:
                    self.engines[uid].in_flight = min(5, self.engines[uid].in_flight + 1)

    def _finds_node(self, pod: Worker) -> bool:
        """A container that crashed comes back where it was; a new pod needs room."""
        placed = [other for other in self.pods.values() if other.container != Container() and not other.finished]
        room = self.nodes is None or pod.container != Container() or len(placed) < self.nodes
        return room and pod.uid not in self.unplaceable

    def _pass_on_lost_node(self, pod: Worker, since_s: float) -> None:
        """What Kubernetes does with a pod on a node that does not answer; nobody ends it there."""
        if self.now_s >= since_s + FOUND_LOST_S:
            self.pods[pod.uid] = pod = replace(pod, node_lost=True, pod_ready=False)
        if self.now_s >= since_s + FOUND_LOST_S + LOST_NODE_S and not pod.terminating:
            self.terminate(pod)

    def lose_node(self, node: str) -> None:
        """It loses its power: what its engines had ends with them, and is retried elsewhere. The last node stays."""
        if len(self.lost_nodes) + 1 == len(NODES):
            return
        self.lost_nodes.setdefault(node, self.now_s)
        for uid, pod in self.pods.items():
            if pod.node == node:
                self.engines[uid].in_flight = self.engines[uid].leases = 0

    def return_node(self, node: str) -> None:
        """It answers again: pods that were deleted meanwhile end, the others go on."""
        self.lost_nodes.pop(node, None)
        for uid, pod in list(self.pods.items()):
            if pod.node == node and pod.terminating:
                del self.pods[uid], self.engines[uid]
            elif pod.node == node:
                ready = pod.container.running and self.engines[uid].phase is not WorkerPhase.STARTING
                self.pods[uid] = replace(pod, node_lost=False, pod_ready=ready)

    def drain_itself(self, uid: str) -> None:
        """Its engine aborted a request, or a part of the worker ended: it takes nothing new until it gets its role."""
        self.engines[uid].phase, self.engines[uid].verified = WorkerPhase.DRAINING, None

    def poll(self) -> None:
        """What the operator does every few seconds beside its passes: ask the workers that serve."""
        for uid, pod in self.pods.items():
            if pod.routable and ((answer := self._answer(pod)) is None or not serves(answer, pod.role)):
                self.suspects.add(uid)

    def _crash(self, uid: str, pod: Worker) -> None:
        self.engines[uid] = Engine()
        restarts = pod.container.restarts + 1
        container = Container(running=False, restarts=restarts, last_exit_code=137)
        self.pods[uid] = replace(pod, container=container, pod_ready=False)

    # --- what is asked of it ---

    def routable(self, role: Role) -> list[Worker]:
        """Workers of a role that a gateway may use."""
        return [pod for pod in self.pods.values() if pod.role is role and pod.active and pod.ready and pod.routable]

    def switch(
        self,
        source: Role = Role.DECODE,
        *,
        worker: str | None = None,
        name: str | None = None,
        uid: str | None = None,
        **fields: Any,
    ) -> Switch:
        """Create a RoleSwitch."""
        self.uids += 1
        target = Role.PREFILL if source is Role.DECODE else Role.DECODE
        made = Switch(
            name=name or f"switch-{self.uids}",
            uid=uid or f"s-{self.uids}",
            created_s=self.now_s,
            spec=RoleSwitchSpec.model_validate(
                {"serviceRef": {"name": "chat"}, "workerName": worker, "from": source, "to": target, **fields}
            ),
        )
        self.switches[made.uid] = made
        return made

    def settled(self) -> bool:
        """Every pool has exactly what it should, all of it routable, nothing leaving."""
        not_given_up = [pod for pod in self.pods.values() if not (pod.terminating and pod.node in self.lost_nodes)]
        if any(pod.claim is not None for pod in not_given_up):
            return False
        if set(self.pools) != set(self.service.spec.roles):
            return False
        for role, pool in self.pools.items():
            bounds = self.service.spec.pools.of(role)
            wanted = min(max(pool.replicas, bounds.min_replicas), bounds.max_replicas)
            there = [pod for pod in not_given_up if pod.role is role and pod.claim is None]
            if len(there) != wanted or len(self.routable(role)) != wanted:
                return False
            if any(not serves(_state_of(pod, self.engines[pod.uid]), role) for pod in there):
                return False
        return True

    def run(self, passes: int) -> bool:
        """Reconcile and let time pass until all is settled; False when it is not after so many passes."""
        for _ in range(passes):
            if self.settled() and not decide(self.snapshot(), Render(self.stored_image or IMAGE)).actions:
                return True
            self.reconcile()
            self.tick()
        return False


def _state_of(worker: Worker, engine: Engine) -> WorkerState:
    """What the worker says about itself."""
    return state(
        worker.name,
        engine.phase,
        engine.role,
        verified=engine.verified,
        in_flight=engine.in_flight,
        in_flight_tokens=100 * engine.in_flight,
        leases=engine.leases,
        prefill_token_budget=engine.budget,
        kv_compatibility=worker.kv_compatibility,
    )
