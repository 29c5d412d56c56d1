"""The contract of a worker's OpenAI endpoints and model part, as the gateway uses them.

Every stand-in for a worker and the real one run these same tests. A test module imports them
(``from contracts.engine_api import *``) and defines the fixture ``serving``: a worker that serves as decode worker.
"""

import hashlib
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

from pointsman.api.protocol import headers
from pointsman.api.protocol.control import MODEL_FILES_PATH, MODEL_PATH, ModelInfo

__all__ = [
    "client",
    "test_a_body_that_is_no_request_is_the_clients_mistake",
    "test_a_chat_stream_begins_with_the_role_and_ends_with_done",
    "test_a_stream_brings_token_ids_one_finish_reason_usage_and_done",
    "test_a_whole_answer_is_the_streams_answer",
    "test_a_whole_answer_reports_how_long_its_tokens_took",
    "test_files_are_what_their_hashes_say",
    "test_prompts_and_chats_are_tokenised",
    "test_the_answer_names_the_worker_and_where_the_prompt_was_prefilled",
    "test_the_model_part_needs_the_token",
]

PROMPT = list(range(40, 80))  # token ids that every model here has; more than two blocks of 16


@dataclass(frozen=True)
class Serving:
    """Where a worker answers, its control token and the name of its model."""

    url: str
    token: str
    model: str


class Client:
    """Asks one worker."""

    def __init__(self, session: aiohttp.ClientSession, worker: Serving) -> None:
        self.session, self.worker = session, worker

    async def post(self, path: str, body: Any) -> tuple[int, Any, "aiohttp.typedefs.LooseHeaders"]:
        """Status, JSON and headers of a whole answer."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"Content-Type": "application/json", headers.REQUEST_ID: "contract-1"}
        async with self.session.post(self.worker.url + path, data=raw, headers=sent) as answer:
            return answer.status, await answer.json(content_type=None), answer.headers

    async def stream(self, path: str, body: dict[str, Any]) -> list[Any]:
        """The events of a stream; the last is [DONE]'s None."""
        sent = {headers.REQUEST_ID: "contract-2"}
        events: list[Any] = []
        asked = {"model": self.worker.model, "stream": True, **body}
        async with self.session.post(self.worker.url + path, json=asked, headers=sent) as answer:
            assert answer.status == 200 and answer.content_type == "text/event-stream"
            async for line in answer.content:
                if line.startswith(b"data: "):
                    events.append(None if line.strip() == b"data: [DONE]" else json.loads(line[6:]))
        return events

    async def get(self, path: str, token: str) -> tuple[int, bytes]:
        """Status and body of a control path."""
        sent = {headers.CONTROL_TOKEN: f"Bearer {token}"}
        async with self.session.get(self.worker.url + path, headers=sent) as answer:
            return answer.status, await answer.read()

    async def model(self) -> ModelInfo:
        """What the worker serves."""
        status, body = await self.get(MODEL_PATH, self.worker.token)
        assert status == 200, body
        return ModelInfo.model_validate_json(body)


@pytest.fixture
async def client(serving: Serving) -> AsyncIterator[Client]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
        yield Client(session, serving)


async def test_the_model_part_needs_the_token(client: Client) -> None:
    for path in (MODEL_PATH, f"{MODEL_FILES_PATH}/{'0' * 64}"):
        assert (await client.get(path, "wrong"))[0] == 401
    info = await client.model()
    assert info.served_name == client.worker.model
    assert info.max_model_len > 0 and info.block_size > 0


async def test_files_are_what_their_hashes_say(client: Client) -> None:
    info = await client.model()
    assert "tokenizer.json" in {file.name for file in info.files}
    for file in info.files:
        status, content = await client.get(f"{MODEL_FILES_PATH}/{file.sha256}", client.worker.token)
        assert (status, len(content)) == (200, file.bytes)
        assert hashlib.sha256(content).hexdigest() == file.sha256
    assert (await client.get(f"{MODEL_FILES_PATH}/{'0' * 64}", client.worker.token))[0] == 404


