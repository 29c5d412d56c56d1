"""What the official client sees: answers, streams, usage, errors."""

import asyncio
import itertools
from collections.abc import Awaitable
from typing import Any, Final

import openai
import pytest
from openai.types.chat import ChatCompletionFunctionToolParam, ChatCompletionMessageParam

from fixtures.gateways import Gateway
from integration.gateway.conftest import ROUTING, Room
from integration.gateway.stand_in_worker import MAX_MODEL_LEN, SERVED_NAME, Behaviour, StandInWorker
from waiting import eventually

CONVERSATION: list[ChatCompletionMessageParam] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Which track is free?"},
]


def chat_prompt(worker: StandInWorker) -> list[int]:
    """What the gateway must have made of CONVERSATION, by the model's own template."""
    text = worker.tokenizer.apply_chat_template(CONVERSATION, tokenize=False, add_generation_prompt=True)
    return list(worker.tokenizer(text, add_special_tokens=False)["input_ids"])


async def test_a_completion_and_its_stream_bring_the_same_text_and_usage(room: Room) -> None:
    (worker,) = await room.workers(1)
    gateway = await room.gateway([worker])
    prompt = worker.tokenizer("The points are set.")["input_ids"]
    expected = worker.tokenizer.decode(worker.output(prompt, 12))

    whole = await gateway.client.completions.create(model=SERVED_NAME, prompt="The points are set.", max_tokens=12)
    stream = await gateway.client.completions.create(
        model=SERVED_NAME,
        prompt="The points are set.",
        max_tokens=12,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]

    assert whole.choices[0].text == expected
    assert whole.choices[0].finish_reason == "length"
    assert "".join(c.choices[0].text for c in chunks if c.choices) == expected
    assert [c.choices[0].finish_reason for c in chunks if c.choices] == [None] * 11 + ["length"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    assert whole.usage is not None
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (len(prompt), 12)
    assert len({chunk.id for chunk in chunks}) == 1
    assert worker.seen[0].body["prompt"] == prompt


async def test_a_chat_is_rendered_and_tokenised_by_the_gateway_and_comes_back_as_chat(room: Room) -> None:
    (worker,) = await room.workers(1)
    gateway = await room.gateway([worker])
    prompt = chat_prompt(worker)
    expected = worker.tokenizer.decode(worker.output(prompt, 9))

    whole = await gateway.client.chat.completions.create(
        model=SERVED_NAME, messages=CONVERSATION, max_completion_tokens=9, temperature=0
    )
    stream = await gateway.client.chat.completions.create(
        model=SERVED_NAME,
        messages=CONVERSATION,
        max_tokens=9,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]

    assert [seen.path for seen in worker.seen] == ["/v1/completions"] * 2
    assert [seen.body["prompt"] for seen in worker.seen] == [prompt] * 2
    assert worker.seen[0].body["temperature"] == 0
    assert whole.object == "chat.completion"
    assert whole.choices[0].message.content == expected
    assert whole.choices[0].message.role == "assistant"
    assert whole.choices[0].finish_reason == "length"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert all(chunk.object == "chat.completion.chunk" for chunk in chunks)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == expected
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"
    assert chunks[-1].usage == whole.usage


async def test_a_chat_without_a_limit_may_fill_the_context(room: Room) -> None:
    (worker,) = await room.workers(1)
    gateway = await room.gateway([worker])
    await gateway.client.chat.completions.create(model=SERVED_NAME, messages=CONVERSATION)
    assert worker.seen[0].body["max_tokens"] == MAX_MODEL_LEN - len(chat_prompt(worker))


@pytest.mark.parametrize("stream", [False, True])
async def test_tools_go_to_the_engines_own_chat_endpoint(room: Room, stream: bool) -> None:
    (worker,) = await room.workers(1)
    gateway = await room.gateway([worker])
    tools: list[ChatCompletionFunctionToolParam] = [
        {"type": "function", "function": {"name": "set_switch", "parameters": {"type": "object"}}}
    ]

    if stream:
        chunks = [
            chunk
            async for chunk in await gateway.client.chat.completions.create(
                model=SERVED_NAME, messages=CONVERSATION, tools=tools, stream=True
            )
        ]
        deltas = [call.function for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
        called = [function.name for function in deltas if function is not None]
    else:
        answer = await gateway.client.chat.completions.create(model=SERVED_NAME, messages=CONVERSATION, tools=tools)
        calls = answer.choices[0].message.tool_calls or []
        called = [call.function.name for call in calls if call.type == "function"]

    assert called == ["set_switch"]
    assert worker.seen[0].path == "/v1/chat/completions"
    assert worker.seen[0].body["tools"] == tools


async def test_the_answers_to_one_prompt_come_from_one_worker_with_one_usage(room: Room) -> None:
    workers = await room.workers(2)
    gateway = await room.gateway(workers)
    ask: dict[str, Any] = {"model": SERVED_NAME, "prompt": ["first", "second"], "n": 2, "seed": 7, "max_tokens": 4}

    whole = await gateway.client.completions.create(**ask)
    stream = await gateway.client.completions.create(**ask, stream=True, stream_options={"include_usage": True})
    texts = ["", "", "", ""]
    usage = None
    async for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
        usage = chunk.usage or usage

    seen = [seen for worker in workers for seen in worker.seen]
    tokenizer = workers[0].tokenizer
    expected = [
        tokenizer.decode(workers[0].output(tokenizer(prompt)["input_ids"], 4, choice))
        for prompt in ask["prompt"]
        for choice in (0, 1)
    ]
    assert len(set(expected)) == 4
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in whole.choices] == texts == expected
    assert [(s.body["n"], s.body["seed"]) for s in seen] == [(2, 7)] * 4
    assert len({s.headers["X-Request-Id"] for s in seen}) == 4
    assert usage == whole.usage
    assert whole.usage is not None
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (6 + 7, 16)
    assert whole.usage.prompt_tokens_details is not None
    assert whole.usage.prompt_tokens_details.cached_tokens == 2


PARTS: list[ChatCompletionMessageParam] = [{"role": "user", "content": [{"type": "text", "text": "Which track?"}]}]


@pytest.mark.parametrize(
    "asked",
    [
        {"logprobs": True},
        {"messages": PARTS},
        {"messages": [{"role": "developer", "content": "Be brief."}, *PARTS]},
        {"extra_body": {"reasoning_effort": "low", "verbosity": "low", "modalities": ["text"], "of_the_future": 1}},
        {"extra_body": {"best_of": 2}, "seed": 2**63 - 1},
    ],
    ids=["logprobs", "parts", "developer", "unknown fields", "best_of and the largest seed"],
)
async def test_two_answers_can_be_had_of_every_chat(room: Room, asked: dict[str, Any]) -> None:
    (worker,) = await room.workers(1)
    gateway = await room.gateway([worker])
    ask: dict[str, Any] = {"model": SERVED_NAME, "messages": CONVERSATION, "n": 2, "max_tokens": 5} | asked
    whole = await gateway.client.chat.completions.create(**ask)
    texts = ["", ""]
    async for chunk in await gateway.client.chat.completions.create(**ask, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            assert "token_ids" not in choice.to_dict() or choice.to_dict()["token_ids"] is None
    prompt = worker.rendered({"messages": ask["messages"]})
    expected = [worker.tokenizer.decode(worker.output(prompt, 5, choice)) for choice in (0, 1)]
    assert [choice.message.content for choice in whole.choices] == texts == expected
    assert len(worker.seen) == 2


async def test_a_body_that_goes_as_it_is_is_counted_by_its_reason(room: Room) -> None:
    (worker,) = await room.workers(1)
    gateway = await room.gateway([worker])
    counter = 'pointsman_gateway_verbatim_total{reason="message-content",service="chat"}'
    before = (await gateway.metrics())[counter]
    await gateway.client.chat.completions.create(model=SERVED_NAME, messages=PARTS, max_tokens=2)
    assert (await gateway.metrics())[counter] - before == 1


async def test_300_prompts_are_answered_in_order(room: Room) -> None:
    (worker,) = await room.workers(1)
    gateway = await room.gateway([worker])
    prompts = [[number, number + 1] for number in range(10, 310)]
    answer = await gateway.client.completions.create(model=SERVED_NAME, prompt=prompts, max_tokens=1)
    assert [choice.text for choice in answer.choices] == [
        worker.tokenizer.decode(worker.output(prompt, 1)) for prompt in prompts
    ]


async def test_requests_for_an_adapter_that_is_being_added_go_to_the_workers_that_have_it(room: Room) -> None:
    old, new = await room.workers(2)
    new.adapters = ("french",)
    gateway = await room.gateway([old, new])
    await gateway.knows(old, new)
    client = gateway.client
    for _ in range(4):
        assert (await client.completions.create(model="french", prompt=[5, 6], max_tokens=1)).choices[0].text
        assert (await client.chat.completions.create(model="french", messages=CONVERSATION)).choices[0].message.content
    assert not [seen for seen in old.seen if seen.body["model"] == "french"]


async def test_the_model_list_names_the_served_model_and_wrong_names_are_refused(room: Room) -> None:
    (worker,) = await room.workers(1)
    gateway = await room.gateway([worker])
    assert [model.id async for model in gateway.client.models.list()] == [SERVED_NAME]
    with pytest.raises(openai.NotFoundError) as refused:
        await gateway.client.chat.completions.create(model="gpt-4", messages=CONVERSATION)
    assert refused.value.code == "model_not_found"
    assert "'stand-in'" in refused.value.message


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        ({"prompt": ""}, "prompt", "missing or empty"),
        ({"prompt": "x", "n": 0}, "n", "at least 1"),
        ({"prompt": "x", "stream": "yes"}, "stream", "true or false"),
        ({"prompt": "x", "kv_transfer_params": {"do_remote_prefill": True}}, "kv_transfer_params", "not accepted"),
        ({"prompt": "x" * 5000}, "prompt", "maximum context length is 4096"),
        ({"prompt": [1, -2]}, "prompt", "-2"),
    ],
)
async def test_a_wrong_field_is_refused_by_name(
    shared: tuple[StandInWorker, openai.AsyncOpenAI], body: dict[str, object], param: str, says: str
) -> None:
    worker, client = shared
    with pytest.raises(openai.BadRequestError) as refused:
        await client.post("/completions", body={"model": SERVED_NAME, **body}, cast_to=object)
    assert refused.value.param == param
    assert says in refused.value.message
    assert refused.value.type == "invalid_request_error"
    assert worker.seen == []


