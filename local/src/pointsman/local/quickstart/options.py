"""What a user may choose."""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_DESCRIPTION: Final = """\
Start a real control plane on this computer, install the chart, serve a model on one prefill and two decode workers
(real vLLM on CPU), send traffic, measure, and let the planner follow a shift of the load. Needs no GPU, no cluster, no
container runtime, no root. The first run builds and downloads what it needs (about 10 minutes); later runs start from
the cache.
"""
_EPILOG: Final = """\
examples:
  make quickstart                               everything, then clean up
  make quickstart ARGS="--keep"                 leave the cluster running, to look around
  make quickstart ARGS="--quick"                without scaling, latency and planner: about a minute
  make quickstart ARGS="--report report.json"   choose where the JSON report goes
"""


@dataclass(frozen=True, slots=True)
class Options:
    """The choices of one run."""

    keep: bool = False
    quick: bool = False
    report: Path | None = None
    seed: int = 1


def parse(argv: list[str]) -> Options:
    """The options on a command line; exits with a usage message for a wrong one."""
    parser = argparse.ArgumentParser(
        prog="pointsman quickstart",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--keep", action="store_true", help="leave the cluster and the service running at the end")
    parser.add_argument("--quick", action="store_true", help="traffic and exactness only")
    parser.add_argument("--report", type=Path, metavar="FILE", help="where the JSON report goes (default: the cache)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed of the prompts (default: 1)")
    chosen = parser.parse_args(argv)
    return Options(keep=chosen.keep, quick=chosen.quick, report=chosen.report, seed=chosen.seed)
