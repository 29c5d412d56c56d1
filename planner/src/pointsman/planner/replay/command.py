"""``pointsman replay``: run, print the table, write what was asked for."""

import json
import shlex
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from pointsman.planner.errors import PlannerError
from pointsman.planner.replay import comparison, summary
from pointsman.planner.replay.options import Options, parse
from pointsman.planner.replay.page import page
from pointsman.planner.replay.pictures import layout_changes, picture
from pointsman.planner.replay.policy_files import PolicyFile, load_policy
from pointsman.planner.replay.progress import bar
from pointsman.planner.replay.run import Load, Replay, load, replay
from pointsman.planner.replay.sweep import cells, headings, variants
from pointsman.planner.replay.table import figure_rows, layout, what_ran

EXIT_WORSE: Final = 1
EXIT_UNUSABLE: Final = 2
EXIT_DEFECT: Final = 70  # of Pointsman itself; Python's own status is 1, which means worse here
EXIT_INTERRUPTED: Final = 130
SHOWN_DECISIONS: Final = 12
TABLE_WIDTH: Final = 160  # of a table on a narrower terminal: lines that it folds can be read, cut ones cannot


def main(argv: list[str]) -> int:
    """Run a trace through the planner and a simulated service, and say what it comes to."""
    options = parse(argv)
    console = _console(terminal=sys.stdout.isatty())
    command = shlex.join(["pointsman", "replay", *argv])
    try:
        policy = load_policy(options.policy)
        if options.sweeps:
            return _sweep(options, policy, command, console)
        return _once(options, policy, command, console)
    except PlannerError as error:
        print(f"pointsman replay: {error}", file=sys.stderr)
    except OSError as error:
        print(f"pointsman replay: {error.filename}: it cannot be written: {error.strerror}", file=sys.stderr)
    except KeyboardInterrupt:
        print("pointsman replay: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except Exception:  # noqa: BLE001 - whatever it is, it must not end with the status that means worse
        traceback.print_exc()
        print("pointsman replay: internal error of Pointsman, no verdict on the policy", file=sys.stderr)
        return EXIT_DEFECT
    return EXIT_UNUSABLE


def _once(options: Options, policy: PolicyFile, command: str, console: Console) -> int:
    baseline = summary.read_document(options.compare) if options.compare else None
    loaded = load(options)
    with _bar(f"{policy.name} on {loaded.trace.name}", loaded) as progress:
        done = replay(options, policy, loaded, command, progress)
    _show(done, loaded, console)
    found = None
    if baseline is not None:
        tolerance = options.fail_if_worse if options.fail_if_worse is not None else 0.0
        found = comparison.compare(
            baseline, done.result, done.trace_digest, done.simulation, name=str(options.compare), tolerance=tolerance
        )
        _show_comparison(found, console)
    if options.json:
        _write(options.json, json.dumps(done.document, indent=1) + "\n")
    if options.html:
        _write(options.html, page(done.document, found))
    if options.svg:
        _write(options.svg, picture(done.document, f"{policy.name} on {loaded.trace.name}"))
    return EXIT_WORSE if found and found.worse and options.fail_if_worse is not None else 0


def _sweep(options: Options, policy: PolicyFile, command: str, console: Console) -> int:
    planned = list(variants(options.sweeps, options, policy))  # a wrong key is said before the first run
    loaded = load(options)
    table = Table(box=None, header_style="bold")
    for number, heading in enumerate(headings(options.sweeps)):
        table.add_column(heading, no_wrap=True, justify="left" if number < len(options.sweeps) else "right")
    documents: list[dict[str, Any]] = []
    for number, variant in enumerate(planned, start=1):
        chosen = load(variant.options) if variant.reload else loaded
        name = ", ".join(f"{key}={value}" for key, value in variant.settings)
        with _bar(f"{number}/{len(planned)} {name}", chosen) as progress:
            done = replay(variant.options, variant.policy, chosen, command, progress)
        documents.append({"settings": dict(variant.settings), "figures": done.document["figures"]})
        table.add_row(*cells(variant.settings, done.document["figures"]))
    console.print(_heading(policy.name, loaded), markup=False)
    console.width = max(console.width, TABLE_WIDTH, _width(table))
    console.print(table)
    if options.json:
        _write(options.json, json.dumps({"command": command, "rows": documents}, indent=1) + "\n")
    return 0


# --- what is printed ---


def _console(*, terminal: bool) -> Console:
    """In a file or a pipe nothing is cut or folded, on a terminal lines are folded between words."""
    return Console(highlight=False, soft_wrap=not terminal, width=None if terminal else TABLE_WIDTH)


def _width(table: Table) -> int:
    """What a table takes where there is room."""
    anywhere = Console(width=10_000)
    return Measurement.get(anywhere, anywhere.options, table).maximum


def _heading(policy: str, loaded: Load) -> str:
    trace = loaded.trace
    return f"{policy} on {trace.name}: {len(trace)} requests in {trace.duration_s / 60:.1f} min"


def _show(done: Replay, loaded: Load, console: Console) -> None:
    document = done.document
    console.print(f"[bold]{escape(_heading(document['policy']['name'], loaded))}[/bold]")
    console.print(what_ran(document["simulation"]), markup=False)
    for note in document["trace"]["notes"]:
        console.print(f"[dim]  {escape(note)}[/dim]")
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column(style="dim")
    for row in figure_rows(document):
        table.add_row(*row)
    console.print(table)
    changes = layout_changes(document)
    console.print(f"[bold]decisions that changed the layout: {len(changes)}[/bold]")
    _show_decisions(changes[:SHOWN_DECISIONS], console)
    if len(changes) > SHOWN_DECISIONS:
        console.print(f"  … and {len(changes) - SHOWN_DECISIONS} more; --html or --json shows them all")


def _show_decisions(changes: Sequence[Mapping[str, Any]], console: Console) -> None:
    """A line each where lines are not folded; on a terminal the reason is folded beside the rest."""
    rows = [(f"  {d['at_s']:>6.0f} s  →", layout(d), f"{d['reason']}: {d['message']}") for d in changes]
    if console.soft_wrap:
        for at, to, why in rows:
            console.print(f"{at} {to:<6} {why}", markup=False)
        return
    grid = Table.grid(padding=(0, 1))
    for _ in range(2):
        grid.add_column(no_wrap=True)
    for at, to, why in rows:
        grid.add_row(at, to, Text(why))
    console.print(grid)


def _show_comparison(found: comparison.Comparison, console: Console) -> None:
    console.print(f"[bold]against {escape(found.baseline)}[/bold]")
    for name, before, after in found.rows:
        console.print(f"  {name} {before} → {after}")
    for sentence in found.sentences:
        console.print(f"  {sentence}")
    console.print(f"  [{'red' if found.worse else 'green'}]{found.verdict}[/]")


def _bar(what: str, loaded: Load) -> AbstractContextManager[Callable[[float], None]]:
    """A progress bar over simulated time."""
    return bar(what, max(loaded.trace.duration_s, 1.0))


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    print(f"wrote {path}", file=sys.stderr)
