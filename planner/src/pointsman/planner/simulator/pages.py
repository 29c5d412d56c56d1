"""The /metrics pages of simulated gateways and workers, in the form that the planner's scraper makes of a real page.

Names, labels and meaning are those of the real pages (tests/unit/planner/simulator/test_pages.py compares them): of
gateways as ``pointsman.gateway`` counts, of workers as vLLM and ``pointsman.workers`` do. Only what
``core.observe`` reads is there. Histograms of which nothing but count and sum is read have one bucket.
"""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, product
from typing import Final

from prometheus_client.utils import floatToGoString

from pointsman.api.protocol import metrics as named
from pointsman.api.protocol.metrics import LATENCY_BOUNDS_S, TOKEN_BOUNDS, Objective, TpotVerdict, TtftVerdict
from pointsman.planner.core.metrics.scrape_pair import Labels, Page
from pointsman.planner.core.types import Objectives

SERVICE: Final = ("service", "simulated")
_ENDPOINT: Final = ("endpoint", "chat")
_ENGINE: Final[Labels] = (("engine", "0"), ("model_name", "simulated"))
_BLOCK_TOKENS: Final = 16
_NO_LABELS: Final[Labels] = ()

_Samples = dict[str, Mapping[Labels, float]]


class CountedHistogram:
    """A histogram that only rises; ``bounds`` without the infinite one."""

    __slots__ = ("_bounds", "_counts", "_labels", "_name", "_sum_labels", "_total")

    def __init__(self, name: str, bounds: Sequence[float] = (), labels: Labels = _NO_LABELS) -> None:
        self._name = name
        self._bounds = tuple(bounds)
        self._labels = tuple(tuple(sorted((*labels, ("le", floatToGoString(bound))))) for bound in (*bounds, math.inf))  # type: ignore[no-untyped-call]
        self._sum_labels = labels
        self._counts = [0.0] * len(self._labels)
        self._total = 0.0

    def observe(self, value: float, count: float = 1.0) -> None:
        """``count`` observations of ``value``."""
        self._counts[bisect_left(self._bounds, value)] += count
        self._total += value * count

    def show(self, samples: _Samples) -> None:
        """Add the samples of a page."""
        samples[f"{self._name}_bucket"] = dict(zip(self._labels, accumulate(self._counts), strict=True))
        samples[f"{self._name}_sum"] = {self._sum_labels: self._total}


