"""LoRA adapters over real engines: listed, served with remote prefill, and never answered from each other's KV."""

import random
from collections.abc import AsyncIterator, Iterator
from typing import Any

import openai
import pytest

from engine.gateway.conftest import TOKEN, entry, give_role
from fixtures.engines import MODEL, SMALL_ENGINE, Engines, RunningEngine
from fixtures.gateways import Gateway, GatewayProcess, connected, gateway_process
from fixtures.lora_adapters import adapter_flags, make_adapter
from fixtures.nats_server import PASSWORD, USER, running_nats
from pointsman.api.protocol import headers
from pointsman.api.protocol.names import Role
from waiting import eventually

NAMES = (MODEL, "cooking", "sql")
LOCAL_TOKENS = 200
PROMPT_TOKENS = 600


@pytest.fixture(scope="module")
def workers(
    engines: Engines, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[RunningEngine, RunningEngine]]:
    """A prefill and a decode worker with two adapters."""
    folder = tmp_path_factory.mktemp("adapters")
    adapters = [(name, make_adapter(folder / name, engines.model, seed)) for seed, name in enumerate(NAMES[1:])]
    arguments = (*SMALL_ENGINE, *adapter_flags(adapters))
    with running_nats() as nats:
        login = {"nats_url": nats.url, "nats_user": USER, "nats_password": PASSWORD, "service_uid": "adapters"}
        started = [engines.worker(engines.settings(name, **login), arguments) for name in ("lora-p", "lora-d")]
        prefill, decode = (engine.wait_until_healthy() for engine in started)
        yield prefill, decode
        for engine in started:
            engine.process.kill()


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """The gateway of this module."""
    with gateway_process(tmp_path_factory.mktemp("gateway"), token=TOKEN) as running:
        yield running


@pytest.fixture
async def gateway(process: GatewayProcess, workers: tuple[RunningEngine, RunningEngine]) -> AsyncIterator[Gateway]:
    """A gateway over both workers, with a threshold that sends the tests' prompts to the prefill worker."""
    prefill, decode = workers
    await give_role(prefill, Role.PREFILL)
    await give_role(decode, Role.DECODE)
    async with connected(process) as found:
        routing = {"maxLocalPrefillTokens": LOCAL_TOKENS, "maxPrefillQueueSize": 8}
        found.write_endpoints([entry(decode)], routing=routing)
        await found.knows(decode)
        yield found


async def answer(gateway: Gateway, model: str, prompt: list[int], **fields: Any) -> tuple[tuple[int, ...], str | None]:
    """Token ids of a greedy answer, and where the prompt was prefilled."""
    raw = await gateway.client.completions.with_raw_response.create(
        model=model,
        prompt=prompt,
        max_tokens=12,
        temperature=0.0,
        extra_body={"ignore_eos": True, "return_token_ids": True, **fields},
    )
    found = raw.parse()
    assert found.model == model
    return tuple(found.choices[0].model_dump()["token_ids"]), raw.headers.get(headers.PREFILL)


def prompt(seed: int) -> list[int]:
    """Tokens nobody has asked before."""
    dice = random.Random(seed)
    return [dice.randrange(5, 250) for _ in range(PROMPT_TOKENS)]


async def test_adapters_are_listed_beside_the_model(gateway: Gateway) -> None:
    listed = {card.id: card.model_dump() for card in (await gateway.client.models.list()).data}
    assert tuple(listed) == NAMES
    assert {card["parent"] for name, card in listed.items() if name != MODEL} == {MODEL}
    assert (await gateway.client.models.retrieve("sql")).id == "sql"
    with pytest.raises(openai.NotFoundError, match=r"'nobody' does not exist.* adapters 'cooking', 'sql'"):
        await gateway.client.models.retrieve("nobody")


async def test_one_prompt_is_prefilled_remotely_for_each_adapter_and_answered_by_it_alone(gateway: Gateway) -> None:
    asked = prompt(20261125)

    async def remote_prefill_works() -> bool:
        return (await answer(gateway, MODEL, prompt(random.randrange(2**32))))[1] == "remote"

    await eventually(remote_prefill_works, "the prefill worker serves its queue")
    answers = {}
    for name in NAMES:
        answers[name], where = await answer(gateway, name, asked)
        assert where == "remote", name
    assert len(set(answers.values())) == len(NAMES), "each has its own answer"
    for name in NAMES:
        # A salt of its own: nothing of it is cached, and nothing was computed under another name.
        alone, _where = await answer(gateway, name, asked, cache_salt=f"alone-{name}")
        assert alone == answers[name]
        again, _where = await answer(gateway, name, asked)
        assert again == answers[name]


async def test_a_chat_with_an_adapter_is_answered_by_it(gateway: Gateway) -> None:
    said = set()
    for name in NAMES:
        stream = await gateway.client.chat.completions.create(
            model=name, messages=[{"role": "user", "content": "Which line is free?"}], max_tokens=8, stream=True,
            temperature=0.0, extra_body={"ignore_eos": True},
        )  # fmt: skip
        chunks = [chunk async for chunk in stream]
        assert {chunk.model for chunk in chunks} == {name}
        said.add("".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices))
    assert len(said) == len(NAMES)
