"""Runs ours and the peer in turns and writes ``bench/results/request_path.json``: ``make bench-request-path``."""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from bench.request_path.load import Load
from bench.rows import Row, row, write

COMMAND: Final = "make bench-request-path"
PEER: Final = "Dynamo's RadixTree"
PEER_HASH: Final = "Dynamo's block hashes, not chained"
PEER_PACKAGE: Final = "ai-dynamo-runtime==1.6.1"
ROOT: Final = Path(__file__).parents[2]


def main(argv: list[str]) -> int:
    """Measure, write the rows; 1 if a target was missed."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="runs of each side, in turns (default: 5)")
    parser.add_argument("--uv", default="uv", help="the uv program, which makes the peer's environment")
    options = parser.parse_args(argv)
    load = Load()
    ours: list[dict[str, float]] = []
    peer: list[dict[str, float]] = []
    for number in range(options.runs):
        peer.append(_measured(peer_command(options.uv, load)))
        ours.append(_measured([sys.executable, "-m", "bench.request_path.ours", json.dumps(asdict(load))]))
        print(f"run {number + 1}: ours {ours[-1]}, peer {peer[-1]}", flush=True)
    found = rows(ours, peer)
    path = write("request_path", found)
    for each in found:
        print(f"{'met   ' if each.met else 'MISSED'} {each.name}: {each.ours:g} {each.unit} (target {each.target})")
    print(f"wrote {path}")
    return 0 if all(each.met for each in found) else 1


def peer_command(uv: str, load: Load) -> list[str]:
    """The peer in an environment of its own, which uv makes and keeps in its cache."""
    return [
        uv, "run", "--quiet", "--no-project", "--python", sys.executable, "--with", PEER_PACKAGE,
        "python", "-m", "bench.request_path.radix_tree", json.dumps(asdict(load)),
    ]  # fmt: skip


def rows(ours: Sequence[dict[str, float]], peer: Sequence[dict[str, float]]) -> list[Row]:
    """The table's rows from the figures of each run."""

    def beside(name: str, unit: str, figure: str, at_least: float, peer_name: str = PEER) -> Row:
        return row(
            name, unit, [each[figure] for each in ours], peer=[each[figure] for each in peer], peer_name=peer_name,
            at_least=at_least, command=COMMAND,
        )  # fmt: skip

    def alone(name: str, unit: str, figure: str, at_most: float) -> Row:
        return row(name, unit, [each[figure] for each in ours], at_most=at_most, command=COMMAND)

    return [
        beside("find, all 128 blocks held by 4 of 64 workers", "finds/s", "full_hit", 300_000),
        beside("find, the first 64 of 128 blocks held", "finds/s", "half_hit", 100_000),
        beside("events of one block, from bytes", "events/s", "one_block_events", 400_000),
        row(
            "the same, index alone", "events/s", [each["one_block_calls"] for each in ours], at_least=400_000,
            command=COMMAND,
        ),
        beside("events of 128 blocks, from bytes", "blocks/s", "batched_blocks", 1_500_000),
        alone("memory of the index per (worker, block)", "bytes", "bytes_per_block", 300),
        row(
            "hashing 2 048 tokens, block size 16", "µs", [each["hashing_us"] for each in ours],
            peer=[each["hashing_us"] for each in peer], peer_name=PEER_HASH, at_most=30, command=COMMAND,
        ),
        alone("routing decision among 64 workers, 2 048 tokens, hashing included, p50", "µs", "decision_p50_us", 150),
        alone("the same, p99", "µs", "decision_p99_us", 500),
    ]  # fmt: skip


def _measured(command: Sequence[str]) -> dict[str, float]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    finished = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, check=True)
    found: dict[str, float] = json.loads(finished.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
