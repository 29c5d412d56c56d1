"""What makes a worker different from another, and which workers may exchange KV."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

from pointsman.api.protocol.names import Role
from pointsman.api.v1alpha1.llmservice import LLMServiceSpec

_REVISION_LENGTH: Final = 9
_COMPATIBILITY_LENGTH: Final = 8


def digest(value: Any, length: int) -> str:
    """The first ``length`` hex digits of the SHA-256 of ``value`` as canonical JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def revision(spec: LLMServiceSpec, role: Role = Role.DECODE) -> str:
    """Hash of what the user wrote that reaches the engine of a worker of ``role``.

    Prefill and decode workers have one revision, encode workers have another. Not in it: replicas, scaling, drain,
    gateway, labels of the template (a change of those restarts nothing), and the operator's default image: an upgrade
    of the operator alone makes no worker outdated.
    """
    template = spec.template_of(role)
    template.pop("metadata", None)
    limits = spec.worker.limits.manifest() if spec.worker.limits is not None else {}
    engine = spec.engine.model_dump(mode="json", by_alias=True, exclude_none=True)
    of_role: dict[str, Any] = {"encode": True} if spec.encode is not None else {}
    if role is Role.ENCODE:
        engine["args"] = list(spec.engine_args_of(role))
        cache = {} if spec.multimodal is None else {"cacheMiB": spec.multimodal.cache_mib}
        of_role = {"role": role.value, **cache}
    return digest(
        {
            "model": spec.model.model_dump(mode="json", by_alias=True, exclude_none=True),
            "engine": engine,
            "gpus": spec.gpus_of(role),
            "template": template,
            **({"limits": limits} if limits else {}),  # absent: the hash of a version that had no limits
            **of_role,  # empty: the hash of a version that had no encode workers
        },
        _REVISION_LENGTH,
    )


def kv_compatibility(inputs: Mapping[str, Any]) -> str:
    """Hash of what decides whether two engines may exchange KV; the engine's adapter says what that is."""
    return digest(dict(inputs), _COMPATIBILITY_LENGTH)
