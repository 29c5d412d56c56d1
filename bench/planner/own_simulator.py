"""Our planner beside all others in our own simulator: ``make bench-planner``.

Every scenario and seed is one cell; all planners of a cell, ablations of ours among them, see the same trace, noise and
starts. Cells are written to ``bench/results/planner_cells.json`` as they are done (``--resume`` keeps those that are
there), and the rows made of them to ``bench/results/planner.json``.

    python -m bench.planner.own_simulator show step pointsman --seed 0     # one run, with its decisions
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import cache, partial
from typing import Any

import numpy as np

from bench.planner.cells import ABLATION, CAUSAL, ORACLE, OURS, STATIC, Run, by_planner, read_cells, write_cells
from bench.planner.evaluation_page import write_page
from bench.planner.scenarios import FAST, SCENARIOS, Scenario
from bench.rows import Row, row, write
from pointsman.planner.core.decide import decide
from pointsman.planner.core.performance import PerformanceModel
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
    WorkerRole,
)
from pointsman.planner.replay.generators import generate, named_shape
from pointsman.planner.simulator.baselines import PLANNERS, best_static, causal, clairvoyant
from pointsman.planner.simulator.baselines.arrow import arrow
from pointsman.planner.simulator.baselines.pointsman import PARTS, ours, without, without_calibration, without_table
from pointsman.planner.simulator.baselines.static import static
from pointsman.planner.simulator.simulate import simulate
from pointsman.planner.simulator.types import Faults, Planner, Result, Simulation, Trace

COMMAND = "make bench-planner"
SEEDS = (11, 12, 13)
OTHERS = ("hpa", "heteroscale", "tokenscale", "dynamo")
TARGET_ATTAINMENT = {"step": 0.97, "mixshift": 0.99, "burst": 0.85}
TOLD = ", told"  # after what was told beforehand
FAILING = "20 % of starts and switches fail"
BELOW_CAUSAL = 0.03  # of requests: less is as good as what can be had without foresight
GATEWAYS_PART = "flow control"  # which the planners beside ours do not have: left out of every scenario
ABLATED = ("step", "mixshift", "burst", "ramp", "moon_conv")
EQUAL_GPU_HOURS = 1.02  # what still counts as not dearer than ours


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cells that are asked for and write the rows of all there are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command")
    one = commands.add_parser("show", help="one run, with its decisions")
    one.add_argument("scenario", choices=[*SCENARIOS, *FAST])
    one.add_argument("planner", choices=[*PLANNERS, STATIC, ORACLE, CAUSAL, *(f"without {part}" for part in PARTS)])
    one.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="scenarios, separated by commas")
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)))
    parser.add_argument("--resume", action="store_true", help="keep the cells that were measured before")
    parser.add_argument("--ours", action="store_true", help="run only ours again, beside the others' earlier runs")
    parser.add_argument("--rows", action="store_true", help="only make the rows again")
    asked = parser.parse_args(arguments)
    if asked.command == "show":
        show({**SCENARIOS, **FAST}[asked.scenario], asked.planner, asked.seed)
        return 0
    done = read_cells() if asked.resume or asked.rows or asked.only or asked.ours else []
    names = asked.only.split(",") if asked.only else ["steady", *SCENARIOS, *FAST, "robust"]
    for name in names if not asked.rows else ():
        for seed in map(int, asked.seeds.split(",")):
            for planner, measure in cell(name, seed):
                key = (name, seed, planner)
                measured = any((run.scenario, run.seed, run.planner) == key for run in done)
                if measured and (asked.resume or (asked.ours and not _is_ours(name, planner))):
                    continue
                began = time.perf_counter()
                run = measure()
                print(f"{time.perf_counter() - began:6.1f} s {run}", flush=True)
                done = [other for other in done if (other.scenario, other.seed, other.planner) != key]
                done.append(run)
                write_cells(done)
    write("planner", [*rows(done), *speed_rows()])
    print(f"wrote {write_page(done)}")
    return 0


# --- cells ---


Measurement = tuple[str, Callable[[], Run]]
"""Whose run it is, and how to get it."""


def cell(name: str, seed: int) -> Iterator[Measurement]:
    """All planners of one scenario and seed."""
    if name == "robust":
        yield from _robust(seed)
        return
    if name == "steady":
        yield OURS, lambda: _steady(seed)
        return
    scenario = {**SCENARIOS, **FAST}[name]
    trace, simulation, policy = scenario.trace(seed), scenario.simulation(seed), scenario.policy()

    def of(planner: Planner, begins: Simulation = simulation, note: str = "") -> Measurement:
        return planner.name, lambda: _run(name, seed, planner.name, simulate(trace, begins, policy, planner), note)

    @cache
    def fixed() -> best_static.Static:
        return best_static.search(trace, simulation, policy)

    def arrow_like() -> Run:
        # It cannot scale: it gets the GPUs of the best fixed layout.
        begins = replace(simulation, prefill_workers=fixed().prefill, decode_workers=fixed().decode)
        return of(arrow(), begins)[1]()

    yield of(ours())
    yield of(without(GATEWAYS_PART))
    yield CAUSAL, lambda: _run(name, seed, CAUSAL, causal.search(trace, simulation, policy))
    if name in FAST:
        return
    yield STATIC, lambda: _run(name, seed, STATIC, fixed().result, f"{fixed().prefill}P{fixed().decode}D")
    yield arrow().name, arrow_like
    for other in OTHERS:
        yield of(PLANNERS[other]())
    yield of(static(), note="the first layout")
    yield (
        ORACLE,
        lambda: bound(
            _run(name, seed, ORACLE, clairvoyant.search(trace, simulation, policy)),
            _run(name, seed, STATIC, fixed().result, f"{fixed().prefill}P{fixed().decode}D"),
        ),
    )
    if name in ABLATED:
        parts = (without(part) for part in PARTS if part != GATEWAYS_PART)
        for planner in (*parts, without_calibration(), without_table()):
            yield of(planner)


def bound(schedule: Run, fixed: Run, attainment: float = 0.95) -> Run:
    """Who knows the trace also knows when no schedule is better than the best fixed layout."""
    enough = [run for run in (schedule, fixed) if run.attainment >= attainment]
    best = min(enough, key=lambda run: run.gpu_hours) if enough else max(schedule, fixed, key=lambda r: r.attainment)
    return best if best is schedule else replace(fixed, planner=ORACLE, note=f"no schedule is better than {fixed.note}")


def _is_ours(scenario: str, planner: str) -> bool:
    return planner.startswith(OURS) or scenario in ("robust", "steady")


def _robust(seed: int) -> Iterator[Measurement]:
    """Ours on the step with what goes wrong, beside the same without."""
    scenario = SCENARIOS["step"]
    plain = scenario.simulation(seed)
    faults = {
        "nothing": Faults(),
        "5 % of scrapes lost": Faults(metric_dropout_share=0.05),
        "60 s outage of all metrics": Faults(metric_outages_s=((310.0, 370.0),)),
        "metrics 10 s late": Faults(metric_delay_s=10.0),
        FAILING: Faults(start_failure_share=0.2, switch_failure_share=0.2),
        "a crash every two worker hours": Faults(crashes_per_worker_hour=0.5),
    }
    changed = {what: replace(plain, faults=fault) for what, fault in faults.items()}
    for kappa in (0.7, 1.0, 1.3):
        truth = replace(plain.truth, prefill_kappa=kappa, decode_kappa=kappa)
        changed[f"engine κ {kappa}"] = replace(plain, truth=truth)
    policies: dict[str, Policy] = {}
    for start_s in (30.0, 300.0):
        what = f"start-up {start_s:.0f} s"
        changed[what] = changed[what + TOLD] = replace(plain, leads=replace(plain.leads, start_s=start_s))
        policies[what + TOLD] = replace(scenario, told_start_s=start_s).policy()

    def measured(what: str) -> Run:
        policy = policies.get(what, scenario.policy())
        return _run("robust", seed, what, simulate(scenario.trace(seed), changed[what], policy, ours()))

    for what in changed:
        yield what, partial(measured, what)
    reference = f"{CAUSAL}, {FAILING}"
    yield (
        reference,
        lambda: _run(
            "robust", seed, reference, causal.search(scenario.trace(seed), changed[FAILING], scenario.policy())
        ),
    )


def _steady(seed: int) -> Run:
    """Constant load for half an hour: nothing should be moved to and fro."""
    scenario = SCENARIOS["step"]
    trace = generate(named_shape("steady:rate=8,prompt_tokens=4000,duration_s=1800"), seed)
    simulation = replace(scenario.simulation(seed), prefill_workers=4, decode_workers=4)
    result = simulate(trace, simulation, scenario.policy(), ours())
    within_s = 2 * simulation.leads.start_s
    switched = sorted(t.began_s for t in result.transitions if t.kind == "switch")
    most = max((sum(at <= other < at + 600 for other in switched) for at in switched), default=0)
    run = _run("steady", seed, OURS, result, f"most switches in 10 minutes: {most}")
    return replace(run, reversals=result.reversals(within_s), switches=most)


def _run(scenario: str, seed: int, planner: str, result: Result, note: str = "") -> Run:
    return Run(
        scenario=scenario,
        seed=seed,
        planner=planner,
        attainment=round(result.attainment, 4),
        gpu_hours=round(result.gpu_hours, 4),
        goodput_per_gpu_hour=round(result.goodput_per_gpu_hour, 1),
        ttft_p99_s=round(float(np.nanquantile(result.ttft_s, 0.99)), 3),
        tpot_p99_ms=round(float(np.nanquantile(result.tpot_s, 0.99)) * 1000, 2),
        switches=result.switches,
        reversals=result.reversals(),
        peak_gpus=result.peak_gpus,
        note=note,
    )


# --- rows ---


def rows(runs: Sequence[Run]) -> Iterator[Row]:
    """The design's table from the cells."""
    for name in SCENARIOS:
        found = by_planner(runs, name)
        if not {OURS, STATIC, ORACLE} <= found.keys():
            continue
        mine, fixed, oracle = found[OURS], found[STATIC], found[ORACLE]
        yield row(
            f"{name}: share of requests within objectives",
            "",
            [run.attainment for run in mine],
            peer=[run.attainment for run in fixed],
            peer_name=f"best static of the search, {statistics.median(r.gpu_hours for r in fixed):.2f} GPU-hours",
            at_least=TARGET_ATTAINMENT.get(name, 0.95),
            command=COMMAND,
        )
        yield from _beside_causal(name, mine, found.get(CAUSAL, []))
        for peer, name_of_peer, least in ((oracle, ORACLE, 0.9), (fixed, "best static of the search", 0.99)):
            yield row(
                f"{name}: goodput per GPU-hour, {name_of_peer}",
                "requests",
                [run.goodput_per_gpu_hour for run in mine],
                peer=[run.goodput_per_gpu_hour for run in peer],
                peer_name=name_of_peer,
                of_ratio=True,
                at_least=least,
                command=COMMAND,
            )
        rival, values = _best_rival(found)
        if rival is not None:
            yield row(
                f"{name}: share within objectives, best causal planner that is not dearer",
                "",
                [run.attainment for run in mine],
                peer=values,
                peer_name=rival,
                of_ratio=True,
                at_least=1.0,
                command=COMMAND,
            )
        for planner, theirs in found.items():
            if planner.startswith(ABLATION):
                seeds = {run.seed for run in theirs}
                yield row(
                    f"{name}: share within objectives, ablation",
                    "",
                    [run.attainment for run in mine if run.seed in seeds],
                    peer=[run.attainment for run in theirs],
                    peer_name=f"{planner}, {statistics.median(r.gpu_hours for r in theirs):.2f} GPU-hours",
                    of_ratio=True,
                    at_least=1.0,
                    command=COMMAND,
                )
    for name in FAST:
        found = by_planner(runs, name)
        if OURS in found:
            target = TARGET_ATTAINMENT[name.split()[0]]
            shares = [run.attainment for run in found[OURS]]
            yield row(f"{name}: share of requests within objectives", "", shares, at_least=target, command=COMMAND)
            yield from _beside_causal(name, found[OURS], found.get(CAUSAL, []))
    robust = by_planner(runs, "robust")
    for what, faulty in robust.items():
        if what == "nothing" or what.endswith(TOLD) or what.startswith(CAUSAL):
            continue
        told = robust.get(what + TOLD)
        lost = [a.attainment - b.attainment for a, b in zip(told or robust["nothing"], faulty, strict=True)]
        # What a slow start costs anybody is no error of the planner's: what it does not know of it costs is.
        of, limit = (" to being told so", 0.03) if told else ("", 0.05)
        yield row(f"step, {what}: share within objectives lost{of}", "", lost, at_most=limit, command=COMMAND)
        yield from _beside_causal(f"step, {what}", faulty, robust.get(f"{CAUSAL}, {what}", []))
    steady = by_planner(runs, "steady").get(OURS)
    if steady is not None:
        moves = [float(run.reversals) for run in steady]
        yield row("constant load: reversals within twice the lead", "", moves, at_most=0, command=COMMAND)
        most = [float(run.switches) for run in steady]
        yield row("constant load: most switches in 10 minutes", "", most, at_most=6, command=COMMAND)


