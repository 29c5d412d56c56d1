"""A real Kubernetes control plane as local processes: etcd, kube-apiserver, kube-controller-manager, kube-scheduler.

::

    with ControlPlane.temporary() as control_plane:
        control_plane.kubectl("create", "namespace", "demo")
        control_plane.restart("kube-apiserver")

Ready about four seconds after the start. Nothing listens outside 127.0.0.1, every port is a free one, everything it
writes lies in one directory. Differences from a cluster of machines, all forced by addresses in 127.0.0.0/8, which the
API server refuses in Endpoints and EndpointSlices: the endpoint controllers are off, and so Services lead nowhere.
"""

import base64
import json
import os
import signal
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import yaml

from pointsman.local.addresses import free_port
from pointsman.local.binaries import CONTROL_PLANE, ensure_all
from pointsman.local.certificates import Authority, KeyPair
from pointsman.local.errors import ControlPlaneFailed
from pointsman.local.node.kubelet_api import API_SERVER_USER
from pointsman.local.node.pod_addresses import claim_range
from pointsman.local.processes import Part
from pointsman.local.state import new_state_directory, remove_state_directory

ETCD: Final = "etcd"
APISERVER: Final = "kube-apiserver"
CONTROLLER_MANAGER: Final = "kube-controller-manager"
SCHEDULER: Final = "kube-scheduler"
PARTS: Final = (ETCD, APISERVER, CONTROLLER_MANAGER, SCHEDULER)

HOST: Final = "127.0.0.1"
KUBECONFIG: Final = "admin.kubeconfig"
READY_TIMEOUT_S: Final = 120.0
_ISSUER: Final = "https://kubernetes.default.svc.cluster.local"
_POLL_S: Final = 0.05
_REQUEST_TIMEOUT_S: Final = 5.0
_ENDPOINT_CONTROLLERS_OFF: Final = (
    "--controllers=*,-endpoints-controller,-endpointslice-controller,-endpointslice-mirroring-controller"
)


@dataclass(frozen=True)
class ControlPlaneOptions:
    """What a test may want different.

    ``arguments``  more flags by part, after ours, so that they win
    ``without``    parts that are not started (never etcd or kube-apiserver)
    ``audit``      write one JSON line a request to ``audit.log``: who asked for what
    ``audit_users`` whose requests; empty: everybody's
    """

    arguments: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    without: frozenset[str] = frozenset()
    audit: bool = False
    audit_users: tuple[str, ...] = ()


