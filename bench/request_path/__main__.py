"""Runs ours and the peer in turns and writes ``bench/results/request_path.json``: ``make bench-request-path``."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.rows import finish, listed, options

COMMAND: Final = "make bench-request-path"
PEER_PACKAGE: Final = "ai-dynamo-runtime==1.6.1"
ROOT: Final = Path(__file__).parents[2]


def main(argv: list[str]) -> int:
    """Measure, write the rows; 1 if a target was missed."""
    runs, uv = (5, "runs of each side, in turns"), ("uv", "the uv program, which makes the peer's environment")
    asked = options(COMMAND, __doc__, argv, runs=runs, uv=uv)
    # The peer in an environment of its own, which uv makes and keeps in its cache.
    peer = [asked.uv, "run", "--quiet", "--no-project", "--python", sys.executable, "--with", PEER_PACKAGE, "python"]
    commands = ([*peer, "-m", "bench.request_path.radix_tree"], [sys.executable, "-m", "bench.request_path.ours"])
    runs_of_both = [[_measured(command) for command in commands] for _ in range(asked.runs)]
    theirs, ours = zip(*runs_of_both, strict=True)
    return finish("request_path", listed("request_path", COMMAND, ours, theirs))


def _measured(command: Sequence[str]) -> dict[str, float]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    finished = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, check=True)
    found: dict[str, float] = json.loads(finished.stdout.splitlines()[-1])
    print(f"{command[-1]}: {found}", flush=True)
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
