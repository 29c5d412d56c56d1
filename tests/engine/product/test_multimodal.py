"""Images through the whole product: an encode, a prefill and a decode worker answer as one plain server does."""

import asyncio
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import aiohttp
import psutil
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from engine.product.served import MODEL_NAME, Served, errors, some
from pointsman.api.protocol import metrics, names
from pointsman.api.protocol.names import Role
from pointsman.kube.client import Kube
from pointsman.local.cluster import SYSTEM_NAMESPACE, LocalCluster
from pointsman.local.engine.models import ModelSize, ensure_model
from pointsman.local.engine.plain_server import plain_server
from pointsman.local.observation import Observer, ServiceView, WorkerView
from pointsman.local.quickstart.examples import read_example, with_model
from pointsman.local.traffic import Endpoint, Mix, PrefillPath, Prompt, closed_loop, compare, with_images
from waiting import eventually

NAME = "vision"
EXAMPLE = Path(__file__).parents[3] / "examples" / "multimodal-quickstart.yaml"
CHATS = Mix(lengths=(range(8, 100), range(700, 1_500)), max_tokens=range(16, 33), chat_share=1.0, stream_share=0.5)
SMALL, LARGE = 112, 336  # sides in pixels: 16 and 144 estimated tokens; the example's bypass ends at 64
SUCCEEDED, FAILED = {"outcome": "succeeded"}, {"outcome": "failed"}


class Vision(Served):
    """The service of the quick start for images: one encode, one prefill and one decode worker."""

    def apply(self, *, decode: int = 1) -> None:
        """Apply the example with this computer's model."""
        manifest = with_model(read_example(EXAMPLE), self.model)
        manifest["metadata"] = {"name": self.name}
        manifest["spec"]["model"]["servedName"] = MODEL_NAME
        manifest["spec"]["pools"]["decode"]["replicas"] = decode
        self.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(manifest))

    async def restore(self) -> ServiceView:
        """Ready at 1E1P1D, whatever the last test did."""
        if (await self.look()).service is None:
            self.apply()
        else:
            self.scale(Role.ENCODE, 1)
        return await self.ready(encode=1, prefill=1, decode=1)

    async def images(self) -> Counter[str]:
        """Images by the path that the gateway counts."""
        url = self.endpoint.base_url.removesuffix("/v1")
        samples = await samples_of(url, metrics.GATEWAY_IMAGES.name)
        return Counter({path: int(value) for path, value in sum_by(samples, "path").items() if value})

    async def metric(self, name: str, labels: dict[str, str] | None = None, *, roles: tuple[Role, ...]) -> float:
        """Sum over all workers of these roles."""
        workers = [worker for role in roles for worker in (await self.look()).routable(role)]
        found = [await samples_of(url_of(worker), name) for worker in workers]
        wanted = (labels or {}).items()
        return sum(value for samples in found for of, value in samples if wanted <= of.items())

    async def nothing_left(self) -> None:
        """Wait until nothing is in flight and no memory for the transfer of an embedding is in use, on either side."""
        await self.at_rest()

        async def free() -> bool:
            in_use = (metrics.WORKER_EMBEDDING_BYTES, metrics.EMBEDDING_TRANSFER_USED_BLOCKS)
            return not any([await self.metric(each.name, roles=tuple(Role)) for each in in_use])

        await eventually(free, "no byte and no block of an embedding is in use", 60)

    @contextmanager
    def paused(self, worker: WorkerView) -> Iterator[None]:
        """SIGSTOP the engine for the length of the block."""
        engine = engine_of(worker)
        engine.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            engine.send_signal(signal.SIGCONT)

    async def crash(self, worker: WorkerView) -> None:
        """kill -9 of an engine and of all it has started; returns when none of them runs any more."""
        engine = engine_of(worker)
        processes = [engine, *engine.children(recursive=True)]
        self.kill(worker.name)
        await eventually(lambda: not psutil.wait_procs(processes, timeout=0)[1], f"{worker.name} is dead", 60)


def engine_of(worker: WorkerView) -> psutil.Process:
    """The process of its engine's server: that of its container only stands for it here, and dies before it."""
    (pid,) = {
        listening.pid
        for listening in psutil.net_connections("tcp")
        if listening.status == psutil.CONN_LISTEN and listening.laddr == (worker.pod.status.pod_ip, names.ENGINE_PORT)
    }
    return psutil.Process(pid)


def url_of(worker: WorkerView) -> str:
    """Where a worker answers."""
    assert worker.pod.status.pod_ip is not None
    return names.address_url("http", worker.pod.status.pod_ip, names.ENGINE_PORT)


async def samples_of(url: str, name: str) -> list[tuple[dict[str, str], float]]:
    """Labels and values of one metric in the /metrics of a process."""
    async with aiohttp.ClientSession() as session, session.get(url + "/metrics") as answer:
        families = list(text_string_to_metric_families(await answer.text()))
    return [(s.labels, s.value) for family in families for s in family.samples if s.name == name]


def sum_by(samples: list[tuple[dict[str, str], float]], label: str) -> dict[str, float]:
    """Values by that label."""
    found: dict[str, float] = {}
    for labels, value in samples:
        found[labels[label]] = found.get(labels[label], 0) + value
    return found


