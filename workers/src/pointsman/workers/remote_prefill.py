"""The decode worker's side of a remote prefill: decide, ask, wait, and clean up after requests nobody waits for.

Nothing here is ever an error for the client: whatever goes wrong, the prompt is prefilled locally, with the reason in
the answer's headers.
"""

import asyncio
import itertools
import logging
import uuid
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from pydantic import ValidationError

from pointsman.api.protocol import names
from pointsman.api.protocol.prefill import (
    PrefillOutcome,
    PrefillReply,
    PrefillRequest,
    PrefillSignal,
    SignalKind,
)
from pointsman.serving.local_remote import PrefillReason, RoutingRule, decide
from pointsman.workers.core.leases import usable_until_s
from pointsman.workers.engine import Engine
from pointsman.workers.errors import (
    EngineUnavailableError,
    PromptTooLargeError,
    QueueFullError,
    QueueUnavailableError,
)
from pointsman.workers.nats_link import NatsLink
from pointsman.workers.prefill_queue import PrefillQueue
from pointsman.workers.settings import WorkerSettings
from pointsman.workers.types import PrefillPath, QueueDepth, RemoteKv

log = logging.getLogger(__name__)

PULLER_SEEN_SECONDS = 2.0  # how long a sight of a pulling worker counts: it pulls again within half a second
PULLER_LOOKS = 3
PULLER_LOOK_PAUSE_SECONDS = 0.03


@dataclass(frozen=True, slots=True)
class PromptToPrefill:
    """A prompt at the moment of decision. ``time_left_s``: until its first token is due (None: no deadline)."""

    client_request_id: str
    model: str
    token_ids: tuple[int, ...]
    cache_salt: str | None
    cached_tokens: int
    time_left_s: float | None


@dataclass(slots=True)
class _Asked:
    """One request on the queue. ``taken``: the answer whose KV is pulled here; any other KV for it is released."""

    request_id: str
    model: str
    published_s: float
    answer: "asyncio.Future[PrefillReply]"
    taken: PrefillReply | None = None


