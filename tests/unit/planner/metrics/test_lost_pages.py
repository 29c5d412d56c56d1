"""Pages that could not be read: what they would show stays as it was, nobody is removed, and what is known counts.

Three gateways and five workers, each with a page of its own, from which observations are made as live.

P-D9: once one lost page of one gateway stopped all decisions.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman.api.protocol import metrics as named
from pointsman.api.protocol.names import Role
from pointsman.api.v1alpha1.plannerpolicy import Mode
from pointsman.planner.core.decide import decide
from pointsman.planner.core.metrics.observe import LONG_UNREAD_S, Reading, Seen, counted_once, observation
from pointsman.planner.core.metrics.scrape_pair import Labels, Page
from pointsman.planner.core.state import State
from pointsman.planner.core.types import (
    Bounds,
    Decision,
    Objectives,
    Observation,
    Policy,
    Reason,
    RoutingNumbers,
    Worker,
    WorkerCondition,
)
from unit.planner.scenes import LLAMA_8B_H100, LONG, observed
from unit.planner.scenes import POLICY as SMALL

GATEWAYS = ("g0", "g1", "g2")
WORKERS = ("p0", "p1", "d0", "d1", "d2")
LOOK_S = 2.5
LOOKS_BEFORE = 60
POLICY = Policy(
    mode=Mode.ACTIVE, objectives=Objectives(ttft_ms=1500, tpot_ms=40), max_gpus=12, min_gpus=2,
    prefill=Bounds(1, 8), decode=Bounds(1, 8), role_switch=False, scale_in_stabilization_s=30.0, start_s=20.0,
)  # fmt: skip
NEEDS = ("prefillNeededNow", "prefillNeeded", "decodeNeededNow", "decodeNeeded")


def histogram(name: str, value: float, bounds: tuple[float, ...], count: float) -> Page:
    """Of ``count`` times the same value."""
    buckets: dict[Labels, float] = {(("le", str(bound)),): count * (value <= bound) for bound in bounds}
    return {f"{name}_bucket": {**buckets, (("le", "+Inf"),): count}, f"{name}_sum": {(): count * value}}


@dataclass
class Fleet:
    """The pages as they grow, and the last two of each target that were read."""

    requests: dict[str, float] = field(default_factory=lambda: dict.fromkeys(GATEWAYS, 0.0))
    pages: dict[str, tuple[Page, Page]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)  # between the two
    read_s: dict[str, float] = field(default_factory=dict)
    before: Observation | None = None
    lost: Collection[str] = ()
    hidden: Mapping[str, float] = field(default_factory=dict)  # gateways that were never read, and since when
    at_s: float = 0.0

    def go(self, per_s: Mapping[str, float], lost: Collection[str]) -> None:
        """Requests come to gateways, and all targets but the ``lost`` are read."""
        self.at_s, self.lost = self.at_s + LOOK_S, lost
        shown: dict[str, Page] = {}
        for name, rate in per_s.items():
            self.requests[name] = self.requests.get(name, 0.0) + rate * LOOK_S
        for name in GATEWAYS:
            shown[name] = gateway(self.requests[name])
        answered, running = sum(self.requests.values()), sum(per_s.values())
        shown |= {name: worker(name, answered, running) for name in WORKERS}
        for name in {*GATEWAYS, *WORKERS} - set(lost):
            self.pages[name] = self.pages.get(name, ({}, {}))[1], shown[name]
            self.seconds[name] = self.at_s - self.read_s.get(name, 0.0)
            self.read_s[name] = self.at_s

    def seen(self) -> Observation:
        """As the live loop makes it."""
        readings = {
            name: Reading(*pages, self.seconds[name], is_old=name in self.lost).within(
                self.at_s - self.read_s[name], 20.0
            )
            for name, pages in self.pages.items()
        }
        workers = [
            Seen(
                Worker(name, Role.PREFILL if name[0] == "p" else Role.DECODE, WorkerCondition.ACTIVE),
                readings[name],
                name in self.lost,
                self.at_s - self.read_s[name],
            )
            for name in WORKERS
        ]
        late = tuple(name for name, since_s in self.hidden.items() if self.at_s - since_s > POLICY.stale_after_s)
        found = observation(
            new_gateways=len(self.hidden) - len(late), unreadable_gateways=late,
            at_s=self.at_s, age_s=max(self.at_s - self.read_s[name] for name in GATEWAYS),
            gateways=[readings[name] for name in GATEWAYS], workers=workers, routing=RoutingNumbers(512, 32),
            objectives=POLICY.objectives, plan_in_progress=False,
        )  # fmt: skip
        self.before, before = found, self.before
        return found if before is None else counted_once(found, before)


def gateway(requests: float) -> Page:
    return {
        named.GATEWAY_ARRIVALS.name: {(("service", "chat"),): requests},
        **histogram(named.GATEWAY_PROMPT_TOKENS.name, 3000, (512, 2048, 4096, 8192), requests),
        **histogram(named.GATEWAY_OUTPUT_TOKENS.name, 120, (64, 128, 256), requests),
        **histogram(named.GATEWAY_TTFT.name, 0.3, (0.25, 0.5, 1.0, 2.0), requests),
        **histogram(named.GATEWAY_TPOT.name, 0.012, (0.01, 0.025, 0.04, 0.075), requests),
    }


def worker(name: str, answered: float, per_s: float) -> Page:
    share = answered / (2 if name[0] == "p" else 3)
    if name[0] == "p":
        return {
            **histogram("vllm:request_prefill_time_seconds", 0.1, (0.05, 0.2), share),
            **histogram("vllm:request_prefill_kv_computed_tokens", 3000, (2048, 4096), share),
            named.WORKER_QUEUE_DEPTH.name: {(): 0.0},
            named.WORKER_IN_FLIGHT.name: {(): 1.0},
        }
    return {
        **histogram("vllm:inter_token_latency_seconds", 0.012, (0.01, 0.025), 120 * share),
        "vllm:num_requests_running": {(): per_s * 120 * 0.012 / 3},
        named.WORKER_QUEUE_DEPTH.name: {(): 0.0},
        named.WORKER_IN_FLIGHT.name: {(): per_s * 0.5},
    }


def evenly(per_s: float) -> dict[str, float]:
    return dict.fromkeys(GATEWAYS, per_s / len(GATEWAYS))


def settled(per_s: float) -> tuple[Fleet, State]:
    """After some minutes of one load, planned in Shadow: the layout stays as it is."""
    fleet, state = Fleet(), State()
    for _ in range(LOOKS_BEFORE):
        fleet.go(evenly(per_s), ())
        state, _ = looked(fleet, state, Mode.SHADOW)
    return fleet, state


def looked(fleet: Fleet, state: State, mode: Mode = Mode.ACTIVE, policy: Policy = POLICY) -> tuple[State, Decision]:
    state, decision, _ = decide(state, fleet.seen(), replace(policy, mode=mode), fleet.at_s, LLAMA_8B_H100)
    return state, decision


def copied(fleet: Fleet) -> Fleet:
    return replace(
        fleet, requests=dict(fleet.requests), pages=dict(fleet.pages), seconds=dict(fleet.seconds),
        read_s=dict(fleet.read_s),
    )  # fmt: skip


SETTLED = {per_s: settled(per_s) for per_s in (1.0, 8.0, 25.0)}
lost_pages = st.sets(st.sampled_from([*GATEWAYS, *WORKERS]), min_size=1)


def test_at_one_look_any_of_the_pages_may_be_lost() -> None:
    """All combinations of them."""
    names = (*GATEWAYS, *WORKERS)
    for per_s, (before, state) in SETTLED.items():
        whole = copied(before)
        whole.go(evenly(per_s), ())
        all_needs = dict(looked(whole, state)[1].inputs)
        for lost in chain.from_iterable(combinations(names, count) for count in range(1, len(names) + 1)):
            part = copied(before)
            part.go(evenly(per_s), lost)
            decision = looked(part, state)[1]
            needs = dict(decision.inputs)
            assert all(needs[name] >= all_needs[name] for name in NEEDS), (lost, needs, all_needs)
            assert decision.prefill >= 2 and decision.decode >= 3, (lost, decision.message)


@given(lost=lost_pages, looks=st.integers(1, 7), per_s=st.sampled_from(sorted(SETTLED)))
@settings(max_examples=40)
def test_with_any_pages_lost_no_fewer_workers_are_needed_and_none_is_removed(
    lost: set[str], looks: int, per_s: float
) -> None:
    """For less than ``staleAfterSeconds``; before and after the loss the load is the same."""
    before, state = SETTLED[per_s]
    whole, whole_state = copied(before), state
    part, part_state = copied(before), state
    for look in range(looks + 3):
        whole.go(evenly(per_s), ())
        part.go(evenly(per_s), lost if look < looks else ())
        whole_state, of_all = looked(whole, whole_state)
        part_state, of_some = looked(part, part_state)
        assert of_some.reason not in (Reason.STALE_METRICS, Reason.NOT_ENOUGH_DATA)
        all_needs, needs = dict(of_all.inputs), dict(of_some.inputs)
        assert all(needs[name] >= all_needs[name] for name in NEEDS), (needs, all_needs)
        if look < looks:
            assert of_some.prefill >= 2 and of_some.decode >= 3, of_some.message
        assert of_some.prefill >= min(2, of_all.prefill) and of_some.decode >= min(3, of_all.decode)


@given(lost=st.sets(st.sampled_from([*GATEWAYS[1:], *WORKERS]), min_size=1))
@settings(max_examples=40)
def test_what_is_known_still_scales_out(lost: set[str]) -> None:
    """The load of the gateway that is read rises, and no other page can be read."""
    before, state = SETTLED[8.0]
    fleet = copied(before)
    for _ in range(7):
        fleet.go({**evenly(8.0), "g0": 40.0}, lost)
        state, decision = looked(fleet, state)
        if decision.prefill > 2:
            break
    assert decision.prefill > 2, decision.message


def test_spare_workers_stay_while_a_page_is_missing_and_go_when_it_is_back() -> None:
    before, state = SETTLED[1.0]
    for lost in ("g1", "d0"):
        fleet, here = copied(before), state
        fleet.go(evenly(1.0), (lost,))
        here, decision = looked(fleet, here)
        assert not decision.changes_layout
        kept = "1 page of metrics could not be read, so no worker is removed"
        assert any(kept in other.rejected_because for other in decision.alternatives), decision.alternatives
        fleet.go(evenly(1.0), ())
        here, decision = looked(fleet, here)
        assert decision.reason is Reason.SPARE_CAPACITY, decision.message


@pytest.mark.parametrize("lost", [("g1",), GATEWAYS, ("p0", "d0", "d1")], ids=str)
def test_pages_that_are_lost_for_longer_freeze_everything(lost: tuple[str, ...]) -> None:
    before, state = SETTLED[8.0]
    fleet, reasons = copied(before), []
    for _ in range(10):
        fleet.go(evenly(8.0), lost)
        state, decision = looked(fleet, state)
        reasons.append(decision.reason)
    assert Reason.STALE_METRICS not in reasons[:8], "20 s are not over"
    assert set(reasons[8:]) == {Reason.STALE_METRICS}


def test_fewer_than_half_of_the_workers_lost_for_long_freeze_nothing() -> None:
    before, state = SETTLED[8.0]
    fleet = copied(before)
    for _ in range(20):
        fleet.go(evenly(8.0), ("p0", "d0"))
        state, decision = looked(fleet, state)
        assert decision.reason is not Reason.STALE_METRICS
    assert not decision.changes_layout


def test_a_worker_that_can_never_be_read_keeps_others_for_some_minutes_and_not_for_ever() -> None:
    """Its port may be closed to the planner, while gateways and Kubernetes say that it serves."""
    before, state = SETTLED[1.0]
    fleet, began_s = copied(before), before.at_s
    while fleet.at_s + LOOK_S - began_s <= LONG_UNREAD_S:
        fleet.go(evenly(1.0), ("d0",))
        state, decision = looked(fleet, state)
        assert not decision.changes_layout, fleet.at_s - began_s
    fleet.go(evenly(1.0), ("d0",))
    _, decision = looked(fleet, state)
    assert decision.reason is Reason.SPARE_CAPACITY, decision.message
    fleet.go(evenly(1.0), ("d0", "g1"))
    _, decision = looked(fleet, state)
    assert not decision.changes_layout, "a page that was there a moment ago is waited for"


SWITCHING = replace(POLICY, role_switch=True)
MINUTES = 60  # looks: many times ``staleAfterSeconds``, and the window of scale-in


def beside_hidden(per_s: float, share: float) -> dict[str, float]:
    """A gateway that is added takes this ``share`` of the load."""
    return {**evenly(per_s * (1 - share)), "g3": per_s * share}


@given(share=st.floats(0.05, 1.0), per_s=st.sampled_from(sorted(SETTLED)))
@settings(max_examples=20)
def test_what_a_gateway_got_that_was_never_read_is_no_reason_to_remove_a_worker_or_to_switch_one(
    share: float, per_s: float
) -> None:
    """However much it is, for as long as it lasts."""
    before, state = SETTLED[per_s]
    whole, part = copied(before), replace(copied(before), hidden={"g3": before.at_s})
    whole_state = part_state = state
    for look in range(MINUTES):
        part.go(beside_hidden(per_s, share), ())
        part_state, of_some = looked(part, part_state, policy=SWITCHING)
        assert of_some.reason not in (Reason.STALE_METRICS, Reason.NOT_ENOUGH_DATA)
        assert of_some.prefill >= 2 and of_some.decode >= 3 and not of_some.switches, (look, of_some.message)
        if look < 7:
            whole.go(evenly(per_s), ())
            whole_state, of_all = looked(whole, whole_state, policy=SWITCHING)
            needed, needs = dict(of_all.inputs), dict(of_some.inputs)
            assert all(needs[name] >= needed[name] - 1 for name in NEEDS), "it is taken to be as it was"


@pytest.mark.parametrize("since_s", [0.0, 60.0], ids=["new", "unreadable"])
def test_beside_a_gateway_that_was_never_read_what_is_known_scales_out(since_s: float) -> None:
    before, state = SETTLED[8.0]
    fleet = replace(copied(before), hidden={"g3": before.at_s - since_s})
    for _ in range(7):
        fleet.go({**evenly(40.0), "g3": 0.0}, ())
        state, decision = looked(fleet, state)
        if decision.prefill > 2:
            break
    assert decision.prefill > 2, decision.message


def test_when_a_new_gateway_is_read_at_last_its_load_is_no_rise() -> None:
    """Until then it is taken to be as it was, so that nobody is started for it."""
    before, state = SETTLED[8.0]
    fleet = replace(copied(before), hidden={"g3": before.at_s})
    for _ in range(7):
        fleet.go(beside_hidden(8.0, 0.5), ())
        state, _ = looked(fleet, state)
        assert state.forecaster.expected(0.0) == pytest.approx(8.0, rel=0.1)
    fleet.hidden = {}
    for _ in range(20):
        fleet.go(evenly(8.0), ())
        state, decision = looked(fleet, state)
        assert state.forecaster.expected(20.0) == pytest.approx(8.0, rel=0.1)
        assert decision.prefill <= 2 and decision.decode <= 3, decision.message


@pytest.mark.parametrize("hidden", [{"new_gateways": 1}, {"unreadable_gateways": ("g3",)}], ids=str)
def test_a_switch_waits_until_the_whole_load_is_known_but_for_a_role_without_any_worker(hidden: dict[str, Any]) -> None:
    """Of the rest nobody knows which of the roles it needs."""

    def switched(decode: int, **more: Any) -> list[Decision]:
        state, decisions = State(), []
        for look in range(12):
            seen = observed(LOOK_S * look, LONG, 6 - decode, decode, **more)
            state, decision, _ = decide(state, seen, SMALL, seen.at_s, LLAMA_8B_H100)
            decisions.append(decision)
        return [decision for decision in decisions if decision.switches]

    assert switched(4)
    assert switched(4, **hidden) == []
    assert switched(6, **hidden)
