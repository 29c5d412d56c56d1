"""Remote prefill as a client sees it, over a real NATS: whole workers over small engines."""

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.aio.subscription import Subscription

from fixtures.asgi_engine import answer_to, rendered
from fixtures.nats_server import PASSWORD, USER, NatsServer
from fixtures.seeds import drawn_seed
from fixtures.services import Service
from fixtures.workers import DEADLINE_SECONDS, Worker, worker
from pointsman.api.protocol import control, kv, names
from pointsman.api.protocol.names import Role
from pointsman.api.protocol.prefill import PRESENCE_STALE_SECONDS
from waiting import eventually

PROMPT = list(range(1, 41))


@pytest.fixture
async def prefill(service: Service) -> Worker:
    """A prefill worker."""
    return await service.worker("prefill-0", Role.PREFILL)


@pytest.fixture
async def decode(service: Service, prefill: Worker) -> Worker:
    """A decode worker that knows the prefill worker."""
    running = await service.worker("decode-0", Role.DECODE)
    await running.sees("prefill-0")
    return running


async def test_a_long_prompt_is_prefilled_by_the_prefill_worker_and_answered_from_its_kv(
    service: Service, prefill: Worker, decode: Worker
) -> None:
    answer = await decode.call({"prompt": PROMPT, "max_tokens": 6}).whole()
    assert answer.status == 200
    assert answer.token_ids == answer_to(PROMPT, 6)
    assert answer.headers["x-pointsman-prefill"] == "remote"
    assert answer.headers["x-pointsman-prefill-reason"] == "remote"
    assert answer.headers["x-pointsman-prefill-worker"] == "prefill-0"
    assert answer.headers["x-pointsman-worker"] == "decode-0"
    assert prefill.engine.prefills == [tuple(PROMPT)]
    assert (decode.engine.local, service.fabric.pulls, service.fabric.held) == (0, 1, {})
    await eventually(lambda: prefill.state.leases == 0, "the prefill worker knows that its KV was pulled")
    assert decode.decisions("remote") == 1
    for name in ("pointsman_worker_prompt_tokens_total", "pointsman_worker_uncached_prompt_tokens_sum"):
        assert decode.registry.get_sample_value(name) == len(PROMPT), name


async def test_a_chat_with_the_gateways_token_ids_decodes_exactly_those(prefill: Worker, decode: Worker) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "kv_transfer_params": {"prompt_token_ids": PROMPT}}
    answer = await decode.call(body, "/v1/chat/completions").whole()
    assert answer.headers["x-pointsman-prefill"] == "remote"
    assert answer.token_ids == answer_to(PROMPT, 16)
    assert decode.engine.seen[-1]["kv_transfer_params"]["prompt_token_ids"] == PROMPT


async def test_a_chat_without_token_ids_is_prefilled_from_those_its_engine_renders(
    prefill: Worker, decode: Worker
) -> None:
    body = {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        "tools": [{"type": "function"}],
    }
    answer = await decode.call(body, "/v1/chat/completions").whole()
    assert answer.headers["x-pointsman-prefill"] == "remote"
    assert prefill.engine.prefills == [tuple(rendered(body))]
    assert answer.token_ids == answer_to(rendered(body), 16)
    assert (decode.engine.rendered, decode.engine.local) == (1, 0)


@pytest.mark.parametrize("stream", [False, True])
async def test_several_answers_are_prefilled_once_and_say_what_the_prefill_worker_had(
    service: Service, prefill: Worker, decode: Worker, stream: bool
) -> None:
    prefill.engine.cached_tokens, decode.engine.cached_tokens = 5, 1024
    body = {"prompt": PROMPT, "n": 3, "max_tokens": 4, "stream": stream, "stream_options": {"include_usage": stream}}
    answer = await decode.call(body).whole()
    assert (answer.status, answer.headers["x-pointsman-prefill"]) == (200, "remote")
    assert answer.headers["x-pointsman-prefill-worker"] == "prefill-0"
    assert answer.token_ids == answer_to(PROMPT, 4) * (1 if stream else 3)
    assert prefill.engine.prefills == [tuple(PROMPT)]
    assert (decode.engine.local, service.fabric.pulls, service.fabric.held) == (0, 1, {})
    text = b"".join(answer.chunks)
    assert b'"cached_tokens":5}' in text.replace(b" ", b"")
    if not stream:
        assert len(text) == int(answer.headers.get("content-length", len(text)))
    assert decode.decisions("remote") == 1
    await eventually(lambda: prefill.state.leases == 0, "the prefill worker knows that its KV was pulled")


