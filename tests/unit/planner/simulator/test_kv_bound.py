"""Long sequences on a GPU with little memory: the KV cache, not the step, bounds what a decode worker decodes."""

from dataclasses import replace

from pointsman.api.v1alpha1.plannerpolicy import Mode
from pointsman.planner.core.tuning import SHIPPED, Tuning
from pointsman.planner.core.types import Bounds, Objectives, Policy
from pointsman.planner.replay.generators import generate, named_shape
from pointsman.planner.shipped_engines import shipped_engine
from pointsman.planner.simulator.baselines.pointsman import ours
from pointsman.planner.simulator.simulate import simulate
from pointsman.planner.simulator.types import Leads, Result, Simulation

ENGINE = shipped_engine("meta-llama/Meta-Llama-3.1-8B", "l40s", "vllm", 1)
LEADS = Leads(start_s=20.0)
POLICY = Policy(
    mode=Mode.ACTIVE,
    objectives=Objectives(ttft_ms=4000, tpot_ms=120, attainment=0.95),
    max_gpus=16,
    prefill=Bounds(1, 12),
    decode=Bounds(1, 12),
    start_s=LEADS.start_s,
)


def served(tuning: Tuning, decode: int = 4, seed: int = 1) -> Result:
    """Three requests a second of 3000+1500 tokens: 50 to 60 of them fill a decode worker's KV cache. Seven are needed;
    ``decode`` are there at first."""
    trace = generate(named_shape("steady:rate=3,prompt_tokens=3000,output_tokens=1500,duration_s=600"), seed)
    service = Simulation(ENGINE, 1, decode, leads=LEADS, seed=seed)
    return simulate(trace, service, replace(POLICY, tuning=tuning), ours())


def preempted(result: Result) -> int:
    """Preemptions of requests that came once others have started: before, there are too few workers."""
    return int(result.preemptions[result.arrival_s > 150.0].sum())


def decode_workers(result: Result) -> int:
    """Of the last minute of the load, that serve."""
    return max(point.decode_active for point in result.timeline if 540 <= point.at_s < 600)


def test_decode_workers_are_counted_on_for_most_of_their_kv_cache_and_nothing_is_preempted() -> None:
    shipped = served(SHIPPED)
    assert shipped.attainment >= POLICY.objectives.attainment
    assert not served(SHIPPED, decode=6).preemptions.any()
    assert preempted(shipped) == 0
    # With four the cache is full until others have started: answers are taken for shorter than they are at first.
    whole = Tuning(usable_kv_share=1.0)
    assert 0 < shipped.preemptions.sum() <= served(whole).preemptions.sum() / 3
    assert preempted(served(SHIPPED, seed=3)) == 0
    assert preempted(served(whole, seed=3)) >= 20
    half = served(Tuning(usable_kv_share=SHIPPED.usable_kv_share / 2))
    assert decode_workers(half) >= decode_workers(shipped) + 3
    assert half.attainment <= shipped.attainment
