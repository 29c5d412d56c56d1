"""The prefill worker's side: take requests off the queue within the token budget, compute, answer, acknowledge.

A request is acknowledged only after its answer is out: if this worker dies before, the queue gives it to another.
While it waits here or is being computed, heartbeats keep the queue from taking it for lost.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from pydantic import ValidationError

from pointsman.api.protocol import names
from pointsman.api.protocol.control import MAX_DEATHS
from pointsman.api.protocol.prefill import (
    PRESENCE_SECONDS,
    MalformedPrefillRequest,
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
from pointsman.serving.ejection import EjectionRule, Health
from pointsman.serving.engine_death import reports_engine_death
from pointsman.serving.token_budget import DEFAULT_PREFILL_TOKEN_BUDGET
from pointsman.workers.chat_source import ChatSource
from pointsman.workers.core.admission import PrefillLimits
from pointsman.workers.core.duplicates import SeenRequests
from pointsman.workers.core.engine_time import EngineTime
from pointsman.workers.core.leases import LeaseLedger, LeaseStart
from pointsman.workers.core.prompts import (
    CHAT_PATH,
    COMPLETIONS_PATH,
    KV_TRANSFER_PARAMS,
    chat_prefill_leg,
    prefill_leg,
)
from pointsman.workers.engine import Engine
from pointsman.workers.errors import ChatUnavailable, EngineUnavailable, QueueUnavailable
from pointsman.workers.metrics import WorkerMetrics
from pointsman.workers.nats_link import NatsLink
from pointsman.workers.prefill_queue import PrefillPuller
from pointsman.workers.settings import WorkerSettings

log = logging.getLogger(__name__)

RETRY_S = 0.25  # between pulls that fail
CONFIRMATION_S = 1.0  # an answer waits for it at most so long
REQUESTER_TIMEOUT_S = 2.0  # for a decode worker to confirm that it waits; then it is asked again
# A worker whose engine fails at once is always the first to pull again: it would take most of the queue. The times are
# the gateway's defaults for a worker that answers with failures.
PAUSES = EjectionRule(base_s=2.0, max_s=60.0)
_NO_CONTEXT_LIMIT = 2**31


@dataclass(slots=True)
class _Job:
    """A request in this worker's hands. ``delivery`` is the latest one of it: the one to acknowledge."""

    request: PrefillRequest
    delivery: Msg
    taken_s: float
    compute: asyncio.Task[PrefillReply] | None = None
    heartbeats: asyncio.Task[None] | None = None
    confirmation: asyncio.Task[None] | None = None
    lease: LeaseStart | None = None  # from the moment the engine has the prompt

    def stop(self) -> None:
        """Stop the computation, for the first reason that comes: a second would interrupt the engine's own abort."""
        if self.compute is not None and not self.compute.cancelling():
            self.compute.cancel()