@pytest.mark.parametrize(
    "choices",
    [
        [{"chunks": [[5], [6, 7]]}],
        [{"chunks": [[5], [6, 7]]}, {"chunks": [[8]]}],
        [{"chunks": [[5]], "finishReason": "stop"}, {"chunks": [[6], [7]]}],
        [{"chunks": []}],
    ],
    ids=["one choice", "two choices", "one of two has ended", "no token yet"],
)
async def test_a_resumed_stream_is_prefilled_remotely_with_the_tokens_that_its_client_has(
    service: Service, prefill: Worker, decode: Worker, choices: list[dict[str, Any]]
) -> None:
    prefill.engine.cached_tokens, decode.engine.cached_tokens = 5, 1024
    body = {"prompt": PROMPT, "n": len(choices), "max_tokens": 8, "stream": True}
    body |= {"stream_options": {"include_usage": True}, "pointsman_resume": {"choices": choices}}
    answer = await decode.call(body).whole()
    assert (answer.status, answer.headers["x-pointsman-prefill"]) == (200, "remote")
    assert answer.headers["x-pointsman-resumed"] == "1"
    sampled = [[token for chunk in choice["chunks"] for token in chunk] for choice in choices]
    open_choices = [
        (*PROMPT, *tokens) for tokens, choice in zip(sampled, choices, strict=True) if "finishReason" not in choice
    ]
    assert sorted(prefill.engine.prefills) == sorted(open_choices), "what the engine needs to go on, and nothing else"
    assert (decode.engine.local, service.fabric.pulls, service.fabric.held) == (0, len(open_choices), {})
    rest = [
        [] if "finishReason" in choice else answer_to((*PROMPT, *tokens), 8 - len(tokens))
        for tokens, choice in zip(sampled, choices, strict=True)
    ]
    assert answer.token_ids == [token for pair in zip(sampled, rest, strict=True) for part in pair for token in part]
    assert b'"cached_tokens":5}' in b"".join(answer.chunks).replace(b" ", b""), "one prompt, counted once"
    assert decode.decisions("remote") == len(open_choices)
    await eventually(lambda: prefill.state.leases == 0, "the prefill worker knows that its KV was pulled")


async def test_several_prompts_are_each_decided(service: Service, prefill: Worker, decode: Worker) -> None:
    prompts = [PROMPT, [1, 2], [7, *PROMPT]]
    answer = await decode.call({"prompt": prompts, "max_tokens": 3}).whole()
    assert answer.token_ids == [token for prompt in prompts for token in answer_to(prompt, 3)]
    assert sorted(prefill.engine.prefills) == sorted([tuple(PROMPT), (7, *PROMPT)])
    assert (decode.decisions("remote"), decode.decisions("short")) == (2, 1)
    assert (decode.engine.local, service.fabric.held) == (1, {})


async def test_no_more_prompts_of_one_request_are_asked_for_than_the_queue_may_hold(
    prefill: Worker, decode: Worker
) -> None:
    prefill.engine.gate.clear()
    prompts = [[number, *PROMPT] for number in range(12)]
    call = decode.call({"prompt": prompts, "max_tokens": 2}, X_Pointsman_Max_Prefill_Queue_Size="3")
    await eventually(lambda: len(prefill.engine.prefilling) == 3, "as many as the queue may hold are computed")
    prefill.engine.gate.set()
    answer = await call.whole()
    assert answer.token_ids == [token for prompt in prompts for token in answer_to(prompt, 2)]
    assert len(prefill.engine.prefills) == decode.decisions("remote") >= 3
    assert decode.decisions("remote") + decode.decisions("queue-full") == 12, "one that finds it full stays here"


