"""Chats as clients send them, through a decode worker that has them prefilled elsewhere: equal to an engine alone.

The engines have a tool parser, a reasoning parser and a template that shows tools, as chat models have.
"""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from fixtures.engines import MODEL, SMALL_ENGINE, Engines, RunningEngine
from fixtures.nats_server import PASSWORD, USER, NatsServer, running_nats
from pointsman.api.protocol import control
from pointsman.api.protocol.names import Role
from waiting import eventually

BLOCK = 32  # the block size that vLLM's attention on CPU computes with: its kernels take multiples of 32
AUTHORIZED = {"Authorization": "Bearer a-token-of-the-tests"}
TEMPLATE = (
    "{%- if tools %}<tools>{{ tools | tojson }}</tools>\n{% endif -%}"
    "{%- if reasoning_effort is defined and reasoning_effort %}effort {{ reasoning_effort }}\n{% endif -%}"
    "{%- if enable_thinking is defined %}thinking {{ enable_thinking }}\n{% endif -%}"
    "{%- for document in documents or [] %}{{ document.title }}: {{ document.text }}\n{% endfor -%}"
    "{%- for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{%- for call in m.tool_calls or [] %}{{ call.function.name }}({{ call.function.arguments | tojson }}){% endfor -%}"
    "</{{ m.role }}>\n{% endfor -%}"
    "{%- if add_generation_prompt %}<assistant>{% endif -%}"
)
ARGUMENTS = (
    *SMALL_ENGINE,
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--reasoning-parser", "granite"),
    "--enable-prompt-tokens-details",
    # vLLM on CPU dies of a seeded request whose prompt takes more than one step: its generators have no offset.
    *("--max-num-batched-tokens", "16384"),
)
TOOL = {
    "type": "function",
    "function": {
        "name": "set_switch",
        "description": "Sets a railway switch.",
        "parameters": {"type": "object", "properties": {"to": {"type": "string", "enum": ["left", "right"]}}},
    },
}
CONTEXT = 4096  # of SMALL_ENGINE
MAX_NEW_TOKENS = 24
"""Of the model's generation_config.json, which the decode worker ignores: it has ``--generation-config vllm``."""
DICE = random.Random(1)
CALL = {"id": "call-1", "type": "function", "function": {"name": "set_switch", "arguments": '{"to": "left"}'}}


def words(count: int) -> str:
    """A text that begins like no other."""
    return " ".join(DICE.choice(("points", "track", "Gleis", "线路", "🚉", "lever")) for _ in range(count))


def user(content: Any) -> dict[str, Any]:
    """A user's message."""
    return {"role": "user", "content": content}


def text_parts() -> list[dict[str, Any]]:
    """Content as clients with images send it, of texts only."""
    return [{"type": "text", "text": words(120)}, {"type": "text", "text": words(120)}]


SHAPES: Mapping[str, Callable[[], dict[str, Any]]] = {
    "plain, with the parsers": lambda: {"messages": [user(words(250))]},
    "list content": lambda: {"messages": [user(text_parts())]},
    "tools": lambda: {"messages": [user(words(200))], "tools": [TOOL], "tool_choice": "auto"},
    "tools, none to be called": lambda: {"messages": [user(words(200))], "tools": [TOOL], "tool_choice": "none"},
    "a tool that must be called": lambda: {
        "messages": [user(words(200))],
        "tools": [TOOL],
        "tool_choice": {"type": "function", "function": {"name": "set_switch"}},
    },
    "tool history": lambda: {
        "messages": [
            user(words(200)),
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "call-1", "content": "done"},
            user("and now?"),
        ],
        "tools": [TOOL],
    },
    "developer": lambda: {"messages": [{"role": "developer", "content": "Be brief."}, user(words(250))]},
    "reasoning in the history": lambda: {
        "messages": [user("why?"), {"role": "assistant", "content": "so", "reasoning_content": "hm"}, user(words(250))]
    },
    "logprobs": lambda: {"messages": [user(words(250))], "logprobs": True, "top_logprobs": 2},
    "reasoning effort": lambda: {"messages": [user(words(250))], "reasoning_effort": "high"},
    "template arguments": lambda: {
        "messages": [user(words(250))],
        "chat_template_kwargs": {"enable_thinking": False},
    },
    "documents": lambda: {"messages": [user(words(200))], "documents": [{"title": "points", "text": "left"}]},
    "response format": lambda: {
        "messages": [user(words(250))],
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "side", "schema": {"type": "string", "enum": ["left", "right"]}},
        },
    },
    "an unknown field": lambda: {"messages": [user(words(250))], "colour": "blue"},
    "salt": lambda: {"messages": [user(words(250))], "tools": [TOOL], "cache_salt": words(3)},
    "a message to go on with": lambda: {
        "messages": [user(words(250)), {"role": "assistant", "content": "The"}],
        "continue_final_message": True,
        "add_generation_prompt": False,
    },
    "the last message in the answer": lambda: {
        "messages": [user(words(250)), {"role": "assistant", "content": "The"}],
        "echo": True,
        "continue_final_message": True,
        "add_generation_prompt": False,
    },
    "the prompt's text in the answer": lambda: {"messages": [user(words(250))], "return_prompt_text": True},
    "sampling": lambda: {"messages": [user(words(250))], "temperature": 0.9, "top_p": 0.9, "seed": 7},
    "several answers": lambda: {"messages": [user(words(250))], "n": 3, "temperature": 0.9, "seed": 7},
    "several answers with tools": lambda: {
        "messages": [user(words(200))],
        "tools": [TOOL],
        "n": 2,
        "logprobs": True,
        "temperature": 0.5,
        "seed": 3,
    },
}
COMPLETIONS: Mapping[str, Callable[[], dict[str, Any]]] = {
    "several answers": lambda: {"prompt": words(250), "n": 3, "temperature": 0.9, "seed": 7},
    "several prompts": lambda: {"prompt": [words(250), words(250), "short"]},
    "several prompts and answers": lambda: {"prompt": [words(250), words(250)], "n": 2, "temperature": 0.9, "seed": 7},
    "the prompt in the answer": lambda: {"prompt": words(250), "echo": True},
}


