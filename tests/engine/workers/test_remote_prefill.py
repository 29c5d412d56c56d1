"""Remote prefill between real engines, through the middleware and a real NATS: right tokens, whatever dies."""

import asyncio
import json
import os
import random
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import aiohttp
import nats
import pytest

from fixtures.engines import MODEL, SMALL_ENGINE, Engines, PlainEngines, RunningEngine
from fixtures.nats_server import PASSWORD, USER, NatsServer, running_nats
from fixtures.seeds import drawn_seed
from pointsman.api.protocol import control, names
from pointsman.api.protocol.names import Role
from pointsman.api.protocol.prefill import PrefillReply, PrefillRequest
from pointsman.local.engine.models import ModelSize, ensure_model
from waiting import eventually

LEASE_SECONDS = 6.0
TOKENS = 24
BLOCK = 128
PROMPT_TOKENS = (
    "pointsman_worker_prompt_tokens_total",
    "pointsman_worker_uncached_prompt_tokens_sum",
    "pointsman_worker_uncached_prompt_tokens_count",
)
ENGINE_SECONDS = "pointsman_worker_remote_prefill_engine_seconds_total"
AUTHORIZED = {"Authorization": "Bearer a-token-of-the-tests"}
QUICK = {
    "lease_seconds": LEASE_SECONDS,
    "max_prefill_queue_size": 64,
    "ack_wait_seconds": 2.0,
    "heartbeat_seconds": 0.5,
    "drain_timeout_seconds": 5.0,
}
DEADLINE_SECONDS = 180.0


@pytest.fixture(scope="module")
def nats_server() -> Iterator[NatsServer]:
    """The NATS of this module's workers."""
    with running_nats() as server:
        yield server


@pytest.fixture(scope="module")
def start(engines: Engines, nats_server: NatsServer) -> Callable[..., RunningEngine]:
    """``start(name)``: a worker of this module's service, not yet healthy."""
    login = {"nats_url": nats_server.url, "nats_user": USER, "nats_password": PASSWORD, "service_uid": "remote-prefill"}

    def start(name: str, **changes: Any) -> RunningEngine:
        arguments = changes.pop("arguments", SMALL_ENGINE)
        return engines.worker(engines.settings(name, **(login | QUICK | changes)), arguments)

    return start


@pytest.fixture(scope="module")
def pair(start: Callable[..., RunningEngine]) -> tuple[RunningEngine, RunningEngine]:
    """A prefill and a decode worker; only to be asked."""
    prefill, decode = start("prefill-0"), start("decode-0")
    return prefill.wait_until_healthy(), decode.wait_until_healthy()


