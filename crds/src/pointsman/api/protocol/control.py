"""The worker's control API (``/pointsman/v1/…`` on the engine port) and the gateway's report of what it uses.

===== =================================== ========================================================================
verb  path                                body -> answer
===== =================================== ========================================================================
GET   /pointsman/v1/state                 -> WorkerState
POST  /pointsman/v1/role                  RoleRequest -> WorkerState; 409 with ControlError for a role it cannot take
POST  /pointsman/v1/drain                 DrainRequest -> WorkerState; takes no new work, keeps what it has
POST  /pointsman/v1/verify                VerifyRequest -> VerifyResult
GET   /pointsman/v1/model                 -> ModelInfo
GET   /pointsman/v1/model/files/{sha256}  -> the file's bytes (tokenizer and template files of ModelInfo)
GET   /pointsman/v1/prefill-chats/{id}    -> the chat of a PrefillRequest with images, while it is waited for
GET   /pointsman/v1/kv-events             -> a stream of frames that does not end, see pointsman.api.protocol.kv_feed
GET   /pointsman/v1/endpoints             gateway only -> EndpointsReport
===== =================================== ========================================================================

Every path of a worker needs ``Authorization: Bearer <control token>``; so does the gateway's report. A prefill worker
gets a chat from an address that came over NATS, so it sends ``chat_credential`` in place of the token.
"""

import hmac
from enum import StrEnum
from typing import Final

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from pointsman.api.protocol.names import Role

STATE_PATH: Final = "/pointsman/v1/state"
ROLE_PATH: Final = "/pointsman/v1/role"
DRAIN_PATH: Final = "/pointsman/v1/drain"
VERIFY_PATH: Final = "/pointsman/v1/verify"
MODEL_PATH: Final = "/pointsman/v1/model"
MODEL_FILES_PATH: Final = "/pointsman/v1/model/files"
PREFILL_CHATS_PATH: Final = "/pointsman/v1/prefill-chats"
KV_EVENTS_PATH: Final = "/pointsman/v1/kv-events"
ENDPOINTS_PATH: Final = "/pointsman/v1/endpoints"


def accepted_tokens(control_token: str) -> tuple[str, ...]:
    """The tokens in the control token of a service's Secret, which is ``new,old`` while it is rotated.

    The first is the one to send. All are accepted. So is the value as a whole: what a process of a version that knows
    of no rotation takes for the token, if it starts meanwhile.
    """
    tokens = tuple(token for token in control_token.split(",") if token)
    return tokens if len(tokens) < 2 else (*tokens, control_token)


def authorized(header: str, control_token: str) -> bool:
    """Whether ``header``, of an Authorization header as aiohttp or latin-1 decodes it, has one of the accepted tokens.

    Takes as long for a wrong token as for the right one.
    """
    given = header.encode("utf-8", "surrogateescape")
    matches = [hmac.compare_digest(given, f"Bearer {token}".encode()) for token in accepted_tokens(control_token)]
    return any(matches)


def rotated(control_token: str, known: str) -> str:
    """``control_token`` of a Secret, with the tokens that processes have if somebody replaced them: ``new,old``.

    ``known``: the value before. One that begins with the same token is taken as it is: a rotation that is over.
    """
    tokens, before = accepted_tokens(control_token), accepted_tokens(known)
    if not before or tokens[:1] == before[:1]:
        return control_token
    return ",".join(dict.fromkeys((*control_token.split(","), *known.split(","))))


def chat_credential(control_token: str, request_id: str) -> str:
    """Proves that who has it knows the service's control token; good for the chat of one request only."""
    return hmac.digest(control_token.encode(), f"prefill chat {request_id}".encode(), "sha256").hex()


class Wire(BaseModel):
    """Base of what travels as JSON: camelCase names, frozen, unknown fields ignored so that versions may differ."""

    model_config = ConfigDict(frozen=True, extra="ignore", alias_generator=to_camel, populate_by_name=True)

    def wire(self) -> str:
        """This message as JSON; None is left out (absent = unknown)."""
        return self.model_dump_json(by_alias=True, exclude_none=True)


class WorkerPhase(StrEnum):
    """Where a worker is. Only ``SERVING`` takes new work."""

    STARTING = "Starting"  # the engine does not answer yet
    IDLE = "Idle"  # engine up, no role: every start begins here, so that a restart cannot revive an old role
    SERVING = "Serving"
    DRAINING = "Draining"  # keeps its role, takes nothing new
    FAILED = "Failed"  # the engine died


