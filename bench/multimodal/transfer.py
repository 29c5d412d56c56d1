"""How fast an embedding gets from an encode worker to the worker that prefills: ``make bench-multimodal``.

Two processes with the code of the workers. Measured is the whole transfer of 2 000 tokens of 4 096 bfloat16, from the
request of the language side to the embedding in its memory, by shared memory, NIXL and TCP (loopback). Beside it is a
plain copy of as many bytes in the language side's process, by one thread, between buffers that are in no cache. All are
measured in turns, round after round, in another order each time.
"""

import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final

from bench.engine_process import EngineProcess
from bench.multimodal.transfer_side import SIZE_BYTES
from bench.rows import Row, finish, options, repeated, row
from pointsman.local.engine.environment import ensure_engine_environment

COMMAND: Final = "make bench-multimodal"
MIN_SHARE: Final = 0.8  # of a copy's bandwidth, by shared memory
TRANSPORTS: Final = {"shared_memory": "shared memory", "nixl": "NIXL", "tcp": "TCP"}
KNOWN, SIZES_FIRST, DEFAULT_FIRST = "length known", "sizes first", "1 024 + 976 tokens"
WARM_UP_ROUNDS: Final = 3


@dataclass(frozen=True)
class Way:
    """How embeddings are transferred, ``at_once`` of them. ``length``: how the language side comes to know it."""

    transport: str
    length: str = KNOWN
    at_once: int = 1

    @property
    def in_words(self) -> str:
        """The name of the row."""
        many = "one image" if self.at_once == 1 else f"{self.at_once} images at once"
        return f"{TRANSPORTS[self.transport]}, {many}, {self.length}"


MEMCPY: Final = "memcpy"
WAYS: Final = (
    *(Way(MEMCPY, at_once=at_once) for at_once in (1, 4)),
    *(Way(transport, at_once=at_once) for transport in TRANSPORTS for at_once in (1, 4)),
    *(Way(transport, length) for transport in TRANSPORTS for length in (SIZES_FIRST, DEFAULT_FIRST)),
)


@contextmanager
def sides() -> Iterator[tuple[EngineProcess, EngineProcess]]:
    """The encode and the language side."""
    environment = ensure_engine_environment(report=lambda text: print(text, file=sys.stderr))
    variables = {"UCX_NET_DEVICES": "lo", "UCX_TLS": "tcp,self"}
    start = partial(EngineProcess, environment, "bench.multimodal.transfer_side", **variables)
    with tempfile.TemporaryDirectory() as folder, start("encode", folder) as encode:
        port = encode.answer()["port"]
        with start("language", f"unix:{folder}/encode.sock", f"127.0.0.1:{port}") as language:
            language.answer()
            yield encode, language


def measure(rounds: int, seed: int) -> dict[Way, list[float]]:
    """GB/s of each round."""
    rng = Random(seed)
    found: dict[Way, list[float]] = {}
    with sides() as (encode, language):
        for number in range(WARM_UP_ROUNDS + rounds):
            for way in rng.sample(WAYS, len(WAYS)):
                if way.transport == MEMCPY:
                    seconds = language.ask({"copy": way.at_once})["seconds"]
                else:
                    requests = [f"{number} {way} {each}" for each in range(way.at_once)]
                    encode.ask({"put": requests})
                    how = {"sizes_first": way.length != DEFAULT_FIRST, "known": way.length == KNOWN}
                    command = {"fetch": requests, "transport": way.transport, **how}
                    seconds = language.ask(command)["seconds"]
                if number >= WARM_UP_ROUNDS:
                    found.setdefault(way, []).append(way.at_once * SIZE_BYTES / seconds / 1e9)
    return found


def rows(found: Mapping[Way, list[float]], command: str) -> list[Row]:
    """The rows of the benchmark."""
    targets = {way: MIN_SHARE if way.transport == "shared_memory" and way.length == KNOWN else 0.0 for way in WAYS}
    return [
        row(
            way.in_words, "GB/s", found[way], found[Way(MEMCPY, at_once=way.at_once)], peer_name=MEMCPY,
            at_least=least, of_ratio=True, command=command,
        )
        for way, least in targets.items()
        if way.transport != MEMCPY
    ]  # fmt: skip


def main(argv: list[str]) -> int:
    """Measure and write ``bench/results/embedding_transfer.json``; 1 if a target is missed."""
    asked = options(COMMAND, __doc__, argv, rounds=(40, "of all ways"), seed=(1, "of the order of each round"))
    return finish("embedding_transfer", rows(measure(asked.rounds, asked.seed), repeated(COMMAND, argv)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
