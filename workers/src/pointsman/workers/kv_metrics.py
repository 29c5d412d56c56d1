"""Publishes this worker's KvMetrics on NATS: at every change, and at least every half second."""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

import nats.errors

from pointsman.api.protocol.kv import KV_METRICS_INTERVAL_SECONDS, KvMetrics
from pointsman.api.protocol.names import Role, kv_metrics_subject
from pointsman.workers.engine import Engine
from pointsman.workers.errors import QueueUnavailable
from pointsman.workers.nats_link import NatsLink
from pointsman.workers.settings import WorkerSettings

log = logging.getLogger(__name__)

LOOK_S = 0.1  # how often the engine's gauges are looked at for a change


class PublishedState(Protocol):
    """What is published that the engine does not know."""

    @property
    def instance(self) -> str:
        """Of this process."""

    @property
    def role(self) -> Role | None:
        """Of this worker."""

    @property
    def queue_depth(self) -> int | None:
        """Requests waiting in the prefill queue, as last seen."""


class KvMetricsPublisher:
    """``clock``: monotonic seconds."""

    def __init__(
        self,
        settings: WorkerSettings,
        engine: Engine,
        link: NatsLink,
        state: PublishedState,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._link = link
        self._state = state
        self._clock = clock
        self._sequence = 0

    def current(self) -> KvMetrics:
        """The metrics now, with the next sequence number."""
        facts, load = self._engine.facts, self._engine.load()
        active: int | None = None
        if load.kv_usage is not None and facts.total_kv_blocks is not None:
            active = round(load.kv_usage * facts.total_kv_blocks)
        return KvMetrics(
            worker=self._settings.worker,
            instance=self._state.instance,
            sequence=self._sequence,
            role=self._state.role,
            request_active_slots=load.running,
            request_total_slots=facts.max_running_requests,
            kv_active_blocks=active,
            kv_total_blocks=facts.total_kv_blocks,
            num_requests_waiting=load.waiting,
            gpu_cache_usage_perc=load.kv_usage,
            gpu_prefix_cache_hit_rate=load.prefix_hit_rate,
            prefill_queue_depth=self._state.queue_depth,
        )

    async def run(self) -> None:
        """Publish until cancelled."""
        settings = self._settings
        subject = kv_metrics_subject(settings.namespace, settings.service_uid, settings.worker)
        last: KvMetrics | None = None
        last_s = float("-inf")
        while True:
            await self._link.ready.wait()
            metrics = self.current()
            now_s = self._clock()
            due = now_s - last_s >= KV_METRICS_INTERVAL_SECONDS - LOOK_S
            if due or metrics != last:
                try:
                    await self._link.client.publish(subject, metrics.wire().encode())
                except (QueueUnavailable, nats.errors.Error) as error:
                    log.info("KV metrics not published", extra={"why": str(error)})
                else:
                    self._sequence += 1
                    last, last_s = metrics.model_copy(update={"sequence": self._sequence}), now_s
            await asyncio.sleep(LOOK_S)
