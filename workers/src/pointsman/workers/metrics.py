"""``pointsman_worker_*``: written to the registry the engine's own /metrics shows."""

from collections.abc import Collection

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from pointsman.api.protocol import metrics as named
from pointsman.api.protocol.control import WorkerPhase, WorkerState
from pointsman.api.protocol.names import Role
from pointsman.api.protocol.prefill import PrefillOutcome
from pointsman.serving.local_remote import PrefillReason
from pointsman.workers.types import AwaitedPrefills, EngineFacts

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0)


class WorkerMetrics:
    """One worker's metric families. Every label value exists from the start, so that rates begin at 0."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        def gauge(metric: named.Metric) -> Gauge:
            return Gauge(metric.name, metric.help, metric.labels, registry=registry)

        def counter(metric: named.Metric) -> Counter:
            return Counter(metric.name, metric.help, metric.labels, registry=registry)

        self._phase = gauge(named.WORKER_PHASE)
        self._role = gauge(named.WORKER_ROLE)
        self._in_flight = gauge(named.WORKER_IN_FLIGHT)
        self._leases = gauge(named.WORKER_LEASES)
        self._queue_depth = gauge(named.WORKER_QUEUE_DEPTH)
        self._in_progress = gauge(named.WORKER_PREFILLS_IN_PROGRESS)
        self._tokens_in_progress = gauge(named.WORKER_PREFILL_TOKENS_IN_PROGRESS)
        self._token_budget = gauge(named.WORKER_PREFILL_TOKEN_BUDGET)
        self._awaited = gauge(named.WORKER_PREFILLS_AWAITED)
        self._tokens_awaited = gauge(named.WORKER_PREFILL_TOKENS_AWAITED)
        self._oldest_awaited = gauge(named.WORKER_OLDEST_PREFILL_AWAITED)
        self._max_sequences = gauge(named.WORKER_MAX_SEQUENCES)
        self._decisions = counter(named.WORKER_DECISIONS)
        self._prompt_tokens = counter(named.WORKER_PROMPT_TOKENS)
        self._uncached_tokens = Histogram(
            named.WORKER_UNCACHED_TOKENS.name,
            named.WORKER_UNCACHED_TOKENS.help,
            registry=registry,
            buckets=named.TOKEN_BOUNDS,
        )
        self._prefills = counter(named.WORKER_PREFILLS)
        self._prefill_seconds = Histogram(
            named.WORKER_PREFILL_SECONDS.name, named.WORKER_PREFILL_SECONDS.help, registry=registry, buckets=_SECONDS
        )
        self._prefill_engine_seconds = counter(named.WORKER_PREFILL_ENGINE_SECONDS)
        self._encode_seconds = Histogram(
            named.WORKER_ENCODE_SECONDS.name, named.WORKER_ENCODE_SECONDS.help, registry=registry, buckets=_SECONDS
        )
        self._late_leases = counter(named.WORKER_LATE_LEASES)
        self._events_lost = counter(named.WORKER_KV_EVENTS_LOST)
        for reason in PrefillReason:
            self._decisions.labels(path=_path(reason), reason=reason.value)
        for outcome in PrefillOutcome:
            self._prefills.labels(outcome=outcome.value)

    def show(self, state: WorkerState, queue_depth: int | None, facts: EngineFacts) -> None:
        """Set the gauges; what is unknown is NaN, not 0."""
        for phase in WorkerPhase:
            self._phase.labels(phase=phase.value).set(phase is state.phase)
        for role in Role:
            self._role.labels(role=role.value).set(role is state.role)
        self._in_flight.set(state.in_flight)
        self._leases.set(state.leases)
        self._queue_depth.set(_or_nan(queue_depth))
        self._token_budget.set(_or_nan(state.prefill_token_budget))
        self._max_sequences.set(_or_nan(facts.max_running_requests))

    def show_prefills(self, in_progress: Collection[int], awaited: AwaitedPrefills) -> None:
        """Set the gauges of remote prefills: prompt lengths taken from the queue, and what was requested there."""
        self._in_progress.set(len(in_progress))
        self._tokens_in_progress.set(sum(in_progress))
        self._awaited.set(awaited.requests)
        self._tokens_awaited.set(awaited.prompt_tokens)
        self._oldest_awaited.set(awaited.oldest_s)

    def decided(self, reason: PrefillReason, prompt_tokens: int, new_tokens: int | None) -> None:
        """One client request was prefilled where ``reason`` says; ``new_tokens``: not cached here, None: not known."""
        self._decisions.labels(path=_path(reason), reason=reason.value).inc()
        if reason is PrefillReason.LEASE_SPENT:
            self._late_leases.inc()
        if new_tokens is not None:
            self.given(prompt_tokens, new_tokens)

    def given(self, prompt_tokens: int, new_tokens: int) -> None:
        """One client request's prompt, of which ``new_tokens`` were not cached here."""
        self._prompt_tokens.inc(prompt_tokens)
        self._uncached_tokens.observe(new_tokens)

    def prefilled(self, outcome: PrefillOutcome, seconds: float | None) -> None:
        """One prefill for another worker ended; ``seconds`` if the engine did it."""
        self._prefills.labels(outcome=outcome.value).inc()
        if seconds is not None:
            self._prefill_seconds.observe(seconds)

    def encoded(self, seconds: float) -> None:
        """The images of one request were encoded."""
        self._encode_seconds.observe(seconds)

    def lost_kv_events(self, batches: int) -> None:
        """So many batches of the engine's KV events are gone."""
        self._events_lost.inc(batches)

    def engine_worked(self, seconds: float) -> None:
        """So long the engine had prefills for others, and it was not counted yet."""
        self._prefill_engine_seconds.inc(seconds)


def _or_nan(value: int | None) -> float:
    return float("nan") if value is None else value


def _path(reason: PrefillReason) -> str:
    return "remote" if reason is PrefillReason.REMOTE else "local"
