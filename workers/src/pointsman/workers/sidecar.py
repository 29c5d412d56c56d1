"""Everything that runs beside one engine, put together: role, remote prefill, prefill server, feeds, control."""

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from typing import Any

from pointsman.api.protocol.control import (
    DrainRequest,
    ModelInfo,
    RoleRequest,
    VerifyRequest,
    VerifyResult,
    WorkerPhase,
    WorkerState,
)
from pointsman.api.protocol.names import Role
from pointsman.process.ending import end
from pointsman.serving.local_remote import RoutingRule
from pointsman.serving.token_budget import DEFAULT_PREFILL_TOKEN_BUDGET
from pointsman.workers.core.leases import LeaseLedger
from pointsman.workers.core.prefix_index import PrefixIndex
from pointsman.workers.core.roles import EngineCondition, RoleState
from pointsman.workers.engine import Engine
from pointsman.workers.errors import ControlRefused, EngineUnavailable, QueueUnavailable
from pointsman.workers.event_sockets import kv_event_endpoints
from pointsman.workers.kv_events import KvEventFeed
from pointsman.workers.kv_feed import KvFeedPublisher
from pointsman.workers.kv_metrics import KvMetricsPublisher
from pointsman.workers.last_role import OPERATOR_S, LastRole
from pointsman.workers.metrics import WorkerMetrics
from pointsman.workers.model_files import ModelFiles, digest
from pointsman.workers.nats_link import NatsLink
from pointsman.workers.prefill_queue import PrefillPuller, PrefillQueue
from pointsman.workers.prefill_server import PrefillServer
from pointsman.workers.remote_prefill import RemotePrefill
from pointsman.workers.settings import WorkerSettings
from pointsman.workers.verification import Verifier

log = logging.getLogger(__name__)

EMBEDDING_LEASE_S = 5.0
LOOK_S = 0.5  # at the engine's health and the queue's depth


class ClientRequest:
    """A request of a client while it is served; ``tokens`` grows with the answer."""

    def __init__(self) -> None:
        self.tokens = 0


