"""What the gateway checks and counts of bodies that it passes on."""

import json
from typing import Any

import pytest

from pointsman.gateway.core.relayed import (
    STATEFUL,
    RelayedEndpoint,
    RelayedEvents,
    Usage,
    read_relayed,
    relayed_error_event,
    usage_of,
)
from pointsman.gateway.core.requests import REFUSED
from pointsman.gateway.errors import ModelNotFound, RequestInvalid

MAX_MODEL_LEN = 4096


def read(endpoint: RelayedEndpoint, **body: Any) -> Any:
    return read_relayed(endpoint, json.dumps(body).encode(), "chat", ("sql",), MAX_MODEL_LEN)


@pytest.mark.parametrize("endpoint", RelayedEndpoint)
def test_a_body_is_passed_on_as_it_came(endpoint: RelayedEndpoint) -> None:
    data = b'{ "model": "chat",  "unknown": [1, 2.50] }'
    assert read_relayed(endpoint, data, "chat", (), MAX_MODEL_LEN).body == data


@pytest.mark.parametrize("endpoint", RelayedEndpoint)
def test_what_reaches_into_the_service_is_refused_by_name(endpoint: RelayedEndpoint) -> None:
    for field in REFUSED:
        with pytest.raises(RequestInvalid, match=f"'{field}' is not accepted"):
            read(endpoint, model="chat", **{field: {"remote_host": "10.0.0.9"}})


def test_a_response_that_needs_an_earlier_one_is_refused_by_name() -> None:
    for field in STATEFUL:
        with pytest.raises(RequestInvalid, match=f"'{field}' is not accepted"):
            read(RelayedEndpoint.RESPONSES, model="chat", input="a", **{field: "resp_1"})
    assert json.loads(read(RelayedEndpoint.RESPONSES, model="chat", input="a", store=True).body)["store"] is False


def test_the_model_is_checked_where_it_is_named() -> None:
    assert not read(RelayedEndpoint.MESSAGES, model="sql", messages=[]).stream
    assert read(RelayedEndpoint.TOKENIZE, prompt="a").body
    with pytest.raises(ModelNotFound, match=r"'gpt' does not exist; this service serves 'chat' and its adapters 'sql'"):
        read(RelayedEndpoint.TOKENIZE, model="gpt", prompt="a")
    with pytest.raises(RequestInvalid, match="'model' is missing"):
        read(RelayedEndpoint.EMBEDDINGS, input="a")


@pytest.mark.parametrize(
    "body", [b"", b"[1]", b"\xff", b'{"model": "chat", "stream": "yes"}', b'{"model": [' + b"[" * 5000 + b"]" * 5000]
)
def test_what_is_no_request_is_the_clients_mistake(body: bytes) -> None:
    with pytest.raises(RequestInvalid):
        read_relayed(RelayedEndpoint.RESPONSES, body, "chat", (), MAX_MODEL_LEN)


def test_a_prompt_is_estimated_at_no_more_than_the_models_context() -> None:
    image = "x" * (8 * MAX_MODEL_LEN)
    assert read(RelayedEndpoint.RESPONSES, model="chat", input=image).prompt_tokens == MAX_MODEL_LEN
    assert read(RelayedEndpoint.RESPONSES, model="chat", input="a" * 400).prompt_tokens == pytest.approx(100, abs=20)
    assert read(RelayedEndpoint.EMBEDDINGS, model="chat", input=[image]).prompt_tokens > MAX_MODEL_LEN, "many texts"


def test_usage_is_read_from_each_kind_of_answer() -> None:
    assert usage_of(b'{"usage": {"input_tokens": 3, "output_tokens": 4}}') == Usage(3, 4)
    assert usage_of(b'{"usage": {"prompt_tokens": 3, "total_tokens": 3}}') == Usage(3, 0)
    assert usage_of(b'{"tokens": [1, 2]}') is None
    assert usage_of(b"no JSON") is None


