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


@pytest.mark.parametrize("seed", [14, 15])
def test_what_hardly_matters_is_not_taken_away_and_started_again(seed: int) -> None:
    """Eight requests a second are served by three or by four prefill workers, as the noise has it."""
    trace = generate(named_shape("steady:rate=8,prompt_tokens=4000,duration_s=900"), seed)
    engine = shipped_engine("meta-llama/Meta-Llama-3.1-8B", "a100_sxm", "vllm", 1)
    result = simulate(trace, Simulation(engine, 4, 4, truth=TRUTH, leads=LEADS, seed=seed), POLICY, ours())
    assert result.attainment > 0.99
    assert result.reversals(2 * LEADS.start_s) == 0
