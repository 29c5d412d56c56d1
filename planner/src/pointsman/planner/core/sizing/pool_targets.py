"""How many workers the service should have, and of each role. From the numbers that ``explain`` shows:

need = workers of a role for the rate that is expected when a worker started now would serve, and for the queue that
       is left then
grow = the lowest need of the last ``patience_s``; the present one after a sudden rise of the rate
keep = the highest need of the last ``scaleInStabilizationSeconds``: longer where a start takes longer, after a change
       of the prompts, or where a need came back after longer; of both roles together where workers can change their
       role, else of each
want = grow, and of those that are there what keep says
"""

import math
from dataclasses import dataclass
from typing import Final

from pointsman.planner.core.sizing.demand import DemandSnapshot
from pointsman.planner.core.tuning import SHIPPED, Tuning
from pointsman.planner.core.types import Layout

MOST_RETURNS: Final = 4


@dataclass(frozen=True, slots=True)
class Needs:
    """What was needed lately: (last look, need) of each need than which there was no higher one since; the same of
    needs for which workers were there; and (when, after how long) such a need came back, or more than half of what is
    short then. A need that comes back in steps may be counted at two of them."""

    highest: tuple[tuple[float, int], ...] = ()
    met: tuple[tuple[float, int], ...] = ()
    returns: tuple[tuple[float, float], ...] = ()

    def observe(
        self,
        need: int,
        stay: int,
        there: int,
        now_s: float,
        window_s: float,
        least_s: float,
        *,
        in_part: bool = False,
        tuning: Tuning = SHIPPED,
    ) -> "Needs":
        """Take one look, at a window: workers that are needed, and that are enough for those who stay.

        What is there at the first look, or at the first after a long time without any, is taken as needed until then;
        so is what is there while the load is known ``in_part``.
        """
        looks_s = 2 * window_s
        unseen = in_part or not self.highest or now_s - self.highest[-1][0] > max(tuning.max_evaluation_gap_s, looks_s)
        returns = tuple(each for each in self.returns if now_s - each[0] < tuning.return_memory_s)
        # Half of what is short now must have been needed then: else a burst is no return of what a quiet service had.
        last_s = max((at_s for at_s, needed in self.met if 2 * (needed - there) > need - there), default=None)
        met = min(stay, there)
        if need > there and last_s is not None:
            met = need  # it is back: what is short at the next look too did not come back again
            if now_s - last_s > max(tuning.need_gap_s, looks_s):
                returns = (*returns, (now_s, now_s - last_s))[-MOST_RETURNS:]
        stay, since_s = max(stay, there) if unseen else stay, now_s - max(tuning.max_retention_s, least_s)

        def with_now(looks: tuple[tuple[float, int], ...], need: int) -> tuple[tuple[float, int], ...]:
            higher = (look for look in looks if look[1] > need and look[0] >= since_s)
            return (*higher, (now_s, need))

        return Needs(with_now(self.highest, stay), with_now(self.met, met), returns)

    def keep_s(self, least_s: float, tuning: Tuning = SHIPPED) -> float:
        """How long a need is kept: as usual, or until it may be expected to have come back."""
        longest_s = max((gap_s for _, gap_s in self.returns), default=0.0)
        return max(least_s, min(tuning.max_retention_s, tuning.return_margin * longest_s))

    def kept(self, now_s: float, least_s: float, serving: int, fell_s: float | None, tuning: Tuning = SHIPPED) -> int:
        """The highest need that is kept. ``fell_s``: when the rate fell suddenly, a moment ago; what still starts for
        a need before that comes too late, unless such a need came back twice before."""
        since_s, gone_s = now_s - self.keep_s(least_s, tuning), -math.inf
        if fell_s is not None and len(self.returns) < 2:
            gone_s = fell_s
        return max(min(need, serving) if at_s < gone_s else need for at_s, need in self.highest if at_s >= since_s)


@dataclass(frozen=True, slots=True)
class Patience:
    """The needs of the last ``patience_s``: when the first of all looks without a break began, and (look, need) of each
    need below which none was since."""

    since_s: float | None = None
    lowest: tuple[tuple[float, int], ...] = ()

    def grow(
        self, need: int, there: int, now_s: float, window_s: float, *, sudden: bool, tuning: Tuning = SHIPPED
    ) -> tuple["Patience", int]:
        """(what is remembered, workers to have at least, by starts too)."""
        begun = self
        if self.lowest and now_s - self.lowest[-1][0] > max(tuning.patience_s, 2 * window_s):
            begun = Patience()  # nobody knows what was needed meanwhile; one look that saw nothing is no break
        since_s = now_s - window_s if begun.since_s is None else begun.since_s
        lower = (look for look in begun.lowest if look[1] < need and look[0] > now_s - tuning.patience_s)
        seen = Patience(since_s, (*lower, (now_s, need)))
        at_once = min(need, max(1, there))  # a role without any worker serves nobody
        least = at_once if seen.left_s(now_s, tuning) > 0 else seen.least
        return seen, need if sudden else max(least, at_once)

    @property
    def least(self) -> int:
        """The lowest need, of those seen."""
        return self.lowest[0][1] if self.lowest else 0

    def left_s(self, now_s: float, tuning: Tuning = SHIPPED) -> float:
        """Until there have been looks for long enough to start workers; 0: there have."""
        whole_s = tuning.patience_s
        return whole_s if self.since_s is None else max(0.0, whole_s - (now_s - self.since_s))