async def test_prompts_and_chats_are_tokenised(client: Client) -> None:
    model = client.worker.model
    status, body, _ = await client.post("/tokenize", {"model": model, "prompt": "Hello"})
    assert status == 200 and all(isinstance(token, int) for token in body["tokens"])
    chat = [{"role": "user", "content": "Hello"}]
    status, rendered, _ = await client.post("/tokenize", {"model": model, "messages": chat})
    assert status == 200 and len(rendered["tokens"]) > len(body["tokens"]), "the template adds tokens"


async def test_a_stream_brings_token_ids_one_finish_reason_usage_and_done(client: Client) -> None:
    events = await client.stream(
        "/v1/completions",
        {"prompt": PROMPT, "max_tokens": 5, "temperature": 0, "ignore_eos": True, "return_token_ids": True,
         "stream_options": {"include_usage": True}},
    )  # fmt: skip
    *chunks, usage, done = events
    assert done is None and usage["choices"] == []
    assert (usage["usage"]["prompt_tokens"], usage["usage"]["completion_tokens"]) == (len(PROMPT), 5)
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert sum(len(choice["token_ids"] or ()) for choice in choices) == 5
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["length"]
    assert choices[0]["prompt_token_ids"] == PROMPT
    assert all(choice["index"] == 0 for choice in choices)


async def test_a_whole_answer_is_the_streams_answer(client: Client) -> None:
    asked = {"prompt": PROMPT, "max_tokens": 5, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    status, body, _ = await client.post("/v1/completions", {"model": client.worker.model, **asked})
    assert status == 200
    chunks = [event for event in await client.stream("/v1/completions", asked) if event is not None]
    assert body["choices"][0]["text"] == "".join(chunk["choices"][0]["text"] for chunk in chunks)
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["total_tokens"] == len(PROMPT) + 5


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize(("tokens", "choices"), [(1, 1), (12, 1), (6, 2)])
async def test_a_whole_answer_reports_how_long_its_tokens_took(
    client: Client, path: str, tokens: int, choices: int
) -> None:
    prompt = {"prompt": PROMPT} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "Hello"}]}
    asked = {"model": client.worker.model, "max_tokens": tokens, "n": choices, "ignore_eos": True, **prompt}
    began_s = time.monotonic()
    status, _, sent = await client.post(path, asked)
    elapsed_ms = (time.monotonic() - began_s) * 1000
    assert status == 200
    told = {name.lower(): value for name, value in dict(sent).items()}
    decode_ms = float(told[headers.DECODE_MS.lower()])
    assert decode_ms < elapsed_ms
    assert (decode_ms > 0) == (tokens > 1), "from the first to the last token"


async def test_the_answer_names_the_worker_and_where_the_prompt_was_prefilled(client: Client) -> None:
    _, _, answered = await client.post(
        "/v1/completions", {"model": client.worker.model, "prompt": PROMPT[:4], "max_tokens": 1}
    )
    assert answered[headers.WORKER] and answered[headers.PREFILL] == "local"  # type: ignore[index]
    assert answered[headers.PREFILL_REASON]  # type: ignore[index]


async def test_a_chat_stream_begins_with_the_role_and_ends_with_done(client: Client) -> None:
    chat = [{"role": "user", "content": "Hello"}]
    events = await client.stream("/v1/chat/completions", {"messages": chat, "max_tokens": 4, "temperature": 0})
    assert events[-1] is None
    assert events[0]["choices"][0]["delta"]["role"] == "assistant"
    assert events[0]["object"] == "chat.completion.chunk"
    reasons = [choice["finish_reason"] for event in events[:-1] for choice in event["choices"]]
    assert len([reason for reason in reasons if reason]) == 1


@pytest.mark.parametrize("body", [b"{", b"[]", b"\xff", b'{"model": "m", "prompt": {}}', b"[" * 5000])
async def test_a_body_that_is_no_request_is_the_clients_mistake(client: Client, body: bytes) -> None:
    status, answer, _ = await client.post("/v1/completions", body)
    assert 400 <= status < 500, answer
    assert isinstance(answer, dict)
