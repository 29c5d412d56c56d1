"""A whole cluster on this computer: control plane, process node, the engine's fork server, and Pointsman's own chart.

::

    with LocalCluster() as cluster:
        cluster.install()
        cluster.kubectl("apply", "-f", "examples/quickstart.yaml")

NATS, operator and gateways run as pods of the process node under the chart's own ServiceAccounts; workers are real
engines that a fork server starts. Nothing of Pointsman knows that it runs here: addresses are configuration
(``bindHost``, ``nats.url``), images are names in the node's image store. Everything a cluster writes lies in
``directory``; everything it starts ends with this process, unless it is kept.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from pointsman.api.protocol.names import COMPONENT_GATEWAY, COMPONENT_LABEL, GATEWAY_PORT, NATS_PORT, SERVICE_LABEL
from pointsman.local.binaries import CONTROL_PLANE, ensure_all
from pointsman.local.control_plane import ControlPlane, ControlPlaneOptions
from pointsman.local.engine import fork_client
from pointsman.local.engine.environment import EngineEnvironment, ensure_engine_environment
from pointsman.local.errors import ClusterFailed, ControlPlaneFailed
from pointsman.local.memory import family
from pointsman.local.node.images import Image
from pointsman.local.node.pod_addresses import ADDRESS_ANNOTATION, PodAddresses
from pointsman.local.process_node import ProcessNode
from pointsman.local.processes import Part, ProcessId, recorded
from pointsman.local.prometheus import Prometheus
from pointsman.local.state import (
    claim_state_directory,
    clean_leftovers,
    clusters_directory,
    new_state_directory,
    remove_state_directory,
)

CHART: Final = Path(__file__).parents[4] / "charts" / "pointsman"
SYSTEM_NAMESPACE: Final = "pointsman-system"
RELEASE: Final = "pointsman"
_REGISTRY: Final = "localhost/pointsman"  # of our images in the node's image store: no registry that somebody could own
FORK_SERVER_S: Final = 180.0
_NATS_ADDRESS: Final = 2  # of the pods' range: an address that is known before the pod is there
_INSTALL_S: Final = 120
_HELM_HOMES: Final = ("HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME")
_POLL_S: Final = 0.05


class LocalCluster:
    """One cluster. Its methods block; ``async with`` runs them in a thread.

    ``name``            makes a cluster that can be found again (``keep`` needs one); without it, one for this process
    ``keep``            all of it outlives this process; ``pointsman local down NAME`` ends it
    ``engine``          with the engine's environment and its fork server, so that worker pods can run
    ``images``          with what engines need for images
    ``gpus``            made-up ``nvidia.com/gpu`` capacity
    ``start_seconds``   simulated start-up time of worker pods, as image pull and weight loading take on a real cluster
    ``restart_seconds`` first restart back-off of containers (a kubelet's is 10); doubles
    ``prometheus``      with a real Prometheus that scrapes Pointsman's pods
    ``chart``           folder of the Helm chart
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        keep: bool = False,
        engine: bool = True,
        images: bool = False,
        gpus: int = 8,
        start_seconds: float = 0.0,
        restart_seconds: float = 1.0,
        prometheus: bool = False,
        options: ControlPlaneOptions | None = None,
        chart: Path = CHART,
        report: Callable[[str], None] = print,
    ) -> None:
        if keep and name is None:
            raise ClusterFailed("a cluster with keep needs a name, so that it can be ended later")
        self._environment = ensure_engine_environment(report=report, images=images) if engine else None
        self._name = name
        self._keep = keep
        self._gpus = gpus
        self._start_seconds = start_seconds
        self._restart_seconds = restart_seconds
        self._programs = (*CONTROL_PLANE, "helm", "nats-server", *(("prometheus",) if prometheus else ()))
        self._options = options
        self._chart = chart
        self._report = report
        self._node: ProcessNode | None = None
        self._control_plane: ControlPlane | None = None
        self._fork_server: Part | None = None
        self._prometheus: Prometheus | None = None

    # --- life ---

    def start(self) -> None:
        """Start control plane and node; the fork server imports vLLM meanwhile, and is waited for by ``wait_engine``.

        Leftovers of killed clusters are ended first. Raises LocalError; nothing is left running then.
        """
        for leftover in clean_leftovers():
            self._report(f"ended a process that a killed run had left: {leftover.name}")
        if self._name is None:
            self.directory = new_state_directory("cluster")
        else:
            self.directory = clusters_directory() / self._name
            claim_state_directory(self.directory, keep=self._keep)
        try:
            self.binaries: Mapping[str, Path] = ensure_all(self._programs, self._report)
            if self._environment is not None:
                self._fork_server = self._start_fork_server(self._environment)
            self._control_plane = ControlPlane(
                self.directory, keep=self._keep, options=self._options, report=self._report
            )
            self._control_plane.start()
            if "prometheus" in self._programs:
                self._prometheus = self._start_prometheus()
            self._node = ProcessNode(
                self._control_plane,
                images=self._images(),
                gpus=self._gpus,
                restart_seconds=self._restart_seconds,
                proxy_services=True,
                keep=self._keep,
            )
            self._node.start()
        except BaseException:
            self.stop()
            raise

    def wait_engine(self, timeout_s: float = FORK_SERVER_S) -> None:
        """Wait until worker pods can start. Raises ClusterFailed with the end of the fork server's log."""
        if self._fork_server is None:
            return
        deadline = time.monotonic() + timeout_s
        while not self._fork_server_listens():
            if self._fork_server.exit_code is not None or time.monotonic() > deadline:
                raise ClusterFailed(f"the engine's fork server is not ready:\n{self._fork_server.last_words()}")
            time.sleep(_POLL_S)

    def install(self, values: Mapping[str, Any] | None = None) -> None:
        """Install (or upgrade) the chart with helm, wait until NATS and operator are ready and workers can start.

        ``values`` come on top of those that this computer needs. Raises ClusterFailed with helm's words.
        """
        if not (self._chart / "Chart.yaml").exists():
            raise ClusterFailed(f"there is no Helm chart in {self._chart}: run from a checkout, or give its folder")
        merged = _merged(self.values(), values or {})
        self.helm(
            "upgrade", "--install", RELEASE, str(self._chart), "--create-namespace", "--values", "-", stdin=merged
        )
        # Not helm's --wait: this ends with a sentence that names what is not ready.
        release = f"app.kubernetes.io/instance={RELEASE}"
        workloads = self.kubectl("get", "statefulsets,deployments", "-n", SYSTEM_NAMESPACE, "-l", release, "-o", "name")
        for workload in workloads.split():
            arguments = ("rollout", "status", workload, "-n", SYSTEM_NAMESPACE, f"--timeout={_INSTALL_S}s")
            try:
                self.kubectl(*arguments, timeout_s=_INSTALL_S + 10)
            except ControlPlaneFailed as error:
                raise ClusterFailed(f"{error}\n{self._pods_in_words()}") from error
        self.wait_engine()
        if self._prometheus is not None:
            self._prometheus.wait_ready()

    def values(self) -> dict[str, Any]:
        """Values of the chart for this computer: pods share its network, so each binds to its own address."""
        address = self.nats_address
        return {
            "images": {"registry": _REGISTRY},
            "bindHost": "$(POD_IP)",
            "gateway": {"lingerSeconds": 1},  # the process node sees at once where a Service may send requests
            "nats": {"url": f"nats://{address}:{NATS_PORT}", "podAnnotations": {ADDRESS_ANNOTATION: address}},
        }

    def stop(self) -> None:
        """End everything and remove the directory."""
        if self._node is not None:
            self._node.stop()
        remove_state_directory(self.directory)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._keep or error is not None:
            self.stop()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.__exit__, kind, error, traceback)

    # --- use ---

    @property
    def control_plane(self) -> ControlPlane:
        """The four processes of Kubernetes, to restart, pause or kill one. Raises ClusterFailed before ``start``."""
        if self._control_plane is None:
            raise ClusterFailed("the cluster was not started")
        return self._control_plane

    @property
    def node(self) -> ProcessNode:
        """The process node, to kill it and start it again. Raises ClusterFailed before ``start``."""
        if self._node is None:
            raise ClusterFailed("the cluster was not started")
        return self._node

    @property
    def prometheus(self) -> Prometheus | None:
        """The Prometheus that scrapes Pointsman's pods; None in a cluster without."""
        return self._prometheus

    @property
    def environment(self) -> EngineEnvironment:
        """The engine's environment. Raises ClusterFailed for a cluster without engine."""
        if self._environment is None:
            raise ClusterFailed("this cluster was made without the engine")
        return self._environment

    @property
    def kubeconfig(self) -> Path:
        """Kubeconfig of the administrator."""
        return self.control_plane.kubeconfig

    @property
    def kubectl_path(self) -> Path:
        """The kubectl that fits."""
        return self.control_plane.kubectl_path

    @property
    def fork_socket(self) -> Path:
        """Where the engine's fork server listens."""
        return self.directory / "fork.sock"

    @property
    def nats_address(self) -> str:
        """Address of the NATS pod, however often it is made anew."""
        return PodAddresses(self.node.pods_directory).numbered(_NATS_ADDRESS)

    def gateway_url(self, service: str, namespace: str = "default") -> str | None:
        """OpenAI base URL of a Ready gateway of a service; None while there is none."""
        selector = f"{SERVICE_LABEL}={service},{COMPONENT_LABEL}={COMPONENT_GATEWAY}"
        for pod in json.loads(self.kubectl("get", "pods", "-n", namespace, "-l", selector, "-o", "json"))["items"]:
            conditions = {c["type"]: c["status"] for c in pod["status"].get("conditions") or ()}
            if conditions.get("Ready") == "True" and not pod["metadata"].get("deletionTimestamp"):
                return f"http://{pod['status']['podIP']}:{GATEWAY_PORT}/v1"
        return None

    def service_url(self, service: str, namespace: str = "default") -> str:
        """OpenAI base URL of a service by the Service of its gateways. Raises ControlPlaneFailed if there is none.

        Connections are refused while no gateway takes them, as on a cluster of machines.
        """
        path = "jsonpath={.spec.clusterIP}:{.spec.ports[0].port}"
        return f"http://{self.kubectl('get', 'service', f'{service}-gateway', '-n', namespace, '-o', path)}/v1"

    def kubectl(self, *arguments: str, stdin: str | None = None, timeout_s: float = 60.0) -> str:
        """Run kubectl as administrator; what it printed. Raises ControlPlaneFailed with the refusal."""
        return self.control_plane.kubectl(*arguments, stdin=stdin, timeout_s=timeout_s)

    def helm(self, *arguments: str, stdin: object = None) -> str:
        """Run helm in the chart's namespace; what it printed. ``stdin`` goes to it as JSON.

        Raises ClusterFailed with helm's words if it fails.
        """
        kubeconfig = ["--namespace", SYSTEM_NAMESPACE, "--kubeconfig", str(self.kubeconfig)]
        done = subprocess.run(
            [str(self.binaries["helm"]), *arguments, *kubeconfig],
            input=json.dumps(stdin),
            capture_output=True,
            text=True,
            env=os.environ
            | {f"HELM_{kind}_HOME": str(self.directory / "helm") for kind in ("CACHE", "CONFIG", "DATA")},
            check=False,
        )
        if done.returncode:
            raise ClusterFailed(f"helm {arguments[0]}: {done.stderr.strip()}")
        return done.stdout

    def processes(self) -> set[int]:
        """Everything that runs for this cluster, and the process that asks: whose memory is the cluster's."""
        return family([os.getpid(), *(process.pid for process in recorded(self.directory))])

    def kill_container(self, namespace: str, pod: str) -> None:
        """SIGKILL the processes of a pod's first container, as a crash or the kernel's out-of-memory killer would.

        Raises ClusterFailed if the pod runs nothing.
        """
        found = json.loads(self.kubectl("get", "pod", pod, "-n", namespace, "-o", "json"))
        container = found["spec"]["containers"][0]["name"]
        process = self.node.container_process(found["metadata"]["uid"], container)
        if process is None:
            raise ClusterFailed(f"pod {namespace}/{pod}: its container {container} does not run")
        process.signal(signal.SIGKILL)

    # --- within ---

    def _images(self) -> dict[str, Image]:
        """Ours run from this checkout's environment, workers from the engine's, forked from its fork server."""
        unbuffered = {"PYTHONUNBUFFERED": "1"}  # a pod's log is read while it runs
        ours = Image(path=(Path(sys.executable).parent,), env=unbuffered)
        images = {
            **{f"{_REGISTRY}/{component}": ours for component in ("operator", "planner", "gateway")},
            "nats": Image(path=(self.binaries["nats-server"].parent,)),
        }
        if self._environment is not None:
            client = str(fork_client.__file__)
            images[f"{_REGISTRY}/worker"] = Image(
                path=(self._environment.python.parent,),
                env={**self._environment.own_variables, **unbuffered},
                # Isolated and without site: it needs the standard library only, and there is one for each worker.
                prefix=(sys.executable, "-I", "-S", client, "--socket", str(self.fork_socket), "--"),
                start_seconds=self._start_seconds,
            )
        return images

    def _start_fork_server(self, environment: EngineEnvironment) -> Part:
        module = "pointsman.local.engine.fork_server"
        part = Part(
            "fork server",
            [
                *(str(environment.python), "-m", module, "--socket", str(self.fork_socket), "--stay"),
                *(argument for name in environment.modules for argument in ("--also", name)),
            ],
            self.directory / "logs" / "fork-server.log",
            self.directory / "processes" / "fork-server.pid.json",
            keep=self._keep,
            env=environment.variables() | {"OMP_NUM_THREADS": "1"},
        )
        part.start()
        return part

    def _start_prometheus(self) -> Prometheus:
        record = self.directory / "processes" / "prometheus.pid.json"
        folder = self.directory / "prometheus"
        prometheus = Prometheus(self.binaries["prometheus"], folder, self.kubeconfig, record, keep=self._keep)
        prometheus.start()
        return prometheus

    def _pods_in_words(self) -> str:
        """One line for each pod of the chart: for the person who wonders why the installation does not end."""
        lines = []
        for pod in json.loads(self.kubectl("get", "pods", "-n", SYSTEM_NAMESPACE, "-o", "json"))["items"]:
            statuses = pod["status"].get("containerStatuses") or []
            states = [f"{kind}: {detail}" for status in statuses for kind, detail in status.get("state", {}).items()]
            states += [f"before: {status['lastState']}" for status in statuses if status.get("lastState")]
            lines.append(f"pod {pod['metadata']['name']} is {pod['status'].get('phase')}; {'; '.join(states)}")
        return "\n".join(lines)

    def _fork_server_listens(self) -> bool:
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.connect(str(self.fork_socket))
            return True
        return False


def down(name: str) -> bool:
    """End a named cluster, kept or left behind; False if there is none."""
    directory = clusters_directory() / name
    if not directory.is_dir():
        return False
    remove_state_directory(directory)
    return True


def running() -> dict[str, list[ProcessId]]:
    """The clusters on this computer that have processes, by name."""
    found = {directory.name: recorded(directory) for directory in sorted(clusters_directory().glob("*"))}
    return {name: processes for name, processes in found.items() if processes}


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        inner = merged.get(key)
        merged[key] = _merged(inner, value) if isinstance(inner, dict) and isinstance(value, Mapping) else value
    return merged
