"""Policy files: the same document as in a cluster, with or without its envelope, and mistakes named."""

from pathlib import Path

import pytest

from pointsman.planner.errors import PolicyFileError
from pointsman.planner.replay.policy_files import load_policy

EXAMPLES = sorted((Path(__file__).parents[3] / "examples" / "policies").glob("*.yaml"))
BARE = "objectives: {ttftMs: 1500, tpotMs: 40}\nbudget: {maxGpus: 8}\n"
WHOLE = (
    "apiVersion: pointsman.dev/v1alpha1\nkind: PlannerPolicy\nmetadata: {name: chat}\n"
    "spec:\n  objectives: {ttftMs: 1500, tpotMs: 40}\n  budget: {maxGpus: 8}\n"
)


def written(folder: Path, text: str) -> Path:
    path = folder / "mine.yaml"
    path.write_text(text)
    return path


def test_there_are_examples_for_four_kinds_of_service() -> None:
    assert {path.stem for path in EXAMPLES} == {"batch", "chat", "code", "long-context"}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_read_and_names_a_shipped_table(path: Path) -> None:
    policy = load_policy(path)
    assert policy.name == path.stem
    assert policy.spec.performance.table is not None


def test_the_envelope_makes_no_difference(tmp_path: Path) -> None:
    bare, whole = load_policy(written(tmp_path, BARE)), load_policy(written(tmp_path, WHOLE))
    assert bare.spec == whole.spec
    assert (bare.name, whole.name) == ("mine", "chat")


def test_a_service_in_the_same_file_is_passed_over(tmp_path: Path) -> None:
    both = "apiVersion: pointsman.dev/v1alpha1\nkind: LLMService\nmetadata: {name: chat}\n---\n" + WHOLE
    assert load_policy(written(tmp_path, both)).spec.budget.max_gpus == 8


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (BARE.replace("ttftMs", "ttfMs"), "objectives.ttfMs: there is no such field; did you mean ttftMs?"),
        (WHOLE.replace("budget", "bugdet"), "spec.bugdet: there is no such field; did you mean budget?"),
        (BARE.replace("1500", "soon"), "objectives.ttftMs: 'soon' is written"),
        (BARE + "budget: {maxGpus: 9}\n", "'budget' is written twice"),
        (BARE + "  nonsense", "it is no YAML"),
        (BARE.replace("1500", "2026-13-01"), "it is no YAML: month must be in 1..12"),
        (BARE.replace("1500", "[" * 3000), "it is no YAML: maximum recursion depth"),
        ("", "no PlannerPolicy"),
        ("kind: LLMService\n", "no PlannerPolicy"),
        (WHOLE + "---\n" + WHOLE, "2 policies"),
    ],
)
def test_a_mistake_is_named_with_its_path(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(PolicyFileError) as raised:
        load_policy(written(tmp_path, text))
    assert said in str(raised.value)


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(PolicyFileError, match="No such file"):
        load_policy(tmp_path / "nothing.yaml")


def test_a_variant_changes_one_field_and_nothing_else(tmp_path: Path) -> None:
    policy = load_policy(written(tmp_path, WHOLE))
    changed = policy.variant("budget.maxGpus", "12")
    switching = policy.variant("actions.roleSwitch.enabled", "false")
    assert (changed.spec.budget.max_gpus, policy.spec.budget.max_gpus) == (12, 8)
    assert changed.spec.objectives == policy.spec.objectives
    assert switching.spec.actions.role_switch.enabled is False
    with pytest.raises(PolicyFileError, match=r"budget.maxGpu: there is no such field; did you mean maxGpus\?"):
        policy.variant("budget.maxGpu", "12")
    with pytest.raises(PolicyFileError, match="maxGpus has no fields"):
        policy.variant("budget.maxGpus.x", "12")
    with pytest.raises(PolicyFileError, match=r"budget.maxGpus: '\[12' is no YAML"):
        policy.variant("budget.maxGpus", "[12")
