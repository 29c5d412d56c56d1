"""A pool's ledger: who writes its replicas, and what is in the number already.

It stands in one annotation of the WorkerPool and is written together with ``spec.replicas``, so that a crash between
the two cannot be. :func:`apply_change` is all that happens to it.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any, Final

from pydantic.alias_generators import to_camel

from pointsman.api.protocol.names import COPIED_REPLICAS_ANNOTATION, Role
from pointsman.operator.core.messages import outcomes
from pointsman.operator.core.naming import (
    BEFORE_PLAN_ANNOTATION,
    EXTERNAL,
    LEDGER_ANNOTATION,
    MOVED_BY_ANNOTATION,
    OWNED_REPLICAS_ANNOTATION,
    SET_BY_ANNOTATION,
)

KEPT_SWITCH_UIDS: Final = 50  # far more than can run at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """``copied_replicas`` is what was last copied into the pool from the service's spec.

    ``moved_by`` are the uids of the switches whose ±1 is in the pool's replicas already; ``set_by`` is the uid of the
    plan that wrote them last, ``before_plan`` the number it replaced; ``owned_replicas`` is what the operator wrote
    last while plans own the pool, None while not. ``external``: the policy's mode is External, so others write the
    number.
    """

    copied_replicas: int | None = None
    moved_by: tuple[str, ...] = ()
    set_by: str | None = None
    before_plan: int | None = None
    owned_replicas: int | None = None
    external: bool = False


class ChangeKind(StrEnum):
    """What is done to a pool; the value names it in logs, metrics and Events."""

    COPY = "CopyReplicas"  # the service's number, once it was edited
    MOVE = "MoveReplica"  # ±1 of a switch
    SET = "SetReplicas"  # a plan's number
    OWN = "OwnReplicas"  # others write the number from now on
    RESTORE = "RestoreReplicas"  # what plans had written, instead of what somebody else wrote


class Owner(StrEnum):
    """Who writes the replicas of a pool."""

    PLANS = "plans"
    OTHERS = "others"  # an autoscaler or a user
    SPEC = "spec"  # of the service


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolChange:
    """One change of a pool.

    ``replicas``  the new number, as decided; of OWN by the spec the number that counts as copied already, so that a
                  change of hands scales nothing
    ``delta``     of MOVE
    ``uid``       of the switch (MOVE) or plan (SET)
    ``before``    of SET: the number that the plan replaces; None: the one that is kept stays
    ``owner``     of OWN
    """

    kind: ChangeKind
    why: str
    replicas: int | None = None
    delta: int = 0
    uid: str | None = None
    before: int | None = None
    owner: Owner = Owner.SPEC

    def outcome(self, role: Role, replicas: int) -> str:
        """What happened to the pool of ``role``, which has ``replicas`` after it: the text of the Event."""
        match self.kind:
            case ChangeKind.OWN:
                by_plans, external = self.owner is Owner.PLANS, self.owner is Owner.OTHERS
                return outcomes.replicas_owned(role, self.why, by_plans=by_plans, external=external)
            case ChangeKind.RESTORE:
                return outcomes.replicas_restored(role, replicas, self.why)
        return outcomes.pool_scaled(role, replicas, self.why)


def apply_change(replicas: int, ledger: Ledger, change: PoolChange) -> tuple[int, Ledger]:
    """A pool's number and ledger after a change."""
    number = replicas if change.replicas is None else change.replicas
    match change.kind:
        case ChangeKind.OWN:
            copied = change.replicas if change.owner is Owner.SPEC else None
            return replicas, replace(
                ledger,
                owned_replicas=replicas if change.owner is Owner.PLANS else None,
                external=change.owner is Owner.OTHERS,
                copied_replicas=ledger.copied_replicas if copied is None else copied,
            )
        case ChangeKind.COPY:
            ledger = replace(ledger, copied_replicas=number)
        case ChangeKind.MOVE:
            number = max(1, replicas + change.delta)
            ledger = replace(ledger, moved_by=(*ledger.moved_by, change.uid or "")[-KEPT_SWITCH_UIDS:])
        case ChangeKind.SET:
            before = ledger.before_plan if change.before is None else replicas
            ledger = replace(ledger, set_by=change.uid, before_plan=before)
    owned = None if ledger.owned_replicas is None else number
    return number, replace(ledger, owned_replicas=owned)


