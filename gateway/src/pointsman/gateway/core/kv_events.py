"""vLLM's KV events: decoding, order, and what they mean for the index.

A batch is msgpack ``[time, [event, …], data-parallel rank]``; events are maps with a ``type``. Only blocks that a plain
prompt can hit are indexed: not those of a LoRA adapter, a cache salt or an image (their ``extra_keys`` are set), and of
models with several KV-cache groups only the first.
"""

from enum import Enum

import msgspec

from pointsman.gateway.core.index import KvIndex
from pointsman.gateway.types import EngineHash, WorkerKey


class BlockStored(msgspec.Struct, tag="BlockStored", tag_field="type"):
    """Blocks are in the cache; they follow ``parent_block_hash``."""

    block_hashes: list[EngineHash]
    token_ids: list[int]
    block_size: int
    parent_block_hash: EngineHash | None = None
    lora_id: int | None = None
    extra_keys: list[msgspec.Raw] | None = None
    group_idx: int | None = None


class BlockRemoved(msgspec.Struct, tag="BlockRemoved", tag_field="type"):
    """Blocks were evicted."""

    block_hashes: list[EngineHash]
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, tag="AllBlocksCleared", tag_field="type"):
    """The cache is empty."""


class _Batch(msgspec.Struct, array_like=True):
    time: float
    events: list[msgspec.Raw]


_decode_batch = msgspec.msgpack.Decoder(_Batch).decode
_decode_event = msgspec.msgpack.Decoder(BlockStored | BlockRemoved | AllBlocksCleared).decode
_NIL = b"\xc0"


class MalformedEvents(ValueError):
    """A payload that is no batch of KV events."""


def apply(index: KvIndex, worker: WorkerKey, payload: bytes) -> int:
    """Bring ``index`` up to this batch of ``worker``. Returns how many events were understood and used.

    An event of a kind from the future is skipped. Raises MalformedEvents.
    """
    try:
        batch = _decode_batch(payload)
    except msgspec.MsgspecError as error:
        raise MalformedEvents(f"{error} in a payload of {len(payload)} bytes") from error
    used = 0
    for raw in batch.events:
        try:
            event = _decode_event(raw)
        except msgspec.ValidationError:
            continue
        if isinstance(event, AllBlocksCleared):
            index.cleared(worker)
        elif event.group_idx not in (None, 0):
            continue
        elif isinstance(event, BlockRemoved):
            index.removed(worker, event.block_hashes)
        elif event.lora_id is None and not any(bytes(keys) != _NIL for keys in event.extra_keys or ()):
            index.stored(
                worker,
                engine_hashes=event.block_hashes,
                engine_parent=event.parent_block_hash,
                token_ids=event.token_ids,
                block_size=event.block_size,
            )
        else:
            continue
        used += 1
    return used


class Order(Enum):
    """What the sequence number of a batch says."""

    NEXT = "next"
    GAP = "gap"  # batches in between were lost
    RESTARTED = "restarted"  # the publisher counts from the beginning again: its cache is another


class Sequence:
    """Follows one publisher's numbers, which start at 0 and grow by one."""

    def __init__(self) -> None:
        self.last = -1

    def look(self, number: int) -> Order:
        """Judge ``number`` without taking it."""
        if number == self.last + 1:
            return Order.NEXT
        return Order.GAP if number > self.last else Order.RESTARTED