class RemotePrefill:
    """Has prompts prefilled by other workers. ``clock``: a monotonic clock in seconds; ``unix``: wall clock."""

    def __init__(
        self,
        settings: WorkerSettings,
        engine: Engine,
        link: NatsLink,
        queue: PrefillQueue,
        *,
        clock: Callable[[], float],
        unix: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._link = link
        self._queue = queue
        self._clock = clock
        self._unix = unix
        self._inbox: str | None = None
        self._client: Client | None = None
        self._numbers = itertools.count()
        self._asked: dict[str, _Asked] = {}  # by reply subject, in order of time, until a lease of it would be over
        self._puller_seen_s: float | None = None
        self._background: set[asyncio.Task[None]] = set()
        self.last_depth: int | None = None
        link.on_connected(self._subscribe)
        link.on_lost(self._give_up_all)

    async def stop(self) -> None:
        """End what still runs in the background."""
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)

    async def prefill(self, prompt: PromptToPrefill, rule: RoutingRule) -> PrefillPath:
        """Decide where ``prompt`` is prefilled and, if remotely, wait for its KV.

        Cancel it when the client leaves: the request is then withdrawn from the queue or its KV released.
        """
        length = len(prompt.token_ids)
        # The queue is looked at only when its answer matters.
        decision = decide(
            prompt_tokens=length,
            cached_tokens=prompt.cached_tokens,
            queue_depth=0 if self._link.ready.is_set() else None,
            rule=rule,
        )
        if not decision.remote:
            return PrefillPath(decision.reason, decision.new_tokens)
        depth = await self._look()
        if depth is not None and depth.pulls + depth.in_progress == 0:
            return PrefillPath(PrefillReason.NO_PREFILL_WORKER, decision.new_tokens)
        decision = decide(
            prompt_tokens=length,
            cached_tokens=prompt.cached_tokens,
            queue_depth=None if depth is None else depth.waiting,
            rule=rule,
        )
        if not decision.remote:
            return PrefillPath(decision.reason, decision.new_tokens)
        reason, kv = await self._ask(prompt)
        return PrefillPath(reason, decision.new_tokens, kv)

    def usable(self, kv: RemoteKv) -> bool:
        """Whether ``kv`` may be pulled now: well within its lease."""
        return self._clock() < kv.usable_until_s

    async def pulled(self, request_id: str) -> None:
        """Tell the prefill workers that the engine here has dealt with this KV."""
        await self._signal(request_id, SignalKind.PULLED)

    def release(self, kv: RemoteKv, model: str) -> None:
        """Have KV freed that nobody will pull; returns at once."""
        self._spawn(self._release(kv.request_id, model, kv.kv_transfer_params))

    async def _look(self) -> QueueDepth | None:
        """The queue's depth, None if it cannot be seen.

        Between two pulls of a worker there is a moment without any, so "nobody pulls" is believed only after several
        looks, and not within two seconds of a sight of one.
        """
        for look in range(PULLER_LOOKS):
            try:
                depth = await self._queue.depth()
            except QueueUnavailableError as error:
                log.info("the prefill queue cannot be seen: %s", error)
                self.last_depth = None
                return None
            self.last_depth = depth.waiting
            now_s = self._clock()
            if depth.pulls or depth.in_progress:
                self._puller_seen_s = now_s
                return depth
            if self._puller_seen_s is not None and now_s - self._puller_seen_s < PULLER_SEEN_SECONDS:
                return QueueDepth(waiting=depth.waiting, in_progress=depth.in_progress, pulls=1)
            if look + 1 < PULLER_LOOKS:
                await asyncio.sleep(PULLER_LOOK_PAUSE_SECONDS)
        return depth

    async def _ask(self, prompt: PromptToPrefill) -> tuple[PrefillReason, RemoteKv | None]:
        settings = self._settings
        if self._inbox is None:
            return PrefillReason.QUEUE_UNKNOWN, None
        published_s = self._clock()
        usable_until = usable_until_s(published_s, settings.lease_seconds)
        wait_s = usable_until - published_s
        if prompt.time_left_s is not None:
            wait_s = min(wait_s, prompt.time_left_s)
        if wait_s <= 0:
            return PrefillReason.TIMED_OUT, None
        # Unique for each attempt: a gateway may send one client request to several workers, and JetStream drops
        # messages whose id it has seen.
        request_id = f"{prompt.client_request_id[:128]}.{uuid.uuid4().hex}"
        reply_to = f"{self._inbox}.{next(self._numbers)}"
        asked = _Asked(request_id, prompt.model, published_s, asyncio.get_running_loop().create_future())
        self._remember(reply_to, asked)
        request = PrefillRequest(
            request_id=request_id,
            reply_to=reply_to,
            model=prompt.model,
            block_size=settings.block_size,
            kv_compatibility=settings.kv_compatibility,
            decode_worker=settings.worker,
            deadline_unix_ms=int((self._unix() + wait_s) * 1000),
            cache_salt=prompt.cache_salt,
            token_ids=prompt.token_ids,
        )
        on_queue = True
        try:
            async with asyncio.timeout(wait_s):
                await self._queue.publish(request)
                reply = await asked.answer
            asked.taken = reply
        except QueueFullError:
            on_queue = False
            return PrefillReason.QUEUE_FULL, None
        except PromptTooLargeError:
            on_queue = False
            return PrefillReason.UNSUPPORTED, None
        except QueueUnavailableError as error:
            log.info("request %s: the prefill queue failed: %s", request_id, error)
            return PrefillReason.QUEUE_UNKNOWN, None
        except TimeoutError:
            return PrefillReason.TIMED_OUT, None
        finally:
            if on_queue and asked.taken is None:
                self._give_up(asked)
        return self._judge(reply, asked, usable_until)

    def _judge(self, reply: PrefillReply, asked: _Asked, usable_until: float) -> tuple[PrefillReason, RemoteKv | None]:
        if reply.outcome is PrefillOutcome.EXPIRED:
            return PrefillReason.TIMED_OUT, None
        if reply.outcome is not PrefillOutcome.DONE or reply.kv_transfer_params is None:
            log.warning("request %s: %s: %s: %s", asked.request_id, reply.prefill_worker, reply.outcome, reply.detail)
            return PrefillReason.PREFILL_FAILED, None
        kv = RemoteKv(asked.request_id, reply.kv_transfer_params, reply.prefill_worker, usable_until)
        if not self.usable(kv):
            self.release(kv, asked.model)
            return PrefillReason.LEASE_SPENT, None
        return PrefillReason.REMOTE, kv

    def _give_up(self, asked: _Asked) -> None:
        """Nobody waits for this request any more, whether its answer is here, on its way, or never comes."""
        answer = asked.answer
        if answer.done() and not answer.cancelled() and answer.exception() is None:
            self._release_if_leased(asked, answer.result())
        else:
            answer.cancel()
            self._spawn(self._signal(asked.request_id, SignalKind.CANCELLED))

    def _give_up_all(self) -> None:
        for asked in self._asked.values():
            if not asked.answer.done():
                asked.answer.set_exception(QueueUnavailableError("the connection to NATS was lost"))

    def _remember(self, reply_to: str, asked: _Asked) -> None:
        for known, earlier in list(self._asked.items()):
            if asked.published_s - earlier.published_s < self._settings.lease_seconds:
                break
            if earlier.answer.done():
                del self._asked[known]
        self._asked[reply_to] = asked

    async def _subscribe(self, client: Client) -> None:
        if client is self._client:
            return  # nats-py keeps subscriptions over a reconnect
        inbox = client.new_inbox()
        await client.subscribe(f"{inbox}.*", cb=self._on_reply)
        self._client = client
        self._inbox = inbox

    async def _on_reply(self, message: Msg) -> None:
        try:
            reply = PrefillReply.model_validate_json(message.data)
        except ValidationError as error:
            log.warning("an answer that is no PrefillReply on %s: %s", message.subject, error)
            return
        asked = self._asked.get(message.subject)
        if asked is None or asked.request_id != reply.request_id:
            log.warning("request %s: an answer nobody asked for, or of a lease that is over", reply.request_id)
        elif not asked.answer.done():
            asked.answer.set_result(reply)
        else:
            self._release_if_leased(asked, reply)

    def _release_if_leased(self, asked: _Asked, reply: PrefillReply) -> None:
        """Free the KV of an answer nobody uses. The same answer again is of KV that is being pulled here."""
        params = reply.kv_transfer_params
        if params is None or (asked.taken is not None and asked.taken.kv_transfer_params == params):
            return
        if self._clock() - asked.published_s < self._settings.lease_seconds:
            self._spawn(self._release(asked.request_id, asked.model, params))

    async def _release(self, request_id: str, model: str, params: Mapping[str, Any]) -> None:
        try:
            await self._engine.release(params, model=model, request_id=f"release-{request_id}")
        except EngineUnavailableError as error:
            log.warning("request %s: its KV stays pinned until the lease ends: %s", request_id, error)
        else:
            await self._signal(request_id, SignalKind.PULLED)

    async def _signal(self, request_id: str, kind: SignalKind) -> None:
        settings = self._settings
        subject = names.prefill_signal_subject(settings.namespace, settings.service_uid, settings.kv_compatibility)
        signal = PrefillSignal(request_id=request_id, kind=kind)
        try:
            await self._link.client.publish(subject, signal.wire().encode())
        except (QueueUnavailableError, nats.errors.Error) as error:
            log.info("request %s: %s could not be told: %s", request_id, kind, error)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
