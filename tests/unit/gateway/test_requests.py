"""Bodies: what is refused and how, what needs the engine, what reaches it."""

import json
from typing import Any

import pytest

from pointsman.gateway.core.requests import (
    Endpoint,
    Prompt,
    ValidatedRequest,
    Verbatim,
    VerbatimReason,
    max_output_tokens,
    needs_engine,
    plain_body,
    read,
    token_body,
)
from pointsman.gateway.errors import ContextLengthExceeded, ModelNotFound, RequestInvalid

USER = {"role": "user", "content": "hello"}


def chat(**body: Any) -> ValidatedRequest:
    return read(Endpoint.CHAT, json.dumps({"model": "m", "messages": [USER], **body}).encode(), "m")


def completion(**body: Any) -> ValidatedRequest:
    return read(Endpoint.COMPLETIONS, json.dumps({"model": "m", "prompt": "hello", **body}).encode(), "m")


@pytest.mark.parametrize(
    "body",
    [
        {"temperature": 0.5, "top_p": 1, "seed": 3, "stop": ["x"], "max_tokens": 5, "logit_bias": {"7": 1}},
        {"max_completion_tokens": 5, "n": 2, "stream": True, "stream_options": {"include_usage": True}},
        {"tools": [], "tool_choice": "none", "logprobs": False, "top_logprobs": 0, "response_format": None},
        {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a+"}},
        {"metadata": {"team": "rail"}, "store": False, "user": "u", "parallel_tool_calls": True},
        {"add_generation_prompt": True, "include_reasoning": True, "echo": False},
    ],
)
def test_plain_chats_are_tokenised_here(body: dict[str, Any]) -> None:
    assert needs_engine(chat(**body)) is None


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"logprobs": True}, "logprobs"),
        ({"chat_template": "{{ messages }}"}, "chat_template"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "chat_template_kwargs"),
        ({"add_generation_prompt": False}, "add_generation_prompt"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"reasoning_effort": "none"}, "reasoning_effort"),
        ({"echo": True}, "echo"),
        ({"truncate_prompt_tokens": 10}, "truncate_prompt_tokens"),
        ({"a_field_of_the_future": 1}, "a_field_of_the_future"),
        ({"stream": True, "stream_options": {"continuous_usage_stats": True}}, "stream_options.continuous_usage_stats"),
        ({"messages": [{"role": "tool", "content": "x", "tool_call_id": "1"}]}, "a message of role 'tool'"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]}, "that is not a string"),
        ({"messages": [{"role": "assistant", "content": "x", "tool_calls": [{}]}, USER]}, "tool_calls"),
        ({"messages": [{"role": "system", "content": "x-anthropic-billing-header: 1"}, USER]}, "billing header"),
    ],
)
def test_what_only_the_engine_can_do_goes_there_as_it_is(body: dict[str, Any], why: str) -> None:
    found = needs_engine(chat(**body))
    assert found is not None
    assert why in found.detail


def test_echo_and_truncation_of_completions_go_to_the_engine() -> None:
    assert needs_engine(completion(logprobs=3, add_special_tokens=False, seed=1)) is None
    assert needs_engine(completion(prompt_logprobs=0)) == Verbatim(VerbatimReason.LOGPROBS, "prompt_logprobs")
    assert needs_engine(completion(echo=True)) == Verbatim(VerbatimReason.PROMPT_HANDLING, "echo")
    assert needs_engine(completion(suffix="end")) == Verbatim(VerbatimReason.PROMPT_HANDLING, "suffix")


def test_reasons_are_bounded_whatever_a_client_writes() -> None:
    odd: list[dict[str, Any]] = [{"a_field_of_the_future": 1}, {"messages": [{"role": "x" * 50, "content": "x"}]}]
    assert [getattr(needs_engine(chat(**body)), "reason", None) for body in odd] == ["other-field", "message-role"]


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        ({"messages": []}, "messages", "missing or empty"),
        ({"messages": ["hi"]}, "messages[0]", "an object with a 'role'; got string"),
        ({"messages": [{"content": "hi"}]}, "messages[0].role", "must be a string; got null"),
        ({"n": True}, "n", "n' is True"),
        ({"n": 1025}, "n", "1025 answers"),
        ({"n": 2, "best_of": 3}, "best_of", "'best_of' is 3 and 'n' is 2"),
        ({"best_of": "2"}, "best_of", "'best_of' is '2'"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "is a JSON number"),
        ({"messages": [USER, {"role": "user", "content": True}]}, "messages[1].content", "is a JSON boolean"),
        ({"messages": [{"role": "user", "content": [7]}]}, "messages[0].content[0]", "a part is an object"),
        ({"pointsman_resume": {"choices": []}}, "pointsman_resume", "not accepted"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "only for 'stream': true"),
        ({"use_beam_search": True}, "use_beam_search", "beam search is not supported"),
        ({"ec_transfer_params": {"x": 1}}, "ec_transfer_params", "not accepted"),
        ({"model": ""}, "model", "'model' is missing"),
    ],
)
def test_a_mistake_is_named_with_what_would_be_right(body: dict[str, Any], param: str, says: str) -> None:
    with pytest.raises(RequestInvalid) as refused:
        chat(**body)
    assert refused.value.param == param
    assert says in refused.value.message


