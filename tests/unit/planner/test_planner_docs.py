"""Who looks something up in the documentation of the planner finds it, and what is written there to be typed works."""

import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from pathlib import Path

import pytest

from pointsman.api.v1alpha1.conditions import PlannerHealth
from pointsman.api.v1alpha1.llmservice import PoolsSpec
from pointsman.api.v1alpha1.plannerpolicy import Budget, Mode, PlannerPolicySpec
from pointsman.planner.core.routing.publication import named
from pointsman.planner.core.tuning import SHIPPED
from pointsman.planner.core.types import Reason, RoutingNumbers
from pointsman.planner.explain.command import parse as explain
from pointsman.planner.profile.options import parse as profile
from pointsman.planner.replay import command as replay
from pointsman.planner.replay.policy_files import load_policy
from pointsman.planner.replay.record_command import parse as record
from pointsman.planner.settings import PlannerSettings
from unit.planner.by_hand import LOAD, POLICY, decided

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "docs" / "planner"
REASONS = (FOLDER / "reasons.md").read_text()
TABLE = ROOT / "planner/src/pointsman/planner/tables/Meta-Llama-3.1-8B__h100_sxm__vllm__tp1.json"


def commands(page: str) -> list[list[str]]:
    """Every ``pointsman`` command line of a page: of its code blocks, and those with arguments in its sentences."""
    text = (FOLDER / page).read_text()
    lines = re.findall(r"^ {4}(pointsman .+)$", text, re.MULTILINE) + re.findall(r"`(pointsman \w+ [^`…]+)`", text)
    return [shlex.split(line, comments=True)[1:] for line in lines]


def explained(section: str) -> list[str]:
    """The reasons in the first column of a section's table."""
    _, _, text = REASONS.partition(f"## {section}\n")
    rows = [row.split("|")[1] for row in text.partition("\n## ")[0].splitlines() if row.startswith("| `")]
    return re.findall(r"`([A-Za-z]+)`", " ".join(rows))


@pytest.mark.parametrize(
    ("section", "reasons"), [("Reasons of decisions", Reason), ("Reasons of PlannerHealthy", PlannerHealth)]
)
def test_every_reason_is_explained_and_no_other_is(section: str, reasons: type[StrEnum]) -> None:
    assert set(explained(section)) == {reason.value for reason in reasons}


def test_the_guide_names_every_routing_number_and_when_it_is_published() -> None:
    _, _, text = (FOLDER / "policy-guide.md").read_text().partition("## Routing numbers\n")
    rows = [row.split("|")[1] for row in text.splitlines() if row.startswith("| `")]
    names = set(named(RoutingNumbers(512, 32)))
    assert set(re.findall(r"`(\w+)`", " ".join(rows))) == names
    assert f"more than {SHIPPED.flow_dead_band:.0%}".replace("%", " %") in text
    assert "5 % if it falls" in text
    assert f"every {SHIPPED.publish_interval_s:.0f} seconds" in text


def test_the_guide_has_the_default_of_every_field_that_limits_workers() -> None:
    text = (FOLDER / "policy-guide.md").read_text()
    shown = {
        name: int(default)
        for names, default in re.findall(r"^\| (`[^|]+) \| (\d+) \|", text, re.MULTILINE)
        for name in re.findall(r"`([^`]+)`", names)
    }
    pools = PoolsSpec.model_validate({"encode": {}})
    assert pools.encode is not None
    assert shown == {
        "budget.minGpus": Budget(max_gpus=8).min_gpus,
        "spec.pools.prefill.minReplicas": pools.prefill.min_replicas,
        "spec.pools.decode.minReplicas": pools.decode.min_replicas,
        "spec.pools.encode.minReplicas": pools.encode.min_replicas,
        "spec.pools.*.maxReplicas": pools.prefill.max_replicas,
    }


@pytest.mark.parametrize(
    ("field", "value"), [("approvals.expireAfterSeconds", 900), ("scaleIn.stabilizationSeconds", 120)]
)
def test_a_default_that_the_pages_name_is_the_one_of_the_policy(field: str, value: int) -> None:
    text = "".join((FOLDER / page).read_text() for page in ("README.md", "policy-guide.md"))
    policy = PlannerPolicySpec.model_validate({"objectives": {"ttftMs": 1, "tpotMs": 1}, "budget": {"maxGpus": 2}})
    found = {
        "approvals.expireAfterSeconds": policy.approvals.expire_after_seconds,
        "scaleIn.stabilizationSeconds": policy.actions.scale_in.stabilization_seconds,
    }
    assert found[field] == value
    assert f"`{field}` ({value}" in text


