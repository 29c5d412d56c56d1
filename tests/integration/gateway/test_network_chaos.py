"""Seeded network faults between gateways and workers: an answer is whole and right, or ends with one clear error.

Every connection is reset, ended or stalled within its first answers.
"""

import asyncio
import json
import random
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from fixtures.gateways import Entry, Gateway
from fixtures.tcp_faults import TcpProxy, chaos, healthy
from integration.gateway.conftest import Room
from integration.gateway.stand_in_worker import SERVED_NAME, StandInWorker
from waiting import eventually

WORKERS, GATEWAYS, CLIENTS, REQUESTS = 3, 2, 8, 120
MOST_BYTES = 12_000  # of answers that each connection lasts; one answer has 200 to 6 000
SECONDS = {  # a stall costs one of these
    "inactivity_timeout_seconds": 1,
    "first_token_timeout_seconds": 3,
    "answer_timeout_seconds": 3,
    "patience_seconds": 3,
    "suspect_seconds": 0.1,
}
REASONS = (
    "2 workers died while answering this request",  # for all the gateway knows
    "attempts failed",
    "did not come in time",  # a connection stalled before the first token
)
LONGEST_SECONDS = 30.0  # patience, first token, and silence at each of four workers, twice over


@dataclass(frozen=True)
class Outcome:
    """What a client got: the text, and why it is not whole (None: it is)."""

    text: str
    error: str | None


def asked(rng: random.Random) -> tuple[str, dict[str, Any]]:
    """Path and body of one request: a chat or a completion, streamed or not."""
    words = " ".join(rng.choice(("signal", "points", "danger", "clear")) for _ in range(rng.randrange(1, 9)))
    body: dict[str, Any] = {"model": SERVED_NAME, "max_tokens": rng.randrange(1, 25), "stream": rng.random() < 0.6}
    if rng.random() < 0.5:
        return "/v1/chat/completions", body | {"messages": [{"role": "user", "content": words}]}
    return "/v1/completions", body | {"prompt": words}


def right_text(worker: StandInWorker, path: str, body: dict[str, Any]) -> str:
    """What every worker answers."""
    prompt = worker.rendered(body) if "chat" in path else worker.tokenizer(body["prompt"])["input_ids"]
    return str(worker.tokenizer.decode(worker.output(prompt, body["max_tokens"])))


async def answered(gateway: Gateway, path: str, body: dict[str, Any]) -> Outcome:
    """One request, read byte by byte: nothing but the events of one answer may be in it."""
    async with gateway.http.post(gateway.of.url + path, json=body) as answer:
        data = await answer.read()
        assert answer.headers["X-Request-Id"]
        if answer.status != 200:
            assert answer.status in (502, 503, 504), data
            return Outcome("", _error(json.loads(data)))
    if not body["stream"]:
        choice = json.loads(data)["choices"][0]
        return Outcome(choice["message"]["content"] if "message" in choice else choice["text"], None)
    text = ""
    *events, end = [line for line in data.decode().splitlines() if line]
    assert all(line.startswith("data: ") for line in (*events, end)), data
    for event in (json.loads(line[6:]) for line in events):
        if "error" in event:
            return Outcome(text, _error(event))
        for choice in event["choices"]:
            text += (choice["delta"].get("content") or "") if "delta" in choice else choice["text"]
    assert end == "data: [DONE]", data
    return Outcome(text, None)


def _error(body: dict[str, Any]) -> str:
    assert set(body["error"]) >= {"message", "type", "param", "code"}, body
    return str(body["error"]["message"])


async def survived(room: Room, seed: int) -> Counter[str]:
    """``REQUESTS`` requests at two gateways while the network fails; how many ended in which way."""
    rng = random.Random(seed)
    workers = await room.workers(WORKERS)
    ended: Counter[str] = Counter()
    async with AsyncExitStack() as stack:
        networks = [
            await stack.enter_async_context(TcpProxy(worker.url, chaos(rng.randrange(2**32), most_bytes=MOST_BYTES)))
            for worker in workers
        ]
        seen = [Entry(worker.name, network.url) for worker, network in zip(workers, networks, strict=True)]
        gateways = [await room.gateway([], **SECONDS) for _ in range(GATEWAYS)]
        for gateway in gateways:
            gateway.write_endpoints(seen)
            await gateway.knows(*seen)
        requests = [asked(rng) for _ in range(REQUESTS)]

        async def client() -> None:
            while requests:
                path, body = requests.pop()
                async with asyncio.timeout(LONGEST_SECONDS):
                    outcome = await answered(rng.choice(gateways), path, body)
                right = right_text(workers[0], path, body)
                if outcome.error is None:
                    assert outcome.text == right
                else:
                    assert right.startswith(outcome.text)
                    assert any(reason in outcome.error for reason in REASONS), outcome.error
                kind = "stream" if body["stream"] else "whole"
                ended[f"{kind} {'answered' if outcome.error is None else 'failed'}"] += 1

        async with asyncio.TaskGroup() as clients:
            for _ in range(CLIENTS):
                clients.create_task(client())
        ended["moved"] = sum([await moves(gateway) for gateway in gateways])
        for network in networks:
            network.plan = healthy
        for gateway in gateways:
            await eventually(partial(nothing_left, gateway), "nothing is left in flight")
            path, body = asked(rng)

            async def works(of: Gateway = gateway, path: str = path, body: dict[str, Any] = body) -> bool:
                return await answered(of, path, body) == Outcome(right_text(workers[0], path, body), None)

            await eventually(works, "the next request is answered")
            assert "Traceback" not in json.dumps(gateway.logs)
    return ended


async def moves(gateway: Gateway) -> int:
    """How often a request went to another worker."""
    return int(sum(value for key, value in (await gateway.metrics()).items() if "gateway_retries_total{" in key))


async def nothing_left(gateway: Gateway) -> bool:
    """No request is in flight, by its own count and in what it tells the operator."""
    endpoints = (await gateway.report())["endpoints"]
    in_flight = (await gateway.metrics())['pointsman_gateway_in_flight{service="chat"}']
    return in_flight == 0 and not any(endpoint["inFlight"] for endpoint in endpoints)


async def test_answers_are_right_or_end_with_one_error_while_the_network_fails(room: Room) -> None:
    ended = await survived(room, 1)
    assert ended["moved"] > 10, "the faults were met"
    assert ended["stream answered"] + ended["whole answered"] > 0.7 * REQUESTS


@pytest.mark.verify
@pytest.mark.verify_path
async def test_twenty_seeds_of_network_faults(room: Room, findings: dict[str, object]) -> None:
    ended: Counter[str] = Counter()
    for seed in range(20):
        ended += await survived(room, seed)
    findings.update(ended, seeds=list(range(20)))
