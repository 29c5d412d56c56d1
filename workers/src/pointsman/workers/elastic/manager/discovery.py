"""Which instances a group has: from NATS, where each says that it is there, or from a file."""

import asyncio
import logging
import math
from pathlib import Path

from nats.aio.client import Client
from nats.aio.msg import Msg
from pydantic import ValidationError

from pointsman.api.protocol.elastic import SILENT_SECONDS, InstancePresence
from pointsman.api.protocol.names import elastic_presence_subject
from pointsman.process.clock import SYSTEM_CLOCK, Clock
from pointsman.workers.elastic.manager.links import Links
from pointsman.workers.nats_link import NatsLink
from pointsman.workers.settings import WorkerSettings

log = logging.getLogger(__name__)

LOOK_S = 0.5


async def follow_file(path: Path, links: Links) -> None:
    """Keep links to the URLs in ``path``, one a line, until cancelled. The file is read again and again."""
    while True:
        try:
            lines = (await asyncio.to_thread(path.read_text)).split()
        except OSError as error:
            log.warning("file of instances not readable", extra={"why": str(error)})
        else:
            links.look(lines)
        await asyncio.sleep(LOOK_S)


async def follow_presence(settings: WorkerSettings, links: Links, clock: Clock = SYSTEM_CLOCK) -> None:
    """Keep links to the instances that say that they are there, until cancelled.

    An instance that is linked stays, whatever NATS says: without NATS only new ones are not found.
    """
    heard_s: dict[str, float] = {}
    token = settings.control_token.get_secret_value()
    subject = elastic_presence_subject(settings.namespace, settings.service_uid)

    async def heard(message: Msg) -> None:
        try:
            presence = InstancePresence.model_validate_json(message.data)
        except ValidationError as error:
            log.warning("presence not understood", extra={"subject": subject, "why": str(error)})
            return
        if not presence.proves(token):
            log.warning("an instance without the group's control token is ignored", extra={"url": presence.url})
            return
        new = presence.url not in heard_s
        heard_s[presence.url] = clock.monotonic_s()
        if new:
            links.look({*heard_s, *links.linked})

    subscribed: list[Client] = []

    async def subscribe(client: Client) -> None:
        if client not in subscribed:  # a client that reconnects keeps its subscriptions
            await client.subscribe(subject, cb=heard)
            subscribed[:] = [client]

    nats = NatsLink(settings)
    nats.on_connected(subscribe)
    nats.start()
    connected_s = math.inf
    try:
        while True:
            oldest_s = clock.monotonic_s() - SILENT_SECONDS
            if not nats.ready.is_set():
                connected_s = math.inf
            elif connected_s == math.inf:
                connected_s = clock.monotonic_s()
            if oldest_s > connected_s:  # else nothing could be heard
                for url in [url for url, at_s in heard_s.items() if at_s < oldest_s]:
                    del heard_s[url]
            links.look({*heard_s, *links.linked})
            await clock.sleep(LOOK_S)
    finally:
        await nats.stop()