def test_another_model_is_not_found() -> None:
    with pytest.raises(ModelNotFound, match="this service serves 'm'"):
        chat(model="gpt-4")


def test_best_of_as_many_as_n_asks_for_nothing_more() -> None:
    accepted: list[dict[str, Any]] = [{"best_of": 1}, {"best_of": 2, "n": 2}, {"best_of": 1, "n": 3}]
    for body in accepted:
        ask = completion(**body)
        assert needs_engine(ask) is None
        assert b"best_of" not in token_body(ask, [1], max_tokens=1)
        assert b"best_of" not in plain_body(ask)


def test_a_byte_order_mark_is_no_part_of_the_body() -> None:
    data = b"\xef\xbb\xbf" + json.dumps({"model": "m", "prompt": "x"}).encode()
    assert read(Endpoint.COMPLETIONS, data, "m").prompts == (Prompt(text="x"),)


def test_the_limit_of_answers_counts_prompts_and_is_named() -> None:
    prompts = json.dumps({"model": "m", "prompt": ["a"] * 300}).encode()
    assert len(read(Endpoint.COMPLETIONS, prompts, "m").prompts) == 300
    with pytest.raises(RequestInvalid, match=r"at most 256 .*maxAnswersPerRequest") as refused:
        read(Endpoint.COMPLETIONS, prompts, "m", max_answers=256)
    assert refused.value.param == "prompt"


def test_answers_that_are_too_many_to_be_told_are_refused() -> None:
    """Python tells no number of more than 4 300 digits."""
    data = b'{"model": "m", "prompt": ["a", "b"], "n": ' + b"9" * 4300 + b"}"
    with pytest.raises(RequestInvalid, match="answers for each of 2 prompts"):
        read(Endpoint.COMPLETIONS, data, "m")


NESTED = b'{"model": "m", "messages": ' + b"[" * 5000


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[1]", b'"x"', NESTED, b'{"model": "\\ud800"}', b'{"n": 1e999}'])
def test_a_body_that_is_no_object_is_refused(data: bytes) -> None:
    with pytest.raises(RequestInvalid, match="request body"):
        read(Endpoint.CHAT, data, "m")


def test_prompts_come_as_text_ids_or_lists_of_either() -> None:
    assert completion(prompt="a").prompts == (Prompt(text="a"),)
    assert completion(prompt=[1, 2]).prompts == (Prompt(token_ids=(1, 2)),)
    assert completion(prompt=["a", "b"]).prompts == (Prompt(text="a"), Prompt(text="b"))
    assert completion(prompt=[[1], [2, 3]]).prompts == (Prompt(token_ids=(1,)), Prompt(token_ids=(2, 3)))
    refused_prompts: list[Any] = [None, "", [], ["a", 1], [1, "a"], [[]], [1, -1], [1, True], {"a": 1}, 7]
    for wrong in refused_prompts:
        with pytest.raises(RequestInvalid) as refused:
            completion(prompt=wrong)
        assert refused.value.param == "prompt"


def test_the_engine_gets_ids_sampling_and_nothing_else() -> None:
    ask = chat(temperature=0.5, seed=9, n=2, user="u", metadata={"a": "b"}, stream=True, max_completion_tokens=5)
    body = json.loads(token_body(ask, [1, 2, 3], max_tokens=5))
    assert body == {
        "model": "m",
        "prompt": [1, 2, 3],
        "return_token_ids": True,
        "max_tokens": 5,
        "temperature": 0.5,
        "seed": 9,
        "n": 2,
        "user": "u",
        "stream": True,
    }


def test_limits_follow_the_two_endpoints_defaults() -> None:
    def limit(ask: ValidatedRequest, prompt_tokens: int = 100, model_default: int | None = None) -> int | None:
        return max_output_tokens(ask, prompt_tokens=prompt_tokens, max_model_len=4096, model_default=model_default)

    assert limit(chat()) == 3996
    assert limit(chat(), model_default=512) == 512
    assert limit(chat(max_tokens=7)) == 7
    assert limit(chat(max_tokens=7, max_completion_tokens=9)) == 9
    assert limit(completion()) is None
    with pytest.raises(ContextLengthExceeded, match="4096 tokens, and 'messages' has 4096"):
        limit(chat(), prompt_tokens=4096)
