"""Images through an encode, a prefill and a decode worker: three engines answer as one does, whatever dies."""

import asyncio
import dataclasses
import os
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

import aiohttp
import pytest

from engine.multimodal.images import Image, chat_of, image_of, words_of
from engine.multimodal.workers import (
    EMBEDDING_BYTES,
    FETCHES,
    LEASE_SECONDS,
    TOKEN,
    Client,
    VisionWorkers,
    start_vision_workers,
)
from fixtures.engines import RunningEngine, running_vision_engines
from fixtures.nats_server import running_nats
from fixtures.seeds import drawn_seed
from pointsman.api.protocol import metrics
from pointsman.api.protocol.names import EmbeddingRole, Role
from pointsman.gateway.metrics import GatewayMetrics
from pointsman.planner.core.metrics.observe import Reading, Seen, observation
from pointsman.planner.core.types import Objectives, RoutingNumbers, Worker, WorkerCondition
from pointsman.planner.exposition import parse
from pointsman.workers.multimodal.exchange.references import references
from waiting import eventually

DEADLINE_SECONDS = 90.0
SUCCEEDED = 'outcome="succeeded"'
SENT = metrics.EMBEDDING_TRANSFER_TRANSFERS.name
FAILED = 'outcome="failed"'
OTHER_MODEL = 'outcome="other-model"'


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VisionWorkers]:
    """The workers of this module's service; only to be asked."""
    with running_nats() as nats_server, running_vision_engines(tmp_path_factory.mktemp("vision")) as engines:
        yield start_vision_workers(engines, nats_server, "vision")


@pytest.fixture
def dice(request: pytest.FixtureRequest) -> random.Random:
    """Seeded; the seed is printed. Of each test its own: a prompt of another test may be in the engines' caches."""
    return random.Random(f"{drawn_seed()} {request.node.nodeid}")


@pytest.fixture
async def client(workers: VisionWorkers) -> AsyncIterator[Client]:
    """A client of workers that have their roles."""
    # A connection for each request: a server closes one that was idle for five seconds, maybe as it is used again.
    connector, timeout = aiohttp.TCPConnector(force_close=True), aiohttp.ClientTimeout(DEADLINE_SECONDS)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        made = Client(session)
        roles = ((workers.encode, Role.ENCODE), (workers.prefill, Role.PREFILL), (workers.decode, Role.DECODE))
        for worker, role in roles:
            await made.take_role(worker, role)
        await until_remote(made, workers.decode)
        yield made


async def until_remote(client: Client, decode: RunningEngine) -> None:
    """Wait until prompts at ``decode`` are prefilled elsewhere."""

    async def remote() -> bool:
        return (await client.ask(decode, chat_of([], words_of(random.Random(), 200)))).prefill == "remote"

    await eventually(remote, f"{decode.name} has prompts prefilled elsewhere")


async def nothing_left(client: Client, *engines: RunningEngine) -> None:
    """Wait until nothing is in flight or leased, and neither a KV block nor memory of an embedding is in use."""

    async def idle() -> bool:
        states = [await client.state(engine) for engine in engines]
        embeddings = [await client.metric(engine, EMBEDDING_BYTES) for engine in engines]
        return all(state.idle and not state.kv_usage for state in states) and not any(embeddings)

    await eventually(idle, "nothing in flight, queued, leased or in use", 4 * LEASE_SECONDS + 10)


async def encoded(client: Client, encode: RunningEngine, images: list[Image]) -> dict[str, Any]:
    """The field of a request that says where the embeddings of ``images`` are."""
    return {"ec_transfer_params": await client.encode(encode, images)}


async def test_three_engines_answer_as_one(client: Client, workers: VisionWorkers, dice: random.Random) -> None:
    before = await client.metric(workers.prefill, FETCHES, SUCCEEDED)
    sent_before = await client.metric(workers.encode, SENT, 'result="succeeded"')
    distinct = 0
    several = {"n": 2, "temperature": 1.0, "seed": 7}
    for count, letters, more in ((1, 40, {}), (2, 300, several), (3, 700, {})):
        images = [image_of(dice) for _ in range(count)]
        body = chat_of([*images, images[0]], words_of(dice, letters), **more)  # one of them twice
        fields = await encoded(client, workers.encode, images)
        assert fields["ec_transfer_params"].keys() == {image.item for image in images}
        answer = await client.ask(workers.decode, body | fields)
        assert answer.prefill == "remote"
        assert answer.token_ids == (await client.ask(workers.alone, body)).token_ids
        distinct += count
    assert await client.metric(workers.prefill, FETCHES, SUCCEEDED) - before == distinct
    assert await client.metric(workers.decode, FETCHES) == 0, "with the KV, no embedding is needed"

    async def shown() -> bool:
        return await client.metric(workers.encode, SENT, 'result="succeeded"') - sent_before == distinct

    await eventually(shown, "the encode worker shows what it sent")
    await nothing_left(client, workers.prefill, workers.decode)


