"""A service of the product as the tests see it: through kubectl, its gateway and its workers' own words."""

import base64
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path

import aiohttp
import nats
import yaml
from prometheus_client.parser import text_string_to_metric_families

from pointsman.api.protocol import metrics, names
from pointsman.api.protocol.control import WorkerPhase
from pointsman.api.protocol.names import Role
from pointsman.api.v1alpha1.plan import PlanPhase
from pointsman.api.v1alpha1.roleswitch import SwitchPhase
from pointsman.kube.client import Kube
from pointsman.local.cluster import SYSTEM_NAMESPACE, LocalCluster
from pointsman.local.errors import ControlPlaneFailed
from pointsman.local.observation import Observer, ServiceView, WorkerView
from pointsman.local.quickstart.examples import read_example, with_model
from pointsman.local.quickstart.waiting import wait_until
from pointsman.local.traffic import Api, Difference, Endpoint, Mix, Prompt, Record, compare, prompts
from pointsman.operator.core.naming import DRAIN_REASON_ANNOTATION, SWITCH_ANNOTATION
from waiting import eventually

WAIT_SECONDS = 150.0  # things take 2 to 10 s here; a CI computer may have two busy cores
MODEL_NAME = "tiny"
SHORT, LONG = range(8, 200), range(700, 2_000)  # below and above what a decode worker computes itself by default
MIX = Mix(lengths=(SHORT, LONG), max_tokens=range(16, 65), token_ids_share=0.3)
PREFILL_HEAVY = Mix(lengths=(LONG,), max_tokens=range(8, 33), token_ids_share=0.3)
_MARKS = {names.DRAIN_STARTED_ANNOTATION, DRAIN_REASON_ANNOTATION, SWITCH_ANNOTATION}


