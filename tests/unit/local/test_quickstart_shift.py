"""The load that shifts: on which side of the policy's thresholds it lies, and what is made of unloaded requests."""

from dataclasses import replace
from pathlib import Path

import pytest

from pointsman.api.v1alpha1 import LLMService, PlannerPolicy
from pointsman.api.v1alpha1.plannerpolicy import Mode
from pointsman.local.errors import LocalError
from pointsman.local.quickstart.examples import ExampleError, read_example
from pointsman.local.quickstart.shift import LONG, SHORT, TURNS, Unloaded, read_policy, with_objectives
from pointsman.local.traffic import Api, Prompt, Record

CHAT_TEMPLATE_TOKENS = 24  # what the tiny model's template adds to a chat, rounded up
UNLOADED = Unloaded(short=(400, 50.0), long=(3000, 290.0), tpot_ms=2.5)


def answered(tokens: int, ttft_s: float) -> Record:
    prompt = Prompt(0, Api.CHAT, True, 4, text="a")
    arrived = (ttft_s, ttft_s + 0.0001, ttft_s + 0.005)  # the second chunk was read together with the first
    return Record(prompt, 0.0, 1.0, 200, prompt_tokens=tokens, completion_tokens=3, token_seconds=arrived)


def test_the_policy_is_valid_active_and_lets_the_service_of_the_quick_start_have_each_turns_layout() -> None:
    policy = PlannerPolicy.model_validate(read_policy()).spec
    pools = LLMService.model_validate(read_example()).spec.pools
    assert policy.mode is Mode.ACTIVE
    for turn in TURNS:
        assert policy.budget.min_gpus <= turn.prefill + turn.decode <= policy.budget.max_gpus
        assert pools.prefill.min_replicas <= turn.prefill <= pools.prefill.max_replicas
        assert pools.decode.min_replicas <= turn.decode <= pools.decode.max_replicas


def test_short_prompts_lie_below_every_threshold_and_long_ones_above() -> None:
    thresholds = PlannerPolicy.model_validate(read_policy()).spec.actions.remote_prefill
    assert SHORT.lengths[0].stop + CHAT_TEMPLATE_TOKENS <= thresholds.min_threshold_tokens
    assert LONG.lengths[0].start > thresholds.max_threshold_tokens


def test_objectives_are_multiples_of_what_a_request_takes_alone() -> None:
    policy = with_objectives(read_policy(), UNLOADED.objectives)
    objectives = PlannerPolicy.model_validate(policy).spec.objectives
    assert (objectives.ttft_ms, objectives.tpot_ms) == (3 * 290, 12 * 2.5)
    before = PlannerPolicy.model_validate(read_policy()).spec
    assert objectives.attainment == before.objectives.attainment
    assert PlannerPolicy.model_validate(policy).spec.actions == before.actions, "nothing else is changed"


def test_what_was_not_answered_is_no_measurement() -> None:
    good = [answered(400, 0.05)] * 3
    assert Unloaded.of(good, [answered(3000, 0.29)] * 3).tpot_ms == pytest.approx(UNLOADED.tpot_ms)
    with pytest.raises(LocalError, match="HTTP 503"):
        Unloaded.of(good, [replace(answered(3000, 0.29), token_seconds=(), error="HTTP 503")])


def test_a_file_that_is_no_policy_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("kind: LLMService")
    with pytest.raises(ExampleError, match="no PlannerPolicy"):
        read_policy(path)
