"""What two readings of a /metrics page say about the time between them.

A counter that went down was restarted: its new value is all that is known to have been added. With one of a histogram's
buckets, or its sum, all of it was, also buckets that have come further by now. A family that is missing is unknown, not
zero, on either page.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

Labels = tuple[tuple[str, str], ...]
Page = Mapping[str, Mapping[Labels, float]]
"""Samples by name (``…_bucket``, ``…_sum``, … are names of their own), then by sorted labels."""


def middle(low: float, upper: float) -> float:
    """The value that stands for a bucket: the geometric middle of its bounds."""
    return low if math.isinf(upper) else upper if low <= 0 else math.sqrt(low * upper)


@dataclass(frozen=True, slots=True)
class Histogram:
    """Observations between two readings: cumulative counts by upper bound, in order; the last bound is infinite."""

    bounds: tuple[float, ...]
    cumulative: tuple[float, ...]
    total: float

    @property
    def count(self) -> float:
        """How many observations."""
        return self.cumulative[-1] if self.cumulative else 0.0

    @property
    def mean(self) -> float | None:
        """None without observations."""
        return self.total / self.count if self.count > 0 else None

    def _buckets(self) -> Iterator[tuple[float, float, float]]:
        """(lower bound, upper bound, observations) of every bucket."""
        counts = (reached - below for below, reached in itertools.pairwise((0.0, *self.cumulative)))
        return zip((0.0, *self.bounds), self.bounds, counts, strict=False)

    @property
    def most(self) -> float:
        """What no observation was above: a bound, infinite if one was above the last finite one; 0 without any."""
        reached = zip(self.bounds, self.cumulative, strict=True)
        return next((upper for upper, count in reached if count >= self.count > 0), 0.0)

    def share_at_most(self, bound: float) -> float | None:
        """The largest share of observations that may be ≤ ``bound``: whole buckets; None without observations."""
        reached = zip(self.bounds, self.cumulative, strict=True)
        return next((count / self.count for upper, count in reached if upper >= bound and self.count > 0), None)

    def shares(self) -> tuple[tuple[float, float], ...]:
        """(middle, share) of every bucket that has observations."""
        return tuple(
            (middle(low, upper), count / self.count)
            for low, upper, count in self._buckets()
            if count > 0 and self.count > 0
        )

    def plus(self, other: "Histogram") -> "Histogram":
        """Both together; histograms of other bounds cannot be added (they are of one version of one process)."""
        if not self.cumulative or self.bounds != other.bounds:
            return other if not self.cumulative else self
        together = tuple(a + b for a, b in zip(self.cumulative, other.cumulative, strict=True))
        return Histogram(self.bounds, together, self.total + other.total)

    def less(self, other: "Histogram") -> "Histogram":
        """Without the observations of ``other``, as far as they are among these; itself for other bounds.

        Those may be of an earlier time, and more than these: where the rest of the sum cannot be that of the rest of
        the buckets, it is estimated by the buckets' middles.
        """
        if not other.count or self.bounds != other.bounds:
            return self
        pairs = zip(self._buckets(), other._buckets(), strict=True)
        counts = (max(0.0, here - there) for (_, _, here), (_, _, there) in pairs)
        left = Histogram(self.bounds, tuple(itertools.accumulate(counts)), self.total - other.total)
        lowest = sum(low * count for low, _, count in left._buckets())
        most = sum(upper * count for _, upper, count in left._buckets() if count > 0)
        if lowest < left.total <= most:
            return left
        before, after = (each.count * sum(value * share for value, share in each.shares()) for each in (self, left))
        return replace(left, total=self.total * after / before if before > 0 else 0.0)


EMPTY = Histogram((), (), 0.0)


def gauge(page: Page, name: str) -> float | None:
    """The sum of a gauge over its labels; None if it is absent or not a number."""
    values = [value for value in page.get(name, {}).values() if not math.isnan(value)]
    return sum(values) if values else None


def added(before: Page, after: Page, name: str, **only: str) -> float | None:
    """What a counter gained, over all labels but ``only`` these; None if it is not on the newer page."""
    now = after.get(name)
    if now is None or _is_later(before, name):
        return None
    then = before.get(name, {})
    wanted = set(only.items())
    return sum(_gain(then.get(labels, 0.0), value) for labels, value in now.items() if wanted <= set(labels))


def added_by(before: Page, after: Page, names: Sequence[str], label: str) -> dict[str, tuple[float, ...]]:
    """What each of some counters of one process gained, by the values of a label that they have in common.

    Empty if one of them is not on the newer page. If any of them went down, all were restarted.
    """
    if any(name not in after or _is_later(before, name) for name in names):
        return {}
    then = {name: before.get(name, {}) for name in names}
    if any(value < then[name].get(labels, 0.0) for name in names for labels, value in after[name].items()):
        then = {name: {} for name in names}
    gained: list[defaultdict[str, float]] = [defaultdict(float) for _ in names]
    for name, by_value in zip(names, gained, strict=True):
        for labels, value in after[name].items():
            by_value[dict(labels).get(label, "")] += value - then[name].get(labels, 0.0)
    return {value: tuple(each[value] for each in gained) for value in gained[0]}


def observed(before: Page, after: Page, name: str) -> Histogram:
    """A histogram's observations between two pages, over all labels; empty if it is not on the newer page."""
    buckets, sums = f"{name}_bucket", f"{name}_sum"
    if not after.get(buckets) or _is_later(before, buckets):
        return EMPTY
    now = {**after[buckets], **after.get(sums, {})}
    then = {**before.get(buckets, {}), **before.get(sums, {})}
    restarted = {_without_bound(labels) for labels, value in now.items() if value < then.get(labels, 0.0)}
    gained = {
        labels: value - (0.0 if _without_bound(labels) in restarted else then.get(labels, 0.0))
        for labels, value in now.items()
    }
    by_bound: defaultdict[float, float] = defaultdict(float)
    for labels in after[buckets]:
        by_bound[float(dict(labels)["le"])] += gained[labels]
    bounds = tuple(sorted(by_bound))
    total = sum(gained[labels] for labels in after.get(sums, {}))
    return Histogram(bounds, tuple(by_bound[bound] for bound in bounds), total)


def _is_later(before: Page, name: str) -> bool:
    """Whether a family appeared on a page that was there: what it counted before is not of this time."""
    return bool(before) and name not in before


def _without_bound(labels: Labels) -> Labels:
    return tuple(label for label in labels if label[0] != "le")


def _gain(then: float, now: float) -> float:
    return now - then if now >= then else now
