"""Prefill and decode apart, by hand: what Pointsman's workers do between two engines, without them."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from fixtures.engines import MODEL, RunningEngine

ASK_FOR_TRANSFER = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
TransferParams = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """A completion of a list of token ids."""

    token_ids: tuple[int, ...]
    finish_reason: str


def unchanged(params: TransferParams) -> TransferParams:
    """What a router does to the transfer parameters on their way: nothing."""
    return params


class Hand:
    """Asks engines for greedy completions of token ids."""

    def __init__(self, session: aiohttp.ClientSession, *, tokens: int = 24) -> None:
        self._session = session
        self._tokens = tokens

    async def ask(self, engine: RunningEngine, prompt: Sequence[int]) -> Answer:
        """One engine, prefill and decode."""
        return _answer(await self._post(engine, {"prompt": list(prompt), "max_tokens": self._tokens}))

    async def prefill(self, engine: RunningEngine, prompt: Sequence[int]) -> TransferParams:
        """The prefill leg; what the decode engine needs to pull the KV."""
        body = {"prompt": list(prompt), "max_tokens": 1, "kv_transfer_params": ASK_FOR_TRANSFER}
        params: TransferParams = (await self._post(engine, body))["kv_transfer_params"]
        return params

    async def decode(self, engine: RunningEngine, prompt: Sequence[int], params: TransferParams) -> Answer:
        """The decode leg."""
        body = {"prompt": list(prompt), "max_tokens": self._tokens, "kv_transfer_params": params}
        return _answer(await self._post(engine, body))

    async def ask_apart(
        self,
        prefill: RunningEngine,
        decode: RunningEngine,
        prompt: Sequence[int],
        in_transit: Callable[[TransferParams], TransferParams] = unchanged,
    ) -> Answer:
        """Prefill on one engine, decode on another."""
        return await self.decode(decode, prompt, in_transit(await self.prefill(prefill, prompt)))

    async def ask_all(self, engine: RunningEngine, prompts: Sequence[Sequence[int]], at_once: int) -> list[Answer]:
        """All prompts to one engine, so many at a time; answers in the order of the prompts."""
        slots = asyncio.Semaphore(at_once)

        async def one(prompt: Sequence[int]) -> Answer:
            async with slots:
                return await self.ask(engine, prompt)

        return list(await asyncio.gather(*(one(prompt) for prompt in prompts)))

    async def metric(self, engine: RunningEngine, name: str, **labels: str) -> float:
        """Sum of a metric's samples that have these labels."""
        async with self._session.get(f"{engine.url}/metrics") as response:
            text = await response.text()
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        lines = (line for line in text.splitlines() if line.startswith((f"{name}{{", f"{name} ")))
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if all(label in line for label in wanted))

    async def _post(self, engine: RunningEngine, body: Mapping[str, Any]) -> dict[str, Any]:
        request = {"model": MODEL, "temperature": 0, "return_token_ids": True, **body}
        async with self._session.post(f"{engine.openai_url}/completions", json=request) as response:
            answer: dict[str, Any] = await response.json()
            assert response.status == 200, answer
            return answer


def _answer(body: Mapping[str, Any]) -> Answer:
    choice = body["choices"][0]
    return Answer(tuple(choice["token_ids"]), choice["finish_reason"])
