"""Scaling a pool under load loses nothing: a worker that goes has finished its streams."""

import asyncio

from engine.product.served import MIX, Served, errors, stream_of
from pointsman.api.protocol.names import Role
from pointsman.local.traffic import prompts, running_load

LONG_ANSWER_TOKENS = 1_500


async def test_decode_from_1_to_3_to_1_under_load_fails_no_request_and_lets_streams_finish(chat: Served) -> None:
    chat.scale(Role.DECODE, 1)
    await chat.ready(prefill=1, decode=1)
    async with running_load(chat.endpoint, prompts(MIX, seed=21), clients=3) as growing:
        chat.scale(Role.DECODE, 3)
        grown = await chat.ready(prefill=1, decode=3)
        await growing.answered(12, timeout_seconds=120)
    assert errors(growing.records) == []
    assert len({record.worker for record in growing.records}) > 1, "the new workers take part"

    # One after the other and with nothing else about, so that every worker has some of them.
    streams = []
    for index in range(6):
        begun = asyncio.Event()
        prompt = stream_of(LONG_ANSWER_TOKENS, index)
        streams.append(asyncio.create_task(chat.endpoint.send(prompt, on_token=begun.set)))
        async with asyncio.timeout(120):
            await begun.wait()
    chat.scale(Role.DECODE, 1)
    async with running_load(chat.endpoint, prompts(MIX, seed=22), clients=2) as shrinking:
        shrunk = await chat.ready(prefill=1, decode=1)
        await shrinking.answered(6, timeout_seconds=120)
    long_answers = await asyncio.gather(*streams)

    assert errors(shrinking.records) == []
    assert errors(long_answers) == []
    assert [len(answer.token_ids or ()) for answer in long_answers] == [LONG_ANSWER_TOKENS] * len(streams)
    removed = {worker.name for worker in grown.workers} - {worker.name for worker in shrunk.workers}
    assert len(removed) == 2
    assert removed & {answer.worker for answer in long_answers}, "no stream ran on a removed worker: nothing was shown"
