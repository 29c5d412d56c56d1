"""The message on the prefill queue and its answer.

A request is one frame: 4 bytes little-endian length of the JSON head, the head, then the token ids as little-endian
u32 (a JSON list of 32 768 ids would be three times as large, and NATS's ``max_payload`` is 1 MiB).
The answer is JSON, published on ``reply_to``.
"""

import sys
from array import array
from enum import StrEnum
from typing import Any, Final

from pydantic import Field, ValidationError

from pointsman.api.protocol import names
from pointsman.api.protocol.control import Wire

ACK_WAIT_SECONDS: Final = 5.0  # a dead prefill worker's request is redelivered after this
HEARTBEAT_SECONDS: Final = 1.5  # in_progress while a prefill runs longer
PULL_EXPIRES_SECONDS: Final = 0.5  # a pull is never withdrawn: it ends by itself
PRESENCE_SECONDS: Final = 0.5  # a serving prefill worker says so this often
PRESENCE_STALE_SECONDS: Final = 2.0  # one not heard of for this long is taken for dead
LEASE_SECONDS: Final = 30.0  # vLLM's kv_lease_duration as Pointsman sets it
LEASE_USABLE_SHARE: Final = 2 / 3  # a pull may begin only in this first part of a lease
FIRST_TOKEN_SECONDS: Final = 120.0  # time for the first token of a request that comes without a deadline
DEFAULT_QUEUE_LIMIT: Final = 1024  # requests that a service's stream holds at most
QUEUE_MAX_AGE_SECONDS: Final = 900.0  # a backstop for a queue nobody pulls from; requests have deadlines of seconds
QUEUE_DUPLICATE_WINDOW_SECONDS: Final = 30.0
LONGEST_WAIT_SECONDS: Final = 600.0  # for a remote prefill, whatever the deadline; a message lives longer in its stream


def stream_configuration(namespace: str, service_uid: str, max_requests: int) -> dict[str, Any]:
    """The stream of a service's prefill queue, as JetStream's API has it (times in nanoseconds).

    Whoever makes the stream makes it so: workers, or for the chart's server its authorizer. Reference:
    https://github.com/nats-io/jsm.go, schema io.nats.jetstream.api.v1.stream_configuration.
    """
    return {
        "name": names.prefill_stream(namespace, service_uid),
        "subjects": [names.prefill_subjects(namespace, service_uid)],
        "retention": "workqueue",
        "discard": "new",
        "max_msgs": max_requests,
        "max_age": int(QUEUE_MAX_AGE_SECONDS * 1e9),
        "storage": "file",
        "duplicate_window": int(QUEUE_DUPLICATE_WINDOW_SECONDS * 1e9),
    }


def with_images(kv_compatibility: str) -> str:
    """What a request of this group names as its KV compatibility if its prompt has images."""
    return f"{kv_compatibility}+images"


class MalformedPrefillRequest(ValueError):
    """A frame that is no PrefillRequest; says what is wrong with it."""


class _Head(Wire):
    request_id: str = Field(min_length=1, max_length=256)
    reply_to: str = Field(min_length=1)
    model: str
    block_size: int = Field(ge=1)
    kv_compatibility: str
    decode_worker: str
    deadline_unix_ms: int | None = None  # of earlier versions; not read: see ``PrefillRequest``
    wait_seconds: float | None = Field(default=None, gt=0)
    asked_at_seconds: float | None = None
    cache_salt: str | None = None
    deaths: int = Field(default=0, ge=0)
    chat_at: str | None = None


