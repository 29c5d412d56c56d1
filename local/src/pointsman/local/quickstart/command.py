"""``pointsman quickstart``: run the stages, print the report, say what to type next."""

import asyncio
import time
from pathlib import Path

import psutil
from rich.console import Console

from pointsman.kube.errors import KubeError
from pointsman.local.cache import cache_directory
from pointsman.local.errors import LocalError
from pointsman.local.quickstart.examples import SHIFT_SERVICE
from pointsman.local.quickstart.interruption import INTERRUPTED, until_interrupted
from pointsman.local.quickstart.narrator import Narrator
from pointsman.local.quickstart.options import parse
from pointsman.local.quickstart.run import QuickStart
from pointsman.local.quickstart.stages import QUICK, TITLES
from pointsman.local.typed_command import typed_command


def main(argv: list[str]) -> int:
    """Serve a model on real prefill and decode workers on this computer, and measure."""
    options = parse(argv)
    # Counted from the start of the process: importing this took time that the user waited too.
    started_s = time.monotonic() - (time.time() - psutil.Process().create_time())
    console = Console(soft_wrap=False)
    narrator = Narrator(console, stages=QUICK if options.quick else len(TITLES), explain=options.explain)
    quickstart = QuickStart(options, narrator, started_s=started_s)
    path = options.report or cache_directory() / "quickstart-report.json"
    code = asyncio.run(_run(quickstart, console))
    if code != INTERRUPTED:
        quickstart.report.write(path)
        _close(console, quickstart, path, explain=options.explain)
    return code


async def _run(quickstart: QuickStart, console: Console) -> int:
    """0: all went well, 1: something failed, 130: interrupted. Whatever happens, the cluster is cleaned up first."""
    try:
        if not await until_interrupted(quickstart.run(), console):
            return INTERRUPTED
    except (LocalError, KubeError, TimeoutError) as error:
        quickstart.report.failures.append(str(error))
    return 0 if quickstart.report.passed else 1


def _close(console: Console, quickstart: QuickStart, path: Path, *, explain: bool) -> None:
    for failure in quickstart.report.failures:
        if "\n" in failure:  # with what was seen last; the report has its first line
            console.print(f"\n{failure}", highlight=False, markup=False, soft_wrap=True)
    console.print()
    console.print("[bold]Report[/bold]")
    for found in quickstart.report.lines(path, explain=explain):
        console.print(f"  {found}", highlight=False, markup=False, soft_wrap=True, style=_style(found))
    for text in _next_steps(quickstart):
        console.print(text, highlight=False, markup=False, soft_wrap=True)


def _style(found: str) -> str:
    return "bold red" if "FAILED" in found or "DIFFERENT" in found else ""


def _next_steps(quickstart: QuickStart) -> list[str]:
    if not quickstart.left_running or quickstart.programs is None or quickstart.kubeconfig is None:
        return [
            "",
            'To see commands and reasons: make quickstart ARGS="--explain"; to look around afterwards: ARGS="--keep"',
        ]
    question = '{"model": "%s", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 16}'
    return [
        "",
        "The cluster is still running, so that you can look at the failure. Next commands:"
        if quickstart.report.failures
        else "The cluster is still running. Next commands:",
        f"  export PATH={quickstart.programs}:$PATH KUBECONFIG={quickstart.kubeconfig}",
        "  kubectl get llms,wpool,pods",
        "  kubectl get events --sort-by=.metadata.creationTimestamp",
        "  kubectl scale wpool chat-decode --replicas=3",
        *(
            ("  kubectl get pplan,rsw", f"  {typed_command()} explain {SHIFT_SERVICE}")
            if quickstart.report.plans
            else ()
        ),
        *(
            (f"  {typed_command()} record --prometheus {quickstart.prometheus_url} --service chat --out chat.jsonl",)
            if quickstart.prometheus_url is not None
            else ()
        ),
        *(
            (f"  less {quickstart.kubeconfig.parent / 'logs'}/*", "  kubectl logs deploy/chat-gateway")
            if quickstart.report.failures
            else ()
        ),
        *(
            (
                f"  curl {quickstart.gateway_url}/chat/completions -H 'Content-Type: application/json' \\",
                f"    -d '{question % quickstart.served_name}'",
            )
            if quickstart.gateway_url is not None
            else ()
        ),
        "To end it:",
        f"  {typed_command()} local down quickstart",
    ]
