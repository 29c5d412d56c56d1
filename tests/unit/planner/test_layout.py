"""What a decision says is what it does."""

import math
from dataclasses import replace

import pytest

from pointsman.planner.core.guards import History, SwitchRecord
from pointsman.planner.core.layout import layout
from pointsman.planner.core.lengths import Lengths
from pointsman.planner.core.state import State
from pointsman.planner.core.targets import Targets
from pointsman.planner.core.types import Bounds, Mode, Reason, Worker, WorkerCondition, WorkerRole
from unit.planner.test_decide import LONG, POLICY, observed
from unit.planner.test_sizing import point

SCALES = replace(
    POLICY, role_switch=False, scale_in=True, scale_out=True, max_gpus=16, prefill=Bounds(1, 9), decode=Bounds(1, 9)
)
KNOWN = State(requests=1000.0, lengths=Lengths(prompt_tokens=4000.0, output_tokens=200.0))


def wanted(now: tuple[int, int], then: tuple[int, int]) -> Targets:
    """Workers that this moment needs, and that are needed when one started now would serve."""
    return Targets(
        prefill=then[0], decode=then[1], rate_per_s=8.0, high_rate_per_s=4.0, backlog=20.0, needed_now=now,
        load_now=(float(now[0]), float(now[1])), load_ahead=(float(then[0]), float(then[1])), up=then, needed=then,
        kept=(1, 1), planned_per_s=8.0, clear_s=(30.0, 30.0),
    )  # fmt: skip


def test_workers_that_come_too_late_are_spare_although_some_are_short_now() -> None:
    seen = observed(100.0, None, prefill=2, decode=6)
    _, decision = layout(KNOWN, seen, SCALES, 100.0, wanted((3, 2), (2, 2)), point(), point())
    assert (decision.prefill, decision.decode) == (2, 2)
    assert decision.reason is Reason.SPARE_CAPACITY
    assert "3P2D needed, 2P6D there; what is started now would come too late, and 2P2D is enough then" in (
        decision.message
    )
    assert decision.message.endswith("scale-in from 2P6D to 2P2D")


def test_what_is_short_is_the_reason_while_more_is_started_for_it() -> None:
    seen = observed(100.0, None, prefill=2, decode=6)
    _, decision = layout(KNOWN, seen, SCALES, 100.0, wanted((3, 2), (3, 6)), point(), point())
    assert (decision.prefill, decision.decode) == (3, 6)
    assert decision.reason is Reason.PREFILL_SHORT


def test_a_switch_in_place_of_a_start_is_told_as_one() -> None:
    """Two decode workers are enough when the second one has started, and one is not until then."""
    starts = Worker("w9", WorkerRole.DECODE, WorkerCondition.STARTING)
    seen = observed(100.0, None, prefill=3, decode=1)
    seen = replace(seen, workers=(*seen.workers, starts))
    eager = replace(SCALES, role_switch=True, min_dwell_s=0.0)
    state = KNOWN
    for _ in range(3):
        state, decision = layout(state, seen, eager, 100.0, wanted((3, 2), (3, 2)), point(), point())
    assert decision.switches
    assert (decision.prefill, decision.decode) == (3, 2)
    assert decision.message.endswith(
        "switch of a prefill worker that serves, and a prefill worker starts instead of a decode one"
    )


def test_a_switch_that_spares_a_start_says_what_serves_and_takes_nobody_away() -> None:
    """Three prefill workers are needed now and one serves; of the five that decode three are not needed."""
    starts = tuple(Worker(f"s{n}", WorkerRole.PREFILL, WorkerCondition.STARTING) for n in range(2))
    seen = observed(100.0, None, prefill=1, decode=5)
    seen = replace(seen, workers=(*seen.workers, *starts))
    eager = replace(SCALES, role_switch=True, min_dwell_s=0.0)
    _, decision = layout(KNOWN, seen, eager, 100.0, wanted((3, 2), (2, 2)), point(), point())
    assert (decision.prefill, decision.decode) == (3, 3)
    assert decision.reason is Reason.PREFILL_SHORT
    assert "2P2D is enough, 3P5D there (1P5D serve)" in decision.message
    assert decision.message.endswith("; switch of 2 decode worker(s) in place of 2 prefill start(s), from 3P5D to 3P3D")
    assert [a.action for a in decision.alternatives[:2]] == ["switch", "stay"]


def test_what_is_said_to_be_needed_and_is_not_done_has_its_reason_in_the_sentence() -> None:
    """Decode is short as well, but four will be enough when one started now would serve."""
    seen = observed(100.0, None, prefill=2, decode=4)
    _, decision = layout(KNOWN, seen, SCALES, 100.0, wanted((3, 5), (3, 4)), point(), point())
    assert (decision.prefill, decision.decode) == (3, 4)
    assert "3P5D needed, 2P4D there" in decision.message
    assert "; not 3P5D: decode started now would come too late: 4 will do in 90 s; scale-out" in decision.message


def test_no_pool_gives_more_to_the_other_one_than_its_bounds_leave() -> None:
    policy = replace(SCALES, max_gpus=6, decode=Bounds(3, 9))
    _, decision = layout(KNOWN, observed(0, LONG, 2, 4), policy, 0.0, wanted((8, 1), (8, 2)), point(), point())
    assert (decision.prefill, decision.decode) == (3, 3)


