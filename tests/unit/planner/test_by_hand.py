"""The page that recomputes a decision by hand has the numbers of a real one, and its arithmetic is right."""

import math
import re
from pathlib import Path
from statistics import NormalDist
from typing import Final

import pytest

from pointsman.api.protocol.names import LANGUAGE_ROLES
from pointsman.api.v1alpha1.plannerpolicy import Mode
from pointsman.planner.core.decide import decide
from pointsman.planner.core.engine.performance_model import LinearModel
from pointsman.planner.core.sizing.queueing import erlang_c
from pointsman.planner.core.state import State
from pointsman.planner.core.types import (
    Bounds,
    Decision,
    Load,
    Objectives,
    Observation,
    Policy,
    RoutingNumbers,
    Service,
    Worker,
    WorkerCondition,
)

PAGE: Final = (Path(__file__).parents[3] / "docs/planner/by-hand.md").read_text()
ENGINE: Final = LinearModel(4.705, 0.01757, 8.785e-7, 6.392, 0.009885, 4.273e-5)
POLICY: Final = Policy(
    mode=Mode.ACTIVE,
    objectives=Objectives(ttft_ms=1500, tpot_ms=20, attainment=0.95),
    max_gpus=16,
    prefill=Bounds(1, 8),
    decode=Bounds(1, 12),
)
LOAD: Final = Load(
    arrivals_per_s=50, prompt_tokens=2000, output_tokens=300, prompt_length_shares=((2000, 1.0),)
)  # fmt: skip
WORKERS: Final = tuple(
    Worker(f"{role}-{n}", role, WorkerCondition.ACTIVE) for role in LANGUAGE_ROLES for n in range(2)
)  # fmt: skip


@pytest.fixture(scope="module")
def decision() -> Decision:
    """The first one that changes the layout."""
    state = State()
    for look in range(20):
        at_s = 2.5 * look
        seen = Observation(
            at_s=at_s, window_s=2.5, age_s=1.0, workers=WORKERS, routing=RoutingNumbers(512, 32), load=LOAD,
            service=Service(1.0, 1.0, 1.0, prefill_queue_depth=0.0), kv_capacity_tokens=400_000, max_sequences=256,
        )  # fmt: skip
        state, decided, _ = decide(state, seen, POLICY, at_s, ENGINE)
        if decided.changes_layout:
            return decided
    raise AssertionError("nothing was changed")


def test_the_page_shows_the_inputs_of_a_real_decision(decision: Decision) -> None:
    shown = {name: float(value) for name, value in re.findall(r"^\| `(\w+)` \| ([\d.]+) \|", PAGE, re.MULTILINE)}
    inputs = dict(decision.inputs)
    assert len(shown) == 10
    assert shown == {name: pytest.approx(inputs[name]) for name in shown}
    assert "Scale out from 2P2D to 3P3D: prefill and decode are short. " in decision.message
    assert (inputs["prefillNeeded"], inputs["decodeNeeded"]) == (3, 3)


def test_the_arithmetic_of_the_page_gives_what_was_decided(decision: Decision) -> None:
    given = dict(decision.inputs)
    at_once = given["expectedRatePerSecond"] * given["outputTokens"] * given["stepMilliseconds"] / 1000
    spread = math.sqrt(at_once * (1 + given["contextDispersion"]))
    for attainment, z_shown, workers_shown in ((0.95, "1.28", "2.44"), (0.8, "0.25", "2.29")):
        z = NormalDist().inv_cdf(1 - 2 * (1 - attainment))
        workers = (at_once + z * spread) / given["decodeBatch"]
        assert f"{z:.2f}" == z_shown
        assert f"{workers:.2f}" == workers_shown
        assert f"+ {z_shown} × {spread:.1f}) / {given['decodeBatch']:.1f} = {workers_shown}" in PAGE
    work = given["expectedRatePerSecond"] * given["prefillMilliseconds"] / 1000
    busy, waits = work / 3, erlang_c(3, work)
    scv = (given["arrivalDispersion"] + given["prefillDispersion"]) / 2
    wait_s = given["prefillMilliseconds"] / 1000 * scv / (3 * (1 - busy))
    assert (f"{work:.2f}", f"{work / 2:.0%}", f"{busy:.0%}") == ("1.90", "95%", "63%")
    assert (f"{waits:.2f}", f"{wait_s:.3f}") == ("0.40", "0.025")
    assert "with probability 0.40 (Erlang C)" in PAGE
    assert waits * math.exp(-given["slackMilliseconds"] / 1000 / wait_s) < 1e-6
