"""HTTP headers between gateway and worker. All optional: without them a worker uses what it was started with."""

from typing import Final

REQUEST_ID: Final = "X-Request-Id"
SHOULD_RETRY: Final = "X-Should-Retry"  # OpenAI's clients repeat any 5xx, unless this is "false"

# gateway -> worker: the routing numbers of this moment travel with the request
MAX_LOCAL_PREFILL_TOKENS: Final = "X-Pointsman-Max-Local-Prefill-Tokens"
MAX_PREFILL_QUEUE_SIZE: Final = "X-Pointsman-Max-Prefill-Queue-Size"
EXPECTED_CACHED_TOKENS: Final = "X-Pointsman-Expected-Cached-Tokens"  # the router's view, a hint
DEATHS: Final = (
    "X-Pointsman-Deaths"  # workers that died with this request so far; absent: its sender does not count them
)
DEADLINE_MS: Final = "X-Pointsman-Deadline-Ms"  # time left for the first token when the gateway sent it, milliseconds

# gateway -> client
HELD_MS: Final = "X-Pointsman-Held-Ms"  # how long flow control held the request; absent: it was not held

# worker -> worker, with the control token in Authorization: the decode leg of a verification, taken in any role
VERIFICATION: Final = "X-Pointsman-Verification"

# worker -> gateway
RETRY: Final = "X-Pointsman-Retry"  # on a 503: this worker did not begin; the value is a RetryReason
DIED: Final = "X-Pointsman-Died"  # with RetryReason.PREFILL_DIED: pod names of the prefill workers, comma-separated
PREFILL: Final = "X-Pointsman-Prefill"  # "local" or "remote"
PREFILL_REASON: Final = "X-Pointsman-Prefill-Reason"  # a PrefillReason, see pointsman.serving.local_remote
PREFILL_WORKER: Final = "X-Pointsman-Prefill-Worker"  # pod name, when remote
WORKER: Final = "X-Pointsman-Worker"  # pod name of the worker that answers
DECODE_MS: Final = "X-Pointsman-Decode-Ms"  # of a whole answer: from its first to its last token, milliseconds
RESUMED: Final = "X-Pointsman-Resumed"  # "1": the answer repeats and continues a broken stream, see protocol.resume

# control API, both ways
CONTROL_TOKEN: Final = "Authorization"  # "Bearer <token>"