@pytest.mark.parametrize("moment", ["computed", "pulled"])
async def test_a_client_of_several_answers_that_leaves_leaves_no_kv_behind(
    service: Service, prefill: Worker, decode: Worker, moment: str
) -> None:
    gate = prefill.engine.gate if moment == "computed" else decode.engine.pull_gate
    gate.clear()
    call = decode.call({"prompt": PROMPT, "n": 2})
    if moment == "computed":
        await eventually(lambda: prefill.engine.prefilling, "it is computed")
    else:
        await eventually(lambda: decode.engine.pulling, "it is pulled")
    call.hang_up()
    await call.whole()
    gate.set()
    await eventually(lambda: prefill.state.idle and decode.state.idle, "nothing is left")
    assert decode.engine.seen == [] or decode.engine.seen[-1].get("n") is None, "the request itself never began"


async def test_a_text_prompt_is_tokenised_by_the_engine_and_prefilled_remotely(prefill: Worker, decode: Worker) -> None:
    text = "a text that is longer than the threshold"
    answer = await decode.call({"prompt": text}).whole()
    assert answer.headers["x-pointsman-prefill"] == "remote"
    assert prefill.engine.prefills == [tuple(text.encode())]
    assert answer.token_ids == answer_to(list(text.encode()), 16)


async def test_streamed_tokens_are_passed_on_one_by_one(prefill: Worker, decode: Worker) -> None:
    decode.engine.token_gate.clear()
    call = decode.call({"prompt": PROMPT, "max_tokens": 3, "stream": True})
    await eventually(lambda: call.answer.chunks, "the first token is here while the engine holds the second")
    assert len(call.answer.chunks) == 1
    # Long before the lease would end by itself.
    await eventually(lambda: prefill.state.leases == 0, "the lease ends with the first token, not the stream", 10.0)
    assert decode.state.in_flight == 1
    assert decode.state.in_flight_tokens == len(PROMPT) + 1
    decode.engine.token_gate.set()
    answer = await call.whole()
    assert answer.token_ids == answer_to(PROMPT, 3)
    assert answer.headers["x-pointsman-prefill"] == "remote"
    assert decode.state.in_flight == 0


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({"X_Pointsman_Max_Local_Prefill_Tokens": "40"}, "short"),
        ({"X_Pointsman_Max_Local_Prefill_Tokens": "39"}, "remote"),
        ({"X_Pointsman_Max_Prefill_Queue_Size": "0"}, "queue-full"),
        ({"X_Pointsman_Deadline_Ms": "0"}, "timed-out"),
    ],
)
async def test_the_routing_numbers_of_the_request_decide(decode: Worker, headers: dict[str, str], reason: str) -> None:
    answer = await decode.call({"prompt": PROMPT}, **headers).whole()
    assert answer.headers["x-pointsman-prefill-reason"] == reason
    assert answer.headers["x-pointsman-prefill"] == ("remote" if reason == "remote" else "local")
    assert answer.token_ids == answer_to(PROMPT, 16)


async def test_the_routing_numbers_of_the_role_hold_for_requests_without_any(decode: Worker) -> None:
    await decode.take_role(Role.DECODE, max_local_prefill_tokens=100)
    answer = await decode.call({"prompt": PROMPT}).whole()
    assert answer.headers["x-pointsman-prefill-reason"] == "short"


async def test_without_a_prefill_worker_the_prompt_is_prefilled_here_at_once(service: Service) -> None:
    alone = await service.worker("decode-0", Role.DECODE)
    answer = await alone.call({"prompt": PROMPT}).whole()
    assert answer.headers["x-pointsman-prefill-reason"] == "no-prefill-worker"
    assert answer.token_ids == answer_to(PROMPT, 16)