async def test_the_engine_uses_the_embedding_that_it_fetched_and_only_of_its_own_service_and_model(
    client: Client, workers: VisionWorkers, dice: random.Random
) -> None:
    shown, other = image_of(dice), image_of(dice)
    text = words_of(dice, 150)
    (theirs,) = references(await client.encode(workers.encode, [other]), TOKEN).values()
    exchanged = dataclasses.replace(theirs, item=shown.item)
    forged = {"ec_transfer_params": {shown.item: exchanged.sealed("a-token-of-someone-else")}}
    as_shown, as_other = [
        (await client.ask(workers.alone, chat_of([image], text))).token_ids for image in (shown, other)
    ]
    assert as_shown != as_other
    assert (await client.ask(workers.decode, chat_of([shown], text) | forged)).token_ids == as_shown
    again = dataclasses.replace(shown, content=shown.content + b"\0")  # the same pixels, which no cache knows
    sealed = {"ec_transfer_params": {again.item: dataclasses.replace(theirs, item=again.item).sealed(TOKEN)}}
    assert (await client.ask(workers.decode, chat_of([again], text) | sealed)).token_ids == as_other
    once_more = dataclasses.replace(shown, content=shown.content + b"\0\0")
    others = dataclasses.replace(theirs, item=once_more.item, model="of another revision").sealed(TOKEN)
    before = await client.metric(workers.prefill, FETCHES, OTHER_MODEL)
    body = chat_of([once_more], text) | {"ec_transfer_params": {once_more.item: others}}
    assert (await client.ask(workers.decode, body)).token_ids == as_shown
    assert await client.metric(workers.prefill, FETCHES, OTHER_MODEL) - before == 1


async def test_an_encode_worker_proves_its_role_and_takes_no_other(client: Client, workers: VisionWorkers) -> None:
    result = await client.verify(workers.encode, Role.ENCODE)
    assert result.ok, result.detail
    assert (await client.state(workers.encode)).verified is Role.ENCODE
    for worker, role in ((workers.encode, Role.DECODE), (workers.decode, Role.ENCODE)):
        status, answer = await client.assign(worker, role)
        assert (status, answer["reason"]) == (409, "WrongEngine"), answer


async def test_an_encode_worker_killed_while_it_sends_costs_no_answer_and_no_block(
    client: Client, workers: VisionWorkers, dice: random.Random
) -> None:
    mortal = workers.start("encode-mortal", EmbeddingRole.PRODUCER).wait_until_healthy()
    await client.take_role(mortal, Role.ENCODE)
    images = [image_of(dice) for _ in range(2)]
    body = chat_of(images, words_of(dice, 200))
    fields = await encoded(client, mortal, images)
    before = await client.metric(workers.prefill, FETCHES, FAILED)
    for pid in mortal.processes():
        os.kill(pid, signal.SIGSTOP)
    asked = asyncio.create_task(client.ask(workers.decode, body | fields))

    async def waits() -> bool:
        return await client.metric(workers.prefill, EMBEDDING_BYTES) > 0

    try:
        await eventually(waits, "the prefill worker waits for the embeddings")
        assert (await client.ask(workers.decode, chat_of([], words_of(dice, 200)))).prefill == "remote"
    finally:
        mortal.process.kill()
    answer = await asked
    assert (answer.token_ids, answer.prefill) == ((await client.ask(workers.alone, body)).token_ids, "remote")
    assert await client.metric(workers.prefill, FETCHES, FAILED) - before == len(images)
    await nothing_left(client, workers.prefill, workers.decode)


async def test_without_a_prefill_worker_the_decode_worker_fetches_the_embeddings(
    client: Client, workers: VisionWorkers, dice: random.Random
) -> None:
    image = image_of(dice)
    body = chat_of([image], words_of(dice, 200), stream=False)
    before = await client.metric(workers.decode, FETCHES, SUCCEEDED)
    at_prefill = await client.metric(workers.prefill, FETCHES, SUCCEEDED)
    fields = await encoded(client, workers.encode, [image])
    answer = await client.ask(workers.decode, body | fields, **{"X-Pointsman-Max-Local-Prefill-Tokens": "4096"})
    assert (answer.token_ids, answer.prefill) == ((await client.ask(workers.alone, body)).token_ids, "short")
    assert await client.metric(workers.decode, FETCHES, SUCCEEDED) - before == 1
    again = chat_of([image], words_of(dice, 200))
    repeated = await client.ask(workers.decode, again | fields)  # the prefill worker fetches it once more
    assert (repeated.token_ids, repeated.prefill) == ((await client.ask(workers.alone, again)).token_ids, "remote")
    assert await client.metric(workers.prefill, FETCHES, SUCCEEDED) - at_prefill == 1
    await nothing_left(client, workers.prefill, workers.decode)


