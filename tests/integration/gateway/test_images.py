"""Images of chats: fetched within limits from public addresses, encoded by encode workers.

They are a reason for a 5xx only if they kill workers.
"""

import asyncio
import base64
import hashlib
import json
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from fixtures.gateways import Entry, Gateway, GatewayProcess, connected, gateway_process
from fixtures.images import data_url, gif, jpeg, png, png_header, webp
from integration.gateway import loopback_images_gateway
from integration.gateway.conftest import ROUTING, Room
from integration.gateway.image_server import CAT, ImageServer, image_server
from integration.gateway.stand_in_encoder import StandInEncoder, encoding
from integration.gateway.stand_in_worker import SERVED_NAME, TOKEN, Behaviour, StandInWorker
from pointsman.api.protocol.names import Role
from pointsman.api.v1alpha1.multimodal import multimodal_limit
from pointsman.planner.core.metrics.observe import Reading, Seen, observation
from pointsman.planner.core.metrics.scrape_pair import Page
from pointsman.planner.core.types import EncodeLoad, Objectives, RoutingNumbers, Worker, WorkerCondition
from pointsman.planner.exposition import parse
from waiting import eventually


def big(seed: int) -> str:
    """An image of 484 tokens, more than the bypass."""
    return data_url(png(600, 600, seed=seed))


SECONDS = 5.0  # between two readings of the planner
BIG = big(99)
SMALL = data_url(png(28, 28))
PROGRAM = (str(Path(loopback_images_gateway.__file__)),)
SETTINGS: dict[str, Any] = {
    "router": "round-robin",
    "suspect_seconds": 0,
    "patience_seconds": 30,
    "max_images": 4,
    "max_image_mib": 1,
    "image_fetch_timeout_seconds": 5,  # enough for a busy computer; two requests of these tests wait so long
    "first_token_timeout_seconds": 120,
}


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """One gateway that fetches from 127.0.0.1 too."""
    with gateway_process(tmp_path_factory.mktemp("gateway"), token=TOKEN, program=PROGRAM, **SETTINGS) as running:
        yield running


@dataclass
class Images:
    """A gateway, one decode worker, encode workers and an image server."""

    gateway: Gateway
    worker: StandInWorker
    server: ImageServer
    stack: AsyncExitStack

    async def encoders(self, count: int) -> list[StandInEncoder]:
        """``count`` encode workers that the gateway uses from now on."""
        found = [
            await self.stack.enter_async_context(encoding(StandInEncoder(f"encode-{number}")))
            for number in range(count)
        ]
        await self.use(*found)
        return found

    async def use(self, *encoders: StandInEncoder) -> None:
        """The gateway uses exactly these."""
        entries = [Entry(encoder.name, encoder.url, "Encode") for encoder in encoders]
        self.gateway.write_endpoints([self.worker, *entries], routing=ROUTING)
        await self.gateway.knows(self.worker, *encoders)

    async def ask(self, *images: Any, headers: dict[str, str] | None = None, **more: Any) -> tuple[int, Any]:
        """Status and body of a chat with ``images``: URLs, or parts of a message."""
        parts = [
            image if isinstance(image, dict) else {"type": "image_url", "image_url": {"url": image}} for image in images
        ]
        content = [{"type": "text", "text": "What is this?"}, *parts]
        body = {"model": SERVED_NAME, "max_tokens": 2, "messages": [{"role": "user", "content": content}], **more}
        url = self.gateway.of.url + "/v1/chat/completions"
        async with self.gateway.http.post(url, json=body, headers=headers) as answer:
            return answer.status, await answer.json()

    async def refused(self, *images: Any, **more: Any) -> dict[str, Any]:
        """The error that such a chat gets, which is the client's mistake. No worker sees it."""
        before = len(self.worker.seen)
        status, body = await self.ask(*images, **more)
        assert status == 400, body
        assert body["error"]["type"] == "invalid_request_error"
        assert len(self.worker.seen) == before
        return dict(body["error"])

    async def answered(self, *images: Any, **more: Any) -> dict[str, Any]:
        """What the decode worker got of such a chat, which was answered."""
        status, body = await self.ask(*images, **more)
        assert status == 200, body
        return self.worker.seen[-1].body

    async def page(self) -> Page:
        """The gateway's /metrics, as the planner reads it."""
        async with self.gateway.http.get(self.gateway.of.url + "/metrics") as answer:
            return parse(await answer.text())

    async def encode_load(self, before: Page, workers: int) -> EncodeLoad | None:
        """What the planner makes of the time since ``before``, with so many encode workers."""
        encoders = [
            Seen(Worker(f"e{number}", Role.ENCODE, WorkerCondition.ACTIVE), None, False) for number in range(workers)
        ]
        return observation(
            at_s=0, age_s=0, gateways=[Reading(before, await self.page(), SECONDS)], workers=[],
            routing=RoutingNumbers(512, 32), objectives=Objectives(ttft_ms=1000, tpot_ms=50), plan_in_progress=False,
            encoders=encoders, encode_replicas=workers,
        ).encode  # fmt: skip

    async def count(self, path: str, reason: str) -> float:
        """Images that took ``path``."""
        samples = await self.gateway.metrics()
        return samples.get(f'pointsman_gateway_images_total{{path="{path}",reason="{reason}",service="chat"}}', 0.0)


