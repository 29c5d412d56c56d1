"""The newest KvMetrics of every worker of the service, from NATS. What is old is unknown, not what it was."""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from pydantic import ValidationError

from pointsman.api.protocol.kv import KV_METRICS_STALE_SECONDS, KvMetrics
from pointsman.api.protocol.names import kv_metrics_subject
from pointsman.gateway.settings import Settings
from pointsman.gateway.types import UNKNOWN_LOAD, Load, Worker

log = logging.getLogger(__name__)

CONNECT_RETRY_S = 1.0
PING_S = 5  # a half-open connection is noticed after two of these


class Newest(NamedTuple):
    """The last metrics of one worker and how long ago they came."""

    age_s: float
    metrics: KvMetrics

    @property
    def is_stale(self) -> bool:
        """Too old to be believed: the values are unknown."""
        return self.age_s > KV_METRICS_STALE_SECONDS


class KvMetricsFeed:
    """Subscribes to ``pointsman.kv.<namespace>.<service uid>.*`` and remembers the newest of each worker."""

    def __init__(self, settings: Settings, *, clock: Callable[[], float]) -> None:
        self._settings = settings
        self._clock = clock
        self._newest: dict[str, tuple[float, KvMetrics]] = {}

    def newest_of(self, worker: Worker) -> Newest | None:
        """The last metrics of ``worker``, however old; None when there never were any."""
        found = self._newest.get(worker.name)
        return None if found is None else Newest(self._clock() - found[0], found[1])

    def load_of(self, worker: Worker) -> Load:
        """What ``worker`` published within the last KV_METRICS_STALE_SECONDS."""
        found = self._newest.get(worker.name)
        if found is None or self._clock() - found[0] > KV_METRICS_STALE_SECONDS:
            return UNKNOWN_LOAD
        metrics = found[1]
        return Load(
            kv_usage=metrics.gpu_cache_usage_perc,
            waiting=metrics.num_requests_waiting,
            running=metrics.request_active_slots,
            kv_active_blocks=metrics.kv_active_blocks,
        )

    def take(self, data: bytes) -> None:
        """One message. Older ones of the same instance (NATS keeps no order over reconnects) are dropped."""
        try:
            metrics = KvMetrics.model_validate_json(data)
        except ValidationError as error:
            log.warning("kv metrics not understood", extra={"why": str(error)})
            return
        before = self._newest.get(metrics.worker)
        if before is not None and before[1].instance == metrics.instance and before[1].sequence >= metrics.sequence:
            return
        self._newest[metrics.worker] = (self._clock(), metrics)
        self._forget_old()

    async def run(self, service_uid: Callable[[], Awaitable[str]]) -> None:
        """Subscribe once the service's uid is known; connect again for ever. Ends by cancellation.

        nats-py reconnects by itself, but closes for good on most errors that the server sends (credentials that
        expired, too many connections): then a new client begins.
        """
        subject = kv_metrics_subject(self._settings.namespace, await service_uid())
        while True:
            try:
                await self._follow(subject)
            except (nats.errors.Error, OSError, TypeError, TimeoutError) as error:  # TypeError: a CA that is not ASCII
                log.warning("nats not reachable", extra={"why": str(error) or type(error).__name__})
            await asyncio.sleep(CONNECT_RETRY_S)

    async def _follow(self, subject: str) -> None:
        """Connect and take messages until the client closes.

        Raises nats.errors.Error, OSError, TimeoutError, and TypeError for a CA that is not ASCII.
        """
        settings = self._settings
        if settings.nats_url is None:
            raise RuntimeError("kv metrics need nats_url")
        closed = asyncio.Event()

        async def on_closed() -> None:
            closed.set()

        async def failed(error: Exception) -> None:
            log.warning("nats", extra={"why": str(error) or type(error).__name__})

        async def received(message: Msg) -> None:
            self.take(message.data)

        ca = settings.nats_ca_certificate
        tls = ssl.create_default_context(cadata=ca) if ca else None
        client = Client()
        try:
            await client.connect(
                settings.nats_url,
                user=settings.nats_user,
                password=settings.nats_password.get_secret_value() if settings.nats_password is not None else None,
                tls=tls,
                name=f"pointsman-gateway {settings.namespace}/{settings.service}",
                max_reconnect_attempts=-1,
                reconnect_time_wait=1,
                ping_interval=PING_S,
                max_outstanding_pings=2,
                error_cb=failed,
                closed_cb=on_closed,
            )
            await client.subscribe(subject, cb=received)
            log.info("kv metrics followed", extra={"subject": subject})
            await closed.wait()
            log.warning("nats closed the connection", extra={"why": str(client.last_error)})
        finally:
            await client.close()

    def _forget_old(self) -> None:
        """Workers that fell silent long ago, so that a service's life does not fill memory with pod names."""
        if len(self._newest) > 1024:
            oldest_s = self._clock() - KV_METRICS_STALE_SECONDS
            self._newest = {name: kept for name, kept in self._newest.items() if kept[0] >= oldest_s}
