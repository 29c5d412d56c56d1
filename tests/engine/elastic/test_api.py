"""What clients and gateways see of a real group: a worker's contract, the fields of requests, streams that end early.

Of the contract nothing is left out: the gateway takes the manager for a decode worker, and the operator gives it that
role. Roles are words to it, so it verifies prefill as a worker without a partner does: with a token of its own.
"""

import ast
import asyncio
import random
import signal
import statistics
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from contracts import control_api, engine_api, worker_server
from contracts.control_api import *  # noqa: F403
from contracts.control_api import Api as ControlApi
from contracts.control_api import Controlled
from contracts.engine_api import *  # noqa: F403
from contracts.engine_api import Serving
from contracts.worker_server import *  # noqa: F403
from engine.elastic.ties import ties_of_float32
from engine.gateway.conftest import TOKEN, entry, give_role
from fixtures.elastic_group import ElasticGroup, running_group
from fixtures.engines import MODEL, Engines, PlainEngines, RunningEngine
from fixtures.gateways import Gateway, GatewayProcess, connected, gateway_process
from pointsman.api.protocol.elastic import (
    OBJECTIVES_PATH,
    STATE_PATH,
    ElasticObjectives,
    ElasticState,
    ObjectivesRequest,
)
from pointsman.api.protocol.headers import CONTROL_TOKEN
from pointsman.api.protocol.names import Role
from pointsman.local.engine.environment import EngineEnvironment
from pointsman.local.traffic import Api, Endpoint, Prompt, closed_loop, compare
from pointsman.serving.elastic.latency_model import LatencyModel, PrefillTime, extrapolate
from pointsman.workers.elastic.protocol import LINK_PATH, MANAGER_SINCE, Hello, decode_from_instance
from waiting import eventually

__all__ = [*control_api.__all__, *engine_api.__all__, *worker_server.__all__]

SLOTS = 3000
TIME = PrefillTime(0.01, 1e-3, 1e-7)
MODEL_OF_GPUS = LatencyModel({degree: extrapolate(TIME, degree, 1.0, 0.0) for degree in (1, 2, 3)})
"""On the two cores of a test, more instances are no faster; this one says that they are, so that groups grow."""


@pytest.fixture(scope="module")
def group(engines: Engines) -> Iterator[ElasticGroup]:
    more = worker_server.FROM_A_CONFIG_MAP
    with running_group(engines, "api", 3, slots=SLOTS, model=MODEL_OF_GPUS, more=more) as running:
        yield running


# --- the contract of a worker ---


@pytest.fixture
def engine(group: ElasticGroup) -> RunningEngine:
    return group.manager


@pytest.fixture
async def controlled(group: ElasticGroup) -> Controlled:
    """The manager, without the role that it begins with."""
    worker = Controlled(group.manager.url, TOKEN)
    async with aiohttp.ClientSession() as session:
        await ControlApi(session, worker).role(None)
    return worker


@pytest.fixture
async def serving(group: ElasticGroup) -> Serving:
    await give_role(group.manager, Role.DECODE)
    return Serving(group.manager.url, TOKEN, MODEL)


async def test_an_instance_serves_its_manager_alone_and_obeys_the_newest(group: ElasticGroup) -> None:
    """There is no Lease: of two managers the one that was started later is obeyed."""
    url = group.instances["api-0"].url
    right = {"Authorization": f"Bearer {TOKEN}"}
    await eventually(lambda: are_linked(group, 3), "the manager works with its instances")
    async with aiohttp.ClientSession() as session:
        for path, status in (("/health", 200), ("/metrics", 404), ("/v1/models", 404), (LINK_PATH, 401)):
            async with session.get(url + path) as answer:
                assert answer.status == status, path
        newest = {MANAGER_SINCE: repr(time.time())}
        for wrong in ("", TOKEN, "Bearer ", f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN}x", f"Basic {TOKEN}"):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await session.ws_connect(url + LINK_PATH, headers={"Authorization": wrong, **newest})
            assert refused.value.status == 401, wrong
        assert await are_linked(group, 3), "a stranger takes no instance from its manager"
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await session.ws_connect(url + LINK_PATH, headers={**right, MANAGER_SINCE: "0.0"})
        assert refused.value.status == 409
        async with session.ws_connect(url + LINK_PATH, headers={**right, MANAGER_SINCE: repr(time.time())}) as link:
            hello = decode_from_instance(await link.receive_bytes())
            assert isinstance(hello, Hello)
            assert (hello.name, hello.slots) == ("api-0", SLOTS)
            assert {each for each in hello.held if not each.startswith("profile-")} == set(), "but for measurements"
            await eventually(lambda: are_linked(group, 2), "the earlier manager has lost it")
    await eventually(lambda: are_linked(group, 3), "with the newer one gone, it is linked again")


