"""Pools are sized for the attainment that the objectives ask for: a higher one never needs fewer workers.

P-D3: once the goal sized nothing, and any attainment was given the same workers.
"""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman.planner.core.decide import decide
from pointsman.planner.core.encode.queue import EncodeQueue
from pointsman.planner.core.sizing.demand import deviations, late_share, reachable_attainment
from pointsman.planner.core.state import State
from pointsman.planner.core.types import Bounds, Load
from pointsman.planner.profile.linear_model import LinearModel
from unit.planner.operating_points import point
from unit.planner.scenes import POLICY, observed

ATTAINMENTS = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.93, 0.95, 0.97, 0.98, 0.99, 0.995, 0.999)
NEEDS = ("prefillNeededNow", "decodeNeededNow", "prefillNeeded", "decodeNeeded", "workersKept")
# A worker prefills about 2 of these requests a second. Where one does many more, waiting is no matter of chance.
SLOW = LinearModel(20.0, 0.1, 4e-6, 12.0, 0.1, 2e-4)
FREE = replace(
    POLICY, max_gpus=64, scale_out=True, scale_in=True, prefill=Bounds(1, 32), decode=Bounds(1, 32),
    scale_in_stabilization_s=30.0, start_s=30.0,
)  # fmt: skip
RATES = (1.0, 2.0, 3.0, 5.0, 8.0, 14.0)


def rises(values: Sequence[float]) -> bool:
    return all(before <= after for before, after in itertools.pairwise(values))


def test_requests_that_cannot_be_in_time_use_up_what_may_be_late_but_for_a_fifth() -> None:
    assert reachable_attainment(0.95, 0.0) == pytest.approx(0.95)
    assert reachable_attainment(0.95, 0.02) == pytest.approx(1 - 0.03 / 0.98)
    assert reachable_attainment(0.95, 0.049) == pytest.approx(0.99)
    assert reachable_attainment(0.95, 0.06) == 0.95, "out of reach: the others are sized for as if they were all"


def test_a_higher_attainment_allows_fewer_late_requests_and_staffs_more_deviations() -> None:
    assert rises([-late_share(asked) for asked in ATTAINMENTS])
    assert rises([deviations(asked) for asked in ATTAINMENTS])
    assert deviations(0.5) == 0.0
    assert deviations(0.99) > deviations(0.8) + 1
    assert deviations(1.0) == deviations(0.999) < 4, "no pool is sized for every possible moment"


@given(
    shape=st.tuples(st.floats(1, 50_000), st.floats(1, 2000)),
    rate=st.floats(0, 300),
    scv=st.floats(1, 9),
    threshold=st.sampled_from([0, 512, 8192]),
)
@settings(max_examples=50)
def test_no_pool_needs_fewer_workers_for_a_higher_attainment(
    shape: tuple[float, float], rate: float, scv: float, threshold: int
) -> None:
    at = point(*shape, threshold, model=SLOW)
    assert rises([at.prefill_workers(rate, scv, late_share(asked), 64) for asked in ATTAINMENTS])
    assert rises([at.decode_workers(rate, deviations(asked)) for asked in ATTAINMENTS])


@given(images=st.floats(1, 8), image_s=st.floats(0.01, 0.4), rate=st.floats(0.01, 40), scv=st.floats(1, 9))
@settings(max_examples=50)
def test_nor_does_the_encode_pool(images: float, image_s: float, rate: float, scv: float) -> None:
    queue = EncodeQueue(images=images, images_scv=0.5, image_s=image_s, room_s=1.0, ttft_s=1.5)
    assert rises([queue.workers(rate, scv, late_share(asked), 64) for asked in ATTAINMENTS])


@cache
def planned(rate: float, attainment: float) -> tuple[int, tuple[float, ...]]:
    """(workers after a minute and a half of this load, the needs of each role), every decision carried out at once."""
    policy = replace(FREE, objectives=replace(FREE.objectives, attainment=attainment))
    load = Load(rate, prompt_tokens=4000, output_tokens=250, prompt_length_shares=((4000, 1.0),))
    state, layout = State(), (10, 8)
    for look in range(36):
        seen = observed(2.5 * look, load, *layout, kv_capacity_tokens=262_144.0, max_sequences=64.0)
        state, decision, _ = decide(state, seen, policy, seen.at_s, SLOW)
        layout = decision.prefill, decision.decode
    inputs = dict(decision.inputs)
    return sum(layout), tuple(inputs[name] for name in NEEDS)


@pytest.mark.parametrize("rate", RATES)
def test_a_higher_attainment_is_never_given_fewer_workers(rate: float) -> None:
    found = [planned(rate, attainment) for attainment in ATTAINMENTS]
    assert rises([workers for workers, _ in found]), found
    for name, needs in zip(NEEDS, zip(*(needs for _, needs in found), strict=True), strict=True):
        assert rises(needs), (name, needs)


def test_80_percent_take_fewer_workers_than_99_percent_of_most_loads_and_more_of_none() -> None:
    saved = [planned(rate, 0.99)[0] - planned(rate, 0.8)[0] for rate in RATES]
    assert min(saved) >= 0
    assert sum(each > 0 for each in saved) > len(saved) / 2, saved