@pytest.fixture
async def shared(room: Room) -> tuple[StandInWorker, openai.AsyncOpenAI]:
    (worker,) = await room.workers(1)
    return worker, (await room.gateway([worker])).client


async def test_the_engines_own_refusal_reaches_the_client_unchanged(room: Room) -> None:
    from integration.gateway.stand_in_worker import Behaviour

    (worker,) = await room.workers(1)
    gateway = await room.gateway([worker])
    refusal = {"error": {"message": "top_p is 2", "type": "BadRequestError", "param": "top_p", "code": 400}}
    worker.behaviours.append(Behaviour(status=400, body=refusal))
    with pytest.raises(openai.BadRequestError) as refused:
        await gateway.client.completions.create(model=SERVED_NAME, prompt="x", top_p=2)
    assert refused.value.body == refusal["error"]
    assert len(worker.seen) == 1


async def test_chats_go_as_they_are_to_an_engine_that_renders_them_differently(room: Room) -> None:
    (worker,) = await room.workers(1)
    worker.other_template = True
    gateway = await room.gateway([worker])
    answer = await gateway.client.chat.completions.create(model=SERVED_NAME, messages=CONVERSATION, max_tokens=4)
    assert answer.choices[0].message.content == worker.tokenizer.decode(worker.output(chat_prompt(worker), 4))
    assert [seen.path for seen in worker.seen] == ["/v1/chat/completions"]
    assert await gateway.logged("model known", doubt="the engine renders probe conversation 0 differently")
    await gateway.client.completions.create(model=SERVED_NAME, prompt="texts are not concerned", max_tokens=1)
    assert worker.seen[-1].path == "/v1/completions"
    assert isinstance(worker.seen[-1].body["prompt"], list)


