"""The load that shifts: on which side of the policy's thresholds it lies, and what is made of unloaded requests."""

from dataclasses import replace
from pathlib import Path

import pytest

from pointsman.api.v1alpha1 import LLMService, PlannerPolicy
from pointsman.api.v1alpha1.plannerpolicy import Mode
from pointsman.local.errors import LocalError
from pointsman.local.quickstart.examples import ExampleFailed, read_example
from pointsman.local.quickstart.shift import LONG, SHORT, TURNS, Measured, read_policy, with_objectives
from pointsman.local.traffic import Api, Prompt, Record
from pointsman.serving.local_remote import DEFAULT_RULE

CHAT_TEMPLATE_TOKENS = 24  # what the tiny model's template adds to a chat, rounded up
MEASURED = Measured(long_ttft_ms=290.0, short_tpot_ms=25.0)


def answered(ttft_s: float, tokens: int, last_s: float) -> Record:
    prompt = Prompt(0, Api.CHAT, True, tokens, text="a")
    arrived = (ttft_s, ttft_s + 0.0001, last_s)  # chunks of several tokens, two of them read together
    return Record(prompt, 0.0, 1.0, 200, completion_tokens=tokens, token_seconds=arrived, finish_reason="length")


def test_the_policy_is_valid_active_and_lets_the_service_of_the_quick_start_have_each_turns_layout() -> None:
    policy = PlannerPolicy.model_validate(read_policy()).spec
    pools = LLMService.model_validate(read_example()).spec.pools
    assert policy.mode is Mode.ACTIVE
    for turn in TURNS:
        assert policy.budget.min_gpus <= turn.prefill + turn.decode <= policy.budget.max_gpus
        assert pools.prefill.min_replicas <= turn.prefill <= pools.prefill.max_replicas
        assert pools.decode.min_replicas <= turn.decode <= pools.decode.max_replicas


def test_short_prompts_lie_below_the_threshold_and_long_ones_above() -> None:
    assert not PlannerPolicy.model_validate(read_policy()).spec.actions.remote_prefill.enabled, "nobody moves it"
    threshold = DEFAULT_RULE.max_local_prefill_tokens
    assert SHORT.lengths[0].stop + CHAT_TEMPLATE_TOKENS <= threshold < LONG.lengths[0].start


def test_objectives_are_multiples_of_what_the_service_gives() -> None:
    policy = with_objectives(read_policy(), MEASURED.objectives)
    objectives = PlannerPolicy.model_validate(policy).spec.objectives
    assert (objectives.ttft_ms, objectives.tpot_ms) == (3 * 290, 1.3 * 25)
    before = PlannerPolicy.model_validate(read_policy()).spec
    assert objectives.attainment == before.objectives.attainment
    assert PlannerPolicy.model_validate(policy).spec.actions == before.actions, "nothing else is changed"


def test_the_time_of_a_token_is_that_of_whole_answers_and_the_slowest_tenth_counts() -> None:
    long = [answered(0.29, 5, 0.4)] * 3
    found = Measured.of(long, [answered(0.1, 11, 0.2)] * 8 + [answered(0.1, 11, 0.35)] * 2)
    assert found.long_ttft_ms == pytest.approx(290)
    assert found.short_tpot_ms == pytest.approx(25)


def test_what_was_not_answered_is_no_measurement() -> None:
    good = [answered(0.29, 5, 0.4)]
    with pytest.raises(LocalError, match="HTTP 503"):
        Measured.of(good, [replace(good[0], error="HTTP 503")])
    with pytest.raises(LocalError, match="1 long and 0 short"):
        Measured.of(good, [replace(good[0], completion_tokens=1)])


def test_a_file_that_is_no_policy_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("kind: LLMService")
    with pytest.raises(ExampleFailed, match="no PlannerPolicy"):
        read_policy(path)
