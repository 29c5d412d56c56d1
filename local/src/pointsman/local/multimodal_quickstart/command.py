"""``pointsman quickstart-multimodal``: run the stages, print the report."""

import asyncio
import time
from typing import Final

from rich.console import Console

from pointsman.local.multimodal_quickstart.run import STAGES, MultimodalQuickStart
from pointsman.local.quickstart.ending import print_next_steps, print_report, run_stages
from pointsman.local.quickstart.interruption import INTERRUPTED
from pointsman.local.quickstart.narrator import Narrator
from pointsman.process.arguments import CommandParser

_DESCRIPTION: Final = """\
Start a real control plane on this computer, install the chart, and serve a vision model on an encode, a prefill and a
decode worker. Sends chats with images of several sizes and shows where each image is encoded, kills the encode worker,
and compares every answer with that of one plain vLLM server. Needs no GPU, no cluster and no root. About 2 minutes.
"""
_EPILOG: Final = """\
examples:
  make quickstart-multimodal                     everything, then clean up
  make quickstart-multimodal ARGS="--keep"       leave the cluster running, to look around
  make quickstart-multimodal ARGS="--seed 2"     other chats and other images
"""


def main(argv: list[str]) -> int:
    """Serve a vision model on this computer, and show where images are encoded."""
    parser = CommandParser(prog="pointsman quickstart-multimodal", description=_DESCRIPTION, epilog=_EPILOG)
    parser.add_argument("--keep", action="store_true", help="leave the cluster and the service running")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed of the chats (default: 1)")
    options = parser.parse_args(argv)
    console = Console(soft_wrap=False)
    began_s = time.monotonic()
    quickstart = MultimodalQuickStart(Narrator(console, stages=STAGES), seed=options.seed, keep=options.keep)
    code = asyncio.run(run_stages(quickstart, console))
    if code == INTERRUPTED:
        return code
    print_report(quickstart, console, began_s)
    print_next_steps(quickstart, console, "llms", "llms,wpool,pods", "multimodal")
    return code
