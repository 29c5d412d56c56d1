"""The rule for a pool, line by line as at the head of ``core/sizing/pool_targets.py``: need, grow, keep, want."""

import itertools
import math
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.planner.core.sizing.demand import DemandSnapshot, Pool, kept_s
from pointsman.planner.core.sizing.operating_point import OperatingPoint
from pointsman.planner.core.sizing.pool_targets import (
    Memory,
    Needs,
    Patience,
    Targets,
    targets,
    without_idle,
)
from pointsman.planner.core.tuning import SHIPPED
from pointsman.planner.core.types import Layout, Objectives
from pointsman.planner.core.workload.arrival_forecast import RateForecaster, Trend
from unit.planner.operating_points import point

TICK_S = 2.5
LEAD_S = 60.0
PATIENCE_LOOKS = int(SHIPPED.patience_s / TICK_S)
KEEP_S = 120.0
PROMPTS, ANSWERS = point(4000, 30), point(300, 600)  # what is heavy: prefill, decode


def moment(
    rate: float, there: tuple[int, int], at: OperatingPoint = PROMPTS, *, now_s: float = 1000.0, slope: float = 0.0,
    rose_s: float | None = None, fell_s: float | None = None, starting: tuple[tuple[float, ...], tuple[float, ...]]
    = ((), ()), waiting: float = 0.0, **other: Any,
) -> DemandSnapshot:  # fmt: skip
    """A rate that is known exactly; ``there`` serve, ``starting`` will in so many seconds. Without a lead no queue can
    build up until a new worker serves."""
    known = RateForecaster(Trend(rate, slope, 1e-9, 0.0, 1e-12), dispersion=1.0, rose_s=rose_s, fell_s=fell_s)
    made = DemandSnapshot(
        point=at, attainment=0.95, forecaster=known, prefill=Pool(there[0], starting[0]),
        decode=Pool(there[1], starting[1]), waiting=waiting, holds_back=False, most_queued=math.inf,
        window_s=TICK_S, now_s=now_s, lead_s=0.0, memory_s=KEEP_S, switchable=False,
        prompts_changed_s=None, most=64,
    )  # fmt: skip
    return replace(made, **other)


def need(rate: float, at: OperatingPoint = PROMPTS) -> Layout:
    return moment(rate, (1, 1), at).needs(rate, 0.0)


def rate_for(prefill: int) -> float:
    """Of requests that are heavy to prefill: so many workers are needed, and with the head-room of scale-in too."""
    rates = [n / 10 for n in range(1, 3000)]
    return next(rate for rate in rates if need(rate)[0] == need(SHIPPED.rate_headroom * rate)[0] == prefill)


@dataclass
class Looks:
    """One look after another at workers that stay as many, whatever is wanted."""

    memory: Memory = field(default_factory=Memory)
    now_s: float = 0.0

    def look(self, rate: float, there: tuple[int, int], seconds: float = TICK_S, **other: Any) -> Targets:
        """For so long; what is wanted at the last look."""
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s += TICK_S
            self.memory, found = targets(self.memory, moment(rate, there, now_s=self.now_s, **other))
        return found


# --- need ---


def test_what_is_needed_is_what_the_rate_needs_when_a_worker_started_now_would_serve() -> None:
    steady = Looks().look(10.0, (8, 3), lead_s=LEAD_S)
    assert steady.needed == steady.needed_now == need(10.0)
    rising = Looks().look(10.0, (8, 3), slope=0.1, lead_s=LEAD_S)
    assert rising.ahead_per_s == pytest.approx(10.0 + LEAD_S * 0.1)
    assert rising.needed == need(16.0)
    assert rising.needed_now == steady.needed_now


def test_a_queue_is_needed_for_only_as_far_as_it_is_left_when_a_new_worker_would_serve() -> None:
    alone, enough = need(10.0), (8, 3)
    assert Looks().look(10.0, enough, waiting=400.0, lead_s=LEAD_S).needed == alone, (
        "those that serve clear it in a minute"
    )
    few = Looks().look(10.0, alone, waiting=800.0, lead_s=LEAD_S).needed
    assert few[0] > alone[0]
    starting = (20.0,) * 6, (20.0,) * 2
    more = Looks().look(10.0, alone, starting=starting, waiting=800.0, lead_s=LEAD_S).needed
    assert more == alone, "those that start clear the rest"


