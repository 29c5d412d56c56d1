"""The decode worker's side of a remote prefill: decide, ask, wait, and clean up after requests nobody waits for.

Nothing here is ever an error for the client: whatever goes wrong, the prompt is prefilled locally, with the reason in
the answer's headers. Only a prompt with which prefill workers died is not: it could be the reason.
"""

import asyncio
import itertools
import logging
import math
import uuid
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from pydantic import ValidationError

from pointsman.api.protocol import names
from pointsman.api.protocol.prefill import (
    FIRST_TOKEN_SECONDS,
    LONGEST_WAIT_SECONDS,
    PRESENCE_STALE_SECONDS,
    PrefillBegun,
    PrefillOutcome,
    PrefillPresence,
    PrefillReply,
    PrefillRequest,
    PrefillSignal,
    PrefillWait,
    SignalKind,
    with_images,
)
from pointsman.process.ending import end
from pointsman.serving.local_remote import PrefillReason, RoutingRule, decide
from pointsman.workers.core.leases import began_s, usable_until_s
from pointsman.workers.engine import Engine
from pointsman.workers.errors import (
    EngineUnavailable,
    PromptTooLarge,
    QueueFull,
    QueueUnavailable,
)
from pointsman.workers.nats_link import NatsLink
from pointsman.workers.prefill_queue import PrefillQueue
from pointsman.workers.settings import WorkerSettings
from pointsman.workers.types import AwaitedPrefills, PrefillPath, RemoteKv

log = logging.getLogger(__name__)

PRESENCE_LOOK_S = 0.25  # how often a waiting request looks whether any prefill worker is left
# Half of the time to the first token may go into waiting for a remote prefill: the other half is for doing it here.
REMOTE_SHARE_OF_DEADLINE = 0.5


@dataclass(frozen=True, slots=True)
class PromptToPrefill:
    """A prompt at the moment of decision. ``time_left_s``: how long it may wait for its KV (None: no deadline).

    ``deaths``: workers that died with the client's request elsewhere. ``chat``: the request as JSON if it has images.
    """

    client_request_id: str
    model: str
    token_ids: tuple[int, ...]
    cache_salt: str | None
    cached_tokens: int
    time_left_s: float | None
    deaths: int = 0
    chat: bytes | None = None


@dataclass(slots=True)
class _Asked:
    """One request on the queue. ``taken``: the answer whose KV is pulled here; any other KV for it is released.

    ``begun``: prefill workers whose engine had the prompt; ``died``: those of them that reported their engine's death.
    """

    request_id: str
    model: str
    prompt_tokens: int
    published_s: float
    answer: "asyncio.Future[PrefillReply]"
    publication: "asyncio.Task[int] | None" = None  # its result is the message's sequence number
    taken: PrefillReply | None = None
    ended_s: float = math.inf  # since when nobody waits for it
    begun: set[str] = field(default_factory=set)
    died: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Present:
    """What a prefill worker reported last, and when it was heard."""

    heard_s: float
    presence: PrefillPresence


