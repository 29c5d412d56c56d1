"""The way of a request: routed to a decode worker, prefilled there or remotely, its KV sent, decoded, ended.

The rules are the production ones where they are arithmetic: local or remote (``pointsman.serving.local_remote``), the
prefill worker's admission by token budget (``pointsman.serving.token_budget``), and the cost of a decode worker for the
gateway's default router (``pointsman.serving.worker_cost``).
"""

import math
from array import array
from collections import deque
from random import Random

import numpy as np
from numpy.typing import NDArray

from pointsman.planner.core.types import Objectives, RoutingNumbers, WorkerCondition
from pointsman.planner.simulator.encoders import Encoders
from pointsman.planner.simulator.events import Events
from pointsman.planner.simulator.pages import GatewayPage
from pointsman.planner.simulator.request import Request
from pointsman.planner.simulator.timing import Timing
from pointsman.planner.simulator.types import Floats, Ints, Outcome, PrefillPlace, Simulation, Trace
from pointsman.planner.simulator.worker import SimulatedWorker
from pointsman.serving.admission_queue import AdmissionQueue
from pointsman.serving.flow_control import UNBOUNDED, FlowBounds, InFlight
from pointsman.serving.local_remote import RoutingRule, decide
from pointsman.serving.token_budget import DEFAULT_MAX_CONCURRENT_PREFILLS, take_pending
from pointsman.serving.worker_cost import token_load


