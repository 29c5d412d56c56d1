"""What a worker publishes about its KV cache, and how engine KV events are named.

The names of KvMetrics are those of Dynamo's 2025 design (KvMetricsPublisher), which users' dashboards know.
"""

from typing import Final

from pydantic import Field

from unit.api.earlier.control import Wire
from unit.api.earlier.names import Role

KV_METRICS_INTERVAL_SECONDS: Final = 0.5  # at least this often, and on change
KV_METRICS_STALE_SECONDS: Final = 3.0  # older is unknown


class KvMetrics(Wire):
    """One worker's load. None = unknown. ``sequence`` grows within one ``instance``: older ones are dropped."""

    worker: str
    instance: str
    sequence: int
    role: Role | None = None
    request_active_slots: int | None = None
    request_total_slots: int | None = None
    kv_active_blocks: int | None = None
    kv_total_blocks: int | None = None
    num_requests_waiting: int | None = None
    gpu_cache_usage_perc: float | None = Field(default=None, description="0..1, as vLLM's kv_cache_usage_perc")
    gpu_prefix_cache_hit_rate: float | None = Field(default=None, description="0..1 since start")
    prefill_queue_depth: int | None = Field(default=None, description="requests waiting in the service's queue")


def kv_events_topic(worker: str) -> str:
    """ZMQ topic of a worker's KV events: stable over restarts of its container."""
    return f"kv@{worker}"