class RemotePrefill:
    """Has prompts prefilled by other workers. ``clock``: a monotonic clock in seconds."""

    def __init__(
        self,
        settings: WorkerSettings,
        engine: Engine,
        link: NatsLink,
        queue: PrefillQueue,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._link = link
        self._queue = queue
        self._clock = clock
        self._inbox: str | None = None
        self._client: Client | None = None
        self._numbers = itertools.count()
        self._asked: dict[str, _Asked] = {}  # by reply subject: somebody waits for the answer
        self._over: dict[str, _Asked] = {}  # nobody waits any more, in that order, until a lease of it would be over
        self._chats: dict[str, bytes] = {}  # by request: prompts with images, for the prefill worker that takes them
        self._present: dict[str, _Present] = {}  # prefill workers of this group
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
        reason, kv, died = await self._ask(prompt)
        return PrefillPath(reason, decision.new_tokens, kv, died)

    def usable(self, kv: RemoteKv) -> bool:
        """Whether ``kv`` may be pulled now: well within its lease."""
        return self._clock() < kv.usable_until_s

    def chat(self, request_id: str) -> bytes | None:
        """The chat of a request that waits for a prefill worker, as JSON; None: nobody waits for it, or any more."""
        return self._chats.get(request_id)

    async def pulled(self, request_id: str) -> None:
        """Tell the prefill workers that the engine here has dealt with this KV."""
        await self._signal(request_id, SignalKind.PULLED)

    def release(self, kv: RemoteKv, model: str) -> None:
        """Have KV freed that nobody will pull; returns at once."""
        self._spawn(self._release(kv.request_id, model, kv.kv_transfer_params))

    def prefill_workers(self) -> list[str]:
        """The workers that serve the queue, as far as is known: heard of in the last two seconds."""
        return [presence.worker for presence in self._presences()]

    @property
    def awaited(self) -> AwaitedPrefills:
        """What this worker waits for now."""
        now_s, waiting = self._clock(), self._asked.values()
        return AwaitedPrefills(
            requests=len(waiting),
            prompt_tokens=sum(asked.prompt_tokens for asked in waiting),
            oldest_s=max((now_s - asked.published_s for asked in waiting), default=0.0),
        )

    def _presences(self) -> list[PrefillPresence]:
        oldest_s = self._clock() - PRESENCE_STALE_SECONDS
        return [present.presence for present in self._present.values() if present.heard_s > oldest_s]

    async def _look(self) -> int | None:
        """Requests that wait for a prefill worker; None if the queue cannot be seen.

        Those on the queue, and those that prefill workers have taken beyond one admission by their token budgets. What
        they compute together is no queue: else a pool of many prefill workers would look full with one prompt at each.
        """
        try:
            on_queue = (await self._queue.depth()).waiting
            return on_queue + sum(presence.waiting or 0 for presence in self._presences())
        except QueueUnavailable as error:
            log.info("prefill queue not visible", extra={"why": str(error)})
            return None

    async def _ask(self, prompt: PromptToPrefill) -> tuple[PrefillReason, RemoteKv | None, frozenset[str]]:
        """How it ended, the KV to pull, and where nobody computed it, the prefill workers that died with it."""
        settings = self._settings
        if self._inbox is None:
            return PrefillReason.QUEUE_UNKNOWN, None, frozenset()
        published_s = self._clock()
        wait_s = self._wait_s(prompt.time_left_s)
        if wait_s <= 0:
            return PrefillReason.TIMED_OUT, None, frozenset()
        # Unique for each attempt: a gateway may send one client request to several workers, and JetStream drops
        # messages whose id it has seen.
        request_id = f"{prompt.client_request_id[:128]}.{uuid.uuid4().hex}"
        reply_to = f"{self._inbox}.{next(self._numbers)}"
        length = len(prompt.token_ids)
        asked = _Asked(request_id, prompt.model, length, published_s, asyncio.get_running_loop().create_future())
        self._asked[reply_to] = asked
        request = PrefillRequest(
            request_id=request_id,
            reply_to=reply_to,
            model=prompt.model,
            block_size=settings.block_size,
            kv_compatibility=settings.kv_compatibility
            if prompt.chat is None
            else with_images(settings.kv_compatibility),
            decode_worker=settings.worker,
            wait_seconds=wait_s,
            asked_at_seconds=published_s,
            cache_salt=prompt.cache_salt,
            deaths=prompt.deaths,
            token_ids=prompt.token_ids,
            chat_at=None if prompt.chat is None else settings.own_server,
        )
        if prompt.chat is not None:
            self._chats[request_id] = prompt.chat
        try:
            reason, kv = await self._kv_of(request, asked, wait_s)
        finally:
            self._chats.pop(request_id, None)
        computed = reason in (PrefillReason.REMOTE, PrefillReason.LEASE_SPENT)  # so it kills no worker
        return reason, kv, frozenset() if computed else await self._dead_of(asked)

    async def _kv_of(
        self, request: PrefillRequest, asked: _Asked, wait_s: float
    ) -> tuple[PrefillReason, RemoteKv | None]:
        """Publish a request and wait for its answer."""
        try:
            async with asyncio.timeout(wait_s):
                asked.publication = asyncio.create_task(self._queue.publish(request))
                await asyncio.shield(asked.publication)
                reply = await self._answer_or_no_worker(asked)
            asked.taken = reply
        except QueueFull:
            asked.answer.cancel()
            return PrefillReason.QUEUE_FULL, None
        except PromptTooLarge:
            asked.answer.cancel()
            return PrefillReason.TOO_LARGE, None
        except QueueUnavailable as error:
            log.info("prefill queue failed", extra={"request_id": request.request_id, "why": str(error)})
            return PrefillReason.QUEUE_UNKNOWN, None
        except TimeoutError:
            return PrefillReason.TIMED_OUT, None
        finally:
            self._end(request.reply_to, asked)
            if asked.taken is None and not asked.answer.cancelled():
                self._give_up(asked)
        if reply is None:
            return PrefillReason.NO_PREFILL_WORKER, None
        return self._judge(reply, asked)

    def _wait_s(self, time_left_s: float | None) -> float:
        """How long a remote prefill may take: as long as the request's deadline allows.

        Prefill workers of an earlier version do not report when a lease begins, so it counts from the publication, and
        an answer after the usable part of it is of no use.
        """
        wait_s = FIRST_TOKEN_SECONDS * REMOTE_SHARE_OF_DEADLINE if time_left_s is None else time_left_s
        if any(presence.in_progress is None for presence in self._presences()):
            wait_s = min(wait_s, usable_until_s(0.0, self._settings.lease_seconds))
        return min(wait_s, LONGEST_WAIT_SECONDS)

    async def _answer_or_no_worker(self, asked: _Asked) -> PrefillReply | None:
        """The answer; None when there is no prefill worker any more that could give one."""
        while not asked.answer.done():
            await asyncio.wait({asked.answer}, timeout=PRESENCE_LOOK_S)
            if not asked.answer.done() and not self.prefill_workers():
                return None
        return asked.answer.result()

    def _judge(self, reply: PrefillReply, asked: _Asked) -> tuple[PrefillReason, RemoteKv | None]:
        if reply.outcome is PrefillOutcome.EXPIRED:
            return PrefillReason.TIMED_OUT, None
        if reply.outcome is not PrefillOutcome.DONE or reply.kv_transfer_params is None:
            log.warning(
                "remote prefill failed",
                extra={
                    "request_id": asked.request_id,
                    "prefill_worker": reply.prefill_worker,
                    "outcome": reply.outcome,
                    "why": reply.detail,
                },
            )
            if reply.engine_died:
                asked.died.add(reply.prefill_worker)
            return PrefillReason.PREFILL_FAILED, None
        began, lease_s = self._lease(reply, asked)
        usable_until = usable_until_s(began, lease_s)
        kv = RemoteKv(asked.request_id, reply.kv_transfer_params, reply.prefill_worker, usable_until)
        if not self.usable(kv):
            self.release(kv, asked.model)
            return PrefillReason.LEASE_SPENT, None
        return PrefillReason.REMOTE, kv

    async def _dead_of(self, asked: _Asked) -> frozenset[str]:
        """The prefill workers that died while their engine had a prompt, as far as one can know.

        One that is drained reports that it stops, one that dies falls silent. All are silent if NATS is gone, so that
        says nothing.
        """
        oldest_s = self._clock() - PRESENCE_STALE_SECONDS
        last_heard = {name: self._present[name].heard_s for name in asked.begun if name in self._present}
        silent = {name for name, heard_s in last_heard.items() if heard_s <= oldest_s}
        if silent and await self._look() is None:
            silent.clear()
        return frozenset(silent | asked.died)

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
                asked.answer.set_exception(QueueUnavailable("the connection to NATS was lost"))

    def _lease(self, reply: PrefillReply, asked: _Asked) -> tuple[float, float]:
        """(earliest begin on this worker's clock, duration) of the lease of an answer, in seconds."""
        began = began_s(reply.lease_began_seconds, published_s=asked.published_s, now_s=self._clock())
        return began, reply.lease_seconds or self._settings.lease_seconds

    def _end(self, reply_to: str, asked: _Asked) -> None:
        """Nobody waits for it any more. It is remembered while a late answer could still be of KV that is leased."""
        now_s = asked.ended_s = self._clock()
        self._over[reply_to] = self._asked.pop(reply_to)
        while now_s - self._over[oldest := next(iter(self._over))].ended_s >= self._settings.lease_seconds:
            del self._over[oldest]

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
            log.warning("PrefillPresence not understood", extra={"why": str(error)})
            return
        if presence.serving:
            self._present[presence.worker] = _Present(self._clock(), presence)
        else:
            self._present.pop(presence.worker, None)

    async def _on_reply(self, message: Msg) -> None:
        if message.reply:
            await self._confirm(message)
            return
        try:
            reply = PrefillReply.model_validate_json(message.data)
        except ValidationError as error:
            log.warning("PrefillReply not understood", extra={"subject": message.subject, "why": str(error)})
            return
        asked = self._asked.get(message.subject) or self._over.get(message.subject)
        if asked is None or asked.request_id != reply.request_id:
            log.warning("unexpected answer, or its lease has expired", extra={"request_id": reply.request_id})
        elif not asked.answer.done():
            asked.answer.set_result(reply)
        else:
            self._release_if_leased(asked, reply)

    async def _confirm(self, message: Msg) -> None:
        """Answer a prefill worker whose engine has a prompt of this worker: whether it is needed, and the time."""
        try:
            begun = PrefillBegun.model_validate_json(message.data)
        except ValidationError as error:
            log.warning("PrefillBegun not understood", extra={"subject": message.subject, "why": str(error)})
            return
        asked = self._asked.get(message.subject)
        waiting = asked is not None and asked.request_id == begun.request_id and not asked.answer.done()
        if asked is not None and waiting:
            asked.begun.add(begun.prefill_worker)
        answer = PrefillWait(request_id=begun.request_id, waiting=waiting, clock_seconds=self._clock())
        try:
            await message.respond(answer.wire().encode())
        except nats.errors.Error as error:
            log.info("prefill worker not answered", extra={"request_id": begun.request_id, "why": str(error)})

    def _release_if_leased(self, asked: _Asked, reply: PrefillReply) -> None:
        """Free the KV of an answer nobody uses. The same answer again is of KV that is being pulled here."""
        params = reply.kv_transfer_params
        if params is None or (asked.taken is not None and asked.taken.kv_transfer_params == params):
            return
        began, lease_s = self._lease(reply, asked)
        if self._clock() - began < lease_s:
            self._spawn(self._release(asked.request_id, asked.model, params))

    async def _release(self, request_id: str, model: str, params: Mapping[str, Any]) -> None:
        try:
            await self._engine.release(params, model=model, request_id=f"release-{request_id}")
        except EngineUnavailable as error:
            log.warning("KV stays pinned until its lease ends", extra={"request_id": request_id, "why": str(error)})
        else:
            await self._signal(request_id, SignalKind.PULLED)

    async def _cancel(self, asked: _Asked) -> None:
        if asked.publication is not None:
            # A request given up while it is published is on the queue all the same.
            with suppress(QueueUnavailable, QueueFull, PromptTooLarge):
                await self._queue.withdraw(await asked.publication)
        await self._signal(asked.request_id, SignalKind.CANCELLED)

    async def _signal(self, request_id: str, kind: SignalKind) -> None:
        settings = self._settings
        subject = names.prefill_signal_subject(settings.namespace, settings.service_uid, settings.kv_compatibility)
        signal = PrefillSignal(request_id=request_id, kind=kind)
        try:
            await self._link.client.publish(subject, signal.wire().encode())
        except (QueueUnavailable, nats.errors.Error) as error:
            log.info("signal not sent", extra={"request_id": request_id, "signal": kind, "why": str(error)})

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
