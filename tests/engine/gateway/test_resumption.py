"""Streams of every kind that real engines break off by dying: other engines resume them, token for token.

The engines have a tool parser, a reasoning parser and the block size that GPUs use or the smallest the CPU takes.
"""

import asyncio
import json
import os
import signal
from collections.abc import Mapping
from typing import Any

import aiohttp
import pytest

from engine.gateway.conftest import TOKEN, entry, give_role
from fixtures.engines import MODEL, SMALL_ENGINE, Engines, RunningEngine
from fixtures.gateways import Gateway, connected, gateway_process
from pointsman.api.protocol.names import Role

BLOCK = 32  # vLLM's attention on CPU takes multiples of 32
ARGUMENTS = (
    *SMALL_ENGINE,
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--reasoning-parser", "granite"),
    *("--max-num-seqs", "24"),  # all streams at once
    "--enable-prompt-tokens-details",
    "--structured-outputs-config.enable_in_reasoning=true",  # what the model says is no reasoning that ever ends
)
TOOL = {
    "type": "function",
    "function": {"name": "set_switch", "parameters": {"type": "object", "properties": {"to": {"type": "string"}}}},
}
LONG = {"type": "object", "properties": {"to": {"type": "string", "minLength": 320}}, "required": ["to"]}
LONG_TOOL = {"type": "function", "function": {"name": "set_switch", "parameters": LONG}}
ASKED_FOR = "Which of the tracks is free, and how do I set the points?"
EVENTS_BEFORE_THE_KILL = 8
TOKENS = 300


def user(content: Any) -> list[dict[str, Any]]:
    """A conversation of one message."""
    return [{"role": "user", "content": content}]


SHAPES: Mapping[str, dict[str, Any]] = {
    "parsers": {"messages": user(ASKED_FOR)},
    "list of parts": {"messages": user([{"type": "text", "text": ASKED_FOR}, {"type": "text", "text": "Soon."}])},
    "tools": {"messages": user(ASKED_FOR), "tools": [TOOL]},
    "log-probabilities": {"messages": user(ASKED_FOR), "logprobs": True, "top_logprobs": 2},
    "developer, three answers": {
        "messages": [{"role": "developer", "content": "Be brief."}, *user(ASKED_FOR)],
        "logit_bias": {"7": 1},
        "n": 3,
        "temperature": 1,
        "top_k": 1,
        "seed": 5,  # vLLM gives several answers only where it samples
    },
    "token ids": {"messages": user(ASKED_FOR), "return_token_ids": True},
    "stop strings": {"messages": user(ASKED_FOR), "stop": ["never said", "nor this one"]},
    "completion with stop strings and log-probabilities": {"prompt": ASKED_FOR, "stop": ["never said"], "logprobs": 1},
    "completion, two answers": {"prompt": ASKED_FOR, "n": 2, "temperature": 1, "top_k": 1},
    "completion with log-probabilities": {"prompt": ASKED_FOR, "logprobs": 1},
    "response format": {
        "messages": user(ASKED_FOR),
        "response_format": {"type": "json_schema", "json_schema": {"name": "long", "schema": LONG}},
    },
    "required tool": {"messages": user(ASKED_FOR), "tools": [LONG_TOOL], "tool_choice": "required"},
    "named tool": {
        "messages": user(ASKED_FOR),
        "tools": [LONG_TOOL],
        "tool_choice": {"type": "function", "function": {"name": "set_switch"}},
    },
    "completion with a grammar": {"prompt": ASKED_FOR, "structured_outputs": {"regex": "x[a-c]{320}"}},
}


def has_grammar(shape: Mapping[str, Any]) -> bool:
    """Whether only some tokens may follow."""
    return not shape.keys().isdisjoint({"response_format", "structured_outputs", "tool_choice"})


def path_of(shape: Mapping[str, Any]) -> str:
    """Of the endpoint that takes ``shape``."""
    return "/v1/chat/completions" if "messages" in shape else "/v1/completions"


async def events_of(
    gateway: Gateway, shape: Mapping[str, Any], seen: "asyncio.Queue[int] | None" = None
) -> list[dict[str, Any]]:
    """The events of a stream; ``seen`` learns of each as it comes."""
    body = {
        "model": MODEL,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
        "max_tokens": TOKENS,
        "ignore_eos": True,
        **shape,
    }
    found: list[dict[str, Any]] = []
    async with gateway.http.post(gateway.of.url + path_of(shape), json=body) as answer:
        assert answer.status == 200, await answer.text()
        async for line in answer.content:
            if line.startswith(b"data: {"):
                found.append(json.loads(line[6:]))
                assert "error" not in found[-1], found[-1]
                if seen is not None:
                    seen.put_nowait(1)
    return found


