"""Engines that die or come back, between the two legs of a request."""

import random
import signal

import pytest

from engine.vllm.by_hand import Hand
from fixtures.engines import Engines, PlainEngines, RunningEngine

PRINTABLE = range(94)


def prompt_of(length: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.choice(PRINTABLE) for _ in range(length)]


@pytest.fixture
def prefill(engines: Engines, request: pytest.FixtureRequest) -> RunningEngine:
    """A prefill engine of this test's own."""
    return engines.plain(engines.settings(f"own-{request.node.name[-20:]}")).wait_until_healthy()


async def test_an_engine_that_comes_back_at_its_address_is_recognised(
    engines: Engines, plain_engines: PlainEngines, prefill: RunningEngine, hand: Hand
) -> None:
    first, second = prompt_of(700, 1), prompt_of(700, 2)
    decode = plain_engines.decode
    assert await hand.ask_apart(prefill, decode, first) == await hand.ask(plain_engines.one, first)
    assert prefill.stop(signal.SIGKILL) == -signal.SIGKILL
    again = engines.plain(engines.settings("again", prefill.address)).wait_until_healthy()
    assert await hand.ask_apart(again, decode, second) == await hand.ask(plain_engines.one, second)


async def test_kv_of_a_dead_engine_is_computed_again(
    plain_engines: PlainEngines, prefill: RunningEngine, hand: Hand
) -> None:
    met, prompt = prompt_of(300, 3), prompt_of(700, 4)
    await hand.ask_apart(prefill, plain_engines.decode, met)
    params = await hand.prefill(prefill, prompt)
    prefill.stop(signal.SIGKILL)
    found = await hand.decode(plain_engines.decode, prompt, params)
    assert found == await hand.ask(plain_engines.one, prompt)


async def test_a_stopping_engine_waits_until_its_kv_is_fetched(
    plain_engines: PlainEngines, prefill: RunningEngine, hand: Hand
) -> None:
    prompt = prompt_of(700, 5)
    params = await hand.prefill(prefill, prompt)
    prefill.process.terminate()
    pulled = {"source": "external_kv_transfer"}
    before = await hand.metric(plain_engines.decode, "vllm:prompt_tokens_by_source_total", **pulled)
    found = await hand.decode(plain_engines.decode, prompt, params)
    assert found == await hand.ask(plain_engines.one, prompt)
    assert await hand.metric(plain_engines.decode, "vllm:prompt_tokens_by_source_total", **pulled) - before >= 699
    assert prefill.process.wait(120) == 0
