"""Six fixed GPUs: nothing starts or stops, and page and README show what was measured."""

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from bench.planner import fixed_gpus, fixed_gpus_page, own_simulator, robust
from bench.planner.cells import ABLATION, OURS, STATIC, Run, by_planner, read_cells
from bench.planner.fixed_gpus import CHANGING, GPUS, LOADS, PARTS, Load

from pointsman.api.protocol.names import Role
from pointsman.planner.replay.requests import first
from pointsman.planner.simulator.baselines.dynamo import dynamo
from pointsman.planner.simulator.baselines.pointsman import ours
from pointsman.planner.simulator.simulate import simulate

ROOT = Path(__file__).parents[3]


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Load:
    """The changing mix until shortly after its first change, on the layout of what then comes no longer."""
    whole = LOADS[CHANGING].scenario
    load = Load(replace(whole, trace=lambda seed: first(whole.trace(seed), robust.CHANGES_S + 60)))
    monkeypatch.setitem(LOADS, CHANGING, load)
    return load


def test_six_workers_serve_all_the_time_and_only_their_roles_change(short: Load) -> None:
    trace, simulation = short.scenario.trace(1), short.scenario.simulation(1)
    result = simulate(trace, simulation, short.policy(), ours())
    assert {change.kind for change in result.transitions} == {"switch"}
    assert {change.role for change in result.transitions} == {Role.DECODE}
    assert result.peak_gpus == GPUS
    restarted = simulate(trace, simulation, short.restarting(), dynamo())
    assert {"start", "stop"} >= {change.kind for change in restarted.transitions} != set()
    assert restarted.peak_gpus == GPUS


def test_all_begin_alike_and_pictures_are_kept_of_ours_and_of_the_best_split(short: Load) -> None:
    measured = dict(own_simulator.cell(short.name, 1))
    assert list(measured)[: 1 + len(PARTS)] == [OURS, *(f"{ABLATION} {part}" for part in PARTS)]
    assert {STATIC, "static", "Arrow-like", "Dynamo-like"} < set(measured)
    mine = measured[OURS]()
    assert mine.layouts.startswith("0 4P2D, ")
    assert len(mine.shares.split()) == (robust.CHANGES_S + 60) / fixed_gpus.SHARE_S
    assert measured["static"]().layouts == ""


def test_the_splice_has_both_traces_with_the_prefixes_of_the_one_that_has_some() -> None:
    trace = fixed_gpus.spliced(1)
    begin_s, end_s = fixed_gpus.LONG_S, fixed_gpus.LONG_S + fixed_gpus.SHORT_S
    short = (trace.arrival_s >= begin_s) & (trace.arrival_s < end_s)
    assert trace.prompt_tokens[~short].mean() > 8 * trace.prompt_tokens[short].mean()
    assert short.sum() / fixed_gpus.SHORT_S > 20 * (~short).sum() / (2 * fixed_gpus.LONG_S)
    assert trace.prefix_blocks is not None
    assert [bool(blocks) for blocks in trace.prefix_blocks] == [not each for each in short]


def run(planner: str, seed: int, attainment: float, scenario: str = CHANGING, gpu_hours: float = 2.5) -> Run:
    return Run(scenario, seed, planner, attainment, gpu_hours, 1.0, 1.0, 20.0, 0, 0, GPUS)


def test_ours_is_judged_beside_everybody_and_a_larger_budget_beside_ours() -> None:
    found = {
        CHANGING: {
            OURS: [run(OURS, 1, 0.96), run(OURS, 2, 0.98)],
            STATIC: [run(STATIC, 1, 0.90), run(STATIC, 2, 0.99)],
            f"{ABLATION} threshold": [run(f"{ABLATION} threshold", 1, 0.97)],
        }
    }
    budget = [run(robust.ONLY_CHANGING, seed, 0.97, robust.ROBUST, 3.0) for seed in (1, 2)]
    rows = {(row.name.removeprefix(f"{CHANGING}: "), row.peer_name): row for row in fixed_gpus.rows(found, budget)}
    assert {name: (row.ours, row.peer, row.met) for name, row in rows.items()} == {
        ("share of requests within objectives", None): (0.97, None, True),
        ("share within objectives, same GPUs", STATIC): (0.97, 0.945, True),
        ("share within objectives, ablation", f"{ABLATION} threshold"): (0.96, 0.97, False),
        ("changing mix, budget of 16 GPUs: share within objectives", "6 fixed GPUs"): (0.97, 0.97, True),
        ("changing mix, budget of 16 GPUs: GPU-hours", "6 fixed GPUs"): (3.0, 2.5, False),
    }


def test_a_picture_shows_the_workers_of_either_role_at_their_times_and_both_lines() -> None:
    mine = replace(run(OURS, 1, 0.9), layouts="0 4P2D, 60 3P2D, 70 3P3D", shares="1 0.5 - 1")
    fixed = replace(run(STATIC, 1, 0.8), layouts="0 2P4D", shares="0.5 0.5 0.5 0.5", note="2P4D, threshold 512")
    root = ElementTree.fromstring(fixed_gpus_page.picture({OURS: [mine], STATIC: [fixed]}))
    assert "over time" in root.attrib["aria-label"]
    rects = [each.attrib for each in root.iter() if each.tag.endswith("rect") and "shape-rendering" in each.attrib]
    heights = {(float(each["x"]), each["fill"]): float(each["height"]) for each in rects}
    worker = 108 / GPUS
    assert sorted(round(height / worker) for height in heights.values()) == [2, 2, 3, 3, 3, 4]
    lines = [each.attrib["points"].split() for each in root.iter() if each.tag.endswith("polyline")]
    assert [len(points) for points in lines] == [4, 3], "of the half minute without requests there is no share"
    assert any("2P4D" in (each.text or "") for each in root.iter())
    assert fixed_gpus_page.picture({OURS: [run(OURS, 1, 0.9)], STATIC: [fixed]}) == ""


def test_the_readme_and_the_page_have_the_table_of_the_committed_cells() -> None:
    runs = read_cells()
    found = {name: of_load for name in LOADS if (of_load := by_planner(runs, name))}
    assert found.keys() == LOADS.keys()
    readme = (ROOT / "README.md").read_text()
    assert fixed_gpus_page.in_readme(readme, found) == readme
    table = "\n".join(fixed_gpus_page.summary(found))
    assert table in readme
    assert table in (ROOT / "docs" / "reports" / "planner-evaluation.md").read_text()
