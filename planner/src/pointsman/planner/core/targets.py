"""How many workers of each role the service should have: what is expected, what is queued, what was needed before.

Upwards at once, to the number that is needed when a worker started now would serve; downwards only when neither the
last minutes, nor what usually comes back, nor a queue that is still to be cleared needs the workers.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from pointsman.planner.core.bursts import Bursts, Expected
from pointsman.planner.core.forecast import RateForecaster
from pointsman.planner.core.retention import Highest, Recent, Returns
from pointsman.planner.core.sizing import MAX_UTILISATION, OperatingPoint

DEVIATIONS: Final = 1.0  # of staffing, and of the forecast's upper bound
CLEAR_S: Final = 30.0  # a queue is to be gone so long after new workers serve
HELD_CLEAR_S: Final = 120.0  # … where what waits is held back, and makes nobody else late
ATTAINMENT: Final = 0.97  # of the past that must have been served for capacity to be given up
LONGEST_KEEP_S: Final = 900.0
SUSTAINED_TICKS: Final = 6  # one more worker without a sudden change must be wanted so long …
BOUND_TICKS: Final = 24  # … or so long where neither the present nor a trend asks for it, only the forecast's bound …
BOUND_S: Final = 60.0  # … and there no longer than this
GREW_LEADS: Final = 2.0  # leads an added worker stays
TICK_FLOOR_S: Final = 1.0
QUIET_S: Final = 15.0  # after a sudden change that does not hold
QUEUED_PER_WORKER: Final = 2.0  # requests that are no backlog


@dataclass(frozen=True, slots=True)
class Tuning:
    """The shipped constants, together so that an evaluation can vary one."""

    deviations: float = DEVIATIONS
    clear_s: float = CLEAR_S
    held_clear_s: float = HELD_CLEAR_S
    attainment: float = ATTAINMENT
    longest_keep_s: float = LONGEST_KEEP_S
    sustained_ticks: int = SUSTAINED_TICKS
    bound_ticks: int = BOUND_TICKS
    grew_leads: float = GREW_LEADS
    decode_round: float = 0.02
    hold_round: float = 0.08
    keep_round: float = 0.05
    burst_share: float = 0.9


SHIPPED: Final = Tuning()


@dataclass(frozen=True, slots=True)
class Pool:
    """One role's workers: serving, and when each starting one will be."""

    active: int
    ready_in_s: tuple[float, ...] = ()

    @property
    def committed(self) -> int:
        """Serving or starting."""
        return self.active + len(self.ready_in_s)

    def at(self, seconds: float) -> int:
        """Serving so many seconds from now."""
        return self.active + sum(ready <= seconds for ready in self.ready_in_s)


@dataclass(frozen=True, slots=True)
class Memory:
    """What targets remember from tick to tick."""

    recent: Recent = field(default_factory=Recent)
    highest: Highest = field(default_factory=Highest)
    bursts: Bursts = field(default_factory=Bursts)
    for_bursts: tuple[int, int] = (1, 1)  # workers held for them
    prefill_returns: Returns = field(default_factory=Returns)
    decode_returns: Returns = field(default_factory=Returns)
    more_prefill_ticks: int = 0
    more_decode_ticks: int = 0
    grew_s: tuple[float | None, float | None] = (None, None)  # when a pool last wanted one more without a sudden change
    clearing: tuple[int, int] = (1, 1)  # workers a backlog was found to need
    first_s: float | None = None


@dataclass(frozen=True, slots=True)
class Targets:
    """Workers wanted, the numbers behind them, and whether anything is queued."""

    prefill: int
    decode: int
    rate_per_s: float
    high_rate_per_s: float
    backlog: float
    needed_now: tuple[int, int]  # for what arrives at this moment and what is queued
    load_now: tuple[float, float]  # the same without rounding, where it is more than there can be
    up: tuple[int, int]  # of what is needed at the lead, less a passing one-worker change; and for bursts
    needed: tuple[int, int]  # when a worker started now would serve
    kept: tuple[int, int]  # for what was, and may come back
    bursts: Expected | None = None  # for what comes back sooner than a worker can start


