"""How the quick starts of elastic groups and of images run and report."""

import time
from pathlib import Path
from typing import Protocol

from rich.console import Console

from pointsman.local.errors import LocalError
from pointsman.local.quickstart.interruption import INTERRUPTED, until_interrupted
from pointsman.local.typed_command import typed_command


class Staged(Protocol):
    """A quick start. ``failures``: what went wrong, a sentence each."""

    failures: list[str]
    left_running: bool
    programs: Path | None
    kubeconfig: Path | None

    async def run(self) -> None:
        """All its stages."""

    def lines(self) -> list[str]:
        """Its report, a finding a line."""


async def run_stages(quickstart: Staged, console: Console) -> int:
    """0: all went well, 1: something failed, 130: interrupted. Whatever happens, the cluster is cleaned up first."""
    try:
        if not await until_interrupted(quickstart.run(), console):
            return INTERRUPTED
    except (LocalError, TimeoutError) as error:
        quickstart.failures.append(str(error))
    return 1 if quickstart.failures else 0


def print_report(quickstart: Staged, console: Console, began_s: float) -> None:
    """The findings, and the seconds since ``began_s`` of the monotonic clock."""
    console.print("\n[bold]Report[/bold]")
    for line in quickstart.lines():
        style = "bold red" if line.startswith("FAILED") else ""
        console.print(f"  {line}", highlight=False, markup=False, soft_wrap=True, style=style)
    console.print(f"  whole run      {time.monotonic() - began_s:.0f} s", highlight=False)


def print_next_steps(quickstart: Staged, console: Console, kind: str, listed: str, name: str) -> None:
    """What to type next, if the cluster ``name`` is left running. ``kind``, ``listed``: for ``kubectl get``."""
    if not quickstart.left_running:
        return
    console.print(
        "\nThe cluster is still running. Next commands:\n"
        f"  export PATH={quickstart.programs}:$PATH KUBECONFIG={quickstart.kubeconfig}\n"
        f"  kubectl get {listed}\n  kubectl get {kind} -o yaml\nTo end it:\n"
        f"  {typed_command()} local down {name}",
        highlight=False,
        soft_wrap=True,
    )
