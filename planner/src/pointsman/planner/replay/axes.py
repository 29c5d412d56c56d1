"""Axes of the pictures: where they end, their ticks, and how a moment is written."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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
    """From 0 to at least ``most``, in steps that are easily read; to 1 where nothing is above 0.

    ``whole``: no tick between two whole numbers.
    """
    most = most if most > 0 else 1.0
    step = _step(most / _INTERVALS)
    if whole and step != int(step):
        step = 1.0 if step < 1 else math.ceil(step)
    count = max(1, math.ceil(most / step - 1e-6))
    return Axis(tuple(float(f"{step * number:.12g}") for number in range(count + 1)))


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


def clock(at_s: float, end_s: float) -> str:
    """A moment to the second, of a table whose last one is ``end_s``: all its rows have hours, or none."""
    minutes, seconds = divmod(round(at_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if round(end_s) >= HOUR_S else f"{minutes}:{seconds:02}"


def clock_unit(end_s: float) -> str:
    """What the moments of that table are."""
    return "h:min:s" if round(end_s) >= HOUR_S else "min:s"


def labels(places: Sequence[float], letter: float) -> list[tuple[str, float]]:
    """(numbers of places, middle of that label): 1, 2 … in order; one label for those that would lie upon each other.

    ``letter``: how wide one is. A label that became wider may touch the one before it, and is then joined to that too.
    """
    runs: list[tuple[int, int]] = []

    def label(run: tuple[int, int]) -> tuple[str, float]:
        first, last = run
        return f"{first + 1}" if first == last else f"{first + 1}–{last + 1}", (places[first] + places[last]) / 2

    def touch(left: tuple[str, float], right: tuple[str, float]) -> bool:
        return right[1] - left[1] < letter * ((len(left[0]) + len(right[0])) / 2 + 1)

    for index in range(len(places)):
        runs.append((index, index))
        while len(runs) > 1 and touch(label(runs[-2]), label(runs[-1])):
            (first, _), (_, last) = runs[-2:]
            runs[-2:] = [(first, last)]
    return [label(run) for run in runs]


def _step(least: float) -> float:
    """The next of 1, 2, 2.5 and 5 times a power of ten."""
    scale = 10.0 ** math.floor(math.log10(least))
    return next(scale * step for step in (1, 2, 2.5, 5, 10) if scale * step >= least * 0.999)