def _beside_causal(name: str, mine: Sequence[Run], reference: Sequence[Run]) -> Iterator[Row]:
    """Ours beside what is to be had without foresight, where that was measured."""
    if reference:
        shares = [run.attainment for run in reference]
        hours = statistics.median(run.gpu_hours for run in reference)
        yield row(
            f"{name}: share within objectives, causal reference",
            "",
            [run.attainment for run in mine],
            peer=shares,
            peer_name=f"the best of {causal.TRIED} that know the present exactly, {hours:.2f} GPU-hours",
            at_least=round(statistics.median(shares) - BELOW_CAUSAL, 4),
            command=COMMAND,
        )


def _best_rival(found: dict[str, list[Run]]) -> tuple[str | None, list[float]]:
    """Of the causal planners whose mean GPU-hours are ours at most, the one that serves most requests well."""
    limit = EQUAL_GPU_HOURS * statistics.mean(run.gpu_hours for run in found[OURS])
    rivals = {
        name: theirs
        for name, theirs in found.items()
        if name not in (OURS, STATIC, ORACLE, CAUSAL, "static")
        and not name.startswith(ABLATION)
        and statistics.mean(run.gpu_hours for run in theirs) <= limit
    }
    if not rivals:
        return None, []
    best = max(rivals, key=lambda name: statistics.mean(run.attainment for run in rivals[name]))
    hours = statistics.median(run.gpu_hours for run in rivals[best])
    return f"{best}, {hours:.2f} GPU-hours", [run.attainment for run in rivals[best]]


