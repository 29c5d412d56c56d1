"""The connection of one worker to NATS: made in the background, kept for ever, never in a request's way."""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable

import nats.errors
from nats.aio.client import Client
from nats.js import JetStreamContext

from pointsman.api.credentials import mask_credentials
from pointsman.api.protocol.names import reply_inbox_prefix
from pointsman.process.ending import end
from pointsman.workers.errors import QueueUnavailable
from pointsman.workers.settings import NatsSettings

log = logging.getLogger(__name__)

RECONNECT_WAIT_S = 0.25
PING_S = 5  # a half-open connection is noticed after two of these
JETSTREAM_TIMEOUT_S = 2.0


class NatsLink:
    """Connects to ``settings.nats_url`` and reconnects without end.

    ``on_connected`` callbacks run after every connect and reconnect, ``on_lost`` ones at every loss.
    """

    def __init__(self, settings: NatsSettings) -> None:
        self._settings = settings
        self._shown_url = mask_credentials(settings.nats_url or "")
        self._client: Client | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._set_up: asyncio.Task[None] | None = None
        self._on_connected: list[Callable[[Client], Awaitable[None]]] = []
        self._on_lost: list[Callable[[], None]] = []
        self.ready = asyncio.Event()  # connected, and every on_connected callback has run

    @property
    def is_connected(self) -> bool:
        """Whether a message published now leaves this process."""
        return self._client is not None and self._client.is_connected

    @property
    def client(self) -> Client:
        """The client; raises QueueUnavailable while there is no connection."""
        if self._client is None or not self._client.is_connected:
            raise QueueUnavailable(f"no connection to NATS at {self._shown_url}")
        return self._client

    @property
    def jetstream(self) -> JetStreamContext:
        """JetStream on this connection; raises QueueUnavailable while there is none."""
        return self.client.jetstream(timeout=JETSTREAM_TIMEOUT_S)

    def on_connected(self, callback: Callable[[Client], Awaitable[None]]) -> None:
        """Call after every connect (a new client) and reconnect (the same one, its subscriptions kept)."""
        self._on_connected.append(callback)

    def on_lost(self, callback: Callable[[], None]) -> None:
        """Call when the connection is lost."""
        self._on_lost.append(callback)

    def start(self) -> None:
        """Begin to connect; returns at once. Without a URL there is nothing to connect to."""
        if self._settings.nats_url is not None:
            self._keeper = asyncio.create_task(self._keep(self._settings.nats_url), name="nats connection")

    async def stop(self) -> None:
        """Close the connection, whatever state it is in."""
        self.ready.clear()
        await end(task for task in (self._keeper, self._set_up) if task is not None)
        if self._client is not None:
            await self._client.close()

    async def _keep(self, url: str) -> None:
        """nats-py reconnects by itself but gives up for good on some errors (authorization): then begin anew."""
        settings = self._settings
        password = None if settings.nats_password is None else settings.nats_password.get_secret_value()
        ca = settings.nats_ca_certificate
        try:
            tls = ssl.create_default_context(cadata=ca) if ca else None
        except (ssl.SSLError, TypeError) as error:  # TypeError: it is not ASCII
            log.error(
                "certificate of the authority of nats not readable, prompts are prefilled locally",
                extra={"nats": self._shown_url, "why": str(error)},
            )
            return
        prefix = reply_inbox_prefix(settings.namespace, settings.service_uid, settings.worker)
        while True:
            closed = asyncio.Event()

            async def on_closed(closed: asyncio.Event = closed) -> None:
                closed.set()

            client = Client()
            self._client = client
            try:
                await client.connect(
                    servers=[url],
                    name=f"pointsman-worker {settings.namespace}/{settings.worker}",
                    user=settings.nats_user,
                    password=password,
                    tls=tls,
                    inbox_prefix=prefix.encode(),
                    connect_timeout=2,
                    max_reconnect_attempts=-1,
                    reconnect_time_wait=RECONNECT_WAIT_S,  # type: ignore[arg-type]  # any number of seconds works
                    ping_interval=PING_S,
                    max_outstanding_pings=2,
                    error_cb=self._error,
                    disconnected_cb=self._lost,
                    reconnected_cb=self._connected,
                    closed_cb=on_closed,
                )
            except (OSError, nats.errors.Error, TimeoutError) as error:
                log.warning(
                    "nats not reachable", extra={"nats": self._shown_url, "why": str(error) or type(error).__name__}
                )
                await client.close()
            else:
                await self._connected()
                await closed.wait()
            await self._lost()
            await asyncio.sleep(RECONNECT_WAIT_S)

    async def _connected(self) -> None:
        log.info("connected to nats", extra={"nats": self._shown_url})
        if self._set_up is not None:
            self._set_up.cancel()
        self._set_up = asyncio.create_task(self._run_callbacks(), name="nats set-up")

    async def _run_callbacks(self) -> None:
        while self.is_connected:
            try:
                for callback in self._on_connected:
                    await callback(self.client)
            except (QueueUnavailable, nats.errors.Error, TimeoutError) as error:
                log.warning("nats connected but not usable yet", extra={"why": str(error) or type(error).__name__})
                await asyncio.sleep(RECONNECT_WAIT_S)
                continue
            self.ready.set()
            return

    async def _lost(self) -> None:
        if self.ready.is_set():
            log.warning("nats lost, prompts are prefilled locally until it is back", extra={"nats": self._shown_url})
        self.ready.clear()
        for callback in self._on_lost:
            callback()

    async def _error(self, error: Exception) -> None:
        log.debug("nats", extra={"why": str(error) or type(error).__name__})
