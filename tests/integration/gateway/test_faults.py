"""Workers that refuse, abort, die or hang: what moves to another worker, what the client is told, what is given up."""

import asyncio
import json
from collections import deque
from dataclasses import replace
from typing import Any

import openai
import pytest

from fixtures.gateways import Entry, Gateway
from fixtures.tcp_faults import TcpProxy
from integration.gateway.conftest import Room
from integration.gateway.stand_in_worker import SERVED_NAME, Behaviour, StandInWorker, running
from waiting import eventually

ASK: dict[str, Any] = {"model": SERVED_NAME, "prompt": "The signal is at danger.", "max_tokens": 8}


def expected(worker: StandInWorker) -> str:
    """The text every worker answers to ASK."""
    return str(worker.tokenizer.decode(worker.output(worker.tokenizer(ASK["prompt"])["input_ids"], 8)))


def said(chunks: list[Any]) -> list[tuple[Any, ...]]:
    """What a client is told, chunk by chunk, of a stream's text, tokens and end."""
    told = []
    for chunk in chunks:
        for choice in chunk.choices:
            body = choice.to_dict()
            ids = (body.get("token_ids"), body.get("prompt_token_ids") or chunk.to_dict().get("prompt_token_ids"))
            told.append((chunk.id[:5], body.get("delta", body.get("text")), *ids, choice.finish_reason))
    return told


async def read(stream: openai.AsyncStream[openai.types.Completion]) -> str:
    """All text of a stream."""
    return "".join([chunk.choices[0].text async for chunk in stream if chunk.choices])


def once_each(behaviour: Behaviour, other: Behaviour) -> tuple[Behaviour, Behaviour]:
    """What two workers do; of those that die while they answer a request only one may."""
    return (behaviour, other if behaviour.cut else behaviour)


