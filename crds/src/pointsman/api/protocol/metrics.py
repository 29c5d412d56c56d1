"""Names of the Prometheus metrics, with their labels, in one place. Units are suffixes; label sets are bounded."""

from enum import StrEnum
from typing import Final, NamedTuple

TOKEN_BOUNDS: Final = (
    1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144, 524288, 1048576,
)  # fmt: skip
"""Upper bounds of the buckets of every histogram of token counts; +Inf comes after them. The planner takes what is
beyond the last finite bound to be as long as that bound, so it must be beyond all contexts."""
TOKEN_BUCKETS: Final = (*map(str, TOKEN_BOUNDS), "+Inf")
"""The same buckets as values of a label."""

LATENCY_BOUNDS_S: Final = (
    0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5,
    0.75, 1, 1.5, 2, 3, 5, 7.5, 10, 20, 40, 80, 160, 320, 640,
)  # fmt: skip
"""The same of the gateway's latencies: geometric, about three per factor of two where the objectives of users lie."""


class Metric(NamedTuple):
    """One metric family as it is documented."""

    name: str
    kind: str  # counter | gauge | histogram
    labels: tuple[str, ...]
    help: str


class TtftVerdict(StrEnum):
    """Whether a request kept the TTFT objective. The values are label values."""

    MET = "met"
    MISSED = "missed"
    UNKNOWN = "unknown"  # no objective is in force, or the worker did not report when the first token came


class TpotVerdict(StrEnum):
    """Whether a request kept the TPOT objective. The values are label values."""

    MET = "met"
    MISSED = "missed"
    NONE = "none"  # the answer had no second token, so it has no time per output token to miss
    FAILED = "failed"  # the request got no whole answer
    UNKNOWN = "unknown"  # as of TTFT, or the request had several choices


class Objective(StrEnum):
    """The objectives that a gateway counts against. The values are label values."""

    TTFT = "ttft"
    TTFT_PER_PROMPT_TOKEN = "ttft_per_prompt_token"  # added to ttft for every prompt token
    TPOT = "tpot"