async def test_request_ids_thresholds_and_provenance_travel_and_the_clients_own_do_not(room: Room) -> None:
    (worker,) = await room.workers(1)
    gateway = await room.gateway([worker])
    answer = await gateway.client.completions.with_raw_response.create(
        model=SERVED_NAME,
        prompt="x",
        max_tokens=1,
        extra_headers={"X-Request-Id": "my-id.7", "X-Pointsman-Max-Local-Prefill-Tokens": "0"},
    )
    sent = worker.seen[0].headers
    assert (sent["X-Request-Id"], answer.headers["X-Request-Id"]) == ("my-id.7", "my-id.7")
    assert sent["X-Pointsman-Max-Local-Prefill-Tokens"] == "123"
    assert sent["X-Pointsman-Max-Prefill-Queue-Size"] == "4"
    assert 890_000 < int(sent["X-Pointsman-Deadline-Ms"]) <= 900_000, "the gateway's limit, as time that is left"
    assert "Authorization" not in sent
    assert answer.headers["X-Pointsman-Worker"] == "decode-0"
    assert answer.headers["X-Pointsman-Prefill"] == "local"
    assert answer.parse().id == "cmpl-my-id.7"
    (line,) = await gateway.logged("request", request_id="my-id.7")
    assert (line["status"], line["worker"], line["prefill"], line["output_tokens"]) == (200, "decode-0", "local", 1)


