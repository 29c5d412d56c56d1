"""Lets the pods of each service into the chart's NATS server, with rights to the subjects of their service alone.

It runs beside the server, in its pod. The server asks about every connection whose login is not in its configuration.
All that is needed to answer is in the login itself and in one key, so neither operator nor API server need be up.
Before a service's pod is let in, the service's stream is made: its pods may use it, but may not make one.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import StreamConfig
from prometheus_client import CollectorRegistry, Counter

from pointsman.api.protocol import prefill
from pointsman.api.protocol.names import address_url
from pointsman.operator.core.nats_claims import AuthorizationRequest, Issuer, MalformedRequest
from pointsman.operator.core.nats_logins import (
    AUTHORIZER_USER,
    OPERATOR_USER,
    ServiceUser,
    issuer_seed,
    password_of,
    permissions,
    recognize,
)
from pointsman.operator.nats_settings import NatsServerSettings
from pointsman.process.entry import run_process
from pointsman.process.health import HealthServer
from pointsman.process.lifetime import Lifetime

log = logging.getLogger("pointsman.operator.nats_authorizer")

REQUESTS_SUBJECT: Final = "$SYS.REQ.USER.AUTH"
RETRY_S: Final = 0.25
STREAM_TIMEOUT_S: Final = 2.0


class NatsAuthorizer:
    """Answers the server's requests while :meth:`run` runs."""

    def __init__(
        self,
        *,
        url: str,
        keys: tuple[str, ...],
        earlier_versions: bool,
        registry: CollectorRegistry,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.listening = False
        """Whether the server's requests are heard now."""
        self._url = url
        self._keys = keys
        self._earlier_versions = earlier_versions
        self._clock = clock
        self._issuer = Issuer(issuer_seed(keys[0]))
        self._streams: set[ServiceUser] = set()  # whose stream is as it should be, while the connection lasts
        self._client = Client()
        self._answers = Counter(
            "pointsman_nats_authorizations_total",
            "Connections that NATS sent for authentication.",
            ["answer"],
            registry=registry,
        )
        for answer in ("allowed", "refused", "stream_unavailable"):
            self._answers.labels(answer)

    async def run(self) -> None:
        """Connect, and answer until cancelled. Connections that are lost are made anew, without end."""
        while True:
            closed = asyncio.Event()
            authorizer, client = Client(), Client()
            try:
                await self._connect(client, OPERATOR_USER, closed)
                self._client = client
                await self._connect(authorizer, AUTHORIZER_USER, closed)
                await authorizer.subscribe(REQUESTS_SUBJECT, cb=self._answer)
                for _ in range(2):  # nats-py sends a ping ahead of a subscription that it has not sent yet
                    await authorizer.flush()
                self.listening = True
                log.info("authenticating connections of nats", extra={"nats": self._url})
                await closed.wait()
            except (nats.errors.Error, OSError, TimeoutError) as error:
                log.info("nats not reachable", extra={"nats": self._url, "why": str(error) or type(error).__name__})
            finally:
                self.listening = False
                self._streams.clear()
                for each in (authorizer, client):
                    await each.close()
            await asyncio.sleep(RETRY_S)

    async def _connect(self, client: Client, user: str, closed: asyncio.Event) -> None:
        async def on_closed() -> None:
            closed.set()

        await client.connect(
            self._url,
            user=user,
            password=password_of(self._keys[0], user),
            name="pointsman-nats-authorizer",
            connect_timeout=2,
            allow_reconnect=False,
            error_cb=_silently,
            closed_cb=on_closed,
            disconnected_cb=on_closed,
        )

    async def _answer(self, message: Msg) -> None:
        try:
            request = AuthorizationRequest.decode(message.data)
        except MalformedRequest as error:
            log.error("request of nats not understood", extra={"why": str(error)})
            return
        try:
            await message.respond((await self._decide(request)).encode())
        except nats.errors.Error as error:
            log.warning("answer to nats lost", extra={"why": str(error)})

    async def _decide(self, request: AuthorizationRequest) -> str:
        service = recognize(self._keys, request.user, request.password)
        if service is None:
            self._answers.labels("refused").inc()
            log.warning(
                "connection refused: wrong user or password", extra={"user": request.user, "client": request.client}
            )
            return self._issuer.refuse(request, "wrong user or password", now_s=self._clock())
        try:
            await self._ensure_stream(service)
        except (nats.errors.Error, nats.js.errors.Error, OSError, TimeoutError) as error:
            self._answers.labels("stream_unavailable").inc()
            log.warning(
                "stream not created", extra={"service": str(service), "why": str(error) or type(error).__name__}
            )
            return self._issuer.refuse(request, "the stream of the service cannot be created", now_s=self._clock())
        self._answers.labels("allowed").inc()
        allowed = permissions(service, earlier_versions=self._earlier_versions)
        return self._issuer.allow(request, allowed, now_s=self._clock())

    async def _ensure_stream(self, service: ServiceUser) -> None:
        if not service.has_queue or service in self._streams:
            return
        wanted = prefill.stream_configuration(service.namespace, service.service_uid, service.queue_limit)
        stream = StreamConfig.from_response(wanted)
        jetstream = self._client.jetstream(timeout=STREAM_TIMEOUT_S)
        try:
            await jetstream.add_stream(stream)
        except nats.js.errors.BadRequestError:  # it exists with another configuration
            await jetstream.update_stream(stream)
        self._streams.add(service)


async def _silently(error: Exception) -> None:
    log.debug("nats", extra={"why": str(error)})


async def run(settings: NatsServerSettings) -> int:
    """Run until SIGTERM or SIGINT; returns the exit status."""
    registry = CollectorRegistry()
    async with Lifetime() as life:
        authorizer: NatsAuthorizer | None = None
        if settings.service_keys:
            authorizer = NatsAuthorizer(
                url=address_url("nats", settings.own_host, settings.nats_port),
                keys=settings.service_keys,
                earlier_versions=settings.accepts_earlier_versions,
                registry=registry,
            )
            life.start(authorizer.run(), "authorization")
        else:
            log.warning("no POINTSMAN_NATS_SERVICE_KEY, so all services share one login")

        def why_not_ready() -> str | None:
            return None if authorizer is None or authorizer.listening else "no connection to NATS"

        health = HealthServer(settings.bind_host, settings.bind_port, registry, why_not_ready)
        await life.enter_async_context(health)
        await life.stopping.wait()
    return life.status


def main() -> None:
    """Entry of ``python -m pointsman.operator.nats_authorizer``."""
    run_process(NatsServerSettings, run)


if __name__ == "__main__":
    main()
