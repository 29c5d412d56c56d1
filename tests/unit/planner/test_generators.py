"""Synthetic loads: their rates, lengths and seeds."""

from dataclasses import replace

import numpy as np
import pytest

from pointsman.planner.errors import TraceError
from pointsman.planner.replay.generators import SHAPES, Burst, OnOff, Ramp, Step, generate, named_shape
from pointsman.planner.simulator.types import Trace


def rate(trace: Trace, begin_s: float, end_s: float) -> float:
    return float(((trace.arrival_s >= begin_s) & (trace.arrival_s < end_s)).sum()) / (end_s - begin_s)


@pytest.mark.parametrize("name", SHAPES)
def test_a_name_gives_a_trace_within_its_duration_and_the_same_for_the_same_seed(name: str) -> None:
    shape = named_shape(name)
    one, again, other = generate(shape, 1), generate(shape, 1), generate(shape, 2)
    assert one.arrival_s.tolist() == again.arrival_s.tolist() != other.arrival_s.tolist()
    assert one.prompt_tokens.tolist() == again.prompt_tokens.tolist()
    assert 0 <= one.arrival_s[0] <= one.duration_s <= shape.duration_s


def test_a_step_goes_up_and_down_where_it_says() -> None:
    made = generate(Step(), 1)
    assert rate(made, 0, 300) == pytest.approx(3, rel=0.15)
    assert rate(made, 300, 800) == pytest.approx(14, rel=0.1)
    assert rate(made, 800, 1200) == pytest.approx(3, rel=0.15)
    assert made.prompt_tokens.mean() == pytest.approx(4000, rel=0.03)
    assert made.prompt_tokens.std() / made.prompt_tokens.mean() == pytest.approx(0.25, rel=0.1)


def test_a_ramp_rises_linearly() -> None:
    made = generate(Ramp(), 1)
    assert rate(made, 475, 525) == pytest.approx(10.5, rel=0.15)
    assert rate(made, 750, 800) == pytest.approx(17.4, rel=0.15)


def test_a_burst_is_ten_times_the_load_for_a_minute() -> None:
    made = generate(Burst(), 1)
    assert rate(made, 400, 460) == pytest.approx(10 * rate(made, 0, 400), rel=0.25)


def test_a_mix_shift_changes_lengths_at_half_time() -> None:
    made = generate(named_shape("mixshift"), 1)
    early = made.arrival_s < 600
    assert made.prompt_tokens[early].mean() == pytest.approx(4000, rel=0.05)
    assert made.prompt_tokens[~early].mean() == pytest.approx(500, rel=0.05)
    assert made.output_tokens[~early].mean() == pytest.approx(600, rel=0.05)


def test_on_and_off_alternate_with_random_lengths_of_the_stated_means() -> None:
    made = generate(OnOff(duration_s=20_000), 1)
    per_5_s = np.histogram(made.arrival_s, bins=np.arange(0, 20_000, 5))[0] / 5
    on_share = (per_5_s > 6).mean()
    assert on_share == pytest.approx(30 / (30 + 90), rel=0.2)


def test_parameters_follow_the_name() -> None:
    made = named_shape("burst:high=20,length_s=90")
    assert made == replace(Burst(), high=20.0, length_s=90.0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("brust", "no synthetic load 'brust'; did you mean burst?"),
        ("burst:hihg=3", "burst has no parameter 'hihg'; did you mean high?"),
        ("burst:high=lots", "burst: high is 'lots'; "),
        ("burst:high", "burst: high is ''"),
        ("burst:high=-1", "burst: high is '-1'"),
    ],
)
def test_a_wrong_name_or_parameter_is_said_with_the_nearest(text: str, said: str) -> None:
    with pytest.raises(TraceError) as raised:
        named_shape(text)
    assert said.rstrip("; ") in str(raised.value)


@pytest.mark.parametrize("text", ["steady:rate=0", "onoff:duration_s=0", "step:duration_s=0"])
def test_a_load_of_nothing_is_refused(text: str) -> None:
    with pytest.raises(TraceError, match="gives no request"):
        generate(named_shape(text), 1)


@pytest.mark.parametrize("name", ["on_s", "off_s"])
def test_a_pause_or_a_burst_without_length_is_refused(name: str) -> None:
    with pytest.raises(TraceError, match=f"onoff: {name} is 0: a number above 0 is needed"):
        generate(named_shape(f"onoff:{name}=0"), 1)


def test_a_mean_length_of_nothing_is_the_least_there_is() -> None:
    assert set(generate(named_shape("steady:output_tokens=0,duration_s=10"), 1).output_tokens) == {2}
