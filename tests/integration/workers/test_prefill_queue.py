"""The prefill queue on a real NATS, from a prefill worker's side: order, budget, deaths, duplicates, limits."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.aio.subscription import Subscription
from nats.js import JetStreamContext

from fixtures.asgi_engine import BLOCK
from fixtures.nats_server import PASSWORD, USER, NatsServer
from fixtures.services import Service
from fixtures.workers import DEADLINE_SECONDS, Worker
from pointsman.api.protocol import names
from pointsman.api.protocol.control import WorkerPhase
from pointsman.api.protocol.names import Role
from pointsman.api.protocol.prefill import PrefillOutcome, PrefillReply, PrefillRequest
from pointsman.serving.local_remote import PrefillReason
from pointsman.workers.prefill_server import PAUSES
from waiting import eventually


class Asker:
    """Puts prefill requests on a service's queue and hears the answers, as a decode worker does."""

    def __init__(self, client: Client, uid: str, answers: Subscription, inbox: str) -> None:
        self._client = client
        self._uid = uid
        self._answers = answers
        self._inbox = inbox
        self._numbers = itertools.count()
        self.stream = names.prefill_stream("tests", uid)
        self.consumer = names.prefill_consumer("same")

    @property
    def jetstream(self) -> JetStreamContext:
        """For a look at the queue."""
        return self._client.jetstream()

    async def ask(self, length: int, *, name: str | None = None, **changes: object) -> PrefillRequest:
        """Publish a request of ``length`` tokens."""
        number = next(self._numbers)
        request = PrefillRequest.model_validate(
            {
                "request_id": name or f"request-{number}",
                "reply_to": f"{self._inbox}.{number}",
                "model": "small",
                "block_size": BLOCK,
                "kv_compatibility": "same",
                "decode_worker": "a-test",
                "token_ids": [number % 200 + 1] * length,
                **changes,
            }
        )
        await self.publish(request.encode())
        return request

    async def publish(self, frame: bytes) -> None:
        """Put a frame on the queue."""
        await self.jetstream.publish(names.prefill_subject("tests", self._uid, "same"), frame)

    async def answer(self) -> PrefillReply:
        """The next answer."""
        return PrefillReply.model_validate_json((await self._answers.next_msg(timeout=DEADLINE_SECONDS)).data)

    async def until_empty(self) -> None:
        """Wait until every request is acknowledged."""

        async def empty() -> bool:
            return not (await self.jetstream.stream_info(self.stream)).state.messages

        await eventually(empty, "the queue is empty")


@pytest.fixture
async def asker(service: Service, shared_nats: NatsServer) -> AsyncIterator[Asker]:
    """An asker of the test's service."""
    client = await nats.connect(shared_nats.url, user=USER, password=PASSWORD)
    inbox = client.new_inbox()
    yield Asker(client, service.uid, await client.subscribe(f"{inbox}.*"), inbox)
    await client.close()


@pytest.fixture
async def prefill(service: Service) -> Worker:
    """A prefill worker whose engine holds every prefill until its gate is opened."""
    running = await service.worker("prefill-0", Role.PREFILL)
    running.engine.gate.clear()
    return running


async def test_requests_are_admitted_in_order_and_only_within_the_token_budget(prefill: Worker, asker: Asker) -> None:
    await prefill.take_role(Role.PREFILL, prefill_token_budget=100)
    asked = [await asker.ask(length) for length in (40, 40, 40, 10, 90, 5)]
    await eventually(lambda: prefill.state.queued_prefills == 1, "the third waits in the worker's hands")
    assert prefill.engine.prefilling == [40, 40]
    assert prefill.state.in_flight_tokens == 80
    info = await asker.jetstream.consumer_info(asker.stream, asker.consumer)
    assert (info.num_ack_pending, info.num_pending) == (3, 3), "one is looked ahead, the rest stays for other workers"
    prefill.engine.gate.set()
    answers = [await asker.answer() for _ in asked]
    assert [answer.request_id for answer in answers] == [request.request_id for request in asked]
    assert prefill.engine.prefills == [request.token_ids for request in asked]
    assert prefill.engine.most_prefilling_tokens <= 100
    await asker.until_empty()


