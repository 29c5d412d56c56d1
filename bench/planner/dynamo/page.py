"""Dynamo's part of ``docs/reports/planner-evaluation.md``: a table over all cells, one a cell, and a picture of all."""

import statistics
from collections.abc import Callable, Sequence
from html import escape

from bench.planner.dynamo import random_results
from bench.planner.dynamo.configurations import CONFIGURATIONS, DOCUMENTED
from bench.planner.dynamo.figures import EQUAL, GOOD_ENOUGH, PULSES, WORKLOADS, Cell, Figure
from bench.planner.sources import in_dynosim

PICTURE = "planner-beside-dynamo.svg"
LOADS = {
    "step": "3 to 14 requests/s of 4000+250 and back, unannounced",
    "ramp": "3 to 18 requests/s over 10 minutes, back in 5",
    "burst": "1.6 requests/s, 16 for one minute",
    "mixshift": "7.5 requests/s of 4000+100, then 15 of 500+600",
    "azure_conv": "Azure's conversations of 2023, two copies shifted by 10 minutes",
    "moon_conv": "Mooncake's long conversations with shared prefixes, an hour",
    "pulses": "1.5 requests/s, 12 for half a minute every two and a half, half an hour",
    "pulses_hour": "the same for an hour",
    "pulses_uneven": "1.5 requests/s, 12 for 15 to 40 s after pauses of one to three minutes, an hour",
}
HEAD = f"""\
## Beside Dynamo's own planner, in NVIDIA's simulator

Measured by `make bench-planner-dynamo`; runs in `bench/results/planner_dynamo_runs.json`, targets and whether they are
met in [benchmarks.md](benchmarks.md). Here the peer is not a reading of ours but the planner of `ai-dynamo` 1.6.1 as
released, and the world is NVIDIA's discrete-event simulator (DynoSim, in `ai-dynamo-runtime` 1.6.1), with its built-in
polynomial as engine. Pointsman is the production `decide()` with its shipped constants.

* **The same for all**: trace, first layout, at most 16 GPUs, and what is known before the run: objectives, limits of
  the engine, how long a worker starts, and 60 forward passes of each role, measured with a fixed layout (Pointsman
  takes them as it takes a profile of a live service: as a table, corrected by what it sees).
* **Passes**: this engine's prefill time is of a whole pass, whatever prompts are in it, so Pointsman prices full passes
  here (`max_batch_tokens`); live, prefills are measured by the prompt and that is not used.
* **Only replicas**: this simulator has no role switch and no local prefill, so sizing alone is compared.
* **Goodput**: the share of all requests that met TTFT and mean ITL together. **Cost**: GPU-hours (starting and
  draining workers count) relative to the **clairvoyant**'s, the cheapest run with {GOOD_ENOUGH:g} goodput among
  schedules made with the trace in hand and fixed layouts. Achieved, not proven best.
* **causal** is the best of six reactive schedules that know the true demand of this moment, nothing of the future, and
  pay the start. **fixed**: the cheapest layout with {GOOD_ENOUGH:g} goodput, by search. Nobody can have either in life.
* **Dynamo, documented**: the best of {len(DOCUMENTED)} configurations its documentation leads to, chosen for each cell
  afterwards. **Best of all**: of these and {len(CONFIGURATIONS) - len(DOCUMENTED)} that somebody would try who knows
  its code (objectives made stricter by hand than they are, short intervals). `sla` runs use the regression model of
  `aiconfigurator-core` 0.12.0, the public wheel that comes nearest to what that release declares.
* **Seeds**: 0 to 3 were looked at while the planner was made; they count only where no other ran, and constants were
  chosen on others that are not here (6 to 8). What is kept of seed 0 beside Pointsman is from an earlier run with the
  same trace files and wheels. Azure's trace has no seed. How often Pointsman ran in a cell is in
  [benchmarks.md](benchmarks.md).
* Runs are not reproducible to the bit: goodput that differs by less than {EQUAL:g} is equal.
"""
PULSES_HEAD = f"""\
### Bursts shorter than a start

What is started when such a burst is seen is too late; what helps is what was kept, or started before. Goodput and
GPU-hours; **as good**: the cheapest layout with Pointsman's goodput among all that are smaller than the first that
serves everybody, **all**: the cheapest with {GOOD_ENOUGH:g}. Both know what comes, Pointsman has to lose a burst or two
first. No constant was chosen on these seeds.
"""
Side = Callable[[Cell], Figure | None]
SIDES: dict[str, Side] = {
    "Pointsman": lambda cell: cell.ours,
    "Dynamo, documented": lambda cell: cell.documented,
    "Dynamo, best of all": lambda cell: cell.tuned,
    "causal": lambda cell: cell.causal,
    "fixed": lambda cell: cell.fixed,
    "clairvoyant": lambda cell: cell.clairvoyant,
}


