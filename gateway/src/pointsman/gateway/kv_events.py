"""Feeds the KV index from the decode workers' ZMQ event streams.

One task per worker: subscribe, then ask for everything its replay buffer still holds, then follow. A gap in the
sequence is asked for again; when the buffer does not reach back that far, or the publisher started anew, the worker's
part of the index is dropped and rebuilt from the buffer. The index is a hint for routing, so nothing waits for it.
"""

import asyncio
import logging

import zmq
import zmq.asyncio

from pointsman.api.protocol.names import Role
from pointsman.gateway.core import kv_events
from pointsman.gateway.core.kv_events import MalformedEvents, Order, Sequence
from pointsman.gateway.fleet import Fleet
from pointsman.gateway.types import Worker, WorkerKey

log = logging.getLogger(__name__)

REPLAY_TIMEOUT_SECONDS = 5.0
RETRY_SECONDS = 2.0
HIGH_WATER_MARK = 100_000
_END_OF_REPLAY = -1


class _Lost(Exception):
    """Events are missing and the replay does not have them."""


class KvEventFeed:
    """Keeps one subscription per decode worker that publishes KV events."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._context = zmq.asyncio.Context()
        self._context.setsockopt(zmq.IPV6, 1)  # IPv4 too; without it an IPv6 address cannot be connected to
        self._running: dict[WorkerKey, asyncio.Task[None]] = {}

    def look(self) -> None:
        """Start and stop subscriptions so that they match the fleet. Called on every change of it."""
        wanted = {w.key: w for w in self._fleet.workers if w.role is Role.DECODE and w.kv_events is not None}
        for key in self._running.keys() - wanted.keys():
            self._running.pop(key).cancel()
        for key in wanted.keys() - self._running.keys():
            self._running[key] = asyncio.create_task(self._follow(wanted[key]), name=f"kv events of {wanted[key].name}")

    async def stop(self) -> None:
        """End all subscriptions."""
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)
        self._context.destroy(linger=0)

    async def _follow(self, worker: Worker) -> None:
        while True:
            try:
                await self._subscribe(worker)
            except (zmq.ZMQError, MalformedEvents, _Lost, TimeoutError) as error:
                why = str(error) or type(error).__name__
                log.warning("kv events interrupted", extra={"worker": worker.name, "why": why})
            except Exception:
                # A defect, as loud as can be; but this worker's cache would stay unknown for ever.
                log.exception("kv events interrupted by a defect", extra={"worker": worker.name})
            self._fleet.index.cleared(worker.key)
            await asyncio.sleep(RETRY_SECONDS)

    async def _subscribe(self, worker: Worker) -> None:
        socket = self._context.socket(zmq.SUB)
        try:
            socket.setsockopt(zmq.RCVHWM, HIGH_WATER_MARK)
            socket.setsockopt(zmq.SUBSCRIBE, b"")
            socket.connect(worker.kv_events or "")
            # Subscribed before the replay: what happens meanwhile waits in the socket, and old numbers are dropped.
            sequence = Sequence()
            await self._replay(worker, sequence)
            log.info(
                "kv events followed",
                extra={"worker": worker.name, "blocks": self._fleet.index.blocks_held(worker.key)},
            )
            fresh = True
            while True:
                _topic, number_bytes, payload = await socket.recv_multipart()
                number = int.from_bytes(number_bytes, "big", signed=True)
                order = sequence.look(number)
                if order is Order.RESTARTED and fresh:
                    continue  # the replay had it already
                fresh = False
                if order is Order.RESTARTED:
                    log.info("kv events restarted", extra={"worker": worker.name, "number": number})
                    self._fleet.index.cleared(worker.key)
                    sequence = Sequence()
                    await self._replay(worker, sequence)
                    fresh = True
                    continue
                if order is Order.GAP:
                    log.info("kv events lost", extra={"worker": worker.name, "after": sequence.last, "next": number})
                    await self._replay(worker, sequence)
                    fresh = True
                    if sequence.last < number - 1:
                        raise _Lost(f"events after {sequence.last} are not in the replay buffer")
                    if sequence.last >= number:
                        continue
                kv_events.apply(self._fleet.index, worker.key, payload)
                sequence.last = number
        finally:
            socket.close(linger=0)

    async def _replay(self, worker: Worker, sequence: Sequence) -> None:
        """Apply what the worker still has after ``sequence.last``. Raises TimeoutError or _Lost."""
        if worker.kv_events_replay is None:
            return
        socket = self._context.socket(zmq.DEALER)
        try:
            socket.connect(worker.kv_events_replay)
            async with asyncio.timeout(REPLAY_TIMEOUT_SECONDS):
                await socket.send_multipart([b"", (sequence.last + 1).to_bytes(8, "big")])
                while True:
                    frames = await socket.recv_multipart()
                    number_bytes, payload = frames[-2], frames[-1]
                    number = int.from_bytes(number_bytes, "big", signed=True)
                    if number == _END_OF_REPLAY:
                        return
                    order = sequence.look(number)
                    if order is Order.RESTARTED:
                        continue
                    if order is Order.GAP and sequence.last >= 0:
                        raise _Lost(f"events {sequence.last + 1} to {number - 1} are not in the replay buffer")
                    kv_events.apply(self._fleet.index, worker.key, payload)
                    sequence.last = number
        finally:
            socket.close(linger=0)
