"""Measuring: every point of the plan in turn, until all are done or the time is over."""

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from pointsman.planner.core.metrics import scrape_pair
from pointsman.planner.core.metrics.scrape_pair import Page
from pointsman.planner.errors import ProfileError
from pointsman.planner.profile.points import STEP_TOKENS
from pointsman.planner.profile.types import (
    Measured,
    Point,
    PrefillPoint,
    PrefillSample,
    StepPoint,
    StepSample,
    TransferPoint,
    TransferSample,
    WorkerFacts,
)
from pointsman.planner.profile.worker import (
    COMPUTED,
    GENERATED,
    MOVED_BYTES,
    MOVING_TIME,
    POLL_S,
    PREFILL_TIME,
    PROMPT_TOKENS,
    QUEUE_TIME,
    RUNNING,
    STEPS,
    WAITING,
    LiveWorker,
)

WARM_UP: Final = (64, 16)  # prompt and answer tokens of a request that does not count: what is compiled or allocated
LEAST_STEPS: Final = 16  # behind one measurement
WINDOW_S: Final = 0.8  # of one measurement, where the context leaves room for it
WATCH_S: Final = 0.2  # between looks at a batch that is whole: a look takes the worker's time, on CPU its engine's
SHORTEST_ANSWER: Final = 48
STUCK_LOOKS: Final = 25  # with the same few running and the others waiting: it runs no more at once
MOST_DISTURBED_SHARE: Final = 0.5
DISTURBED_AFTER: Final = 6  # measurements, before the share counts

OnPoint = Callable[[Point], None]


