"""Which prompts can be prefilled elsewhere, and what the two legs look like."""

from typing import Any

import pytest

from pointsman.serving.local_remote import PrefillReason
from pointsman.workers.core.prompts import (
    CHAT_PATH,
    COMPLETIONS_PATH,
    ChatPrompt,
    LocalPrompt,
    TextPrompts,
    TokenPrompts,
    chat_prefill_leg,
    chat_pull_leg,
    needs_kv_first,
    prefill_leg,
    pull_leg,
    read_prompt,
    token_fields,
    without_client_transfer_params,
)

MESSAGES = [{"role": "user", "content": "hi"}]
IDS = {"prompt_token_ids": [1, 2, 3]}


@pytest.mark.parametrize("prompt", [[1, 2, 3], [[1, 2, 3]]])
def test_token_ids_are_a_prompt_as_they_are(prompt: list[Any]) -> None:
    assert read_prompt(COMPLETIONS_PATH, {"prompt": prompt}) == TokenPrompts(((1, 2, 3),))


def test_a_text_is_to_be_tokenised_as_the_engine_would() -> None:
    prompt = read_prompt(COMPLETIONS_PATH, {"model": "m", "prompt": "zwölf", "add_special_tokens": False})
    assert prompt == TextPrompts(("zwölf",))
    assert prompt.max_utf8_bytes == 6


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        (["a", "b"], TextPrompts(("a", "b"))),
        ([[1], [2, 3]], TokenPrompts(((1,), (2, 3)))),
    ],
)
def test_several_prompts_are_each_one(prompt: Any, prompts: TextPrompts | TokenPrompts) -> None:
    assert read_prompt(COMPLETIONS_PATH, {"prompt": prompt}) == prompts


def test_a_chat_has_the_token_ids_its_gateway_gave_it_and_else_those_the_engine_renders() -> None:
    assert read_prompt(CHAT_PATH, {"messages": MESSAGES, "kv_transfer_params": IDS}) == TokenPrompts(((1, 2, 3),))
    assert read_prompt(CHAT_PATH, {"messages": MESSAGES, "tools": [{}], "logprobs": True}) == ChatPrompt()


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"echo": True, "logprobs": 1}, PrefillReason.PROMPT_LOGPROBS),
        ({"prompt_logprobs": 0}, PrefillReason.PROMPT_LOGPROBS),
        ({"prompt_embeds": "AAAA"}, PrefillReason.PROMPT_EMBEDS),
        ({"truncate_prompt_tokens": 5}, PrefillReason.UNSUPPORTED),
        ({"suffix": "b"}, PrefillReason.UNSUPPORTED),
        ({"use_beam_search": True}, PrefillReason.UNSUPPORTED),
        ({"prompt": ["a", [1]]}, PrefillReason.INVALID),
        ({"prompt": [1, True]}, PrefillReason.INVALID),
        ({"prompt": [1, -1]}, PrefillReason.INVALID),
        ({"prompt": [1, 2**32]}, PrefillReason.INVALID),
        ({"prompt": [[1], []]}, PrefillReason.INVALID),
        ({"prompt": []}, PrefillReason.INVALID),
        ({"prompt": None}, PrefillReason.INVALID),
        ({"prompt": 5}, PrefillReason.INVALID),
        ({"cache_salt": 5}, PrefillReason.INVALID),
        ({"model": "\ud800"}, PrefillReason.INVALID),
    ],
)
def test_what_only_this_engine_can_prefill_has_its_reason(more: dict[str, Any], reason: PrefillReason) -> None:
    assert read_prompt(COMPLETIONS_PATH, {"prompt": [1, 2, 3], **more}) == LocalPrompt(reason)


def test_fields_with_their_defaults_hinder_nothing() -> None:
    body = {"prompt": [1], "n": 1, "best_of": None, "echo": False, "prompt_logprobs": None, "suffix": None}
    assert read_prompt(COMPLETIONS_PATH, body) == TokenPrompts(((1,),))
    assert not needs_kv_first(body, 1)


@pytest.mark.parametrize("more", [{"n": 2}, {"n": "2"}, {"echo": True}, {"return_prompt_text": True}])
def test_transfer_parameters_are_for_one_sequence_and_for_prompts_that_may_be_token_ids(more: dict[str, Any]) -> None:
    assert needs_kv_first({"prompt": [1], **more}, 1)
    assert needs_kv_first({"prompt": [[1], [2]]}, 2)


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "https://elsewhere/image.png"}},
        {"type": "image_url", "image_url": "data:image/png;base64,"},
        {"type": "input_audio", "input_audio": {}},
        {"type": "video_url"},
        {"image_url": "http://x"},
        {"type": "text", "text": "x", "image_embeds": "y"},
        {"type": 5},
        {"type": "file", "file": {}},
    ],
)
def test_a_chat_with_media_stays_here(part: dict[str, Any]) -> None:
    parts = [{"type": "text", "text": "what is it"}, part]
    body = {"messages": [{"role": "user", "content": parts}], "kv_transfer_params": IDS}
    assert read_prompt(CHAT_PATH, body) == LocalPrompt(PrefillReason.MEDIA)


def test_a_chat_with_images_in_it_can_be_prefilled_elsewhere_if_it_has_no_other_media() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}, "uuid": "hash"}
    video = {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}}
    text = {"type": "text", "text": "what is it"}
    messages = [*MESSAGES, {"role": "user", "content": [image, text, image]}]
    prompt = read_prompt(CHAT_PATH, {"messages": messages, "kv_transfer_params": IDS})
    assert prompt == ChatPrompt(images=True), "its tokens alone would not do"
    more = [*messages, {"role": "user", "content": [image, video]}]
    assert read_prompt(CHAT_PATH, {"messages": more}) == LocalPrompt(PrefillReason.MEDIA)


