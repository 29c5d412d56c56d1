"""This moment of a service, and how many workers of each role a rate and a queue need in it."""

import itertools
import math
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import Final

from pointsman.planner.core.sizing.operating_point import OperatingPoint
from pointsman.planner.core.tuning import SHIPPED, Tuning
from pointsman.planner.core.types import Layout
from pointsman.planner.core.workload.arrival_forecast import RateForecaster

_NORMAL: Final = NormalDist()


def late_share(attainment: float) -> float:
    """Of the requests, what may wait too long for a prefill worker: a thousandth at least."""
    return max(0.001, 1 - attainment)


def reachable_attainment(attainment: float, unreachable: float) -> float:
    """Of the requests that can be in time, the share that must be, so that ``attainment`` of all are.

    ``unreachable``: of all requests, those that cannot. Where they are more than may be late, the others are sized for
    as if they alone were there. A fifth of those that may be late is left to them in any case.
    """
    left = 1 - attainment - unreachable
    return 1 - max(left / (1 - unreachable), 0.2 * (1 - attainment)) if left > 0 else attainment


def deviations(attainment: float) -> float:
    """Standard deviations of the sequences that decode at once, for which the decode pool is sized.

    An answer is late when more sequences decode beside it than the batch for most of its life, not for a moment: so
    moments may be beyond the batch twice as often as answers may be late. 0 where that is half of the time.
    """
    return _NORMAL.inv_cdf(max(0.5, 1 - 2 * late_share(attainment)))


def kept_s(
    stabilization_s: float, lead_s: float, changed_s: float | None, now_s: float, tuning: Tuning = SHIPPED
) -> float:
    """How long a need is kept: a start-up at least, and longer after prompts ``changed_s``: those before may return."""
    new_s = tuning.new_requests_windows * stabilization_s
    is_new = changed_s is not None and now_s - changed_s < new_s
    return max(new_s if is_new else stabilization_s, lead_s)


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


def is_sudden(forecaster: RateForecaster, now_s: float, tuning: Tuning = SHIPPED) -> bool:
    """Whether the rate rose suddenly a moment ago: for so long nothing waits to be sure."""
    return forecaster.rose_s is not None and now_s - forecaster.rose_s <= tuning.patience_s


def last_fall_s(forecaster: RateForecaster, now_s: float, lead_s: float) -> float | None:
    """When the rate fell suddenly, if that is so lately that a worker started before it does not serve yet."""
    fell_s = forecaster.fell_s
    return fell_s if fell_s is not None and now_s - fell_s < lead_s else None