# --- the fields of requests ---


@pytest.fixture(scope="module")
def gateway_of_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with gateway_process(tmp_path_factory.mktemp("gateway"), token=TOKEN) as process:
        yield process


@pytest.fixture
async def gateway(group: ElasticGroup, gateway_of_all: GatewayProcess) -> AsyncIterator[Gateway]:
    async with connected(gateway_of_all) as connection:
        await give_role(group.manager, Role.DECODE)
        connection.write_endpoints([entry(group.manager)])
        await connection.knows(group.manager)
        yield connection


TOOL = {"type": "function", "function": {"name": "clear", "parameters": {"type": "object", "properties": {}}}}
NAMED_TOOL = {"type": "function", "function": {"name": "clear"}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}}}
PATTERN = {"pattern_size": 4, "max_pattern_size": 4, "min_pattern_size": 1, "min_count": 2}

REFUSED: Mapping[str, Any] = {
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "repetition_penalty": 1.1,
    "min_p": 0.2,
    "min_tokens": 2,
    "logit_bias": {"7": 1},
    "allowed_token_ids": [40, 41],
    "bad_words": ["signal"],
    "prompt_logprobs": 0,
    "logprob_token_ids": [40],
    "response_format": {"type": "json_object"},
    "structured_outputs": {"regex": "[ab]{4}"},
    "repetition_detection": PATTERN,
    "thinking_token_budget": 5,
    "watermarking": True,
    "vllm_xargs": {"key": "value"},
    "routed_experts_prompt_start": 3,
    "use_beam_search": True,
    "kv_transfer_params": {"do_remote_decode": True},
    "ec_transfer_params": {"do_remote_decode": True},
    "best_of": 3,
}
"""Fields of both APIs that an elastic group does not know, with a value that asks for something."""
SERVED = frozenset(
    {
        "model", "logprobs", "max_tokens", "n", "seed", "stop", "stream", "stream_options", "temperature", "top_p",
        "top_k", "stop_token_ids", "include_stop_str_in_output", "ignore_eos", "skip_special_tokens",
        "spaces_between_special_tokens", "truncate_prompt_tokens", "truncation_side", "add_special_tokens",
        "return_tokens_as_token_ids", "return_token_ids", "return_token_offsets", "stream_interval", "request_id",
        "echo",  # without logprobs
    }
)  # fmt: skip
SERVED_CHATS = frozenset(
    {
        "messages", "top_logprobs", "max_completion_tokens", "tools", "tool_choice", "parallel_tool_calls",
        "reasoning_effort", "include_reasoning", "add_generation_prompt", "continue_final_message", "documents",
        "chat_template", "chat_template_kwargs", "return_prompt_text",
    }
)  # fmt: skip
WITHOUT_EFFECT = frozenset(
    {
        "user", "session_id",
        "length_penalty",  # of beam search
        "priority",  # as in vLLM with its default scheduling
        "cache_salt",  # there is no prefix cache
        "mm_payload", "return_mm_kwargs",  # of images
    }
)  # fmt: skip
OF_COMPLETIONS: Mapping[str, Any] = {"suffix": "end", "prompt_embeds": "AAAA"}
OF_CHATS: Mapping[str, Any] = {"mm_processor_kwargs": {"size": 1}, "media_io_kwargs": {"image": {"size": 1}}}


