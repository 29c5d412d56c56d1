"""The planner's memory of each service, in one ConfigMap only the planner writes: a restart goes on, not from zero."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from pointsman.kube import resources
from pointsman.kube.client import Kube
from pointsman.planner.core.messages import explanations
from pointsman.planner.core.routing.publication import Publication
from pointsman.planner.core.state import STATE_VERSION, State
from pointsman.planner.core.types import Decision, Observation

log = logging.getLogger(__name__)

CONFIG_MAP_SUFFIX: Final = "-planner-state"
_KEY: Final = "state.json"
_LAST_KEY: Final = "last.json"
_ROUTING_KEY: Final = "routing.json"
_LEFT_OUT_KEY: Final = "last.leftOut"  # instead of it: how many bytes it would have had
MOST_KEPT_BYTES: Final = 1_000_000  # of a ConfigMap's 1 MiB; beyond it the API server would take nothing
SAVE_EVERY_S: Final = 30.0
NEVER_S: Final = 1e9  # what stands for infinite in JSON
_STATE: TypeAdapter[State] = TypeAdapter(State)


@dataclass(frozen=True, slots=True)
class Last:
    """The last look at a service: not needed to go on, only to explain."""

    observation: Observation
    decision: Decision


@dataclass(frozen=True, slots=True)
class NoLast:
    """There is none that can be read. ``why``: as a sentence."""

    why: str


_LAST: TypeAdapter[Last] = TypeAdapter(Last)
_PUBLICATIONS: TypeAdapter[tuple[Publication, ...]] = TypeAdapter(tuple[Publication, ...])


def to_json(state: State) -> str:
    """The state as JSON."""
    return _STATE.dump_json(state).decode()


def last_to_json(last: Last) -> str:
    """The last look as JSON, which has no infinity: what was never read is older than anything."""
    return _LAST.dump_json(replace(last, observation=finite(last.observation))).decode()


def finite(observation: Observation) -> Observation:
    """Without what JSON has no number for, and without single measurements."""
    return replace(
        observation,
        age_s=min(observation.age_s, NEVER_S),
        gateways_age_s=_finite(observation.gateways_age_s),
        workers_age_s=_finite(observation.workers_age_s),
        samples=(),
    )


def _finite(age_s: float | None) -> float | None:
    return None if age_s is None else min(age_s, NEVER_S)


def from_json(text: str, service: str | None = None) -> State | None:
    """The state in ``text``; None if it is of another version or cannot be read: then the planner begins anew.

    ``service`` (namespace/name) is for the log.
    """
    text = text.replace('"fitted":', '"engine_model":', 1)  # the field's former name
    try:
        state = _STATE.validate_json(text)
    except ValidationError as error:
        log.warning("saved state not readable, it is discarded", extra={"service": service, "why": error.errors()[:1]})
        return None
    if state.version != STATE_VERSION:
        log.info(
            "saved state of another version, it is discarded",
            extra={"service": service, "version": state.version, "expected": STATE_VERSION},
        )
        return None
    if state.score.observed is not None and state.score.requests == 0:
        # Saved before requests were counted: a mean over the last 500, which the next look must not replace.
        state = replace(state, score=replace(state.score, requests=500.0))
    return state


async def load(kube: Kube, namespace: str, service: str, uid: str) -> tuple[State | None, int]:
    """The saved state and the last plan's number; (None, 0) if there is none.

    ``uid``: of the service. What is remembered of another one that had its name is not of its engine, nor of its load;
    the number is gone on from, since its plans may be there still.
    """
    text, sequence = await load_state(kube, namespace, service, uid)
    return (None if text is None else from_json(text, f"{namespace}/{service}")), sequence


async def load_state(kube: Kube, namespace: str, name: str, uid: str) -> tuple[str | None, int]:
    """The same as it was saved, also of an elastic group."""
    data, its = await _data(kube, namespace, name, uid)
    sequence = data.get("sequence", "0")
    return (data.get(_KEY) if its else None), int(sequence) if sequence.isascii() and sequence.isdigit() else 0


async def load_last(kube: Kube, namespace: str, service: str, uid: str) -> Last | NoLast:
    """What was observed and decided last, for those who explain it; or why that is not known."""
    text = await load_look(kube, namespace, service, uid)
    if isinstance(text, NoLast):
        return text
    try:
        return _LAST.validate_json(text)
    except ValidationError:
        return UNREADABLE


UNREADABLE: Final = NoLast(explanations.EVALUATION_UNREADABLE)


async def load_publications(kube: Kube, namespace: str, service: str, uid: str) -> tuple[Publication, ...]:
    """The last publications of routing numbers, the newest last; none where they cannot be read."""
    data, its = await _data(kube, namespace, service, uid)
    try:
        return _PUBLICATIONS.validate_json(data[_ROUTING_KEY]) if its and _ROUTING_KEY in data else ()
    except ValidationError as error:
        log.warning(
            "saved publications not readable, they are discarded",
            extra={"service": f"{namespace}/{service}", "why": error.errors()[:1]},
        )
        return ()


async def load_look(kube: Kube, namespace: str, name: str, uid: str) -> str | NoLast:
    """The last look as it was saved, also of an elastic group; or why it is not known."""
    data, its = await _data(kube, namespace, name, uid)
    if not its or not data:
        return NoLast(explanations.not_evaluated(name))
    if _LEFT_OUT_KEY in data:
        return NoLast(explanations.evaluation_too_large(name, data[_LEFT_OUT_KEY]))
    if _LAST_KEY not in data:
        return UNREADABLE  # saved by an earlier version
    return data[_LAST_KEY]


async def _data(kube: Kube, namespace: str, service: str, uid: str) -> tuple[dict[str, str], bool]:
    """(what is kept, whether it is this service's)."""
    found = await kube.find(resources.CONFIG_MAPS, service + CONFIG_MAP_SUFFIX, namespace) or {}
    owners = [owner.get("uid") for owner in found.get("metadata", {}).get("ownerReferences") or ()]
    return found.get("data") or {}, not owners or uid in owners


async def save(
    kube: Kube,
    owner: dict[str, Any],
    namespace: str,
    service: str,
    state: State,
    sequence: int,
    last: Last | None = None,
    publications: tuple[Publication, ...] = (),
) -> None:
    """Write the state. Raises KubeError."""
    looked = last_to_json(last) if last is not None else ""
    more = {_ROUTING_KEY: _PUBLICATIONS.dump_json(publications).decode()} if publications else {}
    await save_texts(kube, owner, namespace, service, to_json(state), sequence, looked, more)


async def save_texts(
    kube: Kube,
    owner: dict[str, Any],
    namespace: str,
    service: str,
    state: str,
    sequence: int,
    looked: str,
    more: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """The same, also of an elastic group; ``looked``: the last look, if there was one. Raises KubeError."""
    data = {_KEY: state, "sequence": str(sequence), **more}
    if looked and sum(len(text.encode()) for text in (*data.values(), looked)) < MOST_KEPT_BYTES:
        data[_LAST_KEY] = looked
    elif looked:
        data[_LEFT_OUT_KEY] = str(len(looked.encode()))
    await kube.apply(
        resources.CONFIG_MAPS,
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": service + CONFIG_MAP_SUFFIX, "namespace": namespace, "ownerReferences": [owner]},
            "data": data,
        },
    )
