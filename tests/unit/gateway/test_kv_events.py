"""The engine's KV events: what is indexed, what is not, and order."""

from typing import Any

import msgspec
import pytest

from pointsman.gateway.core.index import KvIndex
from pointsman.gateway.core.kv_events import MalformedEvents, Order, Sequence, apply
from pointsman.gateway.types import WorkerKey
from pointsman.serving.block_hashes import chained_block_hashes

W = WorkerKey("w")
TOKENS = list(range(64))


def batch(*events: dict[str, Any]) -> bytes:
    """As vLLM publishes: time, events as maps, data-parallel rank."""
    return msgspec.msgpack.encode([1795172136.88, list(events), 0])


def stored(**changes: Any) -> dict[str, Any]:
    """Two blocks of 32 as in a capture of vLLM 0.32."""
    return {
        "type": "BlockStored",
        "block_hashes": [6607370164453257419, 16433595379223021165],
        "parent_block_hash": None,
        "token_ids": TOKENS,
        "block_size": 32,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [None, None],
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    } | changes


def hits(index: KvIndex) -> int:
    return index.matches(chained_block_hashes(TOKENS, 32)).get(W, 0)


def test_stored_removed_and_cleared_blocks_are_followed() -> None:
    index = KvIndex()
    assert apply(index, W, batch(stored())) == 1
    assert hits(index) == 2
    apply(index, W, batch({"type": "BlockRemoved", "block_hashes": [16433595379223021165], "medium": "GPU"}))
    assert hits(index) == 1
    apply(index, W, batch({"type": "AllBlocksCleared"}))
    assert hits(index) == 0


def test_raw_bytes_as_hashes_are_as_good_as_numbers() -> None:
    index = KvIndex()
    apply(index, W, batch(stored(block_hashes=[b"\x01" * 32, b"\x02" * 32])))
    apply(index, W, batch({"type": "BlockRemoved", "block_hashes": [b"\x02" * 32]}))
    assert hits(index) == 1


@pytest.mark.parametrize(
    "event",
    [
        stored(lora_id=1),
        stored(extra_keys=[["tenant-salt"], None]),
        stored(group_idx=1),
        {"type": "AnEventOfTheFuture", "x": 1},
    ],
)
def test_blocks_a_plain_prompt_cannot_hit_are_not_indexed(event: dict[str, Any]) -> None:
    index = KvIndex()
    assert apply(index, W, batch(event)) == 0
    assert hits(index) == 0


def test_a_payload_that_is_no_batch_is_an_error() -> None:
    with pytest.raises(MalformedEvents):
        apply(KvIndex(), W, b"\xc1nonsense")


def test_sequence_numbers_tell_the_next_a_gap_and_a_restart() -> None:
    sequence = Sequence()
    assert sequence.look(0) is Order.NEXT
    assert sequence.look(3) is Order.GAP
    sequence.last = 5
    assert [sequence.look(n) for n in (6, 8, 5, 0)] == [Order.NEXT, Order.GAP, Order.RESTARTED, Order.RESTARTED]
