"""The simulator's engines behind stand-in pods, in real time.

A trace arrives by the clock; its requests are routed, queued, prefilled and decoded as the simulator does it, but on
the workers that Kubernetes has: a pod that the operator makes routable takes requests, one it withdraws finishes what
it has, and the routing numbers are those of the service's status. What happens is counted on the pods' /metrics pages,
where the real planner reads it. So operator and planner are the real processes, and only engines are arithmetic.
"""

import asyncio
import math
from functools import partial
from random import Random
from typing import Final

from aiohttp import web
from prometheus_client import Counter, Gauge, Histogram, generate_latest

from pointsman.api.protocol import metrics as named
from pointsman.api.protocol import names
from pointsman.api.protocol.names import Role
from pointsman.planner.core.types import Objectives, RoutingNumbers, WorkerCondition, WorkerRole
from pointsman.planner.simulator.decode_engine import ITL_BINS, DecodeEngine
from pointsman.planner.simulator.events import Events
from pointsman.planner.simulator.prefix_cache import PrefixBlocks
from pointsman.planner.simulator.request_path import RequestPath
from pointsman.planner.simulator.timing import Timing
from pointsman.planner.simulator.types import Simulation, Trace
from pointsman.planner.simulator.window import Window, reset_samples
from pointsman.planner.simulator.worker import SimulatedWorker
from pointsman.serving.flow_control import FlowBounds

from ..operator.conftest import Cluster
from .conftest import CONTENT_TYPE, Page

PACE_S: Final = 0.02
ROLES: Final = {Role.PREFILL: WorkerRole.PREFILL, Role.DECODE: WorkerRole.DECODE}


