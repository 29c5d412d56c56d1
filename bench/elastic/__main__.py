"""``make bench-elastic``: what elastic groups cost and bring on this computer."""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Final

from bench.elastic.batching import batching_rows
from bench.elastic.goodput import Load, goodput_rows
from bench.elastic.iterations import iteration_rows
from bench.elastic.overlap import overlap_rows
from bench.rows import RESULTS, read, write
from pointsman.local.engine.environment import ensure_engine_environment
from pointsman.local.engine.models import ModelSize, ensure_model

COMMAND: Final = "make bench-elastic"
SEEDS: Final = (1, 2, 3)


def main(argv: list[str]) -> int:
    """Measure, write the rows; 1 if a target was missed."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("--requests", type=int, default=200, help="of each run of a rate and a seed (default: 200)")
    parser.add_argument(
        "--iterations-only", action="store_true", help="keep the goodput as it was measured before, in five minutes"
    )
    options = parser.parse_args(argv)
    rows = batching_rows(COMMAND)
    environment = ensure_engine_environment()
    model = ensure_model(environment, ModelSize.SMALL)
    with tempfile.TemporaryDirectory() as folder:
        rows += asyncio.run(iteration_rows(environment, model, Path(folder), COMMAND))
        rows += asyncio.run(overlap_rows(environment, model, Path(folder), COMMAND))
    for each in rows:
        print(each, flush=True)
    if options.iterations_only:
        kept, measured = read(RESULTS / "elastic.json"), {each.name for each in rows}
        rows += [each for each in kept if each.name not in measured]
    else:
        rows += asyncio.run(goodput_rows(Load(options.requests, SEEDS), COMMAND))
    for each in rows:
        ratio = "" if each.ratio is None else f", {each.ratio:g} of {each.peer_name}"
        print(
            f"{each.name}: {each.ours:g} {each.unit}{ratio} (target {each.target}: {'met' if each.met else 'MISSED'})"
        )
    print(f"written to {write('elastic', rows)}")
    return 0 if all(each.met for each in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
