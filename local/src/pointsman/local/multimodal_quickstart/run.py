"""The stages of the quick start for images, in the order a person sees them."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count, cycle, islice
from pathlib import Path
from typing import Any, Final

import aiohttp
from rich.console import Group
from rich.text import Text

from pointsman.api.protocol.names import Role
from pointsman.kube.client import Kube
from pointsman.kube.errors import KubeError
from pointsman.kube.resources import LLM_SERVICES
from pointsman.local.cluster import LocalCluster
from pointsman.local.engine.environment import ensure_engine_environment
from pointsman.local.engine.models import ModelSize, ensure_model
from pointsman.local.multimodal_quickstart.image_counts import ImageCounts
from pointsman.local.observation import Observer, ServiceView
from pointsman.local.quickstart.examples import read_example, with_model
from pointsman.local.quickstart.interruption import whole
from pointsman.local.quickstart.narrator import Narrator, Picture
from pointsman.local.quickstart.reference import beside_plain_server
from pointsman.local.quickstart.table import TrafficView, line, render
from pointsman.local.quickstart.waiting import wait_until
from pointsman.local.traffic import (
    Endpoint,
    Mix,
    Prompt,
    Record,
    closed_loop,
    prompts,
    recent,
    summarise,
    with_images,
)

EXAMPLE: Final = Path(__file__).parents[5] / "examples" / "multimodal-quickstart.yaml"
NAMESPACE: Final = "default"
STAGES: Final = 8
CHATS: Final = Mix(lengths=(range(8, 100), range(700, 1_500)), max_tokens=range(16, 33), chat_share=1.0)
SMALL, MIDDLE, LARGE = 112, 336, 1_008
"""Sides of images in pixels. The example sends images of more than 224 x 224 pixels to the encode worker."""

ONE_BY_ONE: Final[Sequence[tuple[int, ...]]] = ((), (SMALL,), (MIDDLE,), (LARGE,), (MIDDLE, MIDDLE, SMALL))
MIXED: Final[Sequence[tuple[int, ...]]] = ((), (SMALL,), (MIDDLE,), (MIDDLE, LARGE), (SMALL, SMALL), (LARGE,))
MIXED_REQUESTS: Final = 24
SEEN_REQUESTS: Final = 8
KILLED_REQUESTS: Final = 12
CLIENTS: Final = 3
_READY_S: Final = 180.0
_LOOK_S: Final = 0.3
_WINDOW_S: Final = 10.0


class MultimodalQuickStart:
    """One run. What it found is in the attributes, also when it was interrupted."""

    def __init__(self, narrator: Narrator, *, seed: int, keep: bool) -> None:
        self._narrator = narrator
        self._seed = seed
        self._keep = keep
        self._numbers = count()
        self._records: list[Record] = []
        self._view: ServiceView | None = None
        self.images = ImageCounts()
        self.failures: list[str] = []
        self.compared = self.different = 0
        self.encoder_back_seconds: float | None = None
        self.kubeconfig: Path | None = None
        self.programs: Path | None = None
        self.left_running = False

    async def run(self) -> None:
        """All stages. Raises LocalError where it cannot go on."""
        narrator = self._narrator
        async with narrator.stage("prepare", "Setup of this computer, once: programs, engine, model"):
            environment = await asyncio.to_thread(ensure_engine_environment, report=narrator.say, images=True)
            model = await asyncio.to_thread(ensure_model, environment, ModelSize.VISION, report=narrator.say)
        manifest = with_model(read_example(EXAMPLE), model)
        name = "multimodal" if self._keep else None
        cluster = self._cluster = LocalCluster(name, keep=self._keep, images=True, report=narrator.say)
        started = interrupted = False
        try:
            async with narrator.stage("cluster", "A real control plane, and the chart: operator, planner, NATS"):
                await whole(cluster.start)
                started = True
                self.kubeconfig, self.programs = cluster.kubeconfig, cluster.kubectl_path.parent
                await whole(cluster.install)
            async with (
                await Kube.connect(cluster.kubeconfig, field_manager="pointsman-quickstart") as kube,
                Observer(kube, NAMESPACE, manifest["metadata"]["name"]) as observer,
            ):
                await self._serve(kube, observer, manifest)
            async with narrator.stage("exactness", "The same chats to one plain vLLM server: the same tokens?"):
                await self._exactness(model)
        except asyncio.CancelledError:
            interrupted = True
            raise
        finally:
            self.left_running = started and self._keep and not interrupted
            if started and not self.left_running:
                await whole(cluster.stop)

    async def _serve(self, kube: Kube, observer: Observer, manifest: dict[str, Any]) -> None:
        narrator = self._narrator
        title = f"examples/{EXAMPLE.name}: one encode, one prefill and one decode worker, real vLLM"
        async with narrator.stage("service", title), self._looking(observer):
            narrator.say(f"$ kubectl apply -f examples/{EXAMPLE.name}")
            await kube.apply(LLM_SERVICES, manifest, NAMESPACE)
            view = await self._until_ready(observer)
        assert view.service is not None and view.gateway_url is not None
        narrator.say(f"kubectl get llms: {view.service.status.summary}")
        async with Endpoint(view.gateway_url, manifest["spec"]["model"]["servedName"]) as endpoint:
            async with narrator.stage("one-by-one", "Chats one by one: where are their images encoded?"):
                await self._one_by_one(endpoint)
            mixed = self._chats(islice(cycle(MIXED), MIXED_REQUESTS))
            title = f"{MIXED_REQUESTS} chats with and without images, {CLIENTS} clients"
            async with narrator.stage("mixed", title), self._looking(observer):
                await self._ask(endpoint, mixed, clients=CLIENTS)
            title = f"{SEEN_REQUESTS} other questions about images that were seen before"
            async with narrator.stage("seen", title), self._looking(observer):
                other = self._chats([()] * SEEN_REQUESTS)
                seen = cycle(prompt for prompt in mixed if prompt.images)
                again = [replace(prompt, images=next(seen).images) for prompt in other]
                await self._ask(endpoint, again, clients=CLIENTS)
            title = f"{KILLED_REQUESTS} more, while the encode worker is killed"
            async with narrator.stage("death", title), self._looking(observer):
                await asyncio.gather(
                    self._ask(endpoint, self._chats(islice(cycle(MIXED), KILLED_REQUESTS)), clients=CLIENTS),
                    self._kill(observer),
                )
        self.images = await self._images(endpoint.base_url)
        for path in ("encode", "cache", "bypass"):
            if not self.images.of(path):
                self.failures.append(f"no image went by the path {path!r}: {self.images.in_words}")

    async def _one_by_one(self, endpoint: Endpoint) -> None:
        asked = self._chats(ONE_BY_ONE)
        (question,) = self._chats([()])
        asked.append(replace(question, images=asked[2].images))
        before = await self._images(endpoint.base_url)
        for place, prompt in enumerate(asked):
            await self._ask(endpoint, [prompt], clients=1)
            record, now = self._records[-1], await self._images(endpoint.base_url)
            sides = (*ONE_BY_ONE, ONE_BY_ONE[2])[place]
            what = " and ".join(f"{side} x {side}" for side in sides) or "text only"
            what += ", seen before" if place == len(ONE_BY_ONE) else ""
            self._narrator.say(
                f"{what}: {now.since(before).in_words}; "
                f"{record.prompt_tokens} tokens prefilled {record.path or 'unknown'}, {record.total_seconds:.2f} s"
            )
            before = now

    async def _kill(self, observer: Observer) -> None:
        (worker, *_) = (await observer.look()).routable(Role.ENCODE)
        await asyncio.sleep(0.3)
        self._narrator.say(f"kill -9 {worker.name}")
        await whole(lambda: self._cluster.kill_container(NAMESPACE, worker.name))
        killed_s = time.monotonic()
        await wait_until(
            observer, "the end of the encode worker", lambda view: not view.routable(Role.ENCODE),
            timeout_seconds=_READY_S,
        )  # fmt: skip
        await self._until_ready(observer)
        self.encoder_back_seconds = time.monotonic() - killed_s

    async def _until_ready(self, observer: Observer) -> ServiceView:
        def holds(view: ServiceView) -> bool:
            return view.ready and view.gateway_url is not None and all(view.routable(role) for role in Role)

        return await wait_until(observer, "a Ready service", holds, timeout_seconds=_READY_S)

    def _chats(self, sides: Iterable[tuple[int, ...]]) -> list[Prompt]:
        """The next chats, each with new images of these sides."""
        asked = []
        for each in sides:
            index = next(self._numbers)
            prompt = next(islice(prompts(CHATS, seed=self._seed), index, None))
            asked.append(with_images(prompt, each, seed=self._seed))
        return asked

    async def _ask(self, endpoint: Endpoint, asked: list[Prompt], *, clients: int) -> None:
        records = await closed_loop(endpoint, asked, clients=clients, on_record=self._records.append)
        self.failures += [
            f"chat {record.prompt.index} was not answered: {record.error}" for record in records if not record.served
        ]

    async def _exactness(self, model: Path) -> None:
        found = await beside_plain_server(self._cluster, model, self._records)
        self.compared, self.different = found.compared, len(found.differences)
        self._narrator.say(f"{self.compared - self.different} of {self.compared} answers are token-exact")
        self.failures += [f"chat {each.index}: {each.detail}" for each in found.differences[:3]]

    # --- what is seen ---

    @staticmethod
    async def _images(base_url: str) -> ImageCounts:
        url = base_url.removesuffix("/v1") + "/metrics"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            return ImageCounts.read(await answer.text())

    @asynccontextmanager
    async def _looking(self, observer: Observer) -> AsyncIterator[None]:
        """Keep the live table fresh while the block runs."""

        async def look() -> None:
            while True:
                try:
                    self._view = await observer.look(events=4)
                    if self._view.gateway_url is not None:
                        self.images = await self._images(self._view.gateway_url)
                except (KubeError, aiohttp.ClientError) as error:
                    self._narrator.say(f"the cluster does not answer: {error}")
                await asyncio.sleep(_LOOK_S)

        task = asyncio.create_task(look())
        try:
            async with self._narrator.live(self._picture):
                yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _picture(self) -> Picture:
        lately = recent(self._records, now_s=time.monotonic(), window_seconds=_WINDOW_S)
        traffic = TrafficView(summarise(self._records), summarise(lately), _WINDOW_S) if self._records else None
        images = f"images: {self.images.in_words}"
        table = Group(render(self._view, traffic), Text(images, style="magenta", overflow="ellipsis", no_wrap=True))
        return table, f"{line(self._view, traffic)} | {images}"

    # --- the report ---

    def lines(self) -> list[str]:
        """The report for a person, a finding a line."""
        summary = summarise(self._records)
        found = [
            f"answers        {self.compared - self.different} of {self.compared} have the tokens of one plain server",
            f"requests       {summary.requests} sent, {summary.failed_requests} failed",
            f"images         {self.images.in_words}",
            f"prefill        {summary.remote_prefills} remote, {summary.local_prefills} local",
        ]
        if self.encoder_back_seconds is not None:
            found.append(f"encode worker  back {self.encoder_back_seconds:.1f} s after kill -9")
        return found + [f"FAILED         {failure}" for failure in self.failures]