async def test_a_worker_from_before_the_encode_workers_prefills_and_decodes_with_newer_ones(
    client: Client, workers: VisionWorkers, dice: random.Random
) -> None:
    """As when ``spec.encode`` is added: it has no connector, and encodes the images itself."""
    old = workers.start("before-encode", None).wait_until_healthy()
    try:
        for decode, prefill in ((old, workers.prefill), (workers.decode, old)):
            await client.take_role(workers.prefill, Role.PREFILL if prefill is workers.prefill else Role.DECODE)
            await client.take_role(old, Role.PREFILL if prefill is old else Role.DECODE)
            await until_remote(client, decode)
            images = [image_of(dice) for _ in range(2)]
            body = chat_of(images, words_of(dice, 200))
            fetched = await client.metric(workers.prefill, FETCHES)
            answer = await client.ask(decode, body | await encoded(client, workers.encode, images))
            assert answer.prefill == "remote"
            assert answer.token_ids == (await client.ask(workers.alone, body)).token_ids
            assert await client.metric(workers.prefill, FETCHES) == fetched, "nobody has used the embeddings"
    finally:
        old.process.kill()


async def test_the_planner_reads_from_an_encode_worker_how_long_an_image_takes(
    client: Client, workers: VisionWorkers, dice: random.Random
) -> None:
    before = parse(await client.page(workers.encode))
    began_s = time.monotonic()
    for _ in range(2):
        await client.encode(workers.encode, [image_of(dice)])
    took_s = time.monotonic() - began_s
    reading = Reading(before, parse(await client.page(workers.encode)), took_s)
    idle = parse(GatewayMetrics("vision").expose().decode())
    seen = observation(
        at_s=0, age_s=0, gateways=[Reading(idle, idle, took_s)], workers=[], routing=RoutingNumbers(512, 32),
        plan_in_progress=False, objectives=Objectives(ttft_ms=1000, tpot_ms=50), encode_replicas=1,
        encoders=[Seen(Worker("encode-0", Role.ENCODE, WorkerCondition.ACTIVE), reading, False)],
    )  # fmt: skip
    assert seen.encode is not None
    assert seen.encode.image_ms is not None
    assert 0 < seen.encode.image_ms <= 1000 * took_s / 2


ROUNDS, SEED, AT_ONCE = 40, 20261126, 6


@pytest.mark.verify
@pytest.mark.verify_multimodal
@pytest.mark.timeout(3600)
async def test_whatever_worker_is_killed_when_images_are_answered_as_by_one_engine_and_nothing_leaks(
    client: Client, workers: VisionWorkers, findings: dict[str, object]
) -> None:
    dice = random.Random(SEED)
    killed, prefills = Counter[str](), Counter[str]()
    answers = lost = 0
    for number in range(ROUNDS):
        role = dice.choice((Role.ENCODE, Role.PREFILL, Role.DECODE))
        embeddings = EmbeddingRole.PRODUCER if role is Role.ENCODE else EmbeddingRole.CONSUMER
        mortal = workers.start(f"mortal-{number}", embeddings).wait_until_healthy()
        await client.take_role(mortal, role)
        encode, decode = (mortal if role is each else own for each, own in workers.gateway_targets)
        await until_remote(client, decode)
        bodies = []
        for _ in range(AT_ONCE):
            images = [image_of(dice) for _ in range(dice.randrange(1, 4))]
            body = chat_of(images, words_of(dice, dice.randrange(100, 900)))
            bodies.append((body, await encoded(client, encode, images)))
        asked = [asyncio.create_task(client.ask(decode, body | fields)) for body, fields in bodies]
        await asyncio.sleep(dice.uniform(0.0, 0.4))
        mortal.process.kill()
        killed[role.value] += 1
        for (body, fields), task in zip(bodies, asked, strict=True):
            with suppress(aiohttp.ClientError):
                await task
            if task.exception() is not None:  # its decode worker died: the gateway sends it to another one
                assert role is Role.DECODE, task.exception()
                lost += 1
            answer = task.result() if task.exception() is None else await client.ask(workers.decode, body | fields)
            assert answer.token_ids == (await client.ask(workers.alone, body)).token_ids, answer.prefill
            prefills[answer.prefill or ""] += 1
            answers += 1
        if number % 10 == 9:  # leases of killed decode workers have to end
            await nothing_left(client, workers.prefill, workers.decode)
    findings.update(
        kills=ROUNDS, of=dict(killed), answers=answers, different_from_one_server=0, sent_again=lost,
        prefilled=dict(prefills), seed=SEED,
    )  # fmt: skip
