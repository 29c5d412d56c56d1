"""The models of the custom resources, and the pure functions beside them."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.api.schema.rules import VALIDATIONS
from pointsman.api.schema.structural import structural_schema, walk
from pointsman.api.v1alpha1 import (
    OWNED_FLAGS,
    ClaimModel,
    Condition,
    ConditionStatus,
    ConditionType,
    HubModel,
    LLMService,
    ModelSource,
    ModelSourceError,
    PathModel,
    Plan,
    PlannerPolicySpec,
    Reason,
    StrictError,
    owned_flag,
    parse_model_source,
    with_condition,
)

NOW = datetime(2026, 1, 1, 12, 0, 0, 123456, tzinfo=UTC)


def ready(status: ConditionStatus, now: datetime, before: tuple[Condition, ...] = ()) -> tuple[Condition, ...]:
    return with_condition(before, ConditionType.READY, status, Reason.AS_DESIRED, "all is well", generation=3, now=now)


def test_the_transition_time_moves_only_when_the_status_flips() -> None:
    first = ready(ConditionStatus.TRUE, NOW)
    later = NOW + timedelta(minutes=5)
    assert ready(ConditionStatus.TRUE, later, first)[0].last_transition_time == NOW.replace(microsecond=0)
    assert ready(ConditionStatus.FALSE, later, first)[0].last_transition_time == later.replace(microsecond=0)


def test_a_condition_keeps_its_place_and_its_neighbours() -> None:
    other = with_condition((), ConditionType.DEGRADED, ConditionStatus.FALSE, Reason.HEALTHY, "", generation=1, now=NOW)
    both = ready(ConditionStatus.FALSE, NOW, ready(ConditionStatus.TRUE, NOW) + other)
    assert [condition.type for condition in both] == ["Ready", "Degraded"]
    assert both[0].status == "False"


def test_a_message_longer_than_the_api_takes_is_cut() -> None:
    long = with_condition(
        (), ConditionType.READY, ConditionStatus.FALSE, Reason.CRASH_LOOP, "x" * 5000, generation=1, now=NOW
    )
    assert len(long[0].message) == 4096


@pytest.mark.parametrize(
    ("source", "parsed"),
    [
        ("hf://meta-llama/Llama-3.1-8B-Instruct", HubModel("meta-llama/Llama-3.1-8B-Instruct")),
        ("hf://Qwen/Qwen3-8B@refs/pr/7", HubModel("Qwen/Qwen3-8B", "refs/pr/7")),
        ("pvc://models/llama/8b", ClaimModel("models", "llama/8b")),
        ("file:///mnt/models/llama", PathModel("/mnt/models/llama")),
    ],
)
def test_a_model_source_is_read(source: str, parsed: ModelSource) -> None:
    assert parse_model_source(source) == parsed


@pytest.mark.parametrize(
    "source", ["s3://bucket/model", "hf://llama", "pvc://models", "file://relative/path", "file:///a/../etc", "/mnt/m"]
)
def test_a_wrong_model_source_is_refused_with_the_forms_there_are(source: str) -> None:
    with pytest.raises(ModelSourceError, match=r"write|itself") as refusal:
        parse_model_source(source)
    assert source in str(refusal.value)


@given(st.sampled_from(OWNED_FLAGS), st.data())
def test_an_owned_flag_is_found_in_every_spelling(flag: str, data: st.DataObject) -> None:
    spelled = "--" + "".join(data.draw(st.sampled_from("-_")) if letter == "-" else letter for letter in flag[2:])
    tail = data.draw(st.sampled_from(["", "=1", ".key=1", '={"a": 1}']))
    assert owned_flag(spelled + tail) is not None
    shortened = spelled[: data.draw(st.integers(min_value=3, max_value=len(spelled)))]
    assert owned_flag(shortened + tail) is not None


@pytest.mark.parametrize(
    "argument",
    [
        "--max-model-len=32768",
        "--model-impl",
        "--config-format=hf",
        "--dtype",
        "float32",
        "--tensor-parallel-size",
        "-tp",
        "-q",
        "--enforce-eager",
        "--kv-cache-memory-bytes=1G",
        "--kv-cache-dtype",
        "--no-enable-chunked-prefill",
        "--max-num-batched-tokens",
        "--enable-expert-parallel",
        "--",
    ],
)
def test_the_users_own_flags_are_left_alone(argument: str) -> None:
    assert owned_flag(argument) is None


def test_a_template_comes_back_exactly_as_it_was_written() -> None:
    template = {
        "metadata": {"annotations": {"a": "b"}},
        "spec": {
            "nodeSelector": {"gpu": "h100"},
            "tolerations": None,
            "containers": [
                {"name": "engine", "env": [{"name": "A", "value": "x"}], "resources": {"limits": {"cpu": 1}}}
            ],
        },
    }
    service = LLMService.model_validate(
        {
            "metadata": {"name": "chat"},
            "spec": {"model": {"source": "file:///m"}, "worker": {"template": template}, "fromTheFuture": 1},
        }
    )
    assert service.spec.worker.template_dict() == template


def test_a_plan_that_an_older_planner_wrote_is_still_read() -> None:
    """Plans are kept and mirrored: one that could not be read would leave the operator without any."""
    plan = Plan.model_validate(
        {
            "metadata": {"name": "chat-7"},
            "spec": {
                "serviceRef": {"name": "chat"},
                "sequence": 7,
                "mode": "Active",
                "observedAt": "2026-01-01T12:00:00Z",
                "pools": {"prefill": {"replicas": 3}, "decode": {"replicas": 2}},
                "routing": {"maxLocalPrefillTokens": 512, "maxPrefillQueueSize": 32},
                "changesLayout": True,
                "reason": "PrefillShort",
                "message": "long prompts",
                "alternatives": [
                    {
                        "action": "switch",
                        "prefill": 3,
                        "decode": 2,
                        "gpus": 5,
                        "expectedAttainment": 0.97,
                        "cost": -0.9,
                        "rejectedBecause": "",
                    }
                ],
                "expiresAt": "2026-01-01T12:05:00Z",
            },
        }
    )
    [alternative] = plan.spec.alternatives
    assert (alternative.expected_attainment, alternative.lead_seconds) == (0.97, None)
    assert "leadSeconds" not in plan.manifest()["spec"]["alternatives"][0], "unknown is absent"


POLICY = {"objectives": {"ttftMs": 1500, "tpotMs": 40}, "budget": {"maxGpus": 8}}


def test_a_policy_file_is_read_with_or_without_its_envelope() -> None:
    bare = PlannerPolicySpec.from_document(POLICY)
    enveloped = PlannerPolicySpec.from_document(
        {
            "apiVersion": "pointsman.dev/v1alpha1",
            "kind": "PlannerPolicy",
            "metadata": {"name": "chat", "labels": {"a": "b"}},
            "spec": POLICY,
        }
    )
    assert bare == enveloped == PlannerPolicySpec.from_document({"spec": POLICY})
    assert bare.mode == "Shadow"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"objectivs": {}}, "objectivs: there is no such field; did you mean objectives?"),
        (
            {"actions": {"roleSwitch": {"needApproval": True}}},
            "actions.roleSwitch.needApproval: there is no such field; did you mean needsApproval?",
        ),
        (
            {"mode": "Shadow!"},
            "mode: 'Shadow!' is written; input should be 'Shadow', 'Approve', 'Active' or 'External'",
        ),
        ({"budget": {}}, "budget.maxGpus: this field is required"),
        ({"metrics": {"source": "Graphite"}}, "metrics.source: 'Graphite' is written; input should be 'Direct'"),
        (
            {"objectives": {"ttftMs": 0, "tpotMs": 40}},
            "objectives.ttftMs: 0 is written; input should be greater than 0",
        ),
    ],
)
def test_a_mistake_in_a_policy_file_is_named_with_path_value_and_what_is_right(
    change: dict[str, object], sentence: str
) -> None:
    with pytest.raises(StrictError) as refusal:
        PlannerPolicySpec.from_document({**POLICY, **change})
    assert any(sentence in problem for problem in refusal.value.problems), refusal.value.problems


BREAKS_RULE: dict[str, dict[str, Any]] = {
    "budget: minGpus 4 is above maxGpus 2; write minGpus <= maxGpus": {"budget": {"maxGpus": 2, "minGpus": 4}},
    "actions.convertibleDecode: convertibleDecode is not built yet: bursts are answered by threshold and switch; "
    "leave convertibleDecode out": {"actions": {"convertibleDecode": {"enabled": True}}},
    "performance: table and configMap are both set; write one of them": {
        "performance": {"table": {"model": "m", "gpu": "h100_sxm"}, "configMap": {"name": "m"}}
    },
    "metrics: source is Prometheus, so prometheusUrl is required; write the address": {
        "metrics": {"source": "Prometheus"}
    },
    "metrics: prometheusSecretRef is set, so prometheusUrl is required; write the address": {
        "metrics": {"prometheusSecretRef": {"name": "p"}}
    },
    "metrics: prometheusUrl has a user and prometheusSecretRef is set; move user and password to the Secret": {
        "metrics": {"prometheusUrl": "http://u@p", "prometheusSecretRef": {"name": "p"}}
    },
}
"""What a policy file that breaks a CEL rule of the API server is refused with: one for each rule."""


@pytest.mark.parametrize(("sentence", "change"), BREAKS_RULE.items(), ids=lambda each: str(each)[:40])
def test_a_policy_file_that_breaks_a_rule_of_the_api_server_is_refused(sentence: str, change: dict[str, Any]) -> None:
    with pytest.raises(StrictError) as refusal:
        PlannerPolicySpec.from_document({**POLICY, **change})
    assert refusal.value.problems == (sentence,)


def test_every_rule_of_the_api_server_is_checked_in_a_file_with_the_same_message() -> None:
    schemas = walk(structural_schema(PlannerPolicySpec))
    rules = [(path, rule) for path, schema in schemas for rule in schema.get(VALIDATIONS, ())]
    unchecked = [
        (path, rule)
        for path, rule in rules
        if not any(
            sentence == f"{path}: {rule['message']}" if "message" in rule else sentence.startswith(f"{path}: ")
            for sentence in BREAKS_RULE
        )
    ]
    assert unchecked == []
    assert len(rules) == len(BREAKS_RULE)


@pytest.mark.parametrize("name", ["chat", "0", "chat-2.fast", "a" * 253])
def test_a_name_that_the_api_server_takes_is_read(name: str) -> None:
    assert PlannerPolicySpec.from_document({"kind": "PlannerPolicy", "metadata": {"name": name}, "spec": POLICY})


@pytest.mark.parametrize("name", ["", "Chat", "my chat", "chat_2", "-chat", "chat.", "chat..2", "chat\n", "a" * 254])
def test_a_name_that_the_api_server_refuses_is_refused_in_a_file(name: str) -> None:
    with pytest.raises(StrictError) as refusal:
        PlannerPolicySpec.from_document({"kind": "PlannerPolicy", "metadata": {"name": name}, "spec": POLICY})
    assert refusal.value.problems == (
        f"metadata.name: {name!r} is written; write at most 253 lower-case letters, digits, '-' and '.', with a letter "
        "or digit at both ends of each part between dots",
    )


def test_all_mistakes_of_a_policy_file_are_reported_at_once() -> None:
    with pytest.raises(StrictError) as refusal:
        PlannerPolicySpec.from_document({"mode": "On", "budgets": {}})
    assert len(refusal.value.problems) == 4  # the unknown field, the mode, and the two required fields
