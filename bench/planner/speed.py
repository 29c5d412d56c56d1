"""How fast the simulator and ``decide()`` are, and what a simulation takes of memory.

Times are of one core: what others do on the computer is not counted. Memory is what Python's own allocator says, the
same at every run.
"""

import gc
import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

import numpy as np

from bench.planner.cells import COMMAND
from bench.planner.scenarios import SCENARIOS
from bench.rows import Row, row
from pointsman.api.protocol.names import Role
from pointsman.planner.core.decide import decide
from pointsman.planner.core.engine.performance_model import PerformanceModel
from pointsman.planner.core.state import State
from pointsman.planner.core.types import (
    Bounds,
    Decision,
    NextTick,
    Observation,
    Policy,
    Reason,
    Worker,
    WorkerCondition,
)
from pointsman.planner.replay.generators import generate, named_shape
from pointsman.planner.simulator.baselines.static import static
from pointsman.planner.simulator.simulate import simulate
from pointsman.planner.simulator.types import Planner, Simulation

RATES: Final = (10, 40, 160)  # requests a second, as many in all: those under way are in about the same proportion
SPEEDS: Final = ("simulator, ", "decide(), ")  # how the names of these rows begin
REQUESTS: Final = 2400
PROMPTS: Final = {"": "prompt_tokens=4000", ", most prompts local": "prompt_tokens=600,length_cv=1"}
# Seconds of load, for what ended leaves. In the first minutes the table of step times fills beside it, by up to
# 70 bytes a request.
LASTED_S: Final = (240.0, 480.0, 960.0)
ENDED_BYTES: Final = 100.0  # of a request that ended: its times, outcome and preemptions, and its column of the trace


def speed_rows() -> Iterator[Row]:
    """The simulator's speed and memory, and the time of a decision."""
    simulated = [requests_per_s() for _ in range(3)]
    yield row("simulator, 16 workers, per second of one core", "requests/s", simulated, at_least=5000, command=COMMAND)
    yield from memory_rows()
    for kind, prompts in PROMPTS.items():
        for workers, most_ms in ((64, 5.0), (1000, 50.0)):
            took = [decide_p99_ms(workers, prompts) for _ in range(3)]
            name = f"decide(), p99 at {workers} workers{kind}, time of one core"
            yield row(name, "ms", took, at_most=most_ms, command=COMMAND)


def memory_rows() -> Iterator[Row]:
    """Linear in requests under way: each of many takes what each of few does. What ended leaves its result."""
    few, more, many = (peak_memory(rate, REQUESTS / rate) for rate in RATES)
    first, then = (_slope(*pair) for pair in ((few, more), (more, many)))
    name = f"simulator, memory of a request under way, {more[0]} to {many[0]} of them"
    yield row(
        name, "bytes", [then], peer=[first], peer_name=f"{few[0]} to {more[0]} of them", of_ratio=True, at_most=1.2,
        command=COMMAND,
    )  # fmt: skip
    peaks = [peak_memory(RATES[1], seconds)[1] for seconds in LASTED_S]
    ended = [
        (later - earlier) / (RATES[1] * (long_s - short_s))
        for (earlier, later), (short_s, long_s) in zip(pairwise(peaks), pairwise(LASTED_S), strict=True)
    ]
    name = "simulator, memory of a request that ended, as many under way"
    yield row(name, "bytes", ended, at_most=ENDED_BYTES, command=COMMAND)


def _slope(fewer: tuple[int, int], more: tuple[int, int]) -> float:
    return (more[1] - fewer[1]) / (more[0] - fewer[0])


def peak_memory(rate: float, duration_s: float) -> tuple[int, int]:
    """(most requests under way, most bytes at once) of a simulation on 16 workers that are enough."""
    shape = f"steady:rate={rate:g},prompt_tokens=500,output_tokens=1000,duration_s={duration_s:g}"
    scenario, trace = SCENARIOS["step"], generate(named_shape(shape), 1)
    engine = replace(scenario, gpu="h100_sxm").engine()
    gc.collect()  # else what was there before says when the collector runs, and so how much garbage the peak has
    tracemalloc.start()
    try:
        result = simulate(trace, Simulation(engine, 8, 8), scenario.policy(), static())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return max(p.decoding + p.decode_waiting + p.prefill_queue + p.held for p in result.timeline), peak


def requests_per_s() -> float:
    """With 16 workers that serve 60 requests a second and a planner that does nothing."""
    scenario = SCENARIOS["step"]
    trace = generate(named_shape("steady:rate=60,prompt_tokens=4000,duration_s=240"), 1)
    engine = replace(scenario, gpu="h100_sxm").engine()
    began = time.process_time()
    result = simulate(trace, Simulation(engine, 8, 8), scenario.policy(), static())
    took_s = time.process_time() - began
    if result.attainment < 0.99:
        raise RuntimeError(f"only {result.attainment:.2f} were served: an overloaded service is another measurement")
    return len(trace) / took_s


def decide_p99_ms(workers: int, prompts: str = PROMPTS[""], ticks: int = 200) -> float:
    """Of ``decide`` called on the observations of a service of so many workers, as made by the simulator."""
    scenario = replace(SCENARIOS["step"], gpu="h100_sxm")
    half = workers // 2
    policy = replace(
        scenario.policy(), max_gpus=2 * workers, prefill=Bounds(1, 2 * workers), decode=Bounds(1, 2 * workers)
    )
    seen: list[Observation] = []

    def keep(
        state: Any, observation: Observation, policy: Policy, _now_s: float, _base: PerformanceModel | None
    ) -> tuple[Any, Decision, NextTick]:
        seen.append(observation)
        prefill, decode = observation.committed(Role.PREFILL), observation.committed(Role.DECODE)
        return state, _nothing(observation, prefill, decode), NextTick(policy.interval_s)

    trace = generate(named_shape(f"steady:rate=40,{prompts},duration_s=60"), 1)
    simulate(trace, Simulation(scenario.engine(), 8, 8), policy, Planner("keep", keep, lambda: None))
    many = tuple(
        Worker(f"worker-{i:04}", Role.PREFILL if i < half else Role.DECODE, WorkerCondition.ACTIVE)
        for i in range(workers)
    )
    state, took = State(), []
    for tick in range(ticks):
        observation = seen[tick % len(seen)]
        load = observation.load
        assert load is not None
        grown = replace(load, arrivals_per_s=load.arrivals_per_s * workers / 16)
        now_s = tick * policy.interval_s
        observation = replace(observation, at_s=now_s, workers=many, load=grown)
        began = time.process_time()
        state, _, _ = decide(state, observation, policy, now_s, scenario.engine().performance)
        took.append((time.process_time() - began) * 1000)
    return float(np.quantile(took, 0.99))


def _nothing(observation: Observation, prefill: int, decode_workers: int) -> Decision:
    return Decision(Reason.STEADY, "", prefill, decode_workers, observation.routing)
