"""Going on with a broken stream: what is asked of the next worker, and what cannot be asked."""

import json

import pytest

from pointsman.api.protocol.resume import Resume
from pointsman.gateway.core import resume
from pointsman.gateway.core.requests import Endpoint, read
from pointsman.gateway.core.resume import Transcript
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
        ("bad_words", ["red light"]),
        ("presence_penalty", 0.1),
        ("frequency_penalty", -1),
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


def test_log_probabilities_of_a_continued_completion_count_characters_from_its_beginning() -> None:
    def of(text: str, offset: int) -> dict[str, object]:
        return {"tokens": [text], "token_logprobs": [-0.5], "top_logprobs": [{text: -0.5}], "text_offset": [offset]}

    translator = CompletionTranslator(IDENTITY)
    offsets = []
    for number, (text, own) in enumerate((("abc", 0), ("de", 3), ("f", 0), ("gh", 1), ("i", 0))):
        if number in (2, 4):
            translator.go_on(number)
        out = translator.read(event([number], text, logprobs=of(text, own))).out
        offsets += json.loads(out.removeprefix(b"data: "))["choices"][0]["logprobs"]["text_offset"]
    assert offsets == [0, 3, 5, 6, 8]
    assert translator.shows_each_token


class TestTranscript:
    """What a client has of a stream that is repeated."""

    def test_only_what_is_new_passes_and_several_choices_go_on_by_themselves(self) -> None:
        transcript = Transcript(2)
        first = [(0, None, None), (1, None, None), (0, [5], None), (1, [8, 9], "stop"), (0, [6, 7], None)]
        assert all(transcript.add(index, ids, end, content=bool(ids)) for index, ids, end in first)
        told = json.loads(resume.repeated_body(b'{"prompt": [1]}', transcript))["pointsman_resume"]
        assert told == Resume.model_validate(told).model_dump(by_alias=True, mode="json")
        assert told["choices"] == [
            {"chunks": [[5], [6, 7]], "finishReason": None},
            {"chunks": [[8, 9]], "finishReason": "stop"},
        ]
        again = [*first, (0, [4], None), (0, [3], "length")]
        passed = [(index, ids) for index, ids, end in again if transcript.add(index, ids, end, content=bool(ids))]
        assert passed == [(0, [4]), (0, [3])]
        assert transcript.whole

    def test_a_stream_broken_twice_is_repeated_whole(self) -> None:
        transcript = Transcript()
        for ids in ([1], [2]):
            transcript.add(0, ids, None, content=True)
        transcript.repeat()
        assert not transcript.add(0, [1], None, content=True)
        assert transcript.repeat()["choices"][0]["chunks"] == [(1,), (2,)]
        assert not transcript.add(0, [1], None, content=True)

    def test_a_repetition_that_differs_is_noticed(self) -> None:
        transcript = Transcript()
        transcript.add(0, [1], None, content=True)
        transcript.repeat()
        with pytest.raises(ValueError, match="repeated with"):
            transcript.add(0, [2], None, content=True)

    def test_tokens_that_the_engine_hides_cannot_be_repeated(self) -> None:
        transcript = Transcript()
        transcript.add(0, None, None, content=False)  # the role
        transcript.add(0, None, None, content=True)
        with pytest.raises(ValueError, match="did not report its token ids"):
            transcript.repeat()