@pytest.mark.parametrize(
    "odd",
    [
        b"[]",
        b'{"message": "text"}',
        b'{"usage": null}',
        b'{"usage": 3}',
        b'{"usage": "\xff"}',
        b'{"usage": {"input_tokens": 1e400}}',
        b'{"usage": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
        b'{"response": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
    ],
)
def test_an_answer_of_any_other_shape_has_no_usage(odd: bytes) -> None:
    assert usage_of(odd) is None


def events(*items: tuple[str, dict[str, Any]]) -> bytes:
    return b"".join(f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n".encode() for kind, data in items)


RESPONSES = events(
    ("response.created", {"response": {"id": "resp_1", "usage": None}}),
    ("response.output_text.delta", {"delta": "usage"}),
    ("response.output_text.delta", {"delta": '"usage"'}),
    ("response.completed", {"response": {"usage": {"input_tokens": 5, "output_tokens": 2}}}),
)
MESSAGES = events(
    ("message_start", {"message": {"usage": {"input_tokens": 5, "output_tokens": 0}}}),
    ("content_block_delta", {"index": 0, "delta": {"type": "text_delta", "text": "a"}}),
    ("content_block_delta", {"index": 0, "delta": {"type": "text_delta", "text": "b"}}),
    ("message_delta", {"usage": {"input_tokens": 5, "output_tokens": 2}}),
    ("message_stop", {}),
)


@pytest.mark.parametrize("stream", [RESPONSES, MESSAGES], ids=["responses", "messages"])
@pytest.mark.parametrize("piece", [1, 7, 10_000])
def test_tokens_and_usage_of_a_stream_are_counted_however_it_is_cut(stream: bytes, piece: int) -> None:
    counter = RelayedEvents()
    tokens = sum(counter.feed(stream[start : start + piece]) for start in range(0, len(stream), piece))
    assert (tokens, counter.usage) == (2, Usage(5, 2))


@pytest.mark.parametrize(
    "kind",
    [
        "response.function_call_arguments.delta",
        "response.custom_tool_call_input.delta",
        "response.reasoning_text.delta",
        "response.code_interpreter_call_code.delta",
    ],
)
def test_pieces_of_reasoning_and_of_tool_calls_are_tokens_too(kind: str) -> None:
    assert RelayedEvents().feed(events((kind, {"delta": "a"}))) == 1


@pytest.mark.parametrize(("kind", "failed"), [("error", True), ("response.failed", True), ("response.created", False)])
def test_a_failure_that_the_engine_reports_is_seen(kind: str, failed: bool) -> None:
    counter = RelayedEvents()
    counter.feed(events((kind, {})))
    assert counter.failed == failed


def test_an_error_event_has_the_shape_of_its_api() -> None:
    error = {"message": "The answer broke off.", "type": "server_error", "param": None, "code": "stream_broken"}
    prefix = b"event: error\ndata: "
    response = relayed_error_event(RelayedEndpoint.RESPONSES, error, 4)
    message = relayed_error_event(RelayedEndpoint.MESSAGES, error, 4)
    assert json.loads(response.removeprefix(prefix)) == {
        "type": "error", "message": "The answer broke off.", "param": None, "code": "stream_broken",
        "sequence_number": 4, "error": error,
    }  # fmt: skip
    assert json.loads(message.removeprefix(prefix)) == {"type": "error", "error": {**error, "type": "api_error"}}


@pytest.mark.parametrize("part", [{"type": "image_embeds", "image_embeds": "AA"}, {"type": None, "audio_embeds": "AA"}])
def test_embeddings_in_place_of_media_are_refused_by_name(part: dict[str, Any]) -> None:
    with pytest.raises(RequestInvalid, match="_embeds"):
        read(RelayedEndpoint.TOKENIZE, model="chat", messages=[{"role": "user", "content": ["a", part]}])
    others: list[Any] = ["text", [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}, 5]}, 5], {}]
    for messages in others:
        assert read(RelayedEndpoint.TOKENIZE, model="chat", messages=messages).body