class PrefillServer:
    """Serves the prefill queue while ``pulling`` is on. ``clock``: monotonic seconds."""

    def __init__(
        self,
        settings: WorkerSettings,
        engine: Engine,
        link: NatsLink,
        puller: PrefillPuller,
        metrics: WorkerMetrics,
        ledger: LeaseLedger,
        *,
        clock: Callable[[], float],
        on_engine_abort: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._link = link
        self._puller = puller
        self._metrics = metrics
        self._ledger = ledger
        self._clock = clock
        self._on_engine_abort = on_engine_abort
        self._seen = SeenRequests(keep_s=settings.lease_seconds)
        self._wanted = asyncio.Event()
        self._changed = asyncio.Event()
        self._announce_now = asyncio.Event()
        self._pull_outstanding = False
        self._waiting: _Job | None = None  # pulled, but the budget has no room yet: at most one
        self._running: dict[str, _Job] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._client: Client | None = None
        self._budget_tokens = DEFAULT_PREFILL_TOKEN_BUDGET
        self._engine_time = EngineTime()
        self._health = Health()  # of the own engine
        self._chats = ChatSource(settings)
        link.on_connected(self._subscribe)

    @property
    def pulling(self) -> bool:
        """Whether it takes requests."""
        return self._wanted.is_set()

    @pulling.setter
    def pulling(self, on: bool) -> None:
        if on == self.pulling:
            return
        if on:
            self._wanted.set()
        else:
            self._wanted.clear()
        self._announce_now.set()

    @property
    def budget_tokens(self) -> int:
        """Prompt tokens computed at one time."""
        return self._budget_tokens

    @budget_tokens.setter
    def budget_tokens(self, tokens: int) -> None:
        self._budget_tokens = tokens
        self._changed.set()

    @property
    def running(self) -> int:
        """Requests being computed."""
        return len(self._running)

    @property
    def running_tokens(self) -> int:
        """Prompt tokens of those."""
        return sum(len(job.request.token_ids) for job in self._running.values())

    @property
    def queued(self) -> int:
        """Requests pulled and not begun; while no longer pulling, also the pull that may still bring one."""
        return (self._waiting is not None) + (self._pull_outstanding and not self.pulling)

    @property
    def in_progress(self) -> list[int]:
        """Prompt lengths of the requests taken and not answered, oldest first."""
        taken = [*self._running.values(), *([self._waiting] if self._waiting is not None else [])]
        return [len(job.request.token_ids) for job in taken]

    async def stop(self) -> None:
        """End what is being computed at once; requests in hand are redelivered to others after the ack wait."""
        await end(self._tasks)
        await self._chats.close()

    async def run(self) -> None:
        """Take requests until cancelled."""
        while True:
            await self._wanted.wait()
            await self._link.ready.wait()
            self._changed.clear()
            now_s = self._clock()
            if self._health.avoided(now_s):
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._health.avoided_until_s - now_s):
                        await self._changed.wait()
                continue
            if not self._limits().wants_another(self._lengths()):
                await self._changed.wait()
                continue
            self._pull_outstanding = True
            try:
                delivery = await self._puller.pull()
            except QueueUnavailable as error:
                log.info("cannot pull", extra={"why": str(error)})
                await asyncio.sleep(RETRY_S)
                continue
            finally:
                self._pull_outstanding = False
            if delivery is not None:
                await self._take(delivery)

    async def announce(self) -> None:
        """Tell the decode workers of the group that this worker serves the queue, until cancelled."""
        settings = self._settings
        subject = names.prefill_presence_subject(settings.namespace, settings.service_uid, settings.kv_compatibility)
        while True:
            self._announce_now.clear()
            taken = self.in_progress
            presence = PrefillPresence(
                worker=settings.worker,
                serving=self.pulling and not self._health.ejected(self._clock()),
                in_progress=len(taken),
                in_progress_tokens=sum(taken),
                waiting=self._limits().waiting(taken),
            )
            try:
                await self._link.client.publish(subject, presence.wire().encode())
            except (QueueUnavailable, nats.errors.Error) as error:
                log.debug("presence not published", extra={"why": str(error)})
            with suppress(TimeoutError):
                # One that does not serve says so once, at the change; silence says the rest.
                async with asyncio.timeout(PRESENCE_SECONDS if self.pulling else None):
                    await self._announce_now.wait()

    async def _take(self, delivery: Msg) -> None:
        """Begin one request, as soon as the budget allows."""
        try:
            request = PrefillRequest.decode(delivery.data)
        except MalformedPrefillRequest as error:
            log.error("prefill request not understood, it is dropped", extra={"why": str(error)})
            await self._acknowledge(delivery)
            return
        known = self._running.get(request.request_id)
        if known is not None:
            known.delivery = delivery  # redelivered although we live: the newer delivery is the one to acknowledge
            log.warning("request redelivered while being computed here", extra={"request_id": request.request_id})
            return
        earlier = self._seen.answered(request.request_id, self._clock())
        if earlier is not None:
            age_s = earlier.reply.lease_age_seconds + self._clock() - earlier.at_s
            await self._answer(request, delivery, earlier.reply.model_copy(update={"lease_age_seconds": age_s}))
            return
        job = _Job(request, delivery, self._clock())
        job.heartbeats = self._spawn(self._keep_alive(job))
        self._waiting = job
        try:
            while not (
                self._limits().admits(len(request.token_ids), self._lengths())
                or self._seen.is_cancelled(request.request_id)
            ):
                self._changed.clear()
                await self._changed.wait()
        finally:
            self._waiting = None
        refusal = self._refusal(job)
        if self._seen.is_cancelled(request.request_id):
            job.heartbeats.cancel()
            await self._acknowledge(job.delivery)
            log.info("request cancelled before it began", extra={"request_id": request.request_id})
        elif refusal is not None:
            job.heartbeats.cancel()
            self._metrics.prefilled(refusal.outcome, None)
            await self._answer(request, job.delivery, refusal)
        else:
            PAUSES.chosen(self._health, self._clock())
            self._running[request.request_id] = job
            self._spawn(self._run(job))

    async def _run(self, job: _Job) -> None:
        request = job.request
        reply: PrefillReply | None = None
        begun_s = self._engine_time.begun(self._clock())
        job.lease = LeaseStart(self._clock())
        job.compute = asyncio.create_task(self._compute(job), name=f"prefill {request.request_id}")
        if request.asked_at_seconds is not None:
            job.lease.heard(request.asked_at_seconds, job.taken_s)
            job.confirmation = self._spawn(self._confirm(job))
        try:
            reply = await job.compute
        except asyncio.CancelledError:
            if not self._seen.is_cancelled(request.request_id):
                job.stop()
                raise
            log.info("request cancelled while being computed", extra={"request_id": request.request_id})
        finally:
            for task in (job.heartbeats, job.confirmation):
                if task is not None and reply is None:
                    task.cancel()
            del self._running[request.request_id]
            if reply is not None and reply.outcome is PrefillOutcome.DONE:
                self._metrics.engine_worked(self._engine_time.ended(begun_s, self._clock()))
            else:
                self._engine_time.given_up(begun_s)
            self._changed.set()
        if reply is None:
            await self._acknowledge(job.delivery)
            return
        self._seen.answer(reply, self._clock())
        if job.confirmation is not None:
            # A prefill shorter than the way to the decode worker and back: without the confirmation, the time that the
            # request was on the queue would count as age of the lease.
            await asyncio.wait({job.confirmation}, timeout=CONFIRMATION_S)
            job.confirmation.cancel()
            reply = self._with_lease(reply, job)
            self._seen.answer(reply, self._clock())
        if job.heartbeats is not None:
            job.heartbeats.cancel()
        self._metrics.prefilled(reply.outcome, reply.prefill_seconds)
        log.info(
            "prefill answered",
            extra={
                "request_id": request.request_id,
                "outcome": reply.outcome.value,
                "tokens": len(request.token_ids),
                "queued_s": round(reply.queued_seconds or 0.0, 3),
                "computed_s": round(reply.prefill_seconds or 0.0, 3),
            },
        )
        await self._answer(request, job.delivery, reply)

    async def _compute(self, job: _Job) -> PrefillReply:
        """The prefill leg against the own engine."""
        request = job.request
        begun_s = self._clock()
        try:
            if request.chat_at is None:
                path, leg = COMPLETIONS_PATH, prefill_leg(request.model, request.token_ids, request.cache_salt)
            else:
                chat = await self._chats.fetch(request.chat_at, request.request_id)
                path, leg = CHAT_PATH, chat_prefill_leg(chat)
            answer = await self._engine.post(path, leg, request_id=f"prefill-{request.request_id}")
        except ChatUnavailable as error:
            return self._reply(request, PrefillOutcome.FAILED, str(error))
        except EngineUnavailable as error:
            return self._failure(request, str(error))
        now_s = self._clock()
        params = answer.body.get(KV_TRANSFER_PARAMS)
        if answer.finish_reason == "abort":
            self._on_engine_abort()
        # A chat may name another reason for an answer that was cut: a tool that it had to call.
        cut = answer.finish_reason == "length" or (request.chat_at is not None and answer.finish_reason != "abort")
        if answer.status != 200 or not cut or not isinstance(params, dict):
            detail = f"HTTP {answer.status}, finish_reason {answer.finish_reason}: {answer.body.get('error', '')}"
            if 400 <= answer.status < 500:  # the request is at fault, and the engine answered
                PAUSES.answered(self._health, now_s)
                return self._reply(request, PrefillOutcome.FAILED, detail)
            return self._failure(request, detail)
        PAUSES.answered(self._health, now_s)
        if request.chat_at is not None and answer.body.get("prompt_token_ids") != list(request.token_ids):
            detail = "this engine makes another prompt of the chat than the decode worker's engine"
            return self._reply(request, PrefillOutcome.FAILED, detail)
        self._ledger.begin(request.request_id, now_s)
        return self._reply(request, PrefillOutcome.DONE).model_copy(
            update={
                "kv_transfer_params": params,
                "queued_seconds": begun_s - job.taken_s,
                "prefill_seconds": now_s - begun_s,
            }
        )

    def _with_lease(self, reply: PrefillReply, job: _Job) -> PrefillReply:
        if reply.outcome is not PrefillOutcome.DONE or job.lease is None:
            return reply
        return reply.model_copy(
            update={
                "lease_age_seconds": self._clock() - job.lease.earliest_s,
                "lease_began_seconds": job.lease.on_their_clock_s,
                "lease_seconds": self._settings.lease_seconds,
            }
        )

    async def _confirm(self, job: _Job) -> None:
        """Learn from the decode worker whether it still waits, and its clock; until it has answered once.

        A request may have waited on the queue for long, and its decode worker may be gone: no clock but its own can
        tell. Meanwhile the engine computes, so nothing is slower for it.
        """
        request = job.request
        begun = PrefillBegun(request_id=request.request_id, prefill_worker=self._settings.worker).wire().encode()
        while True:
            try:
                message = await self._link.client.request(request.reply_to, begun, timeout=REQUESTER_TIMEOUT_S)
                answer = PrefillWait.model_validate_json(message.data)
            except nats.errors.NoRespondersError:
                self._give_up(job, "its decode worker no longer exists")
                return
            except (QueueUnavailable, nats.errors.Error, TimeoutError, ValidationError) as error:
                log.info(
                    "decode worker has not confirmed that it waits",
                    extra={"request_id": request.request_id, "why": str(error) or type(error).__name__},
                )
                await asyncio.sleep(RETRY_S)
                continue
            if not answer.waiting:
                self._give_up(job, "its decode worker no longer waits")
            elif job.lease is not None:
                job.lease.heard(answer.clock_seconds, self._clock())
            return

    def _give_up(self, job: _Job, why: str) -> None:
        """Stop a prefill that nobody waits for."""
        request_id = job.request.request_id
        if job.compute is None or job.compute.done():
            return
        log.info("prefill stopped", extra={"request_id": request_id, "why": why})
        self._metrics.prefilled(PrefillOutcome.EXPIRED, None)
        self._seen.cancel(request_id, self._clock())
        job.stop()

    def _refusal(self, job: _Job) -> PrefillReply | None:
        """Why a request is not computed at all: too late, not for this engine, or it may have killed too many workers.

        A request comes again if its worker died, and also if the worker was stopped or lost NATS: the decode worker
        knows more of these workers, and judges.
        """
        settings, request = self._settings, job.request
        deliveries = job.delivery.metadata.num_delivered
        compatibility = settings.kv_compatibility if request.chat_at is None else with_images(settings.kv_compatibility)
        if request.wait_seconds is not None and self._clock() - job.taken_s >= request.wait_seconds:
            return self._reply(request, PrefillOutcome.EXPIRED, f"expired after {request.wait_seconds:g} s here")
        for field, theirs, ours in (
            ("block size", request.block_size, settings.block_size),
            ("KV compatibility", request.kv_compatibility, compatibility),
        ):
            if theirs != ours:
                return self._reply(request, PrefillOutcome.REFUSED, f"{field} is {theirs}, this engine's is {ours}")
        if request.deaths + deliveries > MAX_DEATHS:
            detail = f"delivered {deliveries - 1} times without an answer, and {request.deaths} workers failed before"
            return self._reply(request, PrefillOutcome.REFUSED, detail)
        return None

    def _reply(self, request: PrefillRequest, outcome: PrefillOutcome, detail: str = "") -> PrefillReply:
        return PrefillReply(
            request_id=request.request_id, outcome=outcome, prefill_worker=self._settings.worker, detail=detail
        )

    def _failure(self, request: PrefillRequest, detail: str) -> PrefillReply:
        """The engine failed; after several times in a row this worker pulls nothing for a while."""
        reply = self._reply(request, PrefillOutcome.FAILED, detail)
        died, now_s = reports_engine_death(detail), self._clock()
        if PAUSES.failed(self._health, now_s, unreachable=died):
            log.warning(
                "engine fails, no prompts are pulled for a while",
                extra={
                    "engine_died": died,
                    "failures": self._health.failures,
                    "seconds": round(self._health.avoided_until_s - now_s),
                },
            )
            self._announce_now.set()
        return reply.model_copy(update={"engine_died": died})

    async def _answer(self, request: PrefillRequest, delivery: Msg, reply: PrefillReply) -> None:
        """Answer, then acknowledge: in this order, or a death in between would lose the request."""
        try:
            await self._link.client.publish(request.reply_to, reply.wire().encode())
        except (QueueUnavailable, nats.errors.Error) as error:
            # Not acknowledged: NATS redelivers it when it is back, and the answer is given from memory.
            log.warning("answer not sent", extra={"request_id": request.request_id, "why": str(error)})
            return
        await self._acknowledge(delivery)

    async def _acknowledge(self, delivery: Msg) -> None:
        try:
            await delivery.ack()
        except nats.errors.Error as error:
            log.warning("acknowledgement not sent, the request comes again", extra={"why": str(error)})

    async def _keep_alive(self, job: _Job) -> None:
        while True:
            await asyncio.sleep(self._settings.heartbeat_seconds)
            if job.lease is not None and job.compute is not None and not job.compute.done():
                heartbeat_s, lease_s = self._settings.heartbeat_seconds, self._settings.lease_seconds
                job.lease.runs(self._clock(), longest_gap_s=max(2 * heartbeat_s, lease_s / 6))
            try:
                await job.delivery.in_progress()
            except nats.errors.Error as error:
                log.info("heartbeat not sent", extra={"request_id": job.request.request_id, "why": str(error)})

    def _limits(self) -> PrefillLimits:
        return PrefillLimits(
            budget_tokens=self.budget_tokens,
            max_requests=self._settings.max_concurrent_prefills,
            max_context_tokens=self._engine.facts.max_model_len or _NO_CONTEXT_LIMIT,
        )

    def _lengths(self) -> list[int]:
        return [len(job.request.token_ids) for job in self._running.values()]

    async def _subscribe(self, client: Client) -> None:
        if client is self._client:
            return  # nats-py keeps subscriptions over a reconnect
        settings = self._settings
        subject = names.prefill_signal_subject(settings.namespace, settings.service_uid, settings.kv_compatibility)
        await client.subscribe(subject, cb=self._on_signal)
        self._client = client
        self._announce_now.set()

    async def _on_signal(self, message: Msg) -> None:
        try:
            signal = PrefillSignal.model_validate_json(message.data)
        except ValidationError as error:
            log.warning("PrefillSignal not understood", extra={"why": str(error)})
            return
        if signal.kind is SignalKind.PULLED:
            self._ledger.end(signal.request_id)
            return
        self._seen.cancel(signal.request_id, self._clock())
        self._changed.set()
        job = self._running.get(signal.request_id)
        if job is not None:
            job.stop()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
