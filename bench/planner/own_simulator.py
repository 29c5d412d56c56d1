"""Our planner beside all others in our own simulator: ``make bench-planner``.

Every scenario and seed is one cell; all planners of a cell, ablations of ours among them, see the same trace, noise and
starts. Cells are written to ``bench/results/planner_cells.json.xz`` as they are done (``--resume`` keeps those that are
there), and the rows made of them to ``bench/results/planner.json``.

    python -m bench.planner.own_simulator show step pointsman --seed 0     # one run, with its decisions
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, replace
from functools import cache, partial

from bench.planner import constant_loads, fixed_gpus, robust, sight
from bench.planner.cells import (
    ABLATION,
    CAUSAL,
    ORACLE,
    OURS,
    STATIC,
    STEADY,
    Measurement,
    Run,
    read_cells,
    run_of,
    write_cells,
)  # fmt: skip
from bench.planner.evaluation_page import write_page
from bench.planner.own_rows import RESULT, kept_speed_rows, rows
from bench.planner.robust import ROBUST
from bench.planner.scenarios import FAST, RETURNING, SCENARIOS, STEADY_LOADS, STEADY_SEEDS, Scenario, steady
from bench.planner.sight import SIGHT, SIGHT_LARGE
from bench.planner.speed import speed_rows
from bench.rows import write
from pointsman.planner.simulator.baselines import PLANNERS, best_static, causal, clairvoyant
from pointsman.planner.simulator.baselines.arrow import arrow
from pointsman.planner.simulator.baselines.pointsman import PARTS, ours, without
from pointsman.planner.simulator.baselines.static import static
from pointsman.planner.simulator.simulate import simulate
from pointsman.planner.simulator.types import Planner, Result, Simulation

SEEDS = (11, 12, 13)
OTHERS = ("hpa", "heteroscale", "tokenscale", "dynamo")
GATEWAYS_PART = "flow control"  # which the planners beside ours do not have: left out of every scenario
ALL = {**SCENARIOS, **FAST, **RETURNING}
CONSTANT = (constant_loads.ANY_ENGINE, constant_loads.HOUR)
EVERYTHING = (*fixed_gpus.LOADS, STEADY, *ALL, ROBUST, SIGHT, SIGHT_LARGE, *CONSTANT)
CASES: dict[str, Callable[[str, int], Iterator[Measurement]]] = {
    ROBUST: lambda _, seed: robust.cases(seed),
    STEADY: lambda _, seed: iter([(OURS, lambda: _steady(seed))]),
    **dict.fromkeys((SIGHT, SIGHT_LARGE), sight.cases),
    **dict.fromkeys(CONSTANT, constant_loads.cases),
    **dict.fromkeys(fixed_gpus.LOADS, fixed_gpus.cases),
}
"""The planners of what is not one of ``ALL``, by name and seed."""
SLOWEST = ("moon_conv", "azure_conv", ROBUST)  # first, so that none is left alone at the end of several processes


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cells that are asked for and write the rows of all there are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command")
    one = commands.add_parser("show", help="one run, with its decisions")
    one.add_argument("scenario", choices=[*ALL])
    one.add_argument("planner", choices=[*PLANNERS, STATIC, ORACLE, CAUSAL, *(f"without {part}" for part in PARTS)])
    one.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="loads, separated by commas")
    parser.add_argument("--fixed", action="store_true", help="only the loads of six fixed GPUs, twelve minutes")
    parser.add_argument("--constant", action="store_true", help="only the constant loads, ten minutes")
    parser.add_argument("--seeds", help=f"instead of all, separated by commas; {SEEDS} but for constant loads")
    parser.add_argument("--resume", action="store_true", help="keep the cells that were measured before")
    parser.add_argument("--ours", action="store_true", help="run only ours again, beside the others' earlier runs")
    parser.add_argument("--rows", action="store_true", help="only make the rows again, of what is kept")
    parser.add_argument("--speed", action="store_true", help="measure speed and memory, also with --rows and --only")
    parser.add_argument("--jobs", type=int, default=1, help="processes that measure side by side")
    asked = parser.parse_args(arguments)
    if asked.command == "show":
        show(ALL[asked.scenario], asked.planner, asked.seed)
        return 0

    def keeps(run: Run) -> bool:
        return asked.resume or (asked.ours and not _is_ours(run.scenario, run.planner))

    chosen = asked.only.split(",") if asked.only else []
    chosen += [*fixed_gpus.LOADS] * asked.fixed + [*CONSTANT] * asked.constant
    done = read_cells() if asked.resume or asked.rows or chosen or asked.ours else []
    done = [run for run in done if not (asked.ours and _is_without_a_former_part(run.planner))]
    names = chosen or [*SLOWEST, *(name for name in EVERYTHING if name not in SLOWEST)]
    if unknown := sorted({*names} - {*EVERYTHING}):
        parser.error(f"--only: there is no {', '.join(unknown)}; known: {', '.join(EVERYTHING)}")
    if not asked.rows:
        pieces = [
            (name, seed, frozenset(run.planner for run in here if keeps(run)))
            for name in names
            for seed in (map(int, asked.seeds.split(",")) if asked.seeds else _seeds_of(name))
            for here in [[run for run in done if (run.scenario, run.seed) == (name, seed)]]
        ]  # fmt: skip
        for measured in _side_by_side(pieces, asked.jobs):
            new = {(run.scenario, run.seed, run.planner) for run in measured}
            done = [run for run in done if (run.scenario, run.seed, run.planner) not in new] + list(measured)
            write_cells(sorted(done, key=lambda run: (EVERYTHING.index(run.scenario), run.seed)))
    timed = asked.speed or not (asked.rows or chosen)
    write(RESULT, [*rows(done), *(speed_rows() if timed else kept_speed_rows())])
    print(f"wrote {write_page(done)}")
    return 0


Piece = tuple[str, int, frozenset[str]]
"""A load, a seed, and the planners that are not measured again."""


def _seeds_of(name: str) -> Sequence[int]:
    return constant_loads.seeds_of(name) if name in CONSTANT else SEEDS


def _side_by_side(pieces: Sequence[Piece], jobs: int) -> Iterator[Sequence[Run]]:
    """What is measured, as it is done; alone in this process, each run by itself."""
    if jobs == 1:
        for piece in pieces:
            yield from ([run] for run in _measured(piece))
        return
    with ProcessPoolExecutor(jobs) as processes:
        for ended in as_completed([processes.submit(_all_measured, piece) for piece in pieces]):
            yield ended.result()


def _all_measured(piece: Piece) -> list[Run]:
    return list(_measured(piece))


def _measured(piece: Piece) -> Iterator[Run]:
    name, seed, kept = piece
    for planner, measure in cell(name, seed):
        if planner not in kept:
            began = time.perf_counter()
            run = measure()
            print(f"{time.perf_counter() - began:6.1f} s {run}", flush=True)
            yield run


# --- cells ---


def cell(name: str, seed: int) -> Iterator[Measurement]:
    """All planners of one scenario and seed."""
    if name in CASES:
        yield from CASES[name](name, seed)
        return
    scenario = ALL[name]
    trace, simulation, policy = scenario.trace(seed), scenario.simulation(seed), scenario.policy()

    def of(planner: Planner, begins: Simulation = simulation, note: str = "") -> Measurement:
        return planner.name, lambda: run_of(name, seed, planner.name, simulate(trace, begins, policy, planner), note)

    @cache
    def fixed() -> best_static.Static:
        return best_static.search(trace, simulation, policy)

    def best_fixed() -> Run:
        return run_of(name, seed, STATIC, fixed().result, f"{fixed().prefill}P{fixed().decode}D")

    def arrow_like() -> Run:
        # It cannot scale: it gets the GPUs of the best fixed layout.
        begins = replace(simulation, prefill_workers=fixed().prefill, decode_workers=fixed().decode)
        return of(arrow(), begins)[1]()

    def oracle() -> Run:
        return bound(run_of(name, seed, ORACLE, clairvoyant.search(trace, simulation, policy)), best_fixed())

    yield of(ours())
    yield of(without(GATEWAYS_PART))
    yield CAUSAL, lambda: run_of(name, seed, CAUSAL, causal.search(trace, simulation, policy))
    if name in RETURNING:
        yield from (of(planner) for planner in ablations())
    if name not in SCENARIOS:
        return
    yield STATIC, best_fixed
    yield arrow().name, arrow_like
    for other in OTHERS:
        yield of(PLANNERS[other]())
    yield of(static(), note="the first layout")
    yield ORACLE, oracle
    yield from (of(planner) for planner in ablations())


def ablations() -> Iterator[Planner]:
    """Ours without each part, but for the one that is left out everywhere."""
    return (without(part) for part in PARTS if part != GATEWAYS_PART)


def bound(schedule: Run, fixed: Run, attainment: float = 0.95) -> Run:
    """Who knows the trace also knows when no schedule is better than the best fixed layout."""
    enough = [run for run in (schedule, fixed) if run.attainment >= attainment]
    best = min(enough, key=lambda run: run.gpu_hours) if enough else max(schedule, fixed, key=lambda r: r.attainment)
    return best if best is schedule else replace(fixed, planner=ORACLE, note=f"no schedule is better than {fixed.note}")


def _is_ours(scenario: str, planner: str) -> bool:
    return robust.is_ours(planner) if scenario == ROBUST else planner.startswith(OURS)


def _is_without_a_former_part(planner: str) -> bool:
    """Whether it is an ablation of a part that Pointsman no longer has: nothing can measure it again."""
    return planner.startswith(ABLATION) and planner.removeprefix(f"{ABLATION} ") not in PARTS


def _steady(seed: int) -> Run:
    """Constant loads for half an hour each, several of them between two layouts: nothing should be moved to and fro.

    The least attainment, the sums of GPU-hours and reversals, and the most switches of any.
    """
    runs = []
    for gpu, rate, prompt_tokens, prefill, decode in STEADY_LOADS:
        scenario = replace(SCENARIOS["step"], gpu=gpu)
        trace = steady(rate, prompt_tokens)(STEADY_SEEDS + seed)
        simulation = replace(scenario.simulation(STEADY_SEEDS + seed), prefill_workers=prefill, decode_workers=decode)
        result = simulate(trace, simulation, scenario.policy(), ours())
        switched = sorted(t.began_s for t in result.transitions if t.kind == "switch")
        most = max((sum(at <= other < at + 600 for other in switched) for at in switched), default=0)
        run = run_of(STEADY, seed, OURS, result)
        runs.append(replace(run, reversals=result.reversals(2 * simulation.leads.start_s), switches=most))
    moved = [f"{load[0]} {load[1]}/s: {run.reversals}" for load, run in zip(STEADY_LOADS, runs, strict=True)]
    worst = min(runs, key=lambda run: run.attainment)
    return replace(
        worst,
        gpu_hours=round(sum(run.gpu_hours for run in runs), 4),
        switches=max(run.switches for run in runs),
        reversals=sum(run.reversals for run in runs),
        note="; ".join(moved),
    )


# --- one run ---


def show(scenario: Scenario, planner: str, seed: int) -> None:
    """Print one run: its figures, its layout decisions, and the workers over time."""
    trace, simulation, policy = scenario.trace(seed), scenario.simulation(seed), scenario.policy()

    def run(made: Planner) -> Result:
        return simulate(trace, simulation, policy, made)

    makers: dict[str, Callable[[], Result]] = {
        STATIC: lambda: best_static.search(trace, simulation, policy).result,
        ORACLE: lambda: clairvoyant.search(trace, simulation, policy),
        CAUSAL: lambda: causal.search(trace, simulation, policy),
        **{f"without {part}": partial(run, without(part)) for part in PARTS},
        **{name: partial(run, make()) for name, make in PLANNERS.items()},
    }
    began = time.perf_counter()
    result = makers[planner]()
    took_s = time.perf_counter() - began
    for name, value in asdict(run_of(scenario.name, seed, planner, result, f"{took_s:.1f} s")).items():
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


if __name__ == "__main__":
    sys.exit(main())