async def test_a_clients_own_time_for_the_first_token_reaches_the_worker_and_a_wrong_one_is_refused(room: Room) -> None:
    (worker,) = await room.workers(1)
    gateway = await room.gateway([worker])
    await gateway.client.completions.create(
        model=SERVED_NAME, prompt="x", max_tokens=1, extra_headers={"X-Pointsman-Deadline-Ms": "30000"}
    )
    assert 20_000 < int(worker.seen[0].headers["X-Pointsman-Deadline-Ms"]) <= 30_000
    with pytest.raises(openai.BadRequestError, match="X-Pointsman-Deadline-Ms is 'soon'"):
        await gateway.client.completions.create(
            model=SERVED_NAME, prompt="x", max_tokens=1, extra_headers={"X-Pointsman-Deadline-Ms": "soon"}
        )


async def test_an_unusable_request_id_is_replaced(room: Room) -> None:
    (worker,) = await room.workers(1)
    gateway = await room.gateway([worker])
    answer = await gateway.client.completions.with_raw_response.create(
        model=SERVED_NAME, prompt="x", max_tokens=1, extra_headers={"X-Request-Id": "a b/../c"}
    )
    assert answer.headers["X-Request-Id"] == worker.seen[0].headers["X-Request-Id"] != "a b/../c"


async def test_wrong_paths_methods_and_tokens_are_answered_in_openais_shape(room: Room) -> None:
    (worker,) = await room.workers(1)
    gateway = await room.gateway([worker])
    url = gateway.of.url
    for method, path, status in (
        ("GET", "/v1/nothing", 404),
        ("GET", "/v1/chat/completions", 405),
        ("GET", "/v1/models/another", 404),
        ("GET", "/pointsman/v1/endpoints", 401),
    ):
        async with gateway.http.request(method, url + path) as answer:
            assert answer.status == status
            assert (await answer.json())["error"]["type"] == "invalid_request_error"
    headers = {"Authorization": "Bearer wrong"}
    async with gateway.http.get(f"{url}/pointsman/v1/endpoints", headers=headers) as answer:
        assert answer.status == 401
    async with gateway.http.get(f"{url}/v1/models/{SERVED_NAME}") as answer:
        assert (await answer.json())["id"] == SERVED_NAME


