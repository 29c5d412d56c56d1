"""The own engine's KV events, turned into the live prefix index.

vLLM publishes on ZMQ: ``[topic, 8-byte big-endian sequence, msgpack [time, [event, …], rank]]``, and replays what it
still has to a DEALER that sends ``[empty, first sequence]`` (``vllm/distributed/kv_events.py``).
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from pointsman.api.protocol.kv import kv_events_topic
from pointsman.workers.core.prefix_index import AllBlocksCleared, BlocksRemoved, BlocksStored, KvEvent, PrefixIndex

log = logging.getLogger(__name__)

REPLAY_SECONDS = 2.0
_END_OF_REPLAY = -1


class KvEventFeed:
    """Keeps ``index`` in step with the engine that publishes at ``endpoint`` and replays at ``replay_endpoint``."""

    def __init__(self, index: PrefixIndex, worker: str, endpoint: str, replay_endpoint: str) -> None:
        self.index = index
        self._topic = kv_events_topic(worker).encode()
        self._endpoint = endpoint
        self._replay_endpoint = replay_endpoint
        self._last = -1
        self.live = False  # False until something was heard: the index may then lack what the engine has

    async def run(self) -> None:
        """Follow the events until cancelled."""
        context = zmq.asyncio.Context()
        context.setsockopt(zmq.IPV6, 1)  # IPv4 too; without it an IPv6 address cannot be connected to
        events = context.socket(zmq.SUB)
        try:
            events.setsockopt(zmq.RCVHWM, 0)
            events.setsockopt(zmq.SUBSCRIBE, self._topic)
            events.connect(self._endpoint)
            await self._replay(context)
            while True:
                frames = await events.recv_multipart()
                await self._take(context, frames)
        finally:
            events.close(linger=0)
            context.term()

    async def _take(self, context: zmq.asyncio.Context, frames: Sequence[bytes]) -> None:
        _, raw_sequence, payload = frames
        sequence = int.from_bytes(raw_sequence, "big", signed=True)
        if sequence > self._last + 1:
            await self._replay(context)
        if sequence <= self._last:
            return
        if sequence > self._last + 1:
            log.warning("KV events %d to %d are lost: the prefix index starts anew", self._last + 1, sequence - 1)
            self.index.clear()
        self._apply(sequence, payload)

    async def _replay(self, context: zmq.asyncio.Context) -> None:
        """Ask for everything after the last event; what is too old for the engine's buffer stays a gap."""
        socket = context.socket(zmq.DEALER)
        try:
            socket.connect(self._replay_endpoint)
            async with asyncio.timeout(REPLAY_SECONDS):
                await socket.send_multipart([b"", (self._last + 1).to_bytes(8, "big")])
                while True:
                    _, _, raw_sequence, payload = await socket.recv_multipart()
                    sequence = int.from_bytes(raw_sequence, "big", signed=True)
                    if sequence == _END_OF_REPLAY:
                        self.live = True
                        return
                    if sequence == self._last + 1:
                        self._apply(sequence, payload)
        except TimeoutError:
            log.info("no replay of KV events from %s", self._replay_endpoint)
        finally:
            socket.close(linger=0)

    def _apply(self, sequence: int, payload: bytes) -> None:
        self._last = sequence
        self.live = True
        self.index.apply(read_events(payload))


def read_events(payload: bytes) -> list[KvEvent]:
    """The events of one message that say something about plain prompts in the engine's own memory.

    Left out: blocks of LoRA adapters, of multimodal inputs, of other attention groups and of offload tiers.
    """
    _, events, *_ = msgspec.msgpack.decode(payload)
    return [event for event in map(_read_event, events) if event is not None]


def _read_event(event: Mapping[str, Any]) -> KvEvent | None:
    if event["type"] == "AllBlocksCleared":
        return AllBlocksCleared()
    if event.get("medium") not in (None, "GPU") or event.get("group_idx") not in (None, 0):
        return None
    hashes = tuple(event["block_hashes"])
    if event["type"] == "BlockRemoved":
        return BlocksRemoved(hashes)
    if event["type"] != "BlockStored" or event.get("lora_id") is not None or event.get("lora_name") is not None:
        return None
    parent = event.get("parent_block_hash")
    salt: str | None = None
    first, *rest = event.get("extra_keys") or [None]
    if first is not None:
        # vLLM's cache_salt is the one extra key of a prompt's first block.
        if parent is not None or len(first) != 1 or not isinstance(first[0], str):
            return None
        salt = first[0]
    if any(keys is not None for keys in rest):
        return None
    return BlocksStored(hashes, parent, event["token_ids"], event["block_size"], salt)
