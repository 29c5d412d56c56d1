"""The decode worker's side of a remote prefill: decide, ask, wait, and clean up after requests nobody waits for.

Nothing here is ever an error for the client: whatever goes wrong, the prompt is prefilled locally, with the reason in
the answer's headers.
"""

import asyncio
import itertools
import logging
import uuid
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from pydantic import ValidationError

from pointsman.api.protocol import names
from pointsman.api.protocol.prefill import (
    PRESENCE_STALE_SECONDS,
    PrefillOutcome,
    PrefillPresence,
    PrefillReply,
    PrefillRequest,
    PrefillSignal,
    SignalKind,
)
from pointsman.process.ending import end
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
from pointsman.workers.types import PrefillPath, RemoteKv

log = logging.getLogger(__name__)

PRESENCE_LOOK_SECONDS = 0.25  # how often a waiting request looks whether any prefill worker is left


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
    publication: "asyncio.Task[int] | None" = None  # its result is the message's sequence number
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
        self._present_s: dict[str, float] = {}  # prefill workers of this group, and when each was last heard of
        self._background: set[asyncio.Task[None]] = set()
        link.on_connected(self._subscribe)
        link.on_lost(self._give_up_all)

    async def stop(self) -> None:
        """End what still runs in the background."""
        await end(self._background)

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
        if not self.prefill_workers():
            return PrefillPath(PrefillReason.NO_PREFILL_WORKER, decision.new_tokens)
        decision = decide(
            prompt_tokens=length,
            cached_tokens=prompt.cached_tokens,
            queue_depth=await self._look(),
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

    def prefill_workers(self) -> list[str]:
        """The workers that serve the queue, as far as is known: heard of in the last two seconds."""
        oldest_s = self._clock() - PRESENCE_STALE_SECONDS
        return [worker for worker, heard_s in self._present_s.items() if heard_s > oldest_s]

    async def _look(self) -> int | None:
        """Requests waiting in the queue; None if it cannot be seen."""
        try:
            return (await self._queue.depth()).waiting
        except QueueUnavailableError as error:
            log.info("the prefill queue cannot be seen: %s", error)
            return None

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
        try:
            async with asyncio.timeout(wait_s):
                asked.publication = asyncio.create_task(self._queue.publish(request))
                await asyncio.shield(asked.publication)
                reply = await self._answer_or_no_worker(asked)
            asked.taken = reply
        except QueueFullError:
            asked.answer.cancel()
            return PrefillReason.QUEUE_FULL, None
        except PromptTooLargeError:
            asked.answer.cancel()
            return PrefillReason.TOO_LARGE, None
        except QueueUnavailableError as error:
            log.info("request %s: the prefill queue failed: %s", request_id, error)
            return PrefillReason.QUEUE_UNKNOWN, None
        except TimeoutError:
            return PrefillReason.TIMED_OUT, None
        finally:
            if asked.taken is None and not asked.answer.cancelled():
                self._give_up(asked)
        if reply is None:
            return PrefillReason.NO_PREFILL_WORKER, None
        return self._judge(reply, asked, usable_until)

    async def _answer_or_no_worker(self, asked: _Asked) -> PrefillReply | None:
        """The answer; None when there is no prefill worker any more that could give one."""
        while not asked.answer.done():
            await asyncio.wait({asked.answer}, timeout=PRESENCE_LOOK_SECONDS)
            if not asked.answer.done() and not self.prefill_workers():
                return None
        return asked.answer.result()

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
            self._spawn(self._cancel(asked))

    def _give_up_all(self) -> None:
        for asked in self._asked.values():
            if not asked.answer.done():
                asked.answer.set_exception(QueueUnavailableError("the connection to NATS was lost"))

    def _remember(self, reply_to: str, asked: _Asked) -> None:
        """Keep it until its lease is over at the latest; whoever still waited has given up before."""
        while self._asked:
            oldest = next(iter(self._asked))
            if asked.published_s - self._asked[oldest].published_s < self._settings.lease_seconds:
                break
            del self._asked[oldest]
        self._asked[reply_to] = asked

    async def _subscribe(self, client: Client) -> None:
        if client is self._client:
            return  # nats-py keeps subscriptions over a reconnect
        inbox = client.new_inbox()
        await client.subscribe(f"{inbox}.*", cb=self._on_reply)
        settings = self._settings
        subject = names.prefill_presence_subject(settings.namespace, settings.service_uid, settings.kv_compatibility)
        await client.subscribe(subject, cb=self._on_presence)
        self._client = client
        self._inbox = inbox

    async def _on_presence(self, message: Msg) -> None:
        try:
            presence = PrefillPresence.model_validate_json(message.data)
        except ValidationError as error:
            log.warning("a message that is no PrefillPresence: %s", error)
            return
        if presence.serving:
            self._present_s[presence.worker] = self._clock()
        else:
            self._present_s.pop(presence.worker, None)

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

    async def _cancel(self, asked: _Asked) -> None:
        if asked.publication is not None:
            # A request given up while it is published is on the queue all the same.
            with suppress(QueueUnavailableError, QueueFullError, PromptTooLargeError):
                await self._queue.withdraw(await asked.publication)
        await self._signal(asked.request_id, SignalKind.CANCELLED)

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