class ControlPlane:
    """The four processes, their certificates and kubeconfigs, under ``directory``.

    Unless ``keep``, all four end with this process, however it ends.
    """

    def __init__(
        self,
        directory: Path,
        *,
        keep: bool = False,
        options: ControlPlaneOptions | None = None,
        report: Callable[[str], None] = print,
    ) -> None:
        self.directory = directory
        self.options = options or ControlPlaneOptions()
        self._keep = keep
        self._report = report
        self._temporary = False
        self._authority = Authority(directory / "pki")
        self._ports = self._remembered_ports()
        # Addresses of Services are loopback addresses, so that a process node can serve them.
        owner_of_range = directory / "services"
        owner_of_range.mkdir(exist_ok=True, mode=0o700)
        self._service_range = claim_range(owner_of_range)
        self._parts: dict[str, Part] = {}
        self._admin = self._authority.client("admin", "kubernetes-admin", ("system:masters",))

    @classmethod
    def temporary(
        cls, *, options: ControlPlaneOptions | None = None, report: Callable[[str], None] = print
    ) -> "ControlPlane":
        """One in a fresh directory that ``stop`` removes."""
        control_plane = cls(new_state_directory("test"), options=options, report=report)
        control_plane._temporary = True
        return control_plane

    # --- life ---

    def start(self) -> None:
        """Start all parts and wait until the API server serves and the ``default`` service account exists.

        Raises ControlPlaneFailed with the end of the log of the part that failed, NoBinary if one cannot be had.
        """
        binaries = ensure_all(CONTROL_PLANE, self._report)
        self.kubectl_path = binaries["kubectl"]
        arguments = self._arguments()
        for name in PARTS:
            if name not in self.options.without:
                argv = [str(binaries[name]), *arguments[name], *self.options.arguments.get(name, ())]
                log = self.directory / "logs" / f"{name}.log"
                record = self.directory / "processes" / f"{name}.pid.json"
                self._parts[name] = Part(name, argv, log, record, keep=self._keep)
        self.write_kubeconfig(self.kubeconfig, self._admin)
        try:
            for part in self._parts.values():
                part.start()
            self.wait_ready()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End all parts; a temporary one also leaves no files."""
        for name in reversed(PARTS):
            if name in self._parts:
                self._parts[name].kill()  # the state is a file's, and the kernel keeps what was written to it
        if self._temporary:
            remove_state_directory(self.directory)

    def kill(self, name: str) -> None:
        """SIGKILL one part, as a crash would; returns when it is gone."""
        self._part(name).kill()

    def start_part(self, name: str, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Start one part again, on the same ports and data; waits until the API server serves, if all it needs runs."""
        self._part(name).start()
        if all(self._part(needed).exit_code is None for needed in (ETCD, APISERVER)):
            self.wait_ready(timeout_s)

    def restart(self, name: str, timeout_s: float = READY_TIMEOUT_S) -> None:
        """``kill`` and ``start_part``."""
        self.kill(name)
        self.start_part(name, timeout_s)

    def pause(self, name: str) -> None:
        """SIGSTOP one part: connections stay open, nothing is answered. ``resume`` it."""
        os.kill(self._part(name).pid, signal.SIGSTOP)

    def resume(self, name: str) -> None:
        """SIGCONT a paused part."""
        os.kill(self._part(name).pid, signal.SIGCONT)

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until ``/readyz`` says so and pods can be created.

        Controller manager and scheduler give up when the API server is not healthy within 10 s, as on a busy computer:
        until it is, they are started again, as a kubelet does it. Raises ControlPlaneFailed at the deadline, or when a
        part ends.
        """
        paths = ["/readyz"]
        if CONTROLLER_MANAGER in self._parts:
            paths.append("/api/v1/namespaces/default/serviceaccounts/default")
        deadline = time.monotonic() + timeout_s
        for path in paths:
            while not self._answers(path):
                for part in self._parts.values():
                    if part.exit_code is None:
                        continue
                    if path == "/readyz" and part.name in (CONTROLLER_MANAGER, SCHEDULER):
                        part.start()
                    else:
                        raise ControlPlaneFailed(f"{part.name} ended with {part.exit_code}:\n{part.last_words()}")
                if time.monotonic() > deadline:
                    words = self._parts[APISERVER].last_words()
                    raise ControlPlaneFailed(f"{path} was not answered within {timeout_s:.0f} s; {APISERVER}:\n{words}")
                time.sleep(_POLL_S)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    # --- use ---

    @property
    def server(self) -> str:
        """URL of the API server."""
        return f"https://{HOST}:{self._ports[APISERVER]}"

    @property
    def kubeconfig(self) -> Path:
        """Kubeconfig of the administrator (group ``system:masters``)."""
        return self.directory / KUBECONFIG

    @property
    def authority(self) -> Authority:
        """Signs what else takes part: nodes, users."""
        return self._authority

    @property
    def audit_log(self) -> Path:
        """One JSON line a request, if the option is on."""
        return self.directory / "audit.log"

    def log(self, name: str) -> Path:
        """Log file of one part."""
        return self._part(name).log

    def pid(self, name: str) -> int:
        """Process number of one part."""
        return self._part(name).pid

    def kubeconfig_for(self, user: str, groups: tuple[str, ...] = ()) -> Path:
        """A kubeconfig by which the API server knows the bearer as ``user`` in ``groups``; RBAC decides what it may."""
        file_name = user.replace(":", "-").replace("/", "-")
        path = self.directory / f"{file_name}.kubeconfig"
        self.write_kubeconfig(path, self._authority.client(file_name, user, groups))
        return path

    def kubectl(self, *arguments: str, stdin: str | None = None, timeout_s: float = 60.0) -> str:
        """Run kubectl as administrator; what it printed.

        Raises ControlPlaneFailed with what it printed to stderr if it fails.
        """
        done = subprocess.run(
            [str(self.kubectl_path), *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            env=os.environ | {"KUBECONFIG": str(self.kubeconfig), "KUBECACHEDIR": str(self.directory / "kubectl")},
            timeout=timeout_s,
            check=False,
        )
        if done.returncode:
            raise ControlPlaneFailed(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def get(self, kind: str, name: str, namespace: str = "default") -> dict[str, Any]:
        """One object, as kubectl has it."""
        found: dict[str, Any] = json.loads(self.kubectl("get", kind, name, "-n", namespace, "-o", "json"))
        return found

    def apply(self, *objects: Mapping[str, Any], namespace: str = "default") -> None:
        """Apply manifests on the server's side; raises ControlPlaneFailed with the refusal."""
        manifests = yaml.safe_dump_all(objects)
        self.kubectl("apply", "--server-side", "--force-conflicts", "-n", namespace, "-f", "-", stdin=manifests)

    def write_kubeconfig(self, path: Path, identity: KeyPair) -> None:
        """Write a kubeconfig with the authority, certificate and key inside."""
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "pointsman",
            "clusters": [
                {
                    "name": "pointsman",
                    "cluster": {
                        "server": self.server,
                        "certificate-authority-data": _base64(self._authority.files.certificate),
                    },
                }
            ],
            "users": [
                {
                    "name": "user",
                    "user": {
                        "client-certificate-data": _base64(identity.certificate),
                        "client-key-data": _base64(identity.key),
                    },
                }
            ],
            "contexts": [{"name": "pointsman", "context": {"cluster": "pointsman", "user": "user"}}],
        }
        path.touch(mode=0o600)
        path.write_text(yaml.safe_dump(config))

    # --- within ---

    def _part(self, name: str) -> Part:
        if name not in self._parts:
            raise ControlPlaneFailed(f"no part '{name}' runs here (running: {', '.join(self._parts) or 'none'})")
        return self._parts[name]

    def _remembered_ports(self) -> dict[str, int]:
        """The ports of an earlier start in this directory, else new ones: kubeconfigs stay good over a restart."""
        record = self.directory / "ports.json"
        if record.exists():
            ports: dict[str, int] = json.loads(record.read_text())
            return ports
        ports = {}
        for name in (ETCD, "etcd-peer", APISERVER):
            port = free_port()
            while port in ports.values():
                port = free_port()
            ports[name] = port
        record.write_text(json.dumps(ports))
        return ports

    def _answers(self, path: str) -> bool:
        context = ssl.create_default_context(cafile=str(self._authority.files.certificate))
        context.load_cert_chain(self._admin.certificate, self._admin.key)
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        with suppress(OSError), opener.open(self.server + path, timeout=_REQUEST_TIMEOUT_S) as response:
            return bool(response.status == 200)
        return False

    def _arguments(self) -> dict[str, list[str]]:
        etcd_url = f"http://{HOST}:{self._ports[ETCD]}"
        peer_url = f"http://{HOST}:{self._ports['etcd-peer']}"
        ca = self._authority.files
        serving = self._authority.server(
            "kube-apiserver",
            (HOST, "localhost", f"{self._service_range}.1", "kubernetes.default", "kubernetes.default.svc"),
        )
        tokens = self._authority.signing_key("service-accounts")
        kubelet_client = self._authority.client("kubelet-client", API_SERVER_USER)
        audit = []
        if self.options.audit:
            policy = self.directory / "audit-policy.json"
            policy.write_text(json.dumps(_audit_policy(self.options.audit_users)))
            audit = [f"--audit-policy-file={policy}", f"--audit-log-path={self.audit_log}"]
        return {
            ETCD: [
                f"--data-dir={self.directory / 'etcd'}",
                f"--listen-client-urls={etcd_url}",
                f"--advertise-client-urls={etcd_url}",
                f"--listen-peer-urls={peer_url}",
                f"--initial-advertise-peer-urls={peer_url}",
                f"--initial-cluster=default={peer_url}",
                # The computer's crash may cost the state, a process's does not.
                "--unsafe-no-fsync",
                "--log-level=warn",
            ],
            APISERVER: [
                f"--etcd-servers={etcd_url}",
                f"--bind-address={HOST}",
                f"--advertise-address={HOST}",
                f"--secure-port={self._ports[APISERVER]}",
                f"--tls-cert-file={serving.certificate}",
                f"--tls-private-key-file={serving.key}",
                f"--client-ca-file={ca.certificate}",
                f"--kubelet-client-certificate={kubelet_client.certificate}",
                f"--kubelet-client-key={kubelet_client.key}",
                f"--kubelet-certificate-authority={ca.certificate}",
                "--kubelet-preferred-address-types=InternalIP",
                f"--service-account-issuer={_ISSUER}",
                f"--service-account-key-file={tokens.certificate}",
                f"--service-account-signing-key-file={tokens.key}",
                f"--service-cluster-ip-range={self._service_range}.0/24",
                "--authorization-mode=Node,RBAC",
                "--enable-admission-plugins=NodeRestriction",
                "--endpoint-reconciler-type=none",
                "--allow-privileged=true",
                "--profiling=false",
                *audit,
            ],
            CONTROLLER_MANAGER: [
                # One identity for all controllers, not a service account each: saves three seconds at every start.
                f"--kubeconfig={self.kubeconfig}",
                f"--service-account-private-key-file={tokens.key}",
                f"--root-ca-file={ca.certificate}",
                f"--cluster-signing-cert-file={ca.certificate}",
                f"--cluster-signing-key-file={ca.key}",
                "--leader-elect=false",
                "--secure-port=0",
                "--profiling=false",
                _ENDPOINT_CONTROLLERS_OFF,
            ],
            SCHEDULER: [
                f"--kubeconfig={self.kubeconfig_for('system:kube-scheduler')}",
                "--leader-elect=false",
                "--secure-port=0",
                "--profiling=false",
            ],
        }


def _audit_policy(users: tuple[str, ...]) -> dict[str, Any]:
    rules: list[dict[str, Any]] = [{"level": "Metadata"}]
    if users:
        rules = [{"level": "Metadata", "users": [*users]}, {"level": "None"}]
    return {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": rules}


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
