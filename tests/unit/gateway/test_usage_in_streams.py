"""A stream whose client asked for usage has the field in every chunk, as OpenAI's API has it."""

import json
from typing import Any

import pytest

from pointsman.gateway.core.sse import ChatTranslator, CompletionTranslator, Identity

USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


def chunks(kind: type[ChatTranslator] | type[CompletionTranslator], *, with_usage: bool) -> list[dict[str, Any]]:
    """What the client gets of an engine's stream of two tokens."""
    translator = kind(Identity("id", 1, "m", with_usage=with_usage))
    engine = [
        {"choices": [{"index": 0, "text": "a", "finish_reason": None, "token_ids": [1]}]},
        {"choices": [{"index": 0, "text": "b", "finish_reason": "length", "token_ids": [2]}]},
        *([{"choices": [], "usage": USAGE}] if with_usage else []),
    ]
    out = b"".join(translator.read(json.dumps(event).encode()).out for event in engine)
    return [json.loads(event.removeprefix(b"data: ")) for event in out.split(b"\n\n") if event]


@pytest.mark.parametrize("kind", [ChatTranslator, CompletionTranslator])
def test_usage_is_null_in_each_chunk_but_the_last(kind: type[ChatTranslator] | type[CompletionTranslator]) -> None:
    *before, last = chunks(kind, with_usage=True)
    assert [chunk["usage"] for chunk in before] == [None] * len(before)
    assert len(before) >= 2
    assert (last["choices"], last["usage"]) == ([], USAGE)


@pytest.mark.parametrize("kind", [ChatTranslator, CompletionTranslator])
def test_without_the_wish_there_is_no_usage(kind: type[ChatTranslator] | type[CompletionTranslator]) -> None:
    assert all("usage" not in chunk for chunk in chunks(kind, with_usage=False))
