"""What a user may choose."""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pointsman.process.arguments import CommandParser

_DESCRIPTION: Final = """\
Start a real control plane on this computer, install the chart, serve a model on one prefill and two decode workers
(real vLLM on CPU), send traffic, measure, and let the planner follow a shift of the load. Needs no GPU, no cluster, no
container runtime, no root. The first run builds and downloads its programs (about 10 minutes); later runs start from
the cache.
"""
_EPILOG: Final = """\
examples:
  make quickstart                               everything, then clean up
  make quickstart ARGS="--explain"              show commands, workers and the planner's reasons
  make quickstart ARGS="--keep"                 leave the cluster running, to look around
  make quickstart ARGS="--quick"                without scaling, latency and planner: about a minute
  make quickstart ARGS="--report report.json"   choose where the JSON report goes
  make quickstart ARGS="--start-seconds 45"     workers take as long to start as on a real cluster
  make quickstart ARGS="--prometheus --keep"    the planner reads a real Prometheus; look at it afterwards
"""
MOST_START_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class Options:
    """The choices of one run."""

    explain: bool = False
    keep: bool = False
    quick: bool = False
    report: Path | None = None
    seed: int = 1
    start_seconds: float = 0.0
    prometheus: bool = False


def parse(argv: list[str]) -> Options:
    """The options on a command line; exits with a usage message for a wrong one."""
    parser = CommandParser(
        prog="pointsman quickstart",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    parser.add_argument(
        "--explain",
        action="store_true",
        help="show each command, all workers, and the planner's decisions with reasons",
    )
    parser.add_argument(
        "--keep", action="store_true", help="leave the cluster and the service running, also after a failure"
    )
    parser.add_argument("--quick", action="store_true", help="traffic and exactness only")
    parser.add_argument("--report", type=Path, metavar="FILE", help="where the JSON report goes (default: the cache)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed of the prompts (default: 1)")
    parser.add_argument(
        "--start-seconds", type=_seconds, default=0.0, metavar="S",
        help="simulated start-up time of workers, as image pull and weight loading take (default: 0)",
    )  # fmt: skip
    parser.add_argument(
        "--prometheus", action="store_true",
        help="with a real Prometheus that scrapes all pods and that the planner reads (its first build: 5 minutes)",
    )  # fmt: skip
    chosen = parser.parse_args(argv)
    return Options(**vars(chosen))


def _seconds(text: str) -> float:
    """A time that is not negative; argparse names the option."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= MOST_START_S:
        raise argparse.ArgumentTypeError(f"{text}: must be 0 to {MOST_START_S:g} seconds")
    return seconds
