"""Continuous batching on one worker, advanced in closed form between changes of the batch.

While nobody joins or leaves, each step adds one token to every sequence, so the KV cache and with it the step's time
grow linearly: ``m`` steps take ``m·s0 + s1·m·(m-1)/2``. An event is therefore needed only where the batch changes,
and the work grows with requests, not with tokens. Between two events the engine is in one *segment*: many pure decode
steps, or one mixed step that also computes a chunk of local prompts.

As vLLM v1 does it: running sequences first, then prompts in order of arrival within one token budget a step; what
finds no room in the KV cache waits; when the cache is full the sequence that joined last is preempted and computed
again later.
"""

import heapq
import math
from collections import deque
from collections.abc import Callable

from pointsman.planner.simulator.pages import WorkerPage
from pointsman.planner.simulator.request import Request
from pointsman.planner.simulator.timing import Timing
from pointsman.planner.simulator.types import Engine

ITL_BINS_PER_DECADE = 50
ITL_LEAST_S = 1e-4
ITL_BINS = 5 * ITL_BINS_PER_DECADE  # 0.1 ms to 10 s
_SCALE = ITL_BINS_PER_DECADE / math.log(10)
_OFFSET = -math.log(ITL_LEAST_S) * _SCALE


class DecodeEngine:
    """The sequences of one worker.

    Times are absolute seconds; the caller calls ``advance`` when ``next_s`` has come.
    """

    def __init__(
        self,
        engine: Engine,
        timing: Timing,
        itl_counts: list[float],
        started: Callable[[Request], None],
        finished: Callable[[Request, float], None],
        page: WorkerPage | None = None,
    ) -> None:
        """``page``: of its worker, where it counts; None: one of its own."""
        self.page = page or WorkerPage(
            engine.kv_capacity_tokens, engine.max_batch, engine.max_batched_tokens, engine.max_context_tokens
        )
        self._timing = timing
        self._itl_counts = itl_counts
        self._started = started
        self._finished = finished
        self._capacity = engine.kv_capacity_tokens
        self._max_batch = engine.max_batch
        self._max_batched = engine.max_batched_tokens
        self.waiting: deque[Request] = deque()  # KV is there or must be computed here; not in the batch yet
        self._prefilling: deque[Request] = deque()  # admitted, some chunks of the prompt still to compute
        self._running: dict[int, Request] = {}  # in the order they joined
        self._ends: list[tuple[int, int, Request]] = []  # heap of (step, number, request); stale ones are skipped
        self._joins = 0
        self._steps = 0  # steps done before this segment
        self.context = 0  # tokens of the running sequences, at the segment's start
        self.held = 0  # tokens of prompts that are admitted but not running yet
        self._chunk: list[tuple[Request, int]] = []
        # the segment
        self._from_s = 0.0
        self._length = 0  # steps; 0: idle
        self._first = 0.0
        self._growth = 0.0
        self._counted = 0  # of its steps, on the page
        self.next_s = math.inf
        self.version = 0  # changes with next_s: an event with an older one is void

    # --- what is seen ---

    @property
    def running(self) -> int:
        """Sequences in the batch."""
        return len(self._running)

    @property
    def idle(self) -> bool:
        """Nothing runs, waits or is computed."""
        return not (self._running or self.waiting or self._prefilling)

    def kv_tokens(self, now_s: float) -> int:
        """Tokens held at ``now_s``."""
        return self.context + self.held + len(self._running) * self._done(now_s)

    def count_up_to(self, now_s: float) -> None:
        """Count on the page what was decoded up to ``now_s``."""
        if self._length and self._running:
            self._count(self._done(now_s))

    # --- what happens ---

    def add(self, request: Request, now_s: float) -> None:
        """A request whose KV arrived (``new_tokens`` 0) or whose prompt is to be computed here."""
        self.waiting.append(request)
        self._wake(now_s)

    def advance(self, now_s: float) -> None:
        """The segment ended: give tokens, let finished requests go, begin the next."""
        self._end_segment(now_s, self._length)
        self._begin_segment(now_s)

    def empty(self, now_s: float) -> list[Request]:
        """Take everything off (drain timeout, crash), each request with the tokens it has so far."""
        done = self._done(now_s)
        if self._length and not self._chunk:
            self._end_segment(now_s, done)
        taken = list(self._running.values())
        for request in taken:
            self._give_back(request)
        for request in (*self._prefilling, *self.waiting):
            request.computed_tokens = 0
            taken.append(request)
        for request in taken:
            if request.first_token_s > now_s:
                request.first_token_s = math.nan  # it was to come with the step that is lost
        self.waiting.clear()
        self._prefilling.clear()
        self._running.clear()
        self._ends.clear()
        self._chunk = []
        self.context = self.held = self._length = 0
        self.next_s = math.inf
        self.version += 1
        return taken

    # --- segments ---

    def _wake(self, now_s: float) -> None:
        """Something waits: end the segment at the next boundary of steps, or begin one."""
        if self._length == 0:
            self._begin_segment(now_s)
            return
        if self._length == 1:
            return
        done = self._done(now_s)
        boundary = done if self._time_of(done) >= now_s - 1e-12 and done > 0 else done + 1
        if boundary < self._length:
            self._length = boundary
            self._schedule()

    def _begin_segment(self, now_s: float) -> None:
        self._from_s = now_s
        self._counted = 0
        self._chunk = []
        if self._running:
            self._make_room()
        joined = self._admit() if self.waiting or self._prefilling else []
        batch = len(self._running)
        noise = self._timing.noise()
        if self._chunk:
            work = sum(self._timing.prefill_work_s(n, r.cached_tokens + r.computed_tokens) for r, n in self._chunk)
            fixed = self._timing.step_s(batch, self.context) if batch else self._timing.prefill_fixed_s
            self._length, self._first, self._growth = 1, (fixed + work) * noise, 0.0
        elif batch:
            steps = self._steps_until_change(batch)
            first = self._timing.step_s(batch, self.context)
            last = self._timing.step_s(batch, self.context + batch * (steps - 1))
            self._length = steps
            self._first = first * noise
            self._growth = (last - first) / (steps - 1) * noise if steps > 1 else 0.0
        else:
            self._length = 0
            self.next_s = math.inf
            self.version += 1
            return
        for request in joined:
            if math.isnan(request.first_token_s):
                request.first_token_s = now_s + self._first
                self._started(request)
        self._schedule()

    def _admit(self) -> list[Request]:
        """Fill the batch and this step's chunk from those that wait; returns who joined with their KV there."""
        joined: list[Request] = []
        room = self._capacity - self.context - self.held
        budget = self._max_batched - len(self._running)
        for request in self._prefilling:
            tokens = min(request.new_tokens - request.computed_tokens, budget)
            if tokens <= 0:
                break
            self._chunk.append((request, tokens))
            budget -= tokens
        places = self._max_batch - len(self._running) - len(self._prefilling)
        while self.waiting and places > 0:
            request = self.waiting[0]
            # One token of room for each sequence: the step that follows must fit.
            if request.prompt_tokens + len(self._running) + 1 > room:
                break
            if request.new_tokens == 0:
                self.waiting.popleft()
                self._join(request, self._steps)
                joined.append(request)
            else:
                tokens = min(request.new_tokens, budget)
                if tokens <= 0:
                    break
                self.waiting.popleft()
                self._prefilling.append(request)
                self.held += request.prompt_tokens
                self._chunk.append((request, tokens))
                budget -= tokens
            room -= request.prompt_tokens
            places -= 1
        return joined

    def _join(self, request: Request, at_step: int) -> None:
        request.ends_at_step = at_step + request.to_generate
        self._running[request.index] = request
        self.context += request.prompt_tokens
        self._joins += 1
        heapq.heappush(self._ends, (request.ends_at_step, self._joins, request))

    def _steps_until_change(self, batch: int) -> int:
        """Until the first sequence ends or the KV cache is full."""
        free = self._capacity - self.context - self.held
        ends = self._ends
        while ends[0][2].ends_at_step != ends[0][0]:
            heapq.heappop(ends)
        return max(1, min(ends[0][0] - self._steps, free // batch))

    def _make_room(self) -> None:
        """Preempt until the next step's tokens fit: prompts that are being computed, then who joined last."""
        while self._capacity - self.context - self.held < len(self._running):
            if self._prefilling:
                request = self._prefilling.pop()
                self.held -= request.prompt_tokens
                request.new_tokens = request.prompt_tokens
                request.cached_tokens = request.computed_tokens = 0
            elif len(self._running) > 1:
                request = self._running.pop(next(reversed(self._running)))
                self._give_back(request)
            else:
                return
            request.preemptions += 1
            self.waiting.appendleft(request)

    def _give_back(self, request: Request) -> None:
        """Out of the batch between steps: what it generated becomes prompt."""
        left = request.ends_at_step - self._steps
        made = request.to_generate - left
        self.context -= request.prompt_tokens + made
        request.prompt_tokens += made
        request.to_generate = left
        request.ends_at_step = -1
        request.new_tokens = request.prompt_tokens
        request.cached_tokens = request.computed_tokens = 0

    def _end_segment(self, now_s: float, steps: int) -> None:
        batch = len(self._running)
        if steps and not batch:
            self.page.steps += steps  # prompts alone
        if batch and steps:
            self._count(steps)
            middle_s = self._time_of(steps) - self._from_s
            self._itl_counts[_bin(middle_s / steps)] += batch * steps
        self._steps += steps
        self.context += batch * steps
        self._length = 0
        ends = self._ends
        while ends and ends[0][0] <= self._steps:
            step, _, request = heapq.heappop(ends)
            if request.ends_at_step == step:
                del self._running[request.index]
                self.context -= request.prompt_tokens + request.to_generate
                request.ends_at_step = -1
                self._finished(request, now_s)
        for request, tokens in self._chunk:
            request.computed_tokens += tokens
            if request.computed_tokens >= request.new_tokens:
                self._prefilled(request, now_s)
        self._chunk = []

    def _prefilled(self, request: Request, now_s: float) -> None:
        """The prompt's last chunk was computed: that step also gave one token."""
        self._prefilling.remove(request)
        self.held -= request.prompt_tokens
        self.page.prefilled_here(request.new_tokens, self._first)
        request.new_tokens = request.computed_tokens = 0
        if math.isnan(request.first_token_s):
            request.first_token_s = now_s
            self._started(request)
        if request.to_generate == 1:
            self._finished(request, now_s)
            return
        request.prompt_tokens += 1
        request.to_generate -= 1
        self._join(request, self._steps)

    # --- arithmetic of a segment ---

    def _time_of(self, steps: int) -> float:
        return self._from_s + steps * self._first + self._growth * steps * (steps - 1) / 2

    def _schedule(self) -> None:
        self.next_s = self._time_of(self._length)
        self.version += 1

    def _done(self, now_s: float) -> int:
        """Whole steps of this segment that are done at ``now_s``."""
        if self._length == 0 or now_s <= self._from_s:
            return 0
        if now_s >= self.next_s:
            return self._length
        passed = now_s - self._from_s
        if self._growth > 1e-12:
            half = self._first - self._growth / 2
            steps = (math.sqrt(half * half + 2 * self._growth * passed) - half) / self._growth
        else:
            steps = passed / self._first
        return min(int(steps + 1e-9), self._length)

    def _count(self, steps: int) -> None:
        """On the page, up to ``steps`` of this segment; each gap between tokens counts as their mean."""
        if steps > self._counted:
            batch, more = len(self._running), steps - self._counted
            gap_s = (self._time_of(steps) - self._time_of(self._counted)) / more
            self.page.gaps_s.observe(gap_s, batch * more)
            self.page.steps += more
            self._counted = steps


def _bin(seconds: float) -> int:
    return min(max(int(math.log(seconds) * _SCALE + _OFFSET), 0), ITL_BINS - 1)
