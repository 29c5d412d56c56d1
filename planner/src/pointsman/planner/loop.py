"""The live loop for services: a task for each, which evaluates it at the interval that its policy asks for."""

import asyncio
import logging
from collections.abc import Callable, Collection

from pointsman.api.v1alpha1.llmservice import LLMService
from pointsman.api.v1alpha1.plannerpolicy import PlannerPolicy
from pointsman.kube import resources
from pointsman.kube.client import Kube
from pointsman.kube.errors import KubeError
from pointsman.kube.events import EventRecorder, Reference
from pointsman.kube.pods import ServiceKey
from pointsman.planner import loops, memory
from pointsman.planner.cluster import Cluster
from pointsman.planner.core.state import State
from pointsman.planner.evaluation import Evaluator, target_prefix
from pointsman.planner.metrics import PlannerMetrics
from pointsman.planner.plan_writer import PlanWriter
from pointsman.planner.prometheus_secrets import PrometheusSecrets
from pointsman.planner.routing_publisher import RoutingPublisher
from pointsman.planner.scraper import Scraper
from pointsman.planner.service_health import ServiceHealth
from pointsman.planner.service_record import ServiceRecord
from pointsman.planner.source import Source
from pointsman.planner.steady_time import SteadyTime
from pointsman.process.clock import SYSTEM_CLOCK, Clock

log = logging.getLogger(__name__)


class Planner:
    """Plans for every service with a policy; one task a service."""

    def __init__(
        self,
        *,
        kube: Kube,
        cluster: Cluster,
        scraper: Scraper,
        events: EventRecorder,
        metrics: PlannerMetrics,
        leads: Callable[[], bool],
        prometheus_timeout_s: float = 5.0,
        prometheus_urls: Collection[str] = (),
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._kube = kube
        self._cluster = cluster
        self._scraper = scraper
        self._events = events
        self._metrics = metrics
        self._leads = leads
        self._secrets = PrometheusSecrets(kube, clock)
        self._prometheus_timeout_s = prometheus_timeout_s
        self._prometheus_urls = prometheus_urls
        self._clock = clock
        self._time = SteadyTime(clock)
        self._health = ServiceHealth(kube, cluster, metrics, clock)
        self._evaluator = Evaluator(kube, cluster, metrics, self._health, self._time, clock)

    async def run(self) -> None:
        """Until cancelled. A service that gets a policy is planned within a second, one that loses it is left alone."""

        async def also() -> None:
            if self._leads():
                await self._health.report_unplanned()

        await loops.run_each(lambda: {key for key, _, _ in self._cluster.planned()}, self._plan, self._forget, also)

    def _forget(self, key: ServiceKey) -> None:
        self._metrics.forget(*key)
        self._scraper.keep(set(), target_prefix(key))  # should it come back, its old pages would be a long window

    async def _plan(self, key: ServiceKey) -> None:
        record: ServiceRecord | None = None
        failures = 0  # in a row
        try:
            while True:
                wait_s, failed = loops.LOOK_FOR_SERVICES_S, ""
                found = next(((s, p) for k, s, p in self._cluster.planned() if k == key), None)
                try:
                    if found is not None and self._leads():
                        record = await self._record_of(key, found[0], record)
                        wait_s = await self._evaluate(key, *found, record)
                except KubeError as error:
                    failed = str(error)
                    log.warning("API server not reached", extra={"service": "/".join(key), "why": str(error)})
                except Exception as error:  # one service's bad luck must not stop its planning for good, nor another's
                    failed = f"{type(error).__name__}: {error}"
                    log.exception("evaluation failed", extra={"service": "/".join(key)})
                failures = failures + 1 if failed else 0
                if failed and (record is None or not record.metrics_published):
                    self._metrics.unknown(*key)  # the figures of an earlier evaluation are none of now
                if failures >= loops.LOOKS_FAILED and found is not None:
                    await self._health.report_failure(key, found[0], record, failed)
                await asyncio.sleep(wait_s)
        finally:
            if record is not None:
                record.source.close()

    async def _evaluate(
        self, key: ServiceKey, service: LLMService, policy: PlannerPolicy, record: ServiceRecord
    ) -> float:
        record.metrics_published = False
        with self._metrics.tick_seconds.time():
            return await self._evaluator.evaluate(key, service, policy, record)

    async def _record_of(self, key: ServiceKey, service: LLMService, record: ServiceRecord | None) -> ServiceRecord:
        """``record`` if it is of this service, else what is remembered of it."""
        if record is not None and record.uid == service.metadata.uid:
            return record
        if record is not None:
            record.source.close()
        return await self._remembered(key, service.metadata.uid)

    async def _remembered(self, key: ServiceKey, uid: str) -> ServiceRecord:
        """What is known of a service, by the process that planned for it before."""
        state, sequence = await memory.load(self._kube, *key, uid)
        last = await memory.load_last(self._kube, *key, uid)
        source = Source(
            target_prefix(key),
            self._scraper,
            self._secrets,
            self._prometheus_timeout_s,
            self._clock,
            self._prometheus_urls,
        )
        resource = resources.LLM_SERVICES
        of = Reference(resource.api_version, resource.kind, *key, uid)
        plans = PlanWriter(
            self._kube, self._events, self._metrics, self._clock, of, lambda: self._cluster.plans.by(key), sequence
        )
        published = await memory.load_publications(self._kube, *key, uid)
        routing = RoutingPublisher(self._kube, key, uid, published)
        record = ServiceRecord(uid, state or State(), source, plans, routing)
        if not isinstance(last, memory.NoLast):
            self._time.not_before(last.observation.at_s)
        return record
