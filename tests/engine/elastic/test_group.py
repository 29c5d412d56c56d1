"""An elastic group behind a gateway: the tokens are those of one plain engine, however its instances come and go.

The model of each instance is cut over two processes (tensor parallelism); in ``tests/engine/product`` it is whole.
"""

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator, Iterable, Iterator
from itertools import islice, takewhile
from pathlib import Path

import aiohttp
import psutil
import pytest
from charts.dashboards.elastic import ELASTIC
from prometheus_client.parser import text_string_to_metric_families

from engine.elastic.ties import ties_of_float32
from engine.gateway.conftest import TOKEN, entry, give_role
from fixtures.elastic_group import ElasticGroup, running_group
from fixtures.engines import MODEL, Engines, PlainEngines
from fixtures.gateways import Gateway, connected, gateway_process
from pointsman.api.protocol.elastic import (
    STATE_PATH,
    ElasticState,
)
from pointsman.api.protocol.headers import CONTROL_TOKEN
from pointsman.api.protocol.names import Role
from pointsman.local.traffic.client import Endpoint
from pointsman.local.traffic.exactness import compare
from pointsman.local.traffic.load import closed_loop
from pointsman.local.traffic.prompts import Mix, prompts
from pointsman.local.traffic.types import Prompt
from pointsman.serving.elastic.latency_model import LatencyModel, PrefillTime, extrapolate
from waiting import eventually

SLOTS = 3000
MIX = Mix(
    lengths=[range(1, 40), range(100, 400), range(1200, 2000)],
    stream_share=0.5,
    token_ids_share=0.3,
    vocabulary=range(94),  # printable: bytes that are no UTF-8 would make texts whose parts depend on their chunks
)


TIME = PrefillTime(0.01, 1e-3, 1e-7)
MODEL_OF_GPUS = LatencyModel({degree: extrapolate(TIME, degree, 1.0, 0.0) for degree in (1, 2, 3)})
"""On the two cores of a test, more instances are no faster; this one says that they are, so that groups grow."""


@pytest.fixture(scope="module")
def group(engines: Engines) -> Iterator[ElasticGroup]:
    with running_group(engines, "eg", 2, slots=SLOTS, width=2, model=MODEL_OF_GPUS) as running:
        yield running


