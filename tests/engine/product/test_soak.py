"""The long form: hundreds of prompts through the whole product while one part after the other is killed."""

import random
from functools import partial

import pytest

from engine.product.served import MIX, Served, errors, some
from pointsman.api.protocol.names import Role
from pointsman.local.traffic import Endpoint, Mix, Record, closed_loop, compare, running_load, summarise

PROMPTS, ROUNDS, SEED = 200, 8, 20250326
EXACT_MIX = Mix(lengths=(range(1, 500), range(600, 3_000)), max_tokens=range(8, 49), token_ids_share=0.4)


@pytest.mark.verify
@pytest.mark.verify_path
@pytest.mark.timeout(1800)
async def test_the_product_is_token_exact_over_200_prompts_while_its_parts_are_killed(
    chat: Served, plain: Endpoint, findings: dict[str, object]
) -> None:
    rng = random.Random(SEED)
    asked = some(EXACT_MIX, PROMPTS, seed=SEED)
    alone = await closed_loop(plain, asked, clients=1)
    together = await closed_loop(plain, asked, clients=8)
    itself = compare(alone, together)
    assert itself.exact, itself.differences

    killed: list[str] = []
    answers = []
    for number in range(ROUNDS):
        part = asked[number * PROMPTS // ROUNDS : (number + 1) * PROMPTS // ROUNDS]
        async with running_load(chat.endpoint, iter(part), clients=6) as traffic:
            await traffic.answered(rng.randrange(2, 8), timeout_seconds=120)
            victim = ("nats", "prefill", "decode", "operator")[number % 4]
            if victim in ("prefill", "decode"):
                chat.kill((await chat.worker(Role(victim.capitalize()))).name)
            else:
                chat.kill_part(victim)
            killed.append(victim)
            await traffic.until(partial(_all_answered, count=len(part)), timeout_seconds=300)
        answers += traffic.records
        await chat.ready(prefill=1, decode=2)

    assert errors(answers) == []
    comparison = compare(alone, answers)
    assert comparison.exact, comparison.differences
    summary = summarise(answers)
    findings.update(
        prompts=comparison.compared,
        different_from_one_server=len(comparison.differences),
        reference_different_from_itself=len(itself.differences),
        failed_requests=summary.failed_requests,
        remote_prefills=summary.remote_prefills,
        local_prefills=summary.local_prefills,
        killed=killed,
        seed=SEED,
    )


def _all_answered(records: list[Record], *, count: int) -> bool:
    return len(records) == count


@pytest.mark.verify
@pytest.mark.verify_path
@pytest.mark.timeout(1800)
async def test_scaling_up_and_down_ten_times_under_load_fails_no_request(
    chat: Served, findings: dict[str, object]
) -> None:
    rng = random.Random(SEED)
    sizes: list[int] = []
    async with running_load(chat.endpoint, iter(some(MIX, 5_000, seed=SEED)), clients=4) as traffic:
        for _ in range(10):
            sizes.append(rng.choice([size for size in (1, 2, 3) if not sizes or size != sizes[-1]]))
            chat.scale(Role.DECODE, sizes[-1])
            await chat.ready(prefill=1, decode=sizes[-1])
            await traffic.answered(6, timeout_seconds=120)
    assert errors(traffic.records) == []
    summary = summarise(traffic.records)
    findings.update(requests=summary.requests, failed_requests=summary.failed_requests, sizes=sizes, seed=SEED)
