"""How fast an embedding gets from an encode worker to the worker that prefills: ``make bench-multimodal``.

Two processes with the code of the workers. Measured is the whole transfer of 2 000 tokens of 4 096 bfloat16, from the
request of the language side to the embedding in its memory, by shared memory, NIXL and TCP (loopback). Beside it is a
plain copy of as many bytes in the language side's process, by one thread, between buffers that are in no cache. All are
measured in turns, round after round, in another order each time.
"""

import sys
from collections.abc import Mapping, Sequence

from bench.engine_process import engine_process
from bench.rows import Row, finish, listed, options, repeated
from pointsman.local.engine.environment import ensure_engine_environment

COMMAND = "make bench-multimodal"


def measure(rounds: int) -> dict[str, list[float]]:
    """GB/s of each round, by transport and images at once."""
    loopback = {"UCX_NET_DEVICES": "lo", "UCX_TLS": "tcp,self"}
    program = "bench.multimodal.transfer_sides"
    with engine_process(ensure_engine_environment(), program, str(rounds), **loopback) as ask:
        return ask(None)


def rows(found: Mapping[str, Sequence[float]], command: str) -> list[Row]:
    """The rows of the benchmark."""
    rounds = [dict(zip(found, of_round, strict=True)) for of_round in zip(*found.values(), strict=True)]
    return listed("embedding_transfer", command, rounds, rounds)


def main(argv: list[str]) -> int:
    """Measure and write ``bench/results/embedding_transfer.json``; 1 if a target is missed."""
    asked = options(COMMAND, __doc__, argv, rounds=(40, "of all ways"))
    return finish("embedding_transfer", rows(measure(asked.rounds), repeated(COMMAND, argv)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
