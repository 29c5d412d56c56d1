"""What gateway and workers counted since the planner last looked, and the Observation made of it.

The same contents that ``core.observe`` makes of two pages of ``/metrics``: the lengths of prompts in the gateway's
buckets, attainment over what got its first token or ended in the window, one measurement a worker where enough
happened.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from pointsman.api.protocol.metrics import TOKEN_BOUNDS
from pointsman.planner.core.observe import MIN_SAMPLES, prefilled_together
from pointsman.planner.core.scrapes import Histogram
from pointsman.planner.core.types import EngineSample, Load, Service, Uncached, WorkerRole
from pointsman.planner.simulator.worker import SimulatedWorker

_BOUNDS = (*TOKEN_BOUNDS, float("inf"))


@dataclass(slots=True)
class Window:
    """Counts since ``since_s``; replaced by a fresh one at every look that reached the gateway."""

    since_s: float
    arrivals: int = 0
    prompt_tokens: int = 0
    by_bound: list[int] = field(default_factory=lambda: [0] * len(_BOUNDS))
    decided: int = 0
    decided_tokens: int = 0  # of their prompts
    missing_tokens: int = 0  # of prompts, that their decode workers lacked
    missing_by_bound: list[int] = field(default_factory=lambda: [0] * len(_BOUNDS))
    ended: int = 0
    output_tokens: int = 0
    ttft_ms: list[float] = field(default_factory=list)
    ttft_met: int = 0
    tpot_ms: list[float] = field(default_factory=list)
    tpot_met: int = 0

    def arrived(self, prompt_tokens: int) -> None:
        """A request came."""
        self.arrivals += 1
        self.prompt_tokens += prompt_tokens
        self.by_bound[bisect_left(_BOUNDS, prompt_tokens)] += 1

    def given(self, prompt_tokens: int, missing_tokens: int) -> None:
        """A request was given to a decode worker that lacks so much of its prompt."""
        self.decided += 1
        self.decided_tokens += prompt_tokens
        self.missing_tokens += missing_tokens
        self.missing_by_bound[bisect_left(_BOUNDS, missing_tokens)] += 1

    def started(self, ttft_ms: float, objective_ms: float) -> None:
        """A request got its first token."""
        self.ttft_ms.append(ttft_ms)
        self.ttft_met += ttft_ms <= objective_ms

    def finished(self, output_tokens: int, tpot_ms: float | None, objective_ms: float) -> None:
        """A request ended; ``tpot_ms`` None: it had one token only."""
        self.ended += 1
        self.output_tokens += output_tokens
        if tpot_ms is not None:
            self.tpot_ms.append(tpot_ms)
            self.tpot_met += tpot_ms <= objective_ms

    def load(self, window_s: float, workers: Sequence[SimulatedWorker], blind: bool) -> Load:
        """What arrived, as the gateway's histograms and the workers' pages tell it.

        ``blind``: some worker's page could not be read.
        """
        cached = _cached_share(workers)
        decoding = [worker.engine for worker in workers if worker.role is WorkerRole.DECODE]
        tokens = sum(engine.itl_count for engine in decoding)
        prompts = _histogram(self.by_bound, self.prompt_tokens)
        prefilled, asked, computed = _prefilled(workers)
        return Load(
            arrivals_per_s=self.arrivals / window_s,
            prompt_tokens=prompts.mean,
            cached_tokens=None if cached is None or prompts.mean is None else cached * prompts.mean,
            output_tokens=self.output_tokens / self.ended if self.ended else None,
            prompt_length_shares=prompts.shares(),
            started_per_s=len(self.ttft_ms) / window_s,
            ended_per_s=self.ended / window_s,
            decoding=None if blind else float(sum(engine.running for engine in decoding)),
            step_ms=sum(engine.itl_sum_s for engine in decoding) / tokens * 1000 if tokens and not blind else None,
            pulled_tokens=float(sum(worker.pulled_tokens for worker in workers)),
            pulling_s=sum(worker.pulling_s for worker in workers),
            uncached=Uncached(
                float(self.decided),
                float(self.decided_tokens),
                float(self.missing_tokens),
                _histogram(self.missing_by_bound, self.missing_tokens).shares(),
                prefilled,
                asked,
                computed,
            ),
        )

    def service(self, window_s: float, queue_depth: int, held: int) -> Service:
        """What clients got."""
        return Service(
            ttft_attainment=self.ttft_met / len(self.ttft_ms) if self.ttft_ms else None,
            tpot_attainment=self.tpot_met / len(self.tpot_ms) if self.tpot_ms else None,
            ttft_p95_ms=_p95(self.ttft_ms),
            tpot_p95_ms=_p95(self.tpot_ms),
            prefill_queue_depth=float(queue_depth),
            held=float(held),
        )


def _histogram(counts: Sequence[int], total: int) -> Histogram:
    return Histogram(_BOUNDS, tuple(float(count) for count in accumulate(counts)), float(total))


def _prefilled(workers: Iterable[SimulatedWorker]) -> tuple[float, float, float]:
    """(prompts that prefill workers were asked for, tokens of them, those that they computed)."""
    prefilling = [worker for worker in workers if worker.role is WorkerRole.PREFILL]
    return (
        float(sum(worker.prefill_count for worker in prefilling)),
        float(sum(worker.asked_tokens for worker in prefilling)),
        float(sum(worker.prefill_tokens for worker in prefilling)),
    )


def _cached_share(workers: Iterable[SimulatedWorker]) -> float | None:
    """Of the tokens that prefill workers were asked for, those they had; None: they were asked for none."""
    _, asked, computed = _prefilled(workers)
    return 1 - computed / asked if asked else None


def engine_samples(workers: Iterable[SimulatedWorker], window_s: float, now_s: float) -> tuple[EngineSample, ...]:
    """One prefill and one decode-step measurement a worker, where enough happened in ``window_s``."""
    found: list[EngineSample] = []
    for worker in workers:
        engine = worker.engine
        prefills = worker.prefill_count + engine.prefill_count
        if prefills and not worker.pulled:
            # On a decode worker a prompt's time is counted by the prompt, as the engine does.
            shared = prefilled_together(engine.prefill_sum_s, engine.prefill_sum_s / prefills, window_s)
            took_s = worker.prefill_busy_s + engine.prefill_sum_s / shared
            tokens = (worker.prefill_tokens + engine.prefill_tokens) / prefills
            if tokens > 1:
                found.append(EngineSample(WorkerRole.PREFILL, observed_ms=took_s / prefills * 1000, tokens=tokens))
        if worker.role is WorkerRole.DECODE and engine.itl_count >= MIN_SAMPLES:
            step_ms = engine.itl_sum_s / engine.itl_count * 1000
            batch = float(max(engine.running, 1))
            local_per_s = engine.prefill_tokens / window_s
            found.append(
                EngineSample(
                    WorkerRole.DECODE,
                    observed_ms=step_ms,
                    tokens=float(engine.kv_tokens(now_s)),
                    batch=batch,
                    local_tokens_per_s=local_per_s,
                )
            )
    return tuple(found)


def reset_samples(worker: SimulatedWorker) -> None:
    """After a look that reached this worker."""
    engine = worker.engine
    worker.prefill_busy_s = engine.prefill_sum_s = engine.itl_sum_s = 0.0
    worker.prefill_tokens = worker.asked_tokens = engine.prefill_tokens = worker.pulled_tokens = 0
    worker.pulling_s = 0.0
    worker.prefill_count = engine.prefill_count = engine.itl_count = worker.pulled = 0


def _p95(values: list[float]) -> float | None:
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(int(0.95 * len(ordered)), len(ordered) - 1)]