def bodies() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """The field, the path and the body of each request that is refused."""
    chat: dict[str, Any] = {"messages": [{"role": "user", "content": "Is it clear?"}]}
    for field, value in {**REFUSED, **OF_CHATS}.items():
        yield field, "/v1/chat/completions", {**chat, field: value}
    for field, value in {**REFUSED, **OF_COMPLETIONS}.items():
        yield field, "/v1/completions", {"prompt": "Is it clear?", field: value}
    yield "echo", "/v1/completions", {"prompt": "Is it clear?", "echo": True, "logprobs": 1}
    yield "response_format", "/v1/chat/completions", {**chat, "response_format": SCHEMA}
    for choice in ("required", NAMED_TOOL):
        yield "tool_choice", "/v1/chat/completions", {**chat, "tools": [TOOL], "tool_choice": choice}
    yield "image_url", "/v1/chat/completions", {"messages": [{"role": "user", "content": [IMAGE]}]}


@pytest.mark.parametrize("stream", [False, True])
async def test_what_the_engine_does_not_know_is_400_with_the_name_of_the_field(gateway: Gateway, stream: bool) -> None:
    wrong = []
    for field, path, body in bodies():
        asked = {"model": MODEL, "max_tokens": 4, "stream": stream, **body}
        async with gateway.http.post(gateway.of.url + path, json=asked) as answer:
            text = await answer.text()
            if answer.status != 400 or field not in text:
                wrong.append((field, path, answer.status, text[:300]))
    assert wrong == []
    for adapter in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"):
        async with gateway.http.post(gateway.of.url + adapter, json={"lora_name": "a", "lora_path": "/a"}) as answer:
            assert answer.status == 404
    with pytest.raises(openai.NotFoundError, match="an-adapter"):
        await gateway.client.completions.create(model="an-adapter", prompt="Hello")


def fields_of(environment: EngineEnvironment, api: str) -> set[str]:
    """The fields of vLLM's requests to that API, from its source: importing vLLM takes seconds."""
    (source,) = environment.root.glob(f"lib/python*/site-packages/vllm/entrypoints/openai/{api}/protocol.py")
    (of_class,) = [
        each
        for each in ast.parse(source.read_text()).body
        if isinstance(each, ast.ClassDef) and each.name in ("ChatCompletionRequest", "CompletionRequest")
    ]
    targets = [each.target for each in of_class.body if isinstance(each, ast.AnnAssign)]
    return {each.id for each in targets if isinstance(each, ast.Name) and not each.id.startswith("_")}


def test_every_field_of_vllms_requests_is_known_to_be_served_or_refused(engine_environment: EngineEnvironment) -> None:
    """A field of a new version of vLLM has to be put in one of the tables."""
    served = SERVED | WITHOUT_EFFECT
    assert fields_of(engine_environment, "chat_completion") - {*REFUSED, *OF_CHATS, *served, *SERVED_CHATS} == set()
    completion = {*REFUSED, *OF_COMPLETIONS, *served, "prompt"}
    assert fields_of(engine_environment, "completion") - completion == set()
    assert not served & REFUSED.keys()


async def state_of(group: ElasticGroup) -> ElasticState:
    """What the manager says of the group."""
    headers = {CONTROL_TOKEN: f"Bearer {TOKEN}"}
    async with aiohttp.ClientSession(headers=headers) as session, session.get(group.manager.url + STATE_PATH) as answer:
        return ElasticState.model_validate_json(await answer.read())


def likeliest(told: Any) -> list[list[str]]:
    """The likeliest tokens at each place."""
    return [[each.token for each in token.top_logprobs] for token in told.content]


def logprobs(told: Any) -> list[float]:
    """Log-probabilities of all tokens that are told."""
    return [each.logprob for token in told.content for each in (token, *token.top_logprobs)]


@pytest.fixture
async def reference(plain_engines: PlainEngines) -> AsyncIterator[openai.AsyncOpenAI]:
    """The official client of one plain engine."""
    url = plain_engines.one.openai_url
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


ASKED: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Is the signal clear?"}]}