@asynccontextmanager
async def set_up(room: Room, process: GatewayProcess) -> AsyncIterator[Images]:
    async with AsyncExitStack() as stack:
        (worker,) = await room.workers(1)
        gateway = await stack.enter_async_context(connected(process))
        server = await stack.enter_async_context(image_server())
        made = Images(gateway, worker, server, stack)
        await made.use()
        yield made


@pytest.fixture
async def images(room: Room, process: GatewayProcess) -> AsyncIterator[Images]:
    async with set_up(room, process) as made:
        yield made


def parts_of(body: dict[str, Any]) -> list[dict[str, Any]]:
    return [part for message in body["messages"] for part in message["content"] if part["type"] == "image_url"]


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# --- what reaches a worker ---


async def test_an_image_reaches_the_worker_as_data_under_the_hash_of_its_bytes(images: Images) -> None:
    own = {"type": "image_url", "image_url": {"url": images.server.url + "/cat.png", "detail": "low"}, "uuid": "x"}
    (part,) = parts_of(await images.answered(own))
    url = part.pop("image_url")["url"]
    assert part == {"type": "image_url", "uuid": sha256(CAT)}, "no id of a client is passed on"
    kind, _, data = url.partition(",")
    assert (kind, base64.b64decode(data)) == ("data:image/png;base64", CAT), "typed by its content"


@pytest.mark.parametrize(
    ("data", "kind"),
    [(png(), "image/png"), (jpeg(9, 9), "image/jpeg"), (gif(9, 9), "image/gif"), (webp(9, 9), "image/webp")],
)
async def test_data_urls_are_typed_by_their_content(images: Images, data: bytes, kind: str) -> None:
    (part,) = parts_of(await images.answered(data_url(data, "application/octet-stream")))
    assert part["image_url"]["url"] == data_url(data, kind)
    assert part["uuid"] == sha256(data)


async def test_texts_and_several_images_keep_their_places(images: Images) -> None:
    other = data_url(png(seed=5))
    text = {"type": "text", "text": "and this?"}
    body = await images.answered(SMALL, text, other, SMALL)
    content = body["messages"][0]["content"]
    assert [part["type"] for part in content] == ["text", "image_url", "text", "image_url", "image_url"]
    assert [part["image_url"]["url"] for part in parts_of(body)] == [SMALL, other, SMALL]


async def test_no_client_makes_a_small_image_large(images: Images) -> None:
    """Options of the processor would: its size, the number of its tiles, its least pixels."""
    (encoder,) = await images.encoders(1)
    url = images.server.url + "/cat.png"
    for field, options in (
        ("mm_processor_kwargs", {"size": {"height": 200_000, "width": 200_000}}),
        ("media_io_kwargs", {"image": {"image_mode": "F"}}),
    ):
        error = await images.refused(url, **{field: options})
        assert error["param"] == field
        assert "--trust-request-mm-kwargs" in error["message"]
    assert not encoder.seen and not images.server.requests, "it is refused before anything is fetched or encoded"
    await images.answered(url, mm_processor_kwargs={}, media_io_kwargs=None)