class Served:
    """One LLMService on the tests' cluster."""

    def __init__(
        self, cluster: LocalCluster, observer: Observer, model: Path, *, name: str = "chat", namespace: str = "default"
    ) -> None:
        self.cluster = cluster
        self.name = name
        self.namespace = namespace
        self.observer = observer
        self.model = model
        self._endpoint: Endpoint | None = None

    @property
    def endpoint(self) -> Endpoint:
        """Its gateway; known after ``restore`` or ``ready``."""
        assert self._endpoint is not None, "the service was not waited for"
        return self._endpoint

    async def close(self) -> None:
        """Close the connections to the gateway."""
        if self._endpoint is not None:
            await self._endpoint.__aexit__()

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """kubectl in the service's namespace."""
        return self.cluster.kubectl("-n", self.namespace, *arguments, stdin=stdin)

    def apply(self, *, decode: int = 2) -> None:
        """Apply the example under this name, with so many decode workers."""
        manifest = with_model(read_example(), self.model)
        manifest["metadata"] = {"name": self.name}
        manifest["spec"]["pools"]["decode"]["replicas"] = decode
        self.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(manifest))

    def scale(self, role: Role, replicas: int) -> None:
        """As a user does it."""
        self.kubectl("scale", "wpool", f"{self.name}-{role.label}", f"--replicas={replicas}")

    async def restore(self) -> ServiceView:
        """Apply the example, put the pools back to one prefill and two decode workers, and wait until that is so."""
        view = await self.look()
        if view.service is None:
            self.apply()
        else:
            self.scale(Role.PREFILL, 1)
            self.scale(Role.DECODE, 2)
        return await self.ready(prefill=1, decode=2)

    async def ready(self, *, prefill: int, decode: int, encode: int = 0) -> ServiceView:
        """Wait until the service is Ready with exactly so many routable workers and no other pod of it."""
        desired = {Role.PREFILL: prefill, Role.DECODE: decode, Role.ENCODE: encode}

        def holds(view: ServiceView) -> bool:
            counts = {role: len(view.routable(role)) for role in Role}
            whole = counts == desired and len(view.workers) == sum(desired.values())
            return view.ready and view.gateway_url is not None and whole

        view = await self.until(f"{self.name} Ready at {encode}E{prefill}P{decode}D", holds)
        assert view.gateway_url is not None
        if self._endpoint is None or self._endpoint.base_url != view.gateway_url:
            await self.close()
            self._endpoint = Endpoint(view.gateway_url, MODEL_NAME, timeout_seconds=WAIT_SECONDS)
        return view

    async def look(self) -> ServiceView:
        """The service now."""
        return await self.observer.look()

    async def until(self, what: str, holds: Callable[[ServiceView], bool]) -> ServiceView:
        """Wait until ``holds``; fails with the service's conditions and Events."""
        return await wait_until(self.observer, what, holds, timeout_seconds=WAIT_SECONDS)

    async def worker(self, role: Role) -> WorkerView:
        """A routable worker of a role."""
        return (await self.look()).routable(role)[0]

    async def mid_stream_moves(self) -> float:
        """How many streams went on at another worker after their first token, as the gateway counts them."""
        url = self.endpoint.base_url.removesuffix("/v1") + "/metrics"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            families = list(text_string_to_metric_families(await answer.text()))
        return sum(
            sample.value
            for family in families
            for sample in family.samples
            if sample.name == metrics.GATEWAY_RETRIES.name and sample.labels["reason"].endswith("-mid-stream")
        )

    def kill(self, pod: str) -> int:
        """kill -9 of what a pod runs; how often its container had been started again before."""
        before = self.restarts(pod)
        self.cluster.kill_container(self.namespace, pod)
        return before

    def kill_part(self, component: str) -> str:
        """kill -9 of a part of the chart (``operator``, ``planner``, ``nats``); returns its pod's name."""
        pod = self.part(component)
        self.cluster.kill_container(SYSTEM_NAMESPACE, pod)
        return pod

    def part(self, component: str) -> str:
        """The pod of a part of the chart."""
        label = f"{names.COMPONENT_LABEL}={component}"
        listed = self.cluster.kubectl("get", "pods", "-n", SYSTEM_NAMESPACE, "-l", label, "-o", "name")
        return listed.split()[0].removeprefix("pod/")

    def restarts(self, pod: str, namespace: str | None = None) -> int:
        """How often a pod's container was started again."""
        path = "jsonpath={.status.containerStatuses[0].restartCount}"
        return int(self.cluster.kubectl("get", "pod", pod, "-n", namespace or self.namespace, "-o", path))

    async def restarted(self, pod: str, *, since: int, namespace: str | None = None) -> None:
        """Wait until its container was started again: until then the pod's status may still be that of before."""
        await eventually(lambda: self.restarts(pod, namespace) > since, f"{pod} is started again")

    def patient(self) -> Endpoint:
        """The gateway for a client that asks again for an answer that has not begun, as applications do."""
        return Endpoint(self.endpoint.base_url, MODEL_NAME, timeout_seconds=WAIT_SECONDS, retries=10)

    async def at_rest(self) -> ServiceView:
        """Wait until nothing is left of what happened: no work, no mark, no open switch or plan, an empty queue."""

        def holds(view: ServiceView) -> bool:
            return all(
                worker.state is not None
                and worker.state.idle
                and worker.state.phase is WorkerPhase.SERVING
                and worker.state.role is worker.role
                and worker.routable
                and _MARKS.isdisjoint(worker.pod.metadata.annotations)
                for worker in view.workers
            )

        view = await self.until("nothing in flight, queued, leased, draining or switching", holds)
        for kind, phases in (("rsw", SwitchPhase), ("pplan", PlanPhase)):
            found = json.loads(self.kubectl("get", kind, "-o", "json"))["items"]
            open_ones = [item["metadata"]["name"] for item in found if not phases(item["status"]["phase"]).ended]
            assert open_ones == [], f"{kind} not ended"
        assert view.service is not None
        await self._queue_is_empty(view.service.metadata.uid)
        return view

    async def _queue_is_empty(self, uid: str) -> None:
        """Wait until the prefill queue holds nothing; it is asked with the service's own credentials."""
        secret = json.loads(self.kubectl("get", "secret", self.name + names.SECRET_SUFFIX, "-o", "json"))["data"]
        user, password = (
            base64.b64decode(secret[key]).decode() for key in (names.SECRET_NATS_USER, names.SECRET_NATS_PASSWORD)
        )
        url = f"nats://{self.cluster.nats_address}:{names.NATS_PORT}"
        inbox = names.reply_inbox_prefix(self.namespace, uid, "observer")  # the service may listen to no other
        async with await nats.connect(url, user=user, password=password, inbox_prefix=inbox.encode()) as client:
            jetstream, stream = client.jetstream(), names.prefill_stream(self.namespace, uid)

            async def empty() -> bool:
                return (await jetstream.stream_info(stream)).state.messages == 0

            await eventually(empty, "the prefill queue is empty")


