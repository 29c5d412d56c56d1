"""The KV events recorded from a real vLLM, through all that the product does with them: reader, feed, gateway index."""

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec

from pointsman.api.protocol.kv_feed import FrameReader
from pointsman.gateway.core.index import KvIndex
from pointsman.gateway.core.kv_feed import FeedState
from pointsman.gateway.types import WorkerKey
from pointsman.serving.block_hashes import chained_block_hashes
from pointsman.workers.core.prefix_index import PrefixIndex
from pointsman.workers.kv_events import read_events
from pointsman.workers.kv_feed import KvFeedPublisher

BLOCK = 32
P, D = WorkerKey("prefill-0"), WorkerKey("decode-0")
LINES = [
    json.loads(line) for line in (Path(__file__).parents[1] / "data/vllm_kv_events.jsonl").read_text().splitlines()
]


def payload(line: dict[str, Any]) -> bytes:
    """The message as vLLM sent it."""
    return msgspec.msgpack.encode(line["decoded"])


def tokens(*events: tuple[int, int]) -> list[int]:
    """Token ids of the stored blocks of (line, event) after one another."""
    return [token for line, event in events for token in LINES[line]["decoded"][1][event]["token_ids"]]


FIRST = tokens((0, 0))
DECODED = tokens((1, 0), (2, 0))
SECOND = tokens((0, 0), (3, 0))
LONG = [tokens((5, 0)), tokens((6, -1)), tokens((7, -1))]


class Replay:
    """One worker of the recording: its index, its feed, and the gateway's view of it."""

    def __init__(self, gateway: KvIndex, worker: WorkerKey) -> None:
        self.index = PrefixIndex(BLOCK)
        self._feed = KvFeedPublisher(self.index, instance="i1", block_size=BLOCK, known=lambda: True)
        self.stream: AsyncGenerator[bytes, None] = self._feed.stream()
        self._reader = FrameReader()
        self._state = FeedState(gateway, worker)

    async def read(self) -> None:
        """Take in pieces until the snapshot, or an increment, was applied."""
        was_known = self._state.known
        while True:
            self._reader.push(await anext(self.stream))
            while (frame := self._reader.next()) is not None:
                self._state.apply(frame)
            if was_known or self._state.known:
                return

    async def publish(self, data: bytes) -> None:
        self._feed.publish(self.index.apply(read_events(data)))
        await self.read()


def test_the_recorded_messages_are_encoded_here_as_they_were() -> None:
    for line in LINES:
        assert len(payload(line)) == line["frames"]["payload_len"]
        assert payload(line).hex().startswith(line["frames"]["payload_hex_prefix"])


async def test_the_gateway_knows_at_every_step_what_the_recorded_workers_held() -> None:
    gateway = KvIndex()
    workers = {"kv@prefill-0@tiny": (P, Replay(gateway, P)), "kv@decode-0@tiny": (D, Replay(gateway, D))}
    prompts = [FIRST, DECODED, SECOND, *LONG]
    steps: list[list[dict[WorkerKey, int]]] = []
    async with aclosing(workers["kv@prefill-0@tiny"][1].stream), aclosing(workers["kv@decode-0@tiny"][1].stream):
        for _, replay in workers.values():
            await replay.read()
        for line in LINES:
            await workers[line["frames"]["topic"]][1].publish(payload(line))
            found = [gateway.matches(chained_block_hashes(prompt, BLOCK)) for prompt in prompts]
            for prompt, hits in zip(prompts, found, strict=True):
                for worker, replay in workers.values():
                    assert hits.get(worker, 0) * BLOCK == replay.index.cached_tokens(prompt)
            steps.append(found)
            if line["step"].startswith("P: same prompt with cache_salt"):
                salted = chained_block_hashes(FIRST, BLOCK, salt="tenantA")
                assert gateway.matches(salted) == {P: 2}
    assert steps[0][0] == {P: 2}
    assert steps[1][0] == {P: 2, D: 2}
    assert steps[2][1] == {P: 2, D: 3}
    assert steps[3][2] == {P: 3, D: 2}
    assert steps[5][3] == {P: 10}
    # 20 blocks: of three prompts of 10 the newest and 9 of the one before are held (one block is reserved).
    assert [hits.get(P, 0) for hits in steps[7]] == [0, 0, 0, 0, 9, 10]
    assert [hits.get(P, 0) for hits in steps[8]] == [0] * 6
    assert gateway.blocks_held(D) == 3