@dataclass
class Stage:
    """A prefill and a decode worker, and the same engine alone."""

    session: aiohttp.ClientSession
    prefill: RunningEngine
    decode: RunningEngine
    alone: RunningEngine

    async def post(
        self, engine: RunningEngine, body: Mapping[str, Any], path: str = "/v1/chat/completions"
    ) -> tuple[int, Mapping[str, str], list[dict[str, Any]]]:
        """(status, headers, events): the one whole answer, or the events of a stream."""
        sent = {"model": MODEL, "max_tokens": 12, "temperature": 0, "return_token_ids": True} | dict(body)
        async with self.session.post(engine.url + path, json=sent) as response:
            text = await response.text()
        if not sent.get("stream"):
            return response.status, response.headers, [json.loads(text)]
        events = [line[6:] for line in text.split("\n") if line.startswith("data: ")]
        assert events[-1] == "[DONE]", text
        return response.status, response.headers, [json.loads(event) for event in events[:-1]]

    async def metric(self, engine: RunningEngine, sample: str) -> float:
        """One sample of /metrics."""
        async with self.session.get(engine.url + "/metrics") as response:
            lines = (await response.text()).split("\n")
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(sample))

    async def prefills(self) -> float:
        """Prompts the prefill worker has computed."""
        return await self.metric(self.prefill, 'pointsman_worker_remote_prefills_total{outcome="done"}')


@pytest.fixture(scope="module")
def nats_server() -> Iterator[NatsServer]:
    """The NATS of this module's workers."""
    with running_nats() as server:
        yield server


@pytest.fixture(scope="module")
def running(
    engines: Engines, nats_server: NatsServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[RunningEngine, RunningEngine, RunningEngine]]:
    """Prefill worker, decode worker, engine alone."""
    template = tmp_path_factory.mktemp("chats") / "template.jinja"
    template.write_text(TEMPLATE)
    arguments = (*ARGUMENTS, "--chat-template", str(template))
    login: dict[str, Any] = {
        "nats_url": nats_server.url,
        "nats_user": USER,
        "nats_password": PASSWORD,
        "service_uid": "chats",
    }
    own: dict[str, Any] = {"block_size": BLOCK, "drain_timeout_seconds": 5.0, "max_prefill_queue_size": 64}
    own["model"] = str(_with_generation_config(engines.model, template.parent))
    started = [
        engines.worker(engines.settings("prefill", **login, **own), arguments),
        engines.worker(engines.settings("decode", **login, **own), (*arguments, "--generation-config", "vllm")),
        engines.plain(engines.settings("alone", **own), arguments),
    ]
    try:
        prefill, decode, alone = (engine.wait_until_healthy() for engine in started)
        yield prefill, decode, alone
    finally:
        for engine in started:
            engine.process.kill()


def _with_generation_config(model: Path, folder: Path) -> Path:
    """``model`` with a file that limits its answers."""
    for file in model.iterdir():
        (folder / file.name).symlink_to(file)
    (folder / "generation_config.json").write_text(json.dumps({"max_new_tokens": MAX_NEW_TOKENS}))
    return folder