async def test_the_latencies_of_a_stream_are_measured_where_the_client_sees_them(room: Room) -> None:
    (worker,) = await room.workers(1)
    gateway = await room.gateway([worker])
    before = await gateway.metrics()
    stream = await gateway.client.completions.create(model=SERVED_NAME, prompt="12345678", max_tokens=8, stream=True)
    async for _ in stream:
        pass
    await gateway.client.completions.create(model=SERVED_NAME, prompt="12345678", max_tokens=8)
    after = await gateway.metrics()

    def grown(name: str) -> float:
        return after[name] - before.get(name, 0.0)

    path = '{path="local",service="chat"}'
    assert grown(f"pointsman_gateway_time_to_first_token_seconds_count{path}") == 1
    assert grown(f"pointsman_gateway_time_per_output_token_seconds_count{path}") == 1
    # Tokens in one read with the first have no gap that anybody knows; no other gap is nothing.
    assert grown(f"pointsman_gateway_inter_token_latency_seconds_count{path}") <= 7
    shortest = f'pointsman_gateway_inter_token_latency_seconds_bucket{{le="0.0",{path[1:]}'
    assert after.get(shortest, 0.0) == 0
    assert grown(f"pointsman_gateway_request_seconds_count{path}") == 2
    assert grown('pointsman_gateway_output_tokens_sum{service="chat"}') == 16
    # By the bucket that counts their prompts.
    prompts = "pointsman_gateway_prompt_tokens_bucket"
    reached = [grown(f'{prompts}{{le="{bound}",service="chat"}}') for bound in ("1.0", "4.0", "16.0", "64.0")]
    answers = [
        grown(f'pointsman_gateway_answers_total{{prompt_tokens="{bucket}",service="chat"}}')
        for bucket in ("1", "4", "16", "64")
    ]
    assert list(itertools.accumulate(answers)) == reached
    assert sum(answers) == 2
    assert sum(grown(name) for name in after if name.startswith("pointsman_gateway_answer_tokens_total{")) == 16
    assert grown('pointsman_gateway_requests_total{code="200",endpoint="completions",service="chat"}') == 2


async def judged(gateway: Gateway, worker: StandInWorker, ttft_ms: float, tpot_ms: float) -> None:
    """These objectives are in force."""
    goals = {"ttftMs": ttft_ms, "tpotMs": tpot_ms}
    gateway.write_endpoints([worker], routing=ROUTING | {"objectives": goals})
    expected = {"ttft": ttft_ms / 1000, "tpot": tpot_ms / 1000}

    async def known() -> bool:
        metrics = await gateway.metrics()
        name = 'pointsman_gateway_objective_seconds{{objective="{}",service="chat"}}'.format
        return all(metrics.get(name(objective)) == seconds for objective, seconds in expected.items())

    await eventually(known, f"{goals} are in force")


_REFUSED_PROMPTS: Final = "pointsman_gateway_accepted_refused_prompt_tokens_count"


async def counted(gateway: Gateway, requests: Awaitable[object]) -> dict[str, float]:
    """What ``requests`` added to the counters of load and objectives, without those that stayed."""
    before = await gateway.metrics()
    await requests
    names = ("accepted", "accepted_refused", "first_tokens", "ended")
    after = await gateway.metrics()
    return {
        name.removeprefix("pointsman_gateway_").replace(',service="chat"', "").replace('service="chat",', ""): grown
        for name, value in after.items()
        if name.startswith((*(f"pointsman_gateway_{each}_total" for each in names), _REFUSED_PROMPTS))
        and (grown := value - before.get(name, 0.0))
    }


async def test_streams_and_whole_answers_are_counted_against_the_objectives_in_force(room: Room) -> None:
    (worker,) = await room.workers(1)
    gateway = await room.gateway([worker])
    ask: dict[str, Any] = {"model": SERVED_NAME, "prompt": "12345678"}

    async def three() -> None:
        async for _ in await gateway.client.completions.create(**ask, max_tokens=8, stream=True):
            pass
        await gateway.client.completions.create(**ask, max_tokens=8)
        await gateway.client.completions.create(**ask, max_tokens=1)

    load = 'accepted_total{service="chat"}'
    assert await counted(gateway, three()) == {
        load: 3,
        'first_tokens_total{ttft="unknown"}': 3,
        'ended_total{tpot="unknown",ttft="unknown"}': 2,
        'ended_total{tpot="none",ttft="unknown"}': 1,
    }, "no objectives are in force"
    await judged(gateway, worker, 60_000, 60_000)
    assert await counted(gateway, three()) == {
        load: 3,
        'first_tokens_total{ttft="met"}': 3,
        'ended_total{tpot="met",ttft="met"}': 2,
        'ended_total{tpot="none",ttft="met"}': 1,
    }
    worker.decode_ms = 7000.0  # a whole answer whose first token came before the request: the stand-in has no time
    await judged(gateway, worker, 0.001, 500)
    assert await counted(gateway, three()) == {
        load: 3,
        'first_tokens_total{ttft="missed"}': 2,  # the stream, and the whole answer of one token
        'first_tokens_total{ttft="met"}': 1,
        'ended_total{tpot="met",ttft="missed"}': 1,
        'ended_total{tpot="missed",ttft="met"}': 1,  # 1000 ms per token
        'ended_total{tpot="none",ttft="missed"}': 1,
    }
    worker.decode_ms = None  # of the version before
    assert await counted(gateway, gateway.client.completions.create(**ask, max_tokens=8)) == {
        load: 1,
        'first_tokens_total{ttft="unknown"}': 1,
        'ended_total{tpot="unknown",ttft="unknown"}': 1,
    }