def told(events: list[dict[str, Any]]) -> dict[str, Any]:
    """What a client has of a stream in the end."""
    choices: dict[int, dict[str, Any]] = {}
    for event in events:
        for choice in event["choices"]:
            mine = choices.setdefault(
                choice["index"],
                {"content": "", "reasoning": "", "calls": [], "roles": 0, "ids": [], "logprobs": [], "ends": []},
            )
            delta = choice.get("delta") or {"content": choice.get("text")}
            mine["content"] += delta.get("content") or ""
            mine["reasoning"] += delta.get("reasoning") or ""
            mine["roles"] += "role" in delta
            mine["ids"] += choice.get("token_ids") or []
            mine["calls"] += [call.get("function") for call in delta.get("tool_calls") or []]
            logprobs = choice.get("logprobs") or {}
            mine["logprobs"] += [part["token"] for part in logprobs.get("content") or []]
            mine["logprobs"] += list(zip(logprobs.get("tokens") or [], logprobs.get("text_offset") or [], strict=True))
            if choice.get("finish_reason"):
                mine["ends"].append(choice["finish_reason"])
    usage = [event["usage"] for event in events if event.get("usage")]
    return {
        "choices": choices,
        "usage": [{name: one[name] for name in ("prompt_tokens", "completion_tokens")} for one in usage],
        "ids": len({event["id"] for event in events}),
    }


async def test_streams_of_every_kind_outlive_the_engine_that_began_them(
    engines: Engines, tmp_path_factory: pytest.TempPathFactory
) -> None:
    started = [
        engines.worker(engines.settings(name, block_size=BLOCK, drain_timeout_seconds=5.0), ARGUMENTS)
        for name in ("doomed", "survivor")
    ]
    try:
        doomed, survivor = (engine.wait_until_healthy() for engine in started)
        for engine in started:
            await give_role(engine, Role.DECODE)
        letters = await _tokens_of(doomed, "<tool_call>{\n")
        shapes = {name: dict(shape) for name, shape in SHAPES.items()}
        # Half a tag again and again, which the tool parser holds back until it knows better.
        shapes["half of a tool call"] = {**shapes["tools"], "allowed_token_ids": letters}
        folder = tmp_path_factory.mktemp("gateway")
        with gateway_process(folder, token=TOKEN, router="round-robin") as process:
            async with connected(process) as gateway:
                broken = await _streams_with_a_death(gateway, doomed, survivor, shapes)
                metrics = await gateway.metrics()
                whole = {name: await events_of(gateway, shape) for name, shape in shapes.items()}
    finally:
        for engine in started:
            engine.process.kill()
    moved = sum(value for key, value in metrics.items() if "-mid-stream" in key)
    assert moved >= len(shapes)
    for name in shapes:
        assert told(broken[name]) == told(whole[name]), name
        assert told(broken[name])["ids"] == 1
        ends = [choice["ends"] for choice in told(broken[name])["choices"].values()]
        assert ends == [["length"]] * shapes[name].get("n", 1)


async def _streams_with_a_death(
    gateway: Gateway, doomed: RunningEngine, survivor: RunningEngine, shapes: Mapping[str, dict[str, Any]]
) -> dict[str, list[dict[str, Any]]]:
    gateway.write_endpoints([entry(doomed)])
    await gateway.knows(doomed)
    seen: dict[str, asyncio.Queue[int]] = {name: asyncio.Queue() for name in shapes}
    tasks: dict[str, asyncio.Task[list[dict[str, Any]]]] = {}
    async with asyncio.timeout(150):
        # Those with a grammar begin when it is compiled: on a busy computer others might have ended by then.
        for with_grammar in (True, False):
            begun = [name for name, shape in shapes.items() if has_grammar(shape) is with_grammar]
            tasks |= {name: asyncio.create_task(events_of(gateway, shapes[name], seen[name])) for name in begun}
            for name in begun:
                await seen[name].get()
        for queue in seen.values():
            for _ in range(EVENTS_BEFORE_THE_KILL - 1):
                await queue.get()
    done = [name for name, task in tasks.items() if task.done()]
    assert not done, f"{done} ended before their engine died"
    for pid in doomed.processes():
        os.kill(pid, signal.SIGKILL)
    gateway.write_endpoints([entry(survivor)])
    return dict(zip(tasks, await asyncio.gather(*tasks.values()), strict=True))


async def _tokens_of(engine: RunningEngine, text: str) -> list[int]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{engine.url}/tokenize", json={"prompt": text, "add_special_tokens": False}) as answer,
    ):
        return sorted(set((await answer.json())["tokens"]))