async def test_when_the_last_prefill_worker_dies_waiting_requests_are_prefilled_here(service: Service) -> None:
    decode = await service.worker("decode-0", Role.DECODE)
    async with service.context("prefill-0", Role.PREFILL) as prefill:
        await decode.sees("prefill-0")
        prefill.engine.gate.clear()
        call = decode.call({"prompt": PROMPT})
        await eventually(lambda: prefill.engine.prefilling, "the prefill began")
    answer = await call.whole()
    assert answer.headers["x-pointsman-prefill-reason"] == "no-prefill-worker"
    assert answer.token_ids == answer_to(PROMPT, 16)


async def test_when_the_time_is_up_the_prompt_is_prefilled_here_and_the_late_kv_released(
    service: Service, prefill: Worker, decode: Worker
) -> None:
    # A prefill that cannot be stopped any more: its cancellation is not heard.
    prefill.engine.gate.clear()
    decode.sidecar.remote._signal = _deaf  # type: ignore[method-assign]  # as if it were lost
    answer = await decode.call({"prompt": PROMPT}, X_Pointsman_Deadline_Ms="400").whole()
    assert answer.headers["x-pointsman-prefill-reason"] == "timed-out"
    assert answer.token_ids == answer_to(PROMPT, 16)
    prefill.engine.gate.set()
    await eventually(lambda: service.fabric.pulls == 1, "the KV of the late answer is released")
    assert service.fabric.held == {}


LEASE_SECONDS = 1.5


def _another_clock() -> float:
    """Of a host that was started at another time."""
    return time.monotonic() * 1.0001 + 5e6


@pytest.fixture
async def short_leases(service: Service) -> tuple[Worker, Worker]:
    """A prefill and a decode worker whose leases are shorter than the prefills of the test."""
    short: dict[str, Any] = {"lease_seconds": LEASE_SECONDS, "heartbeat_seconds": 0.1}
    prefill = await service.worker("prefill-0", Role.PREFILL, clock=_another_clock, max_concurrent_prefills=1, **short)
    decode = await service.worker("decode-0", Role.DECODE, **short)
    await decode.sees("prefill-0")
    return prefill, decode


async def test_a_prefill_longer_than_a_lease_is_pulled(service: Service, short_leases: tuple[Worker, Worker]) -> None:
    prefill, decode = short_leases
    prefill.engine.gate.clear()
    call = decode.call({"prompt": PROMPT})
    await eventually(lambda: decode.sidecar.remote.awaited.oldest_s > 2 * LEASE_SECONDS, "it takes two leases")
    assert decode.sidecar.remote.awaited.prompt_tokens == len(PROMPT)
    prefill.engine.gate.set()
    answer = await call.whole()
    assert answer.headers["x-pointsman-prefill-reason"] == "remote"
    assert answer.token_ids == answer_to(PROMPT, 16)
    assert (decode.engine.local, service.fabric.pulls, service.fabric.held) == (0, 1, {})
    assert decode.sidecar.remote.awaited.requests == 0


async def test_a_prompt_that_waits_longer_than_a_lease_is_pulled(
    service: Service, short_leases: tuple[Worker, Worker]
) -> None:
    prefill, decode = short_leases
    prefill.engine.gate.clear()
    calls = [decode.call({"prompt": [*PROMPT, number]}) for number in range(4)]
    await eventually(lambda: decode.sidecar.remote.awaited.requests == 4, "all are on the queue or begun")
    await eventually(lambda: decode.sidecar.remote.awaited.oldest_s > 2 * LEASE_SECONDS, "for two leases")
    prefill.engine.gate.set()
    for number, call in enumerate(calls):
        answer = await call.whole()
        assert answer.headers["x-pointsman-prefill-reason"] == "remote", number
        assert answer.token_ids == answer_to([*PROMPT, number], 16)
    assert (decode.engine.local, service.fabric.pulls, service.fabric.held) == (0, 4, {})


