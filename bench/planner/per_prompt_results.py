"""What placing each prompt by an estimate came to beside the shipped rule: the rows, and a section of
``docs/planner-evaluation.md``."""

import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from bench.planner import placing
from bench.planner.sources import digest, in_own_simulator
from bench.rows import RESULTS, Row, row

COMMAND: Final = "make bench-per-prompt"
RESULT: Final = "per_prompt"
RUNS: Final = RESULTS / "per_prompt_runs.json"
SHIPPED: Final = "as shipped"
SHORTEST: Final = "shortest TTFT"
KEPT: Final = "shortest TTFT where TPOT is kept"
SPARED: Final = "shortest TTFT where a fifth of TPOT is left"
IF_LATE: Final = "prefill workers while in time"
ALL: Final = "all loads"
SHARE: Final = "share within objectives, estimate for each prompt"


@dataclass(frozen=True)
class PlacedRun:
    """One rule on one load with one seed. ``remote_share``: of the prompts that were computed; ``estimate_error``: of
    the time to the first token, median of the relative errors, None where nothing is estimated."""

    load: str
    seed: int
    rule: str
    attainment: float
    gpu_hours: float
    ttft_p50_s: float
    ttft_p90_s: float
    remote_share: float
    estimate_error: float | None
    sources: str


Runs = dict[str, dict[str, list[PlacedRun]]]
"""By load and rule, in the order of seeds."""


def made_with() -> str:
    """Of planner, simulator and the estimates."""
    return f"{in_own_simulator()} {digest([Path(placing.__file__)])}"


def read_runs() -> list[PlacedRun]:
    """All that were kept; none if there is no file."""
    return [PlacedRun(**run) for run in json.loads(RUNS.read_text())] if RUNS.exists() else []


def write_runs(runs: Sequence[PlacedRun]) -> None:
    """Keep them."""
    RUNS.write_text(json.dumps([asdict(run) for run in runs], indent=1) + "\n")


def by_load(runs: Sequence[PlacedRun]) -> Runs:
    """In the order in which loads and rules were measured."""
    found: Runs = {}
    for run in runs:
        found.setdefault(run.load, {}).setdefault(run.rule, []).append(run)
    return found


def rows(runs: Sequence[PlacedRun]) -> Iterator[Row]:
    """The shipped rule beside each other one, of every load and of all loads together."""
    found = by_load(runs)
    for load, of_load in found.items():
        yield from (_beside(load, of_load[SHIPPED], theirs) for rule, theirs in of_load.items() if rule != SHIPPED)
    for rule in dict.fromkeys(run.rule for run in runs):
        loads = [load for load, of_load in found.items() if rule in of_load]
        if rule != SHIPPED and len(loads) == len(found):
            ours, theirs = ([run for load in loads for run in found[load][who]] for who in (SHIPPED, rule))
            yield _beside(ALL, ours, theirs)


def _beside(load: str, ours: Sequence[PlacedRun], theirs: Sequence[PlacedRun]) -> Row:
    return row(
        f"{load}: {SHARE}",
        "",
        [run.attainment for run in ours],
        peer=[run.attainment for run in theirs],
        peer_name=f"{theirs[0].rule}, {_mean(theirs, 'gpu_hours'):.2f} GPU-hours",
        of_means=True,
        of_ratio=True,
        at_least=1.0,
        command=COMMAND,
    )


def _mean(runs: Sequence[PlacedRun], of: str) -> float:
    values: list[float] = [getattr(run, of) for run in runs]
    return statistics.mean(values)