def section(cells: Sequence[Cell]) -> list[str]:
    """The lines of it; nothing if nothing is measured."""
    whole = [cell for cell in cells if cell.workload in WORKLOADS]
    if not whole:
        return []
    return [
        HEAD,
        *_older(cells),
        f"![All cells](pictures/{PICTURE})",
        "",
        "Dots: Dynamo's configurations (filled: documented), Pointsman, causal, fixed; up and left is better, "
        "1× is the clairvoyant's cost.",
        "",
        *_means(whole),
        "",
        "Goodput / cost of each cell, means and the range of several runs; bold where Pointsman has at least the "
        "goodput of Dynamo's best of all for at most its GPU-hours.",
        "",
        *_table(whole),
        "",
        *_configurations(whole),
        "",
        *_pulses([cell for cell in cells if cell.workload in PULSES]),
        *random_results.section(),
    ]


def _older(cells: Sequence[Cell]) -> list[str]:
    """What must be said while ours was not measured again since the planner changed; nothing if it was."""
    older = [cell.name for cell in cells if cell.sources != {in_dynosim()}]
    if not older:
        return []
    which = "all cells" if len(older) == len(cells) else ", ".join(older)
    return [
        f"**Pointsman's figures are of an earlier state of its planner** in {which}: its sources have changed since "
        'they were measured (`make bench-planner-dynamo ARGS="--parts ours"` measures them again).',
        "",
    ]


