"""Prefill admission."""

from collections import deque
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.serving.token_budget import beyond_admission, take_pending


@dataclass(frozen=True)
class Request:
    name: int
    prompt_tokens: int


def requests(*lengths: int) -> deque[Request]:
    return deque(Request(name, length) for name, length in enumerate(lengths))


def taken(pending: deque[Request], budget: int | None, *, most: int = 8, context: int = 1024) -> list[int]:
    return [r.name for r in take_pending(pending, max_requests=most, budget_tokens=budget, max_context_tokens=context)]


def test_admission_stops_before_the_budget_is_exceeded_and_keeps_the_order() -> None:
    pending = requests(2, 2, 2)
    assert taken(pending, 4) == [0, 1]
    assert [r.name for r in pending] == [2]


def test_an_oversize_request_goes_alone_and_first() -> None:
    assert taken(requests(100, 1), 10) == [0]


def test_an_oversize_request_waits_for_those_before_it() -> None:
    assert taken(requests(1, 100), 10) == [0]


def test_a_prompt_costs_no_more_than_the_context_window() -> None:
    assert taken(requests(100, 2), 10, context=4) == [0, 1]


def test_no_budget_admits_up_to_the_number_of_requests() -> None:
    assert taken(requests(1000, 1000, 1000), None, most=2) == [0, 1]


@pytest.mark.parametrize("bad", [{"budget": 0}, {"budget": -1}, {"budget": 1, "most": 0}, {"budget": 1, "context": 0}])
def test_what_is_not_positive_is_refused_also_when_nothing_waits(bad: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        taken(deque(), **bad)


@given(
    lengths=st.lists(st.integers(1, 50), max_size=30),
    budget=st.integers(1, 60),
    most=st.integers(1, 10),
    context=st.integers(1, 60),
)
def test_every_request_is_taken_once_in_order_and_no_admission_exceeds_the_budget(
    lengths: list[int], budget: int, most: int, context: int
) -> None:
    pending = requests(*lengths)
    seen: list[int] = []
    while pending:
        admission = take_pending(pending, max_requests=most, budget_tokens=budget, max_context_tokens=context)
        assert 1 <= len(admission) <= most
        cost = sum(min(r.prompt_tokens, context) for r in admission)
        assert cost <= budget or len(admission) == 1
        seen += [r.name for r in admission]
    assert seen == list(range(len(lengths)))


def test_what_one_admission_would_leave_is_waiting_though_a_worker_has_taken_it() -> None:
    hoarded = [32_000] * 8
    assert beyond_admission(hoarded, max_requests=8, budget_tokens=8192, max_context_tokens=131_072) == 7
    together = [1000] * 8
    assert beyond_admission(together, max_requests=8, budget_tokens=8192, max_context_tokens=131_072) == 0
    assert beyond_admission([*together, 1000], max_requests=8, budget_tokens=None, max_context_tokens=131_072) == 1
    assert beyond_admission([], max_requests=8, budget_tokens=8192, max_context_tokens=131_072) == 0
