"""Ours on constant loads: does it keep the goal on any engine, and does it leave a layout alone that suffices?

* ``ENGINES`` random engines: shipped tables, times of the true engine scaled, with random lengths and objectives that
  some layout within the budget keeps. The share of requests within objectives must be the policy's attainment.
* ``HOURS`` seeds of an hour of ``STEADY_LOADS``, one load after another: no pool may go one way and back.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

import numpy as np

from bench.pages import render
from bench.planner.cells import COMMAND, OURS, Measurement, Run, judged, reversals, run_of
from bench.planner.random_loads import EACH, WORKERS, Requests, scaled
from bench.planner.scenarios import LEADS, SCENARIOS, STEADY_LOADS, TRUTH, Synthetic
from bench.rows import Row, row
from pointsman.api.v1alpha1.plannerpolicy import PlannerPolicySpec
from pointsman.planner.core.types import Policy
from pointsman.planner.performance_tables import table_names
from pointsman.planner.policies import planner_policy
from pointsman.planner.shipped_engines import shipped_engine
from pointsman.planner.simulator.baselines.layouts import ALL_REMOTE
from pointsman.planner.simulator.baselines.pointsman import ours
from pointsman.planner.simulator.baselines.static import static
from pointsman.planner.simulator.simulate import simulate
from pointsman.planner.simulator.types import Result, Simulation, Trace, Truth

ANY_ENGINE: Final = "constant load on random engine"
HOUR: Final = "constant hour"
ENGINES: Final = 20
HOURS: Final = 30
ALL_GPUS: Final = "all GPUs"
SECONDS: Final = 900
LEAST_WORKERS: Final = 4
HOUR_S: Final = 3600.0
HOUR_SEEDS: Final = 1000  # beyond those of all other loads
SETTLED_S: Final = 300.0  # what is started for another layout than the first serves by then
MOST_KAPPA: Final = 2.0  # times as slow as the table, or as fast
REACHED_BY: Final = 0.002  # the best of ``AMPLE`` has that much more than the goal
AMPLE: Final = ((8, 8), (11, 5), (5, 11))
GOALS: Final = (0.8, 0.9, 0.95, 0.99)
MOST_DRAWN: Final = 20


@dataclass(frozen=True)
class Drawn:
    """A constant load and the service it comes to."""

    engine: str
    requests: Requests
    trace: Trace
    simulation: Simulation
    policy: Policy

    @property
    def goal(self) -> float:
        """The share of requests that the policy asks for."""
        return self.policy.objectives.attainment


@cache
def drawn(seed: int) -> tuple[Drawn, str, Result]:
    """(what the seed makes, the layout of ``AMPLE`` that serves most, what that gave): the first that can be kept."""
    draw = np.random.default_rng([seed, ENGINES])
    for _ in range(MOST_DRAWN):
        made = _drawn(draw, seed)
        if made.simulation.prefill_workers + made.simulation.decode_workers < LEAST_WORKERS:
            continue
        layouts = {f"{p}P{d}D": _fixed(made, p, d) for p, d in AMPLE}
        layout, best = max(layouts.items(), key=lambda each: settled(each[1]))
        if settled(best) >= made.goal + REACHED_BY:
            return made, layout, best
    raise RuntimeError(f"seed {seed}: none of {MOST_DRAWN} loads can be served within its objectives")


def settled(result: Result) -> float:
    """The share of the requests within objectives that came when starts had ended."""
    return float(result.met[result.arrival_s >= SETTLED_S].mean())


def _fixed(made: Drawn, prefill: int, decode: int) -> Result:
    layout = replace(made.simulation, prefill_workers=prefill, decode_workers=decode, routing=ALL_REMOTE)
    return simulate(made.trace, layout, made.policy, static())


def _drawn(draw: np.random.Generator, seed: int) -> Drawn:
    name = str(draw.choice(table_names()))
    model, gpu, backend, tensor_parallel = name.split()
    engine = shipped_engine(model, gpu, backend, int(tensor_parallel.removeprefix("tp")))
    prefill_kappa, decode_kappa = np.exp(draw.uniform(-math.log(MOST_KAPPA), math.log(MOST_KAPPA), 2)).tolist()
    prompt, output = (math.exp(draw.uniform(math.log(low), math.log(high))) for low, high in ((200, 12e3), (20, 800)))
    spreads = float(draw.choice([0.05, 0.3, 0.8])), float(draw.choice([0.05, 0.3, 0.8]))
    requests = Requests(round(prompt), round(output), *spreads)
    alone_ms = prefill_kappa * engine.performance.prefill_ms(prompt * (1 + spreads[0]), 0)
    step_ms = decode_kappa * engine.performance.decode_step_ms(16, 16 * (prompt + output / 2))
    spec = PlannerPolicySpec.model_validate(
        {
            "objectives": {
                "ttftMs": round(max(300, alone_ms * draw.uniform(2.5, 8))),
                "tpotMs": round(step_ms * draw.uniform(1.3, 2.5), 1),
                "attainment": float(draw.choice(GOALS)),
            },
            "budget": {"maxGpus": WORKERS * engine.gpus},
        }
    )
    policy = planner_policy(spec, prefill=EACH, decode=EACH)
    truth = Truth(prefill_kappa, decode_kappa, TRUTH.noise_sigma)
    simulation = Simulation(engine, 2, 2, truth=truth, leads=LEADS, seed=seed)
    trace, (p, d) = scaled(draw, np.ones(SECONDS), requests, simulation, policy, workers=draw.uniform(4, 11))
    what = f"{name}, κ {prefill_kappa:.2f} and {decode_kappa:.2f}"
    return Drawn(what, requests, trace, replace(simulation, prefill_workers=p, decode_workers=d), policy)


def seeds_of(scenario: str) -> Sequence[int]:
    """All there are of one of the two."""
    return range(ENGINES if scenario == ANY_ENGINE else HOURS)


def cases(scenario: str, seed: int) -> Iterator[Measurement]:
    """Ours, and of a random engine a fixed layout of all GPUs too."""
    if scenario == HOUR:
        yield OURS, lambda: _hour(seed)
        return
    yield OURS, lambda: _ours(seed)
    yield ALL_GPUS, lambda: _ample(seed)


def _ours(seed: int) -> Run:
    made, _, _ = drawn(seed)
    result = simulate(made.trace, made.simulation, made.policy, ours())
    last = result.timeline[-1]
    requests, objectives = made.requests, made.policy.objectives
    note = (
        f"{made.engine}; {len(made.trace) / SECONDS:.2f} requests/s of {requests.prompt_tokens:g}+"
        f"{requests.output_tokens:g} tokens; TTFT {objectives.ttft_ms:g} ms, TPOT {objectives.tpot_ms:g} ms; "
        f"{made.simulation.prefill_workers}P{made.simulation.decode_workers}D, at the end "
        f"{last.prefill_active}P{last.decode_active}D"
    )
    run = run_of(ANY_ENGINE, seed, OURS, result, note)
    return replace(run, attainment=round(settled(result), 4), goal=made.goal)


def _ample(seed: int) -> Run:
    _, layout, result = drawn(seed)
    return replace(run_of(ANY_ENGINE, seed, ALL_GPUS, result, layout), attainment=round(settled(result), 4))


def _hour(seed: int) -> Run:
    gpu, rate, prompt_tokens, prefill, decode = STEADY_LOADS[seed % len(STEADY_LOADS)]
    scenario = replace(SCENARIOS["step"], gpu=gpu, layout=(prefill, decode))
    shape = f"steady:rate={rate:g},prompt_tokens={prompt_tokens:g},duration_s={HOUR_S:g}"
    trace, simulation = Synthetic(shape)(HOUR_SEEDS + seed), scenario.simulation(HOUR_SEEDS + seed)
    result = simulate(trace, simulation, scenario.policy(), ours())
    note = f"{gpu}, {rate} requests/s of {prompt_tokens} tokens, {prefill}P{decode}D at first"
    return run_of(HOUR, seed, OURS, result, note)


# --- rows ---


def rows(runs: Sequence[Run]) -> Iterator[Row]:
    """Each engine's share beside its goal, how many keep it, and the reversals of all hours."""
    ample = {run.seed: run for run in runs if run.planner == ALL_GPUS}
    engines = [run for run in runs if run.scenario == ANY_ENGINE and run.planner == OURS and run.seed in ample]
    what = f"constant loads on {len(engines)} random engines"
    if engines:
        kept = float(sum(run.attainment >= (run.goal or 0.0) for run in engines))
        yield row(f"{what}: those that keep their goal", "", [kept], at_least=len(engines), command=COMMAND)
    for run in engines:
        fixed = ample[run.seed]
        name = f"{ANY_ENGINE} {run.seed}: share within objectives after 5 minutes"
        yield judged(name, [run], [fixed], peer_name=f"fixed {fixed.note}", at_least=run.goal)
    if engines:
        yield reversals(f"{what}: reversals", engines)
    hours = [run for run in runs if run.scenario == HOUR]
    if hours:
        yield reversals(f"{len(hours)} constant hours: reversals", hours)
        yield judged(f"{len(hours)} constant hours: share within objectives", hours, at_least=0.95)


def section(runs: Sequence[Run]) -> str:
    """Of the evaluation's page: a line for each engine, and one for each load of an hour."""
    engines = [run for run in runs if run.scenario == ANY_ENGINE and run.planner == OURS]
    hours: dict[str, list[Run]] = {}
    for run in runs:
        if run.scenario == HOUR:
            hours.setdefault(run.note, []).append(run)
    if not engines or not hours:
        return ""
    numbers = {"most_kappa": MOST_KAPPA, "least_workers": LEAST_WORKERS, "settled_minutes": SETTLED_S / 60}
    return render("constant-loads.md", engines=engines, hours=hours, **numbers)