def _pulses(cells: Sequence[Cell]) -> list[str]:
    """Bursts that no start is quick enough for: goodput and GPU-hours beside Dynamo and layouts that never change."""
    if not cells:
        return []
    lines = [
        PULSES_HEAD,
        "| cell | load | seeds | Pointsman | Dynamo, documented | Dynamo, best of all | fixed, as good | fixed, all |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for cell in cells:
        dynamo = [_plain(each) for each in (cell.documented, cell.tuned)] if cell.dynamo else ["not run", "not run"]
        if cell.dynamo and cell.dynamo_seeds != cell.seeds:
            only = ", ".join(map(str, cell.dynamo_seeds))
            dynamo = [f"{each} (seed {only}; Pointsman there {_plain(cell.beside_dynamo)})" for each in dynamo]
        values = [_plain(cell.ours), *dynamo, _plain(cell.equal), _plain(cell.fixed)]
        seeds = ", ".join(map(str, cell.seeds))
        lines.append(f"| {cell.name} | {LOADS[cell.workload]} | {seeds} | {' | '.join(values)} |")
    return [*lines, ""]


def _plain(figure: Figure | None) -> str:
    """Goodput and GPU-hours."""
    if figure is None:
        return "not run"
    return f"{_ranged(figure.goodput, figure.goodput_range, '.3f')} / {_hours(figure)}"


def _hours(figure: Figure) -> str:
    return _ranged(figure.gpu_hours, figure.gpu_hours_range, ".2f")


def _ranged(mean: float, over: tuple[float, float], form: str) -> str:
    middle, least, most = (f"{value:{form}}" for value in (mean, *over))
    return middle if least == most else f"{middle} ({least}–{most})"


def _means(cells: Sequence[Cell]) -> list[str]:
    """Only of those that have a figure in every cell."""
    lines = [f"| mean of {len(cells)} cells | goodput | worst cell | cost (geometric mean) |", "|---|---|---|---|"]
    for name, side in SIDES.items():
        known = [(cell, figure) for cell in cells if (figure := side(cell)) is not None]
        if len(known) == len(cells):
            lines.append(f"| {name} | {_over_cells(known)} |")
    return lines


def _over_cells(figures: Sequence[tuple[Cell, Figure]]) -> str:
    goodput = [figure.goodput for _, figure in figures]
    cost = statistics.geometric_mean(cell.cost(figure) for cell, figure in figures)
    return f"{statistics.mean(goodput):.3f} | {min(goodput):.3f} | {cost:.2f}×"


def _table(cells: Sequence[Cell]) -> list[str]:
    lines = [f"| cell | load | seeds | {' | '.join(SIDES)} |", f"|---|---|---|{'---|' * len(SIDES)}"]
    for cell in cells:
        found = [side(cell) for side in SIDES.values()]
        values = ["not run" if figure is None else _value(cell, figure) for figure in found]
        if cell.ours.goodput >= cell.tuned.goodput and cell.ours.at_most_as_dear(cell.tuned):
            values[0] = f"**{values[0]}**"
        seeds = ", ".join(map(str, cell.seeds))
        lines.append(f"| {cell.name} | {LOADS[cell.workload]} | {seeds} | {' | '.join(values)} |")
    return lines


def _value(cell: Cell, figure: Figure) -> str:
    goodput = _ranged(figure.goodput, figure.goodput_range, ".3f")
    least, most = (hours / cell.clairvoyant.gpu_hours for hours in figure.gpu_hours_range)
    return f"{goodput} / {_ranged(cell.cost(figure), (least, most), '.2f')}×"


def _configurations(cells: Sequence[Cell]) -> list[str]:
    """Each of Dynamo's configurations over all cells: one must be chosen beforehand."""
    lines = [
        f"| Dynamo's configuration, mean of {len(cells)} cells | documented | goodput | worst cell | cost |",
        "|---|---|---|---|---|",
    ]
    for name in CONFIGURATIONS:
        documented = "yes" if name in DOCUMENTED else ""
        lines.append(f"| {name} | {documented} | {_over_cells([(cell, cell.dynamo[name]) for cell in cells])} |")
    return lines


# --- picture ---

_WIDTH, _HEIGHT, _COLUMNS, _TOP = 236, 196, 4, 66
_PLOT_WIDTH, _PLOT_HEIGHT, _LEFT = 175, 120, 42
_MOST_COST = 2.5
_OURS, _PEER, _INK = "#2f6fb2", "#c4682d", "#57606a"


def picture(cells: Sequence[Cell]) -> str:
    """One small plot a cell: goodput over cost."""
    whole = [cell for cell in cells if cell.workload in WORKLOADS]
    rows = -(-len(whole) // _COLUMNS)
    width, height = _COLUMNS * _WIDTH, _TOP + rows * _HEIGHT
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="system-ui, sans-serif" font-size="11" role="img" '
        'aria-label="Goodput over cost of each planner, one plot a load and start-up time">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    legend = (
        ("Pointsman", _OURS, True), ("Dynamo, documented", _PEER, True), ("Dynamo, tuned by hand", _PEER, False),
        ("causal", _INK, True), ("fixed", _INK, False), ("clairvoyant", "#000000", True),
    )  # fmt: skip
    for number, (name, colour, filled) in enumerate(legend):
        x = 20 + number * 157
        lines += [_dot(x, 18, colour, filled, 5, name), f'<text x="{x + 10}" y="22">{escape(name)}</text>']
    lines.append(
        f'<text x="15" y="42" fill="{_INK}">up: goodput, the share of requests within objectives; '
        "right: cost, GPU-hours in times those of the clairvoyant; each plot a load and what a start takes</text>"
    )
    for number, cell in enumerate(whole):
        left, top = (number % _COLUMNS) * _WIDTH + _LEFT, _TOP + (number // _COLUMNS) * _HEIGHT + 20
        lines += _panel(cell, left, top)
    return "\n".join([*lines, "</svg>"]) + "\n"


def _panel(cell: Cell, left: int, top: int) -> list[str]:
    lines = [f'<text x="{left}" y="{top - 14}" font-weight="600">{escape(cell.name)}</text>']
    for share in (0.0, 0.5, 1.0):
        y = top + _PLOT_HEIGHT * (1 - share)
        lines.append(f'<line x1="{left}" x2="{left + _PLOT_WIDTH}" y1="{y:.0f}" y2="{y:.0f}" stroke="#e1e4e8"/>')
        lines.append(f'<text x="{left - 5}" y="{y + 4:.0f}" text-anchor="end">{share:g}</text>')
    for cost in (0.5, 1.0, 1.5, 2.0, 2.5):
        x = left + _PLOT_WIDTH * cost / _MOST_COST
        lines.append(f'<text x="{x:.0f}" y="{top + _PLOT_HEIGHT + 14}" text-anchor="middle">{cost:g}×</text>')

    def at(figure: Figure, colour: str, filled: bool, radius: float, name: str = "") -> str:
        x = left + _PLOT_WIDTH * min(_MOST_COST, cell.cost(figure)) / _MOST_COST
        title = f"{name or figure.name}: {_value(cell, figure)}"
        return _dot(x, top + _PLOT_HEIGHT * (1 - figure.goodput), colour, filled, radius, title)

    lines += [at(figure, _PEER, name in DOCUMENTED, 3.5) for name, figure in cell.dynamo.items()]
    lines.append(at(cell.ours, _OURS, True, 6))  # larger than those after it, which it would hide
    if cell.fixed is not None:
        lines.append(at(cell.fixed, _INK, False, 4, "fixed " + cell.fixed.name))
    if cell.causal is not None:
        lines.append(at(cell.causal, _INK, True, 4))
    return [*lines, at(cell.clairvoyant, "#000000", True, 4)]


def _dot(x: float, y: float, colour: str, filled: bool, radius: float, title: str) -> str:
    fill = colour if filled else "white"
    return (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" fill="{fill}" stroke="{colour}">'
        f"<title>{escape(title)}</title></circle>"
    )
