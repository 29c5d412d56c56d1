"""Workers for a rate: what must hold at every operating point."""

import math
import random
import statistics
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.planner.core.engine.learned_model import pass_ms
from pointsman.planner.core.sizing.operating_point import OperatingPoint, Prompts, operating_point
from pointsman.planner.core.types import Policy
from pointsman.planner.core.workload.length_variability import Shape
from pointsman.planner.core.workload.request_lengths import Lengths
from pointsman.planner.performance_tables import performance_table
from pointsman.planner.profile.linear_model import LinearModel
from unit.planner.operating_points import OBJECTIVES, point
from unit.planner.scenes import LLAMA_8B_H100, observed
from unit.planner.sizing.simulated_queue import simulated_waits

POLICY = Policy(objectives=OBJECTIVES)
lengths = st.tuples(st.floats(1, 50_000), st.floats(1, 2000))


@given(shape=lengths, rate=st.floats(0, 300), more=st.floats(1, 3), threshold=st.sampled_from([0, 512, 8192]))
def test_more_load_never_needs_fewer_workers(
    shape: tuple[float, float], rate: float, more: float, threshold: int
) -> None:
    at = point(*shape, threshold)
    assert at.prefill_workers(rate, 1.5, 0.1, 64) <= at.prefill_workers(rate * more, 1.5, 0.1, 64)
    assert at.decode_workers(rate, 1.0) <= at.decode_workers(rate * more, 1.0)


@given(shape=lengths, rate=st.floats(0.01, 300))
def test_a_slower_engine_or_a_smaller_memory_never_needs_fewer_workers(shape: tuple[float, float], rate: float) -> None:
    fast, slow = point(*shape), point(*shape, model=LinearModel(9.4, 0.035, 1.7e-6, 12.8, 0.02, 8.6e-5))
    assert fast.prefill_workers(rate, 1.5, 0.1, 64) <= slow.prefill_workers(rate, 1.5, 0.1, 64)
    for tight in (point(*shape, kv_capacity_tokens=100_000.0), point(*shape, max_sequences=8.0)):
        assert fast.decode_workers(rate, 1.0) <= tight.decode_workers(rate, 1.0) * (1 + 1e-6)  # the batch is bisected
        assert tight.drain_per_s <= fast.drain_per_s * (1 + 1e-6)


@pytest.mark.parametrize("rate", [2.0, 10.0, 40.0])
@pytest.mark.parametrize("holds_back", [True, False])
def test_what_is_called_enough_keeps_the_objectives_by_its_own_estimate(rate: float, holds_back: bool) -> None:
    at = point(kv_capacity_tokens=400_000.0)
    prefill, decode = at.prefill_workers(rate, 1.0, 0.05, 64), math.ceil(at.decode_workers(rate, 1.64))
    assert at.attainment(rate, 1.0, prefill, decode, holds_back=holds_back) > 0.89
    fewer = at.attainment(rate, 1.0, prefill, max(1, decode - 2), holds_back=False)
    assert decode < 3 or fewer < 0.5  # two too few of them, and everybody's answer is slow


@pytest.mark.parametrize("rate", [20.0, 60.0])
def test_the_recommended_prefill_pool_is_in_time_when_simulated_and_a_much_smaller_one_is_not(rate: float) -> None:
    draw = random.Random(5)
    times_s = [LLAMA_8B_H100.prefill_ms(draw.lognormvariate(7.5, 0.7), 0) / 1000 for _ in range(2000)]
    mean_s = statistics.fmean(times_s)
    scv = statistics.pvariance(times_s) / mean_s**2
    at = replace(point(), prefill_s=mean_s, prefill_alone_s=mean_s, prefill_scv=scv, ttft_s=0.3)

    def late(workers: int) -> float:
        waits = simulated_waits(workers, rate, times_s, 40_000, seed=2)
        return sum(wait > at.slack_s for wait in waits) / len(waits)

    workers = at.prefill_workers(rate, 1.0, 0.05, 64)
    assert late(workers) <= 0.07
    assert late(max(1, workers - 2)) > 0.07


@given(
    shape=lengths, rate=st.floats(0.1, 300), more=st.floats(1, 3), prefill=st.integers(1, 40),
    decode=st.integers(1, 40), threshold=st.sampled_from([0, 512]), holds_back=st.booleans(),
)  # fmt: skip
def test_an_estimate_falls_with_the_load_and_rises_with_workers(
    shape: tuple[float, float], rate: float, more: float, prefill: int, decode: int, threshold: int, holds_back: bool
) -> None:
    at = point(*shape, threshold)

    def kept(rate_per_s: float, p: int, d: int) -> float:
        return at.attainment(rate_per_s, 1.5, p, d, holds_back=holds_back)

    here = kept(rate, prefill, decode)
    assert 0 <= here <= 1
    assert kept(rate * more, prefill, decode) <= here + 1e-6
    assert kept(rate, prefill + 1, decode) >= here - 1e-6
    assert kept(rate, prefill, decode + 1) >= here - 1e-6
    assert at.attainment(rate, 1.5, prefill, decode, holds_back=True) >= (
        at.attainment(rate, 1.5, prefill, decode, holds_back=False) - 0.05
    )


def test_flow_control_keeps_as_many_as_workers_can_do_where_first_in_first_out_keeps_few() -> None:
    at = point()
    rate = 2 * at.prefill_per_s  # of one worker
    assert at.attainment(rate, 1.0, 1, 400, holds_back=True) == pytest.approx(0.5, abs=0.05)
    assert at.attainment(rate, 1.0, 1, 400, holds_back=False) < 0.5


