"""The engine's other endpoints through gateway and worker, with the real engine behind them."""

from typing import Any

import pytest

from engine.gateway.conftest import Stage
from fixtures.engines import MODEL
from pointsman.api.protocol import headers
from waiting import eventually

MESSAGES = [{"role": "user", "content": "Which line is free?"}]


async def test_responses_are_answered_and_streamed_by_the_engine(stage: Stage) -> None:
    ask: dict[str, Any] = {"model": MODEL, "input": "Which line is free?", "max_output_tokens": 8, "temperature": 0.0}
    whole = await stage.gateway.client.responses.create(**ask)
    assert whole.usage is not None
    assert whole.usage.output_tokens == 8
    text, kinds = "", []
    async for event in await stage.gateway.client.responses.create(**ask, stream=True):
        kinds.append(event.type)
        text += event.delta if event.type == "response.output_text.delta" else ""
    assert (text, kinds[-1]) == (whole.output_text, "response.completed")
    lines: list[dict[str, Any]] = []

    def both_logged() -> bool:
        lines[:] = stage.gateway.of.logged("request", endpoint="responses")
        return len(lines) == 2

    await eventually(both_logged, "both requests are logged")
    assert {line["output_tokens"] for line in lines} == {8}
    assert all(line["prompt_tokens"] == whole.usage.input_tokens for line in lines)


async def test_messages_are_answered_by_the_engine(stage: Stage) -> None:
    body = {"model": MODEL, "messages": MESSAGES, "max_tokens": 8}
    async with stage.gateway.http.post(f"{stage.gateway.of.url}/v1/messages", json=body) as answer:
        found = await answer.json()
        assert answer.status == 200, found
        assert answer.headers[headers.WORKER] in {worker.name for worker in stage.workers}
    assert (found["type"], found["usage"]["output_tokens"]) == ("message", 8)


async def test_tokens_are_counted_and_shown_by_the_engine(stage: Stage) -> None:
    async with stage.gateway.http.post(f"{stage.gateway.of.url}/tokenize", json={"prompt": "a b"}) as answer:
        tokens = (await answer.json())["tokens"]
    async with stage.gateway.http.post(f"{stage.gateway.of.url}/detokenize", json={"tokens": tokens}) as answer:
        assert "a b" in (await answer.json())["prompt"]


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/rerank", "/v1/score"])
async def test_what_the_model_cannot_do_is_not_served(stage: Stage, path: str) -> None:
    body = {"model": MODEL, "input": "a", "query": "a", "documents": ["b"], "queries": "a"}
    async with stage.gateway.http.post(stage.gateway.of.url + path, json=body) as answer:
        assert answer.status == 404
        assert (await answer.json())["error"]["message"]
