"""The systems that LoongServe is compared with, in simulated time: vLLM's scheduler, chunked prefill, and static P/D.

All have the same times (``paper_costs``), take requests in order of arrival, and admit one only if all of them can then
run to their ends (``memory.peak_slots``). So nothing is ever evicted, which is better than these systems do. No request
may be longer than their ``capacity``.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from bench.elastic.paper_costs import Chunk, TensorParallel
from bench.elastic.simulation import Asked, Outcome
from pointsman.planner.simulator.events import Events
from pointsman.serving.elastic.memory import SlotDemand, peak_slots

BATCH_TOKENS: Final = 600_000
"""Of prompts in one iteration: what the paper's artifact gives vLLM."""

BATCH_REQUESTS: Final = 1024
"""That run at a time: what the paper's artifact gives vLLM and LightLLM."""


class Running:
    """Requests that get a token in every decode step of an engine."""

    def __init__(self, engine: TensorParallel) -> None:
        self.count = 0
        self._engine = engine
        self._kv_tokens = 0
        self._step = 0
        self._ends: dict[int, list[Outcome]] = {}  # by the step that is their last

    def fits(self, outcome: Outcome, others: Sequence[Outcome]) -> bool:
        """Whether it can be added, beside ``others`` that will be, and all run to their ends."""
        demands = [SlotDemand(each.asked.prompt_tokens, each.asked.output_tokens - 1) for each in (*others, outcome)]
        if self.count + len(demands) > BATCH_REQUESTS:
            return False
        for last, ending in self._ends.items():
            left = last - self._step
            demands += [SlotDemand(each.asked.kv_tokens - left, left) for each in ending]
        return peak_slots(demands) <= self._engine.slots

    def add(self, outcome: Outcome) -> None:
        """After its first token; each has more."""
        self.count += 1
        self._kv_tokens += outcome.asked.prompt_tokens
        self._ends.setdefault(self._step + outcome.asked.output_tokens - 1, []).append(outcome)

    def step_s(self, chunks: Sequence[Chunk] = ()) -> float:
        """Seconds of the next step, with parts of prompts in it. It reads a further token of each request, too."""
        return self._engine.step_s(self.count, self._kv_tokens + self.count, chunks)

    def step(self, now_s: float) -> bool:
        """A step of all has ended. Whether one has ended with it."""
        self._step += 1
        self._kv_tokens += self.count
        ended = self._ends.pop(self._step, [])
        for outcome in ended:
            outcome.end_s = now_s
            self._kv_tokens -= outcome.asked.kv_tokens
        self.count -= len(ended)
        return bool(ended)


@dataclass(frozen=True)
class Static:
    """A system whose engines are like ``engine``."""

    engine: TensorParallel

    @property
    def capacity(self) -> int:
        """Tokens of the longest request that fits."""
        return self.engine.slots