class Sidecar:
    """One worker. ``clock``: monotonic seconds."""

    def __init__(
        self,
        settings: WorkerSettings,
        engine: Engine,
        metrics: WorkerMetrics,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings
        self.engine = engine
        self.metrics = metrics
        self.instance = uuid.uuid4().hex
        self.metrics_port: int | None = None  # where only metrics are served; None: on the engine's port alone
        self.clock = clock
        self._roles = RoleState(settings.role)
        self._last_role = LastRole.of_pod(settings.pod_uid)
        self._idle_since_s: float | None = None
        self._verified: Role | None = None
        self._clients: set[ClientRequest] = set()
        # Most embeddings are fetched at once, and none is lost that the engines could not compute: so long it stays.
        encodes = Role.ENCODE in settings.possible_roles
        self._ledger = LeaseLedger(EMBEDDING_LEASE_S if encodes else settings.lease_seconds)
        self._index = PrefixIndex(settings.block_size)
        self.kv_feed = KvFeedPublisher(
            self._index, instance=self.instance, block_size=settings.block_size, known=lambda: self._feed.live
        )
        self._feed = KvEventFeed(
            self._index,
            settings.worker,
            *kv_event_endpoints(settings),
            changed=self.kv_feed.publish,
            lost=metrics.lost_kv_events,
        )
        self._link = NatsLink(settings)
        self._queue = PrefillQueue(settings, self._link)
        self._server = PrefillServer(
            settings,
            engine,
            self._link,
            PrefillPuller(self._queue, self._link),
            metrics,
            self._ledger,
            clock=clock,
            on_engine_abort=self.engine_aborted,
        )
        self.remote = RemotePrefill(settings, engine, self._link, self._queue, clock=clock)
        self._publisher = KvMetricsPublisher(settings, engine, self._link, self, clock=clock)
        self._verifier = Verifier(settings, engine, self._ledger, clock=clock)
        facts = engine.facts
        self._files = ModelFiles(
            facts.model_directory or settings.model, facts.model_revision or settings.model_revision
        )
        self.rule = RoutingRule(settings.max_local_prefill_tokens, settings.max_prefill_queue_size)
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {}  # by a bug

    async def start(self) -> None:
        """Begin; returns at once. The engine may still be starting, NATS may be away."""
        self._link.start()
        self._supervise(self._server.run, "prefill queue")
        self._supervise(self._watch, "engine health")
        language = Role.ENCODE not in self.settings.possible_roles
        if self.settings.prefix_cache and language:
            self._supervise(self._feed.run, "KV events")
        if self.settings.nats_url is not None:
            self._supervise(self._publisher.run, "KV metrics")
            if language:
                self._supervise(self._server.announce, "prefill presence")

    async def stop(self) -> None:
        """End everything that ``start`` began."""
        await end(self._tasks)
        await self._server.stop()
        await self.remote.stop()
        await self._link.stop()

    # --- what the middleware asks ---

    @property
    def roles(self) -> RoleState:
        """Role, drain and engine condition now."""
        return self._roles

    @property
    def role(self) -> Role | None:
        """The role now."""
        return self._roles.role

    @property
    def queue_depth(self) -> int | None:
        """Requests waiting in the prefill queue when it was last looked at; None: not known."""
        depth = self._queue.last_depth
        return None if depth is None else depth.waiting

    @contextmanager
    def serving(self) -> Iterator[ClientRequest]:
        """Count one client request as in flight."""
        request = ClientRequest()
        self._clients.add(request)
        try:
            yield request
        finally:
            self._clients.discard(request)

    def cached_tokens(self, token_ids: tuple[int, ...], salt: str | None, *, model: str, hint: int) -> int:
        """Length of the prefix of a prompt that the engine here holds; ``hint`` serves until KV events are heard."""
        if not self._feed.live:
            return min(hint, len(token_ids))
        return self._index.cached_tokens(token_ids, salt, None if model == self.settings.served_name else model)

    def encoded(self, request_id: str, seconds: float) -> None:
        """The images of a request were encoded, and their embeddings can be fetched."""
        self.metrics.encoded(seconds)
        self._ledger.begin(request_id, self.clock())

    def engine_aborted(self) -> None:
        """The engine answered "abort": it is shutting down and does not do what it accepts. Take nothing new."""
        if not self._roles.draining:
            log.warning("the engine aborts requests: this worker takes no new work until it is given its role again")
        self._withdraw()

    # --- what the control API does ---

    def state(self) -> WorkerState:
        """This worker about itself."""
        load = self.engine.load()
        server = self._server
        held = None if load.kv_usage is None or Role.ENCODE in self.settings.possible_roles else load.kv_usage > 0
        leases = self._ledger.outstanding(self.clock(), engine_holds_blocks=held)
        return WorkerState(
            worker=self.settings.worker,
            instance=self.instance,
            phase=self._roles.phase,
            role=self._roles.role,
            in_flight=len(self._clients) + server.running,
            in_flight_tokens=sum(client.tokens for client in self._clients) + server.running_tokens,
            queued_prefills=server.queued,
            leases=len(leases),
            oldest_lease_seconds=max(leases.values(), default=None),
            verified=self._verified,
            kv_usage=load.kv_usage,
            cached_blocks=len(self._index) if self._feed.live else None,
            block_size=self.settings.block_size,
            max_model_len=self.engine.facts.max_model_len,
            kv_compatibility=self.settings.kv_compatibility,
            prefill_token_budget=server.budget_tokens,
            metrics_port=self.metrics_port,
            nats_connected=None if self.settings.nats_url is None else self._link.ready.is_set(),
        )

    def assign(self, request: RoleRequest) -> WorkerState:
        """Give or take the role; raises ControlRefused for one this worker cannot take now."""
        if request.role is not None and self._roles.engine is not EngineCondition.UP:
            raise ControlRefused(
                HTTPStatus.CONFLICT,
                "EngineNotUp",
                f"the engine is {self._roles.engine.name.lower()}: no role can be taken",
            )
        if request.role is not None and request.role not in self.settings.possible_roles:
            possible = " or ".join(self.settings.possible_roles)
            raise ControlRefused(
                HTTPStatus.CONFLICT,
                "WrongEngine",
                f"role is {request.role}: this worker's engine was started for {possible}",
            )
        if request.role is Role.PREFILL and self.settings.nats_url is None:
            raise ControlRefused(
                HTTPStatus.CONFLICT, "NoPrefillQueue", "started without POINTSMAN_NATS_URL: there is no queue to serve"
            )
        if request.if_serving and (request.role, WorkerPhase.SERVING) != (self._roles.role, self._roles.phase):
            raise ControlRefused(
                HTTPStatus.CONFLICT,
                "NotServing",
                f"it is {self._roles.phase} with role {self._roles.role or 'none'}, not serving as {request.role}",
            )
        self._server.budget_tokens = request.prefill_token_budget or DEFAULT_PREFILL_TOKEN_BUDGET
        settings = self.settings
        local, queue = request.max_local_prefill_tokens, request.max_prefill_queue_size
        self.rule = RoutingRule(
            settings.max_local_prefill_tokens if local is None else local,
            settings.max_prefill_queue_size if queue is None else queue,
        )
        for name in list(self._ended):
            self._supervise(self._ended.pop(name), name)
        if request.role is not self._roles.role:
            self._verified = None  # a worker that comes back to a role may not serve in it any more
        self._change(self._roles.assigned(request.role))
        self._last_role.keep(request)
        return self.state()

    def drain(self, request: DrainRequest) -> WorkerState:
        """Take nothing new; keep what is here."""
        log.info("drain requested", extra={"reason": request.reason or None})
        self._change(self._roles.drained())
        return self.state()

    async def verify(self, request: VerifyRequest) -> VerifyResult:
        """Prove a role with a real request."""
        result = await self._verifier.verify(request)
        if result.ok:
            self._verified = request.role
        elif self._verified is request.role:
            self._verified = None
        return result

    async def model(self) -> ModelInfo:
        """What a gateway needs to tokenise for this worker; raises ControlRefused while it is not known."""
        facts = self.engine.facts
        try:
            files = await self._files.files()
        except OSError as error:
            raise ControlRefused(HTTPStatus.NOT_FOUND, "NoModelFiles", str(error)) from error
        if facts.max_model_len is None:
            raise ControlRefused(HTTPStatus.CONFLICT, "EngineNotUp", "the engine has not reported its context length")
        return ModelInfo(
            served_name=self.settings.served_name,
            max_model_len=facts.max_model_len,
            block_size=self.settings.block_size,
            files=files,
            digest=digest(files),
            parses_chat=facts.parses_chat,
            adapters=await self._adapters(),
            chat_max_tokens=facts.chat_max_tokens,
        )

    async def _adapters(self) -> tuple[str, ...]:
        try:
            return await self.engine.adapters()
        except EngineUnavailable as error:
            raise ControlRefused(HTTPStatus.CONFLICT, "EngineNotUp", str(error)) from error

    async def model_file(self, sha256: str) -> bytes:
        """The bytes of one of the model's files; raises ControlRefused if there is none."""
        content = await self._files.content(sha256)
        if content is None:
            raise ControlRefused(HTTPStatus.NOT_FOUND, "NoSuchFile", f"no file of this model has sha256 {sha256}")
        return content

    # --- inside ---

    def take_last_role(self) -> None:
        """After a restart without an operator, see ``last_role``."""
        if self._roles.phase is not WorkerPhase.IDLE:
            self._idle_since_s = None
            return
        now_s = self.clock()
        since_s = self._idle_since_s = now_s if self._idle_since_s is None else self._idle_since_s
        last = self._last_role.read() if now_s - since_s >= OPERATOR_S else None
        if last is not None:
            log.warning(
                "no role from an operator, so the last one is taken",
                extra={"role": last.role, "seconds": OPERATOR_S},
            )
            with suppress(ControlRefused):
                self.assign(last.model_copy(update={"if_serving": False}))

    def _change(self, roles: RoleState) -> None:
        if roles != self._roles:
            log.info(
                "role changed",
                extra={
                    "role_before": self._roles.role,
                    "phase_before": self._roles.phase,
                    "role": roles.role,
                    "phase": roles.phase,
                },
            )
        self._roles = roles
        self._server.pulling = roles.pulls_prefills

    async def _watch(self) -> None:
        while True:
            if await self.engine.healthy():
                condition = EngineCondition.UP
            elif self._roles.engine is EngineCondition.STARTING:
                condition = EngineCondition.STARTING
            else:
                condition = EngineCondition.FAILED
            if condition is not self._roles.engine:
                self._change(self._roles.with_engine(condition))
            self.take_last_role()
            if self._link.ready.is_set():
                with suppress(QueueUnavailable):
                    await self._queue.depth()
            self.metrics.show(self.state(), self.queue_depth, self.engine.facts)
            self.metrics.show_prefills(self._server.in_progress, self.remote.awaited)
            await asyncio.sleep(LOOK_S)

    def _withdraw(self) -> None:
        """Drain without a request from the operator, and forget the verification."""
        self._verified = None
        self._change(self._roles.drained())

    def _supervise(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        """Run ``work`` for the life of this worker. If a bug ends it, the worker drains; the next role restarts it."""
        task = asyncio.create_task(work(), name=name)
        self._tasks.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if not task.cancelled() and task.exception() is not None:
                log.critical(
                    "part of the worker ended, the worker drains", extra={"part": name}, exc_info=task.exception()
                )
                self._ended[name] = work
                self._withdraw()

        task.add_done_callback(ended)
