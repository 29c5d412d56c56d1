"""The systems that LoongServe is compared with, in simulated time: vLLM's scheduler, chunked prefill, and static P/D.

All have the same times (``paper_costs``), take requests in order of arrival, and admit one only if all of them can then
run to their ends (``memory.peak_slots``). So nothing is ever evicted, which is better than these systems do.
"""

import heapq
import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from bench.elastic.paper_costs import Chunk, TensorParallel
from bench.elastic.simulation import Asked, Outcome
from pointsman.planner.simulator.events import Events
from pointsman.serving.elastic.memory import SlotDemand, peak_slots

BATCH_TOKENS: Final = 600_000
"""Of prompts in one iteration: what the paper's artifact gives vLLM."""

BATCH_REQUESTS: Final = 1024
"""That run at a time: what the paper's artifact gives vLLM and LightLLM."""


class Static(Protocol):
    """A system that is not elastic."""

    def outcomes(self, asked: Sequence[Asked]) -> list[Outcome]:
        """Simulate until all requests, in order of arrival, have ended."""


@dataclass
class Running:
    """Requests that get a token in every decode step, within ``slots`` tokens of KV."""

    slots: int
    count: int = 0
    kv_tokens: int = 0
    _reserved: int = 0
    _step: int = 0
    _ends: list[tuple[int, int, Outcome]] = field(default_factory=list)  # by the step that is its last
    _order: "itertools.count[int]" = field(default_factory=itertools.count)

    def fits(self, outcome: Outcome, others: Sequence[Outcome] = ()) -> bool:
        """Whether it can be added, beside ``others`` that will be, and all run to their ends."""
        added = [demand_of(each.asked) for each in (*others, outcome)]
        if self.count + len(added) > BATCH_REQUESTS:
            return False
        if self._reserved + sum(each.tokens + each.future_tokens for each in added) <= self.slots:
            return True
        return peak_slots([*self._demands(), *added]) <= self.slots

    def add(self, outcome: Outcome) -> None:
        """After its first token. One with a single token has ended."""
        asked = outcome.asked
        steps = asked.output_tokens - 1
        if not steps:
            outcome.end_s = outcome.first_s
            return
        self.count += 1
        self.kv_tokens += asked.prompt_tokens
        self._reserved += asked.prompt_tokens + steps
        heapq.heappush(self._ends, (self._step + steps, next(self._order), outcome))

    @property
    def read_tokens(self) -> int:
        """KV that the next step reads: a further token of each request included."""
        return self.kv_tokens + self.count

    def step(self, now_s: float) -> bool:
        """A step of all has ended. Whether one has ended with it."""
        self._step += 1
        self.kv_tokens += self.count
        before = self.count
        while self._ends and self._ends[0][0] == self._step:
            _, _, outcome = heapq.heappop(self._ends)
            outcome.end_s = now_s
            tokens = outcome.asked.prompt_tokens + outcome.asked.output_tokens - 1
            self.count -= 1
            self.kv_tokens -= tokens
            self._reserved -= tokens
        return self.count < before

    def _demands(self) -> list[SlotDemand]:
        found = []
        for last, _, outcome in self._ends:
            left = last - self._step
            stored = outcome.asked.prompt_tokens + outcome.asked.output_tokens - 1 - left
            found.append(SlotDemand(stored, left))
        return found


def demand_of(asked: Asked) -> SlotDemand:
    """Slots after its prefill, and those that it takes until its end."""
    return SlotDemand(asked.prompt_tokens, asked.output_tokens - 1)


@dataclass
class Queue:
    """Requests that have not begun, those that have come first. Those that never fit are refused at their arrival."""

    asked: Sequence[Asked]
    slots: int
    waiting: deque[Outcome] = field(default_factory=deque)
    all: list[Outcome] = field(init=False)
    _coming: deque[Outcome] = field(init=False)

    def __post_init__(self) -> None:
        self.all = [Outcome(each) for each in self.asked]
        self._coming = deque(self.all)

    @property
    def next_s(self) -> float:
        """When the next one comes; infinite: none."""
        return self._coming[0].asked.at_s if self._coming else float("inf")

    def arrive(self, now_s: float) -> bool:
        """Let those wait that have come until ``now_s``. Whether there are any."""
        found = False
        while self._coming and self._coming[0].asked.at_s <= now_s:
            outcome = self._coming.popleft()
            demand = demand_of(outcome.asked)
            outcome.refused = demand.tokens + demand.future_tokens > self.slots
            if not outcome.refused:
                self.waiting.append(outcome)
                found = True
        return found


def admit(queue: Queue, running: Running) -> list[Outcome]:
    """Whole prompts for one iteration, in order of arrival."""
    found: list[Outcome] = []
    tokens = 0
    while queue.waiting:
        head = queue.waiting[0]
        tokens += head.asked.prompt_tokens
        if (found and tokens > BATCH_TOKENS) or not running.fits(head, found):
            break
        found.append(queue.waiting.popleft())
    return found


@dataclass(frozen=True, slots=True)
class WholePrompts:
    """One engine as vLLM 0.3: an iteration is prompts or a decode step, and prompts go first."""

    name: str
    engine: TensorParallel

    def outcomes(self, asked: Sequence[Asked]) -> list[Outcome]:
        """See Static."""
        queue, running = Queue(asked, self.engine.slots), Running(self.engine.slots)
        now_s, changed = 0.0, True
        while True:
            changed |= queue.arrive(now_s)
            admitted = admit(queue, running) if changed else []
            changed = False
            if admitted:
                now_s += self.engine.prefill_s([each.asked.prompt_tokens for each in admitted])
                for each in admitted:
                    each.first_s = now_s
                    running.add(each)
                changed = True
            elif running.count:
                now_s += self.engine.step_s(running.count, running.read_tokens)
                changed = running.step(now_s)
            elif queue.next_s < float("inf"):
                now_s = queue.next_s
            else:
                return queue.all


