"""LoongServe's mixes over a day, with the planner and with fixed instances."""

from dataclasses import replace

import numpy as np
import pytest
from bench.elastic.planned import DAYS, FIXED, GOAL, INSTANCES, MAX_DEGREE, rows_of

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


def test_gpu_hours_are_compared_with_the_fewest_instances_that_keep_the_goal() -> None:
    *shares, hours = rows_of(replace(LV, seconds=300, low=0.02, high=0.05), (1,))
    assert [each.peer_name for each in shares] == [f"{number} instances" for number in FIXED]
    enough = [each.peer_name for each in shares if (each.peer or 0) >= GOAL]
    assert hours.peer_name == enough[0]
