"""Why copies of plans, switches and policies are mirrors and not kopf's: docs/design/0013-kopf-and-kubernetes.md.

If a newer kopf fails this test, the reason is gone and the copies may become kopf's.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import kopf
import pytest
from aiohttp import web

from pointsman.api.protocol.names import GROUP, VERSION
from pointsman.operator import handlers

PLANS_PATH = f"/apis/{GROUP}/{VERSION}/plans"
GROUPS = ((GROUP, VERSION), ("apiextensions.k8s.io", "v1"))
KINDS = {  # kopf waits for those that it knows itself
    "/api/v1": ("Namespace", "Event"),
    "/apis/apiextensions.k8s.io/v1": ("CustomResourceDefinition",),
    f"/apis/{GROUP}/{VERSION}": ("Plan",),
}


class ApiServer:
    """Lists plans and watches them; whose watch ends with ``error`` when it is set."""

    def __init__(self) -> None:
        self.names = ["a", "b"]
        self.error: int | None = None
        self.end = asyncio.Event()
        self.lists = 0

    def routes(self) -> list[web.RouteDef]:
        paths = ("/api", "/api/v1", "/apis", *(f"/apis/{group}/{version}" for group, version in GROUPS))
        return [*(web.get(path, self._discovery) for path in paths), web.get(PLANS_PATH, self._plans)]

    async def _discovery(self, request: web.Request) -> web.Response:
        groups = [
            {"name": group, "versions": [made := {"groupVersion": f"{group}/{version}", "version": version}],
             "preferredVersion": made}
            for group, version in GROUPS
        ]  # fmt: skip
        verbs = ["get", "list", "watch", "patch"]
        kinds = [
            {"name": kind.lower() + "s", "singularName": kind.lower(), "kind": kind, "namespaced": True, "verbs": verbs}
            for kind in KINDS.get(request.path, ())
        ]
        return web.json_response({"versions": ["v1"], "groups": groups, "resources": kinds})

    async def _plans(self, request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            self.lists += 1
            items = [
                {"metadata": {"name": name, "namespace": "n", "uid": f"u-{name}", "resourceVersion": "5"}}
                for name in self.names
            ]
            return web.json_response({"kind": "PlanList", "metadata": {"resourceVersion": "9"}, "items": items})
        response = web.StreamResponse()
        await response.prepare(request)
        await self.end.wait()
        if self.error is not None:
            status = {"kind": "Status", "code": self.error, "message": "etcd has a new leader"}
            self.end.clear()  # before kopf can watch again
            await response.write(json.dumps({"type": "ERROR", "object": status}).encode() + b"\n")
        return response


@pytest.fixture
async def server() -> AsyncIterator[tuple[ApiServer, str]]:
    made = ApiServer()
    application = web.Application()
    application.add_routes(made.routes())
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    yield made, f"http://{host}:{port}"
    made.end.set()
    await runner.cleanup()


def follow(url: str, stop: asyncio.Event) -> "tuple[dict[str, str], asyncio.Event, asyncio.Task[None]]":
    """A copy that is as good as kopf's events allow, what says that something was told, and kopf."""
    copy: dict[str, str] = {}
    told = asyncio.Event()
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)  # type: ignore[untyped-decorator]
    def login(**_: Any) -> kopf.ConnectionInfo:
        return kopf.ConnectionInfo(server=url)

    @kopf.on.event(GROUP, VERSION, "plans", registry=registry)  # type: ignore[untyped-decorator]
    async def plan_changed(event: Any, name: str, uid: str, **_: Any) -> None:
        if event["type"] == "DELETED":
            copy.pop(name, None)
        else:
            copy[name] = uid
        told.set()

    settings = kopf.OperatorSettings()
    handlers.configure(settings)
    settings.watching.reconnect_backoff = settings.queueing.idle_timeout = settings.queueing.exit_timeout = 0.01
    settings.process.ultimate_exiting_timeout = None  # it would kill this process
    running = kopf.operator(registry=registry, settings=settings, standalone=True, clusterwide=True, stop_flag=stop)
    return copy, told, asyncio.create_task(running)


async def until(told: asyncio.Event, condition: Any) -> None:
    async with asyncio.timeout(60):
        while not condition():
            told.clear()
            await told.wait()


async def test_kopf_does_not_tell_what_was_deleted_while_the_history_expired(server: tuple[ApiServer, str]) -> None:
    api, url = server
    stop = asyncio.Event()
    copy, told, running = follow(url, stop)
    await until(told, lambda: copy.keys() == {"a", "b"})
    api.names, api.error = ["b", "c"], 410  # a was deleted and c created, unseen
    api.end.set()
    await until(told, lambda: "c" in copy)
    assert api.lists == 2
    assert "a" in copy, "kopf told of the deletion: its events are enough for a copy now"
    stop.set()
    await running
