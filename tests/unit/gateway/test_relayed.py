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
from pointsman.gateway.core.requests import MEDIA_OPTIONS, REFUSED
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


@pytest.mark.parametrize("endpoint", RelayedEndpoint)
def test_options_of_the_image_processor_are_refused_unless_clients_are_trusted(endpoint: RelayedEndpoint) -> None:
    for field in MEDIA_OPTIONS:
        body = {"model": "chat", field: {"size": {"height": 200_000, "width": 200_000}}}
        with pytest.raises(RequestInvalid, match=f"'{field}' is not accepted") as refused:
            read(endpoint, **body)
        assert refused.value.param == field
        data = json.dumps(body).encode()
        assert read_relayed(endpoint, data, "chat", (), MAX_MODEL_LEN, trusts_media_options=True).body == data
        assert read(endpoint, **body | {field: {}})


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


DATA = "data:image/png;base64,AAAA"
UUID = "0" * 64
ALL_ENDPOINTS = pytest.mark.parametrize("endpoint", RelayedEndpoint)


def with_part(endpoint: RelayedEndpoint, part: Any) -> dict[str, Any]:
    """A body of ``endpoint`` with ``part`` where its media stand."""
    message = {"role": "user", "content": ["a", part]}
    match endpoint:
        case RelayedEndpoint.RESPONSES:
            return {"input": [message]}
        case RelayedEndpoint.EMBEDDINGS:
            return {"input": [[message]]}
        case RelayedEndpoint.MESSAGES | RelayedEndpoint.MESSAGES_COUNT:
            return {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": ["a", part]}]}]}
        case RelayedEndpoint.RERANK:
            return {"query": "a", "documents": [{"content": [part]}]}
        case RelayedEndpoint.SCORE:
            return {"data_1": {"content": [part]}, "data_2": "a"}
    return {"messages": [message]}


@ALL_ENDPOINTS
@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": DATA}, "uuid": UUID},
        {"type": "input_image", "image_url": DATA, "uuid": UUID},
        {"type": "text", "text": "a", "image_url": None, "uuid": UUID},
        {"image_embeds": None, "uuid": UUID},
        {"video_url": DATA, "uuid": 5},
    ],
)
def test_a_clients_own_name_of_a_medium_is_refused(endpoint: RelayedEndpoint, part: dict[str, Any]) -> None:
    """Engines would keep the medium under this name for all clients, or read that of another one."""
    with pytest.raises(RequestInvalid, match="uuid' is not accepted") as refused:
        read(endpoint, model="chat", **with_part(endpoint, part))
    assert refused.value.param is not None and refused.value.param.endswith("].uuid")


@ALL_ENDPOINTS
@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_embeds", "image_embeds": "AA"},
        {"type": None, "audio_embeds": "AA"},
        {"type": "prompt_embeds", "data": "AA"},
        {"type": "later_embeds"},
        {"type": "image_pil", "image_pil": {}},
    ],
)
def test_embeddings_in_place_of_media_are_refused_by_name(endpoint: RelayedEndpoint, part: dict[str, Any]) -> None:
    with pytest.raises(RequestInvalid, match=r"_embeds|image_pil"):
        read(endpoint, model="chat", **with_part(endpoint, part))


@ALL_ENDPOINTS
@pytest.mark.parametrize("url", ["http://169.254.169.254/a", "HTTPS://example.com/a", "file:///a", " data:,a", "", 5])
@pytest.mark.parametrize("key", ["image_url", "video_url", "audio_url", "input_image", "file_url"])
def test_a_url_that_the_engine_would_fetch_is_refused(endpoint: RelayedEndpoint, key: str, url: Any) -> None:
    for part in ({"type": key, key: {"url": url}}, {"type": "input_image", key: url}, {key: url}):
        with pytest.raises(RequestInvalid, match="/v1/chat/completions") as refused:
            read(endpoint, model="chat", **with_part(endpoint, part))
        assert key in str(refused.value.param)


@pytest.mark.parametrize("kind", ["image", "document"])
def test_urls_in_anthropics_shape_are_refused_too(kind: str) -> None:
    part = {"type": kind, "source": {"type": "url", "url": "http://10.0.0.1/a"}}
    for body in (with_part(RelayedEndpoint.MESSAGES, part), {"messages": [], "system": [part]}):
        with pytest.raises(RequestInvalid, match=r"source\.url"):
            read(RelayedEndpoint.MESSAGES, model="chat", **body)


@ALL_ENDPOINTS
def test_what_the_engine_need_not_fetch_is_passed_on(endpoint: RelayedEndpoint) -> None:
    for part in (
        5,
        {"type": "image_url", "image_url": {"url": DATA, "detail": "low"}, "uuid": None},
        {"type": "input_image", "image_url": DATA},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
        {"type": "text", "text": "http://example.com", "image_url": None},
        {"type": "tool_use", "name": "f", "input": {"image_url": "http://example.com", "uuid": "5"}},
    ):
        assert read(endpoint, model="chat", **with_part(endpoint, part)).body
    schema = {"type": "object", "properties": {"image_url": {"type": "string"}, "uuid": {"type": "string"}}}
    assert read(endpoint, model="chat", tools=[{"type": "function", "parameters": schema}], metadata=schema).body


def test_a_part_is_named_however_deep_it_is_and_however_long_its_fields_are() -> None:
    part: Any = {"image_url": "http://example.com"}
    for _ in range(600):
        part = [part]
    with pytest.raises(RequestInvalid) as refused:
        read(RelayedEndpoint.RESPONSES, model="chat", input={"a" * 10_000: part})
    assert len(str(refused.value.param)) < 300