HURRIED = point(4000, 250, objectives=Objectives(ttft_ms=300, tpot_ms=20), kv_capacity_tokens=262_144.0)


@pytest.mark.parametrize("pool", [0, 1])
def test_the_attainment_that_is_asked_for_sizes_both_pools(pool: int) -> None:
    sizes = [
        [moment(rate, (1, 1), HURRIED, attainment=goal).needs(rate, 0.0)[pool] for rate in range(5, 100, 5)]
        for goal in (0.8, 0.95, 0.999)
    ]
    for less, more in itertools.pairwise(sizes):
        assert all(few <= many for few, many in zip(less, more, strict=True))
        assert sum(less) < sum(more)


# --- grow ---


@pytest.mark.parametrize("more", [1, 2, 4])
def test_a_pool_grows_by_any_number_of_workers_at_the_sixth_look_in_a_row_at_which_it_was_short(more: int) -> None:
    """P-D6: only one more worker had to wait, two more came and went at once."""
    rate, looks = rate_for(2 + more), Looks()
    has = 2, need(rate)[1]
    for _ in range(PATIENCE_LOOKS - 1):
        found = looks.look(rate, has)
        assert found.needed[0] == 2 + more
        assert (found.prefill, found.grow[0]) == (2, 2)
    assert looks.look(rate, has).grow == (2 + more, has[1])


def test_a_look_at_which_the_pool_was_enough_begins_the_count_anew() -> None:
    looks, has = Looks(), (2, need(rate_for(5))[1])
    looks.look(rate_for(5), has, (PATIENCE_LOOKS - 1) * TICK_S)
    looks.look(rate_for(2), has)
    for _ in range(PATIENCE_LOOKS - 1):
        assert looks.look(rate_for(5), has).grow[0] == 2
    assert looks.look(rate_for(5), has).grow[0] == 5


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9), st.booleans()), max_size=30))
def test_a_pool_grows_to_the_lowest_need_of_its_patience_and_never_shrinks_below_what_is_needed_and_there(
    looks: list[tuple[int, int, bool]],
) -> None:
    patience, needs = Patience(), []
    for look, (needed, there, sudden) in enumerate(looks):
        patience, grow = patience.grow(needed, there, TICK_S * look, TICK_S, sudden=sudden)
        needs.append(needed)
        least = min(needs[-PATIENCE_LOOKS:]) if len(needs) >= PATIENCE_LOOKS else 0
        assert grow == (needed if sudden else max(least, min(needed, there)))


def test_a_peak_at_the_end_of_a_shortage_is_not_what_is_started_for() -> None:
    looks, has = Looks(), (2, need(rate_for(6))[1])
    looks.look(rate_for(4), has, (PATIENCE_LOOKS - 1) * TICK_S)
    assert looks.look(rate_for(6), has).grow[0] == 4


def test_after_a_sudden_rise_a_pool_grows_at_the_first_look_and_for_a_quarter_of_a_minute() -> None:
    rate = rate_for(5)
    for since_s, grows in ((0.0, True), (SHIPPED.patience_s, True), (SHIPPED.patience_s + TICK_S, False)):
        looks = Looks(now_s=1000.0)
        found = looks.look(rate, (2, 2), rose_s=1000.0 + TICK_S - since_s)
        assert found.grow[0] == (5 if grows else 2)


def test_after_a_sudden_fall_nobody_is_started_at_once() -> None:
    """What is still needed more of, as by longer prompts, is waited for as always."""
    looks = Looks(now_s=1000.0)
    assert looks.look(rate_for(5), (2, 2), fell_s=1000.0 + TICK_S).grow[0] == 2


def test_nothing_is_sudden_while_it_is_not_known_what_answers_to_other_prompts_need() -> None:
    looks = Looks(now_s=1000.0)
    assert looks.look(rate_for(5), (2, 2), rose_s=1002.0, prompts_changed_s=1002.0).grow[0] == 2
    assert looks.look(rate_for(5), (2, 2), rose_s=1005.0, prompts_changed_s=900.0).grow[0] == 5


