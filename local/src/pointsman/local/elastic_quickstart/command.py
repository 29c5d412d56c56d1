"""``pointsman quickstart-elastic``: run the stages, print the report, write the picture."""

import asyncio
import time
from pathlib import Path
from typing import Final

from rich.console import Console

from pointsman.local.cache import cache_directory
from pointsman.local.elastic_quickstart.run import STAGES, ElasticQuickStart
from pointsman.local.quickstart.ending import print_next_steps, print_report, run_stages
from pointsman.local.quickstart.interruption import INTERRUPTED
from pointsman.local.quickstart.narrator import Narrator
from pointsman.process.arguments import CommandParser

_DESCRIPTION: Final = """\
Start a real control plane on this computer, install the chart, and serve a model on an ElasticGroup: instances that
work together on long prompts and apart on short ones. Shows which groups they form, scales them under load, and
compares every answer with that of one plain vLLM server. Needs no GPU, no cluster and no root. About 3 minutes.
"""
_EPILOG: Final = """\
examples:
  make quickstart-elastic                              everything, then clean up
  make quickstart-elastic ARGS="--keep"                leave the cluster running, to look around
  make quickstart-elastic ARGS="--picture groups.svg"  choose where the picture of the groups goes
"""


def main(argv: list[str]) -> int:
    """Serve a model on an elastic group on this computer, and show its groups."""
    parser = CommandParser(prog="pointsman quickstart-elastic", description=_DESCRIPTION, epilog=_EPILOG)
    parser.add_argument("--keep", action="store_true", help="leave the cluster and the group running")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed of the prompts (default: 1)")
    parser.add_argument(
        "--picture", type=Path, metavar="FILE", help="where the picture of the groups goes (default: the cache)"
    )
    options = parser.parse_args(argv)
    console = Console(soft_wrap=False)
    began_s = time.monotonic()
    quickstart = ElasticQuickStart(Narrator(console, stages=STAGES), seed=options.seed, keep=options.keep)
    code = asyncio.run(run_stages(quickstart, console))
    if code == INTERRUPTED:
        return code
    picture = options.picture or cache_directory() / "elastic-groups.svg"
    print_report(quickstart, console, began_s)
    if quickstart.timeline.moments:
        picture.write_text(quickstart.timeline.picture())
        console.print(f"  picture        {picture}", highlight=False, soft_wrap=True)
    print_next_steps(quickstart, console, "eg", "eg,pods", "elastic")
    return code
