"""Following an engine's KV events over real ZMQ sockets: replay, order, gaps, and a buffer of full size."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fixtures.kv_event_publisher import BLOCK, EventPublisher, prompt_tokens, removed, stored
from pointsman.api.protocol.kv import kv_events_topic
from pointsman.workers import kv_events
from pointsman.workers.core.prefix_index import HashesRemoved, HashesStored, IndexChange, IndexCleared, PrefixIndex
from pointsman.workers.kv_events import KvEventFeed
from waiting import eventually

WORKER = "worker-0"


@pytest.fixture
def publisher(tmp_path: Path) -> Iterator[EventPublisher]:
    """An engine's publisher; event 0 was published before anybody listened."""
    made = EventPublisher(f"ipc://{tmp_path}/events", f"ipc://{tmp_path}/replay", kv_events_topic(WORKER))
    made.publish(stored(0, 0, 1))
    made.flush()
    yield made
    made.close()


class Reader:
    """A feed and what it told."""

    def __init__(self, publisher: EventPublisher) -> None:
        self.index = PrefixIndex(BLOCK)
        self.changes: list[IndexChange] = []
        self.lost: list[int] = []
        self.feed = KvEventFeed(
            self.index,
            WORKER,
            publisher.endpoint,
            publisher.replay_endpoint,
            changed=self.changes.extend,
            lost=self.lost.append,
        )

    def has(self, prompt: int, blocks: int = 1) -> bool:
        return self.index.cached_tokens(prompt_tokens(prompt, blocks)) == blocks * BLOCK

    async def heard(self, prompt: int) -> None:
        await eventually(lambda: self.has(prompt), f"prompt {prompt} is known")


@asynccontextmanager
async def reading(publisher: EventPublisher) -> AsyncIterator[Reader]:
    reader = Reader(publisher)
    task = asyncio.create_task(reader.feed.run())
    await eventually(publisher.subscribed.is_set, "the feed is subscribed")
    await eventually(lambda: reader.feed.live or task.done(), "the feed has caught up")
    yield reader
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_what_was_stored_before_is_replayed_and_what_follows_is_followed(publisher: EventPublisher) -> None:
    async with reading(publisher) as reader:
        assert reader.has(0)
        publisher.publish(stored(1, 0, 1), stored(2, 0, 1))
        publisher.publish(removed(1, 0, 1))
        publisher.publish(stored(3, 0, 1))
        await reader.heard(3)
        assert [reader.has(prompt) for prompt in range(4)] == [True, False, True, True]
        kinds = [type(change) for change in reader.changes]
        assert kinds == [HashesStored, HashesStored, HashesStored, HashesRemoved, HashesStored]


async def test_a_gap_is_filled_from_the_replay(publisher: EventPublisher) -> None:
    async with reading(publisher) as reader:
        publisher.publish(stored(1, 0, 1), lost=True)
        publisher.publish(stored(2, 0, 1))
        await reader.heard(2)
        assert reader.has(1)


async def test_after_a_gap_that_nobody_can_fill_the_index_starts_anew(publisher: EventPublisher) -> None:
    async with reading(publisher) as reader:
        publisher.publish(stored(1, 0, 1), lost=True)
        publisher.flush()
        publisher.buffer.clear()
        publisher.publish(stored(2, 0, 1))
        await reader.heard(2)
        assert not reader.has(0), "what was lost may have removed it"
        assert IndexCleared() in reader.changes
        assert reader.lost == [1]


async def test_an_engine_that_counts_anew_has_another_cache(publisher: EventPublisher) -> None:
    async with reading(publisher) as reader:
        publisher.publish(stored(1, 0, 1))
        await reader.heard(1)
        publisher.restart()
        publisher.publish(stored(2, 0, 1))
        await reader.heard(2)
        assert not reader.has(0)
        assert not reader.has(1)


async def _a_full_buffer(publisher: EventPublisher, batches: Sequence[int]) -> None:
    for prompt in batches:
        publisher.publish(stored(prompt, 0, 2))
    await asyncio.to_thread(publisher.flush)


async def test_a_full_replay_buffer_is_read_to_its_end(publisher: EventPublisher) -> None:
    """The publisher's socket drops most of a replay of 10 000 batches: it is asked again from where it stopped."""
    await _a_full_buffer(publisher, range(1, 9_999))
    async with reading(publisher) as reader:
        assert all(reader.has(prompt, 2) for prompt in range(1, 9_999))
        assert reader.has(0)
        assert publisher.asked[0] == 0
        publisher.publish(stored(20_000, 0, 1))
        await reader.heard(20_000)


async def test_a_reader_that_begins_late_has_what_the_buffer_still_has(publisher: EventPublisher) -> None:
    await _a_full_buffer(publisher, range(1, 12_001))
    async with reading(publisher) as reader:
        assert not reader.has(0)
        assert all(reader.has(prompt, 2) for prompt in range(2_001, 12_001))


async def test_an_engine_that_does_not_answer_at_first_is_asked_until_it_does(
    publisher: EventPublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be starting, or starved; and an idle engine publishes nothing from which a gap would be noticed."""
    monkeypatch.setattr(kv_events, "REPLAY_S", 0.05)
    monkeypatch.setattr(kv_events, "SILENCE_MILLISECONDS", 10)
    publisher.deaf = 2 * kv_events.REPLAY_ATTEMPTS
    async with reading(publisher) as reader:
        assert reader.has(0)
        assert len(publisher.asked) > publisher.deaf


async def test_others_get_their_turn_while_a_replay_is_read(publisher: EventPublisher) -> None:
    await _a_full_buffer(publisher, range(1, 5_000))
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    neighbour = asyncio.create_task(others())
    async with reading(publisher) as reader:
        assert reader.has(4_999, 2)
    neighbour.cancel()
    assert turns >= 20


async def test_tenants_and_adapters_are_read_apart(publisher: EventPublisher) -> None:
    async with reading(publisher) as reader:
        publisher.publish(stored(1, 0, 2, extra_keys=[["tenant"], None]))
        publisher.publish(stored(2, 0, 2, lora_id=1, lora_name="french", extra_keys=[["french"], ["french"]]))
        publisher.publish(stored(3, 0, 1))
        await reader.heard(3)
        index, (one, two) = reader.index, (prompt_tokens(1, 2), prompt_tokens(2, 2))
        assert (index.cached_tokens(one, "tenant"), index.cached_tokens(one)) == (2 * BLOCK, 0)
        assert (index.cached_tokens(two, None, "french"), index.cached_tokens(two)) == (2 * BLOCK, 0)