@pytest.mark.parametrize(
    "more",
    [
        {"temperature": 0.0, "max_tokens": 12, "logprobs": True, "top_logprobs": 3},
        {"temperature": 0.0, "max_tokens": 24, "stop": ["e", "}"]},
        {"temperature": 0.0, "max_tokens": 12, "tools": [TOOL], "tool_choice": "none"},
        {"temperature": 1.0, "max_tokens": 12, "extra_body": {"top_k": 1}},
        {"temperature": 1.0, "max_tokens": 12, "top_p": 1e-6},
    ],
    ids=["logprobs", "stop", "tools", "top_k", "top_p"],
)
async def test_what_the_engine_knows_is_answered_as_by_one_engine(
    gateway: Gateway, reference: openai.AsyncOpenAI, more: dict[str, Any]
) -> None:
    ours, theirs = [await client.chat.completions.create(**ASKED, **more) for client in (gateway.client, reference)]
    (mine,), (right,) = ours.choices, theirs.choices
    assert (mine.message.content, mine.finish_reason) == (right.message.content, right.finish_reason)
    assert ours.usage == theirs.usage
    if right.logprobs is not None:
        assert likeliest(mine.logprobs) == likeliest(right.logprobs)
        assert logprobs(mine.logprobs) == pytest.approx(logprobs(right.logprobs), abs=1e-3)
    stream = await gateway.client.chat.completions.create(**ASKED, **more, stream=True)
    choices = [chunk.choices[0] async for chunk in stream if chunk.choices]
    assert "".join(choice.delta.content or "" for choice in choices) == right.message.content
    assert choices[-1].finish_reason == right.finish_reason
    if right.logprobs is not None:
        told = [token for choice in choices if choice.logprobs for token in choice.logprobs.content or ()]
        assert [each.token for each in told] == [each.token for each in right.logprobs.content or ()]


async def test_a_seed_says_what_is_drawn(gateway: Gateway) -> None:
    drawn = [
        await gateway.client.chat.completions.create(
            **ASKED, temperature=1.0, top_p=0.9, seed=seed, n=2, max_tokens=8, extra_body={"top_k": 50}
        )
        for seed in (7, 7, 8)
    ]
    one, again, other = [[choice.message.content for choice in answer.choices] for answer in drawn]
    assert one == again != other
    assert one[0] != one[1], "the answers of a request are drawn apart"


async def test_tokenizer_and_chat_template_are_those_of_one_engine(
    gateway: Gateway, plain_engines: PlainEngines
) -> None:
    for asked in ({"model": MODEL, "prompt": "Is the signal clear?"}, ASKED):
        tokens = []
        for url in (gateway.of.url, plain_engines.one.url):
            async with gateway.http.post(f"{url}/tokenize", json=asked) as answer:
                tokens.append((await answer.json())["tokens"])
        assert tokens[0] == tokens[1]
        back = {"model": MODEL, "tokens": tokens[0]}
        async with gateway.http.post(f"{gateway.of.url}/detokenize", json=back) as told:
            assert "Is the signal clear?" in (await told.json())["prompt"]


async def test_the_manager_takes_objectives_and_says_which_it_has(group: ElasticGroup) -> None:
    url = group.manager.url + OBJECTIVES_PATH
    async with aiohttp.ClientSession() as session:
        async with session.put(url, data=b"x" * 100_000) as answer:
            assert answer.status == 401
        headers = {CONTROL_TOKEN: f"Bearer {TOKEN}"}
        for objectives in (ElasticObjectives(ttft_seconds=1.5, tpot_seconds=0.04), None):
            said = ObjectivesRequest(objectives=objectives).wire()
            async with session.put(url, data=said, headers=headers) as answer:
                assert answer.status == 200
                assert ElasticState.model_validate_json(await answer.read()).objectives == objectives
        async with session.put(url, data='{"objectives": {"ttftSeconds": -1}}', headers=headers) as refused:
            assert refused.status == 400


# --- streams that end early, and instances that leave ---


def of_tokens(index: int, prompt: int, answer: int) -> Prompt:
    """A streamed completion of so many tokens."""
    rng = random.Random(index)
    ids = tuple(rng.randrange(94) for _ in range(prompt))  # printable, so that texts do not depend on their chunks
    return Prompt(index, Api.COMPLETION, True, answer, token_ids=ids, ignore_eos=True)