async def test_a_long_prefill_of_a_killed_worker_is_done_by_another_and_pulled(
    service: Service, short_leases: tuple[Worker, Worker]
) -> None:
    stable, decode = short_leases
    await stable.take_role(None)
    await eventually(lambda: stable.state.queued_prefills == 0, "its last pull has ended")
    await decode.sees()
    own: dict[str, Any] = {"lease_seconds": LEASE_SECONDS, "heartbeat_seconds": 0.1}
    async with service.context("mortal", Role.PREFILL, **own) as mortal:
        await decode.sees("mortal")
        mortal.engine.gate.clear()
        call = decode.call({"prompt": PROMPT})
        await eventually(lambda: decode.sidecar.remote.awaited.oldest_s > LEASE_SECONDS, "it takes a lease")
        await stable.take_role(Role.PREFILL)
        await decode.sees("mortal", "prefill-0")
    answer = await call.whole()
    assert answer.headers["x-pointsman-prefill-worker"] == "prefill-0"
    assert answer.token_ids == answer_to(PROMPT, 16)
    assert decode.engine.local == 0


async def test_a_prefill_worker_of_an_earlier_version_is_used_within_the_lease_from_the_publication(
    service: Service, nats_client: Client
) -> None:
    decode = await service.worker("decode-0", Role.DECODE, lease_seconds=LEASE_SECONDS)
    presence = names.prefill_presence_subject("tests", service.uid, "same")
    jetstream = nats_client.jetstream()
    stream, consumer = names.prefill_stream("tests", service.uid), names.prefill_consumer("same")
    queue = await jetstream.pull_subscribe_bind(consumer, stream)

    async def answer(*, in_time: bool) -> None:
        [message] = await queue.fetch(1, timeout=30)
        length = int.from_bytes(message.data[:4], "little")
        head = json.loads(message.data[4 : 4 + length])
        assert "deadlineUnixMs" not in head, "nothing of this host's clock"
        if in_time:
            service.fabric.held["h"] = tuple(PROMPT)
            params = {"do_remote_prefill": True, "handle": "h"}
            reply = {"requestId": head["requestId"], "outcome": "done", "prefillWorker": "earlier-0"}
            await nats_client.publish(head["replyTo"], json.dumps({**reply, "kvTransferParams": params}).encode())
        await message.ack()

    async def announced() -> (
        bool
    ):  # again and again, as a prefill worker does: the first may come before anybody listens
        await nats_client.publish(presence, b'{"worker": "earlier-0", "serving": true}')
        await nats_client.flush()
        return decode.sidecar.remote.prefill_workers() == ["earlier-0"]

    await eventually(announced, "it sees the earlier worker")
    call = decode.call({"prompt": PROMPT})
    await answer(in_time=True)
    done = await call.whole()
    assert done.headers["x-pointsman-prefill-reason"] == "remote"
    assert done.token_ids == answer_to(PROMPT, 16)
    await nats_client.publish(presence, b'{"worker": "earlier-0", "serving": true}')
    await nats_client.flush()
    call = decode.call({"prompt": PROMPT})
    await answer(in_time=False)
    late = await call.whole()
    assert late.headers["x-pointsman-prefill-reason"] == "timed-out", "not before a minute otherwise"
    assert late.token_ids == answer_to(PROMPT, 16)


async def _deaf(request_id: str, kind: object) -> None:
    """A signal that is lost."""


async def test_a_client_that_leaves_while_its_prompt_is_computed_stops_the_prefill(
    service: Service, prefill: Worker, decode: Worker
) -> None:
    prefill.engine.gate.clear()
    call = decode.call({"prompt": PROMPT})
    await eventually(lambda: prefill.engine.prefilling, "the prefill began")
    call.hang_up()
    answer = await call.whole()
    assert answer.status == 0, "nothing is sent to a client that has left"
    await eventually(lambda: prefill.engine.aborted == 1, "the prefill engine aborts it")
    await eventually(lambda: prefill.state.idle, "nothing is left at the prefill worker")
    assert decode.state.idle
    assert (decode.engine.local, service.fabric.held) == (0, {})


