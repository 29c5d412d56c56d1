"""Seeded prompts are the same twice, and hold what the mix asks for."""

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.local.traffic import Api, Mix, Prompt, prompts

MIX = Mix(lengths=(range(8, 64), range(700, 900)), token_ids_share=0.5)


@given(st.integers())
def test_the_same_seed_gives_the_same_prompts(seed: int) -> None:
    assert list(islice(prompts(MIX, seed=seed), 12)) == list(islice(prompts(MIX, seed=seed), 12))


def test_another_seed_gives_other_prompts() -> None:
    assert list(islice(prompts(MIX, seed=1), 4)) != list(islice(prompts(MIX, seed=2), 4))


def test_lengths_take_turns_and_stay_in_their_ranges() -> None:
    for prompt in islice(prompts(MIX, seed=3), 200):
        size = len(prompt.text) if prompt.text is not None else len(prompt.token_ids or ())
        assert size in MIX.lengths[prompt.index % 2]
        assert prompt.max_tokens in MIX.max_tokens


def test_a_mix_holds_chats_and_completions_streamed_and_whole_text_and_token_ids() -> None:
    seen = list(islice(prompts(MIX, seed=4), 200))
    assert {prompt.api for prompt in seen} == set(Api)
    assert {prompt.stream for prompt in seen} == {True, False}
    completions = [prompt for prompt in seen if prompt.api is Api.COMPLETION]
    assert {prompt.token_ids is None for prompt in completions} == {True, False}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"lengths": ()}, "lengths"),
        ({"lengths": (range(4),)}, "lengths"),
        ({"lengths": (range(1, 2),), "chat_share": 1.5}, "chat_share is 1.5"),
    ],
)
def test_a_mix_that_makes_no_sense_is_refused_by_field(fields: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Mix(**fields)  # type: ignore[arg-type] # wrong on purpose


def test_a_chat_prompt_of_token_ids_is_refused() -> None:
    with pytest.raises(ValueError, match="chat prompt is text"):
        Prompt(0, Api.CHAT, True, 8, token_ids=(1, 2))
