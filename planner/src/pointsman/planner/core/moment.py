"""This moment of a service, and how many workers of each role a rate and a queue need in it."""

import itertools
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from pointsman.planner.core.forecast import Forecast, RateForecaster
from pointsman.planner.core.sizing import OperatingPoint

DEVIATIONS: Final = 1.0  # of staffing, and of the forecast's upper bound
CLEAR_S: Final = 30.0  # a queue is to be gone so long after new workers serve
HELD_CLEAR_S: Final = 120.0  # … where what waits is held back, and makes nobody else late
ATTAINMENT: Final = 0.97  # of the past that must have been served for capacity to be given up
LONGEST_KEEP_S: Final = 900.0
SUSTAINED_TICKS: Final = 6  # one more worker without a sudden change must be wanted so long …
BOUND_TICKS: Final = 24  # … or so long where neither the present nor a trend asks for it, only the forecast's bound
GREW_LEADS: Final = 2.0  # leads an added worker stays
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


@dataclass(frozen=True)
class Moment:
    """What is known now. ``waiting``: requests queued, held, or beyond the good batch; ``holds_back``: flow control is
    at work; ``most_queued``: of those, how many a prefill worker may yet take (what finds the queue full is prefilled
    where it decodes, and no new worker helps it); ``arrived``: in the last window; ``lead_s``: until a worker that is
    started now serves; ``memory_s``: how long past demand keeps capacity; ``most``: workers in all."""

    point: OperatingPoint
    forecaster: RateForecaster
    prefill: Pool
    decode: Pool
    waiting: float
    holds_back: bool
    most_queued: float
    arrived: float
    window_s: float
    now_s: float
    lead_s: float
    memory_s: float
    most: int
    tuning: Tuning = SHIPPED

    @property
    def committed(self) -> tuple[int, int]:
        """Workers of each role that serve or start."""
        return self.prefill.committed, self.decode.committed

    @cached_property
    def ahead(self) -> Forecast:
        """The rate when a worker started now will serve."""
        return self._forecast(self.lead_s)

    @cached_property
    def present(self) -> Forecast:
        """The rate now."""
        return self._forecast(0.0)

    @property
    def rate_per_s(self) -> float:
        """What is expected now; never zero."""
        return max(self.present.expected, 1e-3)

    @property
    def backlog(self) -> float:
        """Requests that wait, but for what is always under way."""
        return max(0.0, self.waiting - QUEUED_PER_WORKER * (self.prefill.active + self.decode.active))

    @property
    def next_ready_s(self) -> float:
        """Until the next of those that start serves; 0: none starts."""
        return min((*self.prefill.ready_in_s, *self.decode.ready_in_s), default=0.0)

    @property
    def fallen(self) -> bool:
        """Whether the rate fell suddenly, so lately that a worker started before that does not serve yet."""
        fell_s = self.forecaster.fell_s
        return fell_s is not None and self.now_s - fell_s < self.lead_s

    def backlog_at(self, seconds: float) -> float:
        """What is queued ``seconds`` from now, the starting workers joining in when they are ready."""
        ready = (*self.prefill.ready_in_s, *self.decode.ready_in_s)
        backlog = self.backlog
        for begin, end in itertools.pairwise(sorted({0.0, seconds, *(r for r in ready if 0 < r < seconds)})):
            served = min(
                self.prefill.at(begin) * self.point.prefill_per_s, self.decode.at(begin) * self.point.drain_per_s
            )
            backlog = max(0.0, backlog + (self.ahead.expected - served) * (end - begin))
        return backlog

    def prefill_workers(self, rate_per_s: float) -> int:
        """That leave few of so many requests waiting beyond their slack."""
        late = 1 - min(0.995, max(0.9, self._quantile))
        return self.point.prefill_workers(rate_per_s, self.forecaster.dispersion, late, self.most)

    def decode_workers(self, rate_per_s: float) -> float:
        """For so many requests a second, unevenness included; before rounding."""
        return self.point.decode_workers(rate_per_s, self.tuning.deviations)

    def needs(
        self, rate_per_s: float, queued: float, *, expected: float | None = None, at_once: bool = False
    ) -> tuple[int, int]:
        """Workers of each role for a rate and a queue; ``expected``: where the rate is a bound, what it is a bound of;
        ``at_once``: by those that serve, a switch included, and not by new ones."""
        point, tuning = self.point, self.tuning
        p, d = self.prefill_workers(rate_per_s), self.decode_workers(rate_per_s)
        if expected is not None and expected < rate_per_s:
            # That the rate is higher and that it comes unevenly are two chances: they do not add up.
            mean = point.decode_workers(expected, 0.0)
            higher, uneven = point.decode_workers(rate_per_s, 0.0), self.decode_workers(expected)
            d = mean + math.hypot(higher - mean, uneven - mean)
        extra = self.cleared_per_s(rate_per_s, queued, at_once=at_once)
        if extra > 0:
            queue_per_s = min(extra, self.most_queued / self.clear_s(at_once=at_once))
            p = max(p, math.ceil((rate_per_s + queue_per_s) / point.prefill_per_s - 1e-9))
            reachable = min(extra, self.prefill.active * point.prefill_per_s)
            d = max(d, self.decode_workers(1.04 * (rate_per_s + reachable)))
        return min(p, self.most), min(max(1, math.ceil(d - tuning.decode_round)), self.most)

    def clear_s(self, *, at_once: bool) -> float:
        """How long a queue may last once those serve who are to clear it."""
        return self.tuning.held_clear_s if self.holds_back and not at_once else self.tuning.clear_s

    def cleared_per_s(self, rate_per_s: float, queued: float, *, at_once: bool = False) -> float:
        """Requests of a queue a second, beside those that arrive, so that it is cleared in time."""
        return min(rate_per_s, queued / self.clear_s(at_once=at_once)) if queued > max(5.0, 2 * rate_per_s) else 0.0

    @property
    def planned_per_s(self) -> float:
        """The most that is planned for: the bound of the rate at the lead, or the present, each with its queue."""
        high_per_s, queued = self.ahead.high, self.backlog_at(self.lead_s)
        return max(
            high_per_s + self.cleared_per_s(high_per_s, queued),
            self.rate_per_s + self.cleared_per_s(self.rate_per_s, self.backlog, at_once=True),
        )

    def load(self, needed: tuple[int, int]) -> tuple[float, float]:
        """Needs to compare layouts by: beyond what there can be, in proportion to the work."""
        if needed[0] + needed[1] <= self.most:
            return float(needed[0]), float(needed[1])
        return self.work(needed, self.rate_per_s)

    def work(self, needed: tuple[int, int], rate_per_s: float) -> tuple[float, float]:
        """What a rate takes of each role, in workers but not in whole ones; something of a role that is needed."""
        p, d = self.point.busy_prefill_workers(rate_per_s), self.decode_workers(rate_per_s)
        return max(p, min(1.0, needed[0])), max(d, min(1.0, needed[1]))

    @property
    def _quantile(self) -> float:
        return 0.5 * (1 + math.erf(self.tuning.deviations / math.sqrt(2)))

    def _forecast(self, in_s: float) -> Forecast:
        found = self.forecaster.at(in_s, self.now_s, self.lead_s, self._quantile)
        assert found is not None
        return found
