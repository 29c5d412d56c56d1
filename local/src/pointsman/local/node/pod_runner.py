"""Runs one pod: init containers, containers, status, and its end."""

import asyncio
import json
import logging
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from pointsman.kube.errors import Conflict, KubeError, NotFound
from pointsman.kube.events import Reference
from pointsman.kube.resources import PODS
from pointsman.local.errors import NodeFailed
from pointsman.local.node.container_keeper import ContainerKeeper
from pointsman.local.node.core.pod_status import pod_status
from pointsman.local.node.core.refusals import refusals, wants_token
from pointsman.local.node.core.types import Finished, Object, PodView, Waiting
from pointsman.local.node.credentials import PodCredentials
from pointsman.local.node.pod_addresses import ADDRESS_ANNOTATION
from pointsman.local.node.racing import cancel, first
from pointsman.local.node.services import Services

log = logging.getLogger(__name__)

_RETRY_S: Final = 1.0
_FORCED_GRACE_S: Final = 1.0  # of a pod that is gone from the API already
_OURS: Final = frozenset({"PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready"})


class PodRunner:
    """One pod of this node. ``run()`` ends when nothing of it is left, here and in the API."""

    def __init__(self, services: Services, pod: Object) -> None:
        self._services = services
        self._pod = pod
        self.uid: Final[str] = pod["metadata"]["uid"]
        self.key: Final = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
        self._directory = pod_directory(services.pods_directory, self.uid)
        self._terminating = asyncio.Event()
        self._gone = asyncio.Event()
        self._changed = asyncio.Event()
        self._out_of_time = asyncio.Event()
        self._kill_at_s: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._written: dict[str, Any] | None = None
        record = self._remembered()
        self._pod_ip: str = record["pod_ip"]
        self._started_at = datetime.fromisoformat(record["started_at"])
        self._credentials = PodCredentials(services.kube, pod, self._directory, services.authority)
        self._init = [self._keeper(spec, init=True) for spec in pod["spec"].get("initContainers") or ()]
        self._containers = [self._keeper(spec, init=False) for spec in pod["spec"]["containers"]]
        self.update(pod)

    # --- told by the node ---

    def update(self, pod: Object) -> None:
        """The pod as it is in the API now."""
        self._pod = pod
        if pod["metadata"].get("deletionTimestamp"):
            self._end_within(pod["metadata"].get("deletionGracePeriodSeconds") or 0)
        self._changed.set()  # a readiness gate may have turned

    def remove(self) -> None:
        """The pod is gone from the API."""
        self._gone.set()
        self._end_within(_FORCED_GRACE_S)

    def log(self, container: str, *, previous: bool) -> Path | None:
        """Log file of a container's current (or previous) run; None if there is none. Raises KeyError for its name."""
        keepers = {keeper.name: keeper for keeper in (*self._init, *self._containers)}
        return keepers[container].log(previous=previous)

    def log_is_over(self, container: str) -> bool:
        """Whether the current run of a container has ended: nothing will be added to its log."""
        keepers = {keeper.name: keeper for keeper in (*self._init, *self._containers)}
        return keepers[container].log_is_over

    # --- its life ---

    async def run(self) -> None:
        """Run it, tell the API how it is, and clean up after it."""
        background = [asyncio.create_task(self._keep_status()), asyncio.create_task(self._stop_in_time())]
        try:
            if not self._was_over():
                await self._live()
            await self._terminating.wait()
        finally:
            for task in background:
                await cancel(task)
        await self._say_goodbye()
        self._services.addresses.give_back(self._pod_ip)
        shutil.rmtree(self._directory, ignore_errors=True)
        log.info("pod gone", extra={"pod": str(self.key)})

    async def _live(self) -> None:
        refused = refusals(self._pod)
        if refused:
            for sentence in refused:
                self._services.events.record(Reference.of(PODS, self._pod), "FailedMount", sentence, warning=True)
            for keeper in (*self._init, *self._containers):
                keeper.announce(Waiting("CreateContainerConfigError", "; ".join(refused)))
            # Not Failed: whoever owns the pod would make another at once, and so on.
            await self._terminating.wait()
            return
        renewing = await self._get_credentials()
        try:
            for keeper in self._init:
                await keeper.keep()
                if not keeper.succeeded:
                    return
            log.info("pod starting", extra={"pod": str(self.key), "address": str(self._pod_ip)})
            await asyncio.gather(*(keeper.keep() for keeper in self._containers))
        finally:
            if renewing is not None:
                await cancel(renewing)

    async def _get_credentials(self) -> "asyncio.Task[None] | None":
        """The pod's own token, as soon as the API server gives one; a task that renews it."""
        specs = [*(self._pod["spec"].get("initContainers") or ()), *self._pod["spec"]["containers"]]
        if not any(wants_token(spec) for spec in specs):
            return None
        due_s = 0.0
        while not self._terminating.is_set():
            try:
                due_s = await self._credentials.refresh()
                break
            except KubeError as error:
                if self._credentials.kubeconfig.exists():
                    due_s = _RETRY_S  # the node was restarted while the API server is away: the old token is good yet
                    break
                for keeper in (*self._init, *self._containers):
                    keeper.announce(Waiting("CreateContainerConfigError", f"no service account token: {error}"))
                await first(self._terminating.wait(), asyncio.sleep(_RETRY_S))
        return asyncio.create_task(self._credentials.keep_fresh(due_s))

    async def _stop_in_time(self) -> None:
        await self._terminating.wait()
        for keeper in (*self._init, *self._containers):
            keeper.stop(self._out_of_time)

    def _end_within(self, grace_s: float) -> None:
        """Begin to end the pod, or shorten what is left."""
        loop = asyncio.get_running_loop()
        kill_at_s = loop.time() + grace_s
        if self._kill_at_s is None or kill_at_s < self._kill_at_s:
            self._kill_at_s = kill_at_s
            if self._timer is not None:
                self._timer.cancel()
            self._timer = loop.call_at(kill_at_s, self._out_of_time.set)
        self._terminating.set()

    async def _say_goodbye(self) -> None:
        """Write the last status and have the API forget the pod, for as long as that takes."""
        while not self._gone.is_set():
            try:
                metadata = self._pod["metadata"]
                if metadata.get("deletionTimestamp"):
                    await self._write_status()
                    await self._services.kube.delete(
                        PODS, metadata["name"], metadata["namespace"], uid=self.uid, grace_period_s=0
                    )
                await self._gone.wait()
            except (NotFound, Conflict):
                return
            except KubeError as error:
                log.warning("end of a pod not reported, trying again", extra={"pod": str(self.key), "why": str(error)})
                await first(self._gone.wait(), asyncio.sleep(_RETRY_S))

    # --- status ---

    async def _keep_status(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._write_status()
            except (NotFound, Conflict):
                continue  # it is gone, or another has its name: the mirror says so in a moment
            except KubeError as error:
                log.warning(
                    "status of a pod not written, trying again", extra={"pod": str(self.key), "why": str(error)}
                )
                self._changed.set()
                await asyncio.sleep(_RETRY_S)

    async def _write_status(self) -> None:
        if self._was_over():
            return
        pod = self._with_our_conditions()
        status = pod_status(pod, self.view(), datetime.now(UTC))
        if status == self._written:
            return
        metadata = {key: pod["metadata"][key] for key in ("name", "namespace", "uid")}
        await self._services.kube.apply(PODS, {"metadata": metadata, "status": status}, subresource="status")
        self._written = status

    def _with_our_conditions(self) -> Object:
        """The pod as read, with the conditions as last written: the reading may lag behind the writing."""
        if self._written is None:
            return self._pod
        read = (self._pod.get("status") or {}).get("conditions") or ()
        conditions = [c for c in read if c["type"] not in _OURS] + self._written["conditions"]
        return {**self._pod, "status": {**(self._pod.get("status") or {}), "conditions": conditions}}

    def view(self) -> PodView:
        """All of it, as the status shows it."""
        return PodView(
            started_at=self._started_at,
            pod_ip=self._pod_ip,
            host_ip=self._services.addresses.host_ip,
            init_containers=[keeper.view() for keeper in self._init],
            containers=[keeper.view() for keeper in self._containers],
            terminating=self._terminating.is_set(),
        )

    def _was_over(self) -> bool:
        """Whether an earlier node ended it: nothing of it is left to run or to tell."""
        phase = (self._pod.get("status") or {}).get("phase")
        views = [keeper.view() for keeper in self._containers]
        return phase in {"Succeeded", "Failed"} and not any(isinstance(view.state, Finished) for view in views)

    # --- within ---

    def _remembered(self) -> dict[str, str]:
        """Address and start, from before a restart of the node or new ones."""
        path = self._directory / "pod.json"
        if path.exists():
            record: dict[str, str] = json.loads(path.read_text())
            if record["uid"] != self.uid:
                raise NodeFailed(f"pod {self.key}: {self._directory} is still pod {record['key']}'s")
            self._services.addresses.keep(record["pod_ip"])
            return record
        self._directory.mkdir(parents=True, mode=0o700)
        record = {
            "uid": self.uid,
            "key": self.key,
            "pod_ip": self._address(),
            "started_at": datetime.now(UTC).replace(microsecond=0).isoformat(),
        }
        partial = path.with_name(".pod.json")
        partial.write_text(json.dumps(record))
        partial.replace(path)
        return record

    def _address(self) -> str:
        wanted = (self._pod["metadata"].get("annotations") or {}).get(ADDRESS_ANNOTATION)
        try:
            return self._services.addresses.take(wanted)
        except NodeFailed as error:
            if wanted is None:
                raise
            self._services.events.record(Reference.of(PODS, self._pod), "AddressRefused", str(error), warning=True)
            return self._services.addresses.take()

    def _keeper(self, spec: Object, *, init: bool) -> ContainerKeeper:
        policy = self._pod["spec"].get("restartPolicy", "Always")
        return ContainerKeeper(
            self._services,
            lambda: self._pod,
            spec,
            self._directory,
            self._pod_ip,
            # An init container that succeeded is done, whatever the pod's policy.
            policy="OnFailure" if init and policy == "Always" else policy,
            kubeconfig=self._credentials.kubeconfig,
            changed=self._changed.set,
        )


def pod_directory(pods: Path, uid: str) -> Path:
    """Where a pod's files lie; short, since Unix sockets in it have paths of at most 107 bytes."""
    return pods / uid[:8]
