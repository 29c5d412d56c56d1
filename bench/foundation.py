"""Foundation 1's timed claims: ``make bench-foundation``.

``make quickstart`` from a warm cache, as a user runs it: time to the first token, whole time, memory, and its latency
stage. That is three decode streams while 2 000-token prompts arrive, in bfloat16: on one prefill and one decode worker
behind the gateway, and then on one plain vLLM server. While one side is measured the other is not there, or idle.
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.rows import Row, finish, options, row
from pointsman.local.quickstart.report import Report

COMMAND = "make bench-foundation"
# Name, unit, the report's field, and the most that it may be: of the figure, or of its ratio to that of a plain server.
CLAIMS = (
    ("quick start: first token", "s", "first_token_seconds", 40),
    ("quick start: whole run", "s", "total_seconds", 300),
    ("quick start: memory (PSS) of all processes", "MiB", "peak_pss_mib", 6144),
    ("quick start: failed or inexact", "requests", "failed_requests", 0),
)
LATENCIES = (
    ("worst ITL of 3 streams, 2 000-token prompts", "worst_itl_ms", 0.1),
    ("p99 ITL of the same", "p99_itl_ms", 1.0),
    ("TTFT p50 of the long prompts", "long_prompt_ttft_p50_ms", 2.0),
)


def main(argv: list[str]) -> int:
    """Measure, write the rows; 1 if a target was missed."""
    asked = options(COMMAND, __doc__, argv, runs=(3, "quick starts"))
    return finish("foundation", rows([quick_start(number) for number in range(asked.runs)]))


def quick_start(number: int) -> Report:
    """The report of a whole quick start. Raises CalledProcessError for one that failed or was not token-exact."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        command = [str(Path(sys.executable).with_name("pointsman")), "quickstart", "--report", str(path)]
        subprocess.run([*command, "--seed", str(number)], check=True)
        return Report.model_validate_json(path.read_text())


def rows(reports: list[Report]) -> list[Row]:
    """The rows of some quick starts."""

    def values(field: str, side: str) -> list[Any]:
        return [getattr(getattr(report, field), side) for report in reports]

    return [
        row(name, unit, [getattr(report, field) for report in reports], at_most=most, command=COMMAND)
        for name, unit, field, most in CLAIMS
    ] + [
        row(
            name, "ms", values(field, "pd"), values(field, "single"), peer_name="one plain vLLM server", at_most=most,
            of_ratio=True, command=COMMAND,
        )
        for name, field, most in LATENCIES
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
