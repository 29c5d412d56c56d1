"""An elastic group: its loads, its policy, what is observed of it."""

from dataclasses import replace
from typing import Any

from pointsman.api.protocol.names import Role
from pointsman.api.v1alpha1.plannerpolicy import Mode
from pointsman.planner.core.elastic.types import GroupObservation, ManagerWindow
from pointsman.planner.core.types import (
    Bounds,
    Load,
    Objectives,
    Observation,
    Policy,
    RoutingNumbers,
    Service,
    Worker,
    WorkerCondition,
)
from pointsman.serving.elastic.latency_model import LatencyModel, PrefillTime
from pointsman.serving.elastic.step_sums import StepSums

TICK_S = 2.5
LATENCY = LatencyModel({1: PrefillTime(0.005, 6e-5, 1e-9), 2: PrefillTime(0.007, 3.3e-5, 6e-10)})
STEPS = StepSums.of_iteration(1, 2, 0.0124).plus(StepSums.of_iteration(1, 20, 0.016))
POLICY = Policy(
    mode=Mode.ACTIVE,
    objectives=Objectives(ttft_ms=1500, tpot_ms=40, attainment=0.9),
    max_gpus=8,
    interval_s=TICK_S,
    scale_in_stabilization_s=30.0,
    start_s=20.0,
)
BOUNDS = Bounds(1, 8)
LIGHT, HEAVY = 1.0, 12.0  # requests a second of 2 000 and 200 tokens


def instances(serving: int, starting: int = 0) -> tuple[Worker, ...]:
    conditions = [WorkerCondition.ACTIVE] * serving + [WorkerCondition.STARTING] * starting
    return tuple(Worker(f"g-{n}", Role.DECODE, condition) for n, condition in enumerate(conditions))


def seen(at_s: float, rate: float, serving: int, starting: int = 0, **more: Any) -> GroupObservation:
    load = Load(rate, prompt_tokens=2000, output_tokens=200, prompt_length_shares=((2000.0, 1.0),))
    service = Service(ttft_attainment=0.99, tpot_attainment=0.99)
    in_progress = more.pop("plan_in_progress", False)
    observation = Observation(at_s, TICK_S, 0.5, (), RoutingNumbers(0, 0), load, service, plan_in_progress=in_progress)
    made = GroupObservation(
        seen=observation,
        instances=instances(serving, starting),
        desired=serving + starting,
        max_degree=2,
        latency=LATENCY,
        manager=ManagerWindow(STEPS, serving * 100_000.0, serving * 80_000.0, 0.0),
    )
    return replace(made, **more)
