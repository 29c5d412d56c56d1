"""Exactness is claimed only for the same prompts, all served, all alike."""

from dataclasses import replace

import pytest

from pointsman.local.traffic import Api, Prompt, Record, compare


def answered(index: int, *ids: int, error: str | None = None) -> Record:
    prompt = Prompt(index, Api.COMPLETION, False, 4, text=f"prompt {index}")
    text = "".join(map(chr, ids))
    return Record(prompt, 0.0, 1.0, 200, error, text=text, token_ids=ids, finish_reason="length", prompt_tokens=9)


def test_the_same_answers_in_any_order_are_exact() -> None:
    comparison = compare([answered(0, 65, 66), answered(1, 67)], [answered(1, 67), answered(0, 65, 66)])
    assert comparison.exact
    assert comparison.compared == 2


def test_one_other_token_is_found_with_its_place() -> None:
    comparison = compare([answered(0, 65, 66, 67)], [answered(0, 65, 66, 68)])
    assert not comparison.exact
    assert comparison.differences[0].first_difference == 2
    assert "'ABD' instead of 'ABC'" in comparison.differences[0].detail


def test_a_request_that_was_not_served_is_a_difference() -> None:
    comparison = compare([answered(0, 65)], [answered(0, 65, error="HTTP 500")])
    assert not comparison.exact
    assert "HTTP 500" in comparison.differences[0].detail


def test_nothing_compared_is_not_exact() -> None:
    assert not compare([], []).exact


def test_a_stream_that_was_left_proves_nothing() -> None:
    left = replace(answered(0, 65), left=True, finish_reason=None)
    assert not compare([left], [left]).exact


@pytest.mark.parametrize(
    "found", [[answered(1, 65)], [], [answered(0, 65), answered(0, 65)]], ids=["another", "none", "twice"]
)
def test_sides_that_were_asked_different_prompts_are_refused(found: list[Record]) -> None:
    with pytest.raises(ValueError, match=r"different prompts|twice"):
        compare([answered(0, 65)], found)