BEFORE_THE_FIRST_TOKEN = {
    "draining": Behaviour(status=503, retry="draining"),
    "no role": Behaviour(status=503, retry="no-role"),
    "busy": Behaviour(status=503),
    "failed": Behaviour(status=500),
    "aborted": Behaviour(abort=True),
    "cut": Behaviour(cut=True),
    "error in the stream": Behaviour(error_event=True),
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_request_that_has_no_token_yet_moves_to_another_worker(room: Room, stream: bool) -> None:
    workers = await room.workers(2)
    gateway = await room.gateway(workers)
    for behaviour in BEFORE_THE_FIRST_TOKEN.values():
        if behaviour.error_event and not stream:
            continue  # exists in streams only
        failures = once_each(behaviour, Behaviour(status=500))
        for worker, failure in zip(workers, failures, strict=True):
            worker.seen.clear()
            worker.behaviours.append(failure)  # both fail once; the one that is asked again answers
        if stream:
            text = await read(await gateway.client.completions.create(**ASK, stream=True))
        else:
            text = (await gateway.client.completions.create(**ASK)).choices[0].text
        assert text == expected(workers[0]), behaviour
        assert sum(len(worker.seen) for worker in workers) == 3, behaviour
    metrics = await gateway.metrics()
    reasons = {key.split('reason="')[1].split('"')[0] for key in metrics if "retries_total{" in key}
    assert {"draining", "no-role", "http-503", "http-500", "engine-aborted", "worker-died"} <= reasons


async def test_a_worker_that_refuses_connections_is_left_alone_for_a_moment(room: Room) -> None:
    workers = await room.workers(2)
    gateway = await room.gateway(workers, router="round-robin", suspect_seconds=60)
    async with running(StandInWorker("gone", room.model_folder, room.tokenizer)) as gone:
        gateway.write_endpoints([*workers, gone])
        await gateway.knows(*workers, gone)
    for _ in range(6):
        assert (await gateway.client.completions.create(**ASK)).choices[0].text == expected(workers[0])
    metrics = await gateway.metrics()
    assert metrics['pointsman_gateway_retries_total{reason="unreachable",service="chat"}'] == 1
    assert metrics['pointsman_gateway_workers{role="decode",service="chat",state="suspect"}'] == 1
    report = await gateway.report()
    assert {e["worker"]: e["suspect"] for e in report["endpoints"]} == {
        "decode-0": False, "decode-1": False, "gone": True
    }  # fmt: skip


SECRET = "my diary says plugh"
MALFORMED = {
    "no JSON": f'{{"choices": [{{"text": "{SECRET}',
    "choices that are none": json.dumps({"id": "e", "choices": SECRET}),
    "an index that is a text": json.dumps({"id": "e", "choices": [{"index": SECRET, "text": "a", "delta": {}}]}),
    "an error that is a text": json.dumps({"error": SECRET}),
}
OF_COMPLETIONS = {"a text that is a list": json.dumps({"id": "e", "choices": [{"index": 0, "text": [SECRET]}]})}
OF_CHATS = {"a delta that is a text": json.dumps({"id": "e", "choices": [{"index": 0, "delta": SECRET}]})}


@pytest.mark.parametrize("kind", ["completion", "chat", "the engine's own chat", "whole completion", "whole chat"])
async def test_a_text_of_a_user_in_a_malformed_event_is_in_no_error_and_no_log(room: Room, kind: str) -> None:
    workers = await room.workers(2)
    gateway = await room.gateway(workers)
    whole = kind.startswith("whole")
    ask: dict[str, Any] = {"model": SERVED_NAME, "max_tokens": 32, "stream": not whole}
    if kind.endswith("completion"):
        path, ask["prompt"] = "/v1/completions", SECRET
    else:
        path, ask["messages"] = "/v1/chat/completions", [{"role": "user", "content": SECRET}]
    cases = OF_COMPLETIONS
    if kind == "the engine's own chat":
        ask["logprobs"] = True  # the gateway passes the events on as the engine wrote them
        cases = OF_CHATS
    for tokens in (0,) if whole else (0, 3):
        for name, malformed in (MALFORMED | cases).items():
            for worker in workers * 2:
                worker.behaviours.append(Behaviour(tokens=tokens, malformed=malformed))
            async with gateway.http.post(gateway.of.url + path, json=ask) as answer:
                text = await answer.text()
            assert SECRET not in text, (name, tokens)
            assert '"error"' in text, (name, tokens)
            assert answer.status == (200 if tokens else 502), (name, tokens, text)
            assert not any(worker.behaviours for worker in workers), (name, "it was tried four times")
    assert not [line for line in gateway.logs if "plugh" in json.dumps(line)]


AFTER_THREE_TOKENS = (
    Behaviour(tokens=3, cut=True),
    Behaviour(tokens=3, abort=True),
    Behaviour(tokens=3, error_event=True),
)


@pytest.mark.parametrize("chat", [False, True], ids=["completion", "chat"])
async def test_after_the_first_token_another_worker_goes_on_with_the_tokens_so_far(room: Room, chat: bool) -> None:
    workers = await room.workers(2)
    gateway = await room.gateway(workers)
    ask: dict[str, Any] = {
        "model": SERVED_NAME,
        "max_tokens": 8,
        "stream": True,
        "stream_options": {"include_usage": True},
        "extra_body": {"return_token_ids": True, "min_tokens": 4},
    }
    create: Any  # of two signatures, which are the client's own business
    if chat:
        create, ask["messages"] = gateway.client.chat.completions.create, [{"role": "user", "content": "Go on."}]
    else:
        create, ask["prompt"] = gateway.client.completions.create, ASK["prompt"]
    whole = [chunk async for chunk in await create(**ask)]
    before = await gateway.metrics()
    for behaviour in AFTER_THREE_TOKENS:
        failures = once_each(behaviour, AFTER_THREE_TOKENS[1])
        for worker, failure in zip(workers, failures, strict=True):
            worker.seen.clear()  # each breaks once after three tokens; the first one brings the last two
            worker.behaviours.append(failure)
        chunks = [chunk async for chunk in await create(**ask)]
        assert said(chunks) == said(whole), behaviour
        assert chunks[-1].usage == whole[-1].usage, behaviour
        assert chunks[-1].usage.completion_tokens == 8
        asked = [seen.body for worker in workers for seen in worker.seen]
        assert sorted(body["max_tokens"] for body in asked) == [2, 5, 8]
        assert sorted(body["min_tokens"] for body in asked) == [0, 1, 4]
    after = await gateway.metrics()
    for reason, count in (("worker-died", 1), ("engine-aborted", 3), ("engine-error", 2)):
        counter = f'pointsman_gateway_retries_total{{reason="{reason}-mid-stream",service="chat"}}'
        assert after[counter] - before.get(counter, 0) == count


async def test_a_resumed_stream_has_the_whole_time_for_its_next_token_again(room: Room) -> None:
    workers = await room.workers(2)
    gateway = await room.gateway(workers)
    breaks = asyncio.Event()
    shared = deque([Behaviour(tokens=3, gate=breaks, cut=True)])
    for worker in workers:
        worker.behaviours = shared
    stream = await gateway.client.completions.create(
        **ASK, stream=True, extra_headers={"X-Pointsman-Deadline-Ms": "3000"}
    )
    await anext(aiter(stream))
    await asyncio.sleep(3.1)  # the client's own time is over, and was kept
    breaks.set()
    await read(stream)
    told = sorted(int(seen.headers["X-Pointsman-Deadline-Ms"]) for worker in workers for seen in worker.seen)
    assert len(told) == 2
    assert told[0] > 500


REPEATED: dict[str, dict[str, Any]] = {
    "several answers": {"n": 2},
    "stop strings": {"stop": ["zz"]},
    "list of parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": "Go on."}]}]},
    "unknown field, several answers, token ids": {"extra_body": {"a_new_field": 1, "return_token_ids": True}, "n": 2},
}


