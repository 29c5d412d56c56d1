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

from pointsman.api.protocol import names
from pointsman.api.protocol.names import Role
from pointsman.planner.core.types import Objectives, RoutingNumbers, WorkerCondition
from pointsman.planner.simulator.decode_engine import ITL_BINS, DecodeEngine
from pointsman.planner.simulator.events import Events
from pointsman.planner.simulator.pages import as_text
from pointsman.planner.simulator.prefix_cache import PrefixBlocks
from pointsman.planner.simulator.request_path import RequestPath
from pointsman.planner.simulator.timing import Timing
from pointsman.planner.simulator.types import Simulation, Trace
from pointsman.planner.simulator.worker import SimulatedWorker
from pointsman.serving.flow_control import FlowBounds

from ..operator.conftest import Cluster
from .conftest import CONTENT_TYPE

PACE_S: Final = 0.02


class LiveEngines:
    """One service's engines. ``run`` plays the trace; its clock begins when it is called."""

    def __init__(self, cluster: Cluster, trace: Trace, simulation: Simulation, objectives: Objectives) -> None:
        self._cluster = cluster
        self._engine = simulation.engine
        self._arrivals: list[float] = trace.arrival_s.tolist()
        self._events = Events()
        self._timing = Timing(simulation.engine, simulation.truth, Random(simulation.seed))
        self._path = RequestPath(trace, simulation, objectives, self._timing, self._events)
        self._workers: dict[str, SimulatedWorker] = {}
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
                worker.role, worker.condition = role, WorkerCondition.ACTIVE
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
            self._workers[name] = SimulatedWorker(name, Role.DECODE, starting, 0.0, engine, PrefixBlocks(0))
        return self._workers[name]

    # --- what is read ---

    def _gateway_page(self) -> web.Response:
        (gateway,) = self._path.gateways
        return web.Response(text=as_text(gateway.page(held=len(self._path.held))), headers=CONTENT_TYPE)

    def _worker_page(self, name: str) -> web.Response:
        worker, now_s = self._workers[name], self._events.now_s
        worker.engine.count_up_to(now_s)
        page = worker.page.page(worker.gauges(now_s, len(self._path.queue)))
        return web.Response(text=as_text(page), headers=CONTENT_TYPE)