def targets(
    memory: Memory,
    forecaster: RateForecaster,
    point: OperatingPoint,
    prefill: Pool,
    decode: Pool,
    *,
    waiting: float,
    holds_back: bool,
    most_queued: float,
    arrived: float,
    window_s: float,
    now_s: float,
    lead_s: float,
    memory_s: float,
    most: int,
    tuning: Tuning = SHIPPED,
) -> tuple[Memory, Targets]:
    """``waiting``: requests queued, held, or beyond the good batch; ``holds_back``: flow control is at work;
    ``most_queued``: of those, how many a prefill worker may
    yet take: what finds the queue full is prefilled where it decodes, and no new worker helps it; ``arrived``: in the
    last window; ``memory_s``: how long past demand keeps capacity; ``most``: workers in all."""
    quantile = 0.5 * (1 + math.erf(tuning.deviations / math.sqrt(2)))
    ahead = forecaster.at(lead_s, now_s, lead_s, quantile)
    present = forecaster.at(0.0, now_s, lead_s, quantile)
    assert ahead is not None
    assert present is not None
    rate = max(present.expected, 1e-3)
    backlog = max(0.0, waiting - QUEUED_PER_WORKER * (prefill.active + decode.active))

    def backlog_at(seconds: float) -> float:
        return _backlog(backlog, ahead.expected, seconds, prefill, decode, point)

    late = 1 - min(0.995, max(0.9, quantile))

    clear_s = tuning.held_clear_s if holds_back else tuning.clear_s  # by new workers: a switch costs nothing

    def needs(
        at_rate: float, queued: float, expected: float | None = None, clear_s: float = clear_s
    ) -> tuple[int, int]:
        p = point.prefill_workers(at_rate, forecaster.dispersion, late, most)
        d = point.decode_workers(at_rate, tuning.deviations)
        if expected is not None and expected < at_rate:
            # That the rate is higher and that it comes unevenly are two chances: they do not add up.
            mean = point.decode_workers(expected, 0.0)
            higher, uneven = point.decode_workers(at_rate, 0.0), point.decode_workers(expected, tuning.deviations)
            d = mean + math.hypot(higher - mean, uneven - mean)
        extra = min(at_rate, queued / clear_s) if queued > max(5.0, 2 * at_rate) else 0.0
        if extra > 0:
            queue_per_s = min(extra, most_queued / clear_s)
            p = max(p, math.ceil((at_rate + queue_per_s) / point.prefill_per_s - 1e-9))
            reachable = min(extra, prefill.active * point.prefill_per_s)
            d = max(d, point.decode_workers(1.04 * (at_rate + reachable), tuning.deviations))
        return min(p, most), min(max(1, math.ceil(d - tuning.decode_round)), most)

    at_lead = backlog_at(lead_s)
    needed = needs(ahead.high, at_lead, ahead.expected)
    next_ready_s = min((*prefill.ready_in_s, *decode.ready_in_s), default=0.0)
    at_next = backlog_at(next_ready_s) if next_ready_s > 0 else backlog
    needed_now = needs(rate, backlog, clear_s=tuning.clear_s)
    clearing_needs = needs(max(rate, ahead.high), max(backlog, at_next))

    memory = _remember(memory, forecaster, point, rate, arrived, window_s, now_s, lead_s, memory_s, tuning)
    kept = _kept(memory, forecaster, point, prefill, decode, now_s, lead_s, most, tuning)
    bursts = memory.bursts.expected(now_s, tuning.longest_keep_s, tuning.attainment)
    committed = prefill.committed, decode.committed
    for_bursts = (1, 1)
    if bursts is not None:
        # Looked at once a burst, when it has shown what it needs: what is measured in between is of another load.
        edge = now_s in (forecaster.jumped_s, forecaster.fell_s)
        for_bursts = memory.for_bursts
        if edge or for_bursts == (1, 1):
            for_bursts = _for_bursts(bursts, forecaster, point, committed, late, most, tuning)
    quiet = forecaster.changed_s is None or now_s - forecaster.changed_s > QUIET_S
    ticks = (
        memory.more_prefill_ticks + 1 if needed[0] > committed[0] else 0,
        memory.more_decode_ticks + 1 if needed[1] > committed[1] else 0,
    )
    rising = ahead.expected > present.expected
    bound_ticks = max(tuning.sustained_ticks, min(tuning.bound_ticks, BOUND_S / max(window_s, 1e-3)))
    waits = [
        tuning.sustained_ticks if rising or need > has else bound_ticks
        for need, has in zip(needed_now, committed, strict=True)
    ]
    up = tuple(
        max(burst, has if quiet and need == has + 1 and waited < wait else need)
        for need, has, waited, wait, burst in zip(needed, committed, ticks, waits, for_bursts, strict=True)
    )
    grew_s = tuple(
        now_s if quiet and u == has + 1 else before for u, has, before in zip(up, committed, memory.grew_s, strict=True)
    )
    # What was added for a slowly changing load is not taken away before it could serve: that would be to and fro.
    # A queue is cleared once: what it takes is no need of the load.
    highest = memory.highest.observe(now_s, ahead.high, max(memory_s, TICK_FLOOR_S))
    settled = [
        0 if grew is None or now_s - grew > tuning.grew_leads * lead_s or (forecaster.fell_s or 0.0) > grew else has
        for grew, has in zip(grew_s, committed, strict=True)
    ]
    fallen = forecaster.fell_s is not None and now_s - forecaster.fell_s < lead_s
    # The highest need of the stabilisation counts; after a sudden fall for those only that serve.
    highest_needs = needs(highest.rate_per_s, 0.0)
    tops = [
        min(top, pool.active) if fallen else top for top, pool in zip(highest_needs, (prefill, decode), strict=True)
    ]
    wanted = [
        max(u, min(has, max(keep, s, top)))
        for u, has, keep, s, top in zip(up, committed, kept, settled, tops, strict=True)
    ]

    threshold = max(10.0, 2 * rate)
    clearing = (1, 1) if forecaster.fell_s == now_s else memory.clearing
    if backlog > threshold or (next_ready_s > 0 and at_next > threshold):
        clearing = (
            max(clearing[0], min(committed[0], clearing_needs[0])),
            max(clearing[1], min(committed[1], clearing_needs[1])),
        )
        starting_helps = next_ready_s <= 0 or at_next > threshold
        for role, pool in enumerate((prefill, decode)):
            most_useful = pool.committed if starting_helps else pool.active
            wanted[role] = max(wanted[role], min(most_useful, max(clearing[role], pool.active)))
    else:
        clearing = (1, 1)
    first_s = memory.first_s
    if first_s is not None and now_s - first_s < memory_s:
        # Nothing is known of the past yet; and what a service is first given is not taken back before it was tried.
        if up[0] > committed[0] or up[1] > committed[1]:
            first_s = now_s
        wanted = [max(w, has) for w, has in zip(wanted, committed, strict=True)]
    memory = replace(
        memory,
        highest=highest,
        for_bursts=for_bursts,
        grew_s=(grew_s[0], grew_s[1]),
        more_prefill_ticks=ticks[0],
        more_decode_ticks=ticks[1],
        clearing=clearing,
        first_s=first_s,
    )
    return memory, Targets(
        prefill=max(1, wanted[0]),
        decode=max(1, wanted[1]),
        rate_per_s=rate,
        high_rate_per_s=ahead.high,
        backlog=backlog,
        needed_now=needed_now,
        load_now=_load(needed_now, rate, point, most, tuning),
        up=(up[0], up[1]),
        needed=needed,
        kept=kept,
        bursts=bursts,
    )