def apply_changes(replicas: int, ledger: Ledger, changes: Iterable[PoolChange]) -> tuple[int, Ledger]:
    """A pool's number and ledger after changes, one after another."""
    for change in changes:
        replicas, ledger = apply_change(replicas, ledger, change)
    return replicas, ledger


def change_outcomes(
    role: Role, replicas: int, ledger: Ledger, changes: Iterable[PoolChange]
) -> Iterator[tuple[PoolChange, str]]:
    """Each change of a pool of ``role`` with the text of its Event, which has the number after that change."""
    for change in changes:
        replicas, ledger = apply_change(replicas, ledger, change)
        yield change, change.outcome(role, replicas)


def read_ledger(annotations: Mapping[str, str]) -> Ledger:
    """From a WorkerPool's annotations.

    Earlier versions have an annotation for each field instead of one for all, and write only those. Where one of those
    is there, they are as new as the one or newer.
    """
    if not any(name in annotations for name in _EARLIER):
        return _parsed(annotations.get(LEDGER_ANNOTATION))
    owned = annotations.get(OWNED_REPLICAS_ANNOTATION)
    return Ledger(
        copied_replicas=number(annotations.get(COPIED_REPLICAS_ANNOTATION)),
        moved_by=tuple(uid for uid in annotations.get(MOVED_BY_ANNOTATION, "").split(",") if uid),
        set_by=annotations.get(SET_BY_ANNOTATION),
        before_plan=number(annotations.get(BEFORE_PLAN_ANNOTATION)),
        owned_replicas=number(owned),
        external=owned == EXTERNAL,
    )


def ledger_annotations(ledger: Ledger) -> dict[str, str | None]:
    """What to write; None: no such annotation. One version longer with those that earlier versions read."""
    noted = {to_camel(each.name): getattr(ledger, each.name) for each in fields(ledger)}
    known = {name: value for name, value in noted.items() if value is not None and value is not False and value != ()}
    owned = EXTERNAL if ledger.external else _text(ledger.owned_replicas)
    return {
        LEDGER_ANNOTATION: json.dumps(known, separators=(",", ":"), sort_keys=True),
        COPIED_REPLICAS_ANNOTATION: _text(ledger.copied_replicas),
        MOVED_BY_ANNOTATION: ",".join(ledger.moved_by) or None,
        SET_BY_ANNOTATION: ledger.set_by,
        BEFORE_PLAN_ANNOTATION: _text(ledger.before_plan),
        OWNED_REPLICAS_ANNOTATION: owned,
    }


_EARLIER: Final = (
    COPIED_REPLICAS_ANNOTATION,
    MOVED_BY_ANNOTATION,
    SET_BY_ANNOTATION,
    BEFORE_PLAN_ANNOTATION,
    OWNED_REPLICAS_ANNOTATION,
)


def _parsed(text: str | None) -> Ledger:
    """A ledger that somebody broke counts as none, as every field of it does that has another type."""
    try:
        noted: Any = json.loads(text or "{}")
    except ValueError:
        return Ledger()
    if not isinstance(noted, dict):
        return Ledger()
    moved_by, set_by = noted.get("movedBy"), noted.get("setBy")
    numbers = {name: noted.get(to_camel(name)) for name in ("copied_replicas", "before_plan", "owned_replicas")}
    return Ledger(
        **{name: value for name, value in numbers.items() if type(value) is int},
        moved_by=tuple(str(uid) for uid in moved_by) if isinstance(moved_by, list) else (),
        set_by=set_by if isinstance(set_by, str) else None,
        external=noted.get("external") is True,
    )


def number(text: str | None) -> int | None:
    """An annotation's number; None for none, or what somebody wrote instead of one."""
    return int(text) if text and text.isascii() and text.isdigit() else None


def _text(value: int | None) -> str | None:
    return None if value is None else str(value)