@pytest.mark.parametrize("asked", REPEATED.values(), ids=REPEATED)
async def test_what_only_an_engine_can_take_up_is_resumed_by_another_one(room: Room, asked: dict[str, Any]) -> None:
    workers = await room.workers(2)
    gateway = await room.gateway(workers)
    ask: dict[str, Any] = {
        "model": SERVED_NAME,
        "messages": [{"role": "user", "content": "Go on."}],
        "max_tokens": 8,
        "stream": True,
        "stream_options": {"include_usage": True},
    } | asked
    whole = [chunk async for chunk in await gateway.client.chat.completions.create(**ask)]
    for behaviour in AFTER_THREE_TOKENS:
        # Not two deaths: a request on which two workers died is not sent to a third one.
        breaks = deque([replace(behaviour, tokens=3), replace(AFTER_THREE_TOKENS[1], tokens=6)])
        for worker in workers:  # each breaks once; the first one brings the last two
            worker.seen.clear()
            worker.behaviours = breaks
        chunks = [chunk async for chunk in await gateway.client.chat.completions.create(**ask)]
        assert said(chunks) == said(whole), behaviour
        assert chunks[-1].usage == whole[-1].usage, behaviour
        assert len({(chunk.id, chunk.created) for chunk in chunks}) == 1
        bodies = [seen.body.get("pointsman_resume") for worker in workers for seen in worker.seen]
        repeated = [[sum(map(len, choice["chunks"])) for choice in one["choices"]] for one in bodies if one]
        assert (len(bodies), sorted(repeated)) == (3, [[3] * ask.get("n", 1), [6] * ask.get("n", 1)])


@pytest.mark.parametrize("field", [{"stop": ["zz"]}, {"n": 2}])
async def test_a_worker_that_fails_amid_its_repetition_costs_no_token(room: Room, field: dict[str, Any]) -> None:
    workers = await room.workers(2)
    gateway = await room.gateway(workers)
    ask = ASK | field | {"stream": True}
    whole = [chunk async for chunk in await gateway.client.completions.create(**ask)]
    breaks = deque([Behaviour(tokens=5, cut=True), Behaviour(tokens=3, abort=True), Behaviour(tokens=2, abort=True)])
    for worker in workers:
        worker.seen.clear()
        worker.behaviours = breaks
    chunks = [chunk async for chunk in await gateway.client.completions.create(**ask)]
    assert said(chunks) == said(whole)
    assert sum(len(worker.seen) for worker in workers) == 4


async def test_a_worker_of_an_earlier_version_resumes_nobody_elses_stream(room: Room) -> None:
    workers = await room.workers(2)
    gateway = await room.gateway(workers)
    for worker in workers:
        worker.earlier_version = True
    ask = ASK | {"stop": ["zz"], "stream": True}
    text = ""
    for worker in workers:
        worker.behaviours.append(Behaviour(tokens=3, cut=True))
    with pytest.raises(openai.APIError, match="does not resume the streams of other workers") as broken:
        async for chunk in await gateway.client.completions.create(**ask):
            text += chunk.choices[0].text
    assert (text, broken.value.code) == (expected(workers[0])[:3], "stream_broken")


