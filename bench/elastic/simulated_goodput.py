"""``make bench-elastic-simulated``: goodput of two elastic instances on two cores, in simulated time.

The manager's own rounds, beside the same code with fewer choices: instances that never work together, and one group
that is never parted. Times are about those of the small model on a core of a shared computer.
"""

import sys
from collections.abc import Sequence
from functools import partial
from typing import Final

from bench.elastic.simulation import DecodeTime, Mix, Run, System, Unloaded, goodput
from bench.rows import finish, row
from pointsman.serving.elastic.latency_model import LatencyModel, PrefillTime
from pointsman.serving.elastic.types import Settings

COMMAND: Final = "make bench-elastic-simulated"
SEEDS: Final = (1, 2, 3)
REQUESTS: Final = 150
FACTOR: Final = 25.0
SLOTS: Final = 20_000
ALONE: Final = PrefillTime(0.03, 1.0e-3, 1e-7)
MODEL: Final = LatencyModel({1: ALONE, 2: PrefillTime(0.04, 0.55e-3, 0.55e-7)})
DECODE: Final = DecodeTime(0.010, 0.005, 0.005, 2e-6)

MIXES: Final = {
    "a fifth of 1 000 to 1 600 tokens": Mix(range(16, 65), range(1000, 1601), 0.2, range(24, 25)),
    "a tenth of 3 000 to 3 800 tokens": Mix(range(16, 65), range(3000, 3801), 0.1, range(8, 9)),
}
"""Prompts of 16 to 64 tokens, and long ones."""

SYSTEMS: Final = {
    "elastic": ((0, 0), Settings()),
    "static 1+1": ((0, 1), Settings()),
    "static degree 2": ((0, 0), Settings(min_degree=2)),
}


def rates(name: str, mix: Mix) -> Sequence[float]:
    """The goodput of a system, a value for each seed."""
    domains, settings = SYSTEMS[name]
    run = Run(System(name, domains, SLOTS, MODEL), DECODE, settings)
    return [goodput(run, mix, Unloaded(ALONE, DECODE), FACTOR, REQUESTS, (seed,)) for seed in SEEDS]


def main() -> int:
    """Simulate, write the rows, one for each static system; 1 if a target was missed."""
    beside = partial(row, of_ratio=True, of_means=True, at_least=1.3, command=COMMAND)
    rows = []
    for name, mix in MIXES.items():
        elastic, *static = ((system, rates(system, mix)) for system in SYSTEMS)
        rows += [beside(f"goodput, {name}", "requests/s", elastic[1], of, peer_name=peer) for peer, of in static]
    return finish("elastic_simulated", rows)


if __name__ == "__main__":
    sys.exit(main())