@pytest.fixture
async def gateway(group: ElasticGroup, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    with gateway_process(tmp_path_factory.mktemp("gateway"), token=TOKEN) as process:
        async with connected(process) as connection:
            await give_role(group.manager, Role.DECODE)
            connection.write_endpoints([entry(group.manager)])
            await connection.knows(group.manager)
            yield connection


async def metrics_page(group: ElasticGroup) -> str:
    """The manager's page of metrics."""
    async with aiohttp.ClientSession() as session, session.get(f"{group.manager.url}/metrics") as answer:
        return await answer.text()


async def metrics(group: ElasticGroup) -> dict[str, float]:
    """What the manager counts, by ``name{labels}``."""
    lines = (await metrics_page(group)).splitlines()
    samples = (line.rsplit(" ", 1) for line in lines if line.startswith("pointsman_elastic_"))
    return {key.removeprefix("pointsman_elastic_"): float(value) for key, value in samples}


async def slots_used(group: ElasticGroup, instance: str) -> int:
    """Tokens of KV on an instance, as the manager has it; 0 for one that it does not know."""
    headers = {CONTROL_TOKEN: f"Bearer {TOKEN}"}
    async with aiohttp.ClientSession(headers=headers) as session, session.get(group.manager.url + STATE_PATH) as answer:
        state = ElasticState.model_validate_json(await answer.read())
    return sum(each.used_slots for each in state.instances if each.name == instance)


async def exact(
    group: ElasticGroup, gateway: Gateway, plain_engines: PlainEngines, asked: Iterable[Prompt],
    during: asyncio.Task[None], folder: Path,
) -> None:  # fmt: skip
    """``asked`` until ``during`` has ended, and the same of one engine."""
    async with (
        Endpoint(f"{gateway.of.url}/v1", MODEL) as ours,
        Endpoint(plain_engines.one.openai_url, MODEL) as reference,
    ):
        served = await closed_loop(ours, takewhile(lambda _: not during.done(), asked), clients=4)
        await during
        alone = await closed_loop(reference, [record.prompt for record in served], clients=2)
    ties_of_float32(group.engines.environment, group.engines.model, compare(alone, served), served, folder)


async def test_instances_bind_their_own_address_alone_for_tensors(group: ElasticGroup, gateway: Gateway) -> None:
    """Whoever reaches these ports can read and write KV."""
    # Both instances are idle: they compute the prompt together, each with its two shards.
    await gateway.client.completions.create(model=MODEL, prompt="Is the signal clear?" * 20, max_tokens=1)
    assert (await metrics(group))['iterations_total{degree="2",phase="prefill"}'] > 0
    for instance in group.instances.values():
        family = [psutil.Process(pid) for pid in (instance.process.pid, *children_of(instance.process.pid))]
        bound = [each.laddr for one in family for each in one.net_connections("tcp") if each.status == "LISTEN"]
        assert len(bound) >= 4, "HTTP, the store, and gloo of two shards"
        assert {address.ip for address in bound} == {instance.address}


async def test_instances_join_die_stand_still_and_drain_and_every_answer_is_that_of_one_engine(
    group: ElasticGroup, gateway: Gateway, plain_engines: PlainEngines, tmp_path: Path
) -> None:
    async def come_and_go() -> None:
        group.add(2)
        frozen = group.add(3)
        await eventually(lambda: has_instances(group, 4), "two further instances have joined")

        async def holds_much(instance: str) -> bool:
            return await slots_used(group, instance) > 500

        await eventually(lambda: holds_much("eg-0"), "a request has KV on the instance that is killed")
        group.kill(0)
        await eventually(lambda: has_instances(group, 3), "the death is noticed")
        await eventually(lambda: holds_much("eg-3"), "a request has KV on the instance that stands still")
        frozen.process.send_signal(signal.SIGSTOP)
        await eventually(lambda: has_instances(group, 2), "it is noticed that it stands still")
        group.kill(3)
        await eventually(lambda: holds_much("eg-2"), "a request has KV on the instance that drains")
        group.instances.pop("eg-2").process.send_signal(signal.SIGTERM)
        await eventually(lambda: has_instances(group, 1), "it has handed over what it had")

    asked = islice(prompts(MIX, seed=1), 200)
    await exact(group, gateway, plain_engines, asked, asyncio.create_task(come_and_go()), tmp_path)
    found = await metrics(group)
    print(found)
    assert found['iterations_total{degree="2",phase="prefill"}'] > 0
    assert found['scalings_total{direction="down"}'] > 0
    assert found['moved_bytes_total{reason="scale_down"}'] == found['moved_bytes_total{reason="scale_up"}'] == 0
    assert found['moved_tokens_total{reason="drain"}'] > 0
    assert found['moved_bytes_total{reason="drain"}'] > 0, "as the instance counted it"
    assert found["recomputed_requests_total"] > 0
    assert found['slots{state="free"}'] == found['slots{state="total"}'] == SLOTS
    queries = " ".join(query.expr for panel in ELASTIC.panels for query in panel.queries)
    queried = set(re.findall(r"\b(?:pointsman_elastic_|vllm:)\w+", queries))
    families = text_string_to_metric_families(await metrics_page(group))
    assert len(queried) > 5
    assert queried <= {sample.name for family in families for sample in family.samples}, "the dashboard has data"


async def test_an_instance_that_loses_a_shard_ends(group: ElasticGroup) -> None:
    before = (await metrics(group))["instances"]
    instance = group.add(3)
    await eventually(lambda: has_instances(group, int(before) + 1), "the instance has joined")
    (shard,) = [
        pid for pid in children_of(instance.process.pid) if "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text()
    ]
    os.kill(shard, signal.SIGKILL)
    await eventually(lambda: has_instances(group, int(before)), "the manager knows that the instance has ended")
    assert instance.process.wait(120) != 0
    group.instances.pop("eg-3")


def children_of(pid: int) -> list[int]:
    """Of all threads of a process."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for thread in threads for child in (thread / "children").read_text().split()]


async def has_instances(group: ElasticGroup, count: int) -> bool:
    return (await metrics(group))["instances"] == count
