"""Objectives that a request misses that is alone: said with what would be right, and not said where a layout helps."""

from dataclasses import replace

import pytest

from pointsman.planner.core.types import Objectives
from pointsman.planner.core.unreachable_objectives import out_of_reach
from unit.planner.test_decide import LONG, POLICY, SHORT, run

GENEROUS = Objectives(ttft_ms=2000, tpot_ms=40)


@pytest.mark.parametrize(
    ("objectives", "words"),
    [
        (
            Objectives(ttft_ms=60, tpot_ms=40),
            ("objectives.ttftMs gives a prompt of 4000 tokens 60 ms", "takes 82 ms at least", "write more than 84"),
        ),
        (
            Objectives(ttft_ms=2000, tpot_ms=4),
            ("objectives.tpotMs is 4", "takes more than 6.5 ms", "write more than 7"),
        ),
    ],
)
def test_what_no_layout_can_meet_is_said_with_what_would_be_right(
    objectives: Objectives, words: tuple[str, ...]
) -> None:
    decision = run([LONG] * 4, replace(POLICY, objectives=objectives))[-1]
    sentence = out_of_reach(decision, objectives, said=False)
    assert sentence is not None
    for word in words:
        assert word in sentence


def test_a_load_that_more_workers_would_serve_is_within_reach() -> None:
    far_too_much = replace(LONG, arrivals_per_s=1000.0)
    decision = run([far_too_much] * 4, replace(POLICY, objectives=GENEROUS))[-1]
    assert decision.inputs
    assert out_of_reach(decision, GENEROUS, said=False) is None


def test_a_prompt_may_be_given_time_by_its_length() -> None:
    objectives = Objectives(ttft_ms=20, tpot_ms=40, ttft_ms_per_prompt_token=0.05)
    decision = run([LONG] * 4, replace(POLICY, objectives=objectives))[-1]
    assert out_of_reach(decision, objectives, said=False) is None
    assert out_of_reach(decision, replace(objectives, ttft_ms_per_prompt_token=0.0), said=False) is not None


def test_at_the_edge_the_last_word_stands() -> None:
    decision = run([LONG] * 4, replace(POLICY, objectives=GENEROUS))[-1]
    takes_ms = dict(decision.inputs)["prefillMilliseconds"]
    edge = replace(GENEROUS, ttft_ms=0.95 * takes_ms)
    assert out_of_reach(decision, edge, said=False) is None
    assert out_of_reach(decision, edge, said=True) is not None
    assert out_of_reach(decision, replace(edge, ttft_ms=1.01 * takes_ms), said=True) is None


def test_without_numbers_nothing_is_said() -> None:
    frozen = run([SHORT, None])[-1]
    assert not frozen.inputs
    assert out_of_reach(frozen, Objectives(ttft_ms=1, tpot_ms=1), said=False) is None
