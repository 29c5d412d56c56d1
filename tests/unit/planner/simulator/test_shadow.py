"""What Shadow promises beside what Active then gets: on the same trace, from the same workers.

P-D5: once the promise was of workers that stood there at once.
"""

from dataclasses import replace
from typing import Any, Final

import pytest

from pointsman.api.protocol.names import LANGUAGE_ROLES
from pointsman.api.v1alpha1.plannerpolicy import Mode
from pointsman.planner.core.types import Bounds, Decision, NextTick, Objectives, Observation, Policy
from pointsman.planner.replay.generators import generate, named_shape
from pointsman.planner.shipped_engines import shipped_engine
from pointsman.planner.simulator.baselines.pointsman import ours
from pointsman.planner.simulator.simulate import simulate
from pointsman.planner.simulator.types import Leads, Planner, Simulation, Truth

LEADS = Leads(start_s=120.0, start_spread=0.1)
TRUTH = Truth(prefill_kappa=1.15, decode_kappa=1.2, noise_sigma=0.08)
POLICY = Policy(
    objectives=Objectives(ttft_ms=1500, tpot_ms=30), max_gpus=16, prefill=Bounds(1, 12), decode=Bounds(1, 12)
)
SHARES: Final = (-0.05, 0.05)
HOURS: Final = (-0.08, 0.08)
APART: Final = {
    ("step", 11): (SHARES, HOURS),  # seeds 11 to 20: -.044 to -.030, and -4 to +1 % of the GPU-hours
    ("ramp", 11): (SHARES, HOURS),  # +.009 to +.020, -3 to +1 %
    ("burst", 12): (SHARES, HOURS),  # -.043 to +.031, -7 to 0 %
    ("mixshift", 12): (SHARES, (-0.22, 0.08)),  # known to be worse: -21 %
}
"""How far a promise may be from what Active gets: share within objectives, and GPU-hours relative to Active's.

Mixshift: in the first 15 s, a need on the edge of two layouts decides whether a fifth worker starts, which then stays
for minutes. Active itself differs by 23 % on one trace (seed 14) if only the noise of the engine is another.
``docs/design/0010-one-rule-for-a-pool.md`` has the figures.
"""
Promise = tuple[float, float, float, float]
"""(when, GPUs, share of requests within objectives, requests that came)."""


def shadow(promises: list[Promise]) -> Planner:
    """Ours in Shadow: nothing is carried out, and what it promises is written down."""
    planner = ours()

    def decide(
        state: Any, seen: Observation, policy: Policy, now_s: float, base: Any
    ) -> tuple[Any, Decision, NextTick]:
        state, decision, tick = planner.decide(state, seen, replace(policy, mode=Mode.SHADOW), now_s, base)
        said = dict(decision.inputs)
        if seen.load is not None and "attainmentIfExecuted" in said:
            requests = seen.load.arrivals_per_s * seen.window_s
            promises.append((now_s, said["gpusIfExecuted"], said["attainmentIfExecuted"], requests))
        prefill, decode = (seen.committed(role) for role in LANGUAGE_ROLES)
        stays = replace(
            decision, prefill=prefill, decode=decode, routing=seen.routing, switches=(), changes_layout=False,
            routing_reason=None,
        )  # fmt: skip
        return state, stays, tick

    return replace(planner, decide=decide)


@pytest.mark.parametrize(("load", "seed"), APART)
def test_shadow_promises_what_active_then_gets(load: str, seed: int) -> None:
    """Active loses what comes while workers start; a promise that forgets that is of .99 and more."""
    trace = generate(named_shape(load), seed)
    engine = shipped_engine("meta-llama/Meta-Llama-3.1-8B", "a100_sxm", "vllm", 1)
    begins = Simulation(engine, 2, 2, truth=TRUTH, leads=LEADS, seed=seed)
    active, promises = simulate(trace, begins, POLICY, ours()), list[Promise]()
    simulate(trace, begins, POLICY, shadow(promises))

    came = [promise for promise in promises if promise[0] <= trace.duration_s]
    promised = sum(share * requests for _, _, share, requests in came) / sum(requests for *_, requests in came)
    gpu_hours = sum(gpus * POLICY.interval_s / 3600 for _, gpus, _, _ in came)
    more_kept, more_hours = promised - active.attainment, gpu_hours / active.gpu_hours - 1
    (least, most), (fewest, highest) = APART[load, seed]
    assert least <= more_kept <= most
    assert fewest <= more_hours <= highest
