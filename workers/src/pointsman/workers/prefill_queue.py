"""The prefill queue of one service on NATS JetStream: the stream, publishing to it, its depth, and pulling from it.

One work-queue stream per service and one durable consumer per KV-compatibility group (a work-queue stream refuses
consumers that overlap). The stream refuses new requests when it is full (``discard: new``): the decode worker then
prefills locally.

Two habits of JetStream shape the puller. A pull that is withdrawn can take a message with it, which then lies in
nobody's hands for a whole ack wait: so pulls are short and always end by themselves. And a ``nak`` puts a message
behind later ones and counts as a delivery: so nothing is ever given back.
"""

import asyncio
import json
import logging
from typing import Any

import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js import JetStreamContext
from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DeliverPolicy,
    StreamConfig,
)

from pointsman.api.protocol import names
from pointsman.api.protocol.prefill import (
    PULL_EXPIRES_SECONDS,
    PrefillRequest,
    stream_configuration,
)
from pointsman.workers.errors import PromptTooLarge, QueueFull, QueueUnavailable
from pointsman.workers.nats_link import NatsLink
from pointsman.workers.settings import WorkerSettings
from pointsman.workers.types import QueueDepth

log = logging.getLogger(__name__)

PUBLISH_TIMEOUT_S = 1.0
DEPTH_TIMEOUT_S = 0.25
STREAM_FULL = 10077  # JetStream's JSStreamStoreFailedF: "maximum messages exceeded"

NATS_ERRORS = (nats.errors.Error, TimeoutError, OSError)


class PrefillQueue:
    """What a decode worker does with the queue."""

    def __init__(self, settings: WorkerSettings, link: NatsLink) -> None:
        self._settings = settings
        self._link = link
        self.stream = names.prefill_stream(settings.namespace, settings.service_uid)
        self.subject = names.prefill_subject(settings.namespace, settings.service_uid, settings.kv_compatibility)
        self.consumer = names.prefill_consumer(settings.kv_compatibility)
        self._publishing = 0
        self._published = 0
        self.last_depth: QueueDepth | None = None  # as last seen; None: it could not be seen
        link.on_connected(self._ensure)

    async def publish(self, request: PrefillRequest) -> int:
        """Put a request on the queue; returns its sequence number when the stream has it.

        Raises QueueFull, PromptTooLarge, or QueueUnavailable; after the last of these the request may be
        on the queue or not.
        """
        frame = request.encode()
        client = self._link.client
        if len(frame) > client.max_payload:
            raise PromptTooLarge(f"a request of {len(frame)} bytes; NATS takes {client.max_payload}")
        self._publishing += 1
        try:
            stored = await self._link.jetstream.publish(
                self.subject,
                frame,
                timeout=PUBLISH_TIMEOUT_S,
                stream=self.stream,
                headers={"Nats-Msg-Id": request.request_id},
            )
        except nats.js.errors.APIError as error:
            if error.err_code == STREAM_FULL:
                raise QueueFull(f"stream {self.stream}: {error.description}") from error
            raise QueueUnavailable(f"stream {self.stream}: {error.description}") from error
        except NATS_ERRORS as error:
            raise QueueUnavailable(f"stream {self.stream}: {error or type(error).__name__}") from error
        finally:
            self._publishing -= 1
        self._published += 1
        return stored.seq

    async def withdraw(self, sequence: int) -> None:
        """Take a request off the queue again; one that was delivered or answered is left alone. Best effort."""
        try:
            await self._link.jetstream.delete_msg(self.stream, sequence)
        except (QueueUnavailable, *NATS_ERRORS) as error:
            log.debug("message not withdrawn", extra={"stream": self.stream, "sequence": sequence, "why": str(error)})

    async def depth(self) -> QueueDepth:
        """How long the queue is now; raises QueueUnavailable.

        A burst of requests asks before any of them is on the queue: what this worker is publishing, or has published
        since it asked, counts as waiting.
        """
        published = self._published
        try:
            info = await self._link.client.jetstream(timeout=DEPTH_TIMEOUT_S).consumer_info(self.stream, self.consumer)
        except (QueueUnavailable, *NATS_ERRORS) as error:
            self.last_depth = None
            raise QueueUnavailable(f"consumer {self.consumer}: {error or type(error).__name__}") from error
        waiting = (info.num_pending or 0) + self._publishing + self._published - published
        self.last_depth = QueueDepth(waiting=waiting, in_progress=info.num_ack_pending or 0)
        return self.last_depth

    async def _ensure(self, client: Client) -> None:
        """Create stream and consumer, or bring them to what this version wants. Every worker does, at every connect.

        Where services have NATS logins of their own, the server makes the stream before it lets a worker in, and no
        worker may make or change one: an existing stream is used as it is.
        """
        jetstream = self._link.jetstream
        settings = self._settings
        stream = StreamConfig.from_response(
            stream_configuration(settings.namespace, settings.service_uid, settings.prefill_queue_limit)
        )
        consumer = ConsumerConfig(
            durable_name=self.consumer,
            filter_subject=self.subject,
            ack_policy=AckPolicy.EXPLICIT,
            deliver_policy=DeliverPolicy.ALL,
            ack_wait=settings.ack_wait_seconds,
            max_ack_pending=settings.prefill_queue_limit,
            max_deliver=-1,
        )
        try:
            await self._ensure_stream(jetstream, stream)
            await jetstream.add_consumer(self.stream, consumer)
        except NATS_ERRORS as error:
            raise QueueUnavailable(f"stream {self.stream}: {error or type(error).__name__}") from error

    async def _ensure_stream(self, jetstream: JetStreamContext, desired: StreamConfig) -> None:
        """Create the stream, or update it if it differs. One that is equal is left alone, which needs no permission."""
        try:
            found = (await jetstream.stream_info(self.stream)).config
        except nats.js.errors.NotFoundError:
            await jetstream.add_stream(desired)
            return
        if all(
            getattr(found, field) == getattr(desired, field)
            for field in ("subjects", "max_msgs", "max_age", "duplicate_window")
        ):
            return
        try:
            await jetstream.update_stream(desired)
        except nats.errors.TimeoutError:  # what NATS does not permit stays without an answer
            log.info(
                "stream keeps its settings: nats did not answer the update, which it may not permit",
                extra={"stream": self.stream},
            )