class RetryReason(StrEnum):
    """Why a worker answered 503 before it began: the gateway sends the request to another worker."""

    NO_ROLE = "no-role"
    WRONG_ROLE = "wrong-role"
    DRAINING = "draining"
    ENGINE_ABORTED = "engine-aborted"
    ENGINE_FAILED = "engine-failed"
    BODIES_FULL = "bodies-full"  # the bodies of other requests take all the memory for bodies
    PREFILL_DIED = "prefill-died"  # prefill workers died with the prompt; the header DIED names them


MAX_DEATHS: Final = 2
"""Workers that may die with one request, of either role: the first may be chance."""


class WorkerState(Wire):
    """A worker about itself. None = unknown, never 0."""

    worker: str
    instance: str  # new at every start of the process
    phase: WorkerPhase
    role: Role | None = None
    in_flight: int = Field(description="client requests and prefills this worker is computing or streaming")
    in_flight_tokens: int = Field(description="prompt tokens plus tokens generated so far of those")
    queued_prefills: int = Field(description="prefill requests pulled or possibly on their way to this worker")
    leases: int = Field(description="computed KV with a running lease that no decode worker has pulled yet")
    oldest_lease_seconds: float | None = None
    verified: Role | None = Field(default=None, description="the role in which this instance was last verified")
    kv_usage: float | None = Field(default=None, description="share of KV blocks in use, 0..1, leased ones included")
    cached_blocks: int | None = None
    block_size: int
    max_model_len: int | None = None
    kv_compatibility: str
    prefill_token_budget: int | None = None
    nats_connected: bool | None = None
    metrics_port: int | None = Field(default=None, description="where it serves its metrics and nothing else")

    @property
    def idle(self) -> bool:
        """Nothing in flight, queued or leased: deleting this worker loses nothing."""
        return self.in_flight == 0 and self.queued_prefills == 0 and self.leases == 0


class RoleRequest(Wire):
    """Give a worker its role. Idempotent. ``role`` None takes it away (new work is refused, old work goes on).

    Another role than the present one clears ``verified``; the same one ends a drain, unless ``if_serving``.
    """

    role: Role | None
    prefill_token_budget: int | None = Field(
        default=None, ge=1, description="prompt tokens in one admission; None: the default of pointsman.serving"
    )
    max_local_prefill_tokens: int | None = Field(default=None, ge=0)
    max_prefill_queue_size: int | None = Field(default=None, ge=0)
    if_serving: bool = Field(
        default=False, description="only the numbers change: refused (NotServing) unless the worker serves this role"
    )

    def wire(self) -> str:
        """See Wire; ``role`` is always there: a worker refuses a request without it, and null takes the role away."""
        absent = {name for name, value in self if value is None and name != "role"}
        return self.model_dump_json(by_alias=True, exclude=absent)


class DrainRequest(Wire):
    """Take no new work. ``reason`` is for logs."""

    reason: str = ""


class VerifyRequest(Wire):
    """Prove one role with a real request.

    Decode: one token from this worker. Prefill: a whole P->D round trip, so that no KV stays pinned for its lease:
    ``partner_url`` is a worker (any role) that pulls the KV and answers one token; without a partner (the first worker
    of a service) this worker pulls from nobody and proves itself with one token of its own.
    """

    role: Role
    partner_url: str | None = None
    timeout_seconds: float = Field(default=10.0, gt=0, le=120)


class VerifyResult(Wire):
    """What a verification found; ``detail`` is a sentence for a person."""

    ok: bool
    role: Role
    detail: str
    seconds: float


class ControlError(Wire):
    """Body of every error answer of the control API."""

    reason: str  # CamelCase, stable
    message: str


class ModelFile(Wire):
    """One tokenizer or template file."""

    name: str  # e.g. tokenizer.json
    sha256: str
    bytes: int


class ModelInfo(Wire):
    """What a gateway needs to know to tokenise for this worker."""

    served_name: str
    max_model_len: int
    block_size: int
    files: tuple[ModelFile, ...]
    digest: str  # sha256 over the files' names and digests: equal digest, equal tokenizer
    parses_chat: bool = Field(
        default=False,
        description="the engine's chat endpoint has a reasoning or tool parser, so an answer is more than its tokens",
    )
    chat_max_tokens: int | None = Field(
        default=None,
        description="Most tokens of a chat answer if the request sets no limit. Unset: unknown.",
    )
    adapters: tuple[str, ...] = Field(
        default=(), description="names of LoRA adapters that requests may use as model, in addition to served_name"
    )


class EndpointState(Wire):
    """One worker as a gateway sees it."""

    worker: str
    uid: str
    url: str
    role: Role
    in_flight: int
    suspect: bool = False  # left alone at the moment: it cannot be reached, or fails
    ejections: int = 0  # how often in a row, less one for each answer since


class EndpointsReport(Wire):
    """The routable set a gateway uses right now: the operator's drain waits until a worker is not in it."""

    gateway: str
    synced: bool
    endpoints: tuple[EndpointState, ...]