class PrefillRequest(_Head):
    """One prompt whose KV a decode worker wants computed.

    ``token_ids`` are the whole prompt's. ``wait_seconds``: how long the decode worker waits for the answer, from the
    publication on. It is a duration because the clocks of two hosts need not agree. ``asked_at_seconds``: the decode
    worker's monotonic clock at the publication; a prefill worker only adds to it (see ``PrefillReply``). Both are
    absent from decode workers of earlier versions. Their ``deadline_unix_ms`` is not read, because it is of a clock
    that may differ: they withdraw a request that nobody waits for, as present ones do.
    ``deaths``: workers that died with the client's request before this one was published.
    ``chat_at``: the prompt has images, so its tokens alone are not enough. The prefill worker gets the chat, with the
    images, from this host and port (``PREFILL_CHATS_PATH``) while the decode worker waits. ``kv_compatibility`` is then
    ``with_images`` of the group's: a worker of an earlier version, which would prefill the tokens alone, refuses it.
    """

    token_ids: tuple[int, ...] = Field(min_length=1)

    def encode(self) -> bytes:
        """This request as one frame."""
        head = self.model_dump_json(by_alias=True, exclude_none=True, exclude={"token_ids"}).encode()
        ids = array("I", self.token_ids)
        if sys.byteorder == "big":
            ids.byteswap()
        return len(head).to_bytes(4, "little") + head + ids.tobytes()

    @classmethod
    def decode(cls, frame: bytes) -> "PrefillRequest":
        """The request in ``frame``; raises MalformedPrefillRequest."""
        length = int.from_bytes(frame[:4], "little")
        body = frame[4 + length :]
        if len(frame) < 4 + length or len(body) % 4 or not body:
            raise MalformedPrefillRequest(f"frame of {len(frame)} bytes with a head of {length}: no whole token ids")
        ids = array("I")
        ids.frombytes(body)
        if sys.byteorder == "big":
            ids.byteswap()
        try:
            head = _Head.model_validate_json(frame[4 : 4 + length])
        except ValidationError as error:
            raise MalformedPrefillRequest(str(error)) from error
        return cls(**head.model_dump(), token_ids=tuple(ids))


class PrefillOutcome(StrEnum):
    """How a prefill request ended. All but ``DONE`` make the decode worker prefill locally, unless workers died."""

    DONE = "done"
    EXPIRED = "expired"  # found after its deadline
    REFUSED = "refused"  # wrong block size, KV compatibility or model
    FAILED = "failed"  # the engine could not


class PrefillReply(Wire):
    """The answer. ``kv_transfer_params`` go to the decode engine unchanged.

    ``lease_began_seconds``: the lease did not begin earlier than this, on the *decode worker's* monotonic clock: a
    reading of that clock (``asked_at_seconds``, ``PrefillWait``) plus the time that passed at the prefill worker from
    receiving the reading to the last moment at which the prefill was known to run. The reading was taken before it was
    received, so a message that was long on its way, delivered twice or sent again makes the value too early, never too
    late, and the hosts' clocks need not agree. Absent from earlier versions: then the lease counts from the
    publication.
    ``lease_seconds``: how long the prefill engine keeps the KV; absent: as long as the decode worker's own setting.
    ``lease_age_seconds``: how old the lease was when this was sent, for logs.
    ``engine_died``: the engine of the prefill worker died with the prompt.
    """

    request_id: str
    outcome: PrefillOutcome
    prefill_worker: str
    kv_transfer_params: dict[str, Any] | None = None
    lease_age_seconds: float = 0.0
    lease_began_seconds: float | None = None
    lease_seconds: float | None = Field(default=None, gt=0)
    queued_seconds: float | None = None
    prefill_seconds: float | None = None
    detail: str = ""
    engine_died: bool = False


class PrefillBegun(Wire):
    """Prefill worker to the ``reply_to`` of a request that carries ``asked_at_seconds``: the engine has the prompt.

    It is a NATS request, answered with a ``PrefillWait``. Where nobody listens any more, nobody waits.
    """

    request_id: str
    prefill_worker: str


class PrefillWait(Wire):
    """Whether the decode worker still waits, and its monotonic clock at that moment."""

    request_id: str
    waiting: bool
    clock_seconds: float


class SignalKind(StrEnum):
    """What became of a prefill request on the decode side."""

    PULLED = "pulled"  # the decode engine has the KV, or has told the prefill engine to free it
    CANCELLED = "cancelled"  # nobody waits any more: drop it, or stop computing it


class PrefillSignal(Wire):
    """Decode worker to the prefill workers of its group. A hint: lost ones cost pinned KV or wasted work, no more."""

    request_id: str
    kind: SignalKind


class PrefillPresence(Wire):
    """Prefill worker to the decode workers of its group: whether it serves the queue, and what it has taken from it.

    The queue itself does not tell a dead worker's unacknowledged requests from a busy worker's. ``in_progress``:
    requests taken and not answered, of ``in_progress_tokens`` prompt tokens. ``waiting``: those of them that are beyond
    one admission by the token budget, so they wait like those on the queue. All three are absent from earlier versions,
    which also count a lease from the publication.
    """

    worker: str
    serving: bool
    in_progress: int | None = Field(default=None, ge=0)
    in_progress_tokens: int | None = Field(default=None, ge=0)
    waiting: int | None = Field(default=None, ge=0)