async def test_options_of_trusted_clients_reach_the_encode_worker(
    room: Room, tmp_path_factory: pytest.TempPathFactory
) -> None:
    settings = SETTINGS | {"trust_request_mm_kwargs": True}
    with gateway_process(tmp_path_factory.mktemp("trusting"), token=TOKEN, program=PROGRAM, **settings) as process:
        async with set_up(room, process) as images:
            (encoder,) = await images.encoders(1)
            for more in ({}, {"mm_processor_kwargs": {"max_pixels": 4096}}):
                await images.answered(BIG, **more)
                assert encoder.seen[-1].body.get("mm_processor_kwargs") == more.get("mm_processor_kwargs")
            assert await images.count("cache", "remembered") == 0, "it is another embedding"


async def test_a_url_is_fetched_once_for_a_request(images: Images) -> None:
    url = images.server.url + "/cat.png"
    assert len(parts_of(await images.answered(url, url, url))) == 3
    assert images.server.requests["/cat.png"] == 1


# --- limits ---


async def test_each_limit_is_named_with_the_field_that_moves_it(images: Images) -> None:
    server = images.server.url
    for setting, url in (
        ("max_image_mib", f"{server}/endless"),
        ("max_image_mib", f"{server}/announced"),
        ("max_image_mib", data_url(bytes(2**20 + 1))),
        ("max_image_megapixels", f"{server}/bomb"),
        ("max_image_megapixels", f"{server}/claim"),
        ("max_image_megapixels", data_url(png_header(64_000, 1001))),
        ("image_fetch_timeout_seconds", f"{server}/drip"),
        ("image_fetch_timeout_seconds", f"{server}/silent"),
        ("image_max_redirects", f"{server}/again/9"),
    ):
        error = await images.refused(url)
        assert multimodal_limit(setting) in error["message"], url
        assert error["param"] == "messages[0].content[1].image_url"
    assert multimodal_limit("max_images") in (await images.refused(*[SMALL] * 5))["message"]


async def test_an_endless_answer_is_read_to_the_limit_only(images: Images) -> None:
    await images.refused(images.server.url + "/endless")
    async with asyncio.timeout(30):
        await images.server.left.wait()
    assert images.server.sent_bytes < 16 * 2**20, "what the kernel's buffers took beyond the limit of 1 MiB"


async def test_three_redirects_are_followed(images: Images) -> None:
    (part,) = parts_of(await images.answered(images.server.url + "/again/2"))
    assert part["uuid"] == sha256(CAT)


async def test_what_is_no_image_is_refused_without_showing_it(images: Images) -> None:
    for url in (images.server.url + "/page", images.server.url + "/page?status=500", images.server.url + "/nothing"):
        assert "secret" not in json.dumps(await images.refused(url))
    for url in ("data:image/png;base64,###", "data:image/png,AAAA", "data:image/png;base64,AAAA", "data:,"):
        await images.refused(url)


async def test_other_media_are_refused_by_name(images: Images) -> None:
    for kind in ("video_url", "audio_url"):
        assert kind in (await images.refused({"type": kind, kind: {"url": images.server.url}}))["message"]
    assert "input_audio" in (await images.refused({"type": "input_audio", "input_audio": {"data": ""}}))["message"]
    assert not images.server.requests


# --- addresses ---


async def test_addresses_that_are_not_public_are_not_connected_to(images: Images) -> None:
    async with image_server("127.0.0.2") as inside:
        port = inside.url.rpartition(":")[2]
        for host in ("127.0.0.2", "0x7f000002", "[::ffff:127.0.0.2]", "[::ffff:7f00:2]", "[::1]", "169.254.169.254",
                     "10.0.0.1", "0.0.0.0", "[fe80::1%25lo]", "[64:ff9b::7f00:2]"):  # fmt: skip
            target = f"http://{host}:{port}/cat.png"
            assert "public address" in (await images.refused(target))["message"], target
            for status in (301, 302, 303, 307, 308):
                error = await images.refused(f"{images.server.url}/to?status={status}&url={quote(target)}")
                assert "public address" in error["message"], target
        for host in ("127.2", "2130706434", "0177.0.0.2"):
            await images.refused(f"http://{host}:{port}/cat.png")
        assert not inside.requests, "nothing was connected to"