@dataclass(frozen=True, slots=True)
class Memory:
    """What targets remember from look to look."""

    prefill: Patience = Patience()
    decode: Patience = Patience()
    needs: tuple[Needs, ...] = ()  # of both roles together where workers can change theirs, else of each


@dataclass(frozen=True, slots=True)
class Targets:
    """Workers wanted, the numbers behind them, and whether anything is queued."""

    prefill: int
    decode: int
    rate_per_s: float
    ahead_per_s: float  # when a worker started now would serve
    backlog: float
    needed_now: Layout  # for what arrives at this moment and what is queued
    load_now: tuple[float, float]  # the same without rounding, where it is more than there can be
    load_ahead: tuple[float, float]  # of the rate at the lead, without rounding: as even as the rate is
    needed: Layout  # when a worker started now would serve
    grow: Layout  # of that, what was needed for long enough
    retained: Layout  # for what was, of each role by itself; 0 where workers can change theirs …
    retained_of_both: int  # … and of both together; 0 where they cannot
    planned_per_s: float  # requests that layouts are compared by: with those of the queue
    seasonal_per_s: float | None = None  # of ``ahead_per_s``, what the season adds

    @property
    def minimum(self) -> Layout:
        """For what arrives now and is queued, and when a worker started now would serve."""
        return self.needed_now.most(self.grow)


def targets(memory: Memory, moment: DemandSnapshot) -> tuple[Memory, Targets]:
    """What is wanted at ``moment``, and what is remembered of it."""
    ahead_per_s, rate_per_s, backlog = moment.ahead_per_s, moment.rate_per_s, moment.backlog
    there, now_s, keep_s = moment.committed, moment.now_s, moment.memory_s
    window_s, sudden, tuning = moment.window_s, moment.sudden, moment.point.tuning
    needed = moment.needs(ahead_per_s, moment.backlog_at(moment.lead_s))
    needed_now = moment.needs(rate_per_s, backlog, at_once=True)
    prefill, grow_prefill = memory.prefill.grow(
        needed.prefill, there.prefill, now_s, window_s, sudden=sudden, tuning=tuning
    )
    decode, grow_decode = memory.decode.grow(needed.decode, there.decode, now_s, window_s, sudden=sudden, tuning=tuning)
    stay = needed.most(moment.needs(tuning.rate_headroom * ahead_per_s, 0.0))

    serving, fell_s = Layout(moment.prefill.active, moment.decode.active), moment.fell_s
    # Of both roles together where workers can change theirs.
    *of_needs, serve = [(w.total,) if moment.switchable else w for w in (needed, stay, there, serving)]
    # A policy that allows switches from now on, or no longer, begins anew.
    before = memory.needs if len(memory.needs) == len(serve) else (Needs(),) * len(serve)
    needs = tuple(
        so_far.observe(need, stays_for, has, now_s, window_s, keep_s, in_part=moment.in_part, tuning=tuning)
        for so_far, need, stays_for, has in zip(before, *of_needs, strict=True)
    )
    kept = [seen.kept(now_s, keep_s, workers, fell_s, tuning) for seen, workers in zip(needs, serve, strict=True)]
    memory = Memory(prefill, decode, needs)
    retained, retained_of_both = (Layout(0, 0), kept[0]) if moment.switchable else (Layout(*kept), 0)
    grow = Layout(grow_prefill, grow_decode)
    load_ahead = moment.work(needed, ahead_per_s)
    least = Layout(1, 1).most(needed_now, grow)
    if is_long(backlog, rate_per_s):  # those that serve clear it
        least = least.most(serving)
    stays = without_idle(there, least.most(retained), retained_of_both, load_ahead)
    return memory, Targets(
        prefill=max(stays.prefill, grow.prefill),
        decode=max(stays.decode, grow.decode),
        rate_per_s=rate_per_s,
        ahead_per_s=ahead_per_s,
        backlog=backlog,
        needed_now=needed_now,
        load_now=moment.load(needed_now),
        load_ahead=load_ahead,
        needed=needed,
        grow=grow,
        retained=retained,
        retained_of_both=retained_of_both,
        planned_per_s=moment.planned_per_s,
        seasonal_per_s=moment.seasonal_per_s,
    )


def is_long(backlog: float, rate_per_s: float) -> bool:
    """Whether so many requests wait that nobody who serves may go."""
    return backlog > max(10.0, 2 * rate_per_s)


def without_idle(there: Layout, least: Layout, size: int, load: tuple[float, float]) -> Layout:
    """Those that are there without the ones beyond ``least`` of their role, but ``size`` in all.

    Of several that could go it is one of the role that has the most for its ``load``.
    """
    prefill, decode = there
    while prefill + decode > size:
        roles = [role for role, n in ((0, prefill), (1, decode)) if n > least[role]]
        if not roles:
            break
        gives = max(roles, key=lambda role: (prefill, decode)[role] / load[role])
        prefill, decode = (prefill - 1, decode) if gives == 0 else (prefill, decode - 1)
    return Layout(prefill, decode)


def cut(target: Layout, least: Layout, most: int, need: tuple[float, float]) -> Layout:
    """No more than ``most`` workers of ``target``, so that the scarcer pool has the most of its ``need``."""
    if target.total <= most:
        return target
    lowest = Layout(*map(min, least, target))
    able = range(max(lowest.prefill, most - target.decode), min(target.prefill, most - lowest.decode) + 1)
    p = max(able, key=lambda p: min(p / need[0], (most - p) / need[1]), default=lowest.prefill)
    return Layout(p, max(lowest.decode, most - p))
