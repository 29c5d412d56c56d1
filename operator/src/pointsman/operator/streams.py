"""The prefill queues of services that are gone: their JetStream streams are deleted with them.

Workers make a service's stream; nobody of them is left when it goes. Each deletion has a short connection of its own,
for they are rare. NATS may be down: the service goes all the same, and the stream is tried again for as long as this
process lives. One that stays behind holds nothing that is ever read: its name has the uid of the service.
"""

import asyncio
import logging
import ssl
from typing import Any, Final

import nats
import nats.errors
import nats.js.errors

from pointsman.api.credentials import mask_credentials
from pointsman.api.protocol.names import prefill_stream
from pointsman.operator.core.nats_logins import Login
from pointsman.operator.errors import StreamNotDeleted

log = logging.getLogger(__name__)

PATIENCE_S: Final = 3.0  # so long a service's deletion waits for NATS at most
MOST_REMEMBERED: Final = 1000


class PrefillStreams:
    """Deletes streams of services; what could not be deleted is remembered for :meth:`sweep`."""

    def __init__(self, url: str, login: Login, ca_certificate: str = "") -> None:
        """``ca_certificate``: PEM, of the authority of a ``tls://`` server; empty: public authorities."""
        self._url = url
        self._options: dict[str, Any] = {"user": login.user, "password": login.password} if login.user else {}
        if ca_certificate:
            self._options["tls"] = ssl.create_default_context(cadata=ca_certificate)
        self._left: dict[str, None] = {}  # names, in order of their going

    async def delete(self, namespace: str, service_uid: str) -> None:
        """Delete the stream of one service; one that is not there is no error. Raises StreamNotDeleted."""
        name = prefill_stream(namespace, service_uid)
        try:
            await self._delete(name)
        except StreamNotDeleted:
            self.remember(namespace, service_uid)
            raise

    def remember(self, namespace: str, service_uid: str) -> None:
        """Have :meth:`sweep` delete it."""
        self._left[prefill_stream(namespace, service_uid)] = None
        while len(self._left) > MOST_REMEMBERED:
            del self._left[next(iter(self._left))]

    async def sweep(self) -> None:
        """Try again what was left behind; ends at the first failure, for the others would meet the same."""
        for name in list(self._left):
            try:
                await self._delete(name)
            except StreamNotDeleted as error:
                log.debug("stream not deleted", extra={"stream": name, "why": str(error)})
                return
            log.info("stream of a deleted service is deleted", extra={"stream": name})
            self._left.pop(name, None)

    async def _delete(self, name: str) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                client = await nats.connect(
                    self._url, name="pointsman-operator", allow_reconnect=False, error_cb=_silently, **self._options
                )
                try:
                    await client.jetstream().delete_stream(name)
                except nats.js.errors.NotFoundError:
                    return  # no decode worker ever served, or it was deleted before
                finally:
                    await client.close()
        except (nats.errors.Error, TimeoutError, OSError) as error:
            raise StreamNotDeleted(
                mask_credentials(f"stream {name} at {self._url}: {error or type(error).__name__}")
            ) from error


async def _silently(error: Exception) -> None:
    log.debug("nats", extra={"why": str(error)})