async def test_an_unknown_host_reads_like_one_inside(images: Images) -> None:
    unknown = await images.refused("http://no-such-host.invalid/cat.png")
    inside = await images.refused("http://127.0.0.2/cat.png")
    assert unknown == inside


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.com/cat.png", "file:///etc/passwd", "/cat.png", "cat.png", "http://", "http:///cat.png", "//h/c",
        "http://user:password@example.com/cat.png", "http://example.com:99999/", "http://[::1/", "gopher://h", "\u0000",
        "https://" + "a" * 9000, "http://exa mple.com/", "javascript:alert(1)", "blob:x", "unix:///var/run/x.sock",
    ],
)  # fmt: skip
async def test_what_is_no_address_of_an_image_is_the_clients_mistake(images: Images, url: str) -> None:
    message = (await images.refused(url))["message"]
    if ":/" in url and not url.startswith("http"):
        assert "must begin with http:// or https:// and have a host" in message


async def test_a_redirect_to_another_scheme_is_refused(images: Images) -> None:
    for target in ("file:///etc/passwd", "ftp://127.0.0.1/", "data:image/png;base64,AAAA"):
        await images.refused(f"{images.server.url}/to?url={target}")


@pytest.fixture(scope="module")
def strict_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """One with a list of hosts, small bodies and little memory."""
    program = (str(Path(loopback_images_gateway.__file__)),)
    more: dict[str, Any] = {
        "image_allowed_domains": json.dumps(["127.0.0.1", "127.0.0.2"]),
        "max_body_mib": 1,
        "max_in_flight_mib": 1,
    }
    folder = tmp_path_factory.mktemp("strict gateway")
    with gateway_process(folder, token=TOKEN, program=program, **SETTINGS, **more) as running:
        yield running


async def test_fetched_images_count_towards_the_memory_for_bodies(room: Room, strict_process: GatewayProcess) -> None:
    async with set_up(room, strict_process) as images:
        gate = asyncio.Event()
        images.worker.behaviours.extend(Behaviour(tokens=1, gate=gate) for _ in range(2))
        asking = [asyncio.create_task(images.ask(f"{images.server.url}/image/{seed}")) for seed in range(2)]
        await eventually(lambda: len(images.worker.seen) == 2, "two requests hold their images")
        status, body = await images.ask(images.server.url + "/image/3")
        assert status == 429 and "spec.gateway.limits.maxInFlightMiB" in body["error"]["message"]
        gate.set()
        assert [status for status, _ in await asyncio.gather(*asking)] == [200, 200]
        await images.answered(images.server.url + "/image/3")


async def test_a_fetched_image_counts_as_often_as_it_occurs(room: Room, strict_process: GatewayProcess) -> None:
    async with set_up(room, strict_process) as images:
        gate = asyncio.Event()
        images.worker.behaviours.append(Behaviour(tokens=1, gate=gate))
        asking = asyncio.create_task(images.ask(images.server.url + "/image/1"))
        await eventually(lambda: len(images.worker.seen) == 1, "a request holds an image")
        url = images.server.url + "/image/2"
        status, body = await images.ask(url, url)
        assert status == 429 and "spec.gateway.limits.maxInFlightMiB" in body["error"]["message"]
        gate.set()
        assert (await asking)[0] == 200
        await images.answered(url, url)


async def test_a_body_that_its_images_make_larger_than_the_limit_is_refused(
    room: Room, strict_process: GatewayProcess
) -> None:
    async with set_up(room, strict_process) as images:
        server = images.server.url
        for same_or_not in ([f"{server}/image/1"] * 4, [f"{server}/image/{seed}" for seed in range(4)]):
            error = await images.refused(*same_or_not)
            assert "spec.gateway.limits.maxBodyMiB" in error["message"]
            assert (error["param"], error["code"]) == ("messages", "invalid_image")


async def test_a_list_of_hosts_holds_for_redirects_and_lifts_no_rule(
    room: Room, strict_process: GatewayProcess
) -> None:
    async with set_up(room, strict_process) as images:
        port = images.server.url.rpartition(":")[2]
        await images.answered(images.server.url + "/cat.png")
        error = await images.refused(f"http://localhost:{port}/cat.png")
        assert multimodal_limit("image_allowed_domains") in error["message"]
        error = await images.refused(f"{images.server.url}/to?url=http://localhost:{port}/cat.png")
        assert multimodal_limit("image_allowed_domains") in error["message"]
        assert "public address" in (await images.refused(f"http://127.0.0.2:{port}/cat.png"))["message"]


