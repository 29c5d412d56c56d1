"""Objectives that a request misses that is alone: said with what would be right, and not said where a layout helps."""

from dataclasses import replace

import pytest

from pointsman.planner.core.decide import decide
from pointsman.planner.core.sizing.operating_point import OperatingPoint, operating_point
from pointsman.planner.core.state import State
from pointsman.planner.core.types import Decision, Load, Objectives, Policy, Service
from pointsman.planner.core.unreachable_objectives import out_of_reach, same_share
from pointsman.planner.core.workload.length_variability import Shape
from pointsman.planner.core.workload.request_lengths import Lengths
from unit.planner.scenes import LLAMA_8B_H100, LONG, POLICY, SHORT, observed, run

GENEROUS = Objectives(ttft_ms=2000, tpot_ms=40)


@pytest.mark.parametrize(
    ("objectives", "words"),
    [
        (
            Objectives(ttft_ms=60, tpot_ms=40),
            (
                "objectives.ttftMs allows 60 ms for a prompt of 4000 tokens",
                "takes at least 82 ms",
                "write more than 84",
            ),
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
    takes_ms = dict(decision.inputs)["prefillAloneMilliseconds"]
    edge = replace(GENEROUS, ttft_ms=0.95 * takes_ms)
    assert out_of_reach(decision, edge, said=False) is None
    assert out_of_reach(decision, edge, said=True) is not None
    assert out_of_reach(decision, replace(edge, ttft_ms=1.01 * takes_ms), said=True) is None


def test_without_numbers_nothing_is_said() -> None:
    frozen = run([SHORT, None])[-1]
    assert not frozen.inputs
    assert out_of_reach(frozen, Objectives(ttft_ms=1, tpot_ms=1), said=False) is None


# A tenth of the prompts has 60 000 tokens: 2.6 s of an idle prefill worker.
WIDE = Load(
    arrivals_per_s=3, prompt_tokens=7800, output_tokens=30, prompt_length_shares=((1448.2, 0.9), (46341.0, 0.1))
)  # fmt: skip
FOR_SHORT_ONES = Objectives(ttft_ms=1500, tpot_ms=40)


def seen(load: Load, missed: float, objectives: Objectives) -> Decision:
    """The decision once clients have missed the objectives for so many requests, minutes long."""
    state, policy = State(), replace(POLICY, objectives=objectives)
    for tick in range(100):
        service = Service(1 - missed, 1.0, 1 - missed, prefill_queue_depth=0.0)
        observation = replace(observed(2.5 * tick, load), service=service)
        state, decision, _ = decide(state, observation, policy, observation.at_s, LLAMA_8B_H100)
    return decision


def test_requests_that_are_late_even_alone_are_counted_and_said_with_their_share() -> None:
    decision = seen(WIDE, 0.1, FOR_SHORT_ONES)
    sentence = out_of_reach(decision, FOR_SHORT_ONES, said=False)
    assert sentence is not None
    for words in (
        "about 10% of requests miss objectives.ttftMs even when they are alone",
        "prompts above about 42000 tokens",
        "objectives.attainment 0.95 is out of reach; the pools are sized so that the other requests are in time",
        "Raise objectives.ttftMs, write objectives.ttftMsPerPromptToken, or an attainment below 0.90",
    ):
        assert words in sentence
    assert dict(decision.inputs)["unreachableTtftShare"] == pytest.approx(0.1, abs=0.005)


@pytest.mark.parametrize(
    ("ttft", "tpot", "named"),
    [(0.1, 0.08, "ttftMs and objectives.tpotMs"), (0.1, 0.02, "ttftMs"), (0.02, 0.1, "tpotMs")],
)
def test_both_objectives_are_named_if_both_are_missed(ttft: float, tpot: float, named: str) -> None:
    shares = (("unreachableTtftShare", ttft), ("unreachableTpotShare", tpot), ("longestReachablePromptTokens", 9000.0))
    decision = replace(seen(WIDE, 0.1, FOR_SHORT_ONES), inputs=shares)
    sentence = out_of_reach(decision, FOR_SHORT_ONES, said=False)
    assert sentence is not None
    assert f"about 10% of requests miss objectives.{named} even when they are alone" in sentence
    assert f"Raise objectives.{named}, " in sentence


def test_where_no_request_is_in_time_the_mean_prompt_says_what_would_be_right() -> None:
    """Whatever share of them clients were seen to miss so far."""
    objectives = Objectives(ttft_ms=1500, tpot_ms=2)
    sentence = out_of_reach(seen(WIDE, 0.5, objectives), objectives, said=False)
    assert sentence is not None
    assert sentence.startswith("objectives.tpotMs is 2, but a decode step of one request takes more than")


def test_where_as_many_may_be_late_as_are_the_goal_is_within_reach() -> None:
    objectives = replace(FOR_SHORT_ONES, attainment=0.85)
    decision = seen(WIDE, 0.1, objectives)
    assert dict(decision.inputs)["unreachableTtftShare"] > 0.09
    assert out_of_reach(decision, objectives, said=False) is None


def test_lengths_are_no_proof_where_clients_miss_nothing() -> None:
    """The bucket says that a prompt may be long, the answers say that it was not."""
    decision = seen(WIDE, 0.0, FOR_SHORT_ONES)
    assert dict(decision.inputs)["unreachableTtftShare"] < 0.01
    assert out_of_reach(decision, FOR_SHORT_ONES, said=False) is None


def test_a_share_near_the_goal_is_said_once() -> None:
    decision = seen(WIDE, 0.1, FOR_SHORT_ONES)
    edge = replace(FOR_SHORT_ONES, attainment=0.905)
    assert out_of_reach(decision, edge, said=False) is None
    assert out_of_reach(decision, edge, said=True) is not None


def test_the_message_is_written_again_when_the_share_is_another() -> None:
    assert same_share(0.11, 0.1)
    assert not same_share(0.2, 0.1)
    assert not same_share(0.1, 0.0)


def at(load: Load, objectives: Objectives) -> OperatingPoint:
    seen = replace(observed(0, load), kv_capacity_tokens=400_000.0)
    lengths = Lengths(shares=load.prompt_length_shares, prompt_tokens=load.prompt_tokens, output_tokens=30)
    shape = Shape(prefill_scv=1.0, context_scv=1.0)
    return operating_point(LLAMA_8B_H100, seen, Policy(objectives=objectives), lengths, shape)


def test_a_context_that_is_too_long_for_the_token_objective_is_counted_too() -> None:
    # One sequence of 60 000 tokens: a step of 6.4 + 2.6 ms.
    point = at(WIDE, Objectives(ttft_ms=5000, tpot_ms=8))
    assert point.unreachable.ttft_share == 0.0
    assert point.unreachable.tpot_share == pytest.approx(0.1)
    assert point.unreachable.longest_tokens == pytest.approx(37_400, rel=0.01)  # (8 - 6.402) / 4.273e-5
    assert at(WIDE, Objectives(ttft_ms=5000, tpot_ms=40)).unreachable.share == 0


def test_a_prompt_that_is_late_anyway_takes_no_slack_from_the_others() -> None:
    short = replace(WIDE, prompt_tokens=2000, prompt_length_shares=((2000.0, 1.0),))
    assert at(WIDE, FOR_SHORT_ONES).slack_s == pytest.approx(at(short, FOR_SHORT_ONES).slack_s, rel=0.01)
    per_token = Objectives(ttft_ms=100, tpot_ms=40, ttft_ms_per_prompt_token=0.02)
    assert at(WIDE, per_token).unreachable.share == pytest.approx(0.1)
    assert at(WIDE, per_token).ttft_s == pytest.approx(at(short, per_token).ttft_s, rel=0.05)