# --- keep ---


def test_a_need_is_kept_for_the_scale_in_window_and_longer_after_the_prompts_changed() -> None:
    """Five minutes by default: the prompts before may come back, and so may what they needed."""
    assert kept_s(120.0, 90.0, None, 1000.0) == 120.0
    assert kept_s(120.0, 150.0, None, 1000.0) == 150.0, "a start-up at least"
    assert kept_s(120.0, 90.0, 701.0, 1000.0) == 300.0
    assert kept_s(120.0, 90.0, 700.0, 1000.0) == 120.0, "they are new no more"
    assert kept_s(0.0, 0.0, 999.0, 1000.0) == 0.0, "a policy that keeps nothing is obeyed"


def test_workers_stay_for_the_stabilisation_after_the_last_look_that_needed_them() -> None:
    looks = Looks()
    looks.look(rate_for(5), (5, 1), 200.0)
    assert looks.look(rate_for(2), (5, 1), KEEP_S).prefill == 5
    assert looks.look(rate_for(2), (5, 1)).prefill == 2


@pytest.mark.parametrize("keep_s", [30.0, 600.0, 1800.0, 7200.0])
def test_they_stay_for_as_long_as_the_policy_or_a_start_up_says_however_long_that_is(keep_s: float) -> None:
    looks = Looks()
    looks.look(rate_for(5), (5, 1), 50.0, memory_s=keep_s)
    assert looks.look(rate_for(2), (5, 1), keep_s, memory_s=keep_s).prefill == 5
    assert looks.look(rate_for(2), (5, 1), memory_s=keep_s).prefill == 2


def test_those_who_stay_must_be_enough_for_a_tenth_more_than_is_expected() -> None:
    rate = next(n / 10 for n in range(100, 3000) if need(n / 10)[0] < need(SHIPPED.rate_headroom * n / 10)[0])
    enough, stay = need(rate)[0], need(SHIPPED.rate_headroom * rate)[0]
    looks = Looks()
    assert looks.look(rate, (stay + 1, 1), 300.0).prefill == stay
    assert Looks().look(rate, (enough, 1), 300.0).grow[0] == enough, "nothing is started for it"


def test_what_is_there_at_the_first_look_is_taken_as_needed_until_then() -> None:
    looks = Looks()
    assert looks.look(rate_for(2), (6, 1)).prefill == 6
    assert looks.look(rate_for(2), (6, 1), KEEP_S).prefill == 6
    assert looks.look(rate_for(2), (6, 1)).prefill == 2


@pytest.mark.parametrize("switchable", [True, False])
def test_what_is_kept_is_kept_for_both_roles_together_where_workers_can_change_theirs(switchable: bool) -> None:
    """First many prompts, then many answers: each role was needed, but never both at once."""
    prompts, answers = need(30.0, PROMPTS), need(40.0, ANSWERS)
    both = max(prompts[0], answers[0]), max(prompts[1], answers[1])
    most = max(sum(prompts), sum(answers))
    assert most < sum(both)
    looks = Looks()
    for at, rate in ((PROMPTS, 30.0), (ANSWERS, 40.0)) * 4:
        found = looks.look(rate, both, 50.0, at=at, switchable=switchable)
    looks.look(30.0, both, 50.0, at=PROMPTS, switchable=switchable)
    found = looks.look(40.0, both, 50.0, at=ANSWERS, switchable=switchable)
    assert (found.retained, found.retained_of_both) == (((0, 0), most) if switchable else (both, 0))
    assert found.prefill + found.decode == (most if switchable else sum(both))
    assert found.decode >= answers[1], "it is the other role that gives"


def test_a_policy_that_allows_switches_from_now_on_keeps_what_is_there_for_a_window() -> None:
    """What each role needed says nothing of what both needed together."""
    looks = Looks()
    looks.look(30.0, (6, 6), 50.0, switchable=False)
    found = looks.look(rate_for(1), (6, 6), switchable=True)
    assert (found.retained, found.retained_of_both) == ((0, 0), 12)
    assert looks.look(rate_for(1), (6, 6), KEEP_S + 10.0, switchable=True).retained_of_both < 12