@dataclass(frozen=True)
class DemandSnapshot:
    """What is known now. ``waiting``: requests queued, held, or beyond the good batch; ``holds_back``: flow control is
    at work; ``most_queued``: of those, how many a prefill worker may yet take (what finds the queue full is prefilled
    where it decodes, and no new worker helps it); ``window_s``: of the last look; ``lead_s``: until a worker that is
    started now serves; ``memory_s``: how long past demand keeps capacity; ``most``: workers in all;
    ``seasonal_per_s``: what the season adds to the rate at the lead; None: it says nothing; ``in_part``: requests of
    some gateways are not known."""

    point: OperatingPoint
    attainment: float
    forecaster: RateForecaster
    prefill: Pool
    decode: Pool
    waiting: float
    holds_back: bool
    most_queued: float
    window_s: float
    now_s: float
    lead_s: float
    memory_s: float
    switchable: bool
    prompts_changed_s: float | None
    most: int
    seasonal_per_s: float | None = None
    in_part: bool = False

    @property
    def committed(self) -> Layout:
        """Workers of each role that serve or start."""
        return Layout(self.prefill.committed, self.decode.committed)

    @cached_property
    def ahead_per_s(self) -> float:
        """The rate that is expected when a worker started now will serve."""
        return self._expected_per_s(self.lead_s) + (self.seasonal_per_s or 0.0)

    @cached_property
    def rate_per_s(self) -> float:
        """The rate now; never zero."""
        return max(self._expected_per_s(0.0), 1e-3)

    @property
    def backlog(self) -> float:
        """Requests that wait, but for what is always under way."""
        return max(0.0, self.waiting - self.point.tuning.queued_per_worker * (self.prefill.active + self.decode.active))

    @property
    def sudden(self) -> bool:
        """Whether the rate rose suddenly a moment ago, of requests of the kind that is known."""
        changed_s, tuning = self.prompts_changed_s, self.point.tuning
        new = changed_s is not None and self.now_s - changed_s <= tuning.patience_s
        return not new and is_sudden(self.forecaster, self.now_s, tuning)

    @property
    def fell_s(self) -> float | None:
        """When the rate fell suddenly, if that is so lately that a worker started before it does not serve yet."""
        return last_fall_s(self.forecaster, self.now_s, self.lead_s)

    def backlog_at(self, seconds: float) -> float:
        """What is queued ``seconds`` from now, the starting workers joining in when they are ready."""
        ready = (*self.prefill.ready_in_s, *self.decode.ready_in_s)
        backlog, rate_per_s = self.backlog, self._expected_per_s(self.lead_s)  # the season's rise is only then there
        for begin, end in itertools.pairwise(sorted({0.0, seconds, *(r for r in ready if 0 < r < seconds)})):
            served = min(
                self.prefill.at(begin) * self.point.prefill_per_s, self.decode.at(begin) * self.point.drain_per_s
            )
            backlog = max(0.0, backlog + (rate_per_s - served) * (end - begin))
        return backlog

    def prefill_workers(self, rate_per_s: float) -> int:
        """That leave few of so many requests waiting beyond their slack."""
        return self.point.prefill_workers(
            rate_per_s, self.forecaster.dispersion, late_share(self.attainment), self.most
        )

    def decode_workers(self, rate_per_s: float) -> float:
        """For so many requests a second, unevenness included; before rounding."""
        return self.point.decode_workers(rate_per_s, deviations(self.attainment))

    def needs(self, rate_per_s: float, queued: float, *, at_once: bool = False) -> Layout:
        """Workers of each role for a rate and a queue; ``at_once``: by those that serve, a switch included, and not by
        new ones."""
        point = self.point
        p, d = self.prefill_workers(rate_per_s), self.decode_workers(rate_per_s)
        extra = self.cleared_per_s(rate_per_s, queued, at_once=at_once)
        if extra > 0:
            queue_per_s = min(extra, self.most_queued / self.clear_s(at_once=at_once))
            p = max(p, math.ceil((rate_per_s + queue_per_s) / point.prefill_per_s - 1e-9))
            reachable = min(extra, self.prefill.active * point.prefill_per_s)
            d = max(d, self.decode_workers(rate_per_s + reachable))
        d = min(max(1, math.ceil(d - 0.02)), self.most)  # a fiftieth of a worker is no reason for another one
        return Layout(min(p, self.most), d)

    def clear_s(self, *, at_once: bool) -> float:
        """How long a queue may last once those serve who are to clear it."""
        tuning = self.point.tuning
        return tuning.gateway_queue_clear_s if self.holds_back and not at_once else tuning.queue_clear_s

    def cleared_per_s(self, rate_per_s: float, queued: float, *, at_once: bool = False) -> float:
        """Requests of a queue a second, beside those that arrive, so that it is cleared in time."""
        return min(rate_per_s, queued / self.clear_s(at_once=at_once)) if queued > max(5.0, 2 * rate_per_s) else 0.0

    @property
    def planned_per_s(self) -> float:
        """The most that is planned for: the rate at the lead, or the present, each with its queue."""
        ahead_per_s, queued = self.ahead_per_s, self.backlog_at(self.lead_s)
        return max(
            ahead_per_s + self.cleared_per_s(ahead_per_s, queued),
            self.rate_per_s + self.cleared_per_s(self.rate_per_s, self.backlog, at_once=True),
        )

    def load(self, needed: Layout) -> tuple[float, float]:
        """Needs to compare layouts by: beyond what there can be, in proportion to the work."""
        if needed.total <= self.most:
            return float(needed.prefill), float(needed.decode)
        return self.work(needed, self.rate_per_s)

    def work(self, needed: Layout, rate_per_s: float) -> tuple[float, float]:
        """What a rate takes of each role, in workers but not in whole ones; something of a role that is needed."""
        p, d = self.point.busy_prefill_workers(rate_per_s), self.decode_workers(rate_per_s)
        return max(p, min(1.0, needed.prefill)), max(d, min(1.0, needed.decode))

    def _expected_per_s(self, in_s: float) -> float:
        return self.forecaster.expected(in_s, self.point.tuning)