async def test_a_client_that_leaves_while_its_prompt_waits_takes_it_off_the_queue(
    service: Service, shared_nats: NatsServer
) -> None:
    prefill = await service.worker("prefill-0", Role.PREFILL, max_concurrent_prefills=1)
    decode = await service.worker("decode-0", Role.DECODE)
    await decode.sees("prefill-0")
    prefill.engine.gate.clear()
    first = decode.call({"prompt": PROMPT})
    await eventually(lambda: prefill.engine.prefilling, "the first prefill began")
    second = decode.call({"prompt": PROMPT[::-1]})
    await _until_stored(shared_nats, service, 2)
    second.hang_up()
    await second.whole()
    await _until_stored(shared_nats, service, 1)
    prefill.engine.gate.set()
    answer = await first.whole()
    assert (answer.headers["x-pointsman-prefill"], answer.token_ids) == ("remote", answer_to(PROMPT, 16))
    assert prefill.engine.prefills == [tuple(PROMPT)], "the second was never computed"
    await _until_stored(shared_nats, service, 0)


async def _until_stored(server: NatsServer, service: Service, messages: int) -> None:
    client = await nats.connect(server.url, user=USER, password=PASSWORD)
    try:
        stream = names.prefill_stream("tests", service.uid)

        async def stored() -> bool:
            return bool((await client.jetstream().stream_info(stream)).state.messages == messages)

        await eventually(stored, f"{messages} messages", 25)  # less than a request waits
    finally:
        await client.close()


@pytest.mark.parametrize(("before", "deaths"), [("0", 2), ("1", 1), (None, 2)])
async def test_a_prompt_that_kills_prefill_workers_kills_two_in_all_and_is_not_prefilled_here(
    service: Service, before: str | None, deaths: int
) -> None:
    own: dict[str, Any] = {"ack_wait_seconds": PRESENCE_STALE_SECONDS + 0.5}  # a dead worker is silent before, as it is
    decode = await service.worker("decode-0", Role.DECODE, **own)
    async with AsyncExitStack() as survivors:
        lives, workers = {}, {}
        for number in range(3):
            lives[number] = await survivors.enter_async_context(AsyncExitStack())
            workers[number] = await lives[number].enter_async_context(
                service.context(f"prefill-{number}", Role.PREFILL, **own)
            )
            workers[number].engine.gate.clear()
        await decode.sees("prefill-0", "prefill-1", "prefill-2")
        call = decode.call({"prompt": PROMPT}, **({} if before is None else {"X_Pointsman_Deaths": before}))
        dead = []
        for _ in range(deaths):
            await eventually(lambda: any(w.engine.prefilling for w in workers.values()), "the next one computes it")
            number = next(number for number, running in workers.items() if running.engine.prefilling)
            await lives[number].aclose()
            del workers[number]
            dead.append(f"prefill-{number}")
        answer = await call.whole()
        assert answer.status == 503
        assert answer.headers["x-pointsman-retry"] == "prefill-died"
        assert answer.headers["x-pointsman-died"] == ",".join(sorted(dead))
        assert decode.engine.local == 0, "the decode worker is not the next one"
        assert not any(running.engine.prefills for running in workers.values())


async def test_a_sender_that_counts_deaths_is_told_of_one_when_no_prefill_worker_is_left(
    service: Service, nats_client: Client
) -> None:
    decode = await service.worker("decode-0", Role.DECODE)
    async with service.context("prefill-0", Role.PREFILL) as prefill:
        await decode.sees("prefill-0")
        prefill.engine.gate.clear()
        call = decode.call({"prompt": PROMPT}, X_Pointsman_Deaths="0")
        await eventually(lambda: prefill.engine.prefilling, "the prefill began")
    answer = await call.whole()
    assert (answer.status, answer.headers.get("x-pointsman-died")) == (503, "prefill-0")
    stream = names.prefill_stream("tests", service.uid)

    async def gone() -> bool:
        return not (await nats_client.jetstream().stream_info(stream)).state.messages

    await eventually(gone, "nobody is given the prompt when it comes back")
    again = await decode.call({"prompt": PROMPT}, X_Pointsman_Deaths="1").whole()
    assert again.token_ids == answer_to(PROMPT, 16), "the gateway sends it once more"


