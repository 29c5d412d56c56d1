"""Which tokens of a resumed prompt a grammar has to take."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from pointsman.workers.vllm.grammar_resume import grammar_tokens

END = 9


def ended(tokens: Sequence[int]) -> bool:
    """A reasoning parser whose reasoning ends with a token."""
    return END in tokens


@given(st.lists(st.integers(0, 9)), st.lists(st.integers(0, 9)))
def test_a_grammar_takes_the_answer_after_its_reasoning(prompt: list[int], answer: list[int]) -> None:
    taken = grammar_tokens([*prompt, *answer], len(answer), ended)
    if END in prompt:
        assert taken == answer
    elif END in answer:
        assert taken == answer[answer.index(END) + 1 :]
    else:
        assert taken == []


@given(st.lists(st.integers(0, 9)), st.lists(st.integers(0, 9)))
def test_without_a_parser_or_with_reasoning_under_the_grammar_it_takes_all(
    prompt: list[int], answer: list[int]
) -> None:
    assert grammar_tokens([*prompt, *answer], len(answer), None) == answer
