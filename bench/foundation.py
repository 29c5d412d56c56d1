"""Foundation 1's timed claims: ``make bench-foundation``.

1. ``make quickstart`` from a warm cache, as a user runs it: time to the first token, whole time, memory.
2. Three decode streams while 2 000-token prompts arrive, in bfloat16: on one prefill and one decode worker behind the
   gateway, and on one plain vLLM server; the two in turns, ``--rounds`` times, on the same cluster. While one side is
   measured the other is idle (an idle engine costs about 3 % of a core).
"""

import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from bench.rows import Row, finish, options, row
from bench.services import known, served
from pointsman.local.cluster import LocalCluster
from pointsman.local.engine.models import ModelSize, ensure_model
from pointsman.local.engine.plain_server import plain_server
from pointsman.local.quickstart.examples import STALL_SERVICE, read_example, stall_service
from pointsman.local.traffic import Endpoint, Interference, Scenario, interfere

COMMAND = "make bench-foundation"
CLAIMS = (
    ("quick start: first token", "s", "first_token_seconds", 40),
    ("quick start: whole run", "s", "total_seconds", 300),
    ("quick start: memory (PSS) of all processes", "MiB", "peak_pss_mib", 6144),
    ("quick start: failed or inexact", "requests", "failed", 0),
)
LATENCIES: tuple[tuple[str, Callable[[Interference], float | None], float], ...] = (
    ("worst ITL of 3 streams, 2 000-token prompts", lambda each: each.itl.worst_ms, 0.1),
    ("p99 ITL of the same", lambda each: each.itl.p99_ms, 1.0),
    ("TTFT p50 of the long prompts", lambda each: each.ttft.p50_ms, 2.0),
)


def main(argv: list[str]) -> int:
    """Measure, write the rows; 1 if a target was missed or something failed."""
    asked = options(COMMAND, __doc__, argv, runs=(3, "quick starts"), rounds=(5, "rounds of the latency scenario"))
    return finish("foundation", quick_starts(asked.runs) + asyncio.run(stalls(asked.rounds)))


def quick_starts(runs: int) -> list[Row]:
    """Rows of the whole quick start. Raises RuntimeError for a run that failed: its times would mean nothing."""
    reports: list[dict[str, Any]] = []
    for number in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "report.json"
            command = [str(Path(sys.executable).with_name("pointsman")), "quickstart", "--report", str(path)]
            if ended := subprocess.run(command, check=False).returncode:
                raise RuntimeError(f"quick start {number + 1} ended with {ended}")
            report = json.loads(path.read_text())
            reports.append(report | {"failed": report["failed_requests"] + (not report["token_exact"])})
    return [
        row(name, unit, [float(report[key]) for report in reports], at_most=most, command=COMMAND)
        for name, unit, key, most in CLAIMS
    ]


async def stalls(rounds: int) -> list[Row]:
    """Rows of the latency scenario: the worst inter-token latency and the price of it."""
    pd: list[Interference] = []
    single: list[Interference] = []
    async with LocalCluster() as cluster:
        await asyncio.to_thread(cluster.install)
        model = ensure_model(cluster.environment, ModelSize.SMALL)
        start = partial(plain_server, served_name="plain", dtype="bfloat16")
        log = cluster.directory / "logs" / "plain.log"
        async with (
            served(cluster, STALL_SERVICE, stall_service(read_example(), model)) as (_, ours),
            start(cluster.environment, cluster.fork_socket, model, log=log) as server,
            Endpoint(server.base_url, "plain") as theirs,
        ):
            for endpoint in (ours, theirs):
                await interfere(endpoint, Scenario(streams=1, arrivals=1, prompt_tokens=600, seed=-1))
            for number in range(rounds):
                scenario = Scenario(arrivals=3, seed=number)
                for endpoint, measured in ((ours, pd), (theirs, single)):
                    measured.append(await interfere(endpoint, scenario))
                    _check(measured[-1], scenario, remote=endpoint is ours)
                    print(f"round {number + 1} {endpoint.base_url}: worst ITL {measured[-1].itl.worst_ms:.0f} ms")
    return [
        row(
            name, "ms", [known(of(each)) for each in pd], [known(of(each)) for each in single],
            peer_name="one plain vLLM server", at_most=most, of_ratio=True, command=COMMAND,
        )
        for name, of, most in LATENCIES
    ]  # fmt: skip


def _check(measured: Interference, scenario: Scenario, *, remote: bool) -> None:
    if measured.failed_requests:
        raise RuntimeError(f"{measured.failed_requests} requests failed: their latencies would mean nothing")
    if remote and measured.arrivals.remote_prefills != scenario.arrivals:
        raise RuntimeError(f"only {measured.arrivals.remote_prefills} of {scenario.arrivals} prompts were remote")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