async def test_a_worker_that_is_drained_and_stopped_with_a_prompt_did_not_die_of_it(service: Service) -> None:
    decode = await service.worker("decode-0", Role.DECODE)
    async with service.context("prefill-0", Role.PREFILL) as prefill:
        await decode.sees("prefill-0")
        prefill.engine.gate.clear()
        call = decode.call({"prompt": PROMPT}, X_Pointsman_Deaths="0")
        await eventually(lambda: prefill.engine.prefilling, "the prefill began")
        await prefill.control("POST", control.DRAIN_PATH, {"reason": "a test"})
        await decode.sees()
    answer = await call.whole()
    assert answer.headers["x-pointsman-prefill-reason"] == "no-prefill-worker"
    assert answer.token_ids == answer_to(PROMPT, 16)


async def test_an_engine_that_dies_with_a_prompt_is_a_death_and_one_that_fails_is_not(
    prefill: Worker, decode: Worker
) -> None:
    prefill.engine.fails_prefills = "out of blocks"
    answer = await decode.call({"prompt": PROMPT}, X_Pointsman_Deaths="0").whole()
    assert answer.headers["x-pointsman-prefill-reason"] == "prefill-failed"
    assert answer.token_ids == answer_to(PROMPT, 16)
    local = decode.engine.local
    prefill.engine.fails_prefills = "EngineCore encountered an issue."
    answer = await decode.call({"prompt": PROMPT[::-1]}, X_Pointsman_Deaths="0").whole()
    assert (answer.status, answer.headers.get("x-pointsman-died")) == (503, "prefill-0")
    assert decode.engine.local == local
    await decode.sees()  # no prefill worker: it pauses


async def test_a_failed_decode_leg_is_prefilled_here(prefill: Worker, decode: Worker) -> None:
    decode.engine.fails_remote = True
    answer = await decode.call({"prompt": PROMPT, "max_tokens": 3, "stream": True}).whole()
    assert answer.status == 200
    assert answer.headers["x-pointsman-prefill-reason"] == "prefill-failed"
    assert answer.token_ids == answer_to(PROMPT, 3)


async def test_a_prefill_engine_that_aborts_fails_the_request_over_and_takes_no_more(
    prefill: Worker, decode: Worker
) -> None:
    prefill.engine.aborts = True
    answer = await decode.call({"prompt": PROMPT}).whole()
    assert answer.headers["x-pointsman-prefill-reason"] == "prefill-failed"
    assert answer.token_ids == answer_to(PROMPT, 16)
    assert prefill.state.phase is control.WorkerPhase.DRAINING
    await decode.sees()


async def test_nats_dies_and_comes_back(make_service: Callable[[NatsServer], Service], own_nats: NatsServer) -> None:
    service = make_service(own_nats)
    prefill = await service.worker("prefill-0", Role.PREFILL)
    decode = await service.worker("decode-0", Role.DECODE)
    await decode.sees("prefill-0")
    prefill.engine.gate.clear()
    waiting = decode.call({"prompt": PROMPT})
    await eventually(lambda: prefill.engine.prefilling, "the prefill began")
    own_nats.kill()
    answer = await waiting.whole()
    assert answer.headers["x-pointsman-prefill-reason"] == "queue-unknown"
    assert answer.token_ids == answer_to(PROMPT, 16)
    prefill.engine.gate.set()
    meanwhile = await decode.call({"prompt": PROMPT}).whole()
    assert meanwhile.headers["x-pointsman-prefill-reason"] in ("queue-unknown", "no-prefill-worker")
    assert not decode.state.nats_connected
    own_nats.start()
    await eventually(lambda: decode.state.nats_connected, "NATS is back")
    await decode.sees("prefill-0")
    again = await decode.call({"prompt": PROMPT[::-1]}).whole()
    assert again.headers["x-pointsman-prefill"] == "remote"
    assert again.token_ids == answer_to(PROMPT[::-1], 16)
    await eventually(lambda: service.fabric.held == {}, "the KV of the answer that came too late is released")


