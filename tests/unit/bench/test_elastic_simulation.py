"""The simulated elastic group: what is alone takes what the model says, and everything ends."""

import pytest
from bench.elastic.simulation import Asked, DecodeTime, Mix, Run, System, Unloaded, in_time

from pointsman.serving.elastic.latency_model import LatencyModel, PrefillTime, extrapolate
from pointsman.serving.elastic.types import Settings

TIME = PrefillTime(0.004, 1.5e-4, 3e-8)
DECODE = DecodeTime(0.006, 0.004, 0.0008, 2e-7)
MODEL = LatencyModel({1: TIME, 2: extrapolate(TIME, 2, 0.9, 0.004)})
ALONE = LatencyModel({1: TIME})
UNLOADED = Unloaded(TIME, DECODE)
MIX = Mix(range(64, 257), range(2000, 4001), 0.1, range(4, 17))
ELASTIC = System("elastic", (0, 0), 6000, MODEL)
APART = System("1+1", (0, 1), 6000, ALONE)


@pytest.mark.parametrize("prompt_tokens", [1, 100, 3000])
def test_a_request_that_is_alone_takes_what_its_parts_take(prompt_tokens: int) -> None:
    asked = Asked(1.0, prompt_tokens, 9)
    (found,) = Run(APART, DECODE).outcomes([asked])
    assert found.latency_s == pytest.approx(UNLOADED.seconds(asked))


def test_a_long_prompt_is_prefilled_by_both_instances_and_decoded_by_one() -> None:
    asked = Asked(1.0, 3000, 3)
    (found,) = Run(ELASTIC, DECODE).outcomes([asked])
    assert found.first_s - asked.at_s == pytest.approx(MODEL.seconds([3000], 2))
    decode_s = sum(DECODE.seconds(1, 1, 3000 + number) for number in (1, 2))
    assert found.latency_s == pytest.approx(MODEL.seconds([3000], 2) + decode_s)


def test_a_prompt_that_no_instance_holds_is_refused_where_they_do_not_work_together() -> None:
    asked = [Asked(1.0, 7000, 3)]
    (apart,), (together,) = Run(APART, DECODE).outcomes(asked), Run(ELASTIC, DECODE).outcomes(asked)
    assert apart.refused
    assert apart.latency_s == float("inf")
    assert together.end_s is not None


@pytest.mark.parametrize("system", [ELASTIC, APART], ids=lambda system: system.name)
def test_everything_ends_and_more_is_late_the_more_there_is(system: System) -> None:
    run = Run(system, DECODE, Settings(max_prefill_s=1.0))
    slow, fast = MIX.draw(0.5, 40, seed=1), MIX.draw(500.0, 40, seed=1)
    assert all(each.end_s is not None for each in run.outcomes(slow) + run.outcomes(fast))
    assert in_time(run, slow, UNLOADED, 5.0) == 1.0
    assert in_time(run, fast, UNLOADED, 5.0) < 0.5
