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

from unit.api.earlier.control import Wire

ACK_WAIT_SECONDS: Final = 5.0  # a dead prefill worker's request is redelivered after this
HEARTBEAT_SECONDS: Final = 1.5  # in_progress while a prefill runs longer
PULL_EXPIRES_SECONDS: Final = 0.5  # a pull is never withdrawn: it ends by itself
PRESENCE_SECONDS: Final = 0.5  # a serving prefill worker says so this often
PRESENCE_STALE_SECONDS: Final = 2.0  # one not heard of for this long is taken for dead
LEASE_SECONDS: Final = 30.0  # vLLM's kv_lease_duration as Pointsman sets it
LEASE_USABLE_SHARE: Final = 2 / 3  # a pull may begin only in this first part of a lease


class MalformedPrefillRequest(ValueError):
    """A frame that is no PrefillRequest; says what is wrong with it."""


class _Head(Wire):
    request_id: str = Field(min_length=1, max_length=256)
    reply_to: str = Field(min_length=1)
    model: str
    block_size: int = Field(ge=1)
    kv_compatibility: str
    decode_worker: str
    deadline_unix_ms: int | None = None
    cache_salt: str | None = None


class PrefillRequest(_Head):
    """One prompt whose KV a decode worker wants computed.

    ``token_ids`` are the whole prompt's; ``deadline_unix_ms`` is when the decode worker stops waiting for the answer
    (a request found later is dropped with an ``EXPIRED`` answer).
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
    """How a prefill request ended. All but ``DONE`` make the decode worker prefill locally."""

    DONE = "done"
    EXPIRED = "expired"  # found after its deadline
    REFUSED = "refused"  # wrong block size, KV compatibility or model
    FAILED = "failed"  # the engine could not


class PrefillReply(Wire):
    """The answer. ``kv_transfer_params`` go to the decode engine unchanged.

    ``lease_age_seconds``: how old the lease was when this was sent (an answer may be sent again), for logs. A decode
    worker takes a lease to be as old as its own request: the time since it published is at least the lease's age on
    any clock, however long the answer was on its way, so the hosts' clocks need not agree.
    """

    request_id: str
    outcome: PrefillOutcome
    prefill_worker: str
    kv_transfer_params: dict[str, Any] | None = None
    lease_age_seconds: float = 0.0
    queued_seconds: float | None = None
    prefill_seconds: float | None = None
    detail: str = ""


class SignalKind(StrEnum):
    """What became of a prefill request on the decode side."""

    PULLED = "pulled"  # the decode engine has the KV, or has told the prefill engine to free it
    CANCELLED = "cancelled"  # nobody waits any more: drop it, or stop computing it


class PrefillSignal(Wire):
    """Decode worker to the prefill workers of its group. A hint: lost ones cost pinned KV or wasted work, no more."""

    request_id: str
    kind: SignalKind


class PrefillPresence(Wire):
    """Prefill worker to the decode workers of its group: whether it serves the queue.

    The queue itself does not tell a dead worker's unacknowledged requests from a busy worker's.
    """

    worker: str
    serving: bool
