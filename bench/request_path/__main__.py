"""Runs ours and the peer in turns and writes ``bench/results/request_path.json``: ``make bench-request-path``."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from bench.request_path.load import Load
from bench.rows import Row, finish, options, row

COMMAND: Final = "make bench-request-path"
PEER: Final = "Dynamo's RadixTree"
PEER_HASH: Final = "Dynamo's block hashes, not chained"
PEER_PACKAGE: Final = "ai-dynamo-runtime==1.6.1"
ROOT: Final = Path(__file__).parents[2]
_DECISION: Final = "routing decision among 64 workers, 2 048 tokens, hashing included, p50"
FIGURES: Final[tuple[tuple[str, str, str, str, float, str | None], ...]] = (
    ("find, all 128 blocks held by 4 of 64 workers", "finds/s", "full_hit", "at_least", 300_000, PEER),
    ("find, the first 64 of 128 blocks held", "finds/s", "half_hit", "at_least", 100_000, PEER),
    ("events of one block, from bytes", "events/s", "one_block_events", "at_least", 400_000, PEER),
    ("the same, index alone", "events/s", "one_block_calls", "at_least", 400_000, None),
    ("events of 128 blocks, from bytes", "blocks/s", "batched_blocks", "at_least", 1_500_000, PEER),
    ("memory of the index per (worker, block)", "bytes", "bytes_per_block", "at_most", 300, None),
    ("hashing 2 048 tokens, block size 16", "µs", "hashing_us", "at_most", 30, PEER_HASH),
    (_DECISION, "µs", "decision_p50_us", "at_most", 150, None),
    ("the same, p99", "µs", "decision_p99_us", "at_most", 500, None),
)
"""Name, unit, figure of a run, kind of target, target, and the peer's name where it has that figure."""


def main(argv: list[str]) -> int:
    """Measure, write the rows; 1 if a target was missed."""
    runs, uv = (5, "runs of each side, in turns"), ("uv", "the uv program, which makes the peer's environment")
    asked, load = options(COMMAND, __doc__, argv, runs=runs, uv=uv), Load()
    ours: list[dict[str, float]] = []
    peer: list[dict[str, float]] = []
    for number in range(asked.runs):
        peer.append(_measured(peer_command(asked.uv, load)))
        ours.append(_measured([sys.executable, "-m", "bench.request_path.ours", json.dumps(asdict(load))]))
        print(f"run {number + 1}: ours {ours[-1]}, peer {peer[-1]}", flush=True)
    return finish("request_path", rows(ours, peer))


def peer_command(uv: str, load: Load) -> list[str]:
    """The peer in an environment of its own, which uv makes and keeps in its cache."""
    return [
        uv, "run", "--quiet", "--no-project", "--python", sys.executable, "--with", PEER_PACKAGE,
        "python", "-m", "bench.request_path.radix_tree", json.dumps(asdict(load)),
    ]  # fmt: skip


def rows(ours: Sequence[dict[str, float]], peer: Sequence[dict[str, float]]) -> list[Row]:
    """The table's rows from the figures of each run."""
    found = []
    for name, unit, figure, kind, target, peer_name in FIGURES:
        limit: dict[str, Any] = {kind: target}
        theirs = None if peer_name is None else [each[figure] for each in peer]
        mine = [each[figure] for each in ours]
        found.append(row(name, unit, mine, theirs, peer_name=peer_name, command=COMMAND, **limit))
    return found


def _measured(command: Sequence[str]) -> dict[str, float]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    finished = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, check=True)
    found: dict[str, float] = json.loads(finished.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
