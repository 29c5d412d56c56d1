"""Whether a decode worker prefills a prompt itself or has another worker do it.

The rule is Dynamo's ``prefill_remote`` of 2025 (disaggregated router), on token counts instead of a hit *rate*: remote
if and only if the part of the prompt that is not cached here is longer than a threshold and the prefill queue is
shorter than a limit. Both numbers are live: the planner sets them and they travel with the request.
"""

from dataclasses import dataclass
from enum import StrEnum


class PrefillReason(StrEnum):
    """Why a prompt was prefilled where it was. Stable words: they are metric labels and header values."""

    REMOTE = "remote"
    SHORT = "short"  # what is not cached is within the threshold
    CACHED = "cached"  # nothing to prefill
    QUEUE_FULL = "queue-full"
    QUEUE_UNKNOWN = "queue-unknown"  # the queue cannot be seen (NATS gone): unknown is not zero
    NO_PREFILL_WORKER = "no-prefill-worker"
    # what happened after the rule said remote:
    TIMED_OUT = "timed-out"
    LEASE_SPENT = "lease-spent"
    PREFILL_FAILED = "prefill-failed"
    # only the engine that decodes can prefill it, at any threshold:
    MEDIA = "media"  # images, audio, video: their KV is not that of tokens alone
    PROMPT_EMBEDS = "prompt-embeds"  # vectors in place of tokens
    PROMPT_LOGPROBS = "prompt-logprobs"  # each prompt token is computed for its log-probability
    TOO_LARGE = "too-large"  # longer than a message of the prefill queue may be
    UNSUPPORTED = "unsupported"  # beam search, infilling, truncation; a worker without a renderer
    INVALID = "invalid"  # the engine refuses the request


ONLY_LOCAL: frozenset[PrefillReason] = frozenset(
    {
        PrefillReason.MEDIA,
        PrefillReason.PROMPT_EMBEDS,
        PrefillReason.PROMPT_LOGPROBS,
        PrefillReason.TOO_LARGE,
        PrefillReason.UNSUPPORTED,
    }
)
"""Reasons of prompts that no prefill worker can take, however many there are."""


@dataclass(frozen=True, slots=True)
class RoutingRule:
    """The two live numbers. ``max_local_prefill_tokens`` in tokens, ``max_prefill_queue_size`` in requests."""

    max_local_prefill_tokens: int
    max_prefill_queue_size: int

    def __post_init__(self) -> None:
        for field in ("max_local_prefill_tokens", "max_prefill_queue_size"):
            if getattr(self, field) < 0:
                raise ValueError(f"{field} is {getattr(self, field)}: it must be 0 or more")


DEFAULT_RULE = RoutingRule(max_local_prefill_tokens=512, max_prefill_queue_size=8)


@dataclass(frozen=True, slots=True)
class Decision:
    """Where a prompt is prefilled. ``new_tokens`` is the part that is not cached here."""

    remote: bool
    reason: PrefillReason
    new_tokens: int


def decide(*, prompt_tokens: int, cached_tokens: int, queue_depth: int | None, rule: RoutingRule) -> Decision:
    """Apply the rule.

    ``cached_tokens``: the prefix this worker holds (whole blocks), ``queue_depth``: requests waiting in the prefill
    queue, None when it cannot be seen.
    """
    new_tokens = max(prompt_tokens - cached_tokens, 0)
    if new_tokens == 0:
        return Decision(False, PrefillReason.CACHED, new_tokens)
    if new_tokens <= rule.max_local_prefill_tokens:
        return Decision(False, PrefillReason.SHORT, new_tokens)
    if queue_depth is None:
        return Decision(False, PrefillReason.QUEUE_UNKNOWN, new_tokens)
    if queue_depth >= rule.max_prefill_queue_size:
        return Decision(False, PrefillReason.QUEUE_FULL, new_tokens)
    return Decision(True, PrefillReason.REMOTE, new_tokens)