async def test_a_stream_that_is_given_up_after_its_objective_is_missed_and_before_it_is_not_counted(room: Room) -> None:
    (worker,) = await room.workers(1)
    gateway = await room.gateway([worker])
    ask: dict[str, Any] = {"model": SERVED_NAME, "prompt": "12345678", "max_tokens": 4}

    async def leaves(streams: bool) -> None:
        worker.behaviours.append(Behaviour(gate=asyncio.Event()))
        seen, left = len(worker.seen), len(gateway.of.logged("request", status=499))
        asking = asyncio.create_task(gateway.client.completions.create(**ask, stream=streams))
        await eventually(lambda: len(worker.seen) > seen, "the worker has the request")
        await asyncio.sleep(0.2)  # longer than the objective of 100 ms
        asking.cancel()
        await asyncio.wait([asking])
        await eventually(lambda: len(gateway.of.logged("request", status=499)) > left, "it is known that it left")

    await judged(gateway, worker, 60_000, 60_000)
    load = {'accepted_total{service="chat"}': 1}
    assert await counted(gateway, leaves(True)) == load, "it did not wait as long as it had to"
    await judged(gateway, worker, 100, 60_000)
    assert await counted(gateway, leaves(True)) == load | {'ended_total{tpot="failed",ttft="missed"}': 1}
    assert await counted(gateway, leaves(False)) == load, "its first token may have come"


async def test_refused_requests_are_no_load_and_failed_ones_are_within_no_objective(room: Room) -> None:
    (worker,) = await room.workers(1)
    gateway = await room.gateway([worker])
    await judged(gateway, worker, 60_000, 60_000)
    ask: dict[str, Any] = {"model": SERVED_NAME, "prompt": "12345678", "max_tokens": 4}

    async def refused() -> None:
        for wrong in ({"model": "another"}, {"n": 0}, {"prompt": "x" * 5000}):
            with pytest.raises(openai.APIStatusError):
                await gateway.client.completions.create(**(ask | wrong))
        async with gateway.http.post(f"{gateway.of.url}/v1/completions", data=b"{ no json") as answer:
            assert answer.status == 400

    assert await counted(gateway, refused()) == {}

    async def refused_by_the_engine() -> None:
        worker.behaviours.append(Behaviour(status=400, body={"error": {"message": "no", "code": 400}}))
        with pytest.raises(openai.BadRequestError):
            await gateway.client.completions.create(**ask)

    assert await counted(gateway, refused_by_the_engine()) == {
        'accepted_total{service="chat"}': 1, 'accepted_refused_total{service="chat"}': 1,
        'accepted_refused_prompt_tokens_count{service="chat"}': 1,
    }  # fmt: skip

    async def not_served() -> None:
        body = {"model": SERVED_NAME, "input": "12345678"}
        async with gateway.http.post(f"{gateway.of.url}/v1/responses", json=body) as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (404, "not_served")

    assert await counted(gateway, not_served()) == {
        'accepted_total{service="chat"}': 1, 'accepted_refused_total{service="chat"}': 1,
    }, "only the engine knows whether it has the endpoint"  # fmt: skip

    async def failed() -> None:
        worker.behaviours.extend(Behaviour(cut=True) for _ in range(9))
        with pytest.raises(openai.InternalServerError):
            await gateway.client.completions.create(**ask)
        worker.behaviours.clear()

    found = {'accepted_total{service="chat"}': 1, 'ended_total{tpot="failed",ttft="missed"}': 1}
    assert await counted(gateway, failed()) == found
