"""The mirror against the real API server, through a network that does its worst."""

import asyncio
import random
from contextlib import suppress
from typing import Any

import pytest

from fixtures.fault_proxy import Cut, EventError, FaultProxy, Refuse, Reply, Request, chaos, healthy
from fixtures.kube_calls import WatchedMirror
from pointsman.kube.client import Kube
from pointsman.kube.errors import NotFound
from pointsman.kube.mirror import Key, Mirror
from pointsman.kube.objects import KubeObject
from pointsman.kube.pods import Pod
from pointsman.kube.resources import CONFIG_MAPS, PODS
from waiting import eventually

DEADLINE_S = 60
SELECTOR = "pointsman.dev/service"  # what the controllers put into a new namespace has no such label


def config_map(name: str, value: int = 0) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": {SELECTOR: "a"}}, "data": {"value": str(value)}}


async def truth(kube: Kube, namespace: str) -> dict[Key, str]:
    listing = await kube.list(CONFIG_MAPS, namespace, label_selector=SELECTOR)
    return {
        (item["metadata"]["namespace"], item["metadata"]["name"]): item["metadata"]["resourceVersion"]
        for item in listing.items
    }


def copy_of(mirror: Mirror[KubeObject]) -> dict[Key, str]:
    return {item.key: item.metadata.resource_version for item in mirror.objects()}


class Following:
    """A mirror of the namespace's ConfigMaps through ``proxy`` that runs as long as the block, and what it told."""

    def __init__(self, proxy: FaultProxy, namespace: str, **options: Any) -> None:
        self.proxy = proxy
        self.namespace = namespace
        self.options = {"silence_s": 0.3, "backoff_first_s": 0.02, "backoff_max_s": 0.3} | options
        self.told: list[tuple[str | None, str | None]] = []
        self.heard: dict[Key, str] = {}

    async def __aenter__(self) -> WatchedMirror[KubeObject]:
        self.kube = await Kube.connect(self.proxy.kubeconfig, request_timeout_s=5)
        mirror = WatchedMirror(
            self.kube,
            CONFIG_MAPS,
            KubeObject,
            namespace=self.namespace,
            label_selector=SELECTOR,
            page_limit=7,
            on_change=self._hear,
            **self.options,
        )
        self.task = asyncio.create_task(mirror.run())
        return mirror

    async def __aexit__(self, *_: object) -> None:
        assert not self.task.done(), "a mirror never ends by itself"
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task
        await self.kube.close()

    def _hear(self, old: KubeObject | None, new: KubeObject | None) -> None:
        item = new or old
        assert item is not None
        assert self.heard.get(item.key) == (old.metadata.resource_version if old else None)
        self.told.append((old.metadata.name if old else None, new.metadata.name if new else None))
        if new is None:
            del self.heard[item.key]
        else:
            self.heard[item.key] = new.metadata.resource_version


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_the_copy_becomes_the_truth_whatever_happens_to_the_way(
    kube: Kube, proxy: FaultProxy, namespace: str, seed: int
) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    proxy.plan = chaos(seed)
    following = Following(proxy, namespace)
    async with following as mirror:
        step = 0
        while step < 300 or mirror.lists < 10:
            step += 1
            name = f"m{rng.randrange(40)}"
            if rng.random() < 0.4:
                with suppress(NotFound):
                    await kube.delete(CONFIG_MAPS, name, namespace)
            else:
                await kube.apply(CONFIG_MAPS, config_map(name, step), namespace)
            if rng.random() < 0.05:
                proxy.cut()
        expected = await truth(kube, namespace)
        proxy.plan = healthy
        proxy.cut()
        async with asyncio.timeout(DEADLINE_S):
            await mirror.until(lambda: copy_of(mirror) == expected)
        assert following.heard == expected


async def test_pods_deleted_while_the_way_was_cut_are_swept_out(kube: Kube, proxy: FaultProxy, namespace: str) -> None:
    for number in range(30):
        await kube.create(CONFIG_MAPS, config_map(f"m{number:02}"), namespace)
    following = Following(proxy, namespace)
    async with following as mirror:
        async with asyncio.timeout(DEADLINE_S):
            await mirror.synced.wait()
        following.told.clear()
        proxy.plan = lambda _: Refuse()
        proxy.cut()
        for number in range(0, 30, 3):
            await kube.delete(CONFIG_MAPS, f"m{number:02}", namespace)
        assert mirror.size == 30
        proxy.plan = healthy
        async with asyncio.timeout(DEADLINE_S):
            await mirror.until(lambda: mirror.size == 20)
        assert sorted(following.told) == [(f"m{number:02}", None) for number in range(0, 30, 3)]
        assert following.heard == await truth(kube, namespace)