@asynccontextmanager
async def running(
    group: ElasticGroup, gateway: Gateway, plain: PlainEngines, folder: Path, *asked: Prompt
) -> AsyncIterator[None]:
    """Streams of ``asked`` that all have begun, for the time of the context; then their answers are compared."""
    begun = [asyncio.Event() for _ in asked]
    async with (
        Endpoint(f"{gateway.of.url}/v1", MODEL) as ours,
        Endpoint(plain.one.openai_url, MODEL) as reference,
        asyncio.TaskGroup() as tasks,
    ):
        sent = [
            tasks.create_task(ours.send(prompt, on_token=event.set)) for prompt, event in zip(asked, begun, strict=True)
        ]
        async with asyncio.timeout(120):
            await asyncio.gather(*(event.wait() for event in begun))
        yield
        served = [await task for task in sent]
        comparison = compare(await closed_loop(reference, asked, clients=2), served)
        ties_of_float32(group.engines.environment, group.engines.model, comparison, served, folder)


LEFT_SECONDS = 10.0
"""Within so long the KV of a client that has left is free, on a computer that does much else."""


async def test_a_client_that_leaves_frees_its_kv_and_the_others_go_on(
    group: ElasticGroup, gateway: Gateway, plain_engines: PlainEngines, tmp_path: Path
) -> None:
    async with running(group, gateway, plain_engines, tmp_path, *(of_tokens(index, 100, 250) for index in range(3))):
        for number, begins in enumerate((True, False)):  # one stream is left in its answer, one in its prefill
            prompt = of_tokens(10 + number, 1500, 1000)
            async with Endpoint(f"{gateway.of.url}/v1", MODEL) as ours:
                begun = asyncio.Event()
                sending = asyncio.create_task(ours.send(prompt, on_token=begun.set))
                await eventually(lambda: has_kv(group, 1500), "its prompt is computed")
                if begins:
                    await begun.wait()
                sending.cancel()
            left_s = time.monotonic()
            await eventually(lambda: has_kv(group, 1500, False), "its KV is free", timeout_s=LEFT_SECONDS)
            print(f"KV was free {time.monotonic() - left_s:.2f} s after the client had left")
    await eventually(lambda: has_kv(group, 1, False), "nothing is left")


async def has_kv(group: ElasticGroup, tokens: int, expected: bool = True) -> bool:
    """Whether it is as ``expected`` that there are at least so many tokens of KV."""
    found = sum(each.used_slots for each in (await state_of(group)).instances)
    return (found >= tokens) is expected


async def test_what_is_moved_is_counted_by_its_reason_and_moves_lose_no_token(
    group: ElasticGroup, gateway: Gateway, plain_engines: PlainEngines, tmp_path: Path
) -> None:
    await eventually(lambda: is_measured(group), "the manager knows what a move takes")
    before = (await state_of(group)).totals
    # Two instances decode a request each and the third one computes a long prompt, which is faster on two.
    async with (
        running(group, gateway, plain_engines, tmp_path, of_tokens(20, 200, 250)),
        running(group, gateway, plain_engines, tmp_path, of_tokens(21, 200, 250)),
    ):
        assert sorted(each.used_slots > 0 for each in (await state_of(group)).instances) == [False, True, True]
        async with running(group, gateway, plain_engines, tmp_path, of_tokens(22, 2000, 2)):
            pass
    vacated = (await state_of(group)).totals
    assert vacated.moved_tokens["vacate"] > before.moved_tokens["vacate"]
    assert vacated.moved_bytes["vacate"] > before.moved_bytes["vacate"], "as the instances counted them"
    # An instance that is told to stop hands its KV over.
    async with running(
        group, gateway, plain_engines, tmp_path, *(of_tokens(index, 200, 250) for index in range(30, 33))
    ):
        name = next(each.name for each in (await state_of(group)).instances if each.used_slots)
        leaving = group.instances.pop(name)
        leaving.process.send_signal(signal.SIGTERM)
        await eventually(lambda: leaving.process.wait(0) == 0, "it has handed over and ends")
    group.write()
    moved = (await state_of(group)).totals
    print(moved)
    assert moved.moved_tokens["drain"] > vacated.moved_tokens["drain"]
    assert moved.moved_bytes["drain"] > vacated.moved_bytes["drain"]
    assert moved.moved_bytes["scale_down"] == moved.moved_bytes["scale_up"] == 0
    page = await metrics_page(group)
    for reason in ("scale_down", "scale_up", "vacate", "drain"):
        nothing = f'pointsman_elastic_moved_bytes_total{{reason="{reason}"}} 0.0' in page
        assert nothing is reason.startswith("scale_")
    assert "recomputed_requests_total 0.0" in page