class Measurement:
    """One worker being measured."""

    def __init__(self, worker: LiveWorker, facts: WorkerFacts) -> None:
        self._worker = worker
        self._facts = facts
        self._prefills: list[PrefillSample] = []
        self._steps: list[StepSample] = []
        self._transfers: list[TransferSample] = []
        self._prefixes: dict[int, list[int]] = {}
        self._sequences: list[list[int]] = []  # those of a batch; a longer context goes on where a shorter one ended
        self._linked = False  # the first transfer between two workers shakes hands, and is not counted
        self._moves = True
        self._max_batch: int | None = None
        self._disturbed = 0
        self._tried = 0

    async def run(self, points: Iterable[Point], *, seconds: float, on_point: OnPoint) -> Measured:
        """Measure until ``points`` end or ``seconds`` are over; what is being measured then is not counted.

        Raises ProfileError if the worker stops answering or others use it.
        """
        began_s = time.monotonic()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                if not await self._worker.idle():
                    raise ProfileError(f"{self._worker.url} serves requests of others: profile a worker that gets none")
                prompt, tokens = WARM_UP
                await self._worker.ask(self._worker.prompt(min(prompt, self._facts.max_context_tokens // 2)), tokens)
                for point in points:
                    on_point(point)
                    await self._measure(point)
        return Measured(
            facts=self._facts,
            prefills=tuple(self._prefills),
            steps=tuple(self._steps),
            transfers=tuple(self._transfers),
            max_batch=self._max_batch,
            disturbed=self._disturbed,
            seconds=time.monotonic() - began_s,
        )

    async def _measure(self, point: Point) -> None:
        if isinstance(point, PrefillPoint):
            sample = await self._prefill(point)
            self._count(disturbed=sample is None)
            if sample is not None:
                self._prefills.append(sample)
        elif isinstance(point, StepPoint):
            if self._max_batch is None or point.batch <= self._max_batch:
                await self._step(point)
        elif self._moves:
            await self._transfer(point)

    def _count(self, *, disturbed: bool) -> None:
        """One more measurement. Raises ProfileError if others keep using the worker."""
        self._tried += 1
        self._disturbed += disturbed
        if self._tried >= DISTURBED_AFTER and self._disturbed > MOST_DISTURBED_SHARE * self._tried:
            raise ProfileError(
                f"others use {self._worker.url}: {self._disturbed} of {self._tried} measurements were disturbed; "
                "profile a worker that gets no other requests"
            )

    # --- prefill ---

    async def _prefill(self, point: PrefillPoint) -> PrefillSample | None:
        prefix = await self._prefix(point.prefix_tokens)
        before = await self._worker.page()
        answer = await self._worker.ask(prefix + self._worker.prompt(point.new_tokens), 1)
        after = await self._worker.page_after(before, 1)
        took = scrape_pair.observed(before, after, PREFILL_TIME)
        if took.count != 1 or answer.remote:
            return None
        computed = round(scrape_pair.observed(before, after, COMPUTED).total)
        queued_s = scrape_pair.observed(before, after, QUEUE_TIME).total
        # What was cached is the engine's word: without prefix caching a long prompt is simply a long prompt.
        cached = point.new_tokens + point.prefix_tokens - computed
        if computed < 1 or cached < 0 or took.total <= 0:
            return None
        overhead_ms = max(answer.seconds - took.total - queued_s, 0.0) * 1000
        return PrefillSample(computed, cached, took.total * 1000, overhead_ms)

    async def _prefix(self, tokens: int) -> list[int]:
        """The same ``tokens`` tokens every time, in the worker's cache since they were last used."""
        if tokens == 0:
            return []
        if tokens not in self._prefixes:
            self._prefixes[tokens] = self._worker.prompt(tokens)
        # Asked for again: what was measured since may have taken its place in the cache.
        await self._worker.ask(self._prefixes[tokens], 1)
        return self._prefixes[tokens]

    # --- decode ---

    async def _step(self, point: StepPoint) -> None:
        """Ask for longer answers until the batch was seen whole for long enough."""
        room = min(self._facts.max_context_tokens - point.context_tokens, STEP_TOKENS)
        tokens = min(self._answer_tokens(), room)
        while True:
            sample, disturbed = await self._batch(point, tokens)
            if self._max_batch is not None and point.batch > self._max_batch:
                return
            if sample is not None or disturbed:
                self._count(disturbed=disturbed)
                if sample is not None:
                    self._steps.append(sample)
                return
            if tokens >= room:
                return  # there is no room for steps of a whole batch: the cell is left to the model
            tokens = min(2 * tokens, room)  # the prompts are cached by now: all begin at once

    def _answer_tokens(self) -> int:
        """Enough for a window of measuring, as far as steps are known."""
        if not self._steps:
            return SHORTEST_ANSWER
        return max(SHORTEST_ANSWER, min(int(WINDOW_S * 1000 / self._steps[-1].ms) + LEAST_STEPS, STEP_TOKENS))

    async def _batch(self, point: StepPoint, tokens: int) -> tuple[StepSample | None, bool]:
        """One batch of ``tokens`` steps: its sample, if it was whole for long enough, and whether others were there."""
        prompts = [self._sequence(index, point.context_tokens) for index in range(point.batch)]
        before = await self._worker.page()
        asked = [asyncio.create_task(self._worker.ask(prompt, tokens)) for prompt in prompts]
        whole: list[Page] = []
        stuck, finished = 0, False
        try:
            while not any(task.done() for task in asked):
                page = await self._worker.page()
                running, waiting = scrape_pair.gauge(page, RUNNING) or 0, scrape_pair.gauge(page, WAITING) or 0
                computed = (scrape_pair.added(before, page, PROMPT_TOKENS) or 0) / point.context_tokens
                if running + waiting > point.batch:
                    return None, True
                if running == point.batch and computed >= point.batch:
                    whole.append(page)
                # All that run have their prompts, and still the others wait.
                stuck = stuck + 1 if waiting and 0 < running <= computed else 0
                if stuck >= STUCK_LOOKS:
                    self._max_batch = int(running)
                    return None, False
                await asyncio.sleep(WATCH_S if whole else POLL_S)
            await asyncio.gather(*asked)
            finished = True
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
            if not finished:
                await self._worker.idle()
        return self._window(point, before, whole), False

    def _sequence(self, index: int, tokens: int) -> list[int]:
        """A prompt that shares nothing with those beside it: sequences of one prefix may be computed together."""
        while index >= len(self._sequences):
            self._sequences.append([])
        known = self._sequences[index]
        known += self._worker.prompt(max(tokens - len(known), 0))
        return known[:tokens]

    @staticmethod
    def _window(point: StepPoint, before: Page, whole: list[Page]) -> StepSample | None:
        """The mean step between the first and the last page on which the batch was whole; None: too few steps."""
        if len(whole) < 2:
            return None
        first, last = whole[0], whole[-1]
        gaps = scrape_pair.observed(first, last, STEPS)
        if gaps.mean is None or gaps.count < LEAST_STEPS * point.batch:
            return None
        made = [(scrape_pair.added(before, page, GENERATED) or 0) / point.batch for page in (first, last)]
        return StepSample(point, point.context_tokens + sum(made) / 2, gaps.mean * 1000, gaps.count / point.batch)

    # --- transfer ---

    async def _transfer(self, point: TransferPoint) -> None:
        """A prompt that a prefill worker computes; where nobody does, none is asked for again."""
        if not self._linked:
            first = await self._worker.ask(self._worker.prompt(point.tokens), 1, remote=True)
            self._linked = self._moves = first.remote
            if not self._moves:
                return
        before = await self._worker.page()
        answer = await self._worker.ask(self._worker.prompt(point.tokens), 1, remote=True)
        after = await self._worker.page_after(before, 1)
        size, took = (scrape_pair.observed(before, after, name) for name in (MOVED_BYTES, MOVING_TIME))
        alone = answer.remote and size.count == took.count == 1
        self._count(disturbed=not alone)
        if alone:
            self._transfers.append(TransferSample(point.tokens, size.total, took.total * 1000, answer.seconds * 1000))