class GatewayPage:
    """What one gateway counts. Requests are judged against ``objectives``; None: none are in force."""

    def __init__(self, objectives: Objectives | None) -> None:
        of_service: Labels = (SERVICE,)
        of_path: Labels = (("path", "local"), SERVICE)
        self._objectives = objectives
        self._arrived = 0.0
        self._accepted = 0
        self._first_tokens = dict.fromkeys(TtftVerdict, 0)
        self._ended: dict[tuple[TtftVerdict, TpotVerdict], int] = dict.fromkeys(product(TtftVerdict, TpotVerdict), 0)
        self._prompts = CountedHistogram(named.GATEWAY_PROMPT_TOKENS.name, TOKEN_BOUNDS, of_service)
        self._refused = CountedHistogram(named.GATEWAY_REFUSED_PROMPT_TOKENS.name, TOKEN_BOUNDS, of_service)
        self._outputs = CountedHistogram(named.GATEWAY_OUTPUT_TOKENS.name, TOKEN_BOUNDS, of_service)
        self._answers = [[0, 0] for _ in named.TOKEN_BUCKETS]  # by the bucket of their prompts: answers, their tokens
        self._ttft = CountedHistogram(named.GATEWAY_TTFT.name, LATENCY_BOUNDS_S, of_path)
        self._tpot = CountedHistogram(named.GATEWAY_TPOT.name, LATENCY_BOUNDS_S, of_path)

    def accepted(self, prompt_tokens: int) -> None:
        """A request is valid."""
        self._arrived += 1
        self._accepted += 1
        self._prompts.observe(prompt_tokens)

    def refused(self, count: float = 1.0) -> None:
        """So many requests were not valid, or not for the model that is served."""
        self._arrived += count

    def got_first_token(self, ttft_s: float, prompt_tokens: int, streamed: bool) -> None:
        """Of a whole answer this is known when all of it is there."""
        if streamed:
            self._ttft.observe(ttft_s)
        self._first_tokens[self._ttft_verdict(ttft_s, prompt_tokens)] += 1

    def ended(
        self, ttft_s: float, tpot_s: float | None, prompt_tokens: int, output_tokens: int, streamed: bool
    ) -> None:
        """A request got its whole answer. ``tpot_s`` None: it has no second token."""
        self._outputs.observe(output_tokens)
        answered = self._answers[bisect_left(TOKEN_BOUNDS, prompt_tokens)]
        answered[0] += 1
        answered[1] += output_tokens
        tpot = TpotVerdict.NONE
        if tpot_s is not None:
            tpot = self._tpot_verdict(tpot_s)
            if streamed:
                self._tpot.observe(tpot_s)
        self._ended[self._ttft_verdict(ttft_s, prompt_tokens), tpot] += 1

    def failed(self) -> None:
        """The engine's own error ended a request before its first token."""
        self._ended[TtftVerdict.MISSED, TpotVerdict.FAILED] += 1

    def _tpot_verdict(self, tpot_s: float) -> TpotVerdict:
        if self._objectives is None:
            return TpotVerdict.UNKNOWN
        return TpotVerdict.MET if tpot_s * 1000 <= self._objectives.tpot_ms else TpotVerdict.MISSED

    def _ttft_verdict(self, ttft_s: float, prompt_tokens: int) -> TtftVerdict:
        if self._objectives is None:
            return TtftVerdict.UNKNOWN
        return TtftVerdict.MET if ttft_s * 1000 <= self._objectives.ttft_for(prompt_tokens) else TtftVerdict.MISSED

    def page(self, held: int) -> Page:
        """As it is now; ``held``: requests in its queue."""
        samples: _Samples = {
            named.GATEWAY_ARRIVALS.name: {(_ENDPOINT, SERVICE): self._arrived},
            named.GATEWAY_ACCEPTED.name: {(SERVICE,): float(self._accepted)},
            named.GATEWAY_ACCEPTED_REFUSED.name: {(SERVICE,): 0.0},
            named.GATEWAY_FIRST_TOKENS.name: {
                (SERVICE, ("ttft", verdict.value)): float(count) for verdict, count in self._first_tokens.items()
            },
            named.GATEWAY_ENDED.name: {
                (SERVICE, ("tpot", tpot.value), ("ttft", ttft.value)): float(count)
                for (ttft, tpot), count in self._ended.items()
            },
            named.GATEWAY_HELD.name: {(SERVICE,): float(held)},
        }
        if (goals := self._objectives) is not None:
            samples[named.GATEWAY_OBJECTIVE.name] = {
                (("objective", name.value), SERVICE): seconds
                for name, seconds in (
                    (Objective.TTFT, goals.ttft_ms / 1000),
                    (Objective.TTFT_PER_PROMPT_TOKEN, goals.ttft_ms_per_prompt_token / 1000),
                    (Objective.TPOT, goals.tpot_ms / 1000),
                )
            }
        for place, name in enumerate((named.GATEWAY_ANSWERS.name, named.GATEWAY_ANSWER_TOKENS.name)):
            samples[name] = {
                (("prompt_tokens", bucket), SERVICE): float(counted[place])
                for bucket, counted in zip(named.TOKEN_BUCKETS, self._answers, strict=True)
            }
        for histogram in (self._prompts, self._refused, self._outputs, self._ttft, self._tpot):
            histogram.show(samples)
        return samples


@dataclass(frozen=True, slots=True)
class WorkerGauges:
    """What a worker has at this moment. ``used_tokens``: of its KV cache."""

    in_flight: int
    queue_depth: int
    running: int
    waiting: int
    used_tokens: int


def _engine_histogram(name: str, bounds: Sequence[float] = ()) -> CountedHistogram:
    return CountedHistogram(f"vllm:{name}", bounds, labels=_ENGINE)


def engine_token_bounds(most: int) -> list[float]:
    """vLLM's buckets of token counts: 1, 2, 5, 10, 20, … up to the longest context."""
    digits = range(len(str(most)))
    return [float(bound) for digit in digits for first in (1, 2, 5) if (bound := first * 10**digit) <= most]


