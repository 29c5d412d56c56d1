"""The planner's own constants: few, validated, documented, and passed as a value."""

import ast
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError

from pointsman.api.v1alpha1.plannerpolicy import Mode
from pointsman.planner.core.tuning import SHIPPED, Tuning
from pointsman.planner.core.types import Bounds
from pointsman.planner.replay.generators import generate, named_shape
from pointsman.planner.simulator.baselines.pointsman import ours
from pointsman.planner.simulator.simulate import simulate
from pointsman.planner.simulator.types import EncodePool, Leads, Simulation
from pointsman.planner.tuning_page import PAGE, SHOWN_BY, main, page
from unit.planner.simulator.scenes import ENGINE, POLICY, poisson
from unit.planner.tuning_guard import others_than_shipped

ROOT = Path(__file__).parents[3]
CORE = ROOT / "planner/src/pointsman/planner/core"
MOST_FIELDS = 43
MOST_OTHERS = 35  # most are formats, limits of memory and grids of numerics
MOST_INLINE = 119
"""Numbers in functions, most of them tolerances, clamps and weights of estimates: no evaluation can vary them. All that
shape a decision belong into ``Tuning``: docs/design/0014-size-of-the-planner.md says why they do not."""


def numeric_constants() -> Iterator[str]:
    """Of the modules of planner/core but ``tuning``: each upper-case name whose value has a number in it."""
    for path in sorted(CORE.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None or path.name == "tuning.py":
                continue
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            if isinstance(target, ast.Name) and target.id.isupper() and any(map(_is_number, ast.walk(node.value))):
                yield f"{path.relative_to(CORE)}: {target.id}"


def _is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool)


def inline_numbers() -> Iterator[str]:
    """In functions of planner/core but its messages: each number but 0, ½, 1, 2, 1000 and least ones."""
    usual = (0, 0.5, 1, 2, 1000)
    for path in sorted(CORE.rglob("*.py")):
        functions = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)]
        numbers = {node for function in functions for node in ast.walk(function) if _is_number(node)}
        for node in numbers if "messages" not in path.parts else ():
            if isinstance(node, ast.Constant) and node.value not in usual and abs(complex(node.value)) > 1e-5:  # type: ignore[arg-type]
                yield f"{path.relative_to(CORE)}:{node.lineno}: {node.value!r}"


def test_there_are_few_constants_with_names_and_not_more_without() -> None:
    assert len(Tuning.model_fields) <= MOST_FIELDS
    assert len(found := list(numeric_constants())) <= MOST_OTHERS, found
    assert len(found := list(inline_numbers())) <= MOST_INLINE, found


@pytest.mark.parametrize(
    ("field", "value"),
    [("patience_s", -1.0), ("switch_evaluations", 0), ("usable_kv_share", 1.2), ("rate_headroom", 1.0),
     ("patience_s", float("nan")), ("patience_s", "soon")],
)  # fmt: skip
def test_a_value_that_cannot_be_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(ValidationError, match=field):
        Tuning(**{field: value})


def test_it_cannot_be_changed_in_place_and_has_no_other_fields() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        SHIPPED.patience_s = 1.0  # type: ignore[misc]
    with pytest.raises(ValidationError, match="pacience_s"):
        Tuning(pacience_s=1.0)  # type: ignore[call-arg]


def test_the_page_is_that_of_the_constants(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["--root", str(ROOT), "--check"]) == 0, "run 'make tuning'"
    (tmp_path / PAGE).parent.mkdir(parents=True)
    (tmp_path / PAGE).write_text(page().replace("15 s", "16 s"))
    assert main(["--root", str(tmp_path), "--check"]) == 1
    assert "make tuning" in capsys.readouterr().err
    assert main(["--root", str(tmp_path)]) == 0
    assert (tmp_path / PAGE).read_text() == page()


def test_each_constant_names_a_load_or_a_test_that_exists() -> None:
    loads = {row["name"].partition(":")[0] for row in json.loads((ROOT / "bench/results/planner.json").read_text())}
    tests = {path.name for path in (ROOT / "tests/unit/planner").rglob("test_*.py")}
    assert list(SHOWN_BY) == list(Tuning.model_fields)
    assert {*SHOWN_BY.values()} <= loads | tests
    for name, field in Tuning.model_fields.items():
        assert field.description is not None and field.description.count(".") >= 1, name


def test_each_section_of_the_page_has_a_title_of_its_own() -> None:
    titles = [line for line in page().splitlines() if line.startswith("## ")]
    sections = (CORE / "tuning.py").read_text().count("    # --- ")
    assert len({*titles}) == len(titles) == sections, titles


@pytest.mark.parametrize("mode", [Mode.ACTIVE, Mode.SHADOW])
def test_a_decision_reads_only_the_constants_that_it_was_given(monkeypatch: pytest.MonkeyPatch, mode: Mode) -> None:
    own = others_than_shipped(monkeypatch)
    policy = replace(POLICY, mode=mode, encode=Bounds(1, 4), tuning=own)
    trace = generate(named_shape("mixshift:images=3,image_share=0.3,at_s=60,duration_s=180,rate=20,later_rate=60"), 1)
    simulation = Simulation(ENGINE, 2, 2, encode=EncodePool(image_ms=80.0), leads=Leads(start_s=20.0))
    found = simulate(trace, simulation, policy, ours())
    assert mode is Mode.SHADOW or any(record.decision.changes_layout for record in found.decisions)


def test_another_value_makes_another_decision() -> None:
    trace = poisson(40, 120, 2000, 200)

    def starts(tuning: Tuning) -> float:
        simulation = Simulation(ENGINE, 1, 1, leads=Leads(start_s=20.0))
        policy = replace(POLICY, mode=Mode.ACTIVE, role_switch=False, tuning=tuning)
        changes = simulate(trace, simulation, policy, ours()).transitions
        return min(change.began_s for change in changes if change.kind == "start")

    assert starts(SHIPPED) < starts(Tuning(patience_s=60.0))