@pytest.mark.parametrize("fault", [Reply(410), EventError(0, 410), EventError(0, 500), Reply(500), Reply(429), Cut(0)])
async def test_each_way_a_watch_can_fail_ends_in_a_new_list(
    kube: Kube, proxy: FaultProxy, namespace: str, fault: Any
) -> None:
    faults = iter([fault])

    def fail_the_first_watch(request: Request) -> Any:
        return next(faults, None) if request.watch else None

    proxy.plan = fail_the_first_watch
    async with Following(proxy, namespace, silence_s=DEADLINE_S) as mirror:
        async with asyncio.timeout(DEADLINE_S):
            await mirror.synced.wait()
            await kube.create(CONFIG_MAPS, config_map("a"), namespace)
            await mirror.until(lambda: mirror.get("a", namespace) is not None and mirror.lists == 2)


async def test_a_connection_that_died_in_silence_is_noticed(kube: Kube, proxy: FaultProxy, namespace: str) -> None:
    async with Following(proxy, namespace) as mirror:
        async with asyncio.timeout(DEADLINE_S):
            await mirror.synced.wait()
            proxy.silence()
            await kube.create(CONFIG_MAPS, config_map("a"), namespace)
            await eventually(lambda: mirror.lists > 1, "the watch failed")
            assert mirror.size == 0
            proxy.resume()
            await mirror.until(lambda: mirror.size == 1)


async def test_a_watch_that_ends_in_its_time_is_resumed_without_a_list(
    kube: Kube, proxy: FaultProxy, namespace: str
) -> None:
    async with Following(proxy, namespace, watch_timeout_s=(1, 1), silence_s=30) as mirror:
        async with asyncio.timeout(DEADLINE_S):
            await mirror.synced.wait()
            for number in range(3):
                await proxy.next_request()
                await kube.create(CONFIG_MAPS, config_map(f"m{number}"), namespace)
                await mirror.until(lambda: mirror.size == number + 1)  # noqa: B023 - awaited here
        assert mirror.lists == 1


async def test_pods_are_mirrored_slim_by_owner_and_by_selector(kube: Kube, namespace: str) -> None:
    def pod(name: str, owner: str | None, **labels: str) -> dict[str, Any]:
        metadata: dict[str, Any] = {"name": name, "labels": labels}
        if owner is not None:
            metadata["ownerReferences"] = [
                {"apiVersion": "v1", "kind": "X", "name": owner, "uid": owner, "controller": True}
            ]
        return {"metadata": metadata, "spec": {"containers": [{"name": "c", "image": "i"}]}}

    def owner_uid(item: Pod) -> str | None:
        return item.metadata.controller.uid if item.metadata.controller else None

    mirror = WatchedMirror(kube, PODS, Pod, namespace=namespace, label_selector="app=x", index=owner_uid)
    task = asyncio.create_task(mirror.run())
    try:
        async with asyncio.timeout(DEADLINE_S):
            await mirror.synced.wait()
            for number in range(3):
                await kube.create(PODS, pod(f"p{number}", f"owner-{number % 2}", app="x"), namespace)
            await kube.create(PODS, pod("other", "owner-0", app="y"), namespace)
            status = {"phase": "Running", "podIP": "127.0.0.9", "conditions": [{"type": "Ready", "status": "True"}]}
            await kube.patch(PODS, "p0", namespace, {"status": status}, subresource="status")
            await mirror.until(lambda: mirror.size == 3 and any(item.ready for item in mirror.objects()))
            assert [item.metadata.name for item in mirror.by("owner-0")] == ["p0", "p2"]
            assert mirror.by("owner-0")[0].status.pod_ip == "127.0.0.9"
            # Out of the selector is out of the mirror.
            await kube.patch(PODS, "p2", namespace, {"metadata": {"labels": {"app": "y"}}})
            await mirror.until(lambda: mirror.size == 2)
            await kube.delete(PODS, "p0", namespace, grace_period_s=0)
            await mirror.until(lambda: mirror.by("owner-0") == ())
    finally:
        task.cancel()