@dataclass(frozen=True)
class OneEngine(Static):
    """One engine that computes whole prompts, as vLLM 0.3, or has a budget of ``chunk`` tokens, as SplitFuse.

    An iteration is whole prompts, or else a decode step. With a budget, it is a token of each running request and parts
    of prompts, up to ``chunk`` tokens in all.
    """

    chunk: int | None = None

    def outcomes(self, asked: Sequence[Asked]) -> list[Outcome]:
        """Of each request, in order of arrival."""
        outcomes = [Outcome(each) for each in asked]
        coming, waiting = deque(outcomes), deque[Outcome]()
        running = Running(self.engine)
        done = 0  # tokens of the first prompt that waits
        now_s, changed = 0.0, True  # vLLM looks at those that wait when one has come, begun or ended
        while True:
            while coming and coming[0].asked.at_s <= now_s:
                waiting.append(coming.popleft())
                changed = True
            parts = self._parts(waiting, running, done) if changed or self.chunk else []
            chunks = [chunk for _, chunk in parts]
            if chunks and not self.chunk:
                now_s += self.engine.step_s(0, 0, chunks)
            elif chunks or running.count:
                now_s += running.step_s(chunks)
                changed = running.step(now_s)
            elif coming:
                now_s = coming[0].asked.at_s
            else:
                return outcomes
            for outcome, chunk in parts:
                done = chunk.before + chunk.tokens
                if done == outcome.asked.prompt_tokens:
                    done = 0
                    waiting.popleft().first_s = now_s
                    running.add(outcome)

    def _parts(self, waiting: deque[Outcome], running: Running, done: int) -> list[tuple[Outcome, Chunk]]:
        """Of the prompts that wait, in their order, until the budget is used."""
        budget = self.chunk - running.count if self.chunk else BATCH_TOKENS
        found: list[tuple[Outcome, Chunk]] = []
        for outcome in waiting:
            left = outcome.asked.prompt_tokens - done
            is_over = budget <= 0 or (left > budget and not self.chunk)
            if is_over or not (done or running.fits(outcome, [each for each, _ in found])):
                break
            found.append((outcome, Chunk(min(left, budget), done)))
            budget -= left
            done = 0
        return found


class PrefillDecode(Static):
    """Two engines as DistServe. KV goes over NVLink while both compute, and stays at the prefill engine until then."""

    def outcomes(self, asked: Sequence[Asked]) -> list[Outcome]:
        """Of each request, in order of arrival."""
        outcomes = [Outcome(each) for each in asked]
        run = _PrefillDecodeRun(self.engine)
        for each in outcomes:
            run.events.at(each.asked.at_s, run.waiting.append, each)
        while run.events.next_s < float("inf"):
            run.events.step()
            run.go_on()
        return outcomes


class _PrefillDecodeRun:
    def __init__(self, engine: TensorParallel) -> None:
        self.events = Events()
        self.waiting = deque[Outcome]()
        self._engine = engine
        self._prefilling: list[Outcome] = []
        self._prefilled = deque[Outcome]()  # wait for room at the decode engine
        self._moving: list[Outcome] = []
        self._moved: list[Outcome] = []  # join the next step
        self._running = Running(engine)
        self._stepping = False

    def go_on(self) -> None:
        """Begin what can begin after an event."""
        now_s = self.events.now_s
        while self._prefilled and self._running.fits(self._prefilled[0], [*self._moving, *self._moved]):
            each = self._prefilled.popleft()
            self._moving.append(each)
            self.events.at(now_s + self._engine.send_s(each.asked.prompt_tokens), self._move_ended, each)
        if not self._prefilling and (prompts := self._prompts()):
            self._prefilling = prompts
            took_s = self._engine.prefill_s([each.asked.prompt_tokens for each in prompts])
            self.events.at(now_s + took_s, self._prefill_ended)
        if not self._stepping:
            for each in self._moved:
                self._running.add(each)
            self._moved.clear()
            if self._running.count:
                self._stepping = True
                self.events.at(now_s + self._running.step_s(), self._step_ended)

    def _prompts(self) -> list[Outcome]:
        """For the next iteration of the prefill engine."""
        found: list[Outcome] = []
        stored = sum(each.asked.prompt_tokens for each in (*self._prefilled, *self._moving))
        room = min(BATCH_TOKENS, self._engine.slots - stored)
        while self.waiting and self.waiting[0].asked.prompt_tokens <= room:
            found.append(self.waiting.popleft())
            room -= found[-1].asked.prompt_tokens
        return found

    def _prefill_ended(self, _: None) -> None:
        for each in self._prefilling:
            each.first_s = self.events.now_s
        self._prefilled.extend(self._prefilling)
        self._prefilling = []

    def _move_ended(self, each: Outcome) -> None:
        self._moving.remove(each)
        self._moved.append(each)

    def _step_ended(self, _: None) -> None:
        self._stepping = False
        self._running.step(self.events.now_s)
