"""LoongServe's mixes over a day, with the planner and with fixed instances."""

from dataclasses import replace

import numpy as np
import pytest
from bench.elastic.planned import DAYS, GOAL, INSTANCES, MAX_DEGREE, in_order, rows_of
from bench.rows import row

LV = next(day for day in DAYS if day.name == "LV-Eval")


def test_the_rate_of_a_day_rises_to_the_most_at_noon_and_falls() -> None:
    day = replace(LV, seconds=400_000)
    arrivals = day.trace(1).arrival_s
    for begin, end, rate in ((0, 20_000, day.low), (190_000, 210_000, day.high), (380_000, 400_000, day.low)):
        count = np.count_nonzero((begin <= arrivals) & (arrivals < end))
        assert count / 20_000 == pytest.approx(rate, rel=0.1)


def test_the_fewest_instances_of_a_day_hold_its_longest_request() -> None:
    for day in DAYS:
        trace = day.trace(1)
        assert (trace.prompt_tokens + trace.output_tokens).max() < day.least * INSTANCES.slots
        assert day.least <= MAX_DEGREE  # of one domain, so that a request fits
        assert min(day.fixed) >= day.least


def test_gpu_hours_are_compared_with_the_fewest_instances_that_keep_the_goal() -> None:
    day = replace(LV, seconds=300, low=0.02, high=0.05, fixed=(3, 8))
    few, many, hours = rows_of(day, (1,), "make bench-elastic-planned")
    assert (few.peer_name, many.peer_name) == ("3 instances", "8 instances")
    assert many.peer is not None and many.peer >= GOAL
    assert hours.peer_name == ("3 instances" if (few.peer or 0) >= GOAL else "8 instances")


def test_rows_are_in_the_order_of_the_days() -> None:
    rows = [row(f"{name}: attainment", "in time", [1.0], at_least=GOAL, command="") for name in ("Mixed", "ShareGPT")]
    assert [each.name.split(":")[0] for each in in_order(rows)] == ["ShareGPT", "Mixed"]
