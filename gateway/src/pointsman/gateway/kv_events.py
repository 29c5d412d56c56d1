"""Feeds the KV index from the decode workers' KV feeds (``pointsman.api.protocol.kv_feed``).

One task per decode worker reads its stream: a snapshot of the worker's whole cache, then every change. A gap, a broken
stream or a worker that returns is answered by a new snapshot; the old content stays until that is complete. The index
is a hint for routing, so nothing waits for it.
"""

import asyncio
import logging
import time
from http import HTTPStatus

import aiohttp

from pointsman.api.protocol import kv_feed as wire
from pointsman.api.protocol.control import KV_EVENTS_PATH
from pointsman.api.protocol.kv_feed import FrameReader, MalformedFeed
from pointsman.api.protocol.names import Role
from pointsman.gateway.control_tokens import ControlTokens
from pointsman.gateway.core.kv_feed import FeedGap, FeedNotSupported, FeedState
from pointsman.gateway.fleet import Fleet
from pointsman.gateway.types import Worker, WorkerKey

log = logging.getLogger(__name__)

CONNECT_S = 5.0
SILENCE_S = 5 * wire.HEARTBEAT_SECONDS  # then the stream is taken for broken
FORGET_S = 5.0  # without a stream, until what a worker had is unknown
SNAPSHOT_S = 60.0  # the same while snapshots are on their way, however many begin
RETRY_FIRST_S = 0.05  # after a stream that was understood; then twice as long each time
RETRY_LAST_S = 5.0
NOT_SUPPORTED_RETRY_S = 60.0
SLICE_S = 0.002  # of all feeds together in one iteration of the event loop


class KvEventFeed:
    """Keeps one stream per decode worker and the index in step with it."""

    def __init__(
        self,
        fleet: Fleet,
        session: aiohttp.ClientSession,
        *,
        control_token: str,
        forget_seconds: float = FORGET_S,
        snapshot_seconds: float = SNAPSHOT_S,
    ) -> None:
        self._fleet = fleet
        self._session = session
        self._tokens = ControlTokens(control_token)
        self._forget_seconds = forget_seconds
        self._snapshot_seconds = snapshot_seconds
        self._budget = LoopBudget(SLICE_S)
        self._running: dict[WorkerKey, asyncio.Task[None]] = {}
        self._forgetting: dict[WorkerKey, asyncio.TimerHandle] = {}
        self._outdated_since_s: dict[WorkerKey, float] = {}  # since its stream broke or announced a snapshot
        self._known: set[WorkerKey] = set()

    @property
    def known(self) -> frozenset[WorkerKey]:
        """Workers whose cache is known and followed at this moment."""
        return frozenset(self._known)

    def look(self) -> None:
        """Start and stop streams so that they match the fleet. Called on every change of it."""
        decoding = {worker.key: worker for worker in self._fleet.workers if worker.role is Role.DECODE}
        for key in self._running.keys() - decoding.keys():
            self._running.pop(key).cancel()
            self._known.discard(key)
            self._forget(key)
        for key in decoding.keys() - self._running.keys():
            worker = decoding[key]
            self._running[key] = asyncio.create_task(self._follow(worker), name=f"kv events of {worker.name}")

    async def stop(self) -> None:
        """End all streams."""
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)
        for timer in self._forgetting.values():
            timer.cancel()

    async def _follow(self, worker: Worker) -> None:
        delay_s = RETRY_FIRST_S
        supported = True
        while True:
            state = FeedState(self._fleet.index, worker.key)
            try:
                await self._read(worker, state)
                why = "the worker ended the stream"
            except FeedNotSupported as error:
                if supported:
                    log.warning("kv events not supported", extra={"worker": worker.name, "why": str(error)})
                supported = False
                self._forget(worker.key)
                await asyncio.sleep(NOT_SUPPORTED_RETRY_S)
                continue
            except (aiohttp.ClientError, TimeoutError, OSError, FeedGap, MalformedFeed) as error:
                why = str(error) or type(error).__name__
            except Exception:
                # A defect, as loud as can be; but this worker's cache would stay unknown for ever.
                log.exception("kv events interrupted by an internal error", extra={"worker": worker.name})
                why = "a defect"
            finally:
                state.abandon()
                self._known.discard(worker.key)
            log.warning("kv events interrupted", extra={"worker": worker.name, "why": why})
            self._forget_later(worker.key, self._forget_seconds)
            delay_s = RETRY_FIRST_S if state.known else min(2 * delay_s, RETRY_LAST_S)
            await asyncio.sleep(delay_s)

    async def _read(self, worker: Worker, state: FeedState) -> None:
        """Apply the worker's stream until it ends. Raises when it breaks or cannot be understood."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=SILENCE_S)
        url = f"{worker.url}{KV_EVENTS_PATH}"
        sent = self._tokens.headers(worker.key)
        async with self._session.get(url, headers=sent, timeout=timeout) as response:
            if response.status == HTTPStatus.NOT_FOUND:
                raise FeedNotSupported(f"the worker has no {KV_EVENTS_PATH}: its version is older than the gateway's")
            if response.status == HTTPStatus.UNAUTHORIZED:
                self._tokens.refused(worker.key)
            if response.status != HTTPStatus.OK:
                raise MalformedFeed(f"{KV_EVENTS_PATH} answered {response.status}")
            frames = FrameReader()
            async for data in response.content.iter_any():
                frames.push(data)
                await self._apply(worker, state, frames)

    async def _apply(self, worker: Worker, state: FeedState, frames: FrameReader) -> None:
        while True:
            await self._budget.wait()
            began_s = time.perf_counter()
            frame = frames.next()
            if frame is None:
                return
            if isinstance(frame, wire.Snapshot):
                self._forget_later(worker.key, self._snapshot_seconds)
            if state.apply(frame):
                self._keep(worker.key)
                self._known.add(worker.key)
                log.info(
                    "kv events followed",
                    extra={"worker": worker.name, "blocks": self._fleet.index.blocks_held(worker.key)},
                )
            self._budget.spend(time.perf_counter() - began_s)

    def _forget_later(self, key: WorkerKey, seconds: float) -> None:
        """Unless a snapshot is complete first, what a worker had is unknown ``seconds`` after it was last certain."""
        loop = asyncio.get_running_loop()
        since_s = self._outdated_since_s.setdefault(key, loop.time())
        timer = self._forgetting.pop(key, None)
        if timer is not None:
            timer.cancel()
        self._forgetting[key] = loop.call_at(since_s + seconds, self._forget, key)

    def _keep(self, key: WorkerKey) -> None:
        self._outdated_since_s.pop(key, None)
        timer = self._forgetting.pop(key, None)
        if timer is not None:
            timer.cancel()

    def _forget(self, key: WorkerKey) -> None:
        self._keep(key)
        self._known.discard(key)
        self._fleet.index.cleared(key)


class LoopBudget:
    """Time that all its users together take of one iteration of the event loop."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._spent_s = 0.0
        self._renewing = False
        self._left = asyncio.Event()
        self._left.set()

    async def wait(self) -> None:
        """Return in an iteration of the loop that has time left."""
        while not self._left.is_set():
            await self._left.wait()

    def spend(self, seconds: float) -> None:
        """``seconds`` were taken of this iteration."""
        self._spent_s += seconds
        if self._spent_s >= self._seconds:
            self._left.clear()
        if not self._renewing:
            self._renewing = True
            asyncio.get_running_loop().call_soon(self._renew)

    def _renew(self) -> None:
        self._spent_s = 0.0
        self._renewing = False
        self._left.set()
