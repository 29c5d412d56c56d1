"""A pool's ledger: each change of it as a table, and what earlier versions wrote and read."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.api.protocol.names import COPIED_REPLICAS_ANNOTATION, Role
from pointsman.operator.core.actions import WritePool, merge_pool_writes, write_pool
from pointsman.operator.core.ledger import (
    KEPT_SWITCH_UIDS,
    ChangeKind,
    Ledger,
    Owner,
    PoolChange,
    apply_change,
    apply_changes,
    change_outcomes,
    ledger_annotations,
    read_ledger,
)
from pointsman.operator.core.messages import outcomes
from pointsman.operator.core.naming import (
    BEFORE_PLAN_ANNOTATION,
    LEDGER_ANNOTATION,
    MOVED_BY_ANNOTATION,
    OWNED_REPLICAS_ANNOTATION,
    SET_BY_ANNOTATION,
)


def change(kind: ChangeKind, **facts: Any) -> PoolChange:
    return PoolChange(kind=kind, why="a reason", **facts)


COPY_3 = change(ChangeKind.COPY, replicas=3)
SET_4 = change(ChangeKind.SET, replicas=4, before=2, uid="plan")
GIVE_UP_3 = change(ChangeKind.SET, replicas=3, uid="plan")
PLUS_1 = change(ChangeKind.MOVE, replicas=3, delta=1, uid="switch")
MINUS_1 = change(ChangeKind.MOVE, replicas=1, delta=-1, uid="switch")
PLANS = change(ChangeKind.OWN, owner=Owner.PLANS)
OTHERS = change(ChangeKind.OWN, owner=Owner.OTHERS)
SPEC = change(ChangeKind.OWN, owner=Owner.SPEC, replicas=5)
OWNED_2 = Ledger(copied_replicas=1, owned_replicas=2)


@pytest.mark.parametrize(
    ("replicas", "ledger", "done", "number", "after"),
    [
        (2, Ledger(copied_replicas=1), COPY_3, 3, Ledger(copied_replicas=3)),
        (2, Ledger(copied_replicas=1), PLANS, 2, Ledger(copied_replicas=1, owned_replicas=2)),
        (2, Ledger(copied_replicas=1), OTHERS, 2, Ledger(copied_replicas=1, external=True)),
        (2, OWNED_2, OTHERS, 2, Ledger(copied_replicas=1, external=True)),
        (2, OWNED_2, SPEC, 2, Ledger(copied_replicas=5)),
        (2, Ledger(external=True), PLANS, 2, Ledger(owned_replicas=2)),
        (2, Ledger(external=True, copied_replicas=1), SPEC, 2, Ledger(copied_replicas=5)),
        (2, OWNED_2, SET_4, 4, Ledger(copied_replicas=1, owned_replicas=4, set_by="plan", before_plan=2)),
        (4, Ledger(set_by="plan", before_plan=2), GIVE_UP_3, 3, Ledger(set_by="plan", before_plan=2)),
        (2, Ledger(), PLUS_1, 3, Ledger(moved_by=("switch",))),
        (2, OWNED_2, PLUS_1, 3, Ledger(copied_replicas=1, owned_replicas=3, moved_by=("switch",))),
        (1, Ledger(), MINUS_1, 1, Ledger(moved_by=("switch",))),  # a pool has one worker at least
        (7, OWNED_2, change(ChangeKind.RESTORE, replicas=2), 2, OWNED_2),
    ],
)
def test_what_a_change_makes_of_number_and_ledger(
    replicas: int, ledger: Ledger, done: PoolChange, number: int, after: Ledger
) -> None:
    assert apply_change(replicas, ledger, done) == (number, after)


def test_a_change_of_hands_and_a_plan_in_one_pass_are_what_they_are_in_two() -> None:
    assert apply_changes(2, Ledger(), (PLANS, SET_4)) == (4, Ledger(owned_replicas=4, set_by="plan", before_plan=2))


def test_what_a_plan_replaces_is_not_what_somebody_wrote_in_between() -> None:
    number, after = apply_changes(7, OWNED_2, (change(ChangeKind.RESTORE, replicas=2), SET_4))
    assert (number, after.before_plan) == (4, 2)


def test_old_switches_are_forgotten() -> None:
    ledger = Ledger(moved_by=tuple(map(str, range(KEPT_SWITCH_UIDS))))
    _, after = apply_change(2, ledger, PLUS_1)
    assert after.moved_by == (*ledger.moved_by[1:], "switch")


def test_all_changes_of_a_pool_are_one_write() -> None:
    changes = [(Role.DECODE, PLANS), (Role.PREFILL, PLANS), (Role.DECODE, SET_4)]
    writes = list(merge_pool_writes(write_pool(role, "7", each) for role, each in changes))
    assert writes == [
        WritePool(role=Role.DECODE, changes=(PLANS, SET_4), resource_version="7", why="a reason"),
        write_pool(Role.PREFILL, "7", PLANS),
    ]


EARLIER = {
    COPIED_REPLICAS_ANNOTATION: "1",
    MOVED_BY_ANNOTATION: "a,b",
    SET_BY_ANNOTATION: "plan",
    BEFORE_PLAN_ANNOTATION: "2",
    OWNED_REPLICAS_ANNOTATION: "4",
}
FULL = Ledger(copied_replicas=1, moved_by=("a", "b"), set_by="plan", before_plan=2, owned_replicas=4)


def test_the_ledger_is_one_annotation() -> None:
    noted = '{"beforePlan":2,"copiedReplicas":1,"movedBy":["a","b"],"ownedReplicas":4,"setBy":"plan"}'
    assert ledger_annotations(FULL)[LEDGER_ANNOTATION] == noted


def test_annotations_of_an_earlier_version_are_read_and_still_written() -> None:
    assert read_ledger(EARLIER) == FULL
    written = ledger_annotations(FULL)
    assert {name: written[name] for name in EARLIER} == EARLIER
    external = ledger_annotations(Ledger(external=True))
    assert external[OWNED_REPLICAS_ANNOTATION] == "external"
    assert [name for name, value in external.items() if value is None] == [
        COPIED_REPLICAS_ANNOTATION,
        MOVED_BY_ANNOTATION,
        SET_BY_ANNOTATION,
        BEFORE_PLAN_ANNOTATION,
    ]


def test_what_an_earlier_version_wrote_after_a_rollback_counts() -> None:
    ours = {name: value for name, value in ledger_annotations(FULL).items() if value is not None}
    theirs = {**ours, COPIED_REPLICAS_ANNOTATION: "6"}
    del theirs[OWNED_REPLICAS_ANNOTATION]
    assert read_ledger(theirs) == Ledger(copied_replicas=6, moved_by=("a", "b"), set_by="plan", before_plan=2)


def test_without_the_annotations_of_earlier_versions_the_ledger_is_all() -> None:
    assert read_ledger({LEDGER_ANNOTATION: ledger_annotations(FULL)[LEDGER_ANNOTATION] or ""}) == FULL


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"copiedReplicas": "x", "movedBy": 3, "external": 1}'])
def test_a_ledger_that_somebody_broke_counts_as_none(text: str) -> None:
    assert read_ledger({LEDGER_ANNOTATION: text}) == Ledger()
    assert read_ledger({COPIED_REPLICAS_ANNOTATION: "x", LEDGER_ANNOTATION: text}) == Ledger()


_numbers = st.none() | st.integers(0, 99)
_uids = st.text("abc-", min_size=1, max_size=5)


@given(
    copied=_numbers, moved=st.lists(_uids, max_size=4), set_by=st.none() | _uids, before=_numbers, owned=_numbers,
    external=st.booleans(),
)  # fmt: skip
def test_what_is_written_is_read(
    copied: int | None, moved: list[str], set_by: str | None, before: int | None, owned: int | None, external: bool
) -> None:
    ledger = Ledger(
        copied_replicas=copied, moved_by=tuple(moved), set_by=set_by, before_plan=before,
        owned_replicas=None if external else owned, external=external,
    )  # fmt: skip
    written = {name: value for name, value in ledger_annotations(ledger).items() if value is not None}
    assert read_ledger(written) == ledger
    assert read_ledger({LEDGER_ANNOTATION: written[LEDGER_ANNOTATION]}) == ledger


def test_each_event_of_one_write_has_the_number_after_its_change() -> None:
    """A switch's number was decided before the user's edit came into the same write."""
    changes = (change(ChangeKind.COPY, replicas=5), PLUS_1)
    texts = [text for _, text in change_outcomes(Role.DECODE, 2, Ledger(copied_replicas=2), changes)]
    assert texts == [outcomes.pool_scaled(Role.DECODE, number, "a reason") for number in (5, 6)]
