"""Axes of the pictures: where they end, their ticks, and how a moment is written."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

_INTERVALS = 4  # between ticks, at most
HOUR_S = 3600


@dataclass(frozen=True, slots=True)
class Axis:
    """Values from the first to the last of ``ticks``. ``log``: their logarithms are drawn."""

    ticks: tuple[float, ...]
    log: bool = False

    def share(self, value: float) -> float:
        """Where a value lies, 0 at the first tick and 1 at the last; what is beyond them lies on them."""
        least, most = self.ticks[0], self.ticks[-1]
        inside = min(max(value, least), most)
        if self.log:
            return math.log(inside / least) / math.log(most / least)
        return (inside - least) / (most - least)


def linear(most: float, *, whole: bool = False) -> Axis:
    """From 0 to at least ``most``, in steps that are easily read. ``whole``: no tick between two whole numbers."""
    step = _step(max(most, 1e-9) / _INTERVALS)
    if whole and step != int(step):
        step = 1.0 if step < 1 else math.ceil(step)
    count = max(1, math.ceil(most / step - 1e-6))
    return Axis(tuple(round(step * number, 12) for number in range(count + 1)))


def logarithmic(least: float, most: float) -> Axis:
    """The powers of ten around two values above 0."""
    first, last = math.floor(math.log10(least) + 1e-9), math.ceil(math.log10(most) - 1e-9)
    return Axis(tuple(10.0**power for power in range(first, max(last, first + 1) + 1)), log=True)


def number(value: float) -> str:
    """A tick's label."""
    return f"{value:g}" if value < 1e5 else f"{value / 1000:g}k"


def moments(end_s: float) -> Iterator[float]:
    """At most 13 ticks of a time axis."""
    steps = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 43200, 86400)
    step = next((step for step in steps if end_s / step <= 12), 86400 * math.ceil(end_s / 86400 / 12))
    yield from (float(at_s) for at_s in range(0, int(end_s + 1e-6) + 1, step))


def tick_clock(at_s: float, end_s: float) -> str:
    """A tick of a time axis that ends at ``end_s``: minutes and seconds, or hours and minutes of a long one."""
    large, small = divmod(round(at_s), 60) if end_s < HOUR_S else divmod(round(at_s) // 60, 60)
    return f"{large}:{small:02}"


def tick_unit(end_s: float) -> str:
    """What the labels of that axis are."""
    return "min:s" if end_s < HOUR_S else "h:min"


def clock(at_s: float) -> str:
    """A moment to the second."""
    minutes, seconds = divmod(round(at_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def together(places: list[float], apart: float) -> list[tuple[int, int]]:
    """First and last index of each run of places that are less than ``apart`` from the first of the run.

    Their labels would lie upon each other; one label for all of them does not. Places are in order.
    """
    firsts: list[int] = []
    for index, place in enumerate(places):
        if not firsts or place - places[firsts[-1]] >= apart:
            firsts.append(index)
    return [(first, after - 1) for first, after in pairwise([*firsts, len(places)])]


def _step(least: float) -> float:
    """The next of 1, 2, 2.5 and 5 times a power of ten."""
    scale = 10.0 ** math.floor(math.log10(least))
    return next(scale * step for step in (1, 2, 2.5, 5, 10) if scale * step >= least * 0.999)
