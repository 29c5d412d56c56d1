"""A process node beside a control plane, for those who start clusters.

::

    with ControlPlane.temporary() as control_plane, ProcessNode(control_plane, images={"host": Image()}) as node:
        control_plane.apply(pod)
"""

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from pointsman.local.control_plane import ControlPlane
from pointsman.local.errors import NodeFailed
from pointsman.local.node.images import Image, write_images
from pointsman.local.node.pod_addresses import PodAddresses
from pointsman.local.node.pod_runner import pod_directory
from pointsman.local.processes import Part, ProcessId
from pointsman.local.state import end_processes

READY_TIMEOUT_S: Final = 60.0
_POLL_S: Final = 0.05


class ProcessNode:
    """One node as a process of its own; several may join one control plane under different names.

    ``gpus``            made-up ``nvidia.com/gpu`` capacity
    ``restart_seconds`` first restart back-off (a kubelet's is 10); doubles
    ``proxy_services``  serve Services at their cluster IPs, from this node's pods: for the only node of a cluster
    ``keep``            node and pods outlive this process
    """

    def __init__(
        self,
        control_plane: ControlPlane,
        *,
        images: Mapping[str, Image],
        name: str = "local",
        gpus: int = 8,
        restart_seconds: float = 10.0,
        proxy_services: bool = False,
        keep: bool = False,
    ) -> None:
        self.name = name
        self._control_plane = control_plane
        self._images: dict[str, Image] = dict(images)
        self.pods_directory: Final = control_plane.directory / name
        self._images_file = control_plane.directory / f"{name}.images.yaml"
        authority = control_plane.authority
        serving = authority.server(f"{name}-serving", (name, PodAddresses(self.pods_directory).host_ip))
        arguments = {
            "name": name,
            "kubeconfig": control_plane.kubeconfig_for(f"system:node:{name}", ("system:nodes",)),
            "pods-directory": self.pods_directory,
            "images": self._images_file,
            "authority": authority.files.certificate,
            "serving-certificate": serving.certificate,
            "serving-key": serving.key,
            "gpus": gpus,
            "restart-seconds": restart_seconds,
            "proxy-services": proxy_services,
            **({} if keep else {"owner-pid": os.getpid()}),
        }
        argv = [sys.executable, "-m", "pointsman.local.node"]
        argv += [word for key, value in arguments.items() for word in (f"--{key}", str(value))]
        self._part = Part(
            f"node {name}",
            argv,
            control_plane.directory / "logs" / f"node-{name}.log",
            control_plane.directory / "processes" / f"node-{name}.pid.json",
            keep=keep,
        )

    def start(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Start it and wait until the node is Ready. Raises NodeFailed with the end of its log."""
        write_images(self._images_file, self._images)
        self._part.start()
        self.wait_ready(timeout_s)

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until the Node object says Ready. Raises NodeFailed."""
        deadline = time.monotonic() + timeout_s
        path = 'jsonpath={.status.conditions[?(@.type=="Ready")].status}'
        while self._control_plane.kubectl("get", "node", self.name, "--ignore-not-found", "-o", path) != "True":
            if self._part.exit_code is not None or time.monotonic() > deadline:
                raise NodeFailed(f"node {self.name} is not ready:\n{self._part.last_words()}")
            time.sleep(_POLL_S)

    def stop(self) -> None:
        """End the node and all its pods' processes."""
        self._part.stop()
        end_processes(self.pods_directory, grace_s=0.0)

    def kill(self) -> None:
        """SIGKILL the node, as a crash would; its pods run on."""
        self._part.kill()

    def start_again(self) -> None:
        """Start a killed node; it finds its pods. Does not wait."""
        self._part.start()

    def add_image(self, name: str, image: Image) -> None:
        """Put an image into the store of the running node."""
        self._images[name] = image
        write_images(self._images_file, self._images)

    def container_process(self, pod_uid: str, container: str) -> ProcessId | None:
        """The program a container runs now; None if it runs none."""
        runs = pod_directory(self.pods_directory, pod_uid) / "containers" / container
        for record in sorted(runs.glob("*/started.json"), key=lambda path: -int(path.parent.name)):
            process = ProcessId.from_json(json.loads(record.read_text()))
            return process if process.alive else None
        return None

    @property
    def log(self) -> Path:
        """The node's own log."""
        return self._part.log

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