WHY: Final = (
    (
        rf".*: {SHARE} \| {SPARED}, .*",
        "**Decode workers that have time to spare compute prompts, too**, where each prompt's places are compared and "
        "streams keep a fifth of their TPOT objective: that helps while a load rises faster than workers start. The "
        "shipped rule sends what is longer than its threshold to prefill workers, whatever the others do. On loads of "
        "short or cached prompts the same comparison loses as much or more; over all loads it is even.",
    ),
    (
        rf".*: {SHARE} \| {IF_LATE}, .*",
        "**It hardly differs from what is shipped**: the same prompts, and short ones too, go to prefill workers, and "
        "those that would be late there are mostly held at the gateway. Where the two differ by more than .01, "
        "another seed changes which of them is better.",
    ),
)
"""Why a row is missed: a pattern of its name and, after a bar, its peer's."""
HEAD: Final = f"""\
Not another planner: ours, with another rule for where a prompt is computed (`{COMMAND}`). Shipped is a
threshold and a queue limit, which the planner publishes and a decode worker compares with tokens. Beside it the time to
the first token is estimated for each prompt alone: at the prefill workers (what waits in the queue, its own prefill,
its transfer) and at every decode worker (what waits there, its own prefill in mixed steps), by the planner's calibrated
table, at most a metrics interval old, and by what one gateway itself has sent where. The prompt goes

* to the place of the **shortest TTFT**;
* to that, of decode workers **where TPOT is kept**: by the estimate the streams there have a mean of at most the
  objective, with this prompt and those computed there within the length of an answer; or with **a fifth** of it
  **left**;
* or, which is Arrow's order as we read it, to **prefill workers while** they are **in time** by the estimate, else as
  with a fifth left.

Planner, router, flow control, scaling and switching are as shipped: so the planner sizes its pools for the threshold
that it publishes, also where nobody goes by it. Loads are those above, and two that mix lengths: *all lengths*, a step
from 4 to 14 requests/s with half of the prompts shorter than 970 tokens and a tenth longer than 6900; and *documents*,
10 requests/s of 500+250, and beside them 0.4, in waves 3, of 8000+250. *Error* is the median of the relative errors of
the estimates. Means over the seeds, and the range in brackets; bold: most within objectives."""


def section(runs: Sequence[PlacedRun]) -> list[str]:
    """Nothing before anything was measured."""
    if not runs:
        return []
    lines = ["## Each prompt's place by an estimate", "", HEAD, ""]
    if any(run.sources != made_with() for run in runs):
        lines += [
            "**These figures are of an earlier state of planner, simulator or estimates** "
            f"(`{COMMAND}` measures them again).",
            "",
        ]
    lines += [
        "| load | rule | within objectives | GPU-hours | TTFT p50 | TTFT p90 | remote | error |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for load, of_load in by_load(runs).items():
        best = max(round(_mean(theirs, "attainment"), 3) for theirs in of_load.values())
        for rule, theirs in of_load.items():
            share = _spread([run.attainment for run in theirs], ".3f")
            errors = [run.estimate_error for run in theirs if run.estimate_error is not None]
            cells = [
                load if rule == SHIPPED else "",
                rule,
                f"**{share}**" if round(_mean(theirs, "attainment"), 3) == best else share,
                _spread([run.gpu_hours for run in theirs], ".2f"),
                f"{_mean(theirs, 'ttft_p50_s'):.2f} s",
                f"{_mean(theirs, 'ttft_p90_s'):.2f} s",
                f"{_mean(theirs, 'remote_share'):.0%}",
                f"{statistics.mean(errors):.0%}" if errors else "",
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def summary(runs: Sequence[PlacedRun]) -> list[str]:
    """The short table of ``docs/planner.md``: shares within objectives and GPU-hours, a line a load."""
    rules = (SHIPPED, SHORTEST, SPARED, IF_LATE)
    lines = [
        f"| | {' | '.join((SHIPPED, SHORTEST, 'with a fifth of TPOT left', IF_LATE))} |",
        "|---" * (len(rules) + 1) + "|",
    ]
    found = by_load(runs)
    for load, of_load in found.items():
        lines.append(f"| {load} | {' | '.join(_short(of_load[rule]) for rule in rules)} |")
    every = [[run for of_load in found.values() for run in of_load[rule]] for rule in rules]
    return [*lines, f"| all | {' | '.join(map(_short, every))} |"]


def _short(runs: Sequence[PlacedRun]) -> str:
    return f"{_mean(runs, 'attainment'):.3f}, {_mean(runs, 'gpu_hours'):.2f} h"


def _spread(values: Sequence[float], form: str) -> str:
    mean = f"{statistics.mean(values):{form}}"
    return mean if len(values) == 1 else f"{mean} ({min(values):{form}}–{max(values):{form}})"
