"""Streams: splitting at any byte, completion chunks into chat chunks, nothing shown that was not asked for."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.gateway.core.sse import (
    ChatTranslator,
    CompletionTranslator,
    EventSplitter,
    Identity,
    MalformedEvent,
    Step,
    VerbatimTranslator,
)

IDENTITY = Identity("cmpl-7", 1700000000, 'a "model"')


def chunk(text: str, token_ids: list[int], finish_reason: str | None = None, **more: Any) -> bytes:
    """One chunk as vLLM writes it."""
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason, "token_ids": token_ids}
    engine = {"id": "cmpl-engine", "object": "text_completion", "created": 1, "model": "m"}
    return json.dumps(engine | {"choices": [choice | more]}).encode()


def events(out: bytes) -> list[dict[str, Any]]:
    """What a client reads from ``out``."""
    return [json.loads(event.removeprefix("data: ")) for event in out.decode().split("\n\n") if event]


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=20)), st.data())
def test_a_stream_cut_anywhere_gives_the_same_events(texts: list[str], data: st.DataObject) -> None:
    payloads = [json.dumps({"text": text}, ensure_ascii=False).encode() for text in texts]
    stream = b"".join(b"data: " + payload + b"\n\n" for payload in payloads)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    splitter = EventSplitter()
    found = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += splitter.feed(stream[start:end])
    assert found == payloads


def test_a_chat_stream_begins_with_the_role_and_keeps_every_byte_of_text() -> None:
    translator = ChatTranslator(IDENTITY)
    texts = ["Grüße", " 🚉", ' "quoted"\n', ""]
    steps = [
        translator.read(chunk(text, [n], "stop" if n == 3 else None, prompt_token_ids=[1, 2]))
        for n, text in enumerate(texts)
    ]
    sent = [event for step in steps for event in events(step.out)]
    assert sent[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [e["choices"][0]["delta"]["content"] for e in sent[1:]] == texts
    assert {e["object"] for e in sent} == {"chat.completion.chunk"}
    assert {(e["id"], e["model"], e["created"]) for e in sent} == {("cmpl-7", 'a "model"', 1700000000)}
    assert [e["choices"][0]["finish_reason"] for e in sent] == [None, None, None, None, "stop"]
    assert [step.tokens for step in steps] == [1, 1, 1, 1]
    assert steps[-1].finish_reason == "stop"
    assert not any("token_ids" in json.dumps(e) for e in sent)


def test_token_ids_are_shown_to_those_who_asked() -> None:
    step = CompletionTranslator(IDENTITY, with_token_ids=True).read(chunk("ab", [5, 6], prompt_token_ids=[1, 2, 3]))
    (event,) = events(step.out)
    assert event["choices"][0]["token_ids"] == [5, 6]
    assert event["choices"][0]["prompt_token_ids"] == [1, 2, 3]
    assert step.tokens == 2
    hidden = CompletionTranslator(IDENTITY).read(chunk("ab", [5, 6], prompt_token_ids=[1, 2, 3]))
    assert b"token_ids" not in hidden.out


def test_log_probabilities_of_completions_pass_unchanged() -> None:
    logprobs = {"tokens": ["a"], "token_logprobs": [-0.25], "top_logprobs": [{"a": -0.25}], "text_offset": [0]}
    step = CompletionTranslator(IDENTITY).read(chunk("a", [5], logprobs=logprobs))
    assert events(step.out)[0]["choices"][0]["logprobs"] == logprobs


@pytest.mark.parametrize("kind", [ChatTranslator, CompletionTranslator])
def test_the_last_usage_event_is_told_apart(kind: type[ChatTranslator | CompletionTranslator]) -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
    step = kind(IDENTITY).read(json.dumps({"id": "x", "choices": [], "usage": usage}).encode())
    assert json.loads(step.usage) == usage
    assert events(step.out)[0]["usage"] == usage
    assert events(step.out)[0]["choices"] == []


@pytest.mark.parametrize("translator", [ChatTranslator(IDENTITY), CompletionTranslator(IDENTITY), VerbatimTranslator()])
def test_errors_aborts_and_the_end_are_seen_by_every_translator(
    translator: ChatTranslator | CompletionTranslator | VerbatimTranslator,
) -> None:
    error = translator.read(
        b'{"error": {"message": "no", "type": "BadRequestError", "param": null, "code": 400}}'
    ).error
    assert error is not None
    assert (error.message, error.is_clients) == ("no", True)
    broken = translator.read(b'{"error": {"message": "engine died", "code": 500}}').error
    assert broken is not None
    assert not broken.is_clients
    assert translator.read(b"[DONE]") == Step(done=True)
    assert translator.read(chunk("", [], "abort")).finish_reason == "abort"
    with pytest.raises(MalformedEvent):
        translator.read(b"{nonsense")


def test_the_engines_own_chat_events_pass_unchanged_and_the_role_is_no_token() -> None:
    translator = VerbatimTranslator()
    head = b'{"id":"e","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}'
    call = b'{"id":"e","choices":[{"index":0,"delta":{"tool_calls":[{"index":0}]},"finish_reason":null}],"x":1}'
    assert translator.read(head) == Step(out=b"data: " + head + b"\n\n")
    assert translator.read(call) == Step(out=b"data: " + call + b"\n\n", tokens=1)


@pytest.mark.parametrize("shown", [True, False], ids=["ids are shown", "ids are hidden"])
def test_tokens_of_the_engines_own_events_are_counted_by_their_ids_and_not_by_events(shown: bool) -> None:
    def event(*choices: tuple[str, list[int]]) -> bytes:
        made = [
            {"index": index, "delta": {"content": text}, "finish_reason": None, "token_ids": ids}
            for index, (text, ids) in enumerate(choices)
        ]
        return json.dumps({"id": "e", "choices": made}).encode()

    translator = VerbatimTranslator(choices=2, with_token_ids=shown)
    counts = [
        translator.read(each).tokens
        for each in (
            event(("a word", [5, 6, 7])),
            event(("", [8, 9])),  # held back by a parser
            event(("text of a token told before", [])),
            event(("two", [1, 2]), ("choices", [3, 4, 5])),
        )
    ]
    assert counts == [3, 2, 0, 5]
