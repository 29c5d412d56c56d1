"""What flow control does to an overload, on real engines: ``make bench-overload``.

A burst of prompts at once, more than the prefill worker can compute in time, and then arrivals that it can. First in,
first out the followers wait behind the burst, and all are late; with bounds (`pointsman.serving.flow_control`) what is
late anyway is held, and lets them pass. The same load on the same engines with and without bounds, in turns: one
prefill and one decode worker behind a gateway, as the engine tests start them.

How long a prompt takes is measured first; what counts as in time, when followers come, and the bound follow from it.
"""

import asyncio
import random
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from bench.rows import Row, finish, listed, options, repeated
from fixtures.engine_service import Service, running_service
from fixtures.engines import MODEL, running_engines
from pointsman.api.protocol.names import Role
from pointsman.local.engine.environment import ensure_engine_environment
from pointsman.local.traffic import Api, Endpoint, Prompt, Record, closed_loop, open_loop

COMMAND: Final = "make bench-overload"
VOCABULARY: Final = range(3, 94)  # printable: a text of them is the same however it is cut into chunks
AHEAD_IN_TIME: Final = 4.0  # so many prompts may be computed before one that is in time
AHEAD_WHEN_HELD: Final = 2.5  # with more than so many before it, a prompt is held


@dataclass(frozen=True, slots=True)
class Overload:
    """``burst`` prompts at once, then ``followers``, one every ``gap`` times what a prompt takes (1 is all it can)."""

    burst: int = 20
    followers: int = 24
    gap: float = 2.0
    prompt_tokens: int = 3600
    output_tokens: int = 8

    @property
    def bounds(self) -> dict[str, int]:
        """As in ``status.routing``."""
        return {"pendingTokensPerPrefillWorker": int(AHEAD_WHEN_HELD * self.prompt_tokens)}

    def prompts(self, count: int, seed: str) -> list[Prompt]:
        """Prompts that no cache has seen."""
        rng = random.Random(seed)
        drawn = [tuple(rng.choices(VOCABULARY, k=self.prompt_tokens)) for _ in range(count)]
        same: dict[str, Any] = {"stream": True, "max_tokens": self.output_tokens, "ignore_eos": True}
        return [Prompt(index, Api.COMPLETION, token_ids=ids, **same) for index, ids in enumerate(drawn)]

    def arrivals(self, prompt_s: float, seed: str) -> list[tuple[float, Prompt]]:
        """Each prompt with the second at which it is sent."""
        at_s = [0.0] * self.burst + [self.gap * prompt_s * (number + 1) for number in range(self.followers)]
        return list(zip(at_s, self.prompts(len(at_s), seed), strict=True))


@dataclass(frozen=True, slots=True)
class Speed:
    """Of the service: the first token of a lone prompt, and what each further prompt adds to a queue."""

    alone_s: float
    prompt_s: float

    @property
    def objective_s(self) -> float:
        """The time to the first token that counts as in time."""
        return self.alone_s + AHEAD_IN_TIME * self.prompt_s


@dataclass(frozen=True, slots=True)
class Outcome:
    """``in_time``: share of the requests; ``ttft_s`` of each in the order they were sent."""

    in_time: float
    ttft_s: tuple[float, ...]


def main(argv: list[str]) -> int:
    """Measure, write the rows; 1 if a target was missed."""
    asked = options(COMMAND, __doc__, argv, rounds=(5, "with and without bounds, in turns"))
    roles = {"prefill-0": Role.PREFILL, "decode-0": Role.DECODE}
    with (
        TemporaryDirectory() as folder,
        running_engines(Path(folder), ensure_engine_environment()) as engines,
        running_service(engines, roles) as service,
    ):
        fifo, bounded = asyncio.run(measured(service, Overload(), asked.rounds))
    return finish("overload", rows(Overload(), fifo, bounded, repeated(COMMAND, argv)))


def rows(overload: Overload, fifo: Sequence[Outcome], bounded: Sequence[Outcome], command: str = COMMAND) -> list[Row]:
    """What was late, what those that came after the burst waited, and the longest wait: the price."""

    def figures(each: Outcome) -> dict[str, float]:
        followers_s = statistics.median(each.ttft_s[overload.burst :])
        return {"late": 1 - each.in_time, "followers_s": followers_s, "longest_s": max(each.ttft_s)}

    ours, peer = [*map(figures, bounded)], [*map(figures, fifo)]
    return listed("overload", command, ours, peer, load=overload, capacity=1 / overload.gap)


async def measured(service: Service, overload: Overload, rounds: int) -> tuple[list[Outcome], list[Outcome]]:
    """Without and with bounds, each round on the same workers one after the other."""
    fifo: list[Outcome] = []
    bounded: list[Outcome] = []
    async with Endpoint(service.openai_url, MODEL) as endpoint:
        at = await speed(endpoint, overload, "bench")
        print(f"a prompt alone {at.alone_s:.2f} s, in a queue {at.prompt_s:.2f} s, in time {at.objective_s:.2f} s")
        for number in range(rounds):
            for bounds, found in ((overload.bounds, bounded), ({}, fifo)):
                await asyncio.to_thread(service.bound, bounds)
                found.append(outcome(await overloaded(endpoint, overload, at, f"{number} {bounds}"), at))
                print(f"round {number + 1}, bounds {bounds or 'none'}: {found[-1].in_time:.0%} in time")
    return fifo, bounded


async def speed(endpoint: Endpoint, overload: Overload, seed: str) -> Speed:
    """Measured: prompts one after the other, then some at once."""
    prompts = overload.prompts(18, f"speed {seed}")
    await closed_loop(endpoint, prompts[:3], clients=3)  # connections are opened, workers shake hands
    alone = [_ttft_s(record) for record in await closed_loop(endpoint, prompts[3:6], clients=1)]
    queue = sorted(_ttft_s(record) for record in await closed_loop(endpoint, prompts[6:], clients=12))
    settled = queue[3:]  # by then all of them have come, and those before them decode
    return Speed(statistics.median(alone), (settled[-1] - settled[0]) / (len(settled) - 1))


async def overloaded(endpoint: Endpoint, overload: Overload, at: Speed, seed: str) -> list[Record]:
    """What became of each request, in the order they were sent."""
    return sorted(await open_loop(endpoint, overload.arrivals(at.prompt_s, seed)), key=lambda r: r.prompt.index)


def outcome(records: Sequence[Record], at: Speed) -> Outcome:
    """Raises RuntimeError for a request that was not answered: nothing may be refused here."""
    ttft_s = tuple(_ttft_s(record) for record in records)
    return Outcome(sum(seconds <= at.objective_s for seconds in ttft_s) / len(ttft_s), ttft_s)


def _ttft_s(record: Record) -> float:
    if not record.served or record.ttft_seconds is None:
        raise RuntimeError(f"request {record.prompt.index} was not answered: {record.error}")
    return record.ttft_seconds


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
