"""A whole service answers with the tokens of one plain engine, whichever way a prompt is prefilled."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import islice

import pytest

from fixtures.engine_service import MAX_LOCAL_PREFILL_TOKENS, Service, running_service
from fixtures.engines import MODEL, Engines, PlainEngines
from pointsman.api.protocol.names import Role
from pointsman.local.traffic.client import Endpoint
from pointsman.local.traffic.exactness import compare
from pointsman.local.traffic.prompts import Mix, prompts
from pointsman.local.traffic.types import Api, PrefillPath, Prompt, Record

SEED = 20250325
MIX = Mix(
    lengths=[range(1, 10), range(120, 136), range(MAX_LOCAL_PREFILL_TOKENS, 800), range(20, 100), range(1500, 3000)],
    stream_share=0.5,
    token_ids_share=0.3,
    vocabulary=range(94),  # printable: bytes that are no UTF-8 would make texts whose parts depend on their chunks
)


@pytest.fixture(scope="module")
def service(engines: Engines) -> Iterator[Service]:
    roles = {"prefill-0": Role.PREFILL, "decode-0": Role.DECODE, "decode-1": Role.DECODE}
    with running_service(engines, roles) as running:
        yield running


@pytest.fixture
async def gateway(service: Service) -> AsyncIterator[Endpoint]:
    async with Endpoint(service.openai_url, MODEL) as endpoint:
        yield endpoint


@pytest.fixture
async def reference(plain_engines: PlainEngines) -> AsyncIterator[Endpoint]:
    async with Endpoint(plain_engines.one.openai_url, MODEL) as endpoint:
        yield endpoint


async def ask(endpoint: Endpoint, asked: Sequence[Prompt], *, at_once: int) -> list[Record]:
    slots = asyncio.Semaphore(at_once)

    async def one(prompt: Prompt) -> Record:
        async with slots:
            return await endpoint.send(prompt)

    return list(await asyncio.gather(*(one(prompt) for prompt in asked)))


async def check(gateway: Endpoint, reference: Endpoint, other: Endpoint, asked: list[Prompt]) -> dict[str, object]:
    """The reference agrees with itself, and the service with the reference; both ways of prefilling occurred."""
    alone = await ask(reference, asked, at_once=1)
    together = await ask(other, asked, at_once=8)
    itself = compare(alone, together)
    assert itself.exact, itself.differences
    served = await ask(gateway, asked, at_once=4)
    comparison = compare(alone, served)
    assert comparison.exact, comparison.differences
    paths = [record.path for record in served]
    assert paths.count(PrefillPath.REMOTE) >= len(asked) // 4, paths
    assert paths.count(PrefillPath.LOCAL) >= len(asked) // 4, paths
    lengths = [record.prompt_tokens or 0 for record in served]
    return {
        "prompts": comparison.compared,
        "different_from_one_engine": len(comparison.differences),
        "reference_different_from_itself": len(itself.differences),
        "remote_prefills": paths.count(PrefillPath.REMOTE),
        "local_prefills": paths.count(PrefillPath.LOCAL),
        "streamed": sum(prompt.stream for prompt in asked),
        "chats": sum(prompt.api is Api.CHAT for prompt in asked),
        "prompt_tokens": [min(lengths), max(lengths)],
        "completion_tokens": sum(record.completion_tokens or 0 for record in served),
    }


async def test_a_service_gives_the_tokens_of_one_engine(
    gateway: Endpoint, reference: Endpoint, plain_engines: PlainEngines
) -> None:
    async with Endpoint(plain_engines.prefill.openai_url, MODEL) as other:
        await check(gateway, reference, other, list(islice(prompts(MIX, seed=SEED), 30)))


@pytest.mark.verify
@pytest.mark.verify_path
async def test_a_service_gives_the_tokens_of_one_engine_over_200_prompts(
    gateway: Endpoint, reference: Endpoint, plain_engines: PlainEngines, findings: dict[str, object]
) -> None:
    async with Endpoint(plain_engines.prefill.openai_url, MODEL) as other:
        findings |= await check(gateway, reference, other, list(islice(prompts(MIX, seed=SEED + 1), 200)))
        findings["seed"] = SEED + 1
