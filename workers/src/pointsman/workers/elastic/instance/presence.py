"""Says on NATS that an instance is there, so that whoever manages its group connects to it."""

import asyncio
import logging
from contextlib import suppress

import nats.errors

from pointsman.api.protocol.elastic import PRESENCE_SECONDS, InstancePresence
from pointsman.api.protocol.names import elastic_presence_subject
from pointsman.process.ending import end
from pointsman.workers.elastic.instance.settings import InstanceSettings
from pointsman.workers.errors import QueueUnavailable
from pointsman.workers.nats_link import NatsLink

log = logging.getLogger(__name__)


class Presence:
    """Repeats ``url`` every second while NATS is there. A link that stands does not need it."""

    def __init__(self, settings: InstanceSettings, url: str) -> None:
        self._subject = elastic_presence_subject(settings.namespace, settings.service_uid)
        token = settings.control_token.get_secret_value()
        self._message = InstancePresence.proved(settings.worker, url, token).wire().encode()
        self._link = NatsLink(settings)
        self._repeating: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin; returns at once."""
        self._link.start()
        self._repeating = asyncio.create_task(self._repeat(), name="presence")

    async def stop(self) -> None:
        """Say nothing more."""
        await end(task for task in (self._repeating,) if task is not None)
        await self._link.stop()

    async def _repeat(self) -> None:
        while True:
            await self._link.ready.wait()
            with suppress(QueueUnavailable, nats.errors.Error):
                await self._link.client.publish(self._subject, self._message)
            await asyncio.sleep(PRESENCE_SECONDS)