class PrefillPuller:
    """What a prefill worker does with the queue: take requests, one at a time, in order."""

    def __init__(self, queue: PrefillQueue, link: NatsLink) -> None:
        self._queue = queue
        self._link = link
        self._arrived: asyncio.Queue[Msg] = asyncio.Queue()
        self._subscription: Subscription | None = None
        self._inbox = ""
        self._client: Client | None = None
        self._pulls = 0
        link.on_connected(self._subscribe)

    async def pull(self) -> Msg | None:
        """The next request, or None if none came within a pull's life; raises QueueUnavailable.

        Not to be cancelled: a message may be on its way until the server says that the pull has ended.
        """
        while not self._arrived.empty():  # of an earlier pull whose end was not heard
            message = self._arrived.get_nowait()
            if _status(message) is None:
                return message
        self._pulls += 1
        reply = f"{self._inbox}.{self._pulls}"
        ask = {"batch": 1, "expires": int(PULL_EXPIRES_SECONDS * 1e9)}
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._queue.stream}.{self._queue.consumer}"
        try:
            await self._link.client.publish(subject, json.dumps(ask).encode(), reply=reply)
        except NATS_ERRORS as error:
            raise QueueUnavailable(f"pull: {error or type(error).__name__}") from error
        while True:
            try:
                # The server ends every pull with a message or a status; silence means that the connection was lost.
                async with asyncio.timeout(PULL_EXPIRES_SECONDS + 1.0):
                    message = await self._arrived.get()
            except TimeoutError:
                return None
            status = _status(message)
            if status is None:
                return message
            if message.subject != reply:
                continue
            if status not in ("404", "408"):
                raise QueueUnavailable(f"pull: {status} {(message.headers or {}).get('Description', '')}")
            return None

    async def _subscribe(self, client: Client) -> None:
        if client is self._client:
            return  # nats-py keeps subscriptions over a reconnect
        self._client = client
        self._inbox = client.new_inbox()
        self._subscription = await client.subscribe(f"{self._inbox}.*", cb=self._arrive)

    async def _arrive(self, message: Msg) -> None:
        await self._arrived.put(message)


def _status(message: Msg) -> str | None:
    """The status of a message that is about a pull rather than a request; None for a request."""
    headers: dict[str, Any] | None = message.headers
    return None if message.data or not headers else headers.get("Status")
