"""Stand-ins for what no control plane has: a kubelet, and in its pods workers and gateways that speak the protocol.

The kubelet gives each pod an address of 127.0.0.0/8 and a real HTTP server there, and writes the status a kubelet
would. Servers are programmed by tests (work in flight, a failing proof) and remember what they were asked.
"""

import asyncio
import base64
import hmac
import random
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from aiohttp import web
from pydantic import ValidationError

from fixtures.kube_calls import WatchedMirror
from pointsman.api.protocol import control, names
from pointsman.api.protocol.control import WorkerPhase
from pointsman.api.protocol.names import Role
from pointsman.kube import resources
from pointsman.kube.client import Kube
from pointsman.kube.errors import AlreadyExists, Conflict, KubeError, NotFound
from pointsman.kube.pods import Pod

NODE = "operator-stand-in"

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Pulse:
    """An event that can be awaited again and again."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def beat(self) -> None:
        self._next.set()
        self._next = asyncio.Event()

    async def wait(self) -> None:
        await self._next.wait()


class Server:
    """One process of a pod: an HTTP server on the pod's address, guarded by the service's token."""

    def __init__(self, pod: Pod, address: str, token: str) -> None:
        self.pod, self.address, self.token = pod, address, token
        self.asked: list[str] = []
        self.metrics: Callable[[], web.Response] | None = None  # its /metrics, read without a token, if a test has one
        self.more_routes: Sequence[web.RouteDef] = ()
        self._runner: web.AppRunner | None = None

    def routes(self) -> list[web.RouteDef]:
        raise NotImplementedError

    async def start(self) -> None:
        @web.middleware
        async def guard(request: web.Request, handler: _Handler) -> web.StreamResponse:
            return await self._guard(request, handler)

        app = web.Application(middlewares=[guard])
        app.add_routes([*self.routes(), *self.more_routes])
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
        await self._runner.setup()
        await web.TCPSite(self._runner, self.address, names.ENGINE_PORT).start()

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _guard(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        if self.metrics is not None and request.path == "/metrics":
            return self.metrics()
        if not request.path.startswith("/pointsman/"):
            return await handler(request)  # a client's
        said = request.headers.get("Authorization", "")
        if not hmac.compare_digest(said, f"Bearer {self.token}"):
            return _refused(401, "Unauthorized", "wrong token")
        try:
            return await handler(request)
        except ValidationError as error:
            return _refused(400, "BadRequest", str(error))
        except web.HTTPNotFound:
            return _refused(404, "NoSuchPath", f"{request.method} {request.path} is not known here")


def _refused(status: int, reason: str, message: str) -> web.Response:
    error = control.ControlError(reason=reason, message=message)
    return web.Response(status=status, text=error.wire(), content_type="application/json")


class StandInWorker(Server):
    """A worker: has no role until it is given one, proves it when asked, drains when told."""

    def __init__(
        self, pod: Pod, address: str, token: str, possible_roles: tuple[Role, ...] = names.LANGUAGE_ROLES
    ) -> None:
        super().__init__(pod, address, token)
        self.instance = uuid.uuid4().hex
        self.possible_roles = possible_roles  # its engine was started for
        self.phase = WorkerPhase.IDLE
        self.role: Role | None = None
        self.verified: Role | None = None
        self.prefill_token_budget: int | None = None
        self.in_flight = 0
        self.leases = 0
        self.fail_verify: str | None = None
        self.cannot_prove: set[Role] = set()  # roles in which it answers no request
        self.nats_connected: bool | None = None
        self.partners: list[str | None] = []
        self.finishes_when_drained = False
        self.before_command: Callable[[str], None] = lambda what: None
        self.drained = asyncio.Event()
        self.answers = 0
        self.answered = Pulse()

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get(control.STATE_PATH, self._state),
            web.post(control.ROLE_PATH, self._role),
            web.post(control.DRAIN_PATH, self._drain),
            web.post(control.VERIFY_PATH, self._verify),
        ]

    def state(self) -> control.WorkerState:
        return control.WorkerState(
            worker=self.pod.metadata.name,
            instance=self.instance,
            phase=self.phase,
            role=self.role,
            verified=self.verified,
            in_flight=self.in_flight,
            in_flight_tokens=100 * self.in_flight,
            queued_prefills=0,
            leases=self.leases,
            block_size=128,
            nats_connected=self.nats_connected,
            prefill_token_budget=self.prefill_token_budget,
            metrics_port=names.WORKER_METRICS_PORT,
            kv_compatibility=self.pod.metadata.labels[names.KV_COMPATIBILITY_LABEL],
        )

    def drain_itself(self) -> None:
        """As the real one does when its engine aborts a request."""
        self.phase, self.verified = WorkerPhase.DRAINING, None

    def _commanded(self, what: str) -> None:
        self.before_command(what)  # may raise: then it never arrived
        self.asked.append(what)

    def _answer(self) -> web.Response:
        return web.Response(text=self.state().wire(), content_type="application/json")

    async def _state(self, _: web.Request) -> web.Response:
        self.answers += 1
        self.answered.beat()
        return self._answer()

    async def _role(self, request: web.Request) -> web.Response:
        wanted = control.RoleRequest.model_validate_json(await request.text())
        serves = self.role is not None and wanted.role is self.role and self.phase is WorkerPhase.SERVING
        if wanted.if_serving and not serves:
            refusal = control.ControlError(reason="NotServing", message=f"it is {self.phase}")
            return web.Response(status=409, text=refusal.wire(), content_type="application/json")
        if wanted.role is not None and wanted.role not in self.possible_roles:
            return _refused(409, "WrongEngine", f"role is {wanted.role}: the engine was started for another one")
        self._commanded(f"budget {wanted.prefill_token_budget}" if serves else f"role {wanted.role}")
        if wanted.role is not self.role:
            self.verified = None
        self.prefill_token_budget = wanted.prefill_token_budget
        self.role, self.phase = wanted.role, WorkerPhase.SERVING if wanted.role else WorkerPhase.IDLE
        return self._answer()

    async def _drain(self, _: web.Request) -> web.Response:
        self._commanded("drain")
        self.phase = WorkerPhase.DRAINING
        self.in_flight = 0 if self.finishes_when_drained else self.in_flight
        self.drained.set()
        return self._answer()

    async def _verify(self, request: web.Request) -> web.Response:
        wanted = control.VerifyRequest.model_validate_json(await request.text())
        self._commanded(f"verify {wanted.role}")
        self.partners.append(wanted.partner_url)
        refusal = self.fail_verify or ("it answered nothing" if wanted.role in self.cannot_prove else None)
        ok = refusal is None
        if ok:
            self.verified = wanted.role
        elif self.verified is wanted.role:
            self.verified = None
        result = control.VerifyResult(ok=ok, role=wanted.role, detail=refusal or "one token", seconds=0.01)
        return web.Response(text=result.wire(), content_type="application/json")


def _has_open_gates(pod: Pod) -> bool:
    """Whether all readiness gates of a pod are open."""
    conditions = {gate.condition_type: pod.condition(gate.condition_type) for gate in pod.spec.readiness_gates}
    return all(condition is not None and condition.status == "True" for condition in conditions.values())


def _possible_roles(environment: Mapping[str, dict[str, Any]]) -> tuple[Role, ...]:
    """What a worker can be whose engine was started with this environment."""
    produces = environment.get(names.ENV_EMBEDDING_ROLE, {}).get("value") == names.EmbeddingRole.PRODUCER
    return (Role.ENCODE,) if produces else names.LANGUAGE_ROLES


class StandInGateway(Server):
    """A gateway: reports the workers whose labels and readiness it last followed."""

    def __init__(self, pod: Pod, address: str, token: str, mirror: WatchedMirror[Pod]) -> None:
        super().__init__(pod, address, token)
        self._mirror = mirror
        self.frozen: tuple[Pod, ...] | None = None
        self.avoided: set[str] = set()  # uids of workers that failed its requests
        self.silent = False
        self.reports = 0
        self.reported = Pulse()

    def routes(self) -> list[web.RouteDef]:
        return [web.get(control.ENDPOINTS_PATH, self._endpoints)]

    def uses(self) -> tuple[Pod, ...]:
        """The routable workers, as they are or as they were when the test froze them."""
        if self.frozen is not None:
            return self.frozen
        service = self.pod.metadata.labels[names.SERVICE_LABEL]
        return tuple(
            pod
            for pod in self._mirror.objects()
            if pod.metadata.labels.get(names.ROUTABLE_LABEL) == "true"
            and pod.metadata.labels.get(names.SERVICE_LABEL) == service
            and pod.ready
            and not pod.terminating
        )

    async def _endpoints(self, _: web.Request) -> web.Response:
        if self.silent:
            await asyncio.Event().wait()
        self.reports += 1
        self.reported.beat()
        found = tuple(
            control.EndpointState(
                worker=pod.metadata.name,
                uid=pod.metadata.uid,
                url=f"http://{pod.status.pod_ip}:{names.ENGINE_PORT}",
                role=Role.from_label(pod.metadata.labels[names.ROLE_LABEL]) or Role.DECODE,
                in_flight=0,
                ejections=int(pod.metadata.uid in self.avoided),
            )
            for pod in self.uses()
        )
        report = control.EndpointsReport(gateway=self.pod.metadata.name, synced=True, endpoints=found)
        return web.Response(text=report.wire(), content_type="application/json")


class StandInKubelet:
    """Runs the pods of one namespace. Use as a context."""

    def __init__(self, kube: Kube, namespace: str) -> None:
        self.kube = kube
        self.namespace = namespace
        self.workers: dict[str, StandInWorker] = {}  # by pod name
        self.gateways: dict[str, StandInGateway] = {}
        self.crashing: set[str] = set()  # pods whose container does not come back
        self.starts_workers = True
        self.nodes: set[str] = set()
        self.silent_nodes: set[str] = set()  # of those, the ones that nobody hears of any more
        self.node_for: Callable[[Pod], str] = lambda pod: NODE
        self.places_workers = True  # False: worker pods are left to the scheduler, and no node is schedulable
        self.most_gateways: int | None = None  # it takes no more; the others are left to the scheduler
        self.fails_verify: str | None = None  # of workers that start from now on
        self.engine: Callable[[StandInWorker], Sequence[web.RouteDef]] = lambda worker: ()  # likewise: what they serve
        self.created: list[str] = []  # names of worker pods as they were first seen
        self.ended: list[str] = []  # names of worker pods as they went
        self.lost_work: list[str] = []  # workers that were killed with something in flight
        self.pods: WatchedMirror[Pod] = WatchedMirror(
            kube,
            resources.PODS,
            Pod,
            namespace=namespace,
            label_selector=names.SERVICE_LABEL,
            on_change=self._changed,
        )
        self._dirty: asyncio.Queue[str] = asyncio.Queue()
        self._addresses: dict[str, str] = {}
        self._written: dict[str, dict[str, Any]] = {}  # by pod name: how its status was written last
        self._bound_gateways: set[str] = set()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "StandInKubelet":
        await self.add_node(NODE)
        self._tasks = [asyncio.create_task(work) for work in (self.pods.run(), self._work(), self._heartbeat())]
        await self.pods.synced.wait()
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(server.stop() for server in (*self.workers.values(), *self.gateways.values())))

    async def add_node(self, name: str) -> None:
        """A Node on which the scheduler puts nothing: this kubelet binds pods itself, by ``node_for``."""
        with suppress(AlreadyExists):
            await self.kube.create(resources.NODES, {"metadata": {"name": name}, "spec": {"unschedulable": True}})
        self.nodes.add(name)
        await self._beat(name)

    async def _beat(self, node: str) -> None:
        ready = {"type": "Ready", "status": "True", "reason": "StandIn", "lastHeartbeatTime": _now()}
        with suppress(KubeError):
            await self.kube.patch(
                resources.NODES, node, None, {"status": {"conditions": [ready]}}, subresource="status"
            )

    async def _heartbeat(self) -> None:
        while True:
            await asyncio.sleep(10)
            for name in self.nodes - self.silent_nodes:
                await self._beat(name)

    def _changed(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        assert pod is not None
        if pod.metadata.labels.get(names.COMPONENT_LABEL) == names.COMPONENT_WORKER:
            if old is None:
                self.created.append(pod.metadata.name)
            if new is None:
                self.ended.append(pod.metadata.name)
        self._dirty.put_nowait(pod.metadata.name)

    async def _work(self) -> None:
        while True:
            name = await self._dirty.get()
            pod = self.pods.get(name, self.namespace)
            try:
                await self._look(name, pod)
            except NotFound:
                continue
            except KubeError as error:
                print(f"stand-in kubelet: {name}: {error}")

    async def _look(self, name: str, pod: Pod | None) -> None:
        if pod is None:
            await self._stop(name)
        elif pod.spec.node_name in self.silent_nodes:
            return
        elif pod.terminating:
            await self._stop(name)
            await self.kube.delete(resources.PODS, name, self.namespace, uid=pod.metadata.uid, grace_period_s=0)
        elif not pod.spec.node_name:
            if not self.places_workers and pod.metadata.labels.get(names.COMPONENT_LABEL) == names.COMPONENT_WORKER:
                return
            if self._has_room(pod):
                await self._bind(pod)
        elif name not in self.workers and name not in self.gateways and name not in self.crashing:
            is_worker = pod.metadata.labels.get(names.COMPONENT_LABEL) == names.COMPONENT_WORKER
            if not is_worker or self.starts_workers:
                await self._start(pod)
        elif name in self._written and pod.containers_ready and pod.ready != _has_open_gates(pod) and not pod.node_lost:
            await self.write_status(name, **self._written[name])

    async def _bind(self, pod: Pod) -> None:
        name = pod.metadata.name
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name},
            "target": {"apiVersion": "v1", "kind": "Node", "name": self.node_for(pod)},
        }
        with suppress(Conflict, NotFound):  # bound already, by us a moment ago
            await self.kube.create(resources.PODS, binding, self.namespace, name=name, subresource="binding")

    def _has_room(self, pod: Pod) -> bool:
        if self.most_gateways is None or pod.metadata.labels.get(names.COMPONENT_LABEL) != names.COMPONENT_GATEWAY:
            return True
        taken = [name for name in self._bound_gateways if self.pods.get(name, self.namespace) is not None]
        if pod.metadata.name in taken or len(taken) >= self.most_gateways:
            return False
        self._bound_gateways.add(pod.metadata.name)
        return True

    async def _start(self, pod: Pod) -> None:
        name = pod.metadata.name
        environment = await self._environment(pod)
        token = await self._token(environment)
        possible_roles = _possible_roles(environment)
        for _ in range(50):
            address = (
                self._addresses.get(name)
                or f"127.{random.randrange(64, 127)}.{random.randrange(256)}.{random.randrange(1, 255)}"
            )
            component = pod.metadata.labels.get(names.COMPONENT_LABEL)
            server: Server
            if component == names.COMPONENT_WORKER:
                server = self.workers[name] = StandInWorker(pod, address, token, possible_roles)
                server.fail_verify = self.fails_verify
                server.more_routes = self.engine(server)
            else:
                server = self.gateways[name] = StandInGateway(pod, address, token, self.pods)
            try:
                await server.start()
            except OSError:  # somebody has it: another address
                await server.stop()
                self._addresses.pop(name, None)
                continue
            self._addresses[name] = address
            await self.write_status(name, ready=True)
            return
        raise AssertionError("no free address in 127.64.0.0/10")

    async def _environment(self, pod: Pod) -> dict[str, dict[str, Any]]:
        """The variables of the pod's first container, by name."""
        raw = await self.kube.get(resources.PODS, pod.metadata.name, self.namespace)
        return {item["name"]: item for item in raw["spec"]["containers"][0]["env"]}

    async def _token(self, environment: Mapping[str, dict[str, Any]]) -> str:
        """The control token, from the Secret the pod's own environment names."""
        reference = environment[names.ENV_CONTROL_TOKEN]["valueFrom"]["secretKeyRef"]
        secret = await self.kube.get(resources.SECRETS, reference["name"], self.namespace)
        return base64.b64decode(secret["data"][reference["key"]]).decode()

    async def _stop(self, name: str) -> None:
        self._written.pop(name, None)
        worker = self.workers.pop(name, None)
        if worker is not None:
            if worker.in_flight or worker.leases:
                self.lost_work.append(name)
            await worker.stop()
        gateway = self.gateways.pop(name, None)
        if gateway is not None:
            await gateway.stop()

    async def write_status(
        self,
        name: str,
        *,
        ready: bool,
        restarts: int = 0,
        state: dict[str, Any] | None = None,
        last: dict[str, Any] | None = None,
    ) -> None:
        """A pod's status as a kubelet writes it: Ready with its containers and its readiness gates."""
        pod = self.pods.get(name, self.namespace)
        assert pod is not None
        state = state or {"running": {"startedAt": _now()}}
        self._written[name] = {"ready": ready, "restarts": restarts, "state": state, "last": last}
        container = "gateway" if name in self.gateways else "engine"
        gates = _has_open_gates(pod)
        conditions = [
            {"type": kind, "status": str(true), "lastTransitionTime": _now(), **({} if true else {"reason": why})}
            for kind, true, why in (
                ("ContainersReady", ready, "ContainersNotReady"),
                ("Ready", ready and gates, "ReadinessGatesNotReady" if ready else "ContainersNotReady"),
            )
        ]
        status = {
            "phase": "Running",
            "podIP": self._addresses.get(name),
            "podIPs": [{"ip": self._addresses[name]}] if name in self._addresses else [],
            "startTime": _now(),
            "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": _now()}, *conditions],
            "containerStatuses": [
                {
                    "name": container,
                    "ready": ready,
                    "started": ready,
                    "restartCount": restarts,
                    "image": "stand-in",
                    "imageID": "",
                    "containerID": f"stand-in://{name}/{restarts}",
                    "state": state,
                    "lastState": last or {},
                }
            ],
        }
        # Applied, so that conditions of others stay as they are.
        metadata = {"name": name, "namespace": self.namespace, "uid": pod.metadata.uid}
        await self.kube.apply(
            resources.PODS, {"metadata": metadata, "status": status}, subresource="status", field_manager="kubelet"
        )

    async def silence_node(self, node: str) -> None:
        """A node loses its power: its pods do not answer, and nobody writes or ends them."""
        self.silent_nodes.add(node)
        for pod in self.pods.objects():
            if pod.spec.node_name == node:
                await (self.workers.get(pod.metadata.name) or self.gateways[pod.metadata.name]).stop()

    async def return_node(self, node: str) -> None:
        """It has power again: its pods that were deleted meanwhile end."""
        self.silent_nodes.discard(node)
        await self._beat(node)
        for pod in self.pods.objects():
            if pod.spec.node_name == node:
                self._dirty.put_nowait(pod.metadata.name)

    async def mark_lost(self, name: str) -> None:
        """What the node lifecycle controller does with a pod 50 seconds after its node has stopped answering."""
        pod = self.pods.get(name, self.namespace)
        assert pod is not None
        del self._written[name]
        condition = {"type": "Ready", "status": "False", "lastTransitionTime": _now()}
        body = {
            "metadata": {"name": name, "namespace": self.namespace, "uid": pod.metadata.uid},
            "status": {"conditions": [condition]},
        }
        await self.kube.apply(resources.PODS, body, subresource="status", field_manager="node-lifecycle-controller")

    def check(self) -> None:
        """Raise what ended the kubelet, if something did."""
        for task in self._tasks:
            if task.done():
                task.result()

    # --- what tests do to workers ---

    async def crash(self, name: str, *, message: str = "", again: bool = True, restarts: int = 1) -> None:
        """End a worker's container; with ``again`` a new one starts, else it stays in back-off."""
        await self.workers.pop(name).stop()
        ended = {"terminated": {"exitCode": 1, "reason": "Error", "message": message, "finishedAt": _now()}}
        waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off restarting failed container"}}
        if not again:
            self.crashing.add(name)
            await self.write_status(name, ready=False, restarts=restarts, state=waiting, last=ended)
            return
        pod = self.pods.get(name, self.namespace)
        assert pod is not None
        environment = await self._environment(pod)
        token, roles = await self._token(environment), _possible_roles(environment)
        self.workers[name] = StandInWorker(pod, self._addresses[name], token, roles)
        await self.workers[name].start()
        await self.write_status(name, ready=True, restarts=restarts, last=ended)

    def worker_pods(self, role: Role | None = None, *, routable: bool | None = None) -> list[Pod]:
        """Worker pods that are not leaving, oldest name first."""
        return sorted(
            (
                pod
                for pod in self.pods.objects()
                if pod.metadata.labels.get(names.COMPONENT_LABEL) == names.COMPONENT_WORKER
                and not pod.terminating
                and (role is None or pod.metadata.labels[names.ROLE_LABEL] == role.label)
                and (routable is None or (pod.metadata.labels[names.ROUTABLE_LABEL] == "true") is routable)
            ),
            key=lambda pod: pod.metadata.name,
        )