@pytest.mark.parametrize("mode", Mode)
def test_the_need_is_among_the_inputs_in_every_mode_so_that_an_autoscaler_can_follow_it(mode: Mode) -> None:
    _, decision = decided(replace(POLICY, mode=mode))
    assert {"prefillNeeded", "decodeNeeded"} <= dict(decision.inputs).keys()


@pytest.mark.parametrize(
    ("max_gpus", "scale_in", "rate_per_s", "reason", "plans"),
    [
        (4, True, 50, Reason.UNSATISFIABLE, False),
        (3, True, 50, Reason.UNSATISFIABLE, True),
        (3, True, 35, Reason.SPARE_CAPACITY, True),
        (3, False, 50, Reason.UNSATISFIABLE, False),
        (3, False, 35, Reason.UNSATISFIABLE, False),
    ],
)
def test_a_budget_below_the_need_or_below_what_runs_has_the_reason_of_the_table(
    max_gpus: int, scale_in: bool, rate_per_s: float, reason: Reason, plans: bool
) -> None:
    """Of 2P2D with a GPU each, where 35 requests a second need 2P2D and 50 need 3P3D."""
    policy = replace(POLICY, max_gpus=max_gpus, scale_in=scale_in)
    load = replace(LOAD, arrivals_per_s=rate_per_s)
    published = decided(policy, load)[1].routing
    _, decision = decided(policy, load, published)
    assert (decision.reason, decision.changes_layout) == (reason, plans)


@pytest.mark.parametrize("page", ["README.md", "policy-guide.md"])
def test_a_policy_that_is_written_out_is_taken_and_needs_each_of_its_required_fields(page: str, tmp_path: Path) -> None:
    text = (FOLDER / page).read_text()
    text = text[text.index("```yaml\napiVersion") + 8 :]
    text = text[: text.index("```")]
    file = tmp_path / "policy.yaml"
    file.write_text(text)
    spec = load_policy(file).spec
    assert (spec.mode, spec.objectives.ttft_ms, spec.objectives.tpot_ms) == ("Shadow", 1500, 40)
    assert spec == spec.model_validate({"objectives": {"ttftMs": 1500, "tpotMs": 40}, "budget": {"maxGpus": 8}})


@pytest.mark.parametrize(
    ("page", "known"),
    [
        ("README.md", {"explain"}),
        ("policy-guide.md", {"explain"}),
        ("metrics.md", {"record"}),
        ("profile.md", {"profile", "replay"}),
    ],
)
def test_every_command_of_a_page_is_taken_as_it_is_written(
    page: str, known: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those that need no cluster and no engine run, on the first seconds of their load."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "chat.json").write_text(TABLE.read_text())
    monkeypatch.chdir(tmp_path)

    def replayed(arguments: list[str]) -> object:
        assert replay.main([*arguments, "--first-seconds", "20"]) == 0
        return capsys.readouterr()

    take: dict[str, Callable[[list[str]], object]] = {
        "explain": explain, "record": record, "profile": profile, "replay": replayed
    }  # fmt: skip
    found = commands(page)
    assert {name for name, *_ in found} == known
    for name, *arguments in found:
        if arguments == ["--help"]:
            with pytest.raises(SystemExit) as ended:
                take[name](arguments)
            assert ended.value.code == 0
        else:
            take[name](arguments)


def test_the_example_in_the_help_of_the_planners_process_is_taken_as_it_is_written() -> None:
    example = (PlannerSettings.__doc__ or "").split("example:\n")[1]
    assert example.startswith("  python"), "indented as an example, by no more"
    name, *flags = example.strip().removeprefix("python -m ").split()
    assert f"python -m {name}" == PlannerSettings.model_config.get("cli_prog_name")
    settings = PlannerSettings.read(flags)
    assert (settings.namespace, settings.identity, settings.bind_port) == ("pointsman-system", "planner-1", 0)