async def test_a_request_larger_than_the_budget_is_computed_alone(prefill: Worker, asker: Asker) -> None:
    await prefill.take_role(Role.PREFILL, prefill_token_budget=100)
    await asker.ask(500)
    await asker.ask(1)
    await eventually(lambda: prefill.engine.prefilling == [500], "the large one began")
    info = await asker.jetstream.consumer_info(asker.stream, asker.consumer)
    assert info.num_pending == 1, "nothing is pulled beside it, not even one token"
    prefill.engine.gate.set()
    assert [(await asker.answer()).outcome for _ in range(2)] == [PrefillOutcome.DONE] * 2
    assert prefill.engine.most_prefilling_tokens == 500


async def test_a_budget_given_later_holds_at_once(prefill: Worker, asker: Asker) -> None:
    await prefill.take_role(Role.PREFILL, prefill_token_budget=10)
    await asker.ask(8)
    await asker.ask(8)
    await eventually(lambda: prefill.state.queued_prefills == 1, "the second waits")
    state = await prefill.take_role(Role.PREFILL)
    assert state.prefill_token_budget == 8192, "the default, for an operator that sends none"
    await eventually(lambda: prefill.engine.prefilling == [8, 8], "within that budget it begins")
    prefill.engine.gate.set()


async def test_a_dead_workers_request_is_given_to_another_after_the_ack_wait(service: Service, asker: Asker) -> None:
    async with service.context("prefill-0", Role.PREFILL) as first:
        first.engine.gate.clear()
        request = await asker.ask(20)
        await eventually(lambda: first.engine.prefilling, "the first worker computes")
    died_s = time.monotonic()
    second = await service.worker("prefill-1", Role.PREFILL)
    reply = await asker.answer()
    assert (reply.request_id, reply.outcome, reply.prefill_worker) == (
        request.request_id,
        PrefillOutcome.DONE,
        "prefill-1",
    )
    assert time.monotonic() - died_s < 25, "by default a consumer waits for 30 s"
    assert second.engine.prefills == [request.token_ids]
    await asker.until_empty()


async def test_a_prefill_longer_than_the_ack_wait_is_not_redelivered_while_its_worker_lives(
    service: Service, asker: Asker
) -> None:
    ack_wait_s = 4.0  # far above what a busy computer may keep a heartbeat
    own = {"ack_wait_seconds": ack_wait_s}
    prefill = await service.worker("prefill-0", Role.PREFILL, **own)
    prefill.engine.gate.clear()
    idle = await service.worker("prefill-1", None, **own)
    client: Client = asker._client
    heartbeats = await client.subscribe(f"$JS.ACK.{asker.stream}.>")
    await asker.ask(20)
    await eventually(lambda: prefill.engine.prefilling, "the prefill began")
    await idle.take_role(Role.PREFILL)
    begun_s = time.monotonic()
    while time.monotonic() - begun_s < 1.5 * ack_wait_s:
        assert (await heartbeats.next_msg(timeout=ack_wait_s)).data == b"+WPI"
    prefill.engine.gate.set()
    assert (await asker.answer()).prefill_worker == "prefill-0"
    await asker.until_empty()
    assert idle.engine.prefills == []
    assert len(prefill.engine.prefills) == 1


async def test_a_request_seen_before_is_answered_from_memory(prefill: Worker, asker: Asker) -> None:
    await asker.ask(20, name="twice")
    await eventually(lambda: prefill.engine.prefilling, "the first began")
    await asker.ask(20, name="twice")
    prefill.engine.gate.set()
    first = await asker.answer()
    await asker.ask(20, name="twice")
    second = await asker.answer()
    assert first.kv_transfer_params == second.kv_transfer_params
    assert second.lease_age_seconds > first.lease_age_seconds
    assert len(prefill.engine.prefills) == 1
    await asker.until_empty()


async def test_a_request_is_computed_whatever_the_wall_clock_of_an_earlier_decode_worker_says(
    prefill: Worker, asker: Asker
) -> None:
    prefill.engine.gate.set()
    await asker.ask(20, deadline_unix_ms=int(time.time() * 1000) - 25_000)  # its clock is 45 s behind
    assert (await asker.answer()).outcome is PrefillOutcome.DONE
    await asker.until_empty()