def chats(sides: list[tuple[int, ...]], *, seed: int) -> list[Prompt]:
    """Chats with images of these sides, of which no two are alike."""
    return [
        with_images(prompt, each, seed=seed)
        for prompt, each in zip(some(CHATS, len(sides), seed=seed), sides, strict=True)
    ]


@pytest.fixture(scope="module")
def vision_model(cluster: LocalCluster) -> Path:
    """The tiny model behind a vision tower."""
    return ensure_model(cluster.environment, ModelSize.VISION)


@pytest.fixture(scope="module")
def vision_url(cluster: LocalCluster, vision_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One plain vLLM server with that model; and in the end the service of this module is deleted."""
    log = tmp_path_factory.mktemp("plain") / "plain.log"
    server = plain_server(
        cluster.environment, cluster.fork_socket, vision_model, served_name="plain", dtype="float32", log=log
    )
    with asyncio.Runner() as runner:
        running = runner.run(server.__aenter__())
        yield running.base_url
        runner.run(server.__aexit__(None, None, None))
        cluster.kubectl("-n", "default", "delete", "llms", NAME, "--ignore-not-found", "--wait=false")
        pods = ("-n", "default", "get", "pods", "-l", f"{names.SERVICE_LABEL}={NAME}", "-o", "name")
        runner.run(eventually(lambda: not cluster.kubectl(*pods), "the service is gone", 90))


@pytest.fixture
async def alone(vision_url: str) -> AsyncIterator[Endpoint]:
    """The plain server."""
    async with Endpoint(vision_url, "plain") as endpoint:
        yield endpoint


@pytest.fixture
async def vision(cluster: LocalCluster, vision_model: Path, vision_url: str) -> AsyncIterator[Vision]:
    """The service, Ready at 1E1P1D."""
    async with (
        await Kube.connect(cluster.kubeconfig, field_manager="pointsman-tests") as kube,
        Observer(kube, "default", NAME) as observer,
    ):
        service = Vision(cluster, observer, vision_model, name=NAME)
        try:
            await service.restore()
            yield service
        finally:
            await service.close()


async def test_chats_with_images_are_answered_as_by_one_plain_server(vision: Vision, alone: Endpoint) -> None:
    header, row = vision.kubectl("get", "llms", NAME).splitlines()
    assert header.split() == ["NAME", "WORKERS", "READY", "REASON", "ENDPOINT", "AGE"]
    assert row.split()[:4] == [NAME, "1E1P1D", "True", "AsDesired"]
    pools = {line.split()[0]: line.split()[1:7] for line in vision.kubectl("get", "wpool").splitlines()}
    assert pools[f"{NAME}-encode"] == [NAME, "Encode", "1", "1", "1", "1"]

    before = await vision.images()
    # An even place has a short text, an odd one a long one, which is prefilled remotely.
    sides = [(LARGE,), (LARGE,), (SMALL,), (SMALL,), (LARGE, SMALL, 2 * LARGE), (LARGE, LARGE), (), ()]
    asked = chats(sides, seed=1)
    answers = await closed_loop(vision.endpoint, asked, clients=3)
    # Images that were encoded before, behind other words.
    later = [replace(other, images=seen.images) for seen, other in zip(asked[:2], chats([(), ()], seed=2), strict=True)]
    later = [replace(prompt, index=len(asked) + number) for number, prompt in enumerate(later)]
    answers += await closed_loop(vision.endpoint, later, clients=1)
    assert errors(answers) == []
    comparison = compare(await closed_loop(alone, [*asked, *later], clients=3), answers)
    assert comparison.exact, comparison.differences
    assert len({record.token_ids for record in answers}) == len(answers), "each answer depends on its images"
    assert {record.prompt.stream for record in answers} == {True, False}
    with_images_by_path = Counter(record.path for record in answers if record.prompt.images)
    assert set(with_images_by_path) == set(PrefillPath), "prompts with images are prefilled remotely and locally"

    assert await vision.images() - before == Counter(encode=7, bypass=2, cache=2)
    fetches, transfers = metrics.WORKER_EMBEDDING_FETCHES.name, metrics.EMBEDDING_TRANSFER_TRANSFERS.name

    async def all_fetched() -> bool:  # an engine reports fetches and transfers with its steps, each in its own way
        fetched = await vision.metric(fetches, SUCCEEDED, roles=names.LANGUAGE_ROLES)
        transferred = await vision.metric(transfers, {"result": "succeeded"}, roles=names.LANGUAGE_ROLES)
        return transferred == fetched >= 7

    await eventually(all_fetched, "the workers that prefill have fetched what the encode worker made")
    assert await vision.metric(metrics.EMBEDDING_TRANSFER_BLOCKS.name, roles=names.LANGUAGE_ROLES) > 0
    await vision.nothing_left()


async def test_images_of_one_chat_go_to_two_encode_workers_and_a_death_costs_no_answer(
    vision: Vision, alone: Endpoint
) -> None:
    vision.scale(Role.ENCODE, 2)
    view = await vision.ready(encode=2, prefill=1, decode=1)
    (many,) = chats([(LARGE,) * 4], seed=3)
    answers = [await vision.endpoint.send(many)]
    for worker in view.routable(Role.ENCODE):

        async def has_encoded(url: str = url_of(worker)) -> bool:
            seconds = await samples_of(url, f"{metrics.WORKER_ENCODE_SECONDS.name}_count")
            return sum(value for _, value in seconds) > 0

        await eventually(has_encoded, f"{worker.name} has encoded some of them")

    # The prefill worker cannot fetch while it is paused, so both encode workers die with embeddings that wait for it.
    _, dying = chats([(LARGE, LARGE), (LARGE, 2 * LARGE)], seed=4)
    dying = replace(dying, index=many.index + 1)
    encoded = (await vision.images())["encode"]
    failed = await vision.metric(metrics.WORKER_EMBEDDING_FETCHES.name, FAILED, roles=names.LANGUAGE_ROLES)
    (prefill,) = view.routable(Role.PREFILL)
    restarts = vision.restarts(prefill.name)
    with vision.paused(prefill):
        answering = asyncio.create_task(vision.endpoint.send(dying))

        async def both_encoded() -> bool:
            return (await vision.images())["encode"] == encoded + len(dying.images)

        await eventually(both_encoded, "the images are encoded")
        for worker in view.routable(Role.ENCODE):
            await vision.crash(worker)
    answers.append(await answering)
    assert errors(answers) == []
    assert vision.restarts(prefill.name) == restarts, "what it counts would begin again"
    comparison = compare(await closed_loop(alone, [many, dying], clients=1), answers)
    assert comparison.exact, comparison.differences
    assert answers[1].path is PrefillPath.REMOTE

    async def both_lost() -> bool:
        await vision.endpoint.send(replace(many, index=many.index + 2))  # an engine reports fetches with its next step
        lost = await vision.metric(metrics.WORKER_EMBEDDING_FETCHES.name, FAILED, roles=names.LANGUAGE_ROLES)
        return lost - failed >= len(dying.images)  # those that ask may find the workers dead, too

    await eventually(both_lost, "both fetches have failed")
    await vision.ready(encode=2, prefill=1, decode=1)
    await vision.nothing_left()


POINTS, EACH, SEED = 30, 6, 20261126
PARTS = ("encode", "prefill", "gateway", "operator")


@pytest.mark.verify
@pytest.mark.verify_multimodal
@pytest.mark.timeout(3600)
async def test_whatever_part_is_killed_every_chat_with_images_is_answered_exactly_and_nothing_leaks(
    vision: Vision, alone: Endpoint, findings: dict[str, object]
) -> None:
    rng = random.Random(SEED)
    sizes = [(SMALL,), (LARGE,), (LARGE, LARGE), (LARGE, SMALL), (2 * LARGE,), ()]
    asked = chats([rng.choice(sizes) for _ in range(POINTS * EACH)], seed=SEED)
    # A client can ask again for an answer that has not begun, so a gateway may die; a stream would break.
    asked = [replace(prompt, stream=False) for prompt in asked]
    killed: list[str] = []
    answers = []
    for point in range(POINTS):
        async with vision.patient() as patient:
            answering = asyncio.create_task(closed_loop(patient, asked[EACH * point : EACH * (point + 1)], clients=3))
            await asyncio.sleep(rng.uniform(0.0, 1.0))
            killed.append(rng.choice(PARTS))
            await kill(vision, killed[-1])
            answers += await answering
        await vision.ready(encode=1, prefill=1, decode=1)
    assert errors(answers) == []
    comparison = compare(await closed_loop(alone, asked, clients=2), answers)
    assert comparison.exact, comparison.differences
    await vision.nothing_left()
    findings.update(
        kills=len(killed), of={part: killed.count(part) for part in PARTS}, answers=comparison.compared,
        different_from_one_server=len(comparison.differences),
        remote_prefills=sum(record.path is PrefillPath.REMOTE for record in answers), seed=SEED,
    )  # fmt: skip


async def kill(vision: Vision, part: str) -> Callable[[], Awaitable[None]]:
    """kill -9 of a part of the service or of the operator; what it returns waits until the pod is ready again."""
    if part == "operator":
        namespace, pod = SYSTEM_NAMESPACE, vision.part(part)
    elif part == "gateway":
        namespace, pod = vision.namespace, (await vision.look()).gateways[0].metadata.name
    else:
        role = Role.from_label(part) or Role.ENCODE
        view = await vision.until(f"a worker serves as {role}", lambda view: len(view.routable(role)) > 0)
        namespace, pod = vision.namespace, view.routable(role)[0].name
    earlier = vision.restarts(pod, namespace)
    vision.cluster.kill_container(namespace, pod)

    async def is_back() -> bool:
        ready = "jsonpath={.status.conditions[?(@.type=='Ready')].status}"
        return vision.restarts(pod, namespace) > earlier and (
            vision.cluster.kubectl("get", "pod", pod, "-n", namespace, "-o", ready) == "True"
        )

    return lambda: eventually(is_back, f"{pod} is ready again", 120)