@asynccontextmanager
async def served(
    cluster: LocalCluster, model: Path, *, name: str = "chat", namespace: str = "default"
) -> AsyncIterator[Served]:
    """A handle on a service, which may not exist yet."""
    async with (
        await Kube.connect(cluster.kubeconfig, field_manager="pointsman-tests") as kube,
        Observer(kube, namespace, name) as observer,
    ):
        service = Served(cluster, observer, model, name=name, namespace=namespace)
        try:
            yield service
        finally:
            await service.close()


def some(mix: Mix, count: int, *, seed: int) -> list[Prompt]:
    """The first ``count`` prompts of a seed."""
    return list(islice(prompts(mix, seed=seed), count))


def stream_of(tokens: int, index: int) -> Prompt:
    """A short prompt with an answer of exactly ``tokens`` tokens, streamed."""
    return Prompt(index, Api.COMPLETION, True, tokens, text=f"stream {index} ", ignore_eos=True)


def errors(records: list[Record]) -> list[str]:
    """What failed, a line each: an assertion on it shows what happened."""
    return [
        f"prompt {record.prompt.index} ({record.prompt.api}, stream={record.prompt.stream}) at {record.worker}, "
        f"{len(record.token_ids or ())} tokens: {record.error}"
        for record in records
        if not record.served
    ]


def evict(chat: Served, pod: str) -> None:
    """As ``kubectl drain`` does it. Raises ControlPlaneFailed if a disruption budget forbids it."""
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": chat.namespace}}
    path = f"/api/v1/namespaces/{chat.namespace}/pods/{pod}/eviction"
    chat.cluster.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(body))


def may_evict(chat: Served, pod: str) -> bool:
    """Evict a pod; False while its budget, which a controller counts a moment later, does not allow it."""
    try:
        evict(chat, pod)
    except ControlPlaneFailed as error:
        if "disruption budget" not in str(error):
            raise
        return False
    return True


def gateways(chat: Served) -> dict[str, bool]:
    """The gateway pods that there are, and whether each is ready and not being deleted."""
    selector = f"{names.SERVICE_LABEL}={chat.name},{names.COMPONENT_LABEL}={names.COMPONENT_GATEWAY}"
    found = {}
    for pod in json.loads(chat.kubectl("get", "pods", "-l", selector, "-o", "json"))["items"]:
        conditions = {c["type"]: c["status"] for c in pod["status"].get("conditions") or ()}
        deleted = pod["metadata"].get("deletionTimestamp") is not None
        found[pod["metadata"]["name"]] = conditions.get("Ready") == "True" and not deleted
    return found


WHOLE_ANSWERS = Mix(lengths=MIX.lengths, max_tokens=range(16, 65), stream_share=0.0)
ASKED = some(WHOLE_ANSWERS, 116, seed=101)
"""Prompts of the tests that share one reference, each for one test alone: a prompt asked before is cached, and then
computed locally. Asked whole, so that a client may ask again."""


def differences(answers: list[Record], found: list[Record]) -> tuple[Difference, ...]:
    """Where ``found`` (some of ``ASKED``, all served) is not what the reference answered."""
    indices = {record.prompt.index for record in found}
    return compare([record for record in answers if record.prompt.index in indices], found).differences
