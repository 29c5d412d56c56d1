"""The variables of Pointsman that a pod template may set: how embeddings and inputs of images travel between workers.

Everything else that begins with ``POINTSMAN_`` is the operator's. The worker's own settings have the same bounds
(``workers/…/multimodal/*/settings.py``); they are repeated here so that a mistake is named before a pod is made.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from pointsman.api.v1alpha1.engine_flags import OWNED_ENVIRONMENT_PATTERN

EMBEDDING_TRANSPORTS: Final = ("shared_memory", "nixl", "tcp")
INPUT_BROADCAST_MODES: Final = ("sync", "async", "delayed", "combined", "auto")


@dataclass(frozen=True, slots=True)
class SettableVariable:
    """``is_right`` says whether a value can be used; ``values`` are the words for those that can."""

    is_right: Callable[[str], bool]
    values: str


def _whole_number(least: int) -> SettableVariable:
    def is_right(value: str) -> bool:
        return re.fullmatch("[0-9]{1,18}", value) is not None and int(value) >= least

    return SettableVariable(is_right, f"a whole number of {least} or more")


def _seconds(value: str) -> bool:
    return re.fullmatch(r"[0-9]{1,9}([.][0-9]{1,9})?", value) is not None and float(value) > 0


def _transports(value: str) -> bool:
    return set(value.split(",")) <= set(EMBEDDING_TRANSPORTS)


_COUNT: Final = _whole_number(1)
_SECONDS: Final = SettableVariable(_seconds, "a number of seconds above 0")

SETTABLE_ENVIRONMENT: Final[Mapping[str, SettableVariable]] = MappingProxyType(
    {
        "POINTSMAN_MULTIMODAL_BLOCK_SIZE": _COUNT,
        "POINTSMAN_DEFAULT_MULTIMODAL_BLOCKS": _COUNT,
        "POINTSMAN_EMBEDDING_CACHE_BUFFER_SIZE": _COUNT,
        "POINTSMAN_EMBEDDING_CACHE_MIB": _COUNT,
        "POINTSMAN_EMBEDDING_FETCH_TIMEOUT_SECONDS": _SECONDS,
        "POINTSMAN_EMBEDDING_TRANSFER_TIMEOUT_SECONDS": _SECONDS,
        "POINTSMAN_EMBEDDING_TRANSFER_TRANSPORTS": SettableVariable(
            _transports, f"names of {', '.join(EMBEDDING_TRANSPORTS)}, separated by commas"
        ),
        "POINTSMAN_INPUT_BROADCAST": SettableVariable(("true", "false").__contains__, "true or false"),
        "POINTSMAN_INPUT_BROADCAST_MODE": SettableVariable(
            INPUT_BROADCAST_MODES.__contains__, f"one of {', '.join(INPUT_BROADCAST_MODES)}"
        ),
        "POINTSMAN_INPUT_BROADCAST_SIZE_THRESHOLD_BYTES": _whole_number(0),
        "POINTSMAN_INPUT_BROADCAST_MAX_PENDING_BYTES": _COUNT,
        "POINTSMAN_INPUT_BROADCAST_THREADS": _COUNT,
        "POINTSMAN_INPUT_BROADCAST_STALL_SECONDS": _SECONDS,
        "POINTSMAN_INPUT_BROADCAST_JOIN_SECONDS": _SECONDS,
    }
)
"""By name, what a template of ``spec.worker`` or ``spec.encode`` may set of the container ``engine``."""

SETTABLE_ENVIRONMENT_PATTERN: Final = (
    "^POINTSMAN_(INPUT_BROADCAST|EMBEDDING_(CACHE|FETCH|TRANSFER)_|(DEFAULT_)?MULTIMODAL_BLOCK)"
)
"""For the CRDs: how all of them begin. The API server bounds the length of a rule; the operator checks the rest."""


def is_owned_variable(name: str, *, settable: bool = True) -> bool:
    """Whether a template may not set the variable ``name``; ``settable``: those in ``SETTABLE_ENVIRONMENT`` it may."""
    return re.match(OWNED_ENVIRONMENT_PATTERN, name) is not None and not (settable and name in SETTABLE_ENVIRONMENT)
