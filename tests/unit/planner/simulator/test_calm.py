"""A constant load whose need lies at the edge between two layouts, on an engine with noise: no to and fro."""

import pytest

from pointsman.planner.core.types import Bounds, Objectives, Policy
from pointsman.planner.replay.generators import generate, named_shape
from pointsman.planner.shipped_engines import shipped_engine
from pointsman.planner.simulator.baselines.pointsman import ours
from pointsman.planner.simulator.simulate import simulate
from pointsman.planner.simulator.types import Leads, Simulation, Truth

LEADS = Leads(start_s=120.0, start_spread=0.1)
TRUTH = Truth(prefill_kappa=1.15, decode_kappa=1.2, noise_sigma=0.08)
POLICY = Policy(
    objectives=Objectives(ttft_ms=1500, tpot_ms=30), max_gpus=16, prefill=Bounds(1, 12), decode=Bounds(1, 12)
)


@pytest.mark.parametrize(
    ("gpu", "rate", "prompt_tokens", "prefill", "decode", "seed"),
    [
        ("a100_sxm", 8, 4000, 4, 4, 14),
        ("a100_sxm", 8, 4000, 4, 4, 15),
        ("a100_sxm", 10, 4000, 5, 5, 11),
        ("a100_sxm", 10, 4000, 5, 5, 12),
        ("h100_sxm", 30, 2000, 4, 5, 11),
    ],
)
def test_what_hardly_matters_is_not_taken_away_and_started_again(
    gpu: str, rate: int, prompt_tokens: int, prefill: int, decode: int, seed: int
) -> None:
    """As the noise has it, these are served by one prefill worker more or less. The fewer there are the more prompts
    share a pass, and the longer each of them takes: that is no reason to start another."""
    trace = generate(named_shape(f"steady:rate={rate},prompt_tokens={prompt_tokens},duration_s=900"), seed)
    engine = shipped_engine("meta-llama/Meta-Llama-3.1-8B", gpu, "vllm", 1)
    begins = Simulation(engine, prefill, decode, truth=TRUTH, leads=LEADS, seed=seed)
    result = simulate(trace, begins, POLICY, ours())
    assert result.attainment > 0.99
    assert result.reversals(2 * LEADS.start_s) == 0
