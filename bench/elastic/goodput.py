"""Requests a second that are in time: an elastic group beside two static ones, each of two instances on two cores.

The objective is 25 times what a request takes alone. The systems are the same engine, manager and gateway:
``maxDegree`` 1 makes instances that never work together, ``minDegree`` 2 makes one group of both.
"""

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import yaml

from bench.rows import Row, row
from pointsman.local.cluster import LocalCluster
from pointsman.local.engine.models import ModelSize, ensure_model
from pointsman.local.traffic import Api, Endpoint, Prompt, Record, open_loop

SYSTEMS: Final[Mapping[str, Mapping[str, int]]] = {
    "elastic": {"minDegree": 1, "maxDegree": 2},
    "static 1+1": {"minDegree": 1, "maxDegree": 1},
    "static degree 2": {"minDegree": 2, "maxDegree": 2},
}
SHORT: Final = range(16, 65)
LONG: Final = range(1000, 1601)
SHORT_OUTPUT: Final = 24
LONG_OUTPUT: Final = 12
LONG_EVERY: Final = 5
FACTOR: Final = 25.0
GOOD: Final = 0.9
RATE_STEP: Final = 1.25
SLOTS: Final = 8000
NAME: Final = "goodput"
READY_S: Final = 240.0


@dataclass(frozen=True, slots=True)
class Load:
    """``requests`` with Poisson arrivals, a run for each of ``seeds``; ``first_rate``: requests a second."""

    requests: int
    seeds: Sequence[int]
    first_rate: float = 4.0

    def arrivals(self, rate: float, seed: int) -> list[tuple[float, Prompt]]:
        """Each request with its second; every fifth is long, in a drawn order."""
        rng, at_s = Random(f"{seed}/{rate:g}"), 0.0
        kinds = [number % LONG_EVERY == 0 for number in range(self.requests)]
        rng.shuffle(kinds)
        found = []
        for number, is_long in enumerate(kinds):
            at_s += rng.expovariate(rate)
            found.append((at_s, asked(number, rng.choice(LONG if is_long else SHORT), is_long, rng)))
        return found


def asked(number: int, tokens: int, is_long: bool, rng: Random) -> Prompt:
    """A completion of so many tokens in and a fixed number out."""
    ids = tuple(rng.randrange(3, 90) for _ in range(tokens))
    most = LONG_OUTPUT if is_long else SHORT_OUTPUT
    return Prompt(number, Api.COMPLETION, stream=True, max_tokens=most, token_ids=ids, ignore_eos=True)


async def goodput_rows(load: Load, command: str) -> list[Row]:
    """The goodput of each system, a value for each seed."""
    with LocalCluster() as cluster:
        cluster.install()
        model = ensure_model(cluster.environment, ModelSize.SMALL)
        unloaded: dict[bool, float] = {}
        found: dict[str, list[float]] = {}
        for name, degrees in SYSTEMS.items():
            async with _Served(cluster, model, degrees) as endpoint:
                if not unloaded:  # of the elastic group, which has all degrees to choose from
                    unloaded = await _unloaded(endpoint)
                    print({"long" if is_long else "short": round(s, 3) for is_long, s in unloaded.items()}, flush=True)
                found[name] = [await _goodput(endpoint, load, seed, unloaded, name) for seed in load.seeds]
    name = f"goodput of two instances, long and short prompts, {len(load.seeds)} seeds"
    beside = partial(row, of_ratio=True, of_means=True, at_least=1.3, command=command)
    elastic = found.pop("elastic")
    return [beside(name, "requests/s", elastic, theirs, peer_name=peer) for peer, theirs in found.items()]


async def _goodput(endpoint: Endpoint, load: Load, seed: int, unloaded: Mapping[bool, float], name: str) -> float:
    """The rate at which the share in time falls below GOOD, between a rate that keeps it and the next that does not."""
    shares: dict[float, float] = {}
    rate = load.first_rate
    while True:
        began_s = time.monotonic()
        records = await open_loop(endpoint, load.arrivals(rate, seed))
        share = sum(_in_time(each, unloaded) for each in records) / len(records)
        took_s = time.monotonic() - began_s
        print(f"{name}: {rate:.3g}/s, seed {seed}: {share:.3f} in time, {took_s:.0f} s", flush=True)
        shares[rate] = share
        next_rate = rate * RATE_STEP if share >= GOOD else rate / RATE_STEP
        if next_rate in shares:
            low, high = sorted((rate, next_rate))
            return low + (high - low) * (shares[low] - GOOD) / (shares[low] - shares[high])
        rate = next_rate


def _in_time(record: Record, unloaded: Mapping[bool, float]) -> bool:
    is_long = record.prompt.max_tokens == LONG_OUTPUT
    return record.served and record.total_seconds <= FACTOR * unloaded[is_long]


async def _unloaded(endpoint: Endpoint) -> dict[bool, float]:
    """Seconds of a mean short and a mean long request that is alone."""
    found = {}
    for is_long, lengths in ((False, SHORT), (True, LONG)):
        took = []
        for number in range(5):
            prompt = asked(number, (lengths.start + lengths.stop) // 2, is_long, Random(number))
            record = await endpoint.send(prompt)
            took.append(record.total_seconds)
        found[is_long] = sorted(took)[len(took) // 2]
    return found


class _Served:
    """The group with these degrees for the time of a ``with`` block."""

    def __init__(self, cluster: LocalCluster, model: Path, degrees: Mapping[str, int]) -> None:
        self._cluster = cluster
        self._manifest: dict[str, Any] = {
            "apiVersion": "pointsman.dev/v1alpha1",
            "kind": "ElasticGroup",
            "metadata": {"name": NAME},
            "spec": {
                "model": {"source": f"file://{model}", "servedName": NAME},
                "engine": {"args": ["--dtype=float32", "--max-model-len=4096"]},
                "instance": {"gpus": 0, "kvTokens": SLOTS},
                "instances": {"replicas": 2, "maxReplicas": 2},
                "parallelism": dict(degrees),
                "drain": {"timeoutSeconds": 5},
            },
        }

    async def __aenter__(self) -> Endpoint:
        await self._kubectl("apply", "-f", "-", stdin=yaml.safe_dump(self._manifest))
        deadline_s = time.monotonic() + READY_S
        while not await self._ready():
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"the group is not ready after {READY_S:.0f} s")
            await asyncio.sleep(0.5)
        url = await asyncio.to_thread(self._cluster.gateway_url, NAME)
        assert url is not None
        self._endpoint = await Endpoint(url, NAME, timeout_seconds=600).__aenter__()
        for number in range(3):  # requests wait while degrees are measured
            await self._endpoint.send(asked(number, 1500, True, Random(number)))
        return self._endpoint

    async def __aexit__(self, *_: object) -> None:
        await self._endpoint.__aexit__()
        await self._kubectl("delete", "eg", NAME, "--wait=false")
        selector = f"pointsman.dev/service={NAME}"
        await self._kubectl("wait", "--for=delete", "pods", "-l", selector, "--timeout=50s")

    async def _ready(self) -> bool:
        found = json.loads(await self._kubectl("get", "eg", NAME, "-o", "json"))
        conditions = {each["type"]: each["status"] for each in found.get("status", {}).get("conditions", [])}
        return conditions.get("Ready") == "True"

    async def _kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        return await asyncio.to_thread(self._cluster.kubectl, "-n", "default", *arguments, stdin=stdin)