def test_no_decode_worker_is_switched_where_its_streams_would_lose_more_than_prompts_gain() -> None:
    """One prefill worker is a hair short of what 12 requests/s need, and that is two whole ones."""
    seen = observed(100.0, None, prefill=1, decode=3)
    eager = replace(SCALES, role_switch=True, min_dwell_s=0.0)
    needs = replace(wanted((2, 3), (2, 3)), rate_per_s=12.0, backlog=0.0, planned_per_s=12.0)
    for output, switched in ((800, False), (100, True)):
        at, state = point(4000, output), KNOWN
        for _ in range(3):
            state, decision = layout(state, seen, eager, 100.0, needs, at, at)
        assert bool(decision.switches) is switched


FULL = replace(SCALES, max_gpus=8, prefill=Bounds(1, 7), decode=Bounds(1, 7))


def needing(prefill: float, decode: float) -> Targets:
    """Of each role that many when one started now would serve, without rounding; the sum may be beyond the budget."""
    rounded = math.ceil(prefill), math.ceil(decode)
    return replace(wanted(rounded, rounded), load_ahead=(prefill, decode), backlog=0.0)


@pytest.mark.parametrize("then", [(2.0, 6.0), (2.2, 6.6)], ids=["within the budget", "beyond it"])
def test_at_the_budget_workers_that_came_for_others_do_not_go_for_them_a_moment_later(
    then: tuple[float, float],
) -> None:
    seen = observed(100.0, None, prefill=3, decode=5)
    state, decision = layout(KNOWN, seen, FULL, 100.0, needing(*then), point(), point())
    assert (decision.prefill, decision.decode) == (2, 6)
    back, later = needing(2.2, 5.3), observed(200.0, None, prefill=2, decode=6)
    _, fresh = layout(KNOWN, later, FULL, 200.0, back, point(), point())
    assert (fresh.prefill, fresh.decode) == (3, 5)  # a seventh more is served so
    _, decision = layout(state, later, FULL, 200.0, back, point(), point())
    assert (decision.prefill, decision.decode) == (2, 6)  # … which is not enough for going back
    _, decision = layout(state, later, FULL, 200.0, needing(3.0, 5.0), point(), point())
    assert (decision.prefill, decision.decode) == (3, 5)  # … where it is clearly more, it is
    later = observed(1000.0, None, prefill=2, decode=6)
    _, decision = layout(state, later, FULL, 1000.0, back, point(), point())
    assert (decision.prefill, decision.decode) == (3, 5)  # … and one day it is no going back


def test_a_split_of_the_budget_rests_while_the_need_goes_beyond_it_and_comes_back() -> None:
    """A prefill worker that would always be busy needs a second one, whether or not decode has what it needs."""
    state, policy = KNOWN, replace(FULL, max_gpus=16, decode=Bounds(1, 15))
    for tick, decode in enumerate((13.4, 17.3, 19.0, 14.2, 15.3, 18.4, 13.8)):
        need = replace(wanted((2, 14), (2, math.ceil(decode))), load_ahead=(1.0, decode))
        seen = observed(100.0 * tick, None, prefill=2, decode=14)
        state, decision = layout(state, seen, policy, seen.at_s, need, point(), point())
        assert decision.prefill == 2
    seen = observed(800.0, None, prefill=1, decode=15)
    _, decision = layout(KNOWN, seen, policy, 800.0, need, point(), point())
    assert (decision.prefill, decision.decode) == (2, 14)


@pytest.mark.parametrize("lately", [None, WorkerRole.PREFILL, WorkerRole.DECODE])
def test_more_of_what_is_short_and_less_of_what_is_spare_is_no_question_of_the_split(
    lately: WorkerRole | None,
) -> None:
    """They fit beside each other, but for the spare ones: nobody who is needed goes for somebody."""
    state = replace(KNOWN, history=History(traded=SwitchRecord(90.0, lately) if lately else None))
    policy = replace(FULL, max_gpus=35, prefill=Bounds(1, 30), decode=Bounds(1, 30))
    seen = observed(100.0, None, prefill=25, decode=10)
    _, decision = layout(state, seen, policy, 100.0, needing(25.8, 4.6), point(), point())
    assert (decision.prefill, decision.decode) == (26, 5)


def test_at_the_budget_workers_that_are_kept_or_held_for_bursts_are_no_spare_ones() -> None:
    policy, seen = replace(FULL, max_gpus=10), observed(100.0, None, prefill=5, decode=5)
    kept = replace(needing(2.0, 6.0), prefill=5)
    for want in (kept, replace(kept, up=(5, 6))):
        _, decision = layout(KNOWN, seen, policy, 100.0, want, point(), point())
        assert (decision.prefill, decision.decode) == (5, 5)


def test_a_pool_gives_no_more_than_what_is_beyond_its_bound() -> None:
    policy = replace(FULL, max_gpus=12, prefill=Bounds(1, 4), decode=Bounds(1, 9))
    seen = observed(100.0, None, prefill=6, decode=6)
    _, decision = layout(KNOWN, seen, policy, 100.0, needing(3.9, 6.8), point(), point())
    assert (decision.prefill, decision.decode) == (4, 7)


def test_a_split_that_is_only_wished_for_keeps_nobody_from_wishing_another() -> None:
    seen = observed(100.0, None, prefill=3, decode=5)
    for mode, remembered in ((Mode.ACTIVE, True), (Mode.SHADOW, False), (Mode.APPROVE, False)):
        state, decision = layout(KNOWN, seen, replace(FULL, mode=mode), 100.0, needing(2, 6), point(), point())
        assert (decision.prefill, decision.decode) == (2, 6)
        assert (state.history.traded is not None) == remembered
