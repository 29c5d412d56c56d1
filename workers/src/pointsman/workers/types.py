"""Boundary types of this room: what its modules hand to each other."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pointsman.serving.local_remote import PrefillReason


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What does not change while an engine runs. None = unknown. Blocks are KV blocks of ``block_size`` tokens."""

    max_model_len: int | None = None
    block_size: int | None = None
    max_running_requests: int | None = None
    total_kv_blocks: int | None = None
    model_directory: str | None = None  # or the hub's name of it
    model_revision: str | None = None  # of the hub's files
    parses_chat: bool = False  # the chat endpoint has a reasoning or tool parser
    chat_max_tokens: int | None = None  # of a chat answer whose request names no limit


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """An engine's gauges at one moment. None = unknown; shares are 0..1."""

    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    prefix_hit_rate: float | None = None


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    """A whole answer of the engine: HTTP status and JSON body (empty if it was none)."""

    status: int
    body: Mapping[str, Any]

    @property
    def finish_reason(self) -> str | None:
        """Of the first choice; "abort" means the engine did not do it, whatever the status says."""
        choices = self.body.get("choices") or [{}]
        reason = choices[0].get("finish_reason")
        return reason if isinstance(reason, str) else None


@dataclass(frozen=True, slots=True)
class RenderedChat:
    """The token ids the chat endpoint makes of a request, or why it cannot be prefilled elsewhere.

    ``images``: some of the ids stand for tokens of images.
    """

    token_ids: tuple[int, ...]
    only_local: PrefillReason | None = None
    images: bool = False


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """The prefill queue of one KV-compatibility group: requests nobody has taken, and taken ones without an answer."""

    waiting: int
    in_progress: int


@dataclass(frozen=True, slots=True)
class AwaitedPrefills:
    """The remote prefills that a decode worker waits for. ``oldest_s``: age of the oldest; 0: there is none."""

    requests: int
    prompt_tokens: int
    oldest_s: float


@dataclass(frozen=True, slots=True)
class RemoteKv:
    """KV that another worker has computed for a request here and that may be pulled now."""

    request_id: str
    kv_transfer_params: Mapping[str, Any]
    prefill_worker: str
    usable_until_s: float  # on this worker's monotonic clock

    @property
    def cached_tokens(self) -> int | None:
        """Tokens of the prompt that the prefill worker did not compute; None: its engine does not say."""
        cached = self.kv_transfer_params.get("remote_prefill_cached_tokens")
        return cached if isinstance(cached, int) else None


@dataclass(frozen=True, slots=True)
class PrefillPath:
    """Where a prompt is prefilled, why, and, when remote, the KV to pull.

    ``died``: names of the prefill workers that died with the prompt, where none computed it.
    """

    reason: PrefillReason
    new_tokens: int | None = None
    kv: RemoteKv | None = None
    died: frozenset[str] = frozenset()

    @property
    def remote(self) -> bool:
        """Whether another worker computed it."""
        return self.kv is not None
