"""The planner's memory of each service, in one ConfigMap only the planner writes: a restart goes on, not from zero."""

import logging
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from pointsman.kube import resources
from pointsman.kube.client import Kube
from pointsman.planner.core.decide import STATE_VERSION, State

log = logging.getLogger(__name__)

CONFIG_MAP_SUFFIX: Final = "-planner-state"
_KEY: Final = "state.json"
_STATE: TypeAdapter[State] = TypeAdapter(State)


def to_json(state: State) -> str:
    """The state as JSON."""
    return _STATE.dump_json(state).decode()


def from_json(text: str) -> State | None:
    """The state in ``text``; None if it is of another version or cannot be read: then the planner begins anew."""
    try:
        state = _STATE.validate_json(text)
    except ValidationError as error:
        log.warning("a saved state cannot be read, it is begun anew: %s", error.errors()[:1])
        return None
    return state if state.version == STATE_VERSION else None


async def load(kube: Kube, namespace: str, service: str) -> tuple[State | None, int]:
    """The saved state and the last plan's number; (None, 0) if there is none."""
    found = await kube.find(resources.CONFIG_MAPS, service + CONFIG_MAP_SUFFIX, namespace)
    data: dict[str, str] = (found or {}).get("data") or {}
    sequence = data.get("sequence", "0")
    state = from_json(data[_KEY]) if _KEY in data else None
    return state, int(sequence) if sequence.isascii() and sequence.isdigit() else 0


async def save(kube: Kube, owner: dict[str, Any], namespace: str, service: str, state: State, sequence: int) -> None:
    """Write the state. Raises KubeError."""
    await kube.apply(
        resources.CONFIG_MAPS,
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": service + CONFIG_MAP_SUFFIX, "namespace": namespace, "ownerReferences": [owner]},
            "data": {_KEY: to_json(state), "sequence": str(sequence)},
        },
    )
