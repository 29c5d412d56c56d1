"""Workers from a YAML file, for use without Kubernetes. A changed file is taken within a second.

::

    workers:
      - name: decode-0
        url: http://127.0.0.1:8100
        role: Decode                      # or Prefill, Encode
        ignoresEmbeddings: false          # optional; true: it does not fetch from encode workers
    routing:                              # optional
      maxLocalPrefillTokens: 512
      maxPrefillQueueSize: 8
      pendingTokensPerPrefillWorker: 8192 # optional, flow control; without them nothing is held
      decodingPerDecodeWorker: 32
      objectives: {ttftMs: 1500, tpotMs: 40}    # optional; requests are counted against them
    serviceUid: 3f0e…                                               # optional, for KV metrics over NATS

``kvEvents`` and ``kvEventsReplay`` of a worker, which earlier versions needed, are accepted and have no effect.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from pointsman.api.protocol.names import Role
from pointsman.gateway.types import Discovered, Worker, WorkerKey
from pointsman.serving.flow_control import UNBOUNDED, FlowBounds
from pointsman.serving.local_remote import RoutingRule
from pointsman.serving.objectives import Objectives

log = logging.getLogger(__name__)

LOOK_S = 0.5


class EndpointsFileInvalid(ValueError):
    """The file says something that is no set of workers; the message names the field."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", alias_generator=to_camel, populate_by_name=True)


class _WorkerEntry(_Strict):
    name: str = Field(min_length=1)
    url: str = Field(pattern=r"^https?://[^/]+$")
    role: Role
    ignores_embeddings: bool = False
    kv_events: str | None = None  # no effect, as the next: files of earlier versions stay readable
    kv_events_replay: str | None = None


class _Objectives(_Strict):
    ttft_ms: float = Field(gt=0)
    ttft_ms_per_prompt_token: float = Field(default=0, ge=0)
    tpot_ms: float = Field(gt=0)


class _Routing(_Strict):
    max_local_prefill_tokens: int = Field(ge=0)
    max_prefill_queue_size: int = Field(ge=0)
    pending_tokens_per_prefill_worker: int | None = Field(default=None, ge=1)
    decoding_per_decode_worker: int | None = Field(default=None, ge=1)
    slack_milliseconds: int | None = Field(default=None, ge=1)
    objectives: _Objectives | None = None


class _File(_Strict):
    workers: list[_WorkerEntry]
    routing: _Routing | None = None
    service_uid: str | None = None


def read_file(path: Path) -> Discovered:
    """The workers in the file. Raises EndpointsFileInvalid or OSError."""
    try:
        content = _File.model_validate(yaml.safe_load(path.read_text()) or {})
    except (yaml.YAMLError, ValidationError) as error:
        raise EndpointsFileInvalid(f"{path}: {error}") from error
    names = [entry.name for entry in content.workers]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise EndpointsFileInvalid(f"{path}: workers: the name {sorted(twice)[0]!r} appears twice; names are unique")
    routing = content.routing
    goals = routing.objectives if routing else None
    return Discovered(
        workers=tuple(
            Worker(
                key=WorkerKey(f"{entry.name}@{entry.url}"),
                name=entry.name,
                url=entry.url,
                role=entry.role,
                ignores_embeddings=entry.ignores_embeddings,
            )
            for entry in content.workers
        ),
        rule=RoutingRule(routing.max_local_prefill_tokens, routing.max_prefill_queue_size) if routing else None,
        service_uid=content.service_uid,
        bounds=FlowBounds(
            routing.pending_tokens_per_prefill_worker, routing.decoding_per_decode_worker, routing.slack_milliseconds
        )
        if routing
        else UNBOUNDED,
        objectives=Objectives(goals.ttft_ms / 1000, goals.tpot_ms / 1000, goals.ttft_ms_per_prompt_token / 1000)
        if goals
        else None,
    )


async def follow_file(path: Path, found: Callable[[Discovered], None]) -> None:
    """Report the file's workers now and after every change, until cancelled.

    A file that is gone or wrong in between leaves the last workers as they are: an editor at work is no outage.
    """
    seen: tuple[int, int, int] | None = None
    complained = ""
    while True:
        try:
            state = path.stat()
            stamp = (state.st_mtime_ns, state.st_size, state.st_ino)
            if stamp != seen:
                found(read_file(path))
                seen = stamp
                complained = ""
        except (OSError, EndpointsFileInvalid) as error:
            if str(error) != complained:
                complained = str(error)
                log.error("endpoints file not usable", extra={"file": str(path), "why": complained})
        await asyncio.sleep(LOOK_S)
