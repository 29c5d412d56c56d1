"""Whatever dies under load: no request is lost that need not be, and nothing stays stuck."""

import asyncio

from engine.product.served import MIX, PREFILL_HEAVY, Served, errors, some, stream_of
from pointsman.api.protocol.names import Role
from pointsman.local.cluster import SYSTEM_NAMESPACE
from pointsman.local.traffic import Endpoint, PrefillPath, closed_loop, compare, prompts, running_load

LONG_ANSWER_TOKENS = 600


async def test_killing_the_prefill_worker_loses_no_request_and_no_token(chat: Served, plain: Endpoint) -> None:
    asked = some(PREFILL_HEAVY, 24, seed=31)
    expected = await closed_loop(plain, asked, clients=4)
    victim = await chat.worker(Role.PREFILL)
    async with running_load(chat.endpoint, iter(asked), clients=6) as traffic:
        await traffic.answered(6, timeout_seconds=120)
        before = chat.kill(victim.name)
        await traffic.until(lambda records: len(records) == len(asked), timeout_seconds=120)
    assert errors(traffic.records) == []
    assert compare(expected, traffic.records).exact, compare(expected, traffic.records).differences
    # The restarted container gets its role back, and prompts are computed remotely again.
    await chat.restarted(victim.name, since=before)
    await chat.ready(prefill=1, decode=2)
    async with running_load(chat.endpoint, prompts(PREFILL_HEAVY, seed=32), clients=1) as again:
        await again.until(lambda records: any(r.path is PrefillPath.REMOTE for r in records), timeout_seconds=120)
    assert errors(again.records) == []
    await chat.at_rest()


async def test_killing_a_decode_worker_loses_no_request_and_no_token_not_even_of_streams_that_had_begun(
    chat: Served, plain: Endpoint
) -> None:
    asked = some(MIX, 24, seed=41)
    long = [stream_of(LONG_ANSWER_TOKENS, 40 + number) for number in range(4)]
    expected = await closed_loop(plain, [*asked, *long], clients=4)
    victim = await chat.worker(Role.DECODE)
    begun = [asyncio.Event() for _ in long]
    streams = [
        asyncio.create_task(chat.endpoint.send(prompt, on_token=event.set))
        for prompt, event in zip(long, begun, strict=True)
    ]
    # Four streams at once are spread over the two workers, so some are in the middle of their answer at the victim.
    async with asyncio.timeout(120):
        await asyncio.gather(*(event.wait() for event in begun))
    moved = await chat.mid_stream_moves()
    async with running_load(chat.endpoint, iter(asked), clients=4) as traffic:
        before = chat.kill(victim.name)
        await traffic.until(lambda records: len(records) == len(asked), timeout_seconds=120)
    answers = [*traffic.records, *await asyncio.gather(*streams)]
    assert errors(answers) == []
    assert compare(expected, answers).exact, compare(expected, answers).differences
    assert await chat.mid_stream_moves() > moved, "no stream had begun at the worker that was killed"
    await chat.restarted(victim.name, since=before)
    await chat.ready(prefill=1, decode=2)
    await chat.at_rest()


async def test_while_nats_is_gone_prompts_are_computed_locally_and_remotely_again_when_it_is_back(
    chat: Served,
) -> None:
    async with running_load(chat.endpoint, prompts(PREFILL_HEAVY, seed=51), clients=4) as traffic:
        await traffic.until(lambda records: any(r.path is PrefillPath.REMOTE for r in records), timeout_seconds=120)
        chat.cluster.kill_container(SYSTEM_NAMESPACE, "pointsman-nats-0")
        at_kill = len(traffic.records)
        await traffic.until(
            lambda records: any(r.path is PrefillPath.LOCAL for r in records[at_kill:]), timeout_seconds=120
        )
        at_local = len(traffic.records)
        await traffic.until(
            lambda records: any(r.path is PrefillPath.REMOTE for r in records[at_local:]), timeout_seconds=120
        )
    assert errors(traffic.records) == []
    await chat.at_rest()


async def test_without_an_operator_requests_are_served_as_before_and_it_takes_up_its_work_when_it_is_back(
    chat: Served,
) -> None:
    chat.cluster.kubectl("scale", "deployment/pointsman-operator", "-n", SYSTEM_NAMESPACE, "--replicas=0")
    try:
        chat.cluster.kubectl(
            "wait", "pods", "-n", SYSTEM_NAMESPACE, "-l", "app.kubernetes.io/component=operator", "--for=delete",
            "--timeout=60s", timeout_s=70,
        )  # fmt: skip
        chat.scale(Role.DECODE, 3)
        answers = await closed_loop(chat.endpoint, some(MIX, 24, seed=61), clients=4)
        assert errors(answers) == []
        assert {record.path for record in answers} == set(PrefillPath)
        assert len((await chat.look()).workers) == 3, "nobody acts while the operator is away"
    finally:
        chat.cluster.kubectl("scale", "deployment/pointsman-operator", "-n", SYSTEM_NAMESPACE, "--replicas=1")
    await chat.ready(prefill=1, decode=3)