def _for_bursts(
    bursts: Expected,
    forecaster: RateForecaster,
    point: OperatingPoint,
    committed: tuple[int, int],
    late: float,
    most: int,
    tuning: Tuning,
) -> tuple[int, int]:
    """What is held for bursts that come back before a worker could start for them.

    Between the need of a little less and that of the whole rate nothing moves: what is seen of a burst varies from one
    to the next, and it is over before the queue that the formulas mean has built up.
    """

    def need(rate_per_s: float) -> tuple[int, int]:
        decode = math.ceil(point.decode_workers(rate_per_s, tuning.deviations) - tuning.hold_round)
        return point.prefill_workers(rate_per_s, forecaster.dispersion, late, most), min(max(1, decode), most)

    least, enough = need(tuning.burst_share * bursts.rate_per_s), need(bursts.rate_per_s)
    p, d = (min(max(has, low), high) for has, low, high in zip(committed, least, enough, strict=True))
    return p, d


def _load(
    needed: tuple[int, int], rate: float, point: OperatingPoint, most: int, tuning: Tuning
) -> tuple[float, float]:
    """Needs to compare layouts by: beyond what there can be, in proportion to the work."""
    p, d = rate / point.prefill_per_s / MAX_UTILISATION, point.decode_workers(rate, tuning.deviations)
    if needed[0] + needed[1] <= most:
        return float(needed[0]), float(needed[1])
    return max(p, min(1.0, needed[0])), max(d, min(1.0, needed[1]))