def test_of_both_roles_the_one_that_has_the_most_for_its_load_gives() -> None:
    assert without_idle(Layout(4, 4), Layout(1, 1), 6, (1.0, 4.0)) == (2, 4)
    assert without_idle(Layout(4, 4), Layout(3, 1), 6, (1.0, 4.0)) == (3, 3)
    assert without_idle(Layout(4, 4), Layout(4, 4), 6, (1.0, 4.0)) == (4, 4)


@given(
    there=st.tuples(st.integers(0, 12), st.integers(0, 12)), least=st.tuples(st.integers(1, 12), st.integers(1, 12)),
    size=st.integers(0, 30), load=st.tuples(st.floats(0.1, 20), st.floats(0.1, 20)),
)  # fmt: skip
def test_nobody_goes_who_is_needed_and_no_more_than_are_idle(
    there: tuple[int, int], least: tuple[int, int], size: int, load: tuple[float, float]
) -> None:
    stays = without_idle(Layout(*there), Layout(*least), size, load)
    for stay, has, low in zip(stays, there, least, strict=True):
        assert min(has, low) <= stay <= has
    idle = sum(max(0, has - low) for has, low in zip(there, least, strict=True))
    assert sum(stays) == max(min(size, sum(there)), sum(there) - idle)


# --- a need that came back ---


def came_back(*gaps_s: float, looks: int = 3) -> Needs:
    """A need of five again and again, each time so long after it was last seen. Of five workers three go in between,
    and they start again after so many looks."""
    needs, now_s = Needs().observe(5, 5, 5, 0.0, TICK_S, KEEP_S), 0.0
    for gap_s in gaps_s:
        back_s = now_s + gap_s
        while now_s + TICK_S < back_s:
            now_s += TICK_S
            needs = needs.observe(2, 2, 2, now_s, TICK_S, KEEP_S)
        now_s = back_s
        for there in (*[2] * looks, 5):
            needs = needs.observe(5, 5, there, now_s, TICK_S, KEEP_S)
            now_s += TICK_S
        now_s -= TICK_S
    return needs


@given(st.floats(2 * SHIPPED.need_gap_s, SHIPPED.max_retention_s))
def test_a_need_that_came_back_is_kept_a_quarter_longer_than_it_was_away_but_ten_minutes_at_most(gap_s: float) -> None:
    assert came_back().keep_s(KEEP_S) == KEEP_S
    assert came_back(gap_s).keep_s(KEEP_S) == pytest.approx(min(600.0, max(KEEP_S, 1.25 * gap_s)))
    assert came_back(gap_s).keep_s(900.0) == 900.0, "never shorter than usual"


def test_of_several_gaps_the_longest_counts_and_one_of_a_moment_or_of_long_ago_does_not() -> None:
    assert came_back(150.0, 300.0, 150.0).keep_s(KEEP_S) == 375.0
    assert came_back(SHIPPED.need_gap_s).returns == ()
    assert came_back(SHIPPED.max_retention_s + 2 * TICK_S).returns == ()
    for looks in (1, 3, 20):
        needs = came_back(300.0, 200.0, looks=looks)
        assert [gap_s for _, gap_s in needs.returns] == [300.0, 200.0], "however long it took until they started"
    needs, now_s = came_back(300.0), 300.0 + 3 * TICK_S
    while now_s < 300.0 + SHIPPED.return_memory_s - TICK_S:
        now_s += TICK_S
        needs = needs.observe(2, 2, 2, now_s, TICK_S, KEEP_S)
    assert needs.keep_s(KEEP_S) == 375.0
    assert needs.observe(2, 2, 2, now_s + TICK_S, TICK_S, KEEP_S).keep_s(KEEP_S) == KEEP_S


def test_a_need_for_which_workers_never_were_there_did_not_come_back() -> None:
    needs = Needs()
    for look in range(400):
        needed = 5 if look % 60 < 10 else 2
        needs = needs.observe(needed, needed, 2, TICK_S * look, TICK_S, KEEP_S)
    assert needs.returns == ()


