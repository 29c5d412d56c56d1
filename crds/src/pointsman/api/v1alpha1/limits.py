"""``spec.gateway.limits`` and ``spec.worker.limits``: every bound that a user may need to move.

All are optional. The operator renders only what is written, so an absent field means the default of the process, and a
service without limits is rendered as before these fields existed.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from pydantic import Field

from pointsman.api.v1alpha1.resource import ApiModel


class GatewayLimits(ApiModel):
    """Bounds of the gateway. Each gateway pod has them for itself."""

    max_body_mib: int | None = Field(
        default=None,
        alias="maxBodyMiB",
        ge=1,
        le=1024,
        description="Largest request body, in MiB. Larger requests are rejected with 413. Default: 32.",
    )
    max_header_kib: int | None = Field(
        default=None,
        alias="maxHeaderKiB",
        ge=8,
        le=1024,
        description="Largest request line and headers, in KiB. Larger requests are rejected with 431. Default: 64.",
    )
    max_answers_per_request: int | None = Field(
        default=None,
        ge=1,
        le=100_000,
        description="Most answers in one request (n times the number of prompts). Requests for more are rejected with "
        "400. Default: 1024.",
    )
    max_in_flight_requests: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="Most requests in one gateway pod at a time, queued requests included. Further requests are "
        "rejected with 429. Default: 8192.",
    )
    max_in_flight_mib: int | None = Field(
        default=None,
        alias="maxInFlightMiB",
        ge=1,
        le=1_048_576,
        description="Most memory for the request bodies in one gateway pod, in MiB, with the JSON decoded from them. "
        "Further requests are rejected with 429. Default: 256.",
    )
    max_queued_requests: int | None = Field(
        default=None,
        ge=0,
        le=100_000,
        description="Most requests in the admission queue of one gateway pod. Further requests are rejected with 429. "
        "Default: 4096.",
    )
    queue_timeout_seconds: int | None = Field(
        default=None,
        ge=0,
        le=3600,
        description="Longest time of a request in the admission queue. The request is then rejected with 429. Default: "
        "600.",
    )
    worker_wait_seconds: int | None = Field(
        default=None,
        ge=0,
        le=600,
        description="Longest wait of a request for a routable worker. The request is then rejected with 503. Default: "
        "10.",
    )
    max_attempts: int | None = Field(
        default=None,
        ge=1,
        le=100,
        description="Most attempts for one answer, refusals by workers included. The request then fails with 502, or "
        "its stream ends with an error event. Default: 8.",
    )
    max_moves: int | None = Field(
        default=None,
        ge=0,
        le=100,
        description="Most moves of one answer to another worker after failures. The request then fails with 502, or "
        "its stream ends with an error event. Default: 3.",
    )
    first_token_timeout_seconds: int | None = Field(
        default=None,
        ge=1,
        le=86_400,
        description="Longest time from sending a streamed request to a worker until its first token. The request then "
        "fails with 504. Default: 900.",
    )
    inactivity_timeout_seconds: int | None = Field(
        default=None,
        ge=1,
        le=3600,
        description="Longest time without data in a stream that has begun. Another worker then resumes the stream. "
        "Default: 120.",
    )
    answer_timeout_seconds: int | None = Field(
        default=None,
        ge=1,
        le=86_400,
        description="Longest time for an answer that is not streamed. The request then fails with 504. Default: 900.",
    )
    body_timeout_seconds: int | None = Field(
        default=None,
        ge=1,
        le=86_400,
        description="Longest time for a request body to arrive. The request is then rejected with 408. Default: 300.",
    )
    write_timeout_seconds: int | None = Field(
        default=None,
        ge=1,
        le=86_400,
        description="Longest time during which a client reads nothing of its answer. The request is then cancelled. "
        "Default: 120.",
    )
    connect_timeout_seconds: int | None = Field(
        default=None,
        ge=1,
        le=60,
        description="Longest time to connect to a worker. The gateway then tries another worker. Default: 2.",
    )
    kv_index_max_blocks: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000_000,
        description="Most KV blocks in the index of one gateway pod, summed over workers (about 200 bytes each). A "
        "full index evicts blocks that no recent prompt used. Default: 4000000.",
    )
    kv_index_expiration_seconds: int | None = Field(
        default=None,
        ge=0,
        le=86_400,
        description="How long a use protects a KV block from eviction from the index. 0: until the next eviction pass. "
        "Default: 0.",
    )


GATEWAY_SETTINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "max_body_mib": "max_body_mib",
        "max_header_kib": "max_header_kib",
        "max_answers_per_request": "max_answers",
        "max_in_flight_requests": "max_in_flight_requests",
        "max_in_flight_mib": "max_in_flight_mib",
        "max_queued_requests": "max_held",
        "queue_timeout_seconds": "hold_seconds",
        "worker_wait_seconds": "patience_seconds",
        "max_attempts": "max_attempts",
        "max_moves": "max_moves",
        "first_token_timeout_seconds": "first_token_timeout_seconds",
        "inactivity_timeout_seconds": "inactivity_timeout_seconds",
        "answer_timeout_seconds": "answer_timeout_seconds",
        "body_timeout_seconds": "body_timeout_seconds",
        "write_timeout_seconds": "write_timeout_seconds",
        "connect_timeout_seconds": "connect_timeout_seconds",
        "kv_index_max_blocks": "kv_index_max_blocks",
        "kv_index_expiration_seconds": "kv_index_expiration_seconds",
    }
)
"""Field of ``GatewayLimits`` -> setting of the gateway process (environment ``POINTSMAN_<SETTING>``)."""


class WorkerLimits(ApiModel):
    """Bounds of one worker. A change holds for workers that start after it."""

    max_concurrent_prefills: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description="Most prompts that one prefill worker computes for decode workers at a time. The prefill token "
        "budget applies as well. Default: 256.",
    )
    max_queued_prefills: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="Most prompts in the prefill queue of the service. Decode workers compute further prompts "
        "themselves. Default: 1024.",
    )
    lease_seconds: int | None = Field(
        default=None,
        ge=6,
        le=600,
        description="How long a prefill worker keeps computed KV for its decode worker. Workers with different values "
        "exchange no KV. Default: 30.",
    )


WORKER_SETTINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "max_concurrent_prefills": "max_concurrent_prefills",
        "max_queued_prefills": "prefill_queue_limit",
        "lease_seconds": "lease_seconds",
    }
)
"""Field of ``WorkerLimits`` -> setting of the worker process."""


def environment(limits: ApiModel | None, settings: Mapping[str, str]) -> dict[str, str]:
    """The environment variables of the limits that are written, by ``GATEWAY_SETTINGS`` or ``WORKER_SETTINGS``."""
    if limits is None:
        return {}
    written = {setting: getattr(limits, field) for field, setting in settings.items()}
    return {f"POINTSMAN_{setting.upper()}": str(value) for setting, value in written.items() if value is not None}


def gateway_limit(setting: str) -> str:
    """Where a user moves a limit of the gateway, e.g. ``spec.gateway.limits.maxBodyMiB`` for ``max_body_mib``.

    Every error that states a limit names it: "…; the limit is spec.gateway.limits.maxBodyMiB". Raises KeyError.
    """
    field = next((field for field, name in GATEWAY_SETTINGS.items() if name == setting), None)
    if field is None:
        raise KeyError(f"{setting} is no limit of an LLMService")
    return f"spec.gateway.limits.{GatewayLimits.model_fields[field].alias}"
