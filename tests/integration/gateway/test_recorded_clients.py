"""Requests as widespread clients send them are answered: whole and streamed, with tools, schemas and several prompts.

``recorded_clients.json`` has what these clients sent to a server that recorded it; it says how. The official client
itself is what the other tests of this folder use.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from multidict import CIMultiDict

from integration.gateway.conftest import Room
from integration.gateway.stand_in_worker import SERVED_NAME

RECORDED: list[dict[str, Any]] = json.loads(Path(__file__).with_name("recorded_clients.json").read_text())["requests"]


def test_every_client_was_recorded_whole_and_streamed() -> None:
    ways = {(each["client"].split()[0], bool(each["body"].get("stream"))) for each in RECORDED}
    # vllm bench serve measures streams only
    both = {(client, stream) for client in ("litellm", "langchain-openai") for stream in (False, True)}
    assert ways == both | {("vllm", True)}


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda each: f"{each['client']}: {each['what']}")
async def test_the_request_of_a_client_is_answered(room: Room, recorded: dict[str, Any]) -> None:
    gateway = await room.gateway(await room.workers(1))
    body = recorded["body"]
    async with gateway.http.post(
        gateway.of.url + recorded["path"], data=json.dumps(body), headers=recorded["headers"]
    ) as answer:
        text = await answer.text()
        assert answer.status == 200, text
        given = CIMultiDict(recorded["headers"]).get("X-Request-Id")
        assert given in (None, answer.headers["X-Request-Id"])
    prompt = body.get("prompt")
    prompts = len(prompt) if isinstance(prompt, list) and isinstance(prompt[0], str) else 1
    if body.get("stream"):
        events = [event.removeprefix("data: ") for event in text.split("\n\n") if event]
        assert events.pop() == "[DONE]"
        parts = [json.loads(event) for event in events]
        assert bool(parts[-1].get("usage")) == bool(body.get("stream_options", {}).get("include_usage"))
    else:
        parts = [json.loads(text)]
        assert parts[0]["usage"]
    if parts[-1].get("usage") and not body.get("tools"):
        limit = body.get("max_completion_tokens") or body["max_tokens"]
        assert parts[-1]["usage"]["completion_tokens"] == limit * prompts
    choices = [choice for part in parts for choice in part["choices"]]
    assert {choice["index"] for choice in choices} == set(range(prompts))
    expected = "tool_calls" if body.get("tools") else "length"
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == [expected] * prompts


async def test_vllm_bench_serve_finds_its_model_in_the_list(room: Room) -> None:
    gateway = await room.gateway(await room.workers(1))
    async with gateway.http.get(gateway.of.url + "/v1/models") as answer:
        first = (await answer.json())["data"][0]
    assert (first["id"], first["root"]) == (SERVED_NAME, SERVED_NAME)