# --- encode workers ---


async def test_images_are_spread_over_encode_workers_and_their_embeddings_sent_along(images: Images) -> None:
    encoders = await images.encoders(2)
    before = await images.count("encode", "encoded")
    urls = [f"{images.server.url}/image/{seed}" for seed in range(4)]
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    body = await images.answered(*urls, headers={"traceparent": trace})
    ids = {part["uuid"] for part in parts_of(body)}
    assert set(body["ec_transfer_params"]) == ids and len(ids) == 4
    assert sorted(image for encoder in encoders for image in encoder.images) == sorted(ids)
    assert all(encoder.images for encoder in encoders), "both have some"
    assert await images.count("encode", "encoded") == before + 4
    sent = encoders[0].seen[0].body
    assert (sent["max_tokens"], sent["model"]) == (1, SERVED_NAME)
    assert {seen.headers["traceparent"] for encoder in encoders for seen in encoder.seen} == {trace}
    report = await images.gateway.report()
    assert {entry["inFlight"] for entry in report["endpoints"]} == {0}


async def test_the_embedding_of_an_image_is_used_again(images: Images) -> None:
    encoders = await images.encoders(3)
    before = await images.count("cache", "remembered")
    bodies = [await images.answered(BIG) for _ in range(3)]
    assert sorted(len(encoder.images) for encoder in encoders) == [0, 0, 1]
    assert await images.count("cache", "remembered") == before + 2
    assert bodies[0]["ec_transfer_params"] == bodies[1]["ec_transfer_params"] == bodies[2]["ec_transfer_params"]


async def test_the_embeddings_of_a_worker_that_left_are_not_used(images: Images) -> None:
    encoders = await images.encoders(2)
    (first,) = (await images.answered(BIG))["ec_transfer_params"].values()
    await images.use(*[encoder for encoder in encoders if encoder.name != first["address"]])
    (second,) = (await images.answered(BIG))["ec_transfer_params"].values()
    assert {first["address"], second["address"]} == {"encode-0", "encode-1"}


async def test_an_image_that_occurs_twice_is_encoded_once(images: Images) -> None:
    (encoder,) = await images.encoders(1)
    await images.answered(BIG, BIG, big(10))
    assert len(encoder.images) == 2


async def test_small_images_are_encoded_where_the_prompt_is_prefilled(images: Images) -> None:
    (encoder,) = await images.encoders(1)
    before = await images.count("bypass", "small")
    assert "ec_transfer_params" not in await images.answered(SMALL, data_url(png(seed=3)))
    assert not encoder.images
    assert await images.count("bypass", "small") == before + 2


async def test_without_encode_workers_images_are_encoded_where_the_prompt_is_prefilled(images: Images) -> None:
    before = await images.count("local", "no-encode-worker")
    assert "ec_transfer_params" not in await images.answered(BIG)
    assert await images.count("local", "no-encode-worker") == before + 1


async def test_images_for_a_worker_older_than_the_encode_workers_are_counted_and_not_encoded_twice(
    images: Images, room: Room
) -> None:
    (encoder,) = await images.encoders(1)
    old, new = [Entry(worker.name, worker.url, ignores_embeddings=old)
                for worker, old in zip(await room.workers(2), (True, False), strict=True)]  # fmt: skip
    entries = [old, Entry(encoder.name, encoder.url, "Encode")]
    images.gateway.write_endpoints(entries, routing=ROUTING)
    await images.gateway.knows(*entries)
    before = await images.count("local", "outdated-worker")
    small = await images.count("bypass", "small")
    for asked in ((BIG, big(70)), (SMALL,)):
        assert (await images.ask(*asked))[0] == 200
    assert not encoder.seen
    assert await images.count("local", "outdated-worker") == before + 2
    assert await images.count("bypass", "small") == small + 1
    images.gateway.write_endpoints([new, *entries[1:]], routing=ROUTING)
    await images.gateway.knows(new, *entries[1:])
    assert (await images.ask(BIG))[0] == 200
    assert len(encoder.images) == 1, "once it is replaced"