async def test_a_worker_that_may_not_log_in_serves_alone(
    make_service: Callable[[NatsServer], Service], own_nats: NatsServer
) -> None:
    service = make_service(own_nats)
    own = service.settings("decode-0", nats_password="not the password")
    async with worker(own, service.fabric, Role.DECODE, wait_for_nats=False) as alone:
        answer = await alone.call({"prompt": PROMPT}).whole()
    assert answer.headers["x-pointsman-prefill-reason"] == "queue-unknown"
    assert answer.token_ids == answer_to(PROMPT, 16)


async def test_kv_metrics_are_published_at_every_change_and_twice_a_second(
    service: Service, nats_client: Client, decode: Worker
) -> None:
    subject = names.kv_metrics_subject("tests", service.uid)
    heard = await nats_client.subscribe(subject)
    first = await _next(heard)
    second = await _next(heard)
    while first.worker != second.worker:
        second = await _next(heard)
    assert second.sequence == first.sequence + 1
    assert first.instance == second.instance
    await decode.take_role(None)
    async with asyncio.timeout(DEADLINE_SECONDS):
        while (metrics := await _next(heard)).worker != "decode-0" or metrics.role is not None:
            pass
    assert metrics.request_active_slots is None, "what the engine does not tell is unknown, not 0"


@pytest.fixture
async def nats_client(shared_nats: NatsServer) -> AsyncIterator[Client]:
    """A client beside the workers."""
    client = await nats.connect(shared_nats.url, user=USER, password=PASSWORD)
    yield client
    await client.close()


async def _next(heard: Subscription) -> kv.KvMetrics:
    message = await heard.next_msg(timeout=DEADLINE_SECONDS)
    return kv.KvMetrics.model_validate_json(message.data)


async def test_under_deaths_of_everything_every_client_gets_the_right_answer(
    make_service: Callable[[NatsServer], Service], own_nats: NatsServer
) -> None:
    dice = random.Random(drawn_seed())
    service = make_service(own_nats)
    short: dict[str, Any] = {"lease_seconds": 6.0}  # a signal that dies with NATS leaves a lease to end by itself
    decode = await service.worker("decode-0", Role.DECODE, **short)
    stable = await service.worker("prefill-0", Role.PREFILL, **short)
    await decode.sees("prefill-0")

    async def client(number: int) -> None:
        prompt = [dice.randrange(250) for _ in range(dice.randrange(1, 60))]
        body = {"prompt": prompt, "max_tokens": 5, "stream": dice.random() < 0.5}
        answer = await decode.call(body).whole(60.0)
        if (
            answer.headers.get("x-pointsman-retry") == "prefill-died"
        ):  # of two deaths, by chance: as a client asks again
            answer = await decode.call(body).whole(60.0)
        assert answer.status == 200
        assert answer.token_ids == answer_to(prompt, 5), (number, answer.headers)

    async def deaths() -> None:
        for number in range(6):
            async with service.context(f"mortal-{number}", Role.PREFILL, **short) as mortal:
                seen = len(mortal.engine.prefills)
                mortal.engine.gate.clear()
                await eventually(lambda: len(mortal.engine.prefills) > seen, "it took a request")  # noqa: B023
            if number == 3:
                own_nats.kill()
                own_nats.start()
                await decode.sees("prefill-0")

    async def load() -> None:
        for number in range(10_000):
            if killer.done():
                return
            await asyncio.gather(*(client(number) for _ in range(4)))

    killer = asyncio.create_task(deaths())
    await load()
    await killer
    assert decode.state.in_flight == 0
    assert decode.decisions("remote") > 0
    await eventually(lambda: stable.state.idle, "nothing is left at the prefill worker")
    await eventually(lambda: not decode.sidecar.remote._background, "nothing is left to release")
