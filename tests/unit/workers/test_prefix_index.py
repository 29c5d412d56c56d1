"""The live prefix index, and how it reads vLLM's KV events."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from pointsman.serving.block_hashes import chained_block_hashes
from pointsman.workers.core.prefix_index import (
    AllBlocksCleared,
    BlocksRemoved,
    BlocksStored,
    HashesRemoved,
    KvEvent,
    PrefixIndex,
)
from pointsman.workers.kv_events import read_events

BLOCK = 4


def engine_hashes(tokens: Sequence[int], salt: str | None = None) -> list[bytes]:
    """Chained as an engine does it, by an algorithm of its own."""
    chain: list[bytes] = [repr(salt).encode()]
    for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
        chain.append(hashlib.sha256(chain[-1] + repr(list(tokens[start : start + BLOCK])).encode()).digest())
    return chain[1:]


def stored(tokens: Sequence[int], salt: str | None = None, since: int = 0) -> BlocksStored:
    """The event for the blocks of ``tokens`` from block ``since`` on."""
    hashes = engine_hashes(tokens, salt)
    parent = hashes[since - 1] if since else None
    whole = tokens[since * BLOCK : len(hashes) * BLOCK]
    return BlocksStored(tuple(hashes[since:]), parent, whole, BLOCK, None if since else salt)


def test_the_longest_stored_prefix_is_found_in_whole_blocks() -> None:
    index = PrefixIndex(BLOCK)
    index.apply([stored(range(10))])
    assert index.cached_tokens(range(100)) == 8
    assert index.cached_tokens([0, 1, 2, 3, 9, 9, 9, 9]) == 4
    assert index.cached_tokens([9, *range(10)]) == 0
    assert index.cached_tokens([0, 1, 2]) == 0


def test_later_blocks_continue_the_prefix() -> None:
    index = PrefixIndex(BLOCK)
    index.apply([stored(range(8)), stored(range(16), since=2)])
    assert index.cached_tokens(range(16)) == 16


def test_a_block_of_an_unknown_parent_is_not_invented() -> None:
    index = PrefixIndex(BLOCK)
    index.apply([stored(range(16), since=2)])
    assert index.cached_tokens(range(16)) == 0
    assert len(index) == 0


def test_a_removed_block_ends_the_prefix() -> None:
    index = PrefixIndex(BLOCK)
    tokens = range(16)
    index.apply([stored(tokens), BlocksRemoved((engine_hashes(tokens)[1],))])
    assert index.cached_tokens(tokens) == 4
    index.apply([AllBlocksCleared()])
    assert (index.cached_tokens(tokens), len(index)) == (0, 0)


def test_a_block_is_cached_until_the_engine_removed_every_copy_of_it() -> None:
    """vLLM reports each physical block: the last block of a prompt that comes twice is computed and stored twice."""
    index = PrefixIndex(BLOCK)
    tokens = range(8)
    last = BlocksRemoved((engine_hashes(tokens)[1],))
    index.apply([stored(tokens), stored(tokens, since=1), stored(tokens, since=1)])
    assert index.apply([last, last]) == []
    assert index.cached_tokens(tokens) == 8
    assert index.apply([last]) == [HashesRemoved(chained_block_hashes(tokens, BLOCK)[1:])]
    assert index.cached_tokens(tokens) == 4
    index.apply([stored(tokens), AllBlocksCleared(), stored(tokens), last])
    assert index.cached_tokens(tokens) == 4


def test_salts_keep_prefixes_apart() -> None:
    index = PrefixIndex(BLOCK)
    index.apply([stored(range(8), salt="tenant")])
    assert index.cached_tokens(range(8), "tenant") == 8
    assert index.cached_tokens(range(8)) == 0
    assert index.cached_tokens(range(8), "other") == 0


@given(
    st.lists(st.lists(st.integers(0, 3), max_size=24), max_size=8),
    st.lists(st.integers(0, 7), max_size=6),
    st.lists(st.integers(0, 3), max_size=24),
)
def test_it_agrees_with_counted_prefixes(prompts: list[list[int]], removals: list[int], asked: list[int]) -> None:
    index = PrefixIndex(BLOCK)
    held: Counter[tuple[int, ...]] = Counter()
    events: list[KvEvent] = []
    for prompt in prompts:
        events.append(stored(prompt))
        held.update(tuple(prompt[:end]) for end in range(BLOCK, len(prompt) + 1, BLOCK))
    for number in removals:
        if number < len(prompts) and (hashes := engine_hashes(prompts[number])):
            events.append(BlocksRemoved((hashes[-1],)))
            held[tuple(prompts[number][: len(hashes) * BLOCK])] -= 1
    index.apply(events)
    expected = 0
    while expected + BLOCK <= len(asked) and held[tuple(asked[: expected + BLOCK])] > 0:
        expected += BLOCK
    assert index.cached_tokens(asked) == expected


def message(*events: dict[str, Any]) -> bytes:
    return msgspec.msgpack.encode([1795172136.88, list(events), 0])


STORED = {
    "type": "BlockStored",
    "block_hashes": [6607370164453257419],
    "parent_block_hash": None,
    "token_ids": [70, 293, 1, 2],
    "block_size": BLOCK,
    "lora_id": None,
    "medium": "GPU",
    "lora_name": None,
    "extra_keys": [None],
    "group_idx": 0,
    "kv_cache_spec_kind": "full_attention",
}


def test_vllms_events_are_read() -> None:
    removed = {"type": "BlockRemoved", "block_hashes": [7], "medium": "GPU", "group_idx": 0}
    assert read_events(message(STORED, removed, {"type": "AllBlocksCleared"})) == [
        BlocksStored((6607370164453257419,), None, [70, 293, 1, 2], BLOCK, None),
        BlocksRemoved((7,)),
        AllBlocksCleared(),
    ]


def test_a_cache_salt_is_read_from_the_first_blocks_extra_key() -> None:
    (event,) = read_events(message({**STORED, "extra_keys": [["tenant"]]}))
    assert isinstance(event, BlocksStored)
    assert event.salt == "tenant"


def test_blocks_of_an_adapter_carry_its_name() -> None:
    adapted = {**STORED, "lora_id": 1, "lora_name": "adapter"}
    for keys, salt in (([["adapter"]], None), ([["adapter", "tenant"]], "tenant"), ([None], None)):
        (event,) = read_events(message({**adapted, "extra_keys": keys}))
        assert isinstance(event, BlocksStored)
        assert (event.adapter, event.salt) == ("adapter", salt)
    (later,) = read_events(message({**adapted, "extra_keys": [["adapter"]], "parent_block_hash": 5}))
    assert isinstance(later, BlocksStored)


def test_what_comes_before_an_image_is_read() -> None:
    two = {"block_hashes": [7, 8], "token_ids": list(range(2 * BLOCK)), "extra_keys": [None, [["image", 3]]]}
    assert read_events(message({**STORED, **two})) == [BlocksStored((7,), None, list(range(BLOCK)), BLOCK)]


def test_adapters_and_salts_are_kept_apart() -> None:
    kinds = [(None, None), ("a", None), (None, "a"), ("a", "b"), ("b", "a"), ("ab", None), (None, "ab")]
    index = PrefixIndex(BLOCK)
    for number, (salt, adapter) in enumerate(kinds):
        index.apply([BlocksStored((number,), None, range(BLOCK), BLOCK, salt, adapter)])
        assert len(index) == number + 1
        assert index.cached_tokens(range(BLOCK), salt, adapter) == BLOCK


def test_blocks_that_tokens_do_not_name_are_left_out() -> None:
    for other in (
        {"lora_id": 1},
        {"medium": "CPU"},
        {"group_idx": 1},
        {"extra_keys": [["image", 3]]},
        {"extra_keys": [[7]]},
        {"extra_keys": [["x"]], "parent_block_hash": 5},
        {"type": "SomethingNew"},
    ):
        assert read_events(message({**STORED, **other})) == [], other