def test_a_need_for_which_workers_were_still_there_did_not_come_back() -> None:
    needs = Needs()
    for look in range(400):
        needed = 5 if look % 60 < 10 else 2
        needs = needs.observe(needed, needed, 5, TICK_S * look, TICK_S, KEEP_S)
    assert needs.returns == ()


@pytest.mark.parametrize(("before", "returns"), [(4, 0), (6, 0), (7, 1), (11, 1)])
def test_a_burst_is_no_return_of_what_a_quiet_service_needed(before: int, returns: int) -> None:
    """Eleven are needed where two are left: of the nine that are short, more than half were needed before."""
    needs, now_s = Needs().observe(before, before, before, 0.0, TICK_S, KEEP_S), 0.0
    while now_s < 200.0:
        now_s += TICK_S
        needs = needs.observe(2, 2, 2, now_s, TICK_S, KEEP_S)
    assert len(needs.observe(11, 11, 2, now_s + TICK_S, TICK_S, KEEP_S).returns) == returns


def test_what_only_those_who_stay_would_need_never_came_back() -> None:
    """With head-room one more is needed, and at a constant rate now and then: nobody is missing for that."""
    needs = Needs()
    for look in range(400):
        needs = needs.observe(4, 5 if look % 60 < 10 else 4, 4, TICK_S * look, TICK_S, KEEP_S)
    assert (needs.returns, needs.keep_s(KEEP_S)) == ((), KEEP_S)


@given(st.lists(st.integers(1, 6), min_size=1, max_size=300), st.floats(10, 600))
def test_what_is_kept_is_the_highest_need_of_the_time_and_little_is_remembered_for_it(
    found: list[int], keep_s: float
) -> None:
    needs = Needs()
    for look, needed in enumerate(found):
        needs = needs.observe(needed, needed, 6 if look else 1, TICK_S * look, TICK_S, keep_s)
        recent = [n for at, n in enumerate(found[: look + 1]) if TICK_S * (look - at) <= keep_s]
        assert needs.kept(TICK_S * look, keep_s, 9, None) == max(recent)
        assert len(needs.highest) <= 6


# --- a fall ---


def test_a_sudden_fall_forgets_what_only_starts_and_nobody_who_serves() -> None:
    rate, starting = rate_for(6), ((30.0,) * 3, ())
    looks = Looks()
    looks.look(rate, (3, 1), 60.0, starting=starting)
    assert looks.look(rate_for(2), (3, 1), starting=starting).prefill == 6, "it fell slowly"
    assert looks.look(rate_for(2), (3, 1), starting=starting, fell_s=looks.now_s, lead_s=LEAD_S).prefill == 3
    fell_s = looks.now_s - LEAD_S + TICK_S
    later = looks.look(rate_for(2), (3, 1), starting=starting, fell_s=fell_s, lead_s=LEAD_S)
    assert later.prefill == 6, "what was started before the fall serves by then"


def test_what_is_started_after_the_fall_stays() -> None:
    """A need that a look a moment after the fall finds, and the next one does not: nobody is started for nothing."""
    looks = Looks()
    looks.look(rate_for(6), (3, 1), 60.0, starting=((30.0,) * 3, ()))
    fell = {"fell_s": looks.now_s + TICK_S, "lead_s": LEAD_S}
    rose_s = looks.now_s + 2 * TICK_S
    assert looks.look(rate_for(2), (3, 1), starting=((30.0,) * 3, ()), **fell).prefill == 3
    assert looks.look(rate_for(4), (3, 1), rose_s=rose_s, **fell).prefill == 4
    assert looks.look(rate_for(2), (3, 1), starting=((60.0,), ()), **fell).prefill == 4


def test_what_starts_stays_where_the_need_came_back_twice() -> None:
    for times in range(4):
        needs = came_back(*[100.0] * times)
        fell_s = needs.highest[-1][0] + TICK_S
        kept = needs.kept(fell_s, KEEP_S, 3, fell_s)
        assert kept == (5 if times >= 2 else 3)


# --- a queue ---