def test_an_objective_that_an_idle_worker_misses_is_kept_by_nobody() -> None:
    assert point(prompt=200_000).attainment(0.001, 1.0, 50, 50, holds_back=True) == 0


def test_prompts_below_the_threshold_need_decode_workers_instead_of_prefill_workers() -> None:
    remote, local = point(400, 100, threshold=0), point(400, 100, threshold=512)
    assert local.prefill_workers(60, 1.0, 0.1, 64) == 1
    assert local.decode_workers(60, 1.0) > remote.decode_workers(60, 1.0)


def test_a_full_pass_costs_a_prompt_less_than_a_pass_of_its_own() -> None:
    alone = replace(observed(0, None).routing, prefill_token_budget=512)
    assert point(500).prefill_s < point(500, routing=alone).prefill_s == point(500).prefill_alone_s


def test_cached_tokens_take_room_in_a_pass_as_workers_admit_by_the_whole_prompt() -> None:
    """Of 4000 tokens 3700 are cached: two such prompts share a pass of 8192 tokens, not the 27 of 300 tokens each."""
    seen = Lengths(shares=((4000, 1.0),), prompt_tokens=4000, cached_share=3700 / 4000, output_tokens=250)
    cached = operating_point(LLAMA_8B_H100, observed(0, None), POLICY, seen, Shape())
    assert cached.prefill_s * 1000 == pytest.approx(pass_ms(LLAMA_8B_H100, 2, 300, 3700) / 2)


def test_uneven_prompts_cost_more_than_their_mean_since_attention_grows_with_the_square() -> None:
    def mixed(*lengths: tuple[float, float]) -> OperatingPoint:
        seen = Lengths(shares=lengths, prompt_tokens=16_000, output_tokens=300)
        return operating_point(LLAMA_8B_H100, observed(0, None), POLICY, seen, Shape())

    even, uneven = mixed((16_000, 1.0)), mixed((1_000, 0.75), (61_000, 0.25))
    assert uneven.prefill_s > 1.5 * even.prefill_s
    assert uneven.prefill_scv > 1


def test_of_a_bucket_of_lengths_those_below_the_threshold_stay() -> None:
    """A bucket whose middle is above it has shorter prompts too: were they none, nothing would keep it from rising."""
    at = point(5800, 100, threshold=0)
    assert at.at_threshold(4096).remote_share == 1.0
    shares = [at.at_threshold(tokens).remote_share for tokens in range(4096, 8448, 128)]
    assert shares == sorted(shares, reverse=True)
    assert 0.4 < at.at_threshold(5800).remote_share < 0.6
    assert (shares[0], shares[-1]) == (1.0, 0.0)
    assert at.at_threshold(5504).local_s == pytest.approx(0.42 * at.at_threshold(8320).local_s, rel=0.05)


def test_a_threshold_at_the_bound_of_a_bucket_keeps_all_of_it_whatever_their_mean_is() -> None:
    """Prompts of 256 to 512 tokens, 400 in the mean: the middle of their bucket is 362."""
    routing = replace(observed(0, None).routing, max_local_prefill_tokens=512)
    seen = Lengths(shares=((math.sqrt(256 * 512), 1.0),), prompt_tokens=400, output_tokens=20)
    at = operating_point(LLAMA_8B_H100, replace(observed(0, None), routing=routing), POLICY, seen, Shape())
    assert at.remote_share == 0.0
    assert at.local_s == pytest.approx(LLAMA_8B_H100.prefill_ms(400, 0) / 1000)
    assert at.at_threshold(256).remote_share == 1.0


@pytest.mark.parametrize(
    ("middle", "mean", "threshold", "local"),
    [(362, 500, 448, 0.64), (724, 520, 512, 0.0), (724, 520, 640, 0.62), (362, 300, 320, 0.44), (362, 4500, 512, 0.0)],
)
def test_of_a_bucket_the_mean_says_which_part_is_likely(
    middle: float, mean: float, threshold: float, local: float
) -> None:
    """The last: the mean is of other prompts, which came a moment ago."""
    assert Prompts(mean, 1.0, 0.1, 0.1, 0.1, middle).local_share(threshold) == pytest.approx(local, abs=0.005)


def test_a_threshold_moves_prompts_between_the_pools_and_nothing_else() -> None:
    at = point(400, 100, threshold=512)
    remote = at.at_threshold(256)
    assert (remote.remote_share, remote.local_s) == (1.0, 0.0)
    assert remote.at_threshold(512) == at


@pytest.mark.parametrize("room", [300.0, 40_000.0, 400_000.0, 1_000_000.0])
@pytest.mark.parametrize("prompt", [200.0, 3000.0])
def test_a_batch_beside_local_prefills_is_the_one_for_the_time_that_is_left(prompt: float, room: float) -> None:
    """Taken off a curve for all shares at once; alone each is searched for exactly. The table's steps are no line."""
    a100 = performance_table("meta-llama/Meta-Llama-3.1-8B", "a100_sxm", "vllm", 1)
    at = point(prompt, 250, 8192, a100, kv_capacity_tokens=room)
    errors = []
    for free, batch, step_s in at.beside_local():
        objectives = replace(OBJECTIVES, tpot_ms=free * OBJECTIVES.tpot_ms)
        exact = point(prompt, 250, 0, a100, objectives=objectives, kv_capacity_tokens=room)
        assert step_s == pytest.approx(exact.step_s, rel=1e-3)
        errors.append(abs(batch / exact.batch - 1))
    assert max(errors) < 0.05
    assert statistics.mean(errors) < 0.005