@dataclass
class _Partial:
    """A prompt of which ``done`` tokens are computed."""

    outcome: Outcome
    done: int = 0

    @property
    def left(self) -> int:
        return self.outcome.asked.prompt_tokens - self.done


@dataclass(frozen=True, slots=True)
class ChunkedPrefill:
    """One engine as SplitFuse: an iteration has a token of each running request, and parts of prompts up to ``chunk``
    tokens in all.
    """

    name: str
    engine: TensorParallel
    chunk: int

    def outcomes(self, asked: Sequence[Asked]) -> list[Outcome]:
        """See Static."""
        queue, running = Queue(asked, self.engine.slots), Running(self.engine.slots)
        begun: deque[_Partial] = deque()
        now_s = 0.0
        while True:
            queue.arrive(now_s)
            chunks = self._chunks(queue, running, begun)
            if not (chunks or running.count):
                if queue.next_s == float("inf"):
                    return queue.all
                now_s = queue.next_s
                continue
            now_s += self.engine.step_s(running.count, running.read_tokens, chunks)
            running.step(now_s)
            for chunk in chunks:
                begun[0].done += chunk.tokens
                if not begun[0].left:
                    outcome = begun.popleft().outcome
                    outcome.first_s = now_s
                    running.add(outcome)

    def _chunks(self, queue: Queue, running: Running, begun: "deque[_Partial]") -> list[Chunk]:
        """The first prompts that have begun, then those that wait, until the budget is used."""
        budget, found = self.chunk - running.count, list[Chunk]()
        number = 0
        while budget > 0:
            if number == len(begun):
                if not queue.waiting or not running.fits(queue.waiting[0], [each.outcome for each in begun]):
                    break
                begun.append(_Partial(queue.waiting.popleft()))
            partial = begun[number]
            tokens = min(partial.left, budget)
            found.append(Chunk(tokens, partial.done))
            budget -= tokens
            number += 1
        return found


@dataclass(frozen=True, slots=True)
class PrefillDecode:
    """Two engines as DistServe. KV goes over NVLink while both compute; it stays at the prefill engine until then."""

    name: str
    prefill: TensorParallel
    decode: TensorParallel

    def transfer_s(self, tokens: int) -> float:
        """Every GPU sends its part."""
        of = self.prefill.hardware
        return tokens * of.kv_bytes / (min(self.prefill.gpus, self.decode.gpus) * of.link_bytes_per_s)

    def outcomes(self, asked: Sequence[Asked]) -> list[Outcome]:
        """See Static."""
        return _PrefillDecodeRun(self, Queue(asked, min(self.prefill.slots, self.decode.slots))).outcomes()


class _PrefillDecodeRun:
    def __init__(self, system: PrefillDecode, queue: Queue) -> None:
        self.system, self.queue, self.events = system, queue, Events()
        self.running = Running(system.decode.slots)
        self.held_tokens = 0  # of KV at the prefill engine
        self.prefilled: deque[Outcome] = deque()  # wait for room at the decode engine
        self.moving: list[Outcome] = []
        self.moved: list[Outcome] = []  # join the next step
        self._prefilling = self._stepping = False

    def outcomes(self) -> list[Outcome]:
        """Handle what happens, in order of time."""
        self._await_arrival()
        while self.events.next_s < float("inf"):
            self.events.step()
            self._go_on()
        return self.queue.all

    def _await_arrival(self) -> None:
        if self.queue.next_s < float("inf"):
            self.events.at(self.queue.next_s, self._arrive)

    def _arrive(self, _: None) -> None:
        self.queue.arrive(self.events.now_s)
        self._await_arrival()

    def _prefill_ended(self, prompts: list[Outcome]) -> None:
        self._prefilling = False
        for each in prompts:
            each.first_s = self.events.now_s
            if each.asked.output_tokens == 1:
                each.end_s = self.events.now_s
                self.held_tokens -= each.asked.prompt_tokens
            else:
                self.prefilled.append(each)

    def _move_ended(self, each: Outcome) -> None:
        self.held_tokens -= each.asked.prompt_tokens
        self.moving.remove(each)
        self.moved.append(each)

    def _step_ended(self, _: None) -> None:
        self._stepping = False
        self.running.step(self.events.now_s)

    def _go_on(self) -> None:
        now_s = self.events.now_s
        while self.prefilled and self.running.fits(self.prefilled[0], [*self.moving, *self.moved]):
            each = self.prefilled.popleft()
            self.moving.append(each)
            self.events.at(now_s + self.system.transfer_s(each.asked.prompt_tokens), self._move_ended, each)
        if not self._prefilling and (prompts := self._prompts()):
            self._prefilling = True
            lengths = [each.asked.prompt_tokens for each in prompts]
            self.events.at(now_s + self.system.prefill.prefill_s(lengths), self._prefill_ended, prompts)
        if not self._stepping:
            for each in self.moved:
                self.running.add(each)
            self.moved.clear()
            if self.running.count:
                self._stepping = True
                took_s = self.system.decode.step_s(self.running.count, self.running.read_tokens)
                self.events.at(now_s + took_s, self._step_ended)

    def _prompts(self) -> list[Outcome]:
        found: list[Outcome] = []
        tokens = 0
        while self.queue.waiting:
            prompt = self.queue.waiting[0].asked.prompt_tokens
            if self.held_tokens + prompt > self.system.prefill.slots or (found and tokens + prompt > BATCH_TOKENS):
                break
            found.append(self.queue.waiting.popleft())
            tokens += prompt
            self.held_tokens += prompt
        return found
