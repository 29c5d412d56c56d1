"""Renders what the planner's benchmarks kept to ``docs/reports/planner-evaluation.md`` and its pictures."""

from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from bench import pages
from bench.pages import render, write, write_picture
from bench.planner import (
    constant_loads,
    fixed_gpus,
    fixed_gpus_page,
    forecast_accuracy,
    forecast_page,
    own_rows,
    robust,
    verdicts,
)
from bench.planner.cells import CAUSAL, ORACLE, OURS, STATIC, Run, by_planner, read_cells, table
from bench.planner.dynamo import figures
from bench.planner.dynamo import page as beside_dynamo
from bench.planner.robust import CHANGES, CHANGES_S, CHANGING, OUTAGE_S, STEP_S
from bench.planner.scenarios import FAST, FAST_START_S, LEADS, RETURNING, SCENARIOS, TRUTH
from bench.planner.sources import in_own_simulator
from pointsman.planner.core.types import Policy
from pointsman.planner.replay.axes import linear
from pointsman.planner.simulator.baselines.causal import TRIED


def write_page(runs: Sequence[Run]) -> Path:
    """The page, its pictures, and the table of six fixed GPUs in README.md.

    Raises NoReason, before anything but pictures is written, for a missed target that has no reason.
    """
    fixed = {name: found for name in fixed_gpus.LOADS if (found := by_planner(runs, name))}
    of_load = {name: by_planner(runs, name) for name in (*SCENARIOS, *FAST, *RETURNING)}
    shown = {name: of_load[name] for name in SCENARIOS if {OURS, STATIC, ORACLE} <= of_load[name].keys()}
    for name, found in shown.items():
        whole = {who: theirs for who, theirs in found.items() if "without" not in who}
        write_picture(f"planner-{name}.svg", scatter(whole))
    foretold, kept = forecast_accuracy.read_cells(), figures.kept_runs()
    beside, random = figures.cells(kept), figures.random_cells(kept)
    missed = [*own_rows.rows(runs), *own_rows.kept_speed_rows(), *figures.rows(kept), *forecast_accuracy.rows(foretold)]
    page = render(
        "planner-evaluation.md",
        table=lambda found, marks_best=True: "\n".join(table(found, marks_best=marks_best)),
        older=older(runs),
        fixed_gpus=fixed_gpus_page.section(fixed) if fixed else "",
        truth=TRUTH,
        leads=LEADS,
        tried=TRIED,
        scenarios=[(SCENARIOS[name], found, len(next(iter(found.values())))) for name, found in shown.items()],
        fast=[(name, of_load[name]) for name in FAST if of_load[name]],
        fast_start_s=FAST_START_S,
        returning=[(RETURNING[name], of_load[name]) for name in RETURNING if {OURS, CAUSAL} <= of_load[name].keys()],
        constant=constant_loads.section(runs),
        wrong=by_planner(runs, robust.ROBUST),
        before_step_s=STEP_S - OUTAGE_S[0],
        changing=CHANGING.name,
        changes=CHANGES,
        changes_s=CHANGES_S,
        default_start_s=Policy().start_s,
        forecast=forecast_page.section(foretold) if foretold else "",
        dynamo=beside_dynamo.section(beside, random),
        others_win="\n".join(verdicts.others_win({n: by_planner(runs, n) for n in (*fixed_gpus.LOADS, *SCENARIOS)})),
        dynamo_wins="\n".join(verdicts.dynamo_wins(beside)),
        random_wins=beside_dynamo.dynamo_wins(random),
        missed="\n".join(verdicts.missed(missed, verdicts.reasons())),
    )
    if foretold:
        write_picture(forecast_page.PICTURE, forecast_page.picture(foretold))
    if beside:
        write_picture(beside_dynamo.PICTURE, beside_dynamo.picture(beside))
    readme = pages.REPORTS.parents[1] / "README.md"
    if readme.exists():
        readme.write_text(fixed_gpus_page.in_readme(readme.read_text(), fixed))
    return write("planner-evaluation.md", page)


def older(runs: Sequence[Run]) -> list[str]:
    """The loads where ours was not measured again since the planner or the simulator changed."""
    ours = [run for run in runs if run.planner.startswith(OURS) or run.scenario == robust.ROBUST]
    return sorted({run.scenario for run in ours if robust.is_ours(run.planner) and run.sources != in_own_simulator()})


def scatter(found: dict[str, list[Run]]) -> str:
    """Share within objectives over GPU-hours: up and left is better. One mark a planner, at its means."""
    points = [
        (who, mean(run.gpu_hours for run in theirs), mean(run.attainment for run in theirs))
        for who, theirs in sorted(found.items(), key=lambda each: each[0] != OURS)
    ]
    return render("scatter.svg", points=points, axis=linear(max(hours for _, hours, _ in points)))


if __name__ == "__main__":
    print(f"wrote {write_page(read_cells())}")