GATEWAY_REQUESTS: Final = Metric(
    "pointsman_gateway_requests_total", "counter", ("service", "endpoint", "code"), "Requests answered, by HTTP status."
)
GATEWAY_ARRIVALS: Final = Metric(
    "pointsman_gateway_arrivals_total", "counter", ("service", "endpoint"), "Requests received, before anything else."
)
GATEWAY_ACCEPTED: Final = Metric(
    "pointsman_gateway_accepted_total",
    "counter",
    ("service",),
    "Requests accepted: the body is valid and the model is served.",
)
GATEWAY_ACCEPTED_REFUSED: Final = Metric(
    "pointsman_gateway_accepted_refused_total",
    "counter",
    ("service",),
    "Accepted requests that were refused afterwards: the engine answered with a 4xx status, or the queue was full.",
)
GATEWAY_FIRST_TOKENS: Final = Metric(
    "pointsman_gateway_first_tokens_total",
    "counter",
    ("service", "ttft"),
    "Requests that got their first token, streamed or not, by the TTFT objective; ttft: met, missed or unknown.",
)
GATEWAY_ENDED: Final = Metric(
    "pointsman_gateway_ended_total",
    "counter",
    ("service", "ttft", "tpot"),
    "Accepted requests that ended, by both objectives, without those that were refused or whose client left in time; "
    "ttft: met, missed or unknown; tpot: met, missed, none (no second token), failed or unknown.",
)
GATEWAY_OBJECTIVE: Final = Metric(
    "pointsman_gateway_objective_seconds",
    "gauge",
    ("service", "objective"),
    ("Objectives that first_tokens_total and ended_total count against. Missing: the service has no policy."),
)
GATEWAY_PROMPT_TOKENS: Final = Metric(
    "pointsman_gateway_prompt_tokens", "histogram", ("service",), "Prompt tokens of accepted requests."
)
GATEWAY_REFUSED_PROMPT_TOKENS: Final = Metric(
    "pointsman_gateway_accepted_refused_prompt_tokens",
    "histogram",
    ("service",),
    "Prompt tokens of accepted requests that were refused afterwards; pointsman_gateway_prompt_tokens has them too.",
)
GATEWAY_OUTPUT_TOKENS: Final = Metric(
    "pointsman_gateway_output_tokens", "histogram", ("service",), "Output tokens of finished requests."
)
GATEWAY_ANSWERS: Final = Metric(
    "pointsman_gateway_answers_total",
    "counter",
    ("service", "prompt_tokens"),
    "Requests with a whole answer by the length of their prompts; prompt_tokens: the upper bound of the bucket, which "
    "has only its own requests, not those of lower ones.",
)
GATEWAY_ANSWER_TOKENS: Final = Metric(
    "pointsman_gateway_answer_tokens_total",
    "counter",
    ("service", "prompt_tokens"),
    "Output tokens of requests with a whole answer by the length of their prompts; prompt_tokens: as for "
    "pointsman_gateway_answers_total.",
)
GATEWAY_TTFT: Final = Metric(
    "pointsman_gateway_time_to_first_token_seconds", "histogram", ("service", "path"), "TTFT; path: local or remote."
)
GATEWAY_TPOT: Final = Metric(
    "pointsman_gateway_time_per_output_token_seconds", "histogram", ("service", "path"), "Mean TPOT of a request."
)
GATEWAY_ITL: Final = Metric(
    "pointsman_gateway_inter_token_latency_seconds", "histogram", ("service", "path"), "Every inter-token latency."
)
GATEWAY_E2E: Final = Metric(
    "pointsman_gateway_request_seconds", "histogram", ("service", "path"), "Whole request, arrival to last byte."
)
GATEWAY_VERBATIM: Final = Metric(
    "pointsman_gateway_verbatim_total",
    "counter",
    ("service", "reason"),
    "Requests whose body the engine renders and tokenises itself, by reason.",
)
GATEWAY_RETRIES: Final = Metric(
    "pointsman_gateway_retries_total", "counter", ("service", "reason"), "Requests sent to another worker, by reason."
)
GATEWAY_FAILURES: Final = Metric(
    "pointsman_gateway_failures_total", "counter", ("service", "reason"), "Requests that failed for good, by reason."
)
GATEWAY_EJECTIONS: Final = Metric(
    "pointsman_gateway_ejections_total",
    "counter",
    ("service", "reason"),
    "Times the gateway ejected a worker; reason: unreachable or failing.",
)
GATEWAY_IN_FLIGHT: Final = Metric("pointsman_gateway_in_flight", "gauge", ("service",), "Requests being served now.")
GATEWAY_HELD: Final = Metric("pointsman_gateway_held", "gauge", ("service",), "Queued requests.")
GATEWAY_HOLDS: Final = Metric("pointsman_gateway_holds_total", "counter", ("service",), "Requests that were queued.")
GATEWAY_HOLD_SECONDS: Final = Metric(
    "pointsman_gateway_hold_seconds",
    "histogram",
    ("service",),
    "Time of requests in the admission queue, however it ended.",
)
GATEWAY_IMAGES: Final = Metric(
    "pointsman_gateway_images_total",
    "counter",
    ("service", "path", "reason"),
    "Images of requests, by where their embedding comes from; path: encode, cache, bypass or local.",
)
GATEWAY_IMAGES_REFUSED: Final = Metric(
    "pointsman_gateway_images_refused_total",
    "counter",
    ("service", "reason"),
    "Requests rejected because of an image, by the limit or fault.",
)
GATEWAY_IMAGE_BYTES: Final = Metric(
    "pointsman_gateway_image_bytes_total", "counter", ("service",), "Bytes of the images in requests."
)
GATEWAY_IMAGE_FETCH_SECONDS: Final = Metric(
    "pointsman_gateway_image_fetch_seconds", "histogram", ("service",), "How long an image took to fetch."
)
GATEWAY_ENCODE_SECONDS: Final = Metric(
    "pointsman_gateway_encode_seconds",
    "histogram",
    ("service",),
    "How long an encode worker took for an image, its queue included.",
)
GATEWAY_ENCODE_FAILURES: Final = Metric(
    "pointsman_gateway_encode_failures_total",
    "counter",
    ("service", "reason"),
    "Attempts to have an image encoded that failed, by reason.",
)
GATEWAY_ENCODE_REQUESTS: Final = Metric(
    "pointsman_gateway_encode_requests_total", "counter", ("service",), "Requests with images for encode workers."
)
GATEWAY_ENCODE_IMAGES: Final = Metric(
    "pointsman_gateway_encode_images_total",
    "counter",
    ("service",),
    "Images for encode workers, counted when their request comes.",
)
GATEWAY_ENCODE_IMAGES_SQUARED: Final = Metric(
    "pointsman_gateway_encode_images_squared_total",
    "counter",
    ("service",),
    "Sum over requests of the square of their images for encode workers.",
)
GATEWAY_ENCODE_IN_FLIGHT: Final = Metric(
    "pointsman_gateway_encode_in_flight", "gauge", ("service",), "Images that wait for encode workers now."
)
GATEWAY_WORKERS: Final = Metric(
    "pointsman_gateway_workers", "gauge", ("service", "role", "state"), "Workers known; state: usable or suspect."
)
GATEWAY_WORKER_METRICS_AGE: Final = Metric(
    "pointsman_gateway_worker_metrics_age_seconds",
    "gauge",
    ("service", "worker"),
    "Age of the last KV metrics received from the worker. Those older than 3 s are not used.",
)
GATEWAY_WORKER_ACTIVE_SLOTS: Final = Metric(
    "pointsman_gateway_worker_request_active_slots",
    "gauge",
    ("service", "worker"),
    "Requests the worker's engine computes.",
)
GATEWAY_WORKER_TOTAL_SLOTS: Final = Metric(
    "pointsman_gateway_worker_request_total_slots",
    "gauge",
    ("service", "worker"),
    "Requests the worker's engine can compute at once.",
)
GATEWAY_WORKER_KV_ACTIVE_BLOCKS: Final = Metric(
    "pointsman_gateway_worker_kv_active_blocks",
    "gauge",
    ("service", "worker"),
    "KV blocks used by the worker's running requests.",
)
GATEWAY_WORKER_KV_TOTAL_BLOCKS: Final = Metric(
    "pointsman_gateway_worker_kv_total_blocks", "gauge", ("service", "worker"), "KV blocks of the worker."
)
GATEWAY_WORKER_REQUESTS_WAITING: Final = Metric(
    "pointsman_gateway_worker_num_requests_waiting",
    "gauge",
    ("service", "worker"),
    "Requests in the queue of the worker's engine.",
)
GATEWAY_WORKER_CACHE_USAGE: Final = Metric(
    "pointsman_gateway_worker_gpu_cache_usage_perc",
    "gauge",
    ("service", "worker"),
    "Used share of the worker's KV blocks, 0 to 1.",
)
GATEWAY_WORKER_PREFIX_HIT_RATE: Final = Metric(
    "pointsman_gateway_worker_gpu_prefix_cache_hit_rate",
    "gauge",
    ("service", "worker"),
    "Share of prompt tokens the worker found in its KV cache since its start, 0 to 1.",
)
GATEWAY_WORKER_INDEXED_BLOCKS: Final = Metric(
    "pointsman_gateway_worker_indexed_blocks",
    "gauge",
    ("service", "worker"),
    "KV blocks of the worker that the gateway's KV index has.",
)
GATEWAY_INDEX_BLOCKS: Final = Metric(
    "pointsman_gateway_kv_index_blocks",
    "gauge",
    ("service",),
    "Blocks in the KV index, summed over workers; kv_index_max_blocks bounds them.",
)
GATEWAY_INDEX_EVICTIONS: Final = Metric(
    "pointsman_gateway_kv_index_evictions_total",
    "counter",
    ("service",),
    "Blocks evicted from the KV index because it was full.",
)
WORKER_PHASE: Final = Metric("pointsman_worker_phase", "gauge", ("phase",), "1 for the phase the worker is in.")
WORKER_ROLE: Final = Metric("pointsman_worker_role", "gauge", ("role",), "1 for the role the worker has.")
WORKER_IN_FLIGHT: Final = Metric("pointsman_worker_in_flight", "gauge", (), "Client requests and prefills in flight.")
WORKER_LEASES: Final = Metric("pointsman_worker_leases", "gauge", (), "Prefilled KV not yet pulled.")
WORKER_QUEUE_DEPTH: Final = Metric(
    "pointsman_worker_prefill_queue_depth", "gauge", (), "Requests waiting in the service's prefill queue."
)
WORKER_PREFILLS_IN_PROGRESS: Final = Metric(
    "pointsman_worker_prefills_in_progress",
    "gauge",
    (),
    "Prefill requests of other workers that this worker has taken and not answered.",
)
WORKER_PREFILL_TOKENS_IN_PROGRESS: Final = Metric(
    "pointsman_worker_prefill_tokens_in_progress", "gauge", (), "Prompt tokens of the prefills in progress."
)
WORKER_PREFILL_TOKEN_BUDGET: Final = Metric(
    "pointsman_worker_prefill_token_budget",
    "gauge",
    (),
    "Prompt tokens that this worker computes for other workers at one time.",
)
WORKER_PREFILLS_AWAITED: Final = Metric(
    "pointsman_worker_prefills_awaited", "gauge", (), "Remote prefills that this worker requested and waits for."
)
WORKER_PREFILL_TOKENS_AWAITED: Final = Metric(
    "pointsman_worker_prefill_tokens_awaited", "gauge", (), "Prompt tokens of the awaited prefills."
)
WORKER_OLDEST_PREFILL_AWAITED: Final = Metric(
    "pointsman_worker_oldest_prefill_awaited_seconds", "gauge", (), "Age of the oldest awaited prefill; 0: none."
)
WORKER_MAX_SEQUENCES: Final = Metric(
    "pointsman_worker_max_sequences", "gauge", (), "Sequences the engine runs at once at most."
)
WORKER_DECISIONS: Final = Metric(
    "pointsman_worker_prefill_decisions_total", "counter", ("path", "reason"), "Local/remote decisions, by reason."
)
WORKER_PROMPT_TOKENS: Final = Metric(
    "pointsman_worker_prompt_tokens_total", "counter", (), "Prompt tokens of the client requests that were given here."
)
WORKER_UNCACHED_TOKENS: Final = Metric(
    "pointsman_worker_uncached_prompt_tokens", "histogram", (), "Uncached prompt tokens of one request."
)
WORKER_PREFILLS: Final = Metric(
    "pointsman_worker_remote_prefills_total", "counter", ("outcome",), "Prefills done for other workers, by outcome."
)
WORKER_PREFILL_SECONDS: Final = Metric(
    "pointsman_worker_remote_prefill_seconds", "histogram", (), "Time one prefill for another worker took."
)
WORKER_PREFILL_ENGINE_SECONDS: Final = Metric(
    "pointsman_worker_remote_prefill_engine_seconds_total",
    "counter",
    (),
    "Time in which the engine had prefills for other workers; concurrent prefills count once.",
)
WORKER_ENCODE_SECONDS: Final = Metric(
    "pointsman_worker_encode_seconds", "histogram", (), "Time an encode worker took for the images of one request."
)
WORKER_EMBEDDING_FETCHES: Final = Metric(
    "pointsman_worker_embedding_fetches_total",
    "counter",
    ("outcome",),
    "Embeddings of images that this worker fetched from encode workers, by outcome. After any but succeeded, its "
    "engine encodes the image itself.",
)
WORKER_EMBEDDING_BYTES: Final = Metric(
    "pointsman_worker_embedding_bytes",
    "gauge",
    (),
    "Memory of the embeddings that are fetched or wait for the engine now.",
)
WORKER_EMBEDDING_FETCH_SECONDS: Final = Metric(
    "pointsman_worker_embedding_fetch_seconds", "histogram", (), "Time it took to fetch one embedding."
)
WORKER_KV_EVENTS_LOST: Final = Metric(
    "pointsman_worker_kv_events_lost_total",
    "counter",
    (),
    "Lost batches of the engine's KV events. The worker then discards its index of the cache.",
)
WORKER_LATE_LEASES: Final = Metric(
    "pointsman_worker_late_leases_total", "counter", (), "Remote prefills thrown away because the lease was too old."
)
EMBEDDING_TRANSFER_USED_BLOCKS: Final = Metric(
    "pointsman_embedding_transfer_used_blocks", "gauge", ("side",), "Blocks of the embedding buffer that transfers use."
)
EMBEDDING_TRANSFER_BLOCKS: Final = Metric(
    "pointsman_embedding_transfer_blocks", "gauge", ("side",), "Blocks of the embedding buffer, used or free."
)
EMBEDDING_TRANSFER_FRAGMENTATION: Final = Metric(
    "pointsman_embedding_transfer_fragmentation_ratio",
    "gauge",
    ("side",),
    "Share of the free blocks that are outside the largest free run.",
)
EMBEDDING_TRANSFER_TRANSFERS: Final = Metric(
    "pointsman_embedding_transfer_transfers_total",
    "counter",
    ("side", "result"),
    "Transfers of embeddings that ended; result: succeeded, failed or timed_out.",
)
EMBEDDING_TRANSFER_RESUMES: Final = Metric(
    "pointsman_embedding_transfer_resumes_total",
    "counter",
    ("side",),
    "Times a transfer went on with new blocks because the blocks before were too few.",
)
EMBEDDING_TRANSFER_BYTES: Final = Metric(
    "pointsman_embedding_transfer_bytes_total",
    "counter",
    ("side", "transport"),
    "Bytes of embeddings that arrived; transport: shared_memory, nixl or tcp.",
)
EMBEDDING_TRANSFER_SECONDS: Final = Metric(
    "pointsman_embedding_transfer_seconds",
    "histogram",
    ("side",),
    "Time of a transfer that succeeded; encode side: without the wait for the encoder or for the language side.",
)
ELASTIC_SLOTS: Final = Metric(
    "pointsman_elastic_slots", "gauge", ("state",), "Tokens of KV that the instances keep, and how many more fit."
)
ELASTIC_DECODE_SUMS: Final = Metric(
    "pointsman_elastic_decode_sums_total",
    "counter",
    ("term",),
    "Sums over decode steps of single instances: steps, requests, seconds, requests_squared, request_seconds.",
)
INPUT_BROADCAST_REQUESTS: Final = Metric(
    "pointsman_input_broadcast_requests_total",
    "counter",
    ("rank", "mode"),
    "Requests whose multimodal inputs ended on this rank, delivered or not, by mode.",
)
INPUT_BROADCAST_ERRORS: Final = Metric(
    "pointsman_input_broadcast_errors_total",
    "counter",
    ("rank", "reason"),
    "Inputs that were not delivered, by reason.",
)
INPUT_BROADCAST_REQUEST_SECONDS: Final = Metric(
    "pointsman_input_broadcast_request_seconds",
    "histogram",
    ("rank", "mode"),
    "Time from the arrival of a request on this rank until its inputs ended there.",
)
INPUT_BROADCAST_SEND_SECONDS: Final = Metric(
    "pointsman_input_broadcast_send_seconds",
    "histogram",
    ("rank",),
    "Time to pack, copy and send one request's inputs.",
)
INPUT_BROADCAST_MATERIALISE_SECONDS: Final = Metric(
    "pointsman_input_broadcast_materialise_seconds",
    "histogram",
    ("rank",),
    "Time to materialise one request's inputs on this rank.",
)
INPUT_BROADCAST_BLOCKED_SECONDS: Final = Metric(
    "pointsman_input_broadcast_blocked_seconds_total",
    "counter",
    ("rank",),
    "Time that threads which schedule requests worked or waited for inputs.",
)
INPUT_BROADCAST_CPU_SECONDS: Final = Metric(
    "pointsman_input_broadcast_cpu_seconds_total", "counter", ("rank",), "CPU time of this rank's input broadcasts."
)
INPUT_BROADCAST_PENDING_BYTES: Final = Metric(
    "pointsman_input_broadcast_pending_bytes",
    "gauge",
    ("rank",),
    "Bytes of inputs that are not read on every rank yet.",
)
