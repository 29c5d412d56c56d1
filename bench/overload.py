"""What flow control does to an overload, on real engines: ``make bench-overload``.

A burst of prompts at once, more than the prefill worker can compute in time, and then arrivals that it can. First in,
first out the followers wait behind the burst, and all are late; with bounds (`pointsman.serving.flow_control`) what is
late anyway is held, and lets them pass. The same load on the same engines without and with bounds, in turns.

How long a prompt takes is measured first; what counts as in time, when followers come, and the bound follow from it.
"""

import asyncio
import random
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from bench.rows import Row, finish, options, repeated, row
from bench.services import one_of_each, served
from pointsman.api.protocol import names
from pointsman.kube.client import Kube
from pointsman.kube.resources import LLM_SERVICES
from pointsman.local.cluster import LocalCluster
from pointsman.local.engine.models import ModelSize, ensure_model
from pointsman.local.traffic import Api, Endpoint, Prompt, Record, closed_loop, open_loop
from pointsman.serving.flow_control import FlowBounds

COMMAND: Final = "make bench-overload"
SERVICE: Final = "overload"
FIFO: Final = "first in, first out"
BOUNDS_SECONDS: Final = 30.0
LOOK_S: Final = 0.2
LATE_RATIO, FOLLOWERS_RATIO, WORST_RATIO = 0.6, 0.5, 3.0
ROUTING: Final = {"maxLocalPrefillTokens": 200, "maxPrefillQueueSize": 100}
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

    @property
    def worst_s(self) -> float:
        """The longest time to a first token."""
        return max(self.ttft_s)

    def followers_s(self, overload: Overload) -> float:
        """The median time to a first token of those that came after the burst."""
        return statistics.median(self.ttft_s[overload.burst :])


def main(argv: list[str]) -> int:
    """Measure, write the rows; 1 if a target was missed."""
    rounds, tokens = (5, "without and with bounds, in turns"), (Overload().prompt_tokens, "of a prompt")
    asked = options(COMMAND, __doc__, argv, rounds=rounds, tokens=tokens)
    overload = Overload(prompt_tokens=asked.tokens)
    fifo, bounded = asyncio.run(measured(overload, asked.rounds))
    return finish("overload", rows(overload, fifo, bounded, repeated(COMMAND, argv)))


def rows(overload: Overload, fifo: Sequence[Outcome], bounded: Sequence[Outcome], command: str = COMMAND) -> list[Row]:
    """What was late, what those that came after the burst waited, and the longest wait: the price."""
    what = f"{overload.burst} prompts at once, then {overload.followers} at {1 / overload.gap:.0%} of capacity"

    beside = partial(row, peer_name=FIFO, of_ratio=True, command=command)
    late = [[1 - each.in_time for each in side] for side in (bounded, fifo)]
    followers = [[each.followers_s(overload) for each in side] for side in (bounded, fifo)]
    worst = [[each.worst_s for each in side] for side in (bounded, fifo)]
    return [
        beside(f"{what}: late", "of all", *late, at_most=LATE_RATIO),
        beside("TTFT p50 of those after the burst", "s", *followers, at_most=FOLLOWERS_RATIO),
        beside("longest TTFT of the same", "s", *worst, at_most=WORST_RATIO),
    ]


async def measured(overload: Overload, rounds: int) -> tuple[list[Outcome], list[Outcome]]:
    """Without and with bounds, each round on the same workers one after the other."""
    fifo: list[Outcome] = []
    bounded: list[Outcome] = []
    async with LocalCluster() as cluster:
        await asyncio.to_thread(cluster.install)
        manifest = one_of_each(SERVICE, ensure_model(cluster.environment, ModelSize.TINY))
        async with served(cluster, SERVICE, manifest) as (kube, endpoint):
            at = await speed(endpoint, overload, "bench")
            print(f"a prompt alone {at.alone_s:.2f} s, in a queue {at.prompt_s:.2f} s, in time {at.objective_s:.2f} s")
            for number in range(rounds):
                for on, found in ((False, fifo), (True, bounded)):
                    await _bound(kube, cluster, overload, on=on)
                    found.append(outcome(await overloaded(endpoint, overload, at, f"{number} {on}"), at))
                    print(
                        f"round {number + 1}, {'flow control' if on else FIFO}: {found[-1].in_time:.0%} in time, "
                        f"later ones {found[-1].followers_s(overload):.2f} s, longest {found[-1].worst_s:.2f} s"
                    )
    return fifo, bounded


async def _bound(kube: Kube, cluster: LocalCluster, overload: Overload, *, on: bool) -> None:
    """The bounds are in ``status.routing``, or none; and the gateway has said so."""
    routing = ROUTING | {name: bound if on else None for name, bound in overload.bounds.items()}
    await kube.patch(LLM_SERVICES, SERVICE, "default", {"status": {"routing": routing}}, subresource="status")
    pod = f"{names.SERVICE_LABEL}={SERVICE},{names.COMPONENT_LABEL}={names.COMPONENT_GATEWAY}"
    wanted = str(FlowBounds(pending_tokens_per_prefill_worker=routing["pendingTokensPerPrefillWorker"]))
    async with asyncio.timeout(BOUNDS_SECONDS):
        while True:
            log = await asyncio.to_thread(cluster.kubectl, "logs", "-l", pod, "--tail=-1")
            said = [line for line in log.splitlines() if '"message": "flow control"' in line]
            if wanted in said[-1] if said else not on:
                return
            await asyncio.sleep(LOOK_S)


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