class Client:
    """Talks to workers as gateway and operator do."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def state(self, worker: RunningEngine) -> control.WorkerState:
        """What the worker says of itself."""
        async with self._session.get(worker.url + control.STATE_PATH, headers=AUTHORIZED) as response:
            return control.WorkerState.model_validate(await response.json())

    async def take_role(self, worker: RunningEngine, role: Role | None) -> None:
        """Give it a role, as soon as it can take one."""

        async def taken() -> bool:
            body = control.RoleRequest(role=role).model_dump(mode="json", by_alias=True)
            async with self._session.post(worker.url + control.ROLE_PATH, json=body, headers=AUTHORIZED) as response:
                state = await response.json()
            return bool(response.status == 200 and state["natsConnected"])

        await eventually(taken, f"{worker.name} takes role {role}")

    async def verify(
        self, worker: RunningEngine, role: Role, partner: RunningEngine | None = None
    ) -> control.VerifyResult:
        """Have it prove a role."""
        request = control.VerifyRequest(role=role, partner_url=None if partner is None else partner.url)
        body = request.model_dump(mode="json", by_alias=True)
        async with self._session.post(worker.url + control.VERIFY_PATH, json=body, headers=AUTHORIZED) as response:
            return control.VerifyResult.model_validate(await response.json())

    async def complete(
        self,
        worker: RunningEngine,
        prompt: list[int] | str,
        *,
        stream: bool = False,
        chat: bool = False,
        **headers: str,
    ) -> tuple[list[int], str | None]:
        """The answer's token ids, and where the prompt was prefilled ("remote" or the reason for local)."""
        body: dict[str, Any] = {
            "model": MODEL,
            "max_tokens": TOKENS,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
            "stream": stream,
        }
        if chat:
            body |= {
                "messages": [{"role": "user", "content": "hi"}],
                "kv_transfer_params": {"prompt_token_ids": prompt},
            }
        else:
            body |= {"prompt": prompt}
        path = "/v1/chat/completions" if chat else "/v1/completions"
        async with self._session.post(worker.url + path, json=body, headers=headers) as response:
            text = await response.text()
            assert response.status == 200, text
        events = (
            [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: {")]
            if stream
            else [json.loads(text)]
        )
        token_ids = [
            token for event in events for choice in event["choices"] for token in choice.get("token_ids") or ()
        ]
        return token_ids, response.headers.get("X-Pointsman-Prefill-Reason")

    async def metric(self, worker: RunningEngine, name: str) -> float:
        """Sum of the samples of one metric."""
        async with self._session.get(worker.url + "/metrics") as response:
            lines = (await response.text()).split("\n")
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((f"{name}{{", f"{name} ")))

    async def metrics(self, worker: RunningEngine, names: Sequence[str]) -> list[float]:
        """Several of them, in their order."""
        return [await self.metric(worker, name) for name in names]

    async def until_remote(self, decode: RunningEngine, dice: random.Random) -> None:
        """Wait until long prompts at ``decode`` are prefilled elsewhere."""

        async def remote() -> bool:
            return (await self.complete(decode, prompt_of(dice, 700)))[1] == "remote"

        await eventually(remote, f"{decode.name} has prompts prefilled elsewhere")


def prompt_of(dice: random.Random, length: int) -> list[int]:
    """Random tokens that begin no earlier prompt."""
    return [dice.randrange(3, 256) for _ in range(length)]


@pytest.fixture
def dice(request: pytest.FixtureRequest) -> random.Random:
    """Seeded; the seed is printed. Of each test its own: a prompt of another test may be in the engines' caches."""
    return random.Random(f"{drawn_seed()} {request.node.nodeid}")


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    """A client without limits of its own."""
    # A worker closes a connection that is idle for 5 s, perhaps just when the next request is written to it.
    connector = aiohttp.TCPConnector(force_close=True, limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(DEADLINE_SECONDS)) as session:
        yield Client(session)


@pytest.fixture
async def roles(client: Client, pair: tuple[RunningEngine, RunningEngine], dice: random.Random) -> None:
    """The pair with its roles, in touch with each other, and nothing left of the test before."""
    prefill, decode = pair
    await client.take_role(prefill, Role.PREFILL)
    await client.take_role(decode, Role.DECODE)
    await _nothing_left(client, *pair)
    await client.until_remote(decode, dice)  # the engine tells of a lease that expired with its next step
    await _nothing_left(client, *pair)


async def test_both_roles_are_proved_by_real_requests(
    client: Client, pair: tuple[RunningEngine, RunningEngine], roles: None
) -> None:
    prefill, decode = pair
    assert (await client.verify(decode, Role.DECODE)).ok
    result = await client.verify(prefill, Role.PREFILL, decode)
    assert result.ok, result.detail
    assert (await client.state(prefill)).verified is Role.PREFILL
    assert not (
        await client.verify(prefill, Role.PREFILL, RunningEngine("gone", "127.0.0.99", prefill.process, prefill.log))
    ).ok


async def test_answers_are_those_of_one_engine_alone(
    client: Client,
    pair: tuple[RunningEngine, RunningEngine],
    plain_engines: PlainEngines,
    roles: None,
    dice: random.Random,
) -> None:
    prefill, decode = pair
    before = await client.metric(prefill, "pointsman_worker_remote_prefills_total")
    tokens_before = await client.metrics(decode, PROMPT_TOKENS)
    prompts = [prompt_of(dice, length) for length in (1, 127, 513, 640, 641, 1024, 1500, 2047, 3000, 3900)]
    answers = await asyncio.gather(
        *(client.complete(decode, prompt, stream=bool(n % 2), chat=n % 3 == 0) for n, prompt in enumerate(prompts))
    )
    for n, (prompt, (tokens, reason)) in enumerate(zip(prompts, answers, strict=True)):
        alone, _ = await client.complete(plain_engines.one, prompt, chat=n % 3 == 0)
        assert tokens == alone, f"{len(prompt)} tokens, {reason}"
        assert reason == ("remote" if len(prompt) > 512 else "short")
    assert await client.metric(prefill, "pointsman_worker_remote_prefills_total") - before == 8
    again = await client.complete(decode, prompts[-1])
    assert again == (answers[-1][0], "short"), "what the engine here has in its cache is not fetched again"
    text = "a short text, which the worker leaves to the engine to tokenise"
    assert (await client.complete(decode, text))[1] == "short"
    told = [now - then for now, then in zip(await client.metrics(decode, PROMPT_TOKENS), tokens_before, strict=True)]
    new, repeated = sum(map(len, [*prompts, text])), len(prompts[-1])  # a token a letter
    assert told == [new + repeated, new + repeated % BLOCK, len(prompts) + 2], "of the repeat, what fills no block"


async def test_leases_are_seen_until_they_end(
    client: Client, pair: tuple[RunningEngine, RunningEngine], roles: None, dice: random.Random, nats_server: NatsServer
) -> None:
    prefill, _ = pair
    async with await nats.connect(nats_server.url, user=USER, password=PASSWORD) as nobody:
        inbox = nobody.new_inbox()
        answers = await nobody.subscribe(inbox)
        request = PrefillRequest(
            request_id="nobody-pulls",
            reply_to=inbox,
            model=MODEL,
            block_size=128,
            kv_compatibility="same",
            decode_worker="nobody",
            token_ids=tuple(prompt_of(dice, 700)),
        )
        await nobody.jetstream().publish(names.prefill_subject("tests", "remote-prefill", "same"), request.encode())
        reply = PrefillReply.model_validate_json((await answers.next_msg(timeout=30)).data)
    assert reply.kv_transfer_params is not None
    state = await client.state(prefill)
    assert state.leases == 1
    assert not state.idle

    async def over() -> bool:
        return (await client.state(prefill)).idle

    await eventually(over, "the lease ends", 4 * LEASE_SECONDS)
    assert (await client.state(prefill)).kv_usage == 0.0


async def test_kv_that_comes_too_late_is_never_pulled_but_freed(
    client: Client,
    pair: tuple[RunningEngine, RunningEngine],
    plain_engines: PlainEngines,
    roles: None,
    dice: random.Random,
) -> None:
    prefill, decode = pair
    transfers, expired = "vllm:nixl_bytes_transferred_count", "vllm:nixl_num_kv_expired_reqs_total"
    spent = "pointsman_worker_remote_prefill_seconds_sum"

    async def counted() -> tuple[float, ...]:
        told = await client.metrics(prefill, (expired, ENGINE_SECONDS, spent))
        return await client.metric(decode, transfers), *told

    before = await counted()
    prompt = prompt_of(dice, 1500)
    deadline: dict[str, Any] = {"X-Pointsman-Deadline-Ms": "8000"}
    # The engine core alone stands still: the worker lives, holds the request, and says so.
    cores = [pid for pid in prefill.processes() if pid != prefill.process.pid]
    assert cores
    for pid in cores:
        os.kill(pid, signal.SIGSTOP)
    try:
        answer = await client.complete(decode, prompt, **deadline)
    finally:
        for pid in cores:
            os.kill(pid, signal.SIGCONT)
    assert answer == ((await client.complete(plain_engines.one, prompt))[0], "timed-out")
    await _nothing_left(client, prefill, decode)
    assert await counted() == before, "what was given up took none of the engine's time"
    assert await client.metric(prefill, "vllm:nixl_num_notifications_after_expiry_total") == 0
    assert (await client.complete(decode, prompt_of(dice, 1500)))[1] == "remote"
    worked, took = (after - then for after, then in zip((await counted())[2:], before[2:], strict=True))
    # They differ by what the worker waits for its own event loop; since then more than 8 s have passed.
    assert 0 < worked == pytest.approx(took, abs=2), "nor is the engine busy with it ever since"


async def test_prompts_that_are_queued_and_computed_for_longer_than_a_lease_are_pulled(
    client: Client,
    pair: tuple[RunningEngine, RunningEngine],
    plain_engines: PlainEngines,
    roles: None,
    dice: random.Random,
) -> None:
    prefill, decode = pair
    awaited, expired = "pointsman_worker_oldest_prefill_awaited_seconds", "vllm:nixl_num_kv_expired_reqs_total"
    pulls = "vllm:nixl_bytes_transferred_count"
    before = await client.metric(decode, pulls), await client.metric(prefill, expired)
    prompts = [prompt_of(dice, 1500) for _ in range(3)]
    # The engine core stands still: as one that computes for long.
    cores = [pid for pid in prefill.processes() if pid != prefill.process.pid]
    for pid in cores:
        os.kill(pid, signal.SIGSTOP)
    try:
        answers = [asyncio.create_task(client.complete(decode, prompt)) for prompt in prompts]

        async def long() -> bool:
            return await client.metric(decode, awaited) > 1.5 * LEASE_SECONDS

        await eventually(long, "they wait for longer than a lease")
    finally:
        for pid in cores:
            os.kill(pid, signal.SIGCONT)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert await answer == ((await client.complete(plain_engines.one, prompt))[0], "remote")
    await _nothing_left(client, prefill, decode)
    assert await client.metric(decode, pulls) == before[0] + len(prompts)
    assert await client.metric(prefill, expired) == before[1]
    assert await client.metric(prefill, "vllm:nixl_num_notifications_after_expiry_total") == 0


async def test_a_killed_prefill_workers_requests_are_answered_by_another(
    client: Client,
    start: Callable[..., RunningEngine],
    pair: tuple[RunningEngine, RunningEngine],
    plain_engines: PlainEngines,
    roles: None,
    dice: random.Random,
) -> None:
    _, decode = pair
    mortal = start("prefill-mortal").wait_until_healthy()
    await client.take_role(mortal, Role.PREFILL)

    async def computes() -> bool:
        return await client.metric(mortal, "pointsman_worker_remote_prefills_total") > 0

    await _until_used(client, decode, computes, dice)
    prompts = [prompt_of(dice, dice.randrange(600, 3000)) for _ in range(24)]
    load = [asyncio.create_task(client.complete(decode, prompt, stream=True)) for prompt in prompts]
    await asyncio.wait(load, return_when=asyncio.FIRST_COMPLETED)
    mortal.process.kill()
    answers = await asyncio.gather(*load)
    for prompt, (tokens, reason) in zip(prompts, answers, strict=True):
        assert tokens == (await client.complete(plain_engines.one, prompt))[0], reason
    assert sum(reason == "remote" for _, reason in answers) > 0
    await _nothing_left(client, *pair)


async def _until_used(client: Client, decode: RunningEngine, used: Callable[[], Any], dice: random.Random) -> None:
    async def asked() -> bool:
        await client.complete(decode, prompt_of(dice, 700))
        return bool(await used())

    await eventually(asked, "the second prefill worker takes requests")


async def _nothing_left(client: Client, *workers: RunningEngine) -> None:
    async def idle() -> bool:
        return all([(await client.state(worker)).idle for worker in workers])

    await eventually(idle, "nothing in flight, queued or leased")


async def test_a_killed_decode_worker_leaves_nothing_stuck(
    client: Client,
    start: Callable[..., RunningEngine],
    pair: tuple[RunningEngine, RunningEngine],
    plain_engines: PlainEngines,
    roles: None,
    dice: random.Random,
) -> None:
    prefill, decode = pair
    mortal = start("decode-mortal").wait_until_healthy()
    await client.take_role(mortal, Role.DECODE)
    await client.until_remote(mortal, dice)
    prompts = [prompt_of(dice, dice.randrange(600, 3000)) for _ in range(16)]
    load = [asyncio.create_task(client.complete(mortal, prompt, stream=True)) for prompt in prompts]
    await asyncio.wait(load, return_when=asyncio.FIRST_COMPLETED)
    mortal.process.kill()
    lost = await asyncio.gather(*load, return_exceptions=True)
    retried = await asyncio.gather(*(client.complete(decode, prompt) for prompt in prompts))
    for prompt, before, after in zip(prompts, lost, retried, strict=True):
        alone, _ = await client.complete(plain_engines.one, prompt)
        assert after[0] == alone, after[1]
        assert isinstance(before, BaseException) or before[0] == alone
    await _nothing_left(client, prefill, decode)


async def test_while_nats_is_dead_everything_is_answered_and_afterwards_prefilled_remotely_again(
    client: Client,
    pair: tuple[RunningEngine, RunningEngine],
    plain_engines: PlainEngines,
    roles: None,
    dice: random.Random,
    nats_server: NatsServer,
) -> None:
    _, decode = pair
    prompts = [prompt_of(dice, dice.randrange(600, 3000)) for _ in range(16)]
    load = [asyncio.create_task(client.complete(decode, prompt, stream=True)) for prompt in prompts]
    await asyncio.wait(load, return_when=asyncio.FIRST_COMPLETED)
    nats_server.kill()
    try:
        meanwhile = await client.complete(decode, prompt := prompt_of(dice, 900))
    finally:
        nats_server.start()
    assert meanwhile[1] != "remote"
    answers = [meanwhile, *await asyncio.gather(*load)]
    for asked, (tokens, reason) in zip([prompt, *prompts], answers, strict=True):
        assert tokens == (await client.complete(plain_engines.one, asked))[0], reason
    await client.until_remote(decode, dice)
    await _nothing_left(client, *pair)


async def test_a_prefill_longer_than_the_ack_wait_is_done_once(
    client: Client, engines: Engines, start: Callable[..., RunningEngine], dice: random.Random
) -> None:
    # A model that takes its time, and an ack wait far below it.
    ack_wait_s = 0.4
    slow: dict[str, Any] = {
        "model": str(ensure_model(engines.environment, ModelSize.SMALL)),
        "kv_compatibility": "slow",
        "ack_wait_seconds": ack_wait_s,
        "heartbeat_seconds": 0.1,
        "lease_seconds": 60.0,
        "arguments": ("--dtype", "float32", "--max-model-len", "8192", "--kv-cache-memory-bytes", "512M"),
    }
    workers = [start(name, **slow) for name in ("slow-prefill", "idle-prefill", "slow-decode")]
    prefill, idle, decode = (worker.wait_until_healthy() for worker in workers)
    try:
        for worker, role in ((prefill, Role.PREFILL), (idle, Role.PREFILL), (decode, Role.DECODE)):
            await client.take_role(worker, role)
        await client.until_remote(decode, dice)
        prefills = "pointsman_worker_remote_prefills_total"
        before = await client.metric(prefill, prefills) + await client.metric(idle, prefills)
        seconds = "pointsman_worker_remote_prefill_seconds_sum"
        worked = await client.metric(prefill, ENGINE_SECONDS) + await client.metric(idle, ENGINE_SECONDS)
        spent = await client.metric(prefill, seconds) + await client.metric(idle, seconds)
        assert (await client.complete(decode, prompt_of(dice, 5000)))[1] == "remote"
        took = await client.metric(prefill, seconds) + await client.metric(idle, seconds) - spent
        assert took > 2 * ack_wait_s, "else this shows nothing"
        assert await client.metric(prefill, prefills) + await client.metric(idle, prefills) - before == 1
        worked = await client.metric(prefill, ENGINE_SECONDS) + await client.metric(idle, ENGINE_SECONDS) - worked
        # They differ by what the worker waits for its own event loop.
        assert worked == pytest.approx(took, rel=0.3, abs=0.2), "it was alone: the engine's time is the prefill's"
    finally:
        for worker in workers:
            worker.process.kill()