@pytest.mark.parametrize("switchable", [True, False])
def test_whoever_serves_stays_while_a_queue_is_long(switchable: bool) -> None:
    looks, rate, has = Looks(), rate_for(2), (3, 2)
    looks.look(rate, has, 2 * KEEP_S, switchable=switchable)
    starting = ((300.0,), ())
    found = looks.look(rate, has, switchable=switchable, starting=starting)
    assert (found.prefill, found.decode) < has, "without a queue they would go"
    queued = 2 * sum(has) + max(10.0, 2 * rate)  # two for each that serves are no queue
    short = looks.look(rate, has, switchable=switchable, starting=starting, waiting=queued)
    assert (short.prefill, short.decode) < has
    found = looks.look(rate, has, switchable=switchable, starting=starting, waiting=queued + 1)
    assert (found.prefill, found.decode) == has, "but not the one that only starts"


@pytest.mark.parametrize(("away_s", "kept"), [(50.0, 5), (150.0, 5), (86_400.0, 5)])
def test_nobody_goes_at_the_first_look_after_a_time_in_which_nobody_looked(away_s: float, kept: int) -> None:
    """Five workers were needed all the time, then nothing was seen for a while; two are needed now."""
    needs = Needs()
    for look in range(100):
        needs = needs.observe(5, 5, 5, TICK_S * look, TICK_S, KEEP_S)
    back_s = TICK_S * 99 + away_s
    needs = needs.observe(2, 2, 5, back_s, TICK_S, KEEP_S)
    assert needs.kept(back_s, KEEP_S, 5, None) == kept
    for look in range(1, 1000):
        now_s = back_s + TICK_S * look
        needs = needs.observe(2, 2, 5, now_s, TICK_S, KEEP_S)
    assert needs.kept(now_s, KEEP_S, 5, None) == 2


@pytest.mark.parametrize(("window_s", "looks"), [(2.5, 6), (5.0, 3), (15.0, 1), (30.0, 1), (300.0, 1)])
def test_patience_is_seconds_whatever_the_interval_of_the_policy_or_of_prometheus(window_s: float, looks: int) -> None:
    patience, grown = Patience(), []
    for look in range(looks):
        patience, grow = patience.grow(5, 2, window_s * look, window_s, sudden=False)
        grown.append(grow)
    assert grown == [2] * (looks - 1) + [5]


@pytest.mark.parametrize("window_s", [2.5, 15.0, 30.0, 300.0])
def test_a_shortage_that_lasts_is_no_need_that_came_back_however_rarely_it_is_looked_at(window_s: float) -> None:
    """Three of five workers are lost, and the other two are too few from then on."""
    needs = Needs()
    for look in range(8):
        needs = needs.observe(5, 5, 2 if look else 5, window_s * look, window_s, KEEP_S)
    assert needs.returns == ()


def test_a_rise_that_the_season_expects_is_started_for_and_neither_needed_now_nor_a_queue() -> None:
    plain, raised = (moment(5.0, (1, 1), lead_s=LEAD_S, seasonal_per_s=rise) for rise in (None, 400.0))
    assert (plain.ahead_per_s, raised.ahead_per_s) == (5.0, 405.0)
    assert raised.rate_per_s == plain.rate_per_s
    assert raised.backlog_at(LEAD_S) == plain.backlog_at(LEAD_S)
    _, without = targets(Memory(), plain)
    _, found = targets(Memory(), raised)
    assert found.needed_now == without.needed_now
    assert found.needed == raised.needs(405.0, plain.backlog_at(LEAD_S))
    assert (found.seasonal_per_s, without.seasonal_per_s) == (400.0, None)
    _, of_zero = targets(Memory(), replace(plain, seasonal_per_s=0.0))
    assert replace(of_zero, seasonal_per_s=None) == without


def test_the_first_worker_of_a_role_is_started_at_once() -> None:
    """Else ``minGpus`` alone would start one of the other role, and nobody would be served."""
    memory, first = Patience().grow(3, 0, 1000.0, TICK_S, sudden=False)
    assert first == 1
    assert memory.grow(3, 1, 1000.0 + TICK_S, TICK_S, sudden=False)[1] == 1