@pytest.mark.parametrize("field", [{"presence_penalty": 0.5}, {"bad_words": ["no way"]}])
async def test_a_stream_that_cannot_be_continued_as_asked_ends_with_an_error(room: Room, field: dict[str, Any]) -> None:
    workers = await room.workers(2)
    gateway = await room.gateway(workers)
    for behaviour in AFTER_THREE_TOKENS:
        for worker in workers:
            worker.seen.clear()
            worker.behaviours.append(behaviour)
        stream = await gateway.client.completions.create(**ASK, extra_body=field, stream=True)
        text = ""
        with pytest.raises(openai.APIError, match="broke off after 3 tokens") as broken:
            async for chunk in stream:
                text += chunk.choices[0].text
        assert text == expected(workers[0])[:3]
        assert broken.value.code == "stream_broken"
        assert sum(len(worker.seen) for worker in workers) == 1
        for worker in workers:
            worker.behaviours.clear()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_client_that_leaves_ends_the_request_at_the_worker(room: Room, stream: bool) -> None:
    (worker,) = await room.workers(1)
    gateway = await room.gateway([worker])
    worker.behaviours.append(Behaviour(tokens=2, gate=asyncio.Event()))
    asked: asyncio.Task[Any] = asyncio.create_task(gateway.client.completions.create(**ASK, stream=stream))
    async with asyncio.timeout(30):
        await worker.begun.wait()
        if stream:
            await (await asked).close()
        else:
            asked.cancel()
        await worker.cancelled.wait()
    await eventually(lambda: _in_flight(gateway, 0), "the gateway counts nothing in flight")


async def test_a_stream_that_falls_silent_after_its_first_token_moves_on(room: Room) -> None:
    workers = await room.workers(2)
    gateway = await room.gateway(workers, inactivity_timeout_seconds=0.5, router="round-robin", suspect_seconds=0)
    workers[0].behaviours.append(Behaviour(tokens=2, gate=asyncio.Event()))
    texts = [await read(await gateway.client.completions.create(**ASK, stream=True)) for _ in range(2)]
    assert texts == [expected(workers[0])] * 2
    assert workers[0].cancelled.is_set()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_an_answer_that_does_not_come_in_time_is_given_up_and_its_worker_is_no_suspect(
    room: Room, stream: bool
) -> None:
    workers = await room.workers(2)
    gateway = await room.gateway(
        workers,
        first_token_timeout_seconds=0.5,
        answer_timeout_seconds=0.5,
        inactivity_timeout_seconds=60,
        suspect_seconds=60,
    )
    for worker in workers:
        worker.behaviours.append(Behaviour(tokens=0, gate=asyncio.Event()))
    with pytest.raises(openai.InternalServerError) as late:
        await gateway.client.completions.create(**ASK, stream=stream)
    assert (late.value.status_code, late.value.code) == (504, "timed_out")
    assert late.value.response.headers["X-Should-Retry"] == "false"
    assert sum(len(worker.seen) for worker in workers) == 1, "a second worker would have to do it all again"
    assert not any(endpoint["suspect"] for endpoint in (await gateway.report())["endpoints"])
    metrics = await gateway.metrics()
    assert metrics['pointsman_gateway_failures_total{reason="timed-out",service="chat"}'] == 1
    assert metrics['pointsman_gateway_requests_total{code="504",endpoint="completions",service="chat"}'] == 1


