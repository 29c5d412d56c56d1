"""Local or remote prefill."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.serving.local_remote import PrefillReason, RoutingRule, decide

RULE = RoutingRule(max_local_prefill_tokens=512, max_prefill_queue_size=8)


@pytest.mark.parametrize(
    ("prompt", "cached", "depth", "reason"),
    [
        (513, 0, 0, PrefillReason.REMOTE),
        (512, 0, 0, PrefillReason.SHORT),
        (1000, 488, 0, PrefillReason.SHORT),
        (1000, 487, 7, PrefillReason.REMOTE),
        (1000, 0, 8, PrefillReason.QUEUE_FULL),
        (1000, 0, None, PrefillReason.QUEUE_UNKNOWN),
        (1000, 1000, 0, PrefillReason.CACHED),
        (1000, 1200, 0, PrefillReason.CACHED),
    ],
)
def test_the_rule(prompt: int, cached: int, depth: int | None, reason: PrefillReason) -> None:
    decision = decide(prompt_tokens=prompt, cached_tokens=cached, queue_depth=depth, rule=RULE)
    assert decision.reason is reason
    assert decision.remote is (reason is PrefillReason.REMOTE)


@given(prompt=st.integers(0, 10_000), cached=st.integers(0, 10_000), depth=st.none() | st.integers(0, 100))
def test_more_cached_tokens_never_make_a_prompt_remote(prompt: int, cached: int, depth: int | None) -> None:
    less = decide(prompt_tokens=prompt, cached_tokens=cached, queue_depth=depth, rule=RULE)
    more = decide(prompt_tokens=prompt, cached_tokens=cached + 64, queue_depth=depth, rule=RULE)
    assert less.remote or not more.remote


def test_a_negative_number_is_refused() -> None:
    with pytest.raises(ValueError, match="max_prefill_queue_size is -1"):
        RoutingRule(max_local_prefill_tokens=0, max_prefill_queue_size=-1)
