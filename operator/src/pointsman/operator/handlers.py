"""The only file that imports kopf: its settings, the end of the work, and events of our kinds.

An event puts the service's key on the queue, nothing more. ``on.event`` keeps no state on objects and adds no
finalizers, so a restart is the same as a resync. Kinds of which a copy is read are mirrored instead: kopf does not
report what was deleted while its watch was cut (docs/design/0013-kopf-and-kubernetes.md).
"""

import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

import kopf

from pointsman.api.protocol.names import GROUP, VERSION, address_url

Enqueue = Callable[[str, str], None]
StopWork = Callable[[], Awaitable[None]]


def registry(enqueue: Enqueue, enqueue_group: Enqueue, stop_work: StopWork) -> kopf.OperatorRegistry:
    """Handlers in a registry of their own. ``enqueue(namespace, name)`` of a service or a group must not block.

    ``stop_work`` is awaited when kopf ends, whatever ended it.
    """
    handlers = kopf.OperatorRegistry()  # kopf's decorators have no types: hence the ignores

    @kopf.on.startup(registry=handlers)  # type: ignore[untyped-decorator]
    async def started(settings: kopf.OperatorSettings, **_: Any) -> None:
        configure(settings)

    @kopf.on.cleanup(registry=handlers)  # type: ignore[untyped-decorator]
    async def ended(**_: Any) -> None:
        await stop_work()

    @kopf.on.login(registry=handlers)  # type: ignore[untyped-decorator]
    def login(**kwargs: Any) -> Any:
        of_the_pod = kopf.login_with_service_account(**kwargs)
        return at_the_pods_server(of_the_pod, os.environ) or kopf.login_with_kubeconfig(**kwargs)

    @kopf.on.event(GROUP, VERSION, "llmservices", registry=handlers)  # type: ignore[untyped-decorator]
    async def service_changed(namespace: str, name: str, **_: Any) -> None:
        enqueue(namespace, name)

    @kopf.on.event(GROUP, VERSION, "workerpools", registry=handlers)  # type: ignore[untyped-decorator]
    async def pool_changed(namespace: str, spec: Any, **_: Any) -> None:
        service = (spec.get("serviceRef") or {}).get("name")
        if service:
            enqueue(namespace, service)

    seen: dict[str, tuple[int, bool]] = {}

    @kopf.on.event(GROUP, VERSION, "elasticgroups", registry=handlers)  # type: ignore[untyped-decorator]
    async def group_changed(event: Any, namespace: str, name: str, uid: str, meta: Any, **_: Any) -> None:
        # Not for a status: the operator writes what a group computes every few seconds, and would hear of that here.
        now = (meta.get("generation", 0), "deletionTimestamp" in meta)
        if event["type"] == "DELETED":
            seen.pop(uid, None)
        elif seen.get(uid) == now:
            return
        else:
            seen[uid] = now
        enqueue_group(namespace, name)

    return handlers


def at_the_pods_server(found: kopf.ConnectionInfo | None, environment: Mapping[str, str]) -> kopf.ConnectionInfo | None:
    """``found`` with the server that the kubelet names, as every other client has it.

    kopf would ask DNS for kubernetes.default.svc: another server where KUBERNETES_SERVICE_HOST was set by hand, and
    none while the cluster's DNS is down.
    """
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT")
    if found is None or not host or not port:
        return found
    return replace(found, server=address_url("https", host, int(port)))


def configure(settings: kopf.OperatorSettings) -> None:
    """kopf as a watcher: no Events of its own, no peering, no scanning of namespaces and CRDs."""
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.scanning.disabled = True
    settings.watching.server_timeout = 290
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 5
    settings.process.ultimate_exiting_timeout = 25


async def watch(
    enqueue: Enqueue, enqueue_group: Enqueue, stop_work: StopWork, *, namespace: str | None, stop: Any
) -> None:
    """Follow our kinds until ``stop`` (an asyncio.Event) is set, or SIGTERM or SIGINT: kopf takes both over."""
    await kopf.operator(
        registry=registry(enqueue, enqueue_group, stop_work),
        standalone=True,
        clusterwide=namespace is None,
        namespaces=[namespace] if namespace else [],
        stop_flag=stop,
    )
