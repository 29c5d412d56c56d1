"""When the live loop writes what it knows: plans that only route in Shadow, and its memory for ``explain``."""

from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pointsman.api.v1alpha1.plannerpolicy import PlannerPolicy
from pointsman.kube.clock import SYSTEM_CLOCK
from pointsman.planner.core.observe import Reading
from pointsman.planner.core.state import State
from pointsman.planner.core.types import Decision, Reason, RoutingNumbers, WorkerCondition
from pointsman.planner.loop import SHADOW_ROUTING_S, _Planned, _said, _told_lately
from pointsman.planner.memory import Last
from pointsman.planner.plan_writer import PlanWriter
from pointsman.planner.scraper import Scraper
from pointsman.planner.source import Source
from unit.planner.test_decide import LONG, observed
from unit.planner.test_ledger import DECISION, NOW, plan, policy

NO_PLANS = cast(PlanWriter, SimpleNamespace())
ROUTING = Decision(Reason.THRESHOLD, "320 tokens", 2, 3, RoutingNumbers(320, 32), routing_reason=Reason.THRESHOLD)
SHADOW: dict[str, Any] = {"mode": "Shadow"}


def lately(decision: Decision, *plans: Any, after_s: float, **fields: Any) -> bool:
    given = cast(PlannerPolicy, SimpleNamespace(spec=policy(**fields)))
    return _told_lately(decision, plans, given, NOW + timedelta(seconds=after_s))


def test_in_shadow_routing_alone_is_written_once_a_minute() -> None:
    before = plan(ROUTING, sequence=3, phase="Shadow", **SHADOW)
    assert not lately(ROUTING, after_s=0, **SHADOW), "nothing was written yet"
    assert lately(ROUTING, before, after_s=3, **SHADOW)
    assert not lately(ROUTING, before, after_s=SHADOW_ROUTING_S, **SHADOW)
    assert not lately(ROUTING, before, after_s=-3600, **SHADOW), "the wall clock was set back"


def test_a_layout_is_written_at_once_and_so_is_routing_that_is_carried_out() -> None:
    shadow, active = plan(ROUTING, phase="Shadow", **SHADOW), plan(ROUTING, phase="Completed", mode="Active")
    assert not lately(DECISION, shadow, after_s=3, **SHADOW)
    assert not lately(ROUTING, active, after_s=3, mode="Active")
    assert not lately(ROUTING, shadow, after_s=3, mode="Active"), "it was switched on: now the numbers count"
    assert not lately(ROUTING, active, after_s=3, **SHADOW)


def asked_for_no_page() -> Source:
    parts: Any = {"scraper": Scraper(1.0), "secrets": None}
    return Source("", timeout_s=1.0, clock=SYSTEM_CLOCK, **parts)


def kept(decision: Decision, **seen: Any) -> _Planned:
    source = asked_for_no_page()
    return _Planned("u", State(), 0, source, NO_PLANS, last=Last(replace(observed(0.0, LONG, 2, 3), **seen), decision))


@pytest.mark.parametrize(
    ("after", "news"),
    [
        (kept(ROUTING), False),
        (kept(replace(ROUTING, reason=Reason.FLOW_CONTROL)), False),  # it comes in turn with the threshold
        (kept(replace(ROUTING, reason=Reason.STALE_METRICS)), True),
        (kept(replace(ROUTING, prefill=3)), True),
        (kept(ROUTING, awaiting_approval=(3, 2)), True),
        (kept(ROUTING, plan_in_progress=True), True),
        (
            kept(
                ROUTING,
                workers=tuple(
                    replace(w, condition=WorkerCondition.UNREACHABLE) for w in observed(0.0, LONG, 2, 3).workers
                ),
            ),
            True,
        ),
    ],
)
def test_the_memory_is_saved_soon_where_an_explanation_would_tell_something_else(after: _Planned, news: bool) -> None:
    assert (_said(after) != _said(kept(ROUTING))) is news


def test_a_gateway_is_new_for_no_longer_than_metrics_may_be_old() -> None:
    read, source = Reading({}, None, 0.0), asked_for_no_page()
    assert source.is_first_look({"old": None}, 0.0, 15.0)
    assert source.is_first_look({"old": read, "new": None}, 100.0, 15.0)
    assert source.is_first_look({"old": read, "new": None}, 110.0, 15.0)
    assert not source.is_first_look({"old": read, "new": None}, 120.0, 15.0), (
        "a page that never gets a second one freezes everything"
    )
    assert not source.is_first_look({"old": None, "new": read}, 120.0, 15.0)
    assert not source.is_first_look({}, 120.0, 15.0)
