"""What Shadow promises beside what Active then gets: on the same trace, from the same workers.

P-D5: once the promise was of workers that stood there at once.
"""

from dataclasses import replace
from typing import Any

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
ATTAINMENT_APART, GPU_HOURS_APART = 0.05, 0.08
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


@pytest.mark.parametrize("load", ["step", "ramp"])
def test_shadow_promises_what_active_then_gets(load: str) -> None:
    """Active loses what comes while workers start; a promise that forgets that is of .99 and more."""
    trace = generate(named_shape(load), 11)
    engine = shipped_engine("meta-llama/Meta-Llama-3.1-8B", "a100_sxm", "vllm", 1)
    begins = Simulation(engine, 2, 2, truth=TRUTH, leads=LEADS, seed=11)
    active, promises = simulate(trace, begins, POLICY, ours()), list[Promise]()
    simulate(trace, begins, POLICY, shadow(promises))

    came = [promise for promise in promises if promise[0] <= trace.duration_s]
    promised = sum(share * requests for _, _, share, requests in came) / sum(requests for *_, requests in came)
    gpu_hours = sum(gpus * POLICY.interval_s / 3600 for _, gpus, _, _ in came)
    assert promised == pytest.approx(active.attainment, abs=ATTAINMENT_APART)
    assert gpu_hours == pytest.approx(active.gpu_hours, rel=GPU_HOURS_APART)