@pytest.mark.parametrize("tokens", [0, 3], ids=["before its first token", "after three tokens"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_prompt_that_kills_its_worker_kills_two_workers_at_most(room: Room, stream: bool, tokens: int) -> None:
    workers = await room.workers(6)
    gateway = await room.gateway(workers)
    for worker in workers:
        worker.behaviours.append(Behaviour(tokens=tokens, cut=True))
    if stream and tokens:
        with pytest.raises(openai.APIError, match="2 workers failed while answering this request") as died:
            await read(await gateway.client.completions.create(**ASK, stream=True))
        assert died.value.code == "stream_broken"
    else:
        with pytest.raises(openai.InternalServerError, match="2 workers failed while answering this request") as failed:
            # OpenAI's client repeats a 5xx by itself, and so would kill two more each time.
            await gateway.client.with_options(max_retries=2).completions.create(**ASK, stream=stream)
        assert (failed.value.status_code, failed.value.code) == (502, "workers_died")
        assert "127.0.0.1" not in failed.value.message, "pods are named, not addresses"
    assert sum(len(worker.seen) for worker in workers) == 2


async def test_a_worker_that_was_known_to_be_down_is_no_further_death(room: Room) -> None:
    """A node takes all workers along: the request was at one of them, and the others are tried while they are gone."""
    (worker,) = await room.workers(1)
    gateway = await room.gateway([worker], suspect_seconds=5)
    worker.behaviours.extend([Behaviour(cut=True), Behaviour(cut=True)])
    assert (await gateway.client.completions.create(**ASK)).choices[0].text == expected(worker)
    assert len(worker.seen) == 3


async def test_patience_is_for_workers_that_are_missing_and_not_for_one_that_computed_for_long(room: Room) -> None:
    (worker,) = await room.workers(1)
    gateway = await room.gateway([worker], patience_seconds=0.5)
    gate = asyncio.Event()
    worker.behaviours.append(Behaviour(status=500, gate=gate))
    asking = asyncio.create_task(gateway.client.completions.create(**ASK))
    await eventually(lambda: len(worker.seen) == 1, "the worker has it")
    await asyncio.sleep(1)  # longer than patience
    gate.set()
    assert (await asking).choices[0].text == expected(worker)


@pytest.mark.parametrize("reports", [["prefill-0,prefill-1"], ["prefill-0", "prefill-1"]], ids=["at once", "in turn"])
async def test_prefill_workers_that_died_with_a_prompt_count_as_its_deaths(room: Room, reports: list[str]) -> None:
    workers = await room.workers(4)
    gateway = await room.gateway(workers)
    in_turn = deque(Behaviour(status=503, retry="prefill-died", died=died) for died in reports)
    for worker in workers:
        worker.behaviours = in_turn
    with pytest.raises(openai.InternalServerError, match=r"2 workers failed .* \(prefill-0, prefill-1\)") as failed:
        await gateway.client.completions.create(**ASK)
    assert (failed.value.status_code, failed.value.code) == (502, "workers_died")
    told = sorted(seen.headers["X-Pointsman-Deaths"] for worker in workers for seen in worker.seen)
    assert told == ["0", "1"][: len(reports)]
    assert not any(endpoint["ejections"] for endpoint in (await gateway.report())["endpoints"])


async def test_a_request_whose_prefill_worker_died_is_sent_once_more(room: Room) -> None:
    [worker] = await room.workers(1)
    gateway = await room.gateway([worker])
    worker.behaviours.append(Behaviour(status=503, retry="prefill-died", died="prefill-0"))
    assert (await gateway.client.completions.create(**ASK)).choices[0].text == expected(worker)
    assert [seen.headers["X-Pointsman-Deaths"] for seen in worker.seen] == ["0", "1"]


async def test_an_engine_that_dies_with_an_answer_counts_as_a_worker_that_died(room: Room) -> None:
    workers = await room.workers(4)
    gateway = await room.gateway(workers)
    dead = {
        "error": {"message": "EngineCore encountered an issue: secret prompt", "type": "EngineDeadError", "code": 500}
    }
    for worker in workers:
        worker.behaviours.append(Behaviour(status=500, body=dead))
    with pytest.raises(openai.InternalServerError, match="2 workers failed") as failed:
        await gateway.client.completions.create(**ASK)
    assert "secret prompt" not in failed.value.message
    assert not any("secret prompt" in str(line) for line in gateway.logs)
    assert sum(len(worker.seen) for worker in workers) == 2


async def test_a_stream_whose_workers_all_abort_is_moved_three_times_in_its_whole_life(room: Room) -> None:
    workers = await room.workers(6)
    gateway = await room.gateway(workers)
    for number, worker in enumerate(workers):
        worker.behaviours.append(Behaviour(tokens=number % 2, abort=True))
    with pytest.raises(openai.APIError, match="4 attempts failed"):
        await read(await gateway.client.completions.create(**ASK, stream=True))
    assert sum(len(worker.seen) for worker in workers) == 4


async def test_a_worker_that_fails_is_left_alone_after_five_failures_and_comes_back(room: Room) -> None:
    workers = await room.workers(2)
    # The report must come while the worker is left alone, however busy the computer is.
    gateway = await room.gateway(workers, router="round-robin", suspect_seconds=4)
    failing = workers[0]
    failing.behaviours.extend([Behaviour(status=500)] * 5)
    while len(failing.seen) < 5:
        assert (await gateway.client.completions.create(**ASK)).choices[0].text == expected(failing)
    report = {e["worker"]: e for e in (await gateway.report())["endpoints"]}
    assert (report["decode-0"]["suspect"], report["decode-0"]["ejections"]) == (True, 1)
    assert not report["decode-1"]["suspect"]
    metrics = await gateway.metrics()
    assert metrics['pointsman_gateway_ejections_total{reason="failing",service="chat"}'] == 1
    assert metrics['pointsman_gateway_workers{role="decode",service="chat",state="suspect"}'] == 1

    async def is_back() -> bool:
        await gateway.client.completions.create(**ASK)
        return len(failing.seen) > 5

    await eventually(is_back, "a request tries it again")
    report = {e["worker"]: e for e in (await gateway.report())["endpoints"]}
    assert (report["decode-0"]["suspect"], report["decode-0"]["ejections"]) == (False, 0)


async def test_an_engine_that_refuses_one_of_several_prompts_late_is_quoted_in_the_stream(room: Room) -> None:
    (worker,) = await room.workers(1)
    gateway = await room.gateway([worker])
    refused, rest = asyncio.Event(), asyncio.Event()
    error = {"message": "this prompt is not possible", "type": "BadRequestError", "param": "prompt", "code": 400}
    worker.behaviours.append(Behaviour(tokens=2, gate=rest))
    worker.behaviours.append(Behaviour(status=400, body={"error": error}, gate=refused))
    stream = await gateway.client.completions.create(**ASK | {"prompt": ["a", "b"]}, stream=True)
    with pytest.raises(openai.APIError) as told:
        async for _chunk in stream:
            refused.set()
    assert told.value.body == error


async def test_a_worker_that_breaks_five_streams_after_their_first_token_is_left_alone(room: Room) -> None:
    workers = await room.workers(2)
    gateway = await room.gateway(workers, router="round-robin", suspect_seconds=60)
    failing = workers[0]
    failing.behaviours.extend([Behaviour(tokens=2, error_event=True)] * 5)
    while len(failing.seen) < 5:
        assert await read(await gateway.client.completions.create(**ASK, stream=True)) == expected(failing)
    report = {e["worker"]: e for e in (await gateway.report())["endpoints"]}
    assert (report["decode-0"]["suspect"], report["decode-0"]["ejections"]) == (True, 1)
    assert not report["decode-1"]["suspect"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_worker_whose_node_vanishes_costs_seconds(room: Room, stream: bool) -> None:
    vanishing, other = await room.workers(2)
    async with TcpProxy(vanishing.url) as network:
        seen = Entry(vanishing.name, network.url)
        gateway = await room.gateway([], router="round-robin")
        gateway.write_endpoints([seen])
        await gateway.knows(seen)
        vanishing.behaviours.append(Behaviour(tokens=3 if stream else 8, gate=asyncio.Event()))

        async def ask() -> str:
            if stream:
                return await read(await gateway.client.completions.create(**ASK, stream=True))
            return str((await gateway.client.completions.create(**ASK)).choices[0].text)

        asked = asyncio.create_task(ask())
        await vanishing.begun.wait()
        await network.vanish()
        gateway.write_endpoints([other])
        async with asyncio.timeout(60):  # of the 120 and 900 s that silence and an answer may take
            assert await asked == expected(other)
        assert await gateway.logged("worker no longer exists", worker=vanishing.name, ended=1)


async def test_a_worker_that_leaves_the_set_and_lives_finishes_what_it_has(room: Room) -> None:
    draining, other = await room.workers(2)
    gateway = await room.gateway([draining])
    gate = asyncio.Event()
    draining.behaviours.append(Behaviour(tokens=2, gate=gate, finish=True))
    stream = await gateway.client.completions.create(**ASK, stream=True)
    gateway.write_endpoints([other])
    await gateway.knows(other)
    await asyncio.sleep(3)  # longer than a worker that is gone would take to be given up
    gate.set()
    assert await read(stream) == expected(draining)[:2]
    assert not other.seen


async def test_connections_to_workers_are_used_again_after_a_stream(room: Room) -> None:
    (worker,) = await room.workers(1)
    async with TcpProxy(worker.url) as network:
        seen = Entry(worker.name, network.url)
        gateway = await room.gateway([], inactivity_timeout_seconds=60)
        gateway.write_endpoints([seen])
        await gateway.knows(seen)
        before = network.connections
        for _ in range(8):
            assert await read(await gateway.client.completions.create(**ASK, stream=True)) == expected(worker)
        assert network.connections - before <= 3


async def test_a_lone_worker_that_refuses_is_asked_again_until_patience_ends(room: Room) -> None:
    (worker,) = await room.workers(1)
    gateway = await room.gateway([worker])
    worker.behaviours.extend([Behaviour(status=503, retry="draining")] * 3)
    assert (await gateway.client.completions.create(**ASK)).choices[0].text == expected(worker)
    assert len(worker.seen) == 4


async def test_when_all_attempts_fail_the_client_learns_why(room: Room) -> None:
    (worker,) = await room.workers(1)
    gateway = await room.gateway([worker])
    worker.behaviours.extend([Behaviour(status=500)] * 9)
    with pytest.raises(openai.APIStatusError) as failed:
        await gateway.client.completions.create(**ASK)
    assert failed.value.status_code == 502
    assert (
        "4 attempts failed, and an answer may move 3 times; the limit is spec.gateway.limits.maxMoves"
        in failed.value.message
    )
    assert "the last: decode-0: http-500" in failed.value.message
    assert failed.value.response.headers["Retry-After"] == "1"
    assert failed.value.response.headers["X-Request-Id"]
    assert len(worker.seen) == 4


async def test_without_any_worker_the_answer_is_503_and_with_one_that_comes_in_time_it_is_served(room: Room) -> None:
    (worker,) = await room.workers(1)
    gateway = await room.gateway([worker])
    gateway.write_endpoints([])
    await gateway.knows()
    waiting = asyncio.create_task(gateway.client.completions.create(**ASK))
    await eventually(lambda: _in_flight(gateway, 1), "the request waits")
    gateway.write_endpoints([worker])
    assert (await waiting).choices[0].text == expected(worker)


async def test_no_worker_for_too_long_is_503(room: Room) -> None:
    gateway = await room.gateway([], patience_seconds=0.2)
    for path in ("/completions", "/models"):
        with pytest.raises(openai.InternalServerError) as refused:
            if path == "/completions":
                await gateway.client.completions.create(**ASK)
            else:
                await gateway.client.models.list()
        assert refused.value.status_code == 503
        assert refused.value.code == "no_worker_available"


async def test_the_first_request_waits_for_a_worker_that_is_slow_to_say_what_it_serves(room: Room) -> None:
    (worker,) = await room.workers(1)
    worker.says_its_model = asyncio.Event()
    gateway = await room.gateway([], patience_seconds=0.2)
    gateway.write_endpoints([worker])
    await worker.asked.wait()
    waiting = asyncio.create_task(gateway.client.completions.create(**ASK))
    await eventually(lambda: _in_flight(gateway, 1), "the request waits")
    await asyncio.sleep(0.5)  # longer than anybody waits where there is no worker
    assert not waiting.done()
    worker.says_its_model.set()
    assert (await waiting).choices[0].text == expected(worker)


async def test_sigterm_lets_open_streams_finish(room: Room) -> None:
    (worker,) = await room.workers(1)
    gateway = await room.gateway([worker], shutdown_seconds=30)
    gate = asyncio.Event()
    worker.behaviours.append(Behaviour(tokens=2, gate=gate, finish=True))
    stream = await gateway.client.completions.create(**ASK, stream=True)
    gateway.of.process.terminate()
    await eventually(lambda: any(line["message"] == "stopping" for line in gateway.logs), "the gateway stops")
    gate.set()
    assert await read(stream) == expected(worker)[:2]
    assert await asyncio.to_thread(gateway.of.process.wait, 120) == 0


async def test_a_gateway_that_ends_stays_ready_for_what_a_service_sends_it_and_keeps_no_connection(room: Room) -> None:
    """A Service without another ready gateway sends requests to one that ends, but only while its probe is good."""
    (worker,) = await room.workers(1)
    gateway = await room.gateway([worker], linger_seconds=6)
    gateway.of.process.terminate()
    await eventually(lambda: any(line["message"] == "stopping" for line in gateway.logs), "the gateway stops")
    async with gateway.http.get(f"{gateway.of.url}/ready") as ready:
        assert ready.status == 200
    async with gateway.http.post(f"{gateway.of.url}/v1/completions", json=ASK) as answer:
        assert (await answer.json())["choices"][0]["text"] == expected(worker)
        assert answer.headers["Connection"] == "close"
    assert await asyncio.to_thread(gateway.of.process.wait, 120) == 0


async def _in_flight(gateway: Gateway, count: int) -> bool:
    metrics = await gateway.metrics()
    return metrics['pointsman_gateway_in_flight{service="chat"}'] == count