# --- speed ---


def speed_rows() -> Iterator[Row]:
    """How fast simulator and decision are, in seconds of one core: what others do on the computer is not counted."""
    simulated = [requests_per_s() for _ in range(3)]
    yield row("simulator, 16 workers, per second of one core", "requests/s", simulated, at_least=5000, command=COMMAND)
    for workers, most_ms in ((64, 5.0), (1000, 50.0)):
        took = [decide_p99_ms(workers) for _ in range(3)]
        yield row(f"decide(), p99 at {workers} workers, time of one core", "ms", took, at_most=most_ms, command=COMMAND)


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


def decide_p99_ms(workers: int, ticks: int = 200) -> float:
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
        prefill, decode = observation.committed(WorkerRole.PREFILL), observation.committed(WorkerRole.DECODE)
        return state, _nothing(observation, prefill, decode), NextTick(policy.interval_s)

    trace = generate(named_shape("steady:rate=40,prompt_tokens=4000,duration_s=60"), 1)
    simulate(trace, Simulation(scenario.engine(), 8, 8), policy, Planner("keep", keep, lambda: None))
    many = tuple(
        Worker(f"worker-{i:04}", WorkerRole.PREFILL if i < half else WorkerRole.DECODE, WorkerCondition.ACTIVE)
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


# --- one run ---


def show(scenario: Scenario, planner: str, seed: int) -> None:
    """Print one run: its figures, its layout decisions, and the workers over time."""
    trace, simulation, policy = scenario.trace(seed), scenario.simulation(seed), scenario.policy()
    makers: dict[str, Callable[[], Result]] = {
        STATIC: lambda: best_static.search(trace, simulation, policy).result,
        ORACLE: lambda: clairvoyant.search(trace, simulation, policy),
        CAUSAL: lambda: causal.search(trace, simulation, policy),
        **{f"without {part}": _runner(trace, simulation, policy, without(part)) for part in PARTS},
        **{name: _runner(trace, simulation, policy, make()) for name, make in PLANNERS.items()},
    }
    began = time.perf_counter()
    result = makers[planner]()
    took_s = time.perf_counter() - began
    for name, value in asdict(_run(scenario.name, seed, planner, result, f"{took_s:.1f} s")).items():
        print(f"{name:22} {value}")
    for record in result.decisions:
        if record.decision.changes_layout:
            decision = record.decision
            print(f"{record.at_s:7.1f} s {decision.reason} {decision.message} {record.refused}")
    met = result.met
    for before, after in zip(result.timeline[::16], result.timeline[16::16], strict=False):
        came = (result.arrival_s >= before.at_s) & (result.arrival_s < after.at_s)
        share = float(met[came].mean()) if came.any() else 1.0
        print(
            f"{before.at_s:7.1f} s  {before.prefill_active}P{before.decode_active}D starting {before.starting} "
            f"switching {before.switching} draining {before.draining} queue {before.prefill_queue} "
            f"decoding {before.decoding} KV {before.kv_usage:.0%} threshold {before.max_local_prefill_tokens} "
            f"arrived until the next line {int(came.sum())}, of them within objectives {share:.0%}"
        )


def _runner(trace: Trace, simulation: Simulation, policy: Policy, planner: Planner) -> Callable[[], Result]:
    return lambda: simulate(trace, simulation, policy, planner)


if __name__ == "__main__":
    sys.exit(main())
