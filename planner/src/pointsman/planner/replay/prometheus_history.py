"""Raw samples from the history of Prometheus as pages of pods: what scrapes of each pod showed, and when.

The answer to ``{…}[90s]`` is a matrix: per series its samples with the time of each scrape. All series of one scrape of
one target have the same time. Prometheus marks series of a target that it could not read as stale and leaves such marks
out; ``up`` says that an attempt failed.

What a scrape configuration adds to every series of a target (``up`` has just these labels) is no part of a page: the
role of a pod, often added, changes while its counters go on. A sample that is not a number is not on the page.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pointsman.planner.core.metrics.prometheus_vector import NAME, OVERDUE, UP, Target, target_of
from pointsman.planner.core.metrics.scrape_pair import Labels, Page

Matrix = Sequence[Mapping[str, Any]]
"""``data.result`` of Prometheus' query API for a range selector."""


@dataclass(frozen=True, slots=True)
class Scrapes:
    """What one target showed: its pages by Unix time, in order, and the newest attempt that failed."""

    pages: Mapping[float, Page]
    failed_s: float | None

    def is_read(self, now_s: float) -> bool:
        """Whether its next page is not overdue yet."""
        times = list(self.pages)[-2:]
        if len(times) < 2 or (self.failed_s is not None and self.failed_s > times[1]):
            return False
        return now_s - times[1] <= OVERDUE * (times[1] - times[0])


def by_pod(matrix: Matrix) -> dict[str, Scrapes]:
    """The scrapes of every pod in a matrix, by the label ``pod``.

    A pod that two jobs scrape has two targets. One of them counts, and always the same: their pages tell of the same
    requests, and were they taken in turn each would be counted twice. Another one only where that is not read any more.
    """
    targets: dict[Target, dict[float, dict[str, dict[Labels, float]]]] = {}
    attempts: dict[Target, float] = {}
    added = {
        target_of(series["metric"]): set(series["metric"]) for series in matrix if series["metric"].get(NAME) == UP
    }
    for series in matrix:
        labels = dict(series["metric"])
        name = labels.pop(NAME, "")
        target = target_of(labels)
        samples = list(_numbers(series.get("values", ())))
        if name == UP:
            failed_s = max((at_s for at_s, value in samples if value == 0), default=-math.inf)
            attempts[target] = max(attempts.get(target, -math.inf), failed_s)
            targets.setdefault(target, {})
            continue
        key = tuple(sorted(item for item in labels.items() if item[0] not in added.get(target, ())))
        pages = targets.setdefault(target, {})
        for at_s, value in samples:
            pages.setdefault(at_s, {}).setdefault(name, {})[key] = value
    found: dict[str, list[Scrapes]] = {}
    for target, pages in sorted(targets.items()):
        failed_s = attempts.get(target, -math.inf)
        made = Scrapes({at_s: pages[at_s] for at_s in sorted(pages)}, failed_s if math.isfinite(failed_s) else None)
        found.setdefault(target[0], []).append(made)
    return {pod: _chosen(scrapes) for pod, scrapes in found.items()}


def _chosen(scrapes: Sequence[Scrapes]) -> Scrapes:
    """The first that is still read; else the one that was read last."""
    newest_s = max(map(_newest_s, scrapes))
    return next((s for s in scrapes if s.is_read(newest_s)), None) or max(scrapes, key=_newest_s)


def _newest_s(scrapes: Scrapes) -> float:
    return max(scrapes.pages, default=-math.inf)


def _numbers(values: Iterable[Sequence[Any]]) -> Iterable[tuple[float, float]]:
    """Samples that are numbers; an infinite bound is a label, never a value."""
    for at_s, text in values:
        value = float(text)
        if math.isfinite(value):
            yield float(at_s), value