@dataclass(slots=True)
class WorkerPage:
    """What one worker and its engine count, in whatever role."""

    kv_capacity_tokens: int
    max_sequences: int
    max_batched_tokens: int  # of one step
    max_context_tokens: int
    given_tokens: int = 0
    engine_s: float = 0.0  # that its engine had prefills for others
    asked_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    pulled_tokens: int = 0
    steps: int = 0
    uncached: CountedHistogram = field(
        default_factory=lambda: CountedHistogram(named.WORKER_UNCACHED_TOKENS.name, TOKEN_BOUNDS)
    )
    for_others: CountedHistogram = field(default_factory=lambda: CountedHistogram(named.WORKER_PREFILL_SECONDS.name))
    prefill_s: CountedHistogram = field(default_factory=lambda: _engine_histogram("request_prefill_time_seconds"))
    computed: CountedHistogram = field(init=False)
    gaps_s: CountedHistogram = field(default_factory=lambda: _engine_histogram("inter_token_latency_seconds"))
    transfers_s: CountedHistogram = field(default_factory=lambda: _engine_histogram("nixl_xfer_time_seconds"))

    def __post_init__(self) -> None:
        bounds = engine_token_bounds(self.max_context_tokens)
        self.computed = _engine_histogram("request_prefill_kv_computed_tokens", bounds)

    def given(self, prompt_tokens: int, missing_tokens: int) -> None:
        """A client's request, of whose prompt so much is not cached here."""
        self.given_tokens += prompt_tokens
        self.uncached.observe(missing_tokens)

    def prefilled(self, prompts: Sequence[tuple[int, int]], took_s: float) -> None:
        """Prompts computed together for other workers: (tokens, of which so many were computed) of each."""
        self.engine_s += took_s
        self.steps += max(1, math.ceil(sum(computed for _, computed in prompts) / self.max_batched_tokens))
        for tokens, computed in prompts:
            self.for_others.observe(took_s)
            self._prefilled(tokens, computed, took_s)

    def prefilled_here(self, computed_tokens: int, took_s: float) -> None:
        """A prompt was computed where it is decoded."""
        self._prefilled(computed_tokens, computed_tokens, took_s)

    def _prefilled(self, tokens: int, computed: int, took_s: float) -> None:
        self.prefill_s.observe(took_s)
        self.computed.observe(computed)
        self.asked_tokens += tokens
        self.cached_tokens += tokens - computed
        self.computed_tokens += computed

    def pulled(self, tokens: int, took_s: float) -> None:
        """The KV of so many tokens came from a prefill worker."""
        self.pulled_tokens += tokens
        self.transfers_s.observe(took_s)

    def page(self, now: WorkerGauges) -> Page:
        """As it is now."""
        samples: _Samples = {
            named.WORKER_IN_FLIGHT.name: {_NO_LABELS: float(now.in_flight)},
            named.WORKER_QUEUE_DEPTH.name: {_NO_LABELS: float(now.queue_depth)},
            named.WORKER_MAX_SEQUENCES.name: {_NO_LABELS: float(self.max_sequences)},
            named.WORKER_PROMPT_TOKENS.name: {_NO_LABELS: float(self.given_tokens)},
            named.WORKER_PREFILL_ENGINE_SECONDS.name: {_NO_LABELS: self.engine_s},
            "vllm:num_requests_running": {_ENGINE: float(now.running)},
            "vllm:num_requests_waiting": {_ENGINE: float(now.waiting)},
            "vllm:kv_cache_usage_perc": {_ENGINE: min(now.used_tokens / self.kv_capacity_tokens, 1.0)},
            "vllm:cache_config_info": {
                (
                    ("block_size", str(_BLOCK_TOKENS)),
                    ("engine", "0"),
                    ("num_gpu_blocks", str(self.kv_capacity_tokens // _BLOCK_TOKENS)),
                ): 1.0
            },
            "vllm:prefix_cache_queries_total": {_ENGINE: float(self.asked_tokens)},
            "vllm:prefix_cache_hits_total": {_ENGINE: float(self.cached_tokens)},
            "vllm:prompt_tokens_by_source_total": {
                (*_ENGINE, ("source", "local_compute")): float(self.computed_tokens),
                (*_ENGINE, ("source", "external_kv_transfer")): float(self.pulled_tokens),
            },
            "vllm:iteration_tokens_total_count": {_ENGINE: float(self.steps)},
        }
        histograms = (self.uncached, self.for_others, self.prefill_s, self.computed, self.gaps_s, self.transfers_s)
        for histogram in histograms:
            histogram.show(samples)
        return samples


def as_text(page: Page) -> str:
    """The page as a process would serve it."""
    lines = []
    for name, samples in page.items():
        for labels, value in samples.items():
            shown = ",".join(f'{label}="{text}"' for label, text in labels)
            lines.append(f"{name}{{{shown}}} {value!r}\n")
    return "".join(lines)
