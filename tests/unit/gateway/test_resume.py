"""Going on with a broken stream: what is asked of the next worker, and what cannot be asked."""

import json

import pytest

from pointsman.gateway.core import resume
from pointsman.gateway.core.requests import Endpoint, read
from pointsman.gateway.core.sse import ChatTranslator, CompletionTranslator, Identity

IDENTITY = Identity("cmpl-1", 7, "m")


def continued(sampled: list[int], **asked: object) -> dict[str, object]:
    """The continued body of a completion of prompt [1, 2]."""
    body = json.dumps({"model": "m", "prompt": [1, 2], **asked}).encode()
    return dict(json.loads(resume.continued_body(body, sampled)))


def test_the_tokens_so_far_become_prompt_and_count_against_the_limits() -> None:
    body = continued([8, 9], max_tokens=10, min_tokens=5, temperature=0)
    assert body == {"model": "m", "prompt": [1, 2, 8, 9], "max_tokens": 8, "min_tokens": 3, "temperature": 0}


def test_a_completion_without_a_limit_ends_after_sixteen_tokens_in_all() -> None:
    assert continued([8, 9])["max_tokens"] == 14


def test_limits_never_fall_below_what_an_engine_takes() -> None:
    assert continued([8, 9], max_tokens=3, min_tokens=1)["min_tokens"] == 0
    with pytest.raises(ValueError, match="all 3 tokens"):
        continued([8, 9, 10], max_tokens=3)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("stop", ["\n"]),
        ("presence_penalty", 0.1),
        ("frequency_penalty", -1),
        ("response_format", {"type": "json_object"}),
        ("structured_outputs", {"regex": "a"}),
        ("vllm_xargs", {"a": 1}),
    ],
)
def test_what_counts_the_answers_own_tokens_is_not_continued(field: str, value: object) -> None:
    ask = read(Endpoint.COMPLETIONS, json.dumps({"model": "m", "prompt": "a", field: value}).encode(), "m")
    assert resume.why_not(ask) == field


def test_an_ordinary_request_is_continued() -> None:
    harmless = {"stop": [], "presence_penalty": 0, "response_format": {"type": "text"}, "temperature": 0.7, "seed": 3}
    ask = read(Endpoint.COMPLETIONS, json.dumps({"model": "m", "prompt": "a", **harmless}).encode(), "m")
    assert resume.why_not(ask) is None


def test_the_usage_of_a_continued_answer_counts_as_if_one_worker_had_sent_it() -> None:
    usage = {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15}
    whole = json.loads(resume.whole_usage(json.dumps(usage).encode(), 2))
    assert whole == {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    assert resume.whole_usage(b"null", 2) == b"null"


def event(ids: list[int], text: str, **more: object) -> bytes:
    """One event of an engine."""
    return json.dumps(
        {"choices": [{"index": 0, "text": text, "token_ids": ids, "finish_reason": None, **more}]}
    ).encode()


def test_tokens_settle_when_their_text_is_out() -> None:
    translator = CompletionTranslator(IDENTITY)
    half = translator.read(event([5], ""))
    whole = translator.read(event([6], "ü"))
    assert (half.token_ids, half.settled) == ([5], False)
    assert (whole.token_ids, whole.settled) == ([6], True)


def test_a_continued_chat_brings_its_role_and_prompt_once() -> None:
    translator = ChatTranslator(IDENTITY, with_token_ids=True)
    first = translator.read(event([5], "a", prompt_token_ids=[1, 2])).out
    translator.go_on(1)
    second = translator.read(event([6], "b", prompt_token_ids=[1, 2, 5])).out
    assert first.count(b"assistant") == 1
    assert b"prompt_token_ids" in first
    assert b"assistant" not in second
    assert b"prompt_token_ids" not in second