async def metrics_page(group: ElasticGroup) -> str:
    """The manager's metrics."""
    async with aiohttp.ClientSession() as session, session.get(f"{group.manager.url}/metrics") as answer:
        return await answer.text()


async def is_measured(group: ElasticGroup) -> bool:
    """Whether the file of what was measured has all."""
    return "moveSecondsPerToken" in group.times.read_text()


ROUNDS, STREAMS, PROMPT, ANSWER = 5, 6, 1500, 500  # tokens; none has ended when the last one has begun


@pytest.mark.verify
@pytest.mark.verify_elastic
async def test_what_a_death_of_the_manager_costs_is_its_start_and_the_prompts_again(
    engines: Engines, plain_engines: PlainEngines, tmp_path: Path, findings: dict[str, object]
) -> None:
    """The KV that instances have is freed then, so it is computed again; how long that takes beside the start."""
    until_s: dict[str, list[float]] = {"manager_answers": [], "instances_linked": [], "all_streams_go_on": []}
    again = 0
    with (
        running_group(engines, "mortal", 3, slots=8000, model=MODEL_OF_GPUS) as group,
        gateway_process(tmp_path, token=TOKEN) as process,
    ):
        async with connected(process) as gateway, Endpoint(f"{process.url}/v1", MODEL) as ours:
            await give_role(group.manager, Role.DECODE)
            gateway.write_endpoints([entry(group.manager)])
            await gateway.knows(group.manager)
            for number in range(ROUNDS):
                asked = [of_tokens(1000 + 100 * number + index, PROMPT, ANSWER) for index in range(STREAMS)]
                tokens_s: list[list[float]] = [[] for _ in asked]
                sent = [
                    asyncio.create_task(ours.send(prompt, on_token=lambda of=of: of.append(time.monotonic())))  # type: ignore[misc]
                    for prompt, of in zip(asked, tokens_s, strict=True)
                ]
                await eventually(lambda of=tokens_s: all(len(each) > 10 for each in of), "all streams have begun")  # type: ignore[misc]
                group.manager.stop(signal.SIGKILL)
                died_s = time.monotonic()
                again += sum(PROMPT + len(each) for each in tokens_s)
                group.manager = group.start_manager().wait_until_healthy()
                until_s["manager_answers"].append(time.monotonic() - died_s)
                await eventually(lambda: are_linked(group, 3), "its instances are linked")
                until_s["instances_linked"].append(time.monotonic() - died_s)
                answers = await asyncio.gather(*sent)
                goes_on_s = [next(each for each in of if each > died_s + 0.1) - died_s for of in tokens_s]
                until_s["all_streams_go_on"].append(max(goes_on_s))
                async with Endpoint(plain_engines.one.openai_url, MODEL) as reference:
                    comparison = compare(await closed_loop(reference, asked, clients=2), answers)
                assert comparison.exact, comparison.differences
    findings.update(
        deaths=ROUNDS, streams=ROUNDS * STREAMS, tokens_computed_again=again, started_from="a process with vLLM loaded",
        median_seconds_after_the_death={key: round(statistics.median(of), 2) for key, of in until_s.items()},
    )  # fmt: skip


async def are_linked(group: ElasticGroup, count: int) -> bool:
    """Whether the manager works with so many instances."""
    return len((await state_of(group)).instances) == count
