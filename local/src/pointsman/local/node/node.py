"""The node: registers, sends heartbeats, and has a runner for each pod that is bound to it."""

import asyncio
import logging
import platform
import shutil
from collections.abc import Mapping
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import aiohttp
from aiohttp import web

from pointsman.kube.client import Kube
from pointsman.kube.errors import AlreadyExists, KubeError
from pointsman.kube.events import EventRecorder
from pointsman.kube.mirror import Mirror
from pointsman.kube.objects import micro_time
from pointsman.kube.resources import LEASES, NODES, PODS
from pointsman.local.binaries import TOOLS
from pointsman.local.node.core.service_endpoints import is_ready
from pointsman.local.node.images import ImageStore
from pointsman.local.node.kubelet_api import kubelet_api, server_tls
from pointsman.local.node.pod_addresses import PodAddresses
from pointsman.local.node.pod_runner import PodRunner, pod_directory
from pointsman.local.node.racing import cancel
from pointsman.local.node.service_proxy import ServiceProxy
from pointsman.local.node.services import Services
from pointsman.local.node.settings import NodeSettings
from pointsman.local.processes import ProcessId
from pointsman.local.state import end_processes

log = logging.getLogger(__name__)

HEARTBEAT_S: Final = 10.0  # the kubelet's
_LEASE_S: Final = 40
_LEASE_NAMESPACE: Final = "kube-node-lease"
_RETRY_S: Final = 0.5


