"""Running streams while long prompts arrive: the load that separating prefill from decode exists for.

A server that does both stalls every stream while a long prompt computes; the worst inter-token latency of the
streams shows it. (The scenario of the figure in Zhong et al., DistServe, OSDI 2024, §2.)
"""

import asyncio
import random
from dataclasses import dataclass

from pointsman.local.errors import LocalError
from pointsman.local.traffic.client import Endpoint
from pointsman.local.traffic.statistics import Latency, Summary, summarise
from pointsman.local.traffic.types import Api, Prompt, Record

_STREAM_PROMPT_TOKENS = 32
_STREAM_MAX_TOKENS = 4_000  # more than any run takes: streams are left when the last long prompt is answered


class StreamsEnded(LocalError):
    """The streams were over before the last long prompt was answered: its stall was not measured."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """``streams`` decode while ``arrivals`` prompts of ``prompt_tokens`` come, each ``pause_seconds`` after the last.

    One long prompt at a time, however fast the computer is: what is measured is the stall of the streams, not a queue.
    ``vocabulary`` is where token ids are drawn from.
    """

    streams: int = 3
    arrivals: int = 4
    prompt_tokens: int = 2_000
    pause_seconds: float = 0.25
    vocabulary: range = range(3, 256)
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Interference:
    """What happened: ``itl`` of the streams from their first tokens on, ``ttft`` of the long prompts."""

    itl: Latency
    ttft: Latency
    streams: Summary
    arrivals: Summary
    errors: tuple[str, ...] = ()

    @property
    def failed_requests(self) -> int:
        """Requests of either kind that were not served."""
        return self.streams.failed_requests + self.arrivals.failed_requests


async def interfere(endpoint: Endpoint, scenario: Scenario, *, timeout_seconds: float = 180.0) -> Interference:
    """Run ``scenario`` on ``endpoint``. Raises TimeoutError if it does not end in time, StreamsEnded if they did."""
    rng = random.Random(f"interference/{scenario.seed}")
    flowing = [asyncio.Event() for _ in range(scenario.streams)]
    enough = asyncio.Event()

    def prompt(index: int, tokens: int, max_tokens: int) -> Prompt:
        ids = tuple(rng.choice(scenario.vocabulary) for _ in range(tokens))
        return Prompt(index, Api.COMPLETION, True, max_tokens, token_ids=ids, ignore_eos=True)

    long_prompts = [prompt(index, scenario.prompt_tokens, 2) for index in range(scenario.arrivals)]
    async with asyncio.timeout(timeout_seconds), asyncio.TaskGroup() as group:
        streams = [
            group.create_task(
                endpoint.send(
                    prompt(index, _STREAM_PROMPT_TOKENS, _STREAM_MAX_TOKENS), enough=enough, on_token=flows.set
                )
            )
            for index, flows in enumerate(flowing)
        ]
        # A stream that fails at once never flows: its end must not be waited for in vain.
        for flows, stream in zip(flowing, streams, strict=True):
            first = group.create_task(flows.wait())
            await asyncio.wait({first, stream}, return_when=asyncio.FIRST_COMPLETED)
            flows.set()
        arrivals: list[Record] = []
        for asked in long_prompts:
            await asyncio.sleep(scenario.pause_seconds)
            arrivals.append(await endpoint.send(asked))
        enough.set()
    ended = [stream.result() for stream in streams]
    shorter = [record for record in ended if record.served and not record.left]
    if shorter:
        raise StreamsEnded(
            f"{len(shorter)} of {scenario.streams} streams ended by themselves before the last long prompt was "
            "answered: the stall of the last arrivals was not measured; use fewer arrivals"
        )
    of_streams, of_arrivals = summarise(ended), summarise(arrivals)
    errors = tuple(sorted({record.error for record in (*ended, *arrivals) if record.error is not None}))
    return Interference(of_streams.itl, of_arrivals.ttft, of_streams, of_arrivals, errors)