class RequestPath:
    """All requests that are under way, and what became of the others."""

    def __init__(
        self, trace: Trace, simulation: Simulation, objectives: Objectives, timing: Timing, events: Events
    ) -> None:
        count = len(trace)
        self._engine, self._network, self._cache = simulation.engine, simulation.network, simulation.prefix_cache
        self._max_waiting = simulation.max_waiting
        self._objectives = objectives
        self._timing = timing
        self._events = events
        self._prompt, self._output = _counts(trace.prompt_tokens), _counts(trace.output_tokens)
        self._blocks = trace.prefix_blocks if self._cache.enabled else None
        self._block_tokens = trace.block_tokens
        self._rule = RoutingRule(0, 0)
        self.gateways = [GatewayPage(objectives) for _ in range(simulation.gateways)]  # requests go round
        whole = Random(f"{simulation.seed} whole answers")
        share = simulation.whole_answers_share
        self._streamed = bytes(whole.random() >= share for _ in range(count)) if share > 0 else None
        self._first_added_s, self._each_added_s = simulation.added_s
        self.queue: deque[Request] = deque()  # waits for a prefill worker
        self.unrouted: deque[Request] = deque()  # waits for any decode worker
        self.held: AdmissionQueue[Request] = AdmissionQueue()
        self._images = _counts(trace.images) if trace.images is not None else None
        self.encoders: Encoders | None = None
        self._pending_tokens = 0  # as flow control counts, at all workers, also at those that take nothing new …
        self._pending_prompts = 0  # … and of how many prompts
        self._looking = False  # an event that looks for room is under way
        self.route(simulation.routing)
        self.decoders: list[SimulatedWorker] = []  # that take new requests
        self.prefillers = 0  # that serve
        self.idle_prefillers: deque[SimulatedWorker] = deque()
        self.open = 0
        self.freed: list[SimulatedWorker] = []  # became free of work while leaving; the fleet looks
        # results: arrays, since they are kept for every request of the trace, of which few are under way at once
        self.outcome: NDArray[np.int8] = np.full(count, int(Outcome.UNFINISHED), dtype=np.int8)
        self.prefilled: NDArray[np.int8] = np.zeros(count, dtype=np.int8)
        self.ttft_s: Floats = np.full(count, math.nan)
        self.tpot_s: Floats = np.full(count, math.nan)
        self.end_s: Floats = np.full(count, math.nan)
        self.held_s: Floats = np.zeros(count)
        self.preemptions: Ints = np.zeros(count, dtype=np.int64)

    def route(self, numbers: RoutingNumbers) -> None:
        """From the next request on."""
        self.routing = numbers
        self._flow = _of_all(numbers.flow, len(self.gateways))
        self._rule = RoutingRule(numbers.max_local_prefill_tokens, numbers.max_prefill_queue_size)
        self._look_for_room()

    # --- in ---

    def arrive(self, index: int, now_s: float) -> None:
        """Request ``index`` of the trace comes in."""
        prompt, output = self._prompt[index], self._output[index]
        engine = self._engine
        if prompt + output > min(engine.kv_capacity_tokens, engine.max_context_tokens):
            self._gateway(index).refused()
            self._end_unserved(index, Outcome.REFUSED, now_s)
            return
        limit = self._max_waiting
        if limit is not None and len(self.queue) >= limit * max(self.prefillers, 1):
            self._end_unserved(index, Outcome.SHED, now_s)
            return
        self.open += 1
        self._gateway(index).accepted(prompt)
        blocks = self._blocks[index] if self._blocks is not None else ()
        request = Request(index, prompt, output, now_s, blocks)
        images = self._images[index] if self._images is not None else 0
        if images > 0 and self.encoders is not None:
            self.encoders.add(request, images, now_s)
        else:
            self.enter(request, now_s)

    def _gateway(self, index: int) -> GatewayPage:
        return self.gateways[index % len(self.gateways)]

    def _is_streamed(self, index: int) -> bool:
        return self._streamed is None or bool(self._streamed[index])

    def enter(self, request: Request, now_s: float) -> None:
        """A request that could be prefilled: it has no image, or all are encoded."""
        request.ready_s = now_s
        flow = self._flow
        if flow != UNBOUNDED and self.decoders:
            under_way = self._under_way()
            if not self.held.passes(under_way, flow):
                self.held.join(request, now_s, under_way, flow)
                return
        self.dispatch(request, now_s)

    # --- flow control ---

    def _under_way(self) -> InFlight:
        """Prompts wait wherever they were sent; what decodes counts where more would go."""
        decoding = sum(worker.decoding for worker in self.decoders)
        return InFlight(
            self._pending_tokens, decoding, self.prefillers, len(self.decoders), pending_prompts=self._pending_prompts
        )

    def _look_for_room(self) -> None:
        """Soon: not in the middle of what an engine is doing."""
        if self.held and not self._looking:
            self._looking = True
            self._events.at(self._events.now_s, self._let_go, None)

    def _let_go(self, _: None) -> None:
        self._looking = False
        now_s, flow = self._events.now_s, self._flow
        if not self.decoders and flow != UNBOUNDED:
            return  # they are held until one comes
        while (request := self.held.next(now_s, self._under_way(), flow)) is not None:
            self.held_s[request.index] = now_s - request.ready_s
            self.dispatch(request, now_s)

    def _wait_at(self, worker: SimulatedWorker, request: Request, tokens: int) -> None:
        if not math.isnan(request.first_token_s):
            worker.decoding += 1  # it goes on here
            return
        request.pending_tokens = tokens
        request.counted_tokens = self._flow.counted(tokens)
        worker.pending_tokens += tokens
        self._pending_tokens += request.counted_tokens
        self._pending_prompts += 1

    def dispatch(self, request: Request, now_s: float) -> None:
        """Choose its decode worker and where its prompt is computed."""
        if not self.decoders:
            self.unrouted.append(request)
            return
        worker = self._choose(request)
        prompt = request.prompt_tokens
        worker.assigned[request.index] = request
        request.worker = worker
        where = decide(
            prompt_tokens=prompt,
            cached_tokens=request.cached_tokens,
            # A prefill worker here has no more than one admission, of which nothing waits (``beyond_admission`` is 0).
            queue_depth=len(self.queue) if self.prefillers else None,
            rule=self._rule,
        )
        request.new_tokens = where.new_tokens
        worker.page.given(prompt, where.new_tokens)
        self._wait_at(worker, request, where.new_tokens)
        if where.remote:
            self.prefilled[request.index] = PrefillPlace.REMOTE
            self.queue.append(request)
            self.feed(now_s)
        else:
            self.prefilled[request.index] = PrefillPlace.LOCAL
            worker.engine.add(request, now_s)
            self._follow(worker)

    def _choose(self, request: Request) -> SimulatedWorker:
        """The decode worker of least cost; sets what it has cached of the prompt. The first of equals."""
        prompt, blocks = request.prompt_tokens, request.blocks
        capacity = self._engine.kv_capacity_tokens
        assumed = int(prompt * self._cache.assumed_hit_share) if self._cache.enabled and not blocks else 0
        best, lowest, best_cached = self.decoders[0], math.inf, 0
        for worker in self.decoders:
            engine = worker.engine
            cached = min(worker.cache.matched(blocks) * self._block_tokens, prompt) if blocks else assumed
            used = (engine.context + engine.held) / capacity
            cost = token_load(
                prompt_tokens=prompt,
                cached_tokens=cached,
                pending_tokens=worker.pending_tokens,
                prefilled_elsewhere=self.prefillers > 0,
                context_tokens=engine.context,
                kv_usage=used,
            )
            if cost < lowest:
                best, lowest, best_cached = worker, cost, cached
        request.cached_tokens = best_cached
        return best

    # --- remote prefill ---

    def feed(self, now_s: float) -> None:
        """Give what waits to prefill workers that are idle."""
        while self.queue and self.idle_prefillers:
            worker = self.idle_prefillers.popleft()
            engine = self._engine
            batch = take_pending(
                self.queue,
                max_requests=DEFAULT_MAX_CONCURRENT_PREFILLS,
                budget_tokens=self.routing.prefill_token_budget,
                max_context_tokens=engine.max_context_tokens,
            )
            took = self._timing.prefill_fixed_s
            for request in batch:
                prompt = request.prompt_tokens
                cached = int(prompt * self._cache.assumed_hit_share) if self._cache.enabled else 0
                if request.blocks:
                    cached = min(worker.cache.matched(request.blocks) * self._block_tokens, prompt)
                request.computed_tokens = prompt - cached
                took += self._timing.prefill_work_s(max(prompt - cached, 1), cached)
            worker.batch = batch
            worker.batch_s = took * self._timing.noise()
            self._events.at(now_s + worker.batch_s, self._prefill_done, worker)

    def _prefill_done(self, worker: SimulatedWorker) -> None:
        if worker.removed:
            return
        now_s = self._events.now_s
        worker.page.prefilled([(each.prompt_tokens, each.computed_tokens) for each in worker.batch], worker.batch_s)
        for request in worker.batch:
            request.computed_tokens = 0
            if request.blocks:
                worker.cache.hold(request.blocks)
            if request.worker is None:
                continue  # its decode worker died and took it elsewhere
            tokens = request.prompt_tokens - request.cached_tokens
            size = tokens * self._engine.kv_bytes_per_token
            worker.link_free_s = max(now_s, worker.link_free_s) + size / self._network.bytes_per_s
            worker.sending[request.index] = request
            request.pulled_tokens = tokens
            request.pulling_s = worker.link_free_s + self._network.hop_s - now_s
            self._events.at(worker.link_free_s + self._network.hop_s, self._transferred, (worker, request))
        worker.batch = []
        if worker.condition is WorkerCondition.ACTIVE:
            self.idle_prefillers.append(worker)
            self.feed(now_s)
        elif not worker.busy:
            self.freed.append(worker)

    def _transferred(self, transfer: tuple[SimulatedWorker, Request]) -> None:
        sender, request = transfer
        if sender.sending.get(request.index) is not request:
            return  # the sender died; the queue delivered the request again
        del sender.sending[request.index]
        if sender.condition is not WorkerCondition.ACTIVE and not sender.busy:
            self.freed.append(sender)
        receiver = request.worker
        if receiver is None:
            return
        request.new_tokens = 0
        receiver.page.pulled(request.pulled_tokens, request.pulling_s)
        receiver.engine.add(request, self._events.now_s)
        self._follow(receiver)

    # --- decode ---

    def _follow(self, worker: SimulatedWorker) -> None:
        """Plan the engine's next event if it changed."""
        engine = worker.engine
        if engine.version != worker.scheduled:
            worker.scheduled = engine.version
            if engine.next_s < math.inf:
                self._events.at(engine.next_s, self._advance, (worker, engine.version))

    def _advance(self, due: tuple[SimulatedWorker, int]) -> None:
        worker, version = due
        if version != worker.engine.version:
            return
        worker.engine.advance(self._events.now_s)
        self._follow(worker)
        if not worker.assigned and worker.condition is not WorkerCondition.ACTIVE:
            self.freed.append(worker)

    def started(self, request: Request) -> None:
        """Its first token came (or comes with the step that begins)."""
        worker = request.worker
        if worker is not None:
            worker.pending_tokens -= request.pending_tokens
            self._pending_tokens -= request.counted_tokens
            self._pending_prompts -= 1
            request.pending_tokens = request.counted_tokens = 0
            worker.decoding += 1
            if request.blocks:
                worker.cache.hold(request.blocks)
        index = request.index
        if self._is_streamed(index):
            ttft_s = self._ttft_s(request)
            self._gateway(index).got_first_token(ttft_s, self._prompt[index], True)
        self._look_for_room()

    def finished(self, request: Request, now_s: float) -> None:
        """Its last token came."""
        index = request.index
        worker = request.worker
        if worker is not None:
            del worker.assigned[index]
            worker.decoding -= 1
        output = self._output[index]
        self.outcome[index] = Outcome.COMPLETED
        self.ttft_s[index] = ttft_s = self._ttft_s(request)
        self.end_s[index] = now_s
        self.preemptions[index] = request.preemptions
        tpot_s = None
        if output > 1:
            self.tpot_s[index] = tpot_s = (now_s - request.first_token_s) / (output - 1) + self._each_added_s
        streamed, gateway, prompt = self._is_streamed(index), self._gateway(index), self._prompt[index]
        if not streamed:
            gateway.got_first_token(ttft_s, prompt, False)
        gateway.ended(ttft_s, tpot_s, prompt, output, streamed)
        self.open -= 1
        self._look_for_room()

    def _ttft_s(self, request: Request) -> float:
        return request.first_token_s - request.arrived_s + self._first_added_s

    def _end_unserved(self, index: int, outcome: Outcome, now_s: float) -> None:
        self.outcome[index] = outcome
        self.end_s[index] = now_s

    def stop(self, now_s: float) -> None:
        """The simulation ends; who is held was held until then."""
        for request in self.held.came_by(now_s):
            self.held_s[request.index] = now_s - request.ready_s

    # --- workers come and go ---

    def admit(self, worker: SimulatedWorker, prefills: bool, now_s: float) -> None:
        """A worker serves from now on."""
        if prefills:
            self.prefillers += 1
            if not worker.batch:
                self.idle_prefillers.append(worker)
            self.feed(now_s)
        else:
            self.decoders.append(worker)
            waiting, self.unrouted = self.unrouted, deque()
            for request in waiting:
                self.dispatch(request, now_s)
        self._look_for_room()

    def withdraw(self, worker: SimulatedWorker, prefills: bool) -> None:
        """Nothing new goes to a worker; what it has goes on."""
        if prefills:
            self.prefillers -= 1
            if worker in self.idle_prefillers:
                self.idle_prefillers.remove(worker)
        else:
            self.decoders.remove(worker)
        self._look_for_room()

    def displace(self, worker: SimulatedWorker, now_s: float, died: bool) -> None:
        """Move what a worker has: with the tokens so far to another decode worker, or back into the prefill queue."""
        if died:
            # Redelivered in front, the oldest first.
            again = sorted((*worker.batch, *worker.sending.values()), key=lambda request: request.arrived_s)
            worker.batch = []
            worker.sending = {}
            for request in reversed(again):
                if request.worker is not None:
                    self.queue.appendleft(request)
        computing = {request.index for request in worker.engine.empty(now_s)}
        moved = list(worker.assigned.values())
        worker.assigned = {}
        self._pending_tokens -= sum(request.counted_tokens for request in moved)
        self._pending_prompts -= len(moved) - worker.decoding
        worker.pending_tokens = worker.decoding = 0
        self._follow(worker)
        waiting = {id(request) for request in self.queue}
        for request in moved:
            request.pending_tokens = request.counted_tokens = 0
            if request.index in computing:
                request.worker = None
                self.dispatch(request, now_s)
            else:
                self._reassign(request, id(request) in waiting, now_s)
        self.feed(now_s)

    def _reassign(self, request: Request, waiting: bool, now_s: float) -> None:
        """It was still on its way to a decode worker that is gone: begin anew, unless it only waits in the queue."""
        if waiting and self.decoders:
            worker = self._choose(request)
            worker.assigned[request.index] = request
            request.worker = worker
            self._wait_at(worker, request, request.prompt_tokens - request.cached_tokens)
            return
        if waiting:
            self.queue.remove(request)
        fresh = Request(request.index, request.prompt_tokens, request.to_generate, request.arrived_s, request.blocks)
        fresh.first_token_s, fresh.preemptions = request.first_token_s, request.preemptions
        request.worker = None  # what comes of the old prefill is thrown away
        self.dispatch(fresh, now_s)


def _of_all(bounds: FlowBounds, gateways: int) -> FlowBounds:
    """The bounds of all gateways together, of which each has these."""
    pending, decoding = bounds.pending_tokens_per_prefill_worker, bounds.decoding_per_decode_worker
    return FlowBounds(
        None if pending is None else pending * gateways,
        None if decoding is None else decoding * gateways,
        bounds.slack_ms,
    )


def _counts(values: Ints) -> "array[int]":
    """A column of the trace, whose entries are Python's ints: arithmetic with NumPy's is slow."""
    return array("q", np.asarray(values, dtype=np.int64).tobytes())