def _backlog(
    backlog: float, rate_per_s: float, seconds: float, prefill: Pool, decode: Pool, point: OperatingPoint
) -> float:
    """What is queued ``seconds`` from now, the starting workers joining in when they are ready."""
    moments = sorted({0.0, seconds, *(r for r in (*prefill.ready_in_s, *decode.ready_in_s) if 0 < r < seconds)})
    for begin, end in itertools.pairwise(moments):
        served = min(prefill.at(begin) * point.prefill_per_s, decode.at(begin) * point.drain_per_s)
        backlog = max(0.0, backlog + (rate_per_s - served) * (end - begin))
    return backlog


def _remember(
    memory: Memory,
    forecaster: RateForecaster,
    point: OperatingPoint,
    rate: float,
    arrived: float,
    window_s: float,
    now_s: float,
    lead_s: float,
    memory_s: float,
    tuning: Tuning,
) -> Memory:
    decode = point.decode_workers(rate, tuning.deviations)
    work_s = arrived / point.prefill_per_s
    recent = memory.recent.observe(now_s, arrived, window_s, work_s, decode, max(memory_s, 20.0))
    slack_s = 0.8 * point.ttft_s
    work = [recent.work_s(now_s, span_s) for span_s in (10.0, 20.0)]
    prefill = math.ceil(max(work[0] / (10 + slack_s), work[1] / 20) / 0.97)
    shortest_s = 0.5 * memory_s

    def returns(known: Returns, needed: int) -> Returns:
        return known.observe(needed, arrived, now_s, window_s, shortest_s)

    return replace(
        memory,
        recent=recent,
        bursts=memory.bursts.observe(
            arrived,
            window_s,
            now_s,
            rose_from=forecaster.before_jump if forecaster.jumped_s == now_s else None,
            fell=forecaster.fell_s == now_s,
            lead_s=lead_s,
        ),
        prefill_returns=returns(memory.prefill_returns, prefill),
        decode_returns=returns(memory.decode_returns, math.ceil(decode - tuning.keep_round)),
        first_s=now_s if memory.first_s is None else memory.first_s,
    )


def _kept(
    memory: Memory,
    forecaster: RateForecaster,
    point: OperatingPoint,
    prefill: Pool,
    decode: Pool,
    now_s: float,
    lead_s: float,
    most: int,
    tuning: Tuning,
) -> tuple[int, int]:
    """What the past keeps: the last minutes, and the levels that usually come back."""
    slack_s = max(0.15 * point.ttft_s, 0.8 * point.ttft_s - point.prefill_alone_s)
    p = memory.recent.prefill_workers(1 / point.prefill_per_s, slack_s, tuning.attainment, most)
    d = max(1, math.ceil(memory.recent.decode_workers(tuning.attainment) + tuning.hold_round))
    if forecaster.fell_s is not None and now_s - forecaster.fell_s < lead_s:
        p, d = min(p, prefill.active), min(d, decode.active)  # the rise is over: those that still start come too late
    keep: Callable[[Returns], int] = lambda r: r.keep(now_s, tuning.longest_keep_s, tuning.attainment)  # noqa: E731
    return max(p, keep(memory.prefill_returns)), max(d, keep(memory.decode_returns))
