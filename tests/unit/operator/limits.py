"""A policy with bounds."""

from collections.abc import Mapping
from typing import Any, Final

from pointsman.api.v1alpha1.plannerpolicy import Mode, PlannerPolicySpec
from pointsman.operator.core.snapshot import Policy

NONE: Final[Mapping[str, Any]] = {}


def policy(
    mode: Mode = Mode.ACTIVE, *, budget: dict[str, int] | None = None, actions: Mapping[str, Any] = NONE
) -> Policy:
    """A policy with ``actions`` as a user writes them."""
    body = {
        "mode": mode,
        "objectives": {"ttftMs": 1000, "tpotMs": 50},
        "budget": budget or {"maxGpus": 12},
        "actions": dict(actions),
    }
    return Policy(name="chat", spec=PlannerPolicySpec.model_validate(body))