@pytest.fixture
async def stage(running: tuple[RunningEngine, RunningEngine, RunningEngine]) -> AsyncIterator[Stage]:
    """The workers with their roles, in touch with each other."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(90)) as session:
        made = Stage(session, *running)
        for worker, role in ((made.prefill, Role.PREFILL), (made.decode, Role.DECODE)):
            await _take_role(session, worker, role)

        async def remote() -> bool:
            _, headers, _ = await made.post(made.decode, {"prompt": words(250)}, "/v1/completions")
            return headers["X-Pointsman-Prefill"] == "remote"

        await eventually(remote, "long prompts are prefilled by the other worker")
        yield made


async def _take_role(session: aiohttp.ClientSession, worker: RunningEngine, role: Role) -> None:
    async def taken() -> bool:
        body = control.RoleRequest(role=role).model_dump(mode="json", by_alias=True)
        async with session.post(worker.url + control.ROLE_PATH, json=body, headers=AUTHORIZED) as response:
            state = await response.json()
        return bool(response.status == 200 and state["natsConnected"])

    await eventually(taken, f"{worker.name} takes role {role}")


def _comparable(events: list[dict[str, Any]]) -> Any:
    """What of an answer must be equal: everything but ids, times and how the tokens came in pieces."""
    choices: dict[int, dict[str, Any]] = {}
    for event in events:
        for choice in event["choices"]:
            said = choice.get("delta") or choice.get("message") or {"content": choice.get("text")}
            kept = choices.setdefault(choice["index"], {"text": "", "ids": [], "calls": "", "logprobs": []})
            kept["text"] += said.get("content") or ""
            kept["ids"] += choice.get("token_ids") or []
            for call in said.get("tool_calls") or ():
                kept["calls"] += (call["function"].get("name") or "") + (call["function"].get("arguments") or "")
            kept["logprobs"] += [item["token"] for item in (choice.get("logprobs") or {}).get("content") or ()]
            kept["end"] = choice.get("finish_reason") or kept.get("end")
    prompt = next((event["prompt_token_ids"] for event in events if event.get("prompt_token_ids")), None)
    usage = [event["usage"] for event in events if event.get("usage")]
    return (
        choices,
        prompt,
        [(each["prompt_tokens"], each["completion_tokens"]) for each in usage[-1:]],
        [event["prompt_text"] for event in events if event.get("prompt_text")],
    )


STREAMED = ("list content", "tools", "tool history", "logprobs", "several answers with tools")
"""Of the shapes of chats, those that are streamed in every test run; the others in the long form."""


@pytest.mark.parametrize(
    ("path", "stream", "names"),
    [
        pytest.param("/v1/chat/completions", False, tuple(SHAPES), id="chats"),
        pytest.param("/v1/chat/completions", True, STREAMED, id="streamed chats"),
        pytest.param(
            *("/v1/chat/completions", True, tuple(SHAPES)),
            id="all chats streamed",
            marks=(pytest.mark.verify, pytest.mark.verify_path),
        ),
        pytest.param("/v1/completions", False, tuple(COMPLETIONS), id="completions"),
        pytest.param("/v1/completions", True, tuple(COMPLETIONS), id="streamed completions"),
    ],
)
async def test_answers_to_remotely_prefilled_requests_are_those_of_an_engine_alone(
    stage: Stage, path: str, stream: bool, names: tuple[str, ...], findings: dict[str, object]
) -> None:
    shapes = SHAPES if path == "/v1/chat/completions" else COMPLETIONS
    more = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}} if stream else {}
    for name in names:
        body = shapes[name]() | more
        before = await stage.prefills()
        status, headers, events = await stage.post(stage.decode, body, path)
        expected_status, _, expected = await stage.post(stage.alone, body, path)
        assert status == expected_status == 200, (name, events, expected)
        assert (headers["X-Pointsman-Prefill"], headers["X-Pointsman-Prefill-Reason"]) == ("remote", "remote"), name
        assert _comparable(events) == _comparable(expected), name
        prompts = sum(len(text) > 100 for text in body["prompt"]) if isinstance(body.get("prompt"), list) else 1
        assert await stage.prefills() - before == prompts, f"{name}: each prompt is prefilled once"
    if stream and names == tuple(SHAPES):
        findings.update(shapes=list(names), differences=0)


@pytest.mark.parametrize("name", ["tools", "several answers"])
async def test_a_resumed_stream_is_prefilled_remotely_and_is_that_of_an_engine_alone(stage: Stage, name: str) -> None:
    more = {"stream": True, "stream_options": {"include_usage": True}, "temperature": 1, "top_k": 1}
    body = SHAPES[name]() | more
    _, _, expected = await stage.post(stage.alone, body)
    chunks: dict[int, list[list[int]]] = {}
    for event in expected:
        for choice in event["choices"]:
            if choice.get("token_ids"):
                chunks.setdefault(choice["index"], []).append(choice["token_ids"])
    told = [{"chunks": chunks[index][: 3 + index]} for index in range(body.get("n", 1))]
    before = await stage.prefills()
    status, headers, events = await stage.post(stage.decode, body | {"pointsman_resume": {"choices": told}})
    assert (status, headers["X-Pointsman-Prefill"], headers["X-Pointsman-Resumed"]) == (200, "remote", "1"), events
    assert await stage.prefills() - before == len(told), "each choice with its own tokens"
    assert _comparable(events) == _comparable(expected)
    usage = events[-1]["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] <= usage["prompt_tokens"] - 800, "the prompt was new"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("n", [1, 3])
async def test_cached_tokens_are_those_that_no_worker_computed(stage: Stage, n: int, stream: bool) -> None:
    more = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}

    async def told(content: str) -> int | None:
        body = {"messages": [user(content)], "tools": [TOOL], "n": n, "temperature": 0.5, **more}
        status, headers, events = await stage.post(stage.decode, body)
        assert (status, headers["X-Pointsman-Prefill"]) == (200, "remote")
        usage = next(event["usage"] for event in reversed(events) if event.get("usage"))
        details = usage["prompt_tokens_details"]
        assert details is not None
        return details["cached_tokens"]  # type: ignore[no-any-return]

    begin = words(200)
    template = await told(words(250))  # what all these prompts begin with is cached at the prefill worker by now
    assert template is not None
    assert template < 500
    assert await told(begin + words(120)) == template
    again = await told(begin + " " + words(220))
    assert again is not None
    assert again > template + 800, "the prefill worker had the same beginning"


async def test_a_worker_reports_the_length_of_chats_that_its_engine_gives_by_default(stage: Stage) -> None:
    limits = []
    for worker in (stage.prefill, stage.decode):
        async with stage.session.get(worker.url + control.MODEL_PATH, headers=AUTHORIZED) as response:
            limits.append(control.ModelInfo.model_validate_json(await response.text()).chat_max_tokens)
    assert limits == [MAX_NEW_TOKENS, CONTEXT], "the file's limit holds unless the flag excludes it"
    # What they do: the one engine reads the file, the other one fills its context, of which little is left here.
    body = {"messages": [user("7" * 1000)], "max_tokens": None, "ignore_eos": True}
    _, _, [limited] = await stage.post(stage.alone, body)
    assert limited["usage"]["completion_tokens"] == MAX_NEW_TOKENS
    rest = CONTEXT - limited["usage"]["prompt_tokens"] - 2 * MAX_NEW_TOKENS
    _, _, [filled] = await stage.post(stage.decode, body | {"messages": [user("7" * (1000 + rest))]})
    assert filled["usage"]["total_tokens"] == CONTEXT


async def test_the_engine_answers_what_only_it_can_prefill_or_refuse(stage: Stage) -> None:
    image = [
        {"type": "text", "text": words(250)},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}},
    ]
    nested: Any = 1
    for _ in range(300):
        nested = {"p": nested}
    deep = {**TOOL, "function": {**TOOL["function"], "parameters": nested}}  # type: ignore[dict-item]
    for body, status, reason in (
        ({"messages": [user(image)]}, 400, "invalid"),  # of a model that knows no images
        ({"messages": [user(words(250))], "prompt_logprobs": 1}, 200, "prompt-logprobs"),
        ({"messages": [user(words(250)), 5]}, 400, "invalid"),
        ({"messages": [user(words(5000))]}, 400, "invalid"),
        ({"messages": [user(words(100))], "tools": [deep]}, 200, "remote"),
        ({"messages": [user("hi")]}, 200, "short"),
    ):
        answered, headers, events = await stage.post(stage.decode, body)
        assert (answered, headers["X-Pointsman-Prefill-Reason"]) == (status, reason), events
        alone, _, expected = await stage.post(stage.alone, body)
        assert (alone, events[0].get("error")) == (status, expected[0].get("error"))


@pytest.mark.verify
@pytest.mark.verify_path
async def test_many_chats_at_once_are_those_of_an_engine_alone(stage: Stage, findings: dict[str, object]) -> None:
    bodies = [body for shape in (*SHAPES.values(), *SHAPES.values()) if "seed" not in (body := shape())]
    answers = await asyncio.gather(*(stage.post(stage.decode, body) for body in bodies))
    for body, (status, _, events) in zip(bodies, answers, strict=True):
        _, _, expected = await stage.post(stage.alone, body)
        assert (status, _comparable(events)) == (200, _comparable(expected)), body
    findings.update(chats_at_once=len(bodies), differences=0)