class WorkerPage(Page):
    """A page with what the planner reads of a worker beside an engine's times."""

    def __init__(self, kv_capacity_tokens: int, max_sequences: int) -> None:
        super().__init__()
        self.in_flight = self._made(Gauge, named.WORKER_IN_FLIGHT)
        self.for_others = self._made(Histogram, named.WORKER_PREFILL_SECONDS)
        self.engine_time = self._made(Counter, named.WORKER_PREFILL_ENGINE_SECONDS)
        self._made(Gauge, named.WORKER_MAX_SEQUENCES).set(max_sequences)
        self.kv_usage = Gauge("vllm:kv_cache_usage_perc", "x", registry=self.registry)
        self.waiting = Gauge("vllm:num_requests_waiting", "x", registry=self.registry)
        sources = Counter("vllm:prompt_tokens_by_source", "x", ["source"], registry=self.registry)
        self.pulled, self.computed_here = sources.labels("external_kv_transfer"), sources.labels("local_compute")
        self.asked = Counter("vllm:prefix_cache_queries", "x", registry=self.registry)
        self.had = Counter("vllm:prefix_cache_hits", "x", registry=self.registry)
        cache = Gauge("vllm:cache_config_info", "x", ["block_size", "num_gpu_blocks"], registry=self.registry)
        cache.labels("16", str(kv_capacity_tokens // 16)).set(1)

    def passed(self, worker: SimulatedWorker) -> None:
        """Count a pass of prefills for others that has ended: vLLM shows each of its prompts the whole pass."""
        for _ in range(worker.prefill_count):
            self.for_others.observe(worker.prefill_busy_s)
            self.prefill_time.observe(worker.prefill_busy_s)
            self.computed.observe(worker.prefill_tokens / worker.prefill_count)
        self.engine_time.inc(worker.prefill_busy_s)
        self.computed_here.inc(worker.prefill_tokens)
        self.asked.inc(worker.asked_tokens)
        self.had.inc(max(worker.asked_tokens - worker.prefill_tokens, 0))
        worker.prefill_busy_s = 0.0
        worker.prefill_tokens = worker.asked_tokens = worker.prefill_count = 0

    def count(self, worker: SimulatedWorker, engine: DecodeEngine) -> None:
        """What else the engine did since it was last asked, as means: that is all it keeps."""
        for _ in range(engine.prefill_count):
            self.prefill_time.observe(engine.prefill_sum_s / engine.prefill_count)
            self.computed.observe(engine.prefill_tokens / engine.prefill_count)
        for _ in range(engine.itl_count):
            self.steps.observe(engine.itl_sum_s / engine.itl_count)
        self.pulled.inc(worker.pulled)
        self.computed_here.inc(engine.prefill_tokens)
        reset_samples(worker)


class GatewayWindow(Window):
    """Counts on the gateway's page, and never forgets: counters only rise."""

    def __init__(self, page: Page) -> None:
        super().__init__(0.0)
        self._page = page

    def arrived(self, prompt_tokens: int) -> None:
        self._page.arrivals.labels("chat", "completions").inc()
        self._page.prompts.labels("chat").observe(prompt_tokens)

    def started(self, ttft_ms: float, objective_ms: float) -> None:
        self._page.ttft.labels("chat", "remote").observe(ttft_ms / 1000)

    def finished(self, output_tokens: int, tpot_ms: float | None, objective_ms: float) -> None:
        self._page.outputs.labels("chat").observe(output_tokens)
        if tpot_ms is not None:
            self._page.tpot.labels("chat", "remote").observe(tpot_ms / 1000)


class LiveEngines:
    """One service's engines. ``run`` plays the trace; its clock begins when it is called."""

    def __init__(self, cluster: Cluster, trace: Trace, simulation: Simulation, objectives: Objectives) -> None:
        self._cluster = cluster
        self._engine = simulation.engine
        self._arrivals: list[float] = trace.arrival_s.tolist()
        self._events = Events()
        self._timing = Timing(simulation.engine, simulation.truth, Random(simulation.seed))
        self._path = RequestPath(trace, simulation, objectives, self._timing, self._events)
        self._gateway = Page(named.TOKEN_BOUNDS)
        self._path.window = GatewayWindow(self._gateway)
        self._workers: dict[str, SimulatedWorker] = {}
        self._pages: dict[str, WorkerPage] = {}
        self._taking: dict[str, Role] = {}  # workers that take requests, in which role

    async def run(self) -> None:
        """Until cancelled. Raises what goes wrong."""
        clock = asyncio.get_running_loop().time
        begin_s, index = clock(), 0
        while True:
            now_s = clock() - begin_s
            while True:
                due_s = self._arrivals[index] if index < len(self._arrivals) else math.inf
                if min(due_s, self._events.next_s) > now_s:
                    break
                if due_s <= self._events.next_s:
                    self._path.arrive(index, due_s)
                    index += 1
                else:
                    self._events.step()
                    self._count_pass()
            self._follow(now_s)
            await asyncio.sleep(PACE_S)

    def answered(self) -> float:
        """Share of what arrived that was answered."""
        return float((~(self._path.outcome == 2)).mean())

    # --- what operator and planner did ---

    def _follow(self, now_s: float) -> None:
        service = self._cluster.service()
        routing = service.status.routing if service else None
        if routing is not None and routing.max_local_prefill_tokens is not None:
            size = routing.max_prefill_queue_size
            numbers = RoutingNumbers(
                routing.max_local_prefill_tokens,
                self._path.routing.max_prefill_queue_size if size is None else size,
                FlowBounds(
                    routing.pending_tokens_per_prefill_worker,
                    routing.decoding_per_decode_worker,
                    routing.slack_milliseconds,
                ),
            )
            if numbers != self._path.routing:
                self._path.route(numbers)
        kubelet = self._cluster.kubelet
        routable = {
            pod.metadata.name: role
            for role in Role
            for pod in kubelet.worker_pods(role, routable=True)
            if names.DRAIN_STARTED_ANNOTATION not in pod.metadata.annotations
        }
        for name in [name for name, role in self._taking.items() if routable.get(name) is not role]:
            worker = self._workers[name]
            worker.condition = WorkerCondition.DRAINING
            self._path.withdraw(worker, self._taking.pop(name) is Role.PREFILL)
        for name, role in routable.items():
            if name not in self._taking and name in kubelet.workers and not self._worker(name).busy:
                worker = self._worker(name)
                worker.role, worker.condition = ROLES[role], WorkerCondition.ACTIVE
                self._taking[name] = role
                self._path.admit(worker, role is Role.PREFILL, now_s)
        for gateway in kubelet.gateways.values():
            gateway.metrics = self._gateway_page
        for name, server in kubelet.workers.items():
            worker = self._worker(name)
            server.in_flight = len(worker.assigned) + len(worker.batch) + len(worker.sending)
            server.metrics = partial(self._worker_page, name)

    def _worker(self, name: str) -> SimulatedWorker:
        if name not in self._workers:
            engine = DecodeEngine(self._engine, self._timing, [0.0] * ITL_BINS, self._path.started, self._path.finished)
            starting = WorkerCondition.STARTING
            self._workers[name] = SimulatedWorker(name, WorkerRole.DECODE, starting, 0.0, engine, PrefixBlocks(0))
            self._pages[name] = WorkerPage(self._engine.kv_capacity_tokens, self._engine.max_batch)
        return self._workers[name]

    # --- what is read ---

    def _count_pass(self) -> None:
        """After each event, so that no two passes of a worker are taken for one."""
        for name, worker in self._workers.items():
            if worker.prefill_count:
                self._pages[name].passed(worker)

    def _gateway_page(self) -> web.Response:
        return web.Response(body=generate_latest(self._gateway.registry), headers=CONTENT_TYPE)

    def _worker_page(self, name: str) -> web.Response:
        worker, page = self._workers[name], self._pages[name]
        engine = worker.engine
        engine.count_window(self._events.now_s)
        page.count(worker, engine)
        page.in_flight.set(len(worker.assigned) + len(worker.batch) + len(worker.sending))
        page.depth.set(len(self._path.queue))
        page.running.set(max(engine.running, len(worker.batch)))
        page.waiting.set(len(engine.waiting))
        page.kv_usage.set(engine.kv_tokens(self._events.now_s) / self._engine.kv_capacity_tokens)
        return web.Response(body=generate_latest(page.registry), headers=CONTENT_TYPE)
