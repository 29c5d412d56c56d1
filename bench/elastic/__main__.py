"""``make bench-elastic``: what elastic groups cost and bring on this computer."""

import sys
from collections.abc import Sequence
from typing import Final

from bench.elastic.goodput import goodput_rows
from bench.engine_process import engine_process
from bench.rows import RESULTS, Row, finish, options, read
from pointsman.local.engine.environment import ensure_engine_environment
from pointsman.local.engine.models import ModelSize, ensure_model

COMMAND: Final = "make bench-elastic"
SEEDS: Final = (1, 2, 3)


def main(argv: Sequence[str]) -> int:
    """Measure, write the rows; 1 if a target was missed."""
    requests = (200, "requests of each run of a rate and a seed")
    fast = (False, "keep the goodput as it was measured before, in five minutes")
    asked = options(COMMAND, __doc__, argv, requests=requests, iterations_only=fast)
    environment = ensure_engine_environment()
    model = ensure_model(environment, ModelSize.SMALL)
    with engine_process(environment, "bench.elastic.iterations", str(model), OMP_NUM_THREADS="1") as ask:
        rows = [Row(**each) for each in ask(None)["rows"]]
    if asked.iterations_only:
        rows += [each for each in read(RESULTS / "elastic.json") if each.name.startswith("goodput")]
    else:
        rows += goodput_rows(asked.requests, SEEDS, COMMAND)
    return finish("elastic", rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
