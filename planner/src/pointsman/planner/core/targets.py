"""How many workers of each role the service should have: what is expected, what is queued, what was needed before.

Upwards at once, to the number that is needed when a worker started now would serve; downwards only when neither the
last minutes, nor what usually comes back, nor a queue that is still to be cleared needs the workers.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from pointsman.planner.core.bursts import Bursts, Expected
from pointsman.planner.core.moment import Moment
from pointsman.planner.core.retention import Highest, Recent, Returns

BOUND_S: Final = 60.0  # one more worker that only the forecast's bound asks for waits no longer than this
TICK_FLOOR_S: Final = 1.0
QUIET_S: Final = 15.0  # after a sudden change that does not hold
SPARE_MARGIN: Final = 1.10  # times the load that prefill workers who stay must serve: what hardly matters stays
Counts = tuple[int, int]
"""Workers of each role: prefill, decode."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What targets remember from tick to tick."""

    recent: Recent = field(default_factory=Recent)
    highest: Highest = field(default_factory=Highest)
    bursts: Bursts = field(default_factory=Bursts)
    for_bursts: Counts = (1, 1)  # workers held for them
    prefill_returns: Returns = field(default_factory=Returns)
    decode_returns: Returns = field(default_factory=Returns)
    more_prefill_ticks: int = 0
    more_decode_ticks: int = 0
    grew_s: tuple[float | None, float | None] = (None, None)  # when a pool last wanted one more without a sudden change
    clearing: Counts = (1, 1)  # workers a backlog was found to need
    first_s: float | None = None


@dataclass(frozen=True, slots=True)
class Targets:
    """Workers wanted, the numbers behind them, and whether anything is queued."""

    prefill: int
    decode: int
    rate_per_s: float
    high_rate_per_s: float
    backlog: float
    needed_now: Counts  # for what arrives at this moment and what is queued
    load_now: tuple[float, float]  # the same without rounding, where it is more than there can be
    load_ahead: tuple[float, float]  # of the rate at the lead, without rounding: as even as the rate is
    up: Counts  # of what is needed at the lead, less a passing one-worker change; and for bursts
    needed: Counts  # when a worker started now would serve
    kept: Counts  # for what was, and may come back
    planned_per_s: float  # requests that layouts are compared by: with those of the queue
    clear_s: tuple[float, float]  # how long the queue may last: for workers that serve, for those that start
    bursts: Expected | None = None  # for what comes back sooner than a worker can start

    @property
    def at_least(self) -> Counts:
        """For what arrives now and is queued, and when a worker started now would serve."""
        return max(self.needed_now[0], self.up[0]), max(self.needed_now[1], self.up[1])


def targets(memory: Memory, moment: Moment) -> tuple[Memory, Targets]:
    """What is wanted at ``moment``, and what is remembered of it."""
    ahead, rate, backlog = moment.ahead, moment.rate_per_s, moment.backlog
    needed = moment.needs(ahead.high, moment.backlog_at(moment.lead_s), expected=ahead.expected)
    needed_now = moment.needs(rate, backlog, at_once=True)
    memory = _remember(memory, moment)
    kept = _kept(memory, moment)
    memory, bursts = _for_bursts(memory, moment)
    memory, up = _up(memory, moment, needed, needed_now)
    wanted = _down(memory, moment, up, kept)
    memory, wanted = _until_cleared(memory, moment, wanted)
    memory, wanted = _at_first(memory, moment, up, wanted)
    return memory, Targets(
        prefill=max(1, wanted[0]),
        decode=max(1, wanted[1]),
        rate_per_s=rate,
        high_rate_per_s=ahead.high,
        backlog=backlog,
        needed_now=needed_now,
        load_now=moment.load(needed_now),
        load_ahead=moment.work(needed, ahead.high),
        up=up,
        needed=needed,
        kept=kept,
        planned_per_s=moment.planned_per_s,
        clear_s=(moment.clear_s(at_once=True), moment.clear_s(at_once=False)),
        bursts=bursts,
    )