async def test_the_planner_reads_from_the_gateway_what_came_for_encode_workers(images: Images) -> None:
    (encoder,) = await images.encoders(1)
    before = await images.page()
    for asked in ((big(80), big(81), big(82), big(80)), (big(83),), (SMALL,)):
        await images.answered(*asked)
    found = await images.encode_load(before, workers=1)
    assert found is not None
    assert (found.requests_per_s, found.images, found.squared_images) == (2 / SECONDS, 2, 5)
    assert found.waiting == 0
    encoder.behaviours.extend(Behaviour(gate=asyncio.Event()) for _ in range(3))
    asking = asyncio.create_task(images.ask(big(84), big(85), big(86)))

    async def waiting() -> bool:
        load = await images.encode_load(before, workers=1)
        return load is not None and load.waiting == 2

    await eventually(waiting, "of three images, two wait")
    asking.cancel()


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        (Behaviour(status=503, retry="draining"), "refused"),
        (Behaviour(status=500), "http-500"),
        (Behaviour(status=429), "http-429"),
    ],
)
async def test_an_encode_worker_that_fails_is_replaced_by_another(
    images: Images, behaviour: Behaviour, reason: str
) -> None:
    encoders = await images.encoders(2)
    for encoder in encoders:
        encoder.behaviours.append(behaviour)
    assert "ec_transfer_params" not in await images.answered(big(0)), "both failed"
    assert await images.count("local", reason) >= 1
    encoders[0].behaviours.append(behaviour)
    for seed in range(1, 30):
        assert len((await images.answered(big(seed)))["ec_transfer_params"]) == 1
        if not encoders[0].behaviours:
            break
    assert not encoders[0].behaviours, "one was sent to the other worker"


DEATHS = pytest.mark.parametrize(
    "death",
    [Behaviour(cut=True), Behaviour(status=500, body={"error": {"message": "EngineCore encountered an issue"}})],
    ids=["process", "engine"],
)


@DEATHS
async def test_an_image_that_kills_encode_workers_kills_two_and_no_worker_that_prefills(
    images: Images, death: Behaviour
) -> None:
    encoders = await images.encoders(4)
    for encoder in encoders:
        encoder.behaviours.append(death)
    status, body = await images.ask(big(60))
    assert (status, body["error"]["code"]) == (502, "workers_died")
    killed = [encoder.name for encoder in encoders if encoder.seen]
    assert len(killed) == 2 and all(name in body["error"]["message"] for name in killed)
    assert not images.worker.seen


@DEATHS
async def test_one_death_of_an_encode_worker_costs_no_request(images: Images, death: Behaviour) -> None:
    encoders = await images.encoders(1)
    encoders[0].behaviours.append(death)
    assert "ec_transfer_params" not in await images.answered(big(61))
    assert images.worker.seen[-1].headers["X-Pointsman-Deaths"] == "1", "of those that the request may cause"


async def test_the_deaths_of_encode_workers_and_of_those_that_answer_are_counted_together(images: Images) -> None:
    (encoder,) = await images.encoders(1)
    encoder.behaviours.append(Behaviour(cut=True))
    images.worker.behaviours.extend(Behaviour(cut=True) for _ in range(2))
    status, body = await images.ask(big(62))
    assert (status, body["error"]["code"]) == (502, "workers_died")
    assert len(images.worker.seen) == 1


async def test_an_image_that_an_encoder_refuses_is_not_sent_to_another(images: Images) -> None:
    encoders = await images.encoders(2)
    for encoder in encoders:
        encoder.behaviours.append(Behaviour(status=400))
    assert "ec_transfer_params" not in await images.answered(BIG)
    assert sum(len(encoder.images) for encoder in encoders) == 1


async def test_an_answer_without_embeddings_is_no_answer(images: Images) -> None:
    (encoder,) = await images.encoders(1)
    answers: list[Any] = [
        {},
        [1],
        *({"ec_transfer_params": wrong} for wrong in ({}, {"a": 1}, {"a": {"x": "y" * 300_000}})),
    ]
    for wrong in answers:
        encoder.answer = wrong
        assert "ec_transfer_params" not in await images.answered(BIG)


