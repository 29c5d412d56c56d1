"""Foundation 1's timed claims: ``make bench-foundation``.

``make quickstart`` from a warm cache, as a user runs it: time to the first token, whole time, memory, and its latency
stage. That is three decode streams while 2 000-token prompts arrive, in bfloat16: on one prefill and one decode worker
behind the gateway, and then on one plain vLLM server. While one side is measured the other is not there, or idle.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from bench.rows import Row, finish, listed, options
from pointsman.local.quickstart.report import Report

COMMAND = "make bench-foundation"


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
    """The rows of some quick starts; of a figure that has two sides, the plain server's is the peer's."""
    ours = [{name: getattr(value, "pd", value) for name, value in report} for report in reports]
    plain = [{name: getattr(value, "single", value) for name, value in report} for report in reports]
    return listed("foundation", COMMAND, ours, plain)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
