"""What a decision says is what it does."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.api.protocol.names import LANGUAGE_ROLES, Role
from pointsman.api.v1alpha1.plannerpolicy import Mode
from pointsman.planner.core.layout.choose import layout
from pointsman.planner.core.messages import rejections
from pointsman.planner.core.sizing.pool_targets import Targets
from pointsman.planner.core.state import State
from pointsman.planner.core.switch_guards import History, SwitchRecord
from pointsman.planner.core.types import Bounds, Decision, Layout, Observation, Policy, Reason, Worker, WorkerCondition
from pointsman.planner.core.workload.request_lengths import Lengths
from unit.planner.operating_points import point
from unit.planner.scenes import LONG, POLICY, observed

SCALES = replace(
    POLICY, role_switch=False, scale_in=True, scale_out=True, max_gpus=16, prefill=Bounds(1, 9), decode=Bounds(1, 9)
)
EAGER = replace(SCALES, role_switch=True)
KNOWN = State(requests=1000.0, lengths=Lengths(prompt_tokens=4000.0, output_tokens=200.0))


def wanted(now: tuple[int, int], then: tuple[int, int]) -> Targets:
    """Workers that this moment needs, and that are needed when one started now would serve."""
    return Targets(
        prefill=then[0], decode=then[1], rate_per_s=8.0, ahead_per_s=8.0, backlog=20.0, needed_now=Layout(*now),
        load_now=(float(now[0]), float(now[1])), load_ahead=(float(then[0]), float(then[1])),
        needed=Layout(*then), grow=Layout(*then), retained=Layout(1, 1), retained_of_both=2, planned_per_s=8.0,
    )  # fmt: skip


def looks(count: int, seen: Observation, policy: Policy, want: Targets) -> Decision:
    """The decision at the last of so many looks at the same."""
    state, at = KNOWN, point()
    for _ in range(count):
        state, decision = layout(state, seen, policy, want, at)
    return decision


def test_workers_that_come_too_late_are_spare_although_some_are_short_now() -> None:
    decision = looks(1, observed(100.0, None, prefill=2, decode=6), SCALES, wanted((3, 2), (2, 2)))
    assert (decision.prefill, decision.decode) == (2, 2)
    assert decision.reason is Reason.SPARE_CAPACITY
    assert decision.message == (
        "Scale in from 2P6D to 2P2D: fewer workers are enough. 3P2D is needed. "
        "A worker started now serves in 90 s; by then 2P2D is enough."
    )


def test_what_is_short_is_the_reason_while_more_is_started_for_it() -> None:
    decision = looks(1, observed(100.0, None, prefill=2, decode=6), SCALES, wanted((3, 2), (3, 6)))
    assert (decision.prefill, decision.decode) == (3, 6)
    assert decision.reason is Reason.PREFILL_SHORT


def test_a_worker_that_is_lent_until_another_one_serves_has_no_start_in_its_place() -> None:
    """Two decode workers are enough when the second one has started, and one is not until then."""
    starts = Worker("w9", Role.DECODE, WorkerCondition.STARTING)
    seen = observed(100.0, None, prefill=3, decode=1)
    seen = replace(seen, workers=(*seen.workers, starts))
    decision = looks(3, seen, EAGER, wanted((3, 2), (3, 2)))
    assert [(s.target, s.count) for s in decision.switches] == [(Role.DECODE, 1)]
    assert (decision.prefill, decision.decode) == (2, 3), "the other one gives it back"
    assert decision.reason is Reason.DECODE_SHORT
    assert decision.message.startswith("Switch roles from 3P2D to 2P3D: too few decode workers. ")


def test_a_switch_away_from_a_role_that_is_short_is_for_the_one_that_is_shorter() -> None:
    """Prefill has six workers of seven. Of two decode workers one serves, and the other only starts."""
    seen = observed(100.0, None, prefill=6, decode=1)
    seen = replace(seen, workers=(*seen.workers, Worker("w9", Role.DECODE, WorkerCondition.STARTING)))
    decision = looks(3, seen, EAGER, wanted((7, 2), (7, 2)))
    assert (decision.prefill, decision.decode) == (5, 3)
    assert decision.reason is Reason.DECODE_SHORT
    assert decision.message.startswith("Switch roles from 6P2D to 5P3D: too few decode workers. 7P2D is needed")


def test_a_switch_that_comes_before_starts_says_what_serves_and_takes_nobody_away() -> None:
    """Three prefill workers are needed now and one serves; of the five that decode three are not needed."""
    starts = tuple(Worker(f"s{n}", Role.PREFILL, WorkerCondition.STARTING) for n in range(2))
    seen = observed(100.0, None, prefill=1, decode=5)
    seen = replace(seen, workers=(*seen.workers, *starts))
    decision = looks(1, seen, EAGER, wanted((3, 2), (2, 2)))
    assert (decision.prefill, decision.decode) == (5, 3)
    assert decision.reason is Reason.PREFILL_SHORT
    assert "2P2D is enough once all serve; running: 3P5D, serving: 1P5D." in decision.message
    assert decision.message.startswith("Switch roles from 3P5D to 5P3D: too few prefill workers. ")
    assert [a.action for a in decision.alternatives[:2]] == ["switch", "stay"]


def test_what_is_said_to_be_needed_and_is_not_done_has_its_reason_in_the_sentence() -> None:
    """Decode is short as well, but four will be enough when one started now would serve."""
    decision = looks(1, observed(100.0, None, prefill=2, decode=4), SCALES, wanted((3, 5), (3, 4)))
    assert (decision.prefill, decision.decode) == (3, 4)
    assert "3P5D is needed. Staying would keep " in decision.message
    assert "3P5D is not chosen: a worker started now serves in 90 s; by then 3P4D is enough" in decision.message


def test_no_pool_gives_more_to_the_other_one_than_its_bounds_leave() -> None:
    policy = replace(EAGER, max_gpus=6, decode=Bounds(3, 9))
    decision = looks(3, observed(0, LONG, 2, 4), policy, wanted((8, 1), (8, 2)))
    assert (decision.prefill, decision.decode) == (3, 3)
    assert decision.switches


def test_no_decode_worker_is_switched_where_its_streams_would_lose_more_than_prompts_gain() -> None:
    """One prefill worker is a hair short of what 12 requests/s need, and that is two whole ones."""
    seen = observed(100.0, None, prefill=1, decode=3)
    needs = replace(wanted((2, 3), (2, 3)), rate_per_s=12.0, backlog=0.0, planned_per_s=12.0)
    for output, switched in ((800, False), (100, True)):
        at, state = point(4000, output), KNOWN
        for _ in range(3):
            state, decision = layout(state, seen, EAGER, needs, at)
        assert bool(decision.switches) is switched


# --- where a role can be switched, only what the service lacks as a whole is started ---


def two_more_prefill(switched_s: float | None = None) -> Decision:
    """2P4D that needs 4P2D; asked until it switches, ten times at most. Then as many as may had switched, if any."""
    seen, short = observed(700.0, None, prefill=2, decode=4), wanted((4, 2), (4, 2))
    recent = () if switched_s is None else tuple(SwitchRecord(switched_s, Role.PREFILL) for _ in range(12))
    state = replace(KNOWN, history=History(recent))
    for _ in range(10):
        state, decision = layout(state, seen, EAGER, short, point())
        if decision.switches:
            break
    return decision


def test_two_prefill_workers_that_decode_can_spare_are_switched_and_nobody_is_started() -> None:
    """P-D11: with a loose budget workers were started where a switch would have done."""
    decision = two_more_prefill()
    assert (decision.prefill, decision.decode) == (4, 2)


def test_a_switch_that_may_be_made_sooner_than_a_start_takes_is_waited_for() -> None:
    decision = two_more_prefill(switched_s=150.0)
    assert (decision.prefill, decision.decode) == (2, 4)
    assert decision.reason is Reason.SWITCH_DEFERRED


def test_where_a_switch_must_wait_longer_than_a_start_takes_workers_are_started() -> None:
    decision = two_more_prefill(switched_s=690.0)
    assert not decision.switches
    assert (decision.prefill, decision.decode) == (4, 4)


def test_a_switch_is_as_large_as_its_limit_leaves() -> None:
    """Two of ten may switch at a time, but only one more of twenty in ten minutes."""
    seen, policy = observed(100.0, None, prefill=8, decode=2), replace(EAGER, max_gpus=10)
    state = replace(KNOWN, history=History(tuple(SwitchRecord(0.0, Role.DECODE) for _ in range(19))))
    _, decision = layout(state, seen, policy, wanted((6, 4), (6, 4)), point())
    assert [switch.count for switch in decision.switches] == [1]
    assert (decision.prefill, decision.decode) == (7, 3)


def test_a_switch_is_as_large_as_min_replicas_leave() -> None:
    """Two of seven may switch at a time, but of five decode workers three serve, and two must."""
    seen, policy = observed(100.0, None, prefill=2, decode=5), replace(EAGER, max_gpus=7, decode=Bounds(2, 8))
    unread, starting = (replace(w, condition=c) for w, c in zip(
        seen.workers[-2:], (WorkerCondition.UNREACHABLE, WorkerCondition.STARTING), strict=True
    ))  # fmt: skip
    decision = looks(3, replace(seen, workers=(*seen.workers[:-2], unread, starting)), policy, wanted((5, 2), (5, 2)))
    assert [switch.count for switch in decision.switches] == [1]
    assert (decision.prefill, decision.decode) == (3, 4)


def test_a_switch_back_is_wanted_for_as_long_although_the_first_was_too_fast_to_be_seen() -> None:
    state = replace(KNOWN, history=History(wanting=Layout(4, 2), wanting_ticks=3))
    calm = replace(wanted((3, 3), (3, 3)), backlog=0.0)
    state, decision = layout(state, observed(100.0, None, prefill=4, decode=2), EAGER, calm, point())
    assert (decision.changes_layout, state.history.wanting_ticks) == (False, 1)


def test_a_shortage_that_is_too_small_for_a_switch_is_answered_by_a_start() -> None:
    """One decode worker of 24 is 4 % of the need, and a switch must bring 5 %."""
    policy = replace(EAGER, max_gpus=64, prefill=Bounds(1, 40), decode=Bounds(1, 40))
    decision = looks(3, observed(100.0, None, prefill=24, decode=23), policy, wanted((23, 24), (23, 24)))
    assert not decision.switches
    assert (decision.prefill, decision.decode) == (24, 24)


def test_where_no_role_may_be_switched_they_are_started() -> None:
    decision = looks(1, observed(100.0, None, prefill=2, decode=4), SCALES, wanted((4, 2), (4, 4)))
    assert (decision.prefill, decision.decode) == (4, 4)
    assert decision.message.startswith("Scale out from 2P4D to 4P4D: too few prefill workers. ")


@pytest.mark.parametrize(("policy", "starts"), [
    (EAGER, False), (replace(EAGER, mode=Mode.APPROVE), False), (replace(EAGER, mode=Mode.SHADOW), False),
    (replace(EAGER, role_switch_needs_approval=True), True), (SCALES, True),
], ids=["allowed", "as everything by a person", "wished", "asked for alone", "not allowed"])  # fmt: skip
def test_what_is_spare_stands_for_what_will_be_short_only_where_it_can_be_switched_then(
    policy: Policy, starts: bool
) -> None:
    """Two prefill workers are enough yet, and four are needed when one started now would serve."""
    later = replace(wanted((2, 2), (4, 2)), decode=4, backlog=0.0)
    decision = looks(1, observed(100.0, None, prefill=2, decode=4), policy, later)
    assert (decision.prefill, decision.decode) == ((4, 4) if starts else (2, 4))
    if not starts:
        why = "4P4D is not chosen: a switch serves in 10 s, a start in 90 s"
        assert why in decision.message


def test_a_switch_that_awaits_a_person_is_not_started_for_as_well() -> None:
    policy = replace(EAGER, role_switch_needs_approval=True)
    decision = looks(5, observed(100.0, None, prefill=2, decode=4), policy, wanted((4, 2), (4, 2)))
    assert (decision.prefill, decision.decode) == (4, 2)
    assert decision.switches


def test_what_the_service_lacks_as_a_whole_is_started_in_the_role_that_lacks_the_most() -> None:
    seen = observed(100.0, None, prefill=2, decode=4)
    assert looks(1, seen, EAGER, replace(wanted((2, 3), (6, 3)), backlog=0.0)).prefill == 5  # one of three is spare
    both = looks(1, seen, replace(EAGER, max_gpus=9), replace(wanted((2, 4), (6, 6)), backlog=0.0))
    assert (both.prefill, both.decode) == (5, 4)


def test_nothing_is_started_for_a_role_that_gives_or_is_about_to_give_workers() -> None:
    """Three prefill workers are needed now, which a switch brings in three looks, and later eight decode workers."""
    seen, policy = observed(100.0, None, prefill=1, decode=6), replace(EAGER, max_gpus=11)
    first, last = (looks(n, seen, policy, replace(wanted((3, 1), (1, 8)), prefill=3, backlog=0.0)) for n in (1, 3))
    assert (first.prefill, first.decode) == (1, 6), "nor while the switch is awaited"
    assert (last.prefill, last.decode) == (3, 4), "what decode lacks then is started once the switch has ended"
    why = {a.layout: a.rejected_because for a in last.alternatives}
    assert why[Layout(3, 8)] == rejections.NONE_FOR_WHO_GIVES
    later = looks(1, observed(100.0, None, prefill=3, decode=4), policy, replace(wanted((3, 1), (3, 8)), backlog=0.0))
    assert (later.prefill, later.decode) == (3, 8)


# --- a full budget ---

FULL = replace(SCALES, max_gpus=8, prefill=Bounds(1, 7), decode=Bounds(1, 7))


def needing(prefill: float, decode: float) -> Targets:
    """Of each role that many when one started now would serve, without rounding; the sum may be beyond the budget."""
    rounded = math.ceil(prefill), math.ceil(decode)
    return replace(wanted(rounded, rounded), load_ahead=(prefill, decode), backlog=0.0)


@pytest.mark.parametrize("then", [(3.0, 6.0), (2.2, 6.6), (7.0, 7.0)])
def test_nobody_who_is_needed_goes_so_that_another_one_can_start(then: tuple[float, float]) -> None:
    want = replace(needing(*then), prefill=max(3, math.ceil(then[0])))
    decision = looks(1, observed(100.0, None, prefill=3, decode=5), FULL, want)
    assert (decision.prefill, decision.decode) == (3, 5)
    assert decision.reason is Reason.UNSATISFIABLE
    assert "the policy allows 3P5D" in decision.message


def test_spare_workers_of_a_full_budget_go_before_those_that_are_short_are_started() -> None:
    policy = replace(FULL, max_gpus=35, prefill=Bounds(1, 30), decode=Bounds(1, 30))
    first = looks(1, observed(100.0, None, prefill=25, decode=10), policy, needing(25.8, 4.6))
    assert (first.prefill, first.decode) == (25, 5)
    assert first.reason is Reason.PREFILL_SHORT
    assert "26P5D is needed." in first.message
    assert "26P5D is not chosen: no worker is removed while another one starts or a switch is awaited" in first.message
    then = looks(1, observed(102.5, None, prefill=25, decode=5), policy, needing(25.8, 4.6))
    assert (then.prefill, then.decode) == (26, 5)


def test_at_the_budget_workers_that_are_kept_are_no_spare_ones() -> None:
    policy, seen = replace(FULL, max_gpus=10), observed(100.0, None, prefill=5, decode=5)
    kept = replace(needing(2.0, 6.0), prefill=5, retained=Layout(5, 1))
    for want in (kept, replace(kept, grow=Layout(5, 6))):
        decision = looks(1, seen, policy, want)
        assert (decision.prefill, decision.decode) == (5, 5)


def test_a_pool_beyond_its_bound_gives_what_is_spare_and_no_more() -> None:
    policy = replace(FULL, max_gpus=12, prefill=Bounds(1, 4), decode=Bounds(1, 9))
    first = looks(1, observed(100.0, None, prefill=6, decode=6), policy, needing(3.9, 6.8))
    assert (first.prefill, first.decode) == (4, 6)
    then = looks(1, observed(102.5, None, prefill=4, decode=6), policy, needing(3.9, 6.8))
    assert (then.prefill, then.decode) == (4, 7)


# --- what holds whatever is wanted ---

counts = st.tuples(st.integers(1, 9), st.integers(1, 9))


@st.composite
def cases(draw: st.DrawFn) -> tuple[Observation, Policy, Targets]:
    """Any needs at any layout within the bounds, some of whose workers start or leave; the budget holds them."""
    serving, starting, leaving = draw(counts), draw(st.integers(0, 3)), draw(st.integers(0, 2))
    least = draw(st.tuples(st.integers(0, 3), st.integers(0, 3)))
    more = tuple(
        Worker(f"{condition}{n}", draw(st.sampled_from(LANGUAGE_ROLES)), condition)
        for condition, number in ((WorkerCondition.STARTING, starting), (WorkerCondition.DRAINING, leaving))
        for n in range(number)
    )
    seen = observed(100.0, None, *serving)
    seen = replace(seen, workers=(*seen.workers, *more))
    now, needed = Layout(*draw(counts)), Layout(*draw(counts))
    grow = Layout(*draw(st.tuples(*(st.integers(1, n) for n in needed))))
    kept = Layout(*draw(counts))
    want = Targets(
        prefill=max(now[0], grow[0], kept[0]), decode=max(now[1], grow[1], kept[1]), rate_per_s=8.0, ahead_per_s=8.0,
        backlog=draw(st.sampled_from([0.0, 200.0])), needed_now=now, load_now=(float(now[0]), float(now[1])),
        load_ahead=(float(needed[0]), float(needed[1])), needed=needed, grow=grow, retained=kept,
        retained_of_both=draw(st.integers(2, 18)), planned_per_s=8.0,
    )  # fmt: skip
    policy = replace(
        SCALES, max_gpus=len(seen.workers) + draw(st.integers(0, 6)), min_gpus=draw(st.integers(0, 12)),
        prefill=Bounds(least[0], draw(st.integers(9, 14))), decode=Bounds(least[1], draw(st.integers(9, 14))),
        role_switch=draw(st.booleans()), role_switch_needs_approval=draw(st.booleans()),
        scale_in=draw(st.booleans()), scale_out=draw(st.booleans()), mode=draw(st.sampled_from(Mode)),
    )  # fmt: skip
    return seen, policy, want


@given(cases(), st.sampled_from([1, 3]))
def test_no_decision_is_above_the_budget_or_the_bounds_nor_takes_a_pool_below_its_least(
    case: tuple[Observation, Policy, Targets], count: int
) -> None:
    seen, policy, want = case
    decision = looks(count, seen, policy, want)
    leaving = sum(worker.condition is WorkerCondition.DRAINING for worker in seen.workers)
    assert decision.prefill + decision.decode + leaving <= policy.max_gpus
    for role, after in ((Role.PREFILL, decision.prefill), (Role.DECODE, decision.decode)):
        bounds, has = policy.bounds(role), seen.committed(role)
        assert after <= max(bounds.most, has)
        assert after >= min(max(1, bounds.least), has)


@given(cases(), st.sampled_from([1, 3]))
def test_nobody_is_started_while_what_is_spare_is_as_many_as_what_is_lacking(
    case: tuple[Observation, Policy, Targets], count: int
) -> None:
    seen, policy, want = case
    policy, state = replace(policy, min_gpus=0), KNOWN
    for _ in range(count):
        state, decision = layout(state, seen, policy, want, point())
    now = seen.committed(Role.PREFILL), seen.committed(Role.DECODE)
    moved = sum(s.count if s.target is Role.PREFILL else -s.count for s in decision.switches)
    least = most = moved  # switches that are made, or are to come
    if state.history.wanting is not None and not moved:
        least, most = sorted((0, state.history.wanting[0] - now[0]))
    ways = [(now[0] + n, now[1] - n) for n in range(least, most + 1)]
    started = []
    for way in ways:
        lacks = spare = 0
        for role, has, needed, grow in zip(LANGUAGE_ROLES, way, want.minimum, want.grow, strict=True):
            lacks += max(0, min(grow, policy.bounds(role).most) - has)
            spare += max(0, has - max(needed, policy.bounds(role).least, 1))
        started.append(max(0, lacks - spare) if policy.switchable else lacks)
    assert decision.prefill + decision.decode - sum(now) <= max(started)


@given(cases())
def test_nobody_who_is_needed_or_kept_goes_but_for_a_switch(case: tuple[Observation, Policy, Targets]) -> None:
    seen, policy, want = case
    decision = looks(1, seen, replace(policy, role_switch=False), want)
    for role, wants, after in zip(
        LANGUAGE_ROLES, (want.prefill, want.decode), (decision.prefill, decision.decode), strict=True
    ):
        assert after >= min(seen.committed(role), wants)
