"""A PlannerPolicy as the core sees it: every field acts."""

from dataclasses import replace
from typing import Any

import pytest

from pointsman.api.protocol.names import Role
from pointsman.api.v1alpha1.llmservice import LLMServiceSpec
from pointsman.api.v1alpha1.plannerpolicy import PlannerPolicySpec
from pointsman.planner.core.decide import decide
from pointsman.planner.core.state import State
from pointsman.planner.core.types import Bounds, Policy, Worker, WorkerCondition
from pointsman.planner.policies import planner_policy, policy_of
from unit.planner.scenes import LLAMA_8B_H100, POLICY, SHORT, observed, workers

PLAIN: dict[str, Any] = {"objectives": {"ttftMs": 1500, "tpotMs": 40}, "budget": {"maxGpus": 8}}


def policy(**changes: Any) -> Policy:
    return planner_policy(PlannerPolicySpec.model_validate(PLAIN | changes), Bounds(1, 4), Bounds(1, 4))


@pytest.mark.parametrize(
    "changes",
    [
        {"mode": "Active"},
        *({"objectives": PLAIN["objectives"] | o} for o in ({"ttftMs": 9}, {"tpotMs": 9}, {"attainment": 0.5})),
        {"objectives": PLAIN["objectives"] | {"ttftMsPerPromptToken": 1}},
        *({"budget": b} for b in ({"maxGpus": 9}, {"maxGpus": 8, "minGpus": 2})),
        *({"metrics": m} for m in ({"intervalSeconds": 9}, {"staleAfterSeconds": 9})),
        *({"actions": {"remotePrefill": a}} for a in ({"enabled": False},)),
        *({"actions": {"roleSwitch": a}} for a in ({"enabled": False}, {"maxInTransitionPercent": 9})),
        *({"actions": {"scaleOut": a}} for a in ({"enabled": False}, {"leadSeconds": 9})),
        {"forecast": {"seasonality": "None"}},
        *({"actions": {"scaleIn": a}} for a in ({"enabled": False}, {"stabilizationSeconds": 9})),
    ],
    ids=str,
)
def test_each_field_that_guides_decisions_reaches_them(changes: dict[str, Any]) -> None:
    assert policy(**changes) != policy()


def after_a_start_of_ten_seconds(given: Policy) -> State:
    """The state after a worker was seen to take ten seconds until it served."""
    state = State()
    for tick in range(9):
        new = Worker("new", Role.DECODE, WorkerCondition.STARTING if tick < 5 else WorkerCondition.ACTIVE)
        seen = observed(2.5 * tick, SHORT, workers=(*workers(2, 3), *([new] if tick > 0 else [])))
        state, _, _ = decide(state, seen, given, 2.5 * tick, LLAMA_8B_H100)
    return state


def test_a_lead_that_is_told_holds_whatever_starts_are_seen_to_take() -> None:
    measured = after_a_start_of_ten_seconds(POLICY).leads.lead_s(POLICY.start_s)
    assert 5 < measured < 15
    told = replace(POLICY, start_s=300.0, start_is_told=True)
    assert policy(actions={"scaleOut": {"leadSeconds": 300}}).start_s == told.start_s
    assert after_a_start_of_ten_seconds(told).leads.lead_s(told.start_s) == 300


def test_a_start_is_believed_to_take_as_long_as_the_model_is_large_and_what_the_user_says() -> None:
    large = LLMServiceSpec.model_validate({"model": {"source": "hf://a/Large-70B"}, "worker": {"gpus": 4}})
    spec = PlannerPolicySpec.model_validate(PLAIN)
    assert policy_of(spec, large).start_s == 312.0
    told = PlannerPolicySpec.model_validate(PLAIN | {"actions": {"scaleOut": {"leadSeconds": 40}}})
    assert policy_of(told, large).start_s == 40.0
