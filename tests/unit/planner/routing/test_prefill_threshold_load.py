"""A prefill worker that gets too much beside decode workers with room: only the threshold can move work."""

from functools import cache

import pytest

from pointsman.planner.core.tuning import SHIPPED, Tuning
from pointsman.planner.core.types import Bounds, Objectives, Policy
from pointsman.planner.replay.generators import generate, named_shape
from pointsman.planner.shipped_engines import shipped_engine
from pointsman.planner.simulator.baselines.pointsman import ours
from pointsman.planner.simulator.simulate import simulate
from pointsman.planner.simulator.types import Simulation, Truth

ENGINE = shipped_engine("meta-llama/Meta-Llama-3.1-8B", "h100_sxm", "vllm", 1)
TRUTH = Truth(prefill_kappa=1.15, decode_kappa=1.2, noise_sigma=0.08)
RISE = ",length_cv=0.6,rise_s=400,fall_s=60,level_s=20"
LONG_PROMPTS = "ramp:low=10,high=45,prompt_tokens=1800,output_tokens=80" + RISE


@cache
def attainment(shape: str, ttft_ms: float, seed: int, tuning: Tuning) -> float:
    """Of one prefill and three decode workers that stay."""
    each = Bounds(1, 3)
    policy = Policy(
        objectives=Objectives(ttft_ms=ttft_ms, tpot_ms=20, attainment=0.95), max_gpus=4, prefill=each, decode=each,
        role_switch=False, scale_out=False, scale_in=False, tuning=tuning,
    )  # fmt: skip
    simulation = Simulation(ENGINE, 1, 3, truth=TRUTH, seed=seed)
    return simulate(generate(named_shape(shape), seed), simulation, policy, ours()).attainment


@pytest.mark.parametrize(
    ("other", "shape", "ttft_ms", "seed"),
    [
        (Tuning(threshold_increase_tokens=SHIPPED.threshold_increase_tokens // 4), LONG_PROMPTS, 1500.0, 3),
        (Tuning(threshold_increase_tokens=8 * SHIPPED.threshold_increase_tokens), LONG_PROMPTS, 1500.0, 3),
        (Tuning(threshold_decrease=SHIPPED.threshold_decrease / 2), LONG_PROMPTS, 1500.0, 2),
    ],
    ids=["no increase at all", "eight times the increase", "half the decrease"],
)
def test_other_steps_of_the_threshold_make_more_requests_late(
    other: Tuning, shape: str, ttft_ms: float, seed: int
) -> None:
    assert attainment(shape, ttft_ms, seed, SHIPPED) > 0.01 + attainment(shape, ttft_ms, seed, other)
