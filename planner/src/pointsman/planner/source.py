"""Reading pods by the source that the policy names: their own /metrics, or a Prometheus that scrapes them."""

from pointsman.api.v1alpha1.plannerpolicy import MetricsSource, PlannerPolicy
from pointsman.kube.clock import Clock
from pointsman.planner.cluster import Target
from pointsman.planner.prometheus import Prometheus, PrometheusReadings
from pointsman.planner.scraper import Scraper


class Source:
    """Of one object that is planned; ``prefix``: of the names of its targets."""

    def __init__(self, prefix: str, scraper: Scraper, timeout_s: float, clock: Clock) -> None:
        self._prefix = prefix
        self._scraper = scraper
        self._timeout_s = timeout_s
        self._clock = clock
        self._prometheus: PrometheusReadings | None = None

    async def read(
        self, namespace: str, policy: PlannerPolicy, targets: dict[str, Target]
    ) -> Scraper | PrometheusReadings:
        """Look at the pods; ``targets`` by name."""
        metrics = policy.spec.metrics
        if metrics.source is MetricsSource.DIRECT:
            self._prometheus = None
            self._scraper.keep(set(targets), self._prefix)
            await self._scraper.scrape({name: target.url for name, target in targets.items()})
            return self._scraper
        url = str(metrics.prometheus_url)
        self._scraper.keep(set(), self._prefix)
        if self._prometheus is None or self._prometheus.server.url != url:
            self._prometheus = PrometheusReadings(Prometheus(url, self._timeout_s), self._clock)
        await self._prometheus.read(namespace, {name: target.pod.metadata.name for name, target in targets.items()})
        return self._prometheus

    def forget(self) -> None:
        """Should it come back, its old pages would be a long window."""
        self._scraper.keep(set(), self._prefix)
