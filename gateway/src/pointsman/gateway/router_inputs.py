"""What the router knows about the workers, as metrics: their last KV metrics with their age, and the KV index."""

from collections.abc import Callable, Iterator

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pointsman.api.protocol import metrics as names
from pointsman.api.protocol.kv import KvMetrics
from pointsman.gateway.fleet import Fleet
from pointsman.gateway.kv_metrics import KvMetricsFeed

_WORKER_VALUES: tuple[tuple[names.Metric, Callable[[KvMetrics], float | None]], ...] = (
    (names.GATEWAY_WORKER_ACTIVE_SLOTS, lambda m: m.request_active_slots),
    (names.GATEWAY_WORKER_TOTAL_SLOTS, lambda m: m.request_total_slots),
    (names.GATEWAY_WORKER_KV_ACTIVE_BLOCKS, lambda m: m.kv_active_blocks),
    (names.GATEWAY_WORKER_KV_TOTAL_BLOCKS, lambda m: m.kv_total_blocks),
    (names.GATEWAY_WORKER_REQUESTS_WAITING, lambda m: m.num_requests_waiting),
    (names.GATEWAY_WORKER_CACHE_USAGE, lambda m: m.gpu_cache_usage_perc),
    (names.GATEWAY_WORKER_PREFIX_HIT_RATE, lambda m: m.gpu_prefix_cache_hit_rate),
)


class RouterInputs(Collector):
    """Read at every scrape. Only workers of the routable set are labels, so a worker that left is gone from here.

    A value that the worker did not report, or reported too long ago to be used, is absent; the age is not.
    """

    def __init__(self, service: str, fleet: Fleet, feed: KvMetricsFeed) -> None:
        self._service = service
        self._fleet = fleet
        self._feed = feed

    def collect(self) -> Iterator[Metric]:
        """See Collector."""
        age = _gauge(names.GATEWAY_WORKER_METRICS_AGE)
        held = _gauge(names.GATEWAY_WORKER_INDEXED_BLOCKS)
        values = [(_gauge(metric), read) for metric, read in _WORKER_VALUES]
        for worker in self._fleet.workers:
            labels = (self._service, worker.name)
            held.add_metric(labels, self._fleet.index.blocks_held(worker.key))
            newest = self._feed.newest_of(worker)
            if newest is None:
                continue
            age.add_metric(labels, newest.age_s)
            if newest.is_stale:
                continue
            for family, read in values:
                value = read(newest.metrics)
                if value is not None:
                    family.add_metric(labels, value)
        yield age
        yield held
        yield from (family for family, _ in values)
        index = self._fleet.index
        blocks = _gauge(names.GATEWAY_INDEX_BLOCKS)
        blocks.add_metric((self._service,), index.pairs)
        yield blocks
        metric = names.GATEWAY_INDEX_EVICTIONS
        evictions = CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
        evictions.add_metric((self._service,), index.evictions)
        yield evictions

    def describe(self) -> Iterator[Metric]:
        """No names ahead of time: two of these in one registry would be a defect that collect shows."""
        return iter(())


def _gauge(metric: names.Metric) -> GaugeMetricFamily:
    return GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