async def test_an_encode_worker_that_is_gone_costs_no_request(images: Images) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        dead = StandInEncoder("encode-dead", f"http://127.0.0.1:{unused.getsockname()[1]}")
    await images.use(dead)
    assert "ec_transfer_params" not in await images.answered(BIG)


async def test_the_deadline_of_the_request_bounds_the_wait_for_an_encode_worker(images: Images) -> None:
    (encoder,) = await images.encoders(1)
    encoder.behaviours.append(Behaviour(gate=asyncio.Event()))
    async with asyncio.timeout(120):
        body = await images.answered(BIG, headers={"X-Pointsman-Deadline-Ms": "3000"})
    assert "ec_transfer_params" not in body
    await eventually(encoder.cancelled.is_set, "the encode worker is left")
    assert await images.count("local", "timed-out") >= 1


async def test_a_client_that_leaves_takes_its_images_from_the_encode_workers(images: Images) -> None:
    (encoder,) = await images.encoders(1)
    encoder.behaviours.append(Behaviour(gate=asyncio.Event()))
    asking = asyncio.create_task(images.ask(BIG))
    await encoder.begun.wait()
    report = await images.gateway.report()
    assert {entry["worker"]: entry["inFlight"] for entry in report["endpoints"]}["encode-0"] == 1
    asking.cancel()
    await eventually(encoder.cancelled.is_set, "the encode worker is left")

    async def idle() -> bool:
        return all(not entry["inFlight"] for entry in (await images.gateway.report())["endpoints"])

    await eventually(idle, "nothing is in flight")


async def test_an_encode_worker_that_leaves_gets_nothing_new_and_finishes(images: Images) -> None:
    first, second = await images.encoders(2)
    gate = asyncio.Event()
    for encoder in (first, second):
        encoder.behaviours.append(Behaviour(gate=gate))
    asking = asyncio.create_task(images.answered(BIG))
    done, _ = await asyncio.wait(
        [asyncio.create_task(encoder.begun.wait()) for encoder in (first, second)],
        return_when=asyncio.FIRST_COMPLETED,
    )
    assert done
    leaves, stays = (first, second) if first.begun.is_set() else (second, first)
    await images.use(stays)
    gate.set()
    body = await asking
    assert [entry["address"] for entry in body["ec_transfer_params"].values()] == [leaves.name]
    stays.behaviours.clear()
    await images.answered(BIG)
    assert (len(leaves.images), len(stays.images)) == (1, 1)


async def test_streams_with_images_are_answered_and_resumed(images: Images, room: Room) -> None:
    (encoder,) = await images.encoders(1)
    images.worker.behaviours.append(Behaviour(tokens=1, cut=True))
    other = (await room.workers(2))[1]
    other.name = "decode-other"
    entries = [Entry(encoder.name, encoder.url, "Encode")]
    images.gateway.write_endpoints([images.worker, other, *entries], routing=ROUTING)
    await images.gateway.knows(images.worker, other, encoder)
    for _ in range(2):
        stream = await images.gateway.client.chat.completions.create(
            model=SERVED_NAME,
            messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": BIG}}]}],
            max_tokens=4,
            stream=True,
        )
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
        assert len(text) == 4
    sent = [seen.body for worker in (images.worker, other) for seen in worker.seen]
    assert all(body["ec_transfer_params"] for body in sent)


async def test_the_access_line_says_what_became_of_the_images(images: Images) -> None:
    await images.encoders(1)
    await images.ask(BIG, SMALL, headers={"X-Request-Id": "with-images"})
    await images.ask(headers={"X-Request-Id": "without-images"})

    def lines(request_id: str) -> list[dict[str, Any]]:
        return images.gateway.of.logged("request", request_id=request_id)

    await eventually(lambda: bool(lines("with-images") and lines("without-images")), "both are logged")
    (line,) = lines("with-images")
    assert (line["images"], line["image_tokens"], line["verbatim"]) == (2, 485, "2 images")
    assert sum(line["image_paths"].values()) == 2
    assert line["encode_ms"] >= 0 and line["image_load_ms"] >= 0
    assert line["prompt_tokens"] > 485, "the router and flow control count them"
    assert "images" not in lines("without-images")[0]
