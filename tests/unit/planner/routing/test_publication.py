"""When routing numbers are published: with the interval, and at once where a bound falls under overload."""

from dataclasses import replace
from typing import Any

import pytest

from pointsman.api.v1alpha1.plannerpolicy import Mode
from pointsman.planner.core.routing.publication import Publication, changes, is_due
from pointsman.planner.core.tuning import SHIPPED
from pointsman.planner.core.types import Decision, Objectives, Policy, Reason, RoutingNumbers, Service
from pointsman.serving.flow_control import UNBOUNDED, FlowBounds
from unit.planner.scenes import observed

IN_FORCE = RoutingNumbers(512, 32, FlowBounds(1000, 12, 800))
TIGHTER = replace(IN_FORCE, flow=FlowBounds(700, 12, 800))
LOOSER = replace(IN_FORCE, flow=FlowBounds(1400, 12, 800))
CALM, LATE, QUEUED = Service(attainment=0.99, held=0.0), Service(attainment=0.8), Service(attainment=0.99, held=3.0)


def due(
    numbers: RoutingNumbers,
    *,
    after_s: float | None = 5.0,
    service: Service | None = CALM,
    before: RoutingNumbers = IN_FORCE,
    own_after_s: float | None = None,
    made_for: Objectives | None = None,
    **policy: Any,
) -> bool:
    """Whether the numbers are published so long after the last publication, by the status and by the own history."""
    seen = replace(observed(0.0, None), routing=before, service=service)
    why = Reason.FLOW_CONTROL if numbers != before else None
    decision = Decision(Reason.STEADY, "", 2, 3, numbers, routing_reason=why)
    published_s = None if after_s is None else 1000.0 - after_s
    last = None
    if own_after_s is not None:
        last = Publication(1000.0 - own_after_s, Reason.FLOW_CONTROL, before, before, made_for)
    return is_due(decision, seen, replace(Policy(mode=Mode.ACTIVE), **policy), published_s, last, 1000.0)


@pytest.mark.parametrize("service", [CALM, LATE, QUEUED, None])
@pytest.mark.parametrize("numbers", [LOOSER, replace(IN_FORCE, max_prefill_queue_size=64)])
def test_a_bound_that_rises_waits_for_the_interval(numbers: RoutingNumbers, service: Service | None) -> None:
    assert not due(numbers, service=service)
    assert due(numbers, service=service, after_s=SHIPPED.publish_interval_s)


def test_a_bound_that_falls_waits_only_while_clients_get_what_they_should() -> None:
    assert not due(TIGHTER)
    assert not due(TIGHTER, service=None), "unknown is no overload"
    assert due(TIGHTER, after_s=SHIPPED.publish_interval_s)
    for overloaded in (LATE, QUEUED):
        assert due(TIGHTER, service=overloaded)
        first = replace(IN_FORCE, flow=UNBOUNDED)
        assert due(IN_FORCE, before=first, service=overloaded), "a bound where none was"


def test_the_threshold_and_the_first_numbers_of_all_wait_for_nothing() -> None:
    assert due(replace(IN_FORCE, max_local_prefill_tokens=384))
    assert due(LOOSER, after_s=None)


def test_without_a_time_in_the_status_the_own_history_counts() -> None:
    """CRDs of an earlier version have no ``updatedAt``."""
    assert not due(LOOSER, after_s=None, own_after_s=5.0)
    assert due(LOOSER, after_s=None, own_after_s=SHIPPED.publish_interval_s)
    assert not due(LOOSER, after_s=5.0, own_after_s=3600.0), "a history that was not saved before a restart"
    assert not due(LOOSER, after_s=3600.0, own_after_s=5.0)


def test_an_edit_of_the_objectives_waits_for_nothing() -> None:
    made_for = Policy().objectives
    edited = replace(made_for, ttft_ms=2 * made_for.ttft_ms)
    assert not due(LOOSER, own_after_s=5.0, made_for=made_for)
    assert due(LOOSER, own_after_s=5.0, made_for=made_for, objectives=edited)
    assert due(TIGHTER, own_after_s=5.0, made_for=edited)
    assert not due(IN_FORCE, own_after_s=5.0, made_for=edited), "no number follows from the edit"
    assert not due(LOOSER, own_after_s=5.0, made_for=edited, mode=Mode.SHADOW)


def test_a_wall_clock_that_was_set_back_is_not_waited_for() -> None:
    assert due(LOOSER, after_s=-3600)


def test_numbers_that_do_not_change_are_never_published_and_in_shadow_none_are() -> None:
    assert not due(IN_FORCE, after_s=3600)
    assert not due(replace(TIGHTER, max_local_prefill_tokens=64), service=LATE, after_s=None, mode=Mode.SHADOW)
    assert due(TIGHTER, after_s=None, mode=Mode.EXTERNAL)
    assert due(TIGHTER, after_s=None, mode=Mode.APPROVE)


def test_what_a_publication_changes_is_named_as_in_the_status() -> None:
    assert changes(IN_FORCE, TIGHTER) == ["pendingTokensPerPrefillWorker 1000 -> 700"]
    after = RoutingNumbers(384, 32)
    assert changes(IN_FORCE, after) == [
        "maxLocalPrefillTokens 512 -> 384",
        "pendingTokensPerPrefillWorker 1000 -> unset",
        "decodingPerDecodeWorker 12 -> unset",
        "slackMilliseconds 800 -> unset",
    ]
