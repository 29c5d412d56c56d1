"""The own engine's KV events, turned into the live prefix index.

vLLM publishes on ZMQ: ``[topic, 8-byte big-endian sequence, msgpack [time, [event, …], rank]]``, and replays what it
still has to a DEALER that sends ``[empty, first sequence]`` (``vllm/distributed/kv_events.py``). Both sockets are files
of this pod: token ids are in the events, and no other pod may read them.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
import zmq
import zmq.asyncio

from pointsman.api.protocol.kv import kv_events_topic
from pointsman.workers.core.prefix_index import (
    AllBlocksCleared,
    BlocksRemoved,
    BlocksStored,
    IndexChange,
    KvEvent,
    PrefixIndex,
)

log = logging.getLogger(__name__)

REPLAY_S = 2.0  # without a message, until a replay is asked for again
REPLAY_ATTEMPTS = 3  # in a row that bring nothing
SILENCE_MILLISECONDS = 1000  # of an engine that was not heard yet, until a replay is asked for again
SLICE_S = 0.002  # of the server's event loop, until others get their turn
_END_OF_REPLAY: Final = -1

MAX_WAITING_BATCHES: Final = 10_000
"""What the socket keeps for a server that is busy: as many as the engine can repeat. Beyond, there is a gap."""


class KvEventFeed:
    """Keeps ``index`` in step with the engine that publishes at ``endpoint`` and replays at ``replay_endpoint``.

    ``changed`` gets every change of the index, in order; ``lost`` how many batches of events nobody can repeat.
    """

    def __init__(
        self,
        index: PrefixIndex,
        worker: str,
        endpoint: str,
        replay_endpoint: str,
        changed: Callable[[Sequence[IndexChange]], None] = lambda _changes: None,
        lost: Callable[[int], None] = lambda _batches: None,
    ) -> None:
        self.index = index
        self._topic = kv_events_topic(worker).encode()
        self._endpoint = endpoint
        self._replay_endpoint = replay_endpoint
        self._changed = changed
        self._tell_lost = lost
        self._last = -1
        self._replayed = -1  # up to here a replay was ahead of the subscription, which repeats it
        self._slice_began_s = time.monotonic()
        self.live = False  # the engine was heard to its end: until then the index may lack what it has

    async def run(self) -> None:
        """Follow the events until cancelled."""
        context = zmq.asyncio.Context()
        context.setsockopt(zmq.IPV6, 1)  # IPv4 too; without it an IPv6 address cannot be connected to
        events = context.socket(zmq.SUB)
        try:
            events.setsockopt(zmq.RCVHWM, MAX_WAITING_BATCHES)
            events.setsockopt(zmq.SUBSCRIBE, self._topic)
            events.connect(self._endpoint)
            # Subscribed before the replay: what is published meanwhile waits in the socket.
            await self._catch_up(context)
            while True:
                if not self.live and not await events.poll(SILENCE_MILLISECONDS):
                    # An engine that is starved, or starts, may miss all attempts, and an idle one publishes nothing.
                    await self._catch_up(context)
                    continue
                frames = await events.recv_multipart()
                await self._give_way()
                await self._take(context, frames)
        finally:
            events.close(linger=0)
            context.term()

    async def _take(self, context: zmq.asyncio.Context, frames: Sequence[bytes]) -> None:
        sequence, payload = int.from_bytes(frames[-2], "big", signed=True), frames[-1]
        if sequence <= self._last:
            if sequence <= self._replayed:
                return  # the replay had it already
            log.warning("the engine restarted its KV events; the prefix index is cleared")
            self._forget()
            self._last = self._replayed = -1
        if sequence > self._last + 1:
            await self._catch_up(context)
        if sequence <= self._last:
            return
        if sequence > self._last + 1:
            self._lost(sequence)
        self._replayed = -1  # the subscription is ahead again: a smaller number is a new beginning
        self._apply(sequence, payload)
        self.live = True

    async def _catch_up(self, context: zmq.asyncio.Context) -> None:
        """Apply all that the engine has after the last event. What is too old for its buffer is lost.

        A replay is sent without flow control: of a long one the engine drops what its socket does not hold. So a hole
        in it means "ask again from there"; every request brings at least a socket's worth.
        """
        fruitless = 0
        while fruitless < REPLAY_ATTEMPTS:
            before = self._last
            whole = await self._replay(context)
            self._replayed = max(self._replayed, self._last)
            if whole:
                self.live = True
                return
            fruitless = 0 if self._last > before else fruitless + 1
        log.warning("no replay of KV events", extra={"endpoint": self._replay_endpoint})

    async def _replay(self, context: zmq.asyncio.Context) -> bool:
        """Ask once for everything after the last event; whether the answer was whole."""
        socket = context.socket(zmq.DEALER)
        try:
            socket.setsockopt(zmq.RCVHWM, 0)
            socket.connect(self._replay_endpoint)
            await socket.send_multipart([b"", (self._last + 1).to_bytes(8, "big")])
            first = True
            while True:
                async with asyncio.timeout(REPLAY_S):
                    frames = await socket.recv_multipart()
                await self._give_way()
                sequence, payload = int.from_bytes(frames[-2], "big", signed=True), frames[-1]
                if sequence == _END_OF_REPLAY:
                    return True
                if sequence > self._last + 1:
                    if not first:
                        return False
                    self._lost(sequence)  # nothing is dropped before the first: the buffer begins with it
                first = False
                if sequence > self._last:
                    self._apply(sequence, payload)
        except TimeoutError:
            return False
        finally:
            socket.close(linger=0)

    def _lost(self, sequence: int) -> None:
        """The events before ``sequence`` are gone. They may have removed what the index has."""
        log.warning(
            "KV events lost, the prefix index is cleared", extra={"first": self._last + 1, "last": sequence - 1}
        )
        self._tell_lost(sequence - 1 - self._last)
        self._forget()

    def _forget(self) -> None:
        self.live = False
        self._changed([self.index.clear()])

    def _apply(self, sequence: int, payload: bytes) -> None:
        self._last = sequence
        changes = self.index.apply(read_events(payload))
        if changes:
            self._changed(changes)

    async def _give_way(self) -> None:
        """Let others run now and then: a socket that has messages never waits, so nothing else would."""
        if time.monotonic() - self._slice_began_s > SLICE_S:
            await asyncio.sleep(0)
            self._slice_began_s = time.monotonic()


def read_events(payload: bytes) -> list[KvEvent]:
    """The events of one message about prompts of tokens in the engine's own memory.

    Left out: blocks of other attention groups and of offload tiers, and what follows an image.
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
    if event["type"] != "BlockStored":
        return None
    parent, adapter = event.get("parent_block_hash"), event.get("lora_name")
    if adapter is None and event.get("lora_id") is not None:
        return None  # an adapter without a name
    salt: str | None = None
    blocks = 0
    for keys in event.get("extra_keys") or [None] * len(hashes):
        more = list(keys or ())
        if adapter is not None and more[:1] == [adapter]:
            del more[0]
        if blocks == 0 and parent is None and len(more) == 1 and isinstance(more[0], str):
            salt = more.pop()  # a request's cache_salt is a key of its prompt's first block only
        if more:
            break  # an image, or what a later engine adds: this block and what follows it cannot be named by tokens
        blocks += 1
    if blocks == 0:
        return None
    token_ids = event["token_ids"][: blocks * event["block_size"]]
    return BlocksStored(hashes[:blocks], parent, token_ids, event["block_size"], salt, adapter)
