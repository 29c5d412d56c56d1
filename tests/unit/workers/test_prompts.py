"""Which prompts can be prefilled elsewhere, and what the two legs look like."""

from typing import Any

import pytest

from pointsman.workers.core.prompts import (
    CHAT_PATH,
    COMPLETIONS_PATH,
    LocalPrompt,
    TextPrompt,
    TokenPrompt,
    prefill_leg,
    read_prompt,
    with_remote_prefill,
    without_client_transfer_params,
)

MESSAGES = [{"role": "user", "content": "hi"}]
IDS = {"prompt_token_ids": [1, 2, 3]}


@pytest.mark.parametrize("prompt", [[1, 2, 3], [[1, 2, 3]]])
def test_token_ids_are_a_prompt_as_they_are(prompt: list[Any]) -> None:
    assert read_prompt(COMPLETIONS_PATH, {"prompt": prompt}) == TokenPrompt((1, 2, 3))


def test_a_text_is_to_be_tokenised_as_the_engine_would() -> None:
    prompt = read_prompt(COMPLETIONS_PATH, {"model": "m", "prompt": "zwölf", "add_special_tokens": False})
    assert prompt == TextPrompt({"model": "m", "prompt": "zwölf", "add_special_tokens": False}, 6)


def test_a_chat_has_the_token_ids_its_gateway_gave_it() -> None:
    assert read_prompt(CHAT_PATH, {"messages": MESSAGES, "kv_transfer_params": IDS}) == TokenPrompt((1, 2, 3))
    assert read_prompt(CHAT_PATH, {"messages": MESSAGES}) == LocalPrompt("prompt_token_ids")


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"n": 2}, "n"),
        ({"best_of": 3}, "best_of"),
        ({"echo": True}, "echo"),
        ({"prompt_logprobs": 0}, "prompt_logprobs"),
        ({"prompt_embeds": "AAAA"}, "prompt_embeds"),
        ({"truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": [[1], [2]]}, "prompt"),
        ({"prompt": [1, True]}, "prompt"),
        ({"prompt": [1, -1]}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": None}, "prompt"),
    ],
)
def test_what_only_this_engine_can_prefill_is_named(more: dict[str, Any], why: str) -> None:
    assert read_prompt(COMPLETIONS_PATH, {"prompt": [1, 2, 3], **more}) == LocalPrompt(why)


def test_fields_with_their_defaults_hinder_nothing() -> None:
    body = {"prompt": [1], "n": 1, "best_of": None, "echo": False, "prompt_logprobs": None, "suffix": None}
    assert read_prompt(COMPLETIONS_PATH, body) == TokenPrompt((1,))


def test_a_chat_with_an_image_stays_here() -> None:
    parts = [{"type": "text", "text": "what is it"}, {"type": "image_url", "image_url": {"url": "data:"}}]
    body = {"messages": [{"role": "user", "content": parts}], "kv_transfer_params": IDS}
    assert read_prompt(CHAT_PATH, body) == LocalPrompt("messages")
    text_only = {"messages": [{"role": "user", "content": parts[:1]}], "kv_transfer_params": IDS}
    assert read_prompt(CHAT_PATH, text_only) == TokenPrompt((1, 2, 3))


def test_another_path_stays_here() -> None:
    assert read_prompt("/v1/responses", {"prompt": [1]}) == LocalPrompt("path")


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


def test_the_prefill_leg_is_one_token_and_not_streamed() -> None:
    leg = prefill_leg("m", (1, 2), "salt")
    assert (leg["max_tokens"], leg["stream"], leg["cache_salt"]) == (1, False, "salt")
    assert leg["kv_transfer_params"]["do_remote_decode"] is True
    assert "cache_salt" not in prefill_leg("m", (1, 2), None)


def test_the_decode_leg_decodes_exactly_the_tokens_that_were_prefilled() -> None:
    params = {"remote_host": "h"}
    completion = with_remote_prefill(COMPLETIONS_PATH, {"prompt": "text", "max_tokens": 5}, [1, 2], params)
    assert completion == {"prompt": [1, 2], "max_tokens": 5, "kv_transfer_params": params}
    chat = with_remote_prefill(CHAT_PATH, {"messages": MESSAGES, "kv_transfer_params": IDS}, [1, 2, 3], params)
    assert chat == {"messages": MESSAGES, "kv_transfer_params": {"remote_host": "h", **IDS}}
    assert params == {"remote_host": "h"}