def _remember(memory: Memory, moment: Moment) -> Memory:
    now_s, arrived, window_s = moment.now_s, moment.arrived, moment.window_s
    forecaster, point = moment.forecaster, moment.point
    decode = moment.decode_workers(moment.rate_per_s)
    work_s = arrived / point.prefill_per_s
    recent = memory.recent.observe(now_s, arrived, window_s, work_s, decode, max(moment.memory_s, 20.0))
    slack_s = 0.8 * point.ttft_s
    work = [recent.work_s(now_s, span_s) for span_s in (10.0, 20.0)]
    prefill = math.ceil(max(work[0] / (10 + slack_s), work[1] / 20) / 0.97)
    shortest_s = 0.5 * moment.memory_s

    def returns(known: Returns, needed: int) -> Returns:
        return known.observe(needed, arrived, now_s, window_s, shortest_s)

    return replace(
        memory,
        recent=recent,
        highest=memory.highest.observe(now_s, moment.ahead.high, max(moment.memory_s, TICK_FLOOR_S)),
        bursts=memory.bursts.observe(
            arrived,
            window_s,
            now_s,
            rose_from=forecaster.before_jump if forecaster.jumped_s == now_s else None,
            fell=forecaster.fell_s == now_s,
            lead_s=moment.lead_s,
        ),
        prefill_returns=returns(memory.prefill_returns, prefill),
        decode_returns=returns(memory.decode_returns, math.ceil(decode - moment.tuning.keep_round)),
        first_s=now_s if memory.first_s is None else memory.first_s,
    )


def _kept(memory: Memory, moment: Moment) -> Counts:
    """What the past keeps: the last minutes, and the levels that usually come back."""
    point, tuning, now_s = moment.point, moment.tuning, moment.now_s
    slack_s = max(0.15 * point.ttft_s, 0.8 * point.ttft_s - point.prefill_alone_s)
    p = memory.recent.prefill_workers(1 / point.prefill_per_s, slack_s, tuning.attainment, moment.most)
    d = max(1, math.ceil(memory.recent.decode_workers(tuning.attainment) + tuning.hold_round))
    if moment.fallen:  # the rise is over: those that still start come too late
        p, d = min(p, moment.prefill.active), min(d, moment.decode.active)
    keep: Callable[[Returns], int] = lambda r: r.keep(now_s, tuning.longest_keep_s, tuning.attainment)  # noqa: E731
    return max(p, keep(memory.prefill_returns)), max(d, keep(memory.decode_returns))


def _for_bursts(memory: Memory, moment: Moment) -> tuple[Memory, Expected | None]:
    """What is held for bursts that come back before a worker could start for them.

    Between the need of a little less and that of the whole rate nothing moves: what is seen of a burst varies from one
    to the next, and it is over before the queue that the formulas mean has built up.
    """
    tuning = moment.tuning
    bursts = memory.bursts.expected(moment.now_s, tuning.longest_keep_s, tuning.attainment)
    if bursts is None:
        return replace(memory, for_bursts=(1, 1)), None
    # Looked at once a burst, when it has shown what it needs: what is measured in between is of another load.
    edge = moment.now_s in (moment.forecaster.jumped_s, moment.forecaster.fell_s)
    if not edge and memory.for_bursts != (1, 1):
        return memory, bursts

    def need(rate_per_s: float) -> Counts:
        decode = math.ceil(moment.decode_workers(rate_per_s) - tuning.hold_round)
        return moment.prefill_workers(rate_per_s), min(max(1, decode), moment.most)

    least, enough = need(tuning.burst_share * bursts.rate_per_s), need(bursts.rate_per_s)
    p, d = (min(max(has, low), high) for has, low, high in zip(moment.committed, least, enough, strict=True))
    return replace(memory, for_bursts=(p, d)), bursts


