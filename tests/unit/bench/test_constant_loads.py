"""Constant loads: each seed is a service that can keep its goal, and what is missed is seen."""

import pytest
from bench.planner import constant_loads, own_simulator
from bench.planner.cells import OURS, Run
from bench.planner.constant_loads import ALL_GPUS, ANY_ENGINE, HOUR

from pointsman.planner.simulator.types import Result


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("SECONDS", 90), ("SETTLED_S", 30.0), ("HOUR_S", 60.0)):
        monkeypatch.setattr(constant_loads, name, value)


@pytest.mark.usefixtures("short")
def test_a_seed_is_a_service_whose_goal_some_layout_keeps() -> None:
    made, layout, best = constant_loads.drawn(5)
    constant_loads.drawn.cache_clear()
    again, *_ = constant_loads.drawn(5)
    constant_loads.drawn.cache_clear()
    assert (made.engine, made.policy, made.simulation) == (again.engine, again.policy, again.simulation)
    assert made.trace.arrival_s.tolist() == again.trace.arrival_s.tolist()
    assert isinstance(best, Result)
    assert constant_loads.settled(best) > made.goal in constant_loads.GOALS
    assert layout in {f"{prefill}P{decode}D" for prefill, decode in constant_loads.AMPLE}
    assert made.simulation.prefill_workers + made.simulation.decode_workers >= constant_loads.LEAST_WORKERS
    assert made.simulation.truth.prefill_kappa != 1.0 != made.simulation.truth.decode_kappa


@pytest.mark.usefixtures("short")
def test_ours_is_measured_beside_all_gpus_with_its_goal_and_over_hours() -> None:
    measured = dict(own_simulator.cell(ANY_ENGINE, 5))
    mine, ample = measured[OURS](), measured[ALL_GPUS]()
    constant_loads.drawn.cache_clear()
    assert mine.goal in constant_loads.GOALS
    assert ample.goal is None
    assert ample.gpu_hours > mine.gpu_hours
    (hour,) = (measure() for _, measure in own_simulator.cell(HOUR, 3))
    assert (hour.planner, hour.seed) == (OURS, 3)
    assert hour.note == "a100_sxm, 8 requests/s of 4000 tokens, 4P4D at first"


def run(scenario: str, seed: int, share: float, *, goal: float | None = None, reversals: int = 0) -> Run:
    planner = ALL_GPUS if scenario == ANY_ENGINE and goal is None else OURS
    return Run(scenario, seed, planner, share, 2.0, 1.0, 1.0, 20.0, 0, reversals, 4, note="8P8D", goal=goal)


FOUND = [
    run(ANY_ENGINE, 0, 0.85, goal=0.8),
    run(ANY_ENGINE, 0, 1.0),
    run(ANY_ENGINE, 1, 0.98, goal=0.99),
    run(ANY_ENGINE, 1, 1.0),
    run(HOUR, 0, 0.99),
    run(HOUR, 1, 0.95, reversals=2),
]


def test_each_engine_is_judged_by_its_own_goal_and_all_hours_together() -> None:
    rows = {row.name: (row.ours, row.target, row.met) for row in constant_loads.rows(FOUND)}
    assert rows == {
        "constant loads on 2 random engines: those that keep their goal": (1.0, ">= 2", False),
        "constant load on random engine 0: share within objectives after 5 minutes": (0.85, ">= 0.8", True),
        "constant load on random engine 1: share within objectives after 5 minutes": (0.98, ">= 0.99", False),
        "constant loads on 2 random engines: reversals, in all": (0.0, "<= 0", True),
        "2 constant hours: reversals, in all": (2.0, "<= 0", False),
        "2 constant hours: share within objectives": (0.97, ">= 0.95", True),
    }


def test_the_page_shows_what_is_missed() -> None:
    lines = constant_loads.section(FOUND).splitlines()
    (missed,) = (line for line in lines if "**missed**" in line)
    assert missed.startswith("| 1 | ")
    assert lines[-1] == "| 8P8D | 2 | 0.950 to 0.990 | 0 | 2 |"
    assert constant_loads.section(FOUND[:4]) == ""
