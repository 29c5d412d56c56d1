"""``pointsman quickstart-multimodal``: run the stages, print the report."""

import asyncio
import time
from typing import Final

from rich.console import Console

from pointsman.local.errors import LocalError
from pointsman.local.multimodal_quickstart.run import STAGES, MultimodalQuickStart
from pointsman.local.quickstart.interruption import INTERRUPTED, until_interrupted
from pointsman.local.quickstart.narrator import Narrator
from pointsman.local.typed_command import typed_command
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
    code = asyncio.run(_run(quickstart, console))
    if code == INTERRUPTED:
        return code
    console.print("\n[bold]Report[/bold]")
    for line in quickstart.lines():
        style = "bold red" if line.startswith("FAILED") else ""
        console.print(f"  {line}", highlight=False, markup=False, soft_wrap=True, style=style)
    console.print(f"  whole run      {time.monotonic() - began_s:.0f} s", highlight=False)
    if quickstart.left_running:
        console.print(
            "\nThe cluster is still running. What to type next:\n"
            f"  export PATH={quickstart.programs}:$PATH KUBECONFIG={quickstart.kubeconfig}\n"
            "  kubectl get llms,wpool,pods\n  kubectl get llms -o yaml\nTo end it:\n"
            f"  {typed_command()} local down multimodal",
            highlight=False,
            soft_wrap=True,
        )
    return code


async def _run(quickstart: MultimodalQuickStart, console: Console) -> int:
    """0: all went well, 1: something failed, 130: interrupted. Whatever happens, the cluster is cleaned up first."""
    try:
        if not await until_interrupted(quickstart.run(), console):
            return INTERRUPTED
    except (LocalError, TimeoutError) as error:
        quickstart.failures.append(str(error))
    return 1 if quickstart.failures else 0
