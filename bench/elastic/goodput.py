"""Requests a second that are in time: an elastic group beside two static ones, each of two instances on two cores.

The objective is 25 times what a request takes alone. The systems are the same engine, manager and gateway:
``maxDegree`` 1 makes instances that never work together, ``minDegree`` 2 makes one group of both.
"""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, Final

import yaml

from bench.rows import Row, data, row
from bench.services import serve
from pointsman.local.cluster import LocalCluster
from pointsman.local.elastic_quickstart.run import EXAMPLE
from pointsman.local.engine.models import ModelSize, ensure_model
from pointsman.local.traffic import Api, Endpoint, Prompt, open_loop

SYSTEMS: Final[Mapping[str, Mapping[str, int]]] = data("goodput")
SHORT: Final = (range(16, 65), 24)  # tokens of a prompt, and of its answer
LONG: Final = (range(1000, 1601), 12)
LONG_EVERY: Final = 5
FACTOR: Final = 25.0
GOOD: Final = 0.9
FIRST_RATE: Final = 4.0
RATE_STEP: Final = 1.25
NAME: Final = "goodput"


def goodput_rows(requests: int, seeds: Sequence[int], command: str) -> list[Row]:
    """The goodput of each system, a value for each seed; ``requests`` of each rate that is tried."""
    found: dict[str, list[float]] = {}
    alone: dict[int, float] = {}
    with LocalCluster() as cluster:
        cluster.install()
        model = ensure_model(cluster.environment, ModelSize.SMALL)
        for name, degrees in SYSTEMS.items():
            url = serve(cluster, group(model, degrees))
            found[name] = asyncio.run(measure_system(url, requests, seeds, alone))
            print(name, found[name], flush=True)
            cluster.kubectl("delete", "eg", NAME, "--wait=false")
            cluster.kubectl("wait", "--for=delete", "pods", "-l", f"pointsman.dev/service={NAME}", "--timeout=50s")
    name = f"goodput of two instances, long and short prompts, {len(seeds)} seeds"
    beside = partial(row, of_ratio=True, of_means=True, at_least=1.3, command=command)
    elastic = found.pop("elastic")
    return [beside(name, "requests/s", elastic, theirs, peer_name=peer) for peer, theirs in found.items()]


def group(model: Path, degrees: Mapping[str, int]) -> dict[str, Any]:
    """The quick start's group with these degrees."""
    manifest: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
    manifest["metadata"]["name"] = NAME
    manifest["spec"] |= {"parallelism": dict(degrees), "drain": {"timeoutSeconds": 5}}
    manifest["spec"]["model"] = {"source": f"file://{model}", "servedName": NAME}
    return manifest


async def measure_system(url: str, requests: int, seeds: Sequence[int], alone: dict[int, float]) -> list[float]:
    """The goodput of each seed. ``alone``: is filled by the first system, the elastic group, which has all degrees."""
    async with Endpoint(url, NAME, timeout_seconds=600) as endpoint:
        for number in range(3):  # requests wait while degrees are measured
            await endpoint.send(drawn(number, 1500, 12, Random(number)))
        if not alone:
            alone |= {output: await median_s(endpoint, lengths, output) for lengths, output in (SHORT, LONG)}
        return [await measure_goodput(endpoint, requests, seed, alone) for seed in seeds]


async def median_s(endpoint: Endpoint, lengths: range, output_tokens: int) -> float:
    """Seconds of a mean request that is alone."""
    tokens = (lengths.start + lengths.stop) // 2
    prompts = [drawn(number, tokens, output_tokens, Random(number)) for number in range(5)]
    return median([(await endpoint.send(prompt)).total_seconds for prompt in prompts])


async def measure_goodput(endpoint: Endpoint, requests: int, seed: int, alone: Mapping[int, float]) -> float:
    """The rate at which the share in time falls below GOOD, between a rate that keeps it and the next that does not."""
    shares: dict[float, float] = {}
    rate = FIRST_RATE
    while True:
        records = await open_loop(endpoint, arrivals(requests, rate, seed))
        in_time = [each.served and each.total_seconds <= FACTOR * alone[each.prompt.max_tokens] for each in records]
        shares[rate] = sum(in_time) / len(in_time)
        print(f"{rate:.3g}/s, seed {seed}: {shares[rate]:.3f} in time", flush=True)
        next_rate = rate * RATE_STEP if shares[rate] >= GOOD else rate / RATE_STEP
        if next_rate in shares:
            low, high = sorted((rate, next_rate))
            return low + (high - low) * (shares[low] - GOOD) / (shares[low] - shares[high])
        rate = next_rate


def arrivals(requests: int, rate: float, seed: int) -> list[tuple[float, Prompt]]:
    """Poisson arrivals: each request with its second; every fifth is long, in a drawn order."""
    rng, at_s, found = Random(f"{seed}/{rate:g}"), 0.0, []
    kinds = [number % LONG_EVERY == 0 for number in range(requests)]
    rng.shuffle(kinds)
    for number, is_long in enumerate(kinds):
        at_s += rng.expovariate(rate)
        lengths, output = LONG if is_long else SHORT
        found.append((at_s, drawn(number, rng.choice(lengths), output, rng)))
    return found


def drawn(number: int, tokens: int, output_tokens: int, rng: Random) -> Prompt:
    """A completion of so many tokens in, and in any case so many out."""
    ids = tuple(rng.randrange(3, 90) for _ in range(tokens))
    return Prompt(number, Api.COMPLETION, stream=True, max_tokens=output_tokens, token_ids=ids, ignore_eos=True)
