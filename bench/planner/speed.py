"""How fast the simulator and ``decide()`` are, in times of one core: what others do on the computer is not counted."""

import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import cycle
from typing import Any, Final

import numpy as np

from bench.planner.evaluation_rows import COMMAND
from bench.planner.loads import Load
from bench.rows import Row, row
from pointsman.api.protocol.names import Role
from pointsman.planner.core.decide import decide
from pointsman.planner.core.state import State
from pointsman.planner.core.types import Observation, Policy, Worker, WorkerCondition
from pointsman.planner.simulator.baselines.static import static
from pointsman.planner.simulator.simulate import simulate
from pointsman.planner.simulator.types import Simulation, Trace

PROMPTS: Final = {"": "prompt_tokens=4000", ", most prompts local": "prompt_tokens=600,length_cv=1"}
TICKS: Final = 200


def speed_rows() -> Iterator[Row]:
    """The simulator's speed, and the time of a decision."""
    of = partial(row, command=COMMAND)
    simulated = [requests_per_s() for _ in range(3)]
    yield of("simulator, 16 workers, per second of one core", "requests/s", simulated, at_least=5000)
    for kind, prompts in PROMPTS.items():
        for workers, most_ms in ((64, 5.0), (1000, 50.0)):
            took = [decide_p99_ms(workers, prompts) for _ in range(3)]
            yield of(f"decide(), p99 at {workers} workers{kind}, time of one core", "ms", took, at_most=most_ms)


def _served(shape: str, workers: int = 8) -> tuple[Trace, Simulation, Policy]:
    """A load, 8 workers of each role, and a policy for so many."""
    load = Load(name=shape, trace=shape, gpu="h100_sxm", max_gpus=2 * workers, most_of_a_role=2 * workers)
    service = load.service(1)
    return service.trace, Simulation(service.simulation.engine, 8, 8), service.policy


def requests_per_s() -> float:
    """With 16 workers that serve 60 requests a second and a planner that does nothing."""
    served = _served("steady:rate=60,prompt_tokens=4000,duration_s=240")
    began = time.process_time()
    simulate(*served, static())
    return len(served[0]) / (time.process_time() - began)


def decide_p99_ms(workers: int, prompts: str = PROMPTS[""]) -> float:
    """Of ``decide`` called on the observations of a service of so many workers, as made by the simulator."""
    seen: list[Observation] = []

    def watched(state: Any, observation: Observation, *rest: Any) -> Any:
        seen.append(observation)
        return static().decide(state, observation, *rest)

    trace, simulation, policy = _served(f"steady:rate=40,{prompts},duration_s=60", workers)
    simulate(trace, simulation, policy, replace(static(), decide=watched))
    roles = [Role.PREFILL] * (workers // 2) + [Role.DECODE] * (workers - workers // 2)
    many = tuple(Worker(f"worker-{i:04}", role, WorkerCondition.ACTIVE) for i, role in enumerate(roles))
    state, took = State(), []
    for now_s, observation in zip(np.arange(TICKS) * policy.interval_s, cycle(seen)):
        assert observation.load is not None
        load = replace(observation.load, arrivals_per_s=observation.load.arrivals_per_s * workers / 16)
        observation = replace(observation, at_s=now_s, workers=many, load=load)
        began = time.process_time()
        state, _, _ = decide(state, observation, policy, now_s, simulation.engine.performance)
        took.append((time.process_time() - began) * 1000)
    return float(np.quantile(took, 0.99))
