"""What every benchmark shares: its rows, made from measured values, its options, its end, and kept measurements.

``bench/results/<name>.json`` holds a list of rows; ``make bench-report`` renders them to
``docs/reports/benchmarks.md``. Single measurements that rows are made of are kept beside them, large ones compressed.
"""

import argparse
import json
import lzma
import shlex
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

RESULTS = Path(__file__).with_name("results")
DATA = Path(__file__).with_name("data")


Runs = Sequence[Mapping[str, Any]]
"""The figures of each run, by name."""


@dataclass(frozen=True)
class Row:
    """One figure. ``ours`` and ``peer`` are medians or means over ``runs``; ``spread`` is ours' smallest and largest.

    ``target`` is ``<= 40``, ``>= 0.9`` or ``ratio <= 0.1``; ``met`` says whether ``ours``, or ``ratio``, is within it.
    What was not measured beside a peer has None for peer, peer_name and ratio.
    """

    name: str
    unit: str
    ours: float
    peer: float | None
    peer_name: str | None
    ratio: float | None
    target: str
    met: bool
    runs: int
    spread: tuple[float, float]
    command: str


def row(
    name: str,
    unit: str,
    ours: Sequence[float],
    peer: Sequence[float] | None = None,
    *,
    command: str,
    at_most: float | None = None,
    at_least: float | None = None,
    peer_name: str | None = None,
    of_ratio: bool = False,
    of_means: bool = False,
) -> Row:
    """A row from the values of each run: of their medians, as of timings, or ``of_means``, as of seeds.

    With ``of_ratio`` the target is for ours / peer: the median of the runs' ratios, or the ratio of the means.

    Raises ValueError for a peer that was not measured in the same runs, and unless there is one target.
    """
    if (at_most is None) == (at_least is None):
        raise ValueError(f"{name}: one of at_most and at_least is the target")
    if peer is not None and len(peer) != len(ours):
        raise ValueError(f"{name}: {len(ours)} runs of ours and {len(peer)} of the peer")
    typical = statistics.mean if of_means else statistics.median
    ratio = None
    if peer is not None:
        ratio = typical(ours) / typical(peer) if of_means else typical([a / b for a, b in zip(ours, peer, strict=True)])
    judged = ratio if of_ratio else typical(ours)
    assert judged is not None, f"{name}: a ratio needs a peer"
    target = f"<= {at_most:g}" if at_most is not None else f">= {at_least:g}"
    return Row(
        name=name,
        unit=unit,
        ours=_rounded(typical(ours)),
        peer=None if peer is None else _rounded(typical(peer)),
        peer_name=peer_name,
        ratio=None if ratio is None else round(ratio, 4),
        target=f"ratio {target}" if of_ratio else target,
        met=judged <= at_most if at_most is not None else judged >= (at_least or 0.0),
        runs=len(ours),
        spread=(_rounded(min(ours)), _rounded(max(ours))),
        command=command,
    )


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def data(name: str) -> Any:
    """What ``bench/data/<name>.yaml`` says."""
    return yaml.safe_load((DATA / f"{name}.yaml").read_text())


def listed(benchmark: str, command: str, ours: Runs, peer: Runs = (), **words: Any) -> list[Row]:
    """The rows that ``bench/data/rows.yaml`` lists for a benchmark, of the figures of each run.

    ``words``: what stands in braces in the rows' names.
    """
    found = []
    for each in data("rows")[benchmark]:
        name, figure = each.pop("name").format(**words), each.pop("figure")
        peer_figure = each.pop("peer_figure", figure)
        theirs = [run[peer_figure] for run in peer] if "peer_name" in each else None
        found.append(row(name, ours=[run[figure] for run in ours], peer=theirs, command=command, **each))
    return found


def write(name: str, rows: Sequence[Row]) -> Path:
    """Write ``bench/results/<name>.json``."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps([asdict(each) for each in rows], indent=2) + "\n")
    return path


def read(path: Path) -> list[Row]:
    """The rows of a result file; none if there is no file. Raises TypeError for one that holds something else."""
    return [Row(**{**entry, "spread": tuple(entry.get("spread", ()))}) for entry in kept(path) or ()]


# --- a benchmark's command ---


def options(
    command: str, description: str | None, argv: Sequence[str] | None = None, **known: tuple[Any, str]
) -> argparse.Namespace:
    """The options of a benchmark's command line: of each the default, whose type it has, and what it is.

    A sequence takes several values of the first one's type, and False is a flag.
    """
    parser = argparse.ArgumentParser(
        prog=command, description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, (default, what) in known.items():
        kind: dict[str, Any] = {"type": type(default)}
        if default is False:
            kind = {"action": "store_true"}
        elif isinstance(default, tuple):
            kind = {"type": type(default[0]), "nargs": "+"}
        told = what if default is False else f"{what} (default: {default})"
        parser.add_argument(f"--{name.replace('_', '-')}", default=default, help=told, **kind)
    return parser.parse_args(argv)


def repeated(command: str, argv: Sequence[str]) -> str:
    """The command with these arguments, as somebody would repeat it."""
    return f'{command} ARGS="{shlex.join(argv)}"' if argv else command


def finish(name: str, rows: Sequence[Row]) -> int:
    """Write the rows and print them; returns 1 if a target was missed, as the command ends then."""
    path = write(name, rows)
    for each in rows:
        beside = "" if each.peer is None else f", {each.peer_name}: {each.peer:g}"
        ours = f"{each.name}: {each.ours:g} {each.unit}".rstrip()
        print(f"{'met   ' if each.met else 'MISSED'} {ours}{beside} (target {each.target})")
    print(f"wrote {path}")
    return 0 if all(each.met for each in rows) else 1


Parts = Mapping[str, Callable[[], Iterable[Row]]]
"""What measures the rows of each part. They are named after it: "Mixed: goodput"."""


def measure_parts(name: str, command: str, description: str | None, argv: Sequence[str], parts: Parts) -> int:
    """Measure the parts that ``argv`` names, by default all, and write their rows beside those kept of the others.

    Returns 1 if a target was missed.
    """
    chosen = options(command, description, argv, parts=((*parts,), "what is measured again")).parts
    before = read(RESULTS / f"{name}.json")
    rows = {part: [each for each in before if each.name.startswith(f"{part}:")] for part in parts}
    for part in chosen:
        rows[part] = [*parts[part]()]
        write(name, [*chain(*rows.values())])
        print(f"measured {part}", flush=True)
    return finish(name, [*chain(*rows.values())])


# --- kept measurements ---


def keep(path: Path, found: Any, *, in_order: bool = False) -> None:
    """Write what was measured as JSON, ``in_order`` of its keys, compressed if the name ends in .xz."""
    text = json.dumps(found, indent=1, sort_keys=in_order) + "\n"
    path.write_bytes(lzma.compress(text.encode()) if path.suffix == ".xz" else text.encode())


def kept(path: Path) -> Any:
    """What ``keep`` wrote; None if there is no file."""
    if not path.exists():
        return None
    written = path.read_bytes()
    return json.loads(lzma.decompress(written) if path.suffix == ".xz" else written)