def test_the_prefill_leg_of_a_chat_with_images_changes_nothing_of_its_prompt() -> None:
    prompt = {"model": "m", "messages": MESSAGES, "tools": [{}], "cache_salt": "a", "ec_transfer_params": {"hash": {}}}
    answer = {"max_completion_tokens": 9, "n": 3, "stream": True, "stream_options": {}, "logprobs": True, "stop": "x"}
    leg = chat_prefill_leg(prompt | answer | {"kv_transfer_params": IDS, "temperature": 1})
    assert leg == prompt | {
        "max_tokens": 1,
        "min_tokens": 1,
        "temperature": 0,
        "stream": False,
        "return_token_ids": True,
        "kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False},
    }
    pull = chat_pull_leg(prompt | answer, {"remote_host": "p"})
    assert pull["kv_transfer_params"] == {"remote_host": "p"}
    assert "ec_transfer_params" not in pull


def test_the_decode_leg_of_a_chat_with_images_pulls_kv_and_no_embeddings() -> None:
    kv = {"remote_host": "p"}
    assert token_fields(CHAT_PATH, (1, 2), given=False, images=True) == {}
    fields = token_fields(CHAT_PATH, (1, 2), given=False, images=True, kv_transfer_params=kv)
    assert fields == {"kv_transfer_params": kv, "ec_transfer_params": None}


def test_an_engine_that_checks_where_embeddings_are_is_told_by_whoever_asks() -> None:
    body = {"messages": MESSAGES, "ec_transfer_params": {"hash": {}}, "kv_transfer_params": {"remote_host": "evil"}}
    assert without_client_transfer_params(body) == {"messages": MESSAGES}
    assert without_client_transfer_params(body, fetches_embeddings=True) == {
        "messages": MESSAGES,
        "ec_transfer_params": {"hash": {}},
    }


@pytest.mark.parametrize("part", [{"type": "text", "text": "x"}, {"text": "x"}, "x", {"type": "refusal"}])
def test_a_chat_with_parts_of_text_is_like_another(part: Any) -> None:
    body = {"messages": [{"role": "user", "content": [part]}]}
    assert read_prompt(CHAT_PATH, body) == ChatPrompt()
    assert read_prompt(CHAT_PATH, body | {"kv_transfer_params": IDS}) == TokenPrompts(((1, 2, 3),))


@pytest.mark.parametrize("messages", [None, [], "hi", 5, {}])
def test_a_chat_without_messages_is_the_engines_to_refuse(messages: Any) -> None:
    assert read_prompt(CHAT_PATH, {"messages": messages}) == LocalPrompt(PrefillReason.INVALID)


def test_another_path_stays_here() -> None:
    assert read_prompt("/v1/responses", {"prompt": [1]}) == LocalPrompt(PrefillReason.UNSUPPORTED)


def test_a_client_cannot_choose_where_kv_is_read_from() -> None:
    evil = {"do_remote_prefill": True, "remote_host": "10.0.0.1", "prompt_token_ids": [1, 2]}
    body = {"messages": MESSAGES, "kv_transfer_params": evil, "ec_transfer_params": {"x": 1}}
    assert without_client_transfer_params(body) == {
        "messages": MESSAGES,
        "kv_transfer_params": {"prompt_token_ids": [1, 2]},
    }
    assert without_client_transfer_params({"prompt": [1], "kv_transfer_params": {"remote_host": "x"}}) == {
        "prompt": [1]
    }


def test_a_client_cannot_have_cached_blocks_reported_as_stored_again() -> None:
    body = {"prompt": [1], "vllm_xargs": {"kv_cache_report_mode": "full", "pointsman_resumed_tokens": 3, "other": 1}}
    assert without_client_transfer_params(body) == {"prompt": [1], "vllm_xargs": {"other": 1}}


def test_the_prefill_leg_is_one_token_and_not_streamed() -> None:
    leg = prefill_leg("m", (1, 2), "salt")
    assert (leg["max_tokens"], leg["stream"], leg["cache_salt"]) == (1, False, "salt")
    assert leg["kv_transfer_params"]["do_remote_decode"] is True
    assert "cache_salt" not in prefill_leg("m", (1, 2), None)


def test_the_decode_leg_decodes_exactly_the_tokens_that_were_prefilled() -> None:
    params = {"remote_host": "h"}
    pulled = {"kv_transfer_params": params}
    assert token_fields(COMPLETIONS_PATH, [1, 2], given=True, kv_transfer_params=params) == pulled
    assert token_fields(COMPLETIONS_PATH, [1, 2], given=False, kv_transfer_params=params) == {
        "prompt": [1, 2],
        **pulled,
    }
    assert token_fields(CHAT_PATH, [1, 2, 3], given=True) == {}
    for given in (True, False):
        chat = token_fields(CHAT_PATH, [1, 2, 3], given=given, kv_transfer_params=params)
        assert chat == {"kv_transfer_params": {"remote_host": "h", **IDS}}
    assert params == {"remote_host": "h"}


def test_kv_that_comes_first_is_pulled_by_a_request_of_one_token_with_the_tenants_salt() -> None:
    leg = pull_leg("m", (1, 2), "salt", {"remote_host": "h"})
    assert (leg["prompt"], leg["max_tokens"], leg["stream"], leg["cache_salt"]) == ([1, 2], 1, False, "salt")
    assert leg["kv_transfer_params"] == {"remote_host": "h"}
