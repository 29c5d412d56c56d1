"""Keeps one container of a pod as its spec says: starts it, probes it, restarts it, ends it."""

import asyncio
import base64
import contextlib
import os
from collections.abc import Callable, Coroutine
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from pointsman.kube.errors import KubeError, NotFound
from pointsman.kube.events import Reference
from pointsman.kube.resources import CONFIG_MAPS, PODS, SECRETS, Resource
from pointsman.local.addresses import listeners_in_the_way
from pointsman.local.errors import ImageStoreFailed
from pointsman.local.node.container_run import CannotStart, Command, ContainerRun
from pointsman.local.node.core.environment import (
    CannotResolve,
    Sources,
    command_line,
    environment,
    expand,
    references,
)
from pointsman.local.node.core.refusals import wants_token
from pointsman.local.node.core.restarts import restart_delay_s, restarts
from pointsman.local.node.core.types import ContainerView, Finished, Object, Running, Waiting
from pointsman.local.node.cpu_limits import GROUP_VARIABLE, CpuGroups, NoCpuLimit, cpu_limit
from pointsman.local.node.images import Image
from pointsman.local.node.prober import Prober
from pointsman.local.node.racing import cancel, first
from pointsman.local.node.services import Services

_RETRY_S: Final = 1.0  # for what may be there in a moment: an image, a Secret, a port
_PRE_STOP_S: Final = 24 * 3600.0  # the grace period ends it
_PASSED_ON: Final = ("LANG", "LC_ALL", "TZ")
_SOCKET_NAME_BYTES: Final = 70  # of 107 a Unix socket's path may have; a uuid must still fit below


class NotYet(Exception):
    """The container cannot be started now; it may be later."""

    def __init__(self, waiting: Waiting) -> None:
        super().__init__(waiting.message)
        self.waiting = waiting