class Node:
    """One process node. ``run()`` until cancelled; the pods' processes stay."""

    def __init__(self, settings: NodeSettings) -> None:
        self._settings = settings
        self._runners: dict[str, PodRunner] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._service_proxy: ServiceProxy | None = None
        self._allocatable = {
            "cpu": str(settings.cpus),
            "memory": settings.memory,
            "pods": str(settings.max_pods),
            "nvidia.com/gpu": str(settings.gpus),
            "ephemeral-storage": "1Ti",
        }

    async def run(self) -> None:
        """Register, find the pods that run from before, and follow the API server until cancelled."""
        settings = self._settings
        async with AsyncExitStack() as stack:
            kube = await stack.enter_async_context(
                await Kube.connect(settings.kubeconfig, field_manager="pointsman-node")
            )
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=5)
            session = await stack.enter_async_context(aiohttp.ClientSession(timeout=timeout, trust_env=False))
            events = EventRecorder(kube, controller="pointsman.dev/process-node", instance=settings.name)
            self._services = Services(
                kube=kube,
                images=ImageStore(settings.images),
                events=events,
                addresses=PodAddresses(settings.pods_directory),
                session=session,
                pods_directory=settings.pods_directory,
                authority=settings.authority,
                owner=ProcessId.of(settings.owner_pid) if settings.owner_pid else None,
                allocatable=self._allocatable,
                restart_first_s=settings.restart_seconds,
            )
            port = await self._serve(stack)
            await self._register(kube, port)
            mirror = Mirror(
                kube,
                PODS,
                dict,
                field_selector=f"spec.nodeName={settings.name}",
                on_change=self._on_change,
                backoff_max_s=2.0,  # the API server is on this computer
            )
            work = [events.run(), self._heartbeat(kube, port), mirror.run(), self._sweep(mirror)]
            if settings.proxy_services:
                self._service_proxy = ServiceProxy(kube, mirror.objects)
                work.append(self._service_proxy.run())
            background = [asyncio.create_task(coroutine) for coroutine in work]
            for task in background:
                stack.push_async_callback(cancel, task)
            log.info("node ready", extra={"node": settings.name, "address": self._services.addresses.host_ip})
            await asyncio.gather(*background)

    # --- pods ---

    def _on_change(self, old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> None:
        pod = new if new is not None else old
        if pod is None:
            return
        if self._service_proxy is not None:
            self._service_proxy.changed()
        uid = pod["metadata"]["uid"]
        runner = self._runners.get(uid)
        if new is None:
            if runner is not None:
                runner.remove()
        elif runner is not None:
            runner.update(new)
        else:
            self._runners[uid] = PodRunner(self._services, new)
            self._tasks[uid] = asyncio.create_task(self._run_pod(self._runners[uid]))

    async def _run_pod(self, runner: PodRunner) -> None:
        try:
            await runner.run()
        except Exception:
            # A bug in one pod's runner must not end the others; the pod shows as it was.
            log.exception("runner of a pod failed", extra={"pod": str(runner.key)})
        finally:
            self._runners.pop(runner.uid, None)
            self._tasks.pop(runner.uid, None)

    async def _sweep(self, mirror: "Mirror[dict[str, Any]]") -> None:
        """End what runs for pods that were deleted while no node was there."""
        await mirror.synced.wait()
        known = {pod_directory(self._settings.pods_directory, uid) for uid in self._runners}
        for directory in set(self._settings.pods_directory.iterdir()) - known:
            await asyncio.to_thread(end_processes, directory, 0.0)
            shutil.rmtree(directory, ignore_errors=True)
            log.info(
                "directory removed of a pod that was deleted while the node was away",
                extra={"directory": directory.name},
            )

    # --- the Node object ---

    async def _register(self, kube: Kube, port: int) -> None:
        while True:
            try:
                await self._write_node(kube, port)
                return
            except KubeError as error:
                log.warning("node not registered, trying again", extra={"node": self._settings.name, "why": str(error)})
                await asyncio.sleep(_RETRY_S)

    async def _write_node(self, kube: Kube, port: int) -> None:
        name = self._settings.name
        labels = {
            "kubernetes.io/hostname": name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64" if platform.machine() == "x86_64" else platform.machine(),
            "node.kubernetes.io/instance-type": "process-node",
        }
        await kube.apply(NODES, {"metadata": {"name": name, "labels": labels}})
        await kube.apply(NODES, {"metadata": {"name": name}, "status": self._node_status(port)}, subresource="status")

    def _node_status(self, port: int) -> dict[str, Any]:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        conditions = [
            ("Ready", "True", "KubeletReady", "the process node is ready"),
            ("MemoryPressure", "False", "KubeletHasSufficientMemory", "the process node does not check this"),
            ("DiskPressure", "False", "KubeletHasNoDiskPressure", "the process node does not check this"),
            ("PIDPressure", "False", "KubeletHasSufficientPID", "the process node does not check this"),
        ]
        return {
            "capacity": self._allocatable,
            "allocatable": self._allocatable,
            "addresses": [
                {"type": "InternalIP", "address": self._services.addresses.host_ip},
                {"type": "Hostname", "address": self._settings.name},
            ],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
            "nodeInfo": {
                "machineID": "",
                "systemUUID": "",
                "bootID": "",
                "kernelVersion": platform.release(),
                "osImage": "this computer",
                "containerRuntimeVersion": "process://1",
                "kubeletVersion": TOOLS["kube-apiserver"].version,
                "kubeProxyVersion": "",
                "operatingSystem": "linux",
                "architecture": "amd64" if platform.machine() == "x86_64" else platform.machine(),
            },
            "conditions": [
                {
                    "type": kind,
                    "status": status,
                    "reason": reason,
                    "message": message,
                    "lastHeartbeatTime": now,
                    "lastTransitionTime": now,
                }
                for kind, status, reason, message in conditions
            ],
        }

    async def _heartbeat(self, kube: Kube, port: int) -> None:
        """Renew the node's Lease; when that fails for longer, the node controller marks the node as lost."""
        name = self._settings.name
        while True:
            spec = {
                "holderIdentity": name,
                "leaseDurationSeconds": _LEASE_S,
                "renewTime": micro_time(datetime.now(UTC)),
            }
            try:
                await kube.apply(LEASES, {"metadata": {"name": name, "namespace": _LEASE_NAMESPACE}, "spec": spec})
                node = await kube.find(NODES, name)
                if node is None or not is_ready(node):
                    await self._write_node(kube, port)  # it was deleted, or marked lost while this node was away
            except (AlreadyExists, KubeError) as error:
                log.warning("heartbeat failed", extra={"node": name, "why": str(error)})
                await asyncio.sleep(_RETRY_S)
                continue
            await asyncio.sleep(HEARTBEAT_S)

    # --- logs ---

    async def _serve(self, stack: AsyncExitStack) -> int:
        """Serve the kubelet's API at the node's address; the port."""
        settings = self._settings
        runner = web.AppRunner(kubelet_api(self._find_log, self._is_over), access_log=None)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        tls = server_tls(settings.serving_certificate, settings.serving_key, settings.authority)
        await web.TCPSite(runner, self._services.addresses.host_ip, 0, ssl_context=tls, shutdown_timeout=0.5).start()
        port: int = runner.addresses[0][1]
        return port

    def _runner(self, namespace: str, pod: str) -> PodRunner:
        for runner in self._runners.values():
            if runner.key == f"{namespace}/{pod}":
                return runner
        raise LookupError(f'pod "{namespace}/{pod}" is not on this node')

    def _find_log(self, namespace: str, pod: str, container: str, previous: bool) -> Path:
        try:
            path = self._runner(namespace, pod).log(container, previous=previous)
        except KeyError as error:
            raise LookupError(f'container "{container}" is not in pod "{pod}"') from error
        if path is None:
            which = "previous terminated container" if previous else "container"
            raise LookupError(f'{which} "{container}" in pod "{pod}" not found')
        return path

    def _is_over(self, namespace: str, pod: str, container: str) -> bool:
        try:
            return self._runner(namespace, pod).log_is_over(container)
        except LookupError:
            return True
