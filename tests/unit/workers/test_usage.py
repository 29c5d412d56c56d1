"""What an answer of vLLM's says of its prompt."""

import json

import pytest

from pointsman.workers.core.usage import PromptUsage, prompt_usage, with_cached_tokens

BLOCK = 128


def answer(text: str, **usage: object) -> bytes:
    return json.dumps({"choices": [{"text": text}], "usage": {"completion_tokens": 3, **usage}}).encode()


@pytest.mark.parametrize(
    ("chunk", "told"),
    [
        (answer("x", prompt_tokens=128, total_tokens=131, prompt_tokens_details=None), PromptUsage(128, 128)),
        (answer("x", prompt_tokens=129, total_tokens=132, prompt_tokens_details=None), None),
        (answer("x", prompt_tokens=300, prompt_tokens_details={"cached_tokens": 256}), PromptUsage(300, 44)),
        (answer("x", prompt_tokens=300, prompt_tokens_details={"cached_tokens": None}), None),
        (b'data: {"choices":[],"usage":{"prompt_tokens":7,"total_tokens":9}}\n\n', PromptUsage(7, 7)),
        (b'data: {"choices":[{"text":"x"}],"usage":null}\n\n', None),
        (b"data: [DONE]\n\n", None),
    ],
)
def test_what_was_not_cached_is_known_of_prompts_within_a_block_and_where_the_engine_says(
    chunk: bytes, told: PromptUsage | None
) -> None:
    assert prompt_usage(chunk, BLOCK) == told


def test_what_the_model_writes_is_no_usage() -> None:
    text = '{"usage": {"prompt_tokens": 5, "cached_tokens": 2}}'
    assert prompt_usage(answer(text), BLOCK) is None
    assert prompt_usage(answer(text, prompt_tokens=9), BLOCK) == PromptUsage(9, 9)


@pytest.mark.parametrize(
    ("said", "corrected"),
    [
        (
            b'"usage":{"prompt_tokens":900,"prompt_tokens_details":{"cached_tokens":896}}',
            b'"usage":{"prompt_tokens":900,"prompt_tokens_details":{"cached_tokens":0}}',
        ),
        (b'"usage":{"prompt_tokens":900,"prompt_tokens_details":null}', None),
        (b'{"text":"\\"prompt_tokens_details\\":{\\"cached_tokens\\":5}"}', None),
        (b"", None),
    ],
)
def test_what_a_prefill_worker_computed_is_not_told_as_cached(said: bytes, corrected: bytes | None) -> None:
    assert with_cached_tokens(said, 0) == (said if corrected is None else corrected)
