"""``make bench-elastic``: what elastic groups cost and bring on this computer."""

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Final

from bench.elastic.batching import batching_rows
from bench.elastic.goodput import Load, goodput_rows
from bench.elastic.iterations import iteration_rows, overlap_rows
from bench.rows import RESULTS, finish, options, read
from pointsman.local.engine.environment import ensure_engine_environment
from pointsman.local.engine.models import ModelSize, ensure_model

COMMAND: Final = "make bench-elastic"
SEEDS: Final = (1, 2, 3)


def main(argv: list[str]) -> int:
    """Measure, write the rows; 1 if a target was missed."""
    requests = (200, "requests of each run of a rate and a seed")
    fast = (False, "keep the goodput as it was measured before, in five minutes")
    asked = options(COMMAND, __doc__, argv, requests=requests, iterations_only=fast)
    rows = batching_rows(COMMAND)
    environment = ensure_engine_environment()
    model = ensure_model(environment, ModelSize.SMALL)
    with tempfile.TemporaryDirectory() as folder:
        rows += asyncio.run(iteration_rows(environment, model, Path(folder), COMMAND))
        rows += asyncio.run(overlap_rows(environment, model, Path(folder), COMMAND))
    for each in rows:
        print(each, flush=True)
    if asked.iterations_only:
        kept, measured = read(RESULTS / "elastic.json"), {each.name for each in rows}
        rows += [each for each in kept if each.name not in measured]
    else:
        rows += asyncio.run(goodput_rows(Load(asked.requests, SEEDS), COMMAND))
    return finish("elastic", rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