async def test_a_request_whose_decode_worker_is_gone_is_stopped(prefill: Worker, asker: Asker) -> None:
    await asker.ask(20, reply_to="_INBOX.nobody.1", asked_at_seconds=1.0, wait_seconds=600.0)
    await eventually(lambda: prefill.engine.aborted == 1, "the engine stops it")
    await asker.until_empty()
    assert prefill.state.idle


async def test_prompts_taken_beyond_a_budget_count_as_waiting(service: Service, asker: Asker) -> None:
    prefill = await service.worker("prefill-0", Role.PREFILL)
    prefill.engine.gate.clear()
    decode = await service.worker("decode-0", Role.DECODE, max_prefill_queue_size=7)
    await decode.sees("prefill-0")
    for _ in range(8):
        await asker.ask(40)
    await eventually(lambda: len(prefill.engine.prefilling) == 8, "all are computed at one time")
    assert await decode.sidecar.remote._look() == 0, "together they are one admission"
    await prefill.take_role(Role.PREFILL, prefill_token_budget=40)
    remote = decode.sidecar.remote
    await eventually(lambda: sum(p.waiting or 0 for p in remote._presences()) == 7, "seven wait for the first")
    answer = await decode.call({"prompt": [1] * 30}).whole()
    assert answer.headers["x-pointsman-prefill-reason"] == "queue-full"
    shown = prefill.registry.get_sample_value
    await eventually(lambda: shown("pointsman_worker_prefill_tokens_in_progress") == 320, "in the metrics too")
    assert shown("pointsman_worker_prefills_in_progress") == 8
    assert shown("pointsman_worker_prefill_token_budget") == 40
    prefill.engine.gate.set()


async def test_a_worker_whose_engine_fails_leaves_the_queue_to_others_for_a_while(
    service: Service, prefill: Worker, asker: Asker
) -> None:
    decode = await service.worker("decode-0", Role.DECODE)
    other = await service.worker("prefill-1", None)
    await decode.sees("prefill-0")
    prefill.engine.gate.set()
    prefill.engine.fails_prefills = "out of blocks"
    for _ in range(5):
        await asker.ask(20)
        assert (await asker.answer()).outcome is PrefillOutcome.FAILED
    await decode.sees()
    await eventually(lambda: not prefill.sidecar._server._pull_outstanding, "its last pull has ended")
    await other.take_role(Role.PREFILL)
    answered, paused_s = [], time.monotonic()
    for _ in range(20):
        await asker.ask(20)
        answered.append((await asker.answer()).prefill_worker)
    pauses = int((time.monotonic() - paused_s) / PAUSES.base_s)
    assert answered.count("prefill-0") <= 1 + pauses, "after a pause one tests its engine"
    await other.take_role(None)
    prefill.engine.fails_prefills = ""
    await decode.sees("prefill-0")
    await eventually(lambda: not other.state.queued_prefills, "the other's last pull has ended")
    await asker.ask(20)
    reply = await asker.answer()
    assert (reply.outcome, reply.prefill_worker) == (PrefillOutcome.DONE, "prefill-0")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"block_size": 32}, "block size is 32, this engine's is 16"),
        ({"kv_compatibility": "other"}, "KV compatibility is other, this engine's is same"),
    ],
)
async def test_a_request_for_another_kind_of_engine_is_refused_with_the_reason(
    prefill: Worker, asker: Asker, changes: dict[str, Any], said: str
) -> None:
    await asker.ask(20, **changes)
    reply = await asker.answer()
    assert (reply.outcome, reply.detail) == (PrefillOutcome.REFUSED, said)
    assert prefill.engine.prefills == []
    await asker.until_empty()


async def test_what_is_no_request_is_dropped_and_the_next_one_served(prefill: Worker, asker: Asker) -> None:
    prefill.engine.gate.set()
    await asker.publish(b"\xff\xff\x00\x00 nonsense")
    await asker.ask(20)
    assert (await asker.answer()).outcome is PrefillOutcome.DONE
    await asker.until_empty()


