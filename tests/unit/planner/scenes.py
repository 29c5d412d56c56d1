"""Loads, policies and observations of a small service, and a planner that is shown them tick by tick."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pointsman.api.protocol.names import Role
from pointsman.api.v1alpha1.plannerpolicy import Mode
from pointsman.planner.core.decide import decide
from pointsman.planner.core.state import State
from pointsman.planner.core.types import (
    Bounds,
    Decision,
    Load,
    Observation,
    Policy,
    RoutingNumbers,
    Service,
    Worker,
    WorkerCondition,
)
from pointsman.planner.profile.linear_model import LinearModel

LLAMA_8B_H100 = LinearModel(4.705, 0.01757, 8.785e-7, 6.392, 0.009885, 4.273e-5)
SHORT = Load(arrivals_per_s=90, prompt_tokens=300, output_tokens=300, prompt_length_shares=((300, 1.0),))
LONG = Load(arrivals_per_s=40, prompt_tokens=4000, output_tokens=30, prompt_length_shares=((4000, 1.0),))
POLICY = Policy(
    mode=Mode.ACTIVE, max_gpus=6, prefill=Bounds(1, 5), decode=Bounds(1, 5), scale_out=False, scale_in=False
)


def workers(prefill: int, decode: int) -> tuple[Worker, ...]:
    roles = [Role.PREFILL] * prefill + [Role.DECODE] * decode
    return tuple(Worker(f"w{n}", role, WorkerCondition.ACTIVE) for n, role in enumerate(roles))


def observed(at_s: float, load: Load | None, prefill: int = 2, decode: int = 4, **other: Any) -> Observation:
    made = Observation(
        at_s=at_s, window_s=2.5, age_s=1.0, workers=workers(prefill, decode), routing=RoutingNumbers(512, 32),
        load=load, service=Service(ttft_attainment=1.0, tpot_attainment=1.0, attainment=1.0, prefill_queue_depth=0.0),
    )  # fmt: skip
    return replace(made, **other)


def run(loads: Sequence[Load | None], policy: Policy = POLICY, prefill: int = 2, decode: int = 4) -> list[Decision]:
    """Tick through ``loads``, every decision carried out at once."""
    state, decisions = State(), []
    for tick, load in enumerate(loads):
        at_s = 2.5 * tick
        state, decision, _ = decide(state, observed(at_s, load, prefill, decode), policy, at_s, LLAMA_8B_H100)
        prefill, decode = decision.prefill, decision.decode
        decisions.append(decision)
    return decisions
