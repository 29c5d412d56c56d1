"""What an error says in the event of a stream that has begun."""

import pytest

from pointsman.gateway.errors import RefusedByEngine


@pytest.mark.parametrize(
    "answer",
    [b'{"error": {"message": "no"}, "object": "error"}', b'{"type": "error", "error": {"message": "no"}}'],
    ids=["OpenAI", "Anthropic"],
)
def test_a_refusal_of_the_engine_is_quoted(answer: bytes) -> None:
    assert RefusedByEngine(400, answer).body() == {"error": {"message": "no"}}


@pytest.mark.parametrize("answer", [b"", b"[]", b'{"error": "no"}', b'{"error": "\xff"}', b"[" * 100_000, b"<html>"])
def test_a_refusal_without_an_error_object_is_named_by_its_status(answer: bytes) -> None:
    assert RefusedByEngine(400, answer).body()["error"]["message"] == "engine answered 400"
