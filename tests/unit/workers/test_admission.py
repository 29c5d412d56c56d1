"""The token budget on what a prefill engine computes."""

from collections import deque
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from pointsman.serving.token_budget import take_pending
from pointsman.workers.core.admission import PrefillLimits


@dataclass(frozen=True)
class Request:
    """A prompt."""

    prompt_tokens: int


LENGTHS = st.lists(st.integers(1, 300), max_size=20)
LIMITS = st.builds(
    PrefillLimits,
    budget_tokens=st.none() | st.integers(1, 400),
    max_requests=st.integers(1, 8),
    max_context_tokens=st.integers(1, 200),
)


@given(LENGTHS, LIMITS)
def test_from_an_idle_engine_it_admits_what_the_batch_rule_admits(lengths: list[int], limits: PrefillLimits) -> None:
    batch = take_pending(
        deque(map(Request, lengths)),
        max_requests=limits.max_requests,
        budget_tokens=limits.budget_tokens,
        max_context_tokens=limits.max_context_tokens,
    )
    running: list[int] = []
    for length in lengths:
        if not (limits.wants_another(running) and limits.admits(length, running)):
            break
        running.append(length)
    assert running == [request.prompt_tokens for request in batch]


@given(LENGTHS, LIMITS, st.integers(1, 300))
def test_what_could_never_be_admitted_is_not_pulled(running: list[int], limits: PrefillLimits, length: int) -> None:
    if not limits.wants_another(running):
        assert not limits.admits(length, running)


@given(LIMITS, st.integers(1, 10_000))
def test_an_idle_engine_takes_anything(limits: PrefillLimits, length: int) -> None:
    assert limits.wants_another([])
    assert limits.admits(length, [])
