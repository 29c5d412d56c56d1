"""The planner's memory of elastic groups, in ConfigMaps as those of services (`memory.py`)."""

import logging
from dataclasses import dataclass, replace
from typing import Any

from pydantic import TypeAdapter, ValidationError

from pointsman.kube.client import Kube
from pointsman.planner import memory
from pointsman.planner.core.elastic.decide import GROUP_STATE_VERSION, GroupState
from pointsman.planner.core.elastic.types import GroupDecision, GroupObservation

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GroupLast:
    """The last look at an elastic group."""

    observation: GroupObservation
    decision: GroupDecision


_STATE: TypeAdapter[GroupState] = TypeAdapter(GroupState)
_LAST: TypeAdapter[GroupLast] = TypeAdapter(GroupLast)


async def load(kube: Kube, namespace: str, group: str, uid: str) -> tuple[GroupState, int]:
    """The saved state and the last plan's number; a fresh one where none can be read."""
    text, sequence = await memory.load_state(kube, namespace, group, uid)
    return (GroupState() if text is None else _state(text, f"{namespace}/{group}")), sequence


def _state(text: str, group: str) -> GroupState:
    """``group`` (namespace/name) is for the log."""
    try:
        state = _STATE.validate_json(text)
    except ValidationError as error:
        log.warning("saved state not readable, it is discarded", extra={"group": group, "why": error.errors()[:1]})
        return GroupState()
    if state.version != GROUP_STATE_VERSION:
        log.info(
            "saved state of another version, it is discarded",
            extra={"group": group, "version": state.version, "expected": GROUP_STATE_VERSION},
        )
        return GroupState()
    return state


async def load_last(kube: Kube, namespace: str, group: str, uid: str) -> GroupLast | memory.NoLast:
    """What was seen and decided last, or why that is not known."""
    text = await memory.load_look(kube, namespace, group, uid)
    if isinstance(text, memory.NoLast):
        return text
    try:
        return _LAST.validate_json(text)
    except ValidationError:
        return memory.UNREADABLE


async def save(
    kube: Kube, owner: dict[str, Any], namespace: str, group: str, state: GroupState, sequence: int, last: GroupLast
) -> None:
    """Raises KubeError."""
    finite = replace(last, observation=replace(last.observation, seen=memory.finite(last.observation.seen)))
    text = _STATE.dump_json(state).decode()
    await memory.save_texts(kube, owner, namespace, group, text, sequence, _LAST.dump_json(finite).decode())
