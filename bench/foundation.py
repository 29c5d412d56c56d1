"""Foundation 1's timed claims: ``make bench-foundation``.

1. ``make quickstart`` from a warm cache, as a user runs it: time to the first token, whole time, memory.
2. Three decode streams while 2 000-token prompts arrive, in bfloat16: on one prefill and one decode worker behind the
   gateway, and on one plain vLLM server; the two in turns, ``--rounds`` times, on the same cluster. While one side is
   measured the other is idle (an idle engine costs about 3 % of a core).
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

from bench.rows import Row, row, write
from pointsman.kube.client import Kube
from pointsman.local.cluster import LocalCluster
from pointsman.local.engine.models import ModelSize, ensure_model
from pointsman.local.engine.plain_server import plain_server
from pointsman.local.observation import Observer
from pointsman.local.quickstart.examples import STALL_SERVICE, read_example, stall_service
from pointsman.local.quickstart.waiting import wait_until
from pointsman.local.traffic import Endpoint, Interference, Scenario, interfere

COMMAND = "make bench-foundation"
PLAIN = "one plain vLLM server"
FIRST_TOKEN_SECONDS, TOTAL_SECONDS, PSS_MIB, ITL_RATIO = 40, 300, 6144, 0.1
READY_SECONDS = 300.0


def main(argv: list[str]) -> int:
    """Measure, write the rows; 1 if a target was missed or something failed."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=3, help="quick starts (default: 3)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of the latency scenario (default: 5)")
    options = parser.parse_args(argv)
    rows = quick_starts(options.runs) + asyncio.run(stalls(options.rounds))
    path = write("foundation", rows)
    for each in rows:
        print(f"{'met   ' if each.met else 'MISSED'} {each.name}: {each.ours:g} {each.unit} (target {each.target})")
    print(f"wrote {path}")
    return 0 if all(each.met for each in rows) else 1


def quick_starts(runs: int) -> list[Row]:
    """Rows of the whole quick start. Raises RuntimeError for a run that failed: its times would mean nothing."""
    reports = []
    for number in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "report.json"
            command = [str(Path(sys.executable).with_name("pointsman")), "quickstart", "--report", str(path)]
            finished = subprocess.run(command, check=False)
            if finished.returncode:
                raise RuntimeError(f"quick start {number + 1} ended with {finished.returncode}")
            reports.append(json.loads(path.read_text()))
    failed = [float(report["failed_requests"] + (not report["token_exact"])) for report in reports]
    claims = (
        ("quick start: first token", "s", "first_token_seconds", FIRST_TOKEN_SECONDS),
        ("quick start: whole run", "s", "total_seconds", TOTAL_SECONDS),
        ("quick start: memory (PSS) of all processes", "MiB", "peak_pss_mib", PSS_MIB),
    )
    rows = [row(name, unit, _of(reports, key), at_most=most, command=COMMAND) for name, unit, key, most in claims]
    return [*rows, row("quick start: failed or inexact", "requests", failed, at_most=0, command=COMMAND)]


async def stalls(rounds: int) -> list[Row]:
    """Rows of the latency scenario: the worst inter-token latency and the price of it."""
    pd: list[Interference] = []
    single: list[Interference] = []
    async with LocalCluster() as cluster:
        await asyncio.to_thread(cluster.install)
        model = ensure_model(cluster.environment, ModelSize.SMALL)
        manifest = stall_service(read_example(), model)
        async with (
            await Kube.connect(cluster.kubeconfig) as kube,
            Observer(kube, "default", STALL_SERVICE) as observer,
            plain_server(
                cluster.environment, cluster.fork_socket, model, served_name="plain", dtype="bfloat16",
                log=cluster.directory / "logs" / "plain.log",
            ) as server,
        ):  # fmt: skip
            await asyncio.to_thread(cluster.kubectl, "apply", "-f", "-", stdin=yaml.safe_dump(manifest))
            view = await wait_until(observer, "a Ready service", lambda v: v.ready, timeout_seconds=READY_SECONDS)
            assert view.gateway_url is not None
            async with Endpoint(view.gateway_url, STALL_SERVICE) as ours, Endpoint(server.base_url, "plain") as theirs:
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
            "worst ITL of 3 streams, 2 000-token prompts", "ms",
            [_known(each.itl.worst_ms) for each in pd], peer=[_known(each.itl.worst_ms) for each in single],
            peer_name=PLAIN, at_most=ITL_RATIO, of_ratio=True, command=COMMAND,
        ),
        row(
            "p99 ITL of the same", "ms",
            [_known(each.itl.p99_ms) for each in pd], peer=[_known(each.itl.p99_ms) for each in single],
            peer_name=PLAIN, at_most=1.0, of_ratio=True, command=COMMAND,
        ),
        row(
            "TTFT p50 of the long prompts", "ms",
            [_known(each.ttft.p50_ms) for each in pd], peer=[_known(each.ttft.p50_ms) for each in single],
            peer_name=PLAIN, at_most=2.0, of_ratio=True, command=COMMAND,
        ),
    ]  # fmt: skip


def _check(measured: Interference, scenario: Scenario, *, remote: bool) -> None:
    if measured.failed_requests:
        raise RuntimeError(f"{measured.failed_requests} requests failed: their latencies would mean nothing")
    if remote and measured.arrivals.remote_prefills != scenario.arrivals:
        raise RuntimeError(f"only {measured.arrivals.remote_prefills} of {scenario.arrivals} prompts were remote")


def _of(reports: list[dict[str, float]], field: str) -> list[float]:
    return [float(report[field]) for report in reports]


def _known(value: float | None) -> float:
    if value is None:
        raise RuntimeError("a round brought no latency at all")
    return value


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
