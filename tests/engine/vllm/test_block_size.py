"""Engines with different block sizes never exchange KV: on CPU that gives HTTP 200 and wrong tokens."""

import random
from collections.abc import Iterator

import pytest

from engine.vllm.by_hand import Hand
from fixtures.engine_service import MAX_LOCAL_PREFILL_TOKENS, Service, running_service
from fixtures.engines import Engines, PlainEngines
from pointsman.api.protocol.names import Role

EXTERNAL = {"source": "external_kv_transfer"}


@pytest.fixture
def mismatched(engines: Engines) -> Iterator[Service]:
    """As after a mistake: one KV-compatibility group, two block sizes."""
    roles = {"blocks-of-64": Role.PREFILL, "blocks-of-128": Role.DECODE}
    with running_service(engines, roles, changes={"blocks-of-64": {"block_size": 64}}) as running:
        yield running


async def test_a_prefill_worker_refuses_a_request_of_another_block_size(
    mismatched: Service, plain_engines: PlainEngines, hand: Hand
) -> None:
    decode = mismatched.workers["blocks-of-128"]
    rng = random.Random(64)
    for length in (MAX_LOCAL_PREFILL_TOKENS + 1, 700):
        prompt = [rng.choice(range(94)) for _ in range(length)]
        assert await hand.ask(decode, prompt) == await hand.ask(plain_engines.one, prompt)
    assert await hand.metric(decode, "pointsman_worker_prefill_decisions_total", reason="prefill-failed") == 2
    assert await hand.metric(decode, "vllm:prompt_tokens_by_source_total", **EXTERNAL) == 0
    assert "block size is 128, this engine's is 64" in decode.log.read_text()
