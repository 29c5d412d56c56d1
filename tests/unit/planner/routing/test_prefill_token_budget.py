"""The prefill token budget that is published."""

from dataclasses import replace

import pytest

from pointsman.planner.core.routing.prefill_token_budget import prefill_token_budget
from pointsman.planner.core.types import Policy, RoutingNumbers
from pointsman.planner.profile.linear_model import LinearModel
from unit.planner.scenes import observed

# 0.1 ms a token and nothing else, so that 8192 tokens take 819.2 ms.
MODEL = LinearModel(prefill_a=0, prefill_b=0.1, prefill_c=0, decode_d0=5, decode_d1=0, decode_d2=0)
SEEN = observed(0, None)
POLICY = Policy()


def budget(ttft_s: float, before: int = 8192, policy: Policy = POLICY) -> int:
    """Published for this TTFT objective where ``before`` is in force."""
    seen = replace(SEEN, routing=RoutingNumbers(512, 32, prefill_token_budget=before))
    return prefill_token_budget(MODEL, seen, policy, ttft_s)


@pytest.mark.parametrize(
    ("ttft_s", "tokens"),
    [(60.0, 8192), (1.64, 8192), (1.63, 4096), (0.82, 4096), (0.81, 2048), (0.1, 256), (0.001, 256)],
)
def test_a_batch_takes_at_most_half_of_the_ttft_objective(ttft_s: float, tokens: int) -> None:
    assert budget(ttft_s) == tokens


def test_a_budget_is_raised_only_where_a_tenth_is_left() -> None:
    assert budget(1.64, before=4096) == 4096
    assert budget(1.83, before=4096) == 8192


def test_a_budget_of_somebody_else_is_replaced_as_other_numbers_are() -> None:
    assert budget(60.0, before=100_000) == 8192
    assert budget(1.0, before=5000) == 4096


def test_without_the_action_the_budget_in_force_stays() -> None:
    assert budget(0.1, before=5000, policy=Policy(remote_prefill=False)) == 5000