def _up(memory: Memory, moment: Moment, needed: Counts, needed_now: Counts) -> tuple[Memory, Counts]:
    """What is needed, less one more worker that was not wanted for long enough yet; and what bursts hold."""
    forecaster, tuning, now_s, committed = moment.forecaster, moment.tuning, moment.now_s, moment.committed
    quiet = forecaster.changed_s is None or now_s - forecaster.changed_s > QUIET_S
    ticks = (
        memory.more_prefill_ticks + 1 if needed[0] > committed[0] else 0,
        memory.more_decode_ticks + 1 if needed[1] > committed[1] else 0,
    )
    rising = moment.ahead.expected > moment.present.expected
    bound_ticks = max(tuning.sustained_ticks, min(tuning.bound_ticks, BOUND_S / max(moment.window_s, 1e-3)))

    def patient(role: int) -> int:
        need, has = needed[role], committed[role]
        wait = tuning.sustained_ticks if rising or needed_now[role] > has else bound_ticks
        passing = quiet and need == has + 1 and ticks[role] < wait
        return max(memory.for_bursts[role], has if passing else need)

    up = patient(0), patient(1)
    grew_s = tuple(
        now_s if quiet and u == has + 1 else before for u, has, before in zip(up, committed, memory.grew_s, strict=True)
    )
    memory = replace(memory, more_prefill_ticks=ticks[0], more_decode_ticks=ticks[1], grew_s=(grew_s[0], grew_s[1]))
    return memory, up


def _down(memory: Memory, moment: Moment, up: Counts, kept: Counts) -> Counts:
    """``up``, or what there is, where the past, the last rise or the stabilisation keeps it."""
    forecaster, committed = moment.forecaster, moment.committed
    # What was added for a slowly changing load is not taken away before it could serve: that would be to and fro.
    held_s = moment.tuning.grew_leads * moment.lead_s
    settled = [
        0 if grew is None or moment.now_s - grew > held_s or (forecaster.fell_s or 0.0) > grew else has
        for grew, has in zip(memory.grew_s, committed, strict=True)
    ]
    # The highest need of the stabilisation counts; after a sudden fall for those only that serve. A queue is cleared
    # once: what it takes is no need of the load.
    highest, pools = memory.highest.rate_per_s, (moment.prefill, moment.decode)
    tops = [
        min(top, pool.active) if moment.fallen else top
        for top, pool in zip(
            (moment.prefill_workers(SPARE_MARGIN * highest), moment.needs(highest, 0.0)[1]), pools, strict=True
        )
    ]
    p, d = (
        max(u, min(has, max(keep, s, top)))
        for u, has, keep, s, top in zip(up, committed, kept, settled, tops, strict=True)
    )
    return p, d


def _until_cleared(memory: Memory, moment: Moment, wanted: Counts) -> tuple[Memory, Counts]:
    """While a queue is long, those stay that serve, and those that it was found to need."""
    backlog, next_ready_s = moment.backlog, moment.next_ready_s
    at_next = moment.backlog_at(next_ready_s) if next_ready_s > 0 else backlog
    long = max(10.0, 2 * moment.rate_per_s)
    starting_helps = next_ready_s <= 0 or at_next > long
    if backlog <= long and not (next_ready_s > 0 and at_next > long):
        return replace(memory, clearing=(1, 1)), wanted
    needs = moment.needs(max(moment.rate_per_s, moment.ahead.high), max(backlog, at_next))
    before = (1, 1) if moment.forecaster.fell_s == moment.now_s else memory.clearing
    p, d = (max(was, min(has, need)) for was, has, need in zip(before, moment.committed, needs, strict=True))
    kept = [
        max(want, min(pool.committed if starting_helps else pool.active, max(clearing, pool.active)))
        for want, pool, clearing in zip(wanted, (moment.prefill, moment.decode), (p, d), strict=True)
    ]
    return replace(memory, clearing=(p, d)), (kept[0], kept[1])


def _at_first(memory: Memory, moment: Moment, up: Counts, wanted: Counts) -> tuple[Memory, Counts]:
    """Nothing is known of the past yet; and what a service is first given is not taken back before it was tried."""
    first_s, committed = memory.first_s, moment.committed
    if first_s is None or moment.now_s - first_s >= moment.memory_s:
        return memory, wanted
    if up[0] > committed[0] or up[1] > committed[1]:
        memory = replace(memory, first_s=moment.now_s)
    return memory, (max(wanted[0], committed[0]), max(wanted[1], committed[1]))