async def test_a_full_queue_refuses_and_the_prompt_is_prefilled_at_the_decode_worker(
    service: Service, asker: Asker
) -> None:
    prefill = await service.worker("prefill-0", Role.PREFILL, max_concurrent_prefills=1, prefill_queue_limit=2)
    prefill.engine.gate.clear()
    decode = await service.worker("decode-0", Role.DECODE, prefill_queue_limit=2, max_prefill_queue_size=100)
    await decode.sees("prefill-0")
    await asker.ask(20)
    await asker.ask(20)
    answer = await decode.call({"prompt": [1] * 30}).whole()
    assert answer.headers["x-pointsman-prefill-reason"] == "queue-full"
    prefill.engine.gate.set()


async def test_a_worker_that_loses_the_prefill_role_finishes_what_it_has_and_leaves_the_rest(
    prefill: Worker, asker: Asker
) -> None:
    await prefill.take_role(Role.PREFILL, prefill_token_budget=30)
    for _ in range(4):
        await asker.ask(20)
    await eventually(lambda: prefill.state.queued_prefills == 1, "one is computed, one is looked ahead")
    state = await prefill.take_role(Role.DECODE, prefill_token_budget=30)
    assert (state.in_flight, state.queued_prefills, state.idle) == (1, 1, False)
    prefill.engine.gate.set()
    assert [(await asker.answer()).outcome for _ in range(2)] == [PrefillOutcome.DONE] * 2
    await eventually(lambda: prefill.state.in_flight + prefill.state.queued_prefills == 0, "what it had is done")
    info = await asker.jetstream.consumer_info(asker.stream, asker.consumer)
    assert (info.num_ack_pending, info.num_pending) == (0, 2)
    assert prefill.state.leases == 2, "nobody has pulled the KV"
    assert not prefill.state.idle
    await prefill.take_role(Role.PREFILL)
    assert [(await asker.answer()).outcome for _ in range(2)] == [PrefillOutcome.DONE] * 2
    await asker.until_empty()


async def test_an_outstanding_pull_counts_until_it_ends_and_what_it_brings_is_served(
    prefill: Worker, asker: Asker
) -> None:
    prefill.engine.gate.set()
    server = prefill.sidecar._server
    await eventually(lambda: server._pull_outstanding, "a pull is out")
    state = await prefill.control("POST", "/pointsman/v1/drain", {"reason": "a test"})
    assert state.body["phase"] == WorkerPhase.DRAINING
    assert state.body["queuedPrefills"] == 1
    await asker.ask(20)
    assert (await asker.answer()).outcome is PrefillOutcome.DONE
    await eventually(lambda: prefill.state.queued_prefills == 0, "no pull is out")
    await asker.ask(20)
    await eventually(lambda: not server._pull_outstanding, "no other pull begins")
    assert len(prefill.engine.prefills) == 1


async def test_two_services_of_one_name_in_two_namespaces_never_see_each_others_requests(
    make_service: Callable[[NatsServer], Service], shared_nats: NatsServer
) -> None:
    tokens = {"blue": 1, "green": 2}
    workers: dict[str, tuple[Worker, Worker]] = {}
    for namespace in tokens:
        service = make_service(shared_nats)
        # One uid in both: the namespace alone has to keep them apart.
        own = {"namespace": namespace, "service_uid": "the-same-uid", "max_prefill_queue_size": 100}
        prefill = await service.worker("prefill-0", Role.PREFILL, **own)
        decode = await service.worker("decode-0", Role.DECODE, **own)
        workers[namespace] = (prefill, decode)
    for _, decode in workers.values():
        await decode.sees("prefill-0")
    await asyncio.gather(
        *(
            workers[namespace][1].call({"prompt": [token] * length}).whole()
            for namespace, token in tokens.items()
            for length in range(20, 30)
        )
    )
    for namespace, (prefill, decode) in workers.items():
        assert decode.decisions("remote") == 10, {reason.value: decode.decisions(reason) for reason in PrefillReason}
        assert sorted(prefill.engine.prefills) == [(tokens[namespace],) * length for length in range(20, 30)]