class ContainerKeeper:
    """One container. ``keep()`` runs until it has ended for good or was stopped."""

    def __init__(
        self,
        services: Services,
        pod: Callable[[], Object],
        spec: Object,
        directory: Path,
        pod_ip: str,
        *,
        policy: str,
        kubeconfig: Path,
        changed: Callable[[], None],
    ) -> None:
        """``pod`` gives the newest version of the pod; ``changed`` is called when ``view()`` is a new one."""
        self.name: Final[str] = spec["name"]
        self._services = services
        self._pod = pod
        self._spec = spec
        self._directory = directory / "containers" / self.name
        self._pod_directory = directory
        self._pod_ip = pod_ip
        self._policy = policy
        self._kubeconfig = kubeconfig
        self._changed = changed
        self._state: Running | Waiting | Finished = Waiting("ContainerCreating")
        self._last: Finished | None = None
        self._attempt = max(self._attempts(), default=0)
        self._durations_s: list[float] = []
        self._run: ContainerRun | None = None
        self._env: dict[str, str] = {}
        self._stopping = asyncio.Event()
        self._out_of_time = asyncio.Event()
        self._unhealthy = asyncio.Event()

    # --- what it is ---

    def view(self) -> ContainerView:
        """What the status shows."""
        return ContainerView(
            self.name,
            self._spec["image"],
            f"process-node://{self._spec['image']}",
            self._state,
            self._last,
            self._attempt,
        )

    @property
    def over(self) -> bool:
        """Whether it ended for good."""
        return isinstance(self._state, Finished)

    @property
    def succeeded(self) -> bool:
        """Whether it ended for good with exit code 0."""
        return isinstance(self._state, Finished) and self._state.exit_code == 0

    @property
    def log_is_over(self) -> bool:
        """Whether no run goes on now."""
        return self._run is None

    def log(self, *, previous: bool) -> Path | None:
        """Log file of the current run, or of the one before; None if there is none."""
        attempt = self._attempt - 1 if previous else self._attempt
        if not previous and not (self._directory / str(attempt)).exists():
            attempt -= 1  # between two runs the last one's log is still the one to see
        path = self._directory / str(attempt) / "log"
        return path if path.exists() else None

    # --- its life ---

    async def keep(self) -> None:
        """Start it (or find it running from before the node's restart) and keep it as its restart policy says."""
        run = self._find()
        while run is not None or not self._stopping.is_set():  # what was found running is ended as it should be
            if run is None:
                run = await self._start()
            if run is not None:
                await self._attend(run)
            if not isinstance(self._state, Finished):
                return  # stopped before it could start
            finished = self._state
            run = None
            if self._stopping.is_set() or not restarts(self._policy, finished.exit_code):
                return
            await self._back_off(finished)

    def stop(self, out_of_time: asyncio.Event) -> None:
        """End it: preStop, SIGTERM, and SIGKILL when ``out_of_time`` is set. ``keep`` returns when it is gone."""
        self._out_of_time = out_of_time
        self._stopping.set()

    def announce(self, state: Running | Waiting | Finished) -> None:
        """Show a new state."""
        if state != self._state:
            self._state = state
            self._changed()

    def _attempts(self) -> list[int]:
        """The runs of which something is kept, oldest first."""
        return sorted(int(path.name) for path in self._directory.glob("[0-9]*"))

    def _find(self) -> ContainerRun | None:
        attempts = self._attempts()
        if not attempts:
            return None
        self._attempt = attempts[-1]
        self._durations_s = [0.0] * self._attempt
        if len(attempts) > 1:
            before = ContainerRun.find(self._directory / str(attempts[-2]), attempts[-2])
            self._last = before.finished() if before is not None and before.ended.is_set() else None
        run = ContainerRun.find(self._directory / str(self._attempt), self._attempt)
        if run is None:
            self._attempt += 1  # the node was killed while it started this one
        return run

    async def _start(self) -> ContainerRun | None:
        """Start as soon as that is possible; None if it was stopped meanwhile, or could not be started at all."""
        started_waiting = asyncio.get_running_loop().time()
        simulated = False
        while not self._stopping.is_set():
            try:
                image = self._image()
                if not simulated and image.start_seconds:
                    simulated = True
                    self._show_waiting(
                        Waiting("ContainerCreating", f"simulated start-up time: {image.start_seconds:g} s")
                    )
                    await self._pause(image.start_seconds - (asyncio.get_running_loop().time() - started_waiting))
                    continue
                command = await self._command(image)
                self._ports_free()
                run = await ContainerRun.start(
                    self._directory / str(self._attempt), self._attempt, self._limited(command), self._services.owner
                )
            except NotYet as error:
                self._show_waiting(error.waiting, event=True)
                await self._pause(_RETRY_S)
            except CannotStart as error:
                self._event("Failed", f"Error: {error}", warning=True)
                self._durations_s.append(0.0)
                self.announce(_start_error(str(error)))
                return None
            else:
                self._forget_runs_before(self._attempt - 1)
                self._event("Started", f"Container {self.name} started" + (" again" if self._attempt else ""))
                if run.unlimited:
                    self._not_limited(run.unlimited)
                return run
        return None

    async def _attend(self, run: ContainerRun) -> None:
        """Probe a run until it has ended, end it when told to or when it is unhealthy."""
        self._run = run
        self._unhealthy.clear()
        self.announce(self._running(run))
        async with contextlib.AsyncExitStack() as stack:
            if not run.ended.is_set():
                probing = asyncio.create_task(self._probe(run))
                stack.push_async_callback(cancel, probing)
            await first(run.ended.wait(), self._stopping.wait(), self._unhealthy.wait())
            if not run.ended.is_set():
                await self._end(run)
        self._run = None
        finished = run.finished()
        self._durations_s.append((finished.finished_at - run.started_at).total_seconds())
        self.announce(finished)

    async def _end(self, run: ContainerRun) -> None:
        self._event("Killing", f"Stopping container {self.name}")
        out_of_time = self._out_of_time
        timer: asyncio.TimerHandle | None = None
        if not self._stopping.is_set():
            probe = self._spec.get("livenessProbe") or {}
            grace_s = probe.get("terminationGracePeriodSeconds", self._pod()["spec"]["terminationGracePeriodSeconds"])
            out_of_time = asyncio.Event()
            timer = asyncio.get_running_loop().call_later(grace_s, out_of_time.set)
        hook = (self._spec.get("lifecycle") or {}).get("preStop")
        if hook and not out_of_time.is_set():
            if not self._env and _runs_programs(self._spec):
                await first(self._find_environment(), out_of_time.wait(), run.ended.wait())
            words = await first(self._prober().ask(hook, _PRE_STOP_S), out_of_time.wait(), run.ended.wait())
            if isinstance(words, str):
                self._event("FailedPreStopHook", f"preStop of container {self.name}: {words}", warning=True)
        run.terminate()
        await first(run.ended.wait(), out_of_time.wait())
        run.kill()
        await run.ended.wait()
        if timer is not None:
            timer.cancel()

    async def _back_off(self, finished: Finished) -> None:
        delay_s = restart_delay_s(self._durations_s, self._services.restart_first_s)
        self._last = finished
        if delay_s:
            words = f"back-off {delay_s:g}s restarting failed container={self.name}"
            self._event("BackOff", words, warning=True)
            self.announce(Waiting("CrashLoopBackOff", words))
            await self._pause(delay_s)
        if not self._stopping.is_set():
            self._attempt += 1

    # --- starting ---

    def _image(self) -> Image:
        name = self._spec["image"]
        try:
            image = self._services.images.get(name)
        except ImageStoreFailed as error:
            raise NotYet(Waiting("ImageInspectError", str(error))) from error
        if image is None:
            known = ", ".join(self._services.images.names()) or "none"
            raise NotYet(Waiting("ImagePullBackOff", f'image "{name}" is not in the image store (it has: {known})'))
        return image

    async def _command(self, image: Image) -> Command:
        """Everything resolved. Raises NotYet for what is missing."""
        pod = self._pod()
        try:
            wanted = references(self._spec)
            sources = Sources(
                config_maps={n: d for n in wanted.config_maps if (d := await self._config_map(n)) is not None},
                secrets={n: d for n in wanted.secrets if (d := await self._secret(n)) is not None},
                pod_ip=self._pod_ip,
                host_ip=self._services.addresses.host_ip,
                allocatable=self._services.allocatable,
            )
            base = self._base_environment(image)
            image_env = {name: expand(value, base) for name, value in image.env.items()}
            env = {**base, **image_env, **environment(pod, self._spec, sources)}
        except CannotResolve as error:
            raise NotYet(Waiting("CreateContainerConfigError", str(error))) from error
        except KubeError as error:
            raise NotYet(Waiting("CreateContainerConfigError", f"cannot read a reference of env: {error}")) from error
        argv = [*image.prefix, *command_line(self._spec, image.entrypoint, image.cmd, env)]
        if not argv:
            words = f"neither the pod nor the image {self._spec['image']} has a command"
            raise NotYet(Waiting("CreateContainerError", words))
        cwd = Path(self._spec.get("workingDir") or image.working_dir or self._home())
        if not cwd.is_dir():
            raise NotYet(Waiting("CreateContainerError", f"workingDir {cwd} does not exist"))
        self._env = env
        return Command(argv, env, cwd)

    def _limited(self, command: Command) -> Command:
        """The command in a control group of its own, if the container has a CPU limit and it can be kept here."""
        try:
            cores = cpu_limit(self._spec)
            if cores is None:
                return command
            name = f"{self._pod()['metadata']['uid']}-{self.name}-{self._attempt}"
            group = CpuGroups.find().make(name, cores)
        except (NoCpuLimit, ValueError) as error:
            self._not_limited(str(error))
            return command
        return replace(command, env={**command.env, GROUP_VARIABLE: str(group)}, cpu_group=group)

    def _not_limited(self, why: str) -> None:
        self._event("CpuLimitNotKept", f"limits.cpu of container {self.name} is not kept: {why}", warning=True)

    def _base_environment(self, image: Image) -> dict[str, str]:
        env = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        env["PATH"] = os.pathsep.join([*map(str, image.path), os.environ.get("PATH", os.defpath)])
        env["HOME"] = str(self._home())
        env["HOSTNAME"] = self._pod()["metadata"]["name"]
        scratch = self._pod_directory / "tmp"
        if len(str(scratch)) <= _SOCKET_NAME_BYTES:
            scratch.mkdir(exist_ok=True)
            env["TMPDIR"] = str(scratch)
        if wants_token(self._spec):
            env["KUBECONFIG"] = str(self._kubeconfig)
        return env

    def _home(self) -> Path:
        home = self._pod_directory / "home"
        home.mkdir(exist_ok=True)
        return home

    async def _config_map(self, name: str) -> dict[str, str] | None:
        found = await self._read(CONFIG_MAPS, name)
        return None if found is None else dict(found.get("data") or {})

    async def _secret(self, name: str) -> dict[str, str] | None:
        found = await self._read(SECRETS, name)
        if found is None:
            return None
        data = found.get("data") or {}
        return {key: base64.b64decode(value).decode(errors="replace") for key, value in data.items()}

    async def _read(self, resource: Resource, name: str) -> dict[str, Any] | None:
        try:
            return await self._services.kube.get(resource, name, self._pod()["metadata"]["namespace"])
        except NotFound:
            return None

    def _ports_free(self) -> None:
        ports = {port["containerPort"] for port in self._spec.get("ports") or ()}
        in_the_way = listeners_in_the_way(ports, self._pod_ip) if ports else []
        if in_the_way:
            words = "; ".join(map(str, in_the_way))
            raise NotYet(
                Waiting(
                    "CreateContainerError", f"{words}: the container could not listen there at {self._pod_ip}; end it"
                )
            )

    def _forget_runs_before(self, attempt: int) -> None:
        for path in self._directory.glob("[0-9]*"):
            if int(path.name) < attempt:
                for file in path.iterdir():
                    file.unlink()
                path.rmdir()

    # --- probes ---

    def _running(self, run: ContainerRun) -> Running:
        """A run's first view: what the probes said before the node's restart, else nothing yet."""
        before = {s["name"]: s for s in (self._pod().get("status") or {}).get("containerStatuses") or ()}
        known = before.get(self.name, {})
        same = known.get("containerID") == run.container_id
        started = (same and bool(known.get("started"))) or "startupProbe" not in self._spec
        ready = (same and bool(known.get("ready"))) or (started and "readinessProbe" not in self._spec)
        return Running(run.started_at, run.container_id, started, ready)

    def _prober(self) -> Prober:
        return Prober(self._services.session, self._spec, self._pod_ip, self._env, self._home())

    async def _probe(self, run: ContainerRun) -> None:
        if not self._env and _runs_programs(self._spec):
            await self._find_environment()
        prober = self._prober()
        state = self._state
        if isinstance(state, Running) and not state.started:
            started = asyncio.Event()
            watching = asyncio.create_task(
                prober.watch(self._spec["startupProbe"], lambda ok, words: self._on_startup(run, started, ok, words))
            )
            try:
                await started.wait()
            finally:
                await cancel(watching)
        state = self._state
        ready = isinstance(state, Running) and state.ready
        watches: list[Coroutine[Any, Any, None]] = []
        if "readinessProbe" in self._spec:
            watches.append(
                prober.watch(
                    self._spec["readinessProbe"], lambda ok, words: self._on_readiness(run, ok, words), ready or None
                )
            )
        if "livenessProbe" in self._spec:
            watches.append(prober.watch(self._spec["livenessProbe"], self._on_liveness))
        await asyncio.gather(*watches)

    async def _find_environment(self) -> None:
        """After a restart of the node: what probes and hooks run needs the container's variables again."""
        while True:
            try:
                await self._command(self._image())
            except NotYet:
                await asyncio.sleep(_RETRY_S)
            else:
                return

    def _on_startup(self, run: ContainerRun, started: asyncio.Event, ok: bool, words: str) -> None:
        if ok:
            ready = "readinessProbe" not in self._spec
            self.announce(Running(run.started_at, run.container_id, True, ready))
            started.set()
        else:
            self._event("Unhealthy", f"Startup probe failed: {words}", warning=True)
            self._unhealthy.set()

    def _on_readiness(self, run: ContainerRun, ok: bool, words: str) -> None:
        if not ok:
            self._event("Unhealthy", f"Readiness probe failed: {words}", warning=True)
        self.announce(Running(run.started_at, run.container_id, True, ok))

    def _on_liveness(self, ok: bool, words: str) -> None:
        if not ok:
            self._event("Unhealthy", f"Liveness probe failed: {words}", warning=True)
            self._unhealthy.set()

    # --- small things ---

    def _show_waiting(self, waiting: Waiting, *, event: bool = False) -> None:
        if event and waiting != self._state:
            self._event("Failed", f"{waiting.reason}: {waiting.message}", warning=True)
        self.announce(waiting)

    async def _pause(self, seconds: float) -> None:
        await first(self._stopping.wait(), asyncio.sleep(max(0.0, seconds)))

    def _event(self, reason: str, note: str, *, warning: bool = False) -> None:
        self._services.events.record(Reference.of(PODS, self._pod()), reason, note, warning=warning)


def _runs_programs(spec: Object) -> bool:
    """Whether a probe or hook runs a program in the container."""
    actions = [spec.get(f"{kind}Probe") for kind in ("startup", "readiness", "liveness")]
    actions.append((spec.get("lifecycle") or {}).get("preStop"))
    return any("exec" in action for action in actions if action)


def _start_error(message: str) -> Finished:
    return Finished(128, "StartError", message, None, datetime.now(UTC), "")
