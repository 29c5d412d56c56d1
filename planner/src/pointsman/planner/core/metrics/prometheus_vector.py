"""Answers of Prometheus to instant queries as pages of pods: what a scrape of each pod has shown last, and when.

A look asks two things. First when each pod was scraped last, a number a pod. Then, only of pods that were scraped since
the look before, the newest sample of each needed series. So each sample is transferred once, however short the
interval, and two pages that follow each other give exact increases. PromQL's ``increase`` would extrapolate, lose the
first value of a new series and what a counter gained while a label of its target changed, and a request could be
counted in two windows that overlap. It also needs an expression for each family, since it drops their names.

What a scrape configuration adds to every series of a target is no part of a page: the role of a pod, often added,
changes while its counters go on. A sample that is not a number is not on the page.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote_plus

from pointsman.api.protocol.metrics import GATEWAY_ACCEPTED
from pointsman.planner.core.metrics.observe import FAMILIES, Reading
from pointsman.planner.core.metrics.scrape_pair import Labels, Page

NAME: Final = "__name__"
UP: Final = "up"
MALFORMED: Final = (ValueError, KeyError, TypeError, IndexError, AttributeError)  # raised by what is no such answer
OVERDUE: Final = 1.5  # times as long as the page before took
_MARK: Final = "pointsman"

Target = tuple[str, str, str]
"""``(pod, job, instance)``."""

Vector = Sequence[Mapping[str, Any]]
"""``data.result`` of Prometheus' query API for an instant vector."""


def times_query(namespace: str, pods: Iterable[str]) -> str:
    """When each of these pods was scraped last, where that did not fail."""
    up = f"{UP}{{{_of(namespace, pods)}}}"
    return f"timestamp({up}) and ({up} == 1)"


def pages_query(namespace: str, pods: Iterable[str]) -> str:
    """The newest samples of these pods, and the time of their scrape: of one moment, so that they belong together."""
    chosen = sorted(pods)
    families = _quoted("|".join(FAMILIES))
    samples = f"{{{NAME}=~{families},{_of(namespace, chosen)}}}"
    return f'{samples} or label_replace({times_query(namespace, chosen)}, "{_MARK}", "scraped", "", "")'


def rates_query(namespace: str, service: str, bin_s: float) -> str:
    """Requests a second that all gateways of a service accepted, the mean of the ``bin_s`` before each step.

    A pod that two jobs scrape counts once.
    """
    chosen = f"namespace={_quoted(namespace)},service={_quoted(service)}"
    return f"sum(max by (pod) (rate({GATEWAY_ACCEPTED.name}{{{chosen}}}[{bin_s:.0f}s])))"


def rates_of(matrix: Sequence[Mapping[str, Any]], bin_s: float) -> dict[int, float]:
    """By the number of the bin that ends at the step. Raises one of ``MALFORMED``."""
    samples = ((float(at_s), float(value)) for series in matrix for at_s, value in series["values"])
    return {round(at_s / bin_s) - 1: value for at_s, value in samples if math.isfinite(value) and value >= 0}


def in_queries(namespace: str, pods: Iterable[str], url_bytes: int) -> list[list[str]]:
    """The pods in parts: a ``pages_query`` of each takes at most ``url_bytes`` in a URL, or names one pod.

    It names each pod three times."""
    begun = len(quote_plus(pages_query(namespace, ())))
    parts: list[list[str]] = []
    left = 0
    for pod in sorted(pods):
        takes = 3 * len(quote_plus(f"{_pattern(pod)}|"))
        if not parts or takes > left:
            parts.append([])
            left = url_bytes - begun
        parts[-1].append(pod)
        left -= takes
    return parts


def _of(namespace: str, pods: Iterable[str]) -> str:
    """PromQL anchors both ends of a pattern; names of pods have letters, digits, dashes and dots."""
    pattern = "|".join(map(_pattern, sorted(pods)))
    return f"namespace={_quoted(namespace)},pod=~{_quoted(pattern)}"


def _pattern(pod: str) -> str:
    return pod.replace(".", "[.]")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def target_of(labels: Mapping[str, str]) -> Target:
    """Which target a series is of."""
    return (labels.get("pod", ""), labels.get("job", ""), labels.get("instance", ""))


def scrape_times(vector: Vector) -> dict[str, dict[Target, float]]:
    """By pod, the Unix time of the last scrape of each of its targets. Raises one of ``MALFORMED``."""
    found: dict[str, dict[Target, float]] = {}
    for series in vector:
        target = target_of(series["metric"])
        found.setdefault(target[0], {})[target] = _value(series)
    return found


def pages_of(vector: Vector) -> dict[Target, tuple[float, Page]]:
    """By target, (Unix time of the scrape, page). Raises one of ``MALFORMED``."""
    marks = {target_of(series["metric"]): series for series in vector if _MARK in series["metric"]}
    pages: dict[Target, dict[str, dict[Labels, float]]] = {target: {} for target in marks}
    known: dict[Labels, Labels] = {}  # pods have the same series: of a thousand, labels of their own take 57 MiB more
    for series in vector:
        labels = dict(series["metric"])
        target, name, value = target_of(labels), labels.pop(NAME, ""), _value(series)
        if target in pages and _MARK not in labels and math.isfinite(value):
            added = marks[target]["metric"]
            key = tuple(sorted(item for item in labels.items() if item[0] not in added))
            pages[target].setdefault(name, {})[known.setdefault(key, key)] = value
    return {target: (_value(mark), pages[target]) for target, mark in marks.items()}


def _value(series: Mapping[str, Any]) -> float:
    return float(series["value"][1])


@dataclass(frozen=True, slots=True)
class PodPages:
    """The last two pages of a pod, by the target that is followed. ``failed``: the newest scrape failed, or there was
    none for so long that Prometheus shows none.

    A pod that two jobs scrape has two targets, of which one is followed: their pages tell of the same requests, and
    were they taken in turn each would be counted twice. Another one only where that is not scraped any more.
    """

    target: Target | None = None
    before: Page | None = None
    before_s: float = 0.0
    page: Page | None = None
    page_s: float | None = None
    failed: bool = True

    def followed(self, times_s: Mapping[Target, float]) -> Target | None:
        """The target to follow, of those that are scraped; None: there is none."""
        newest = max(sorted(times_s), key=lambda target: times_s[target], default=None)
        if newest is None or self.target is None or self.target not in times_s:
            return newest
        gap_s = math.inf if self.before is None or self.page_s is None else self.page_s - self.before_s
        return newest if times_s[newest] - times_s[self.target] > OVERDUE * gap_s else self.target

    def is_news(self, target: Target, at_s: float) -> bool:
        """Whether a scrape of ``target`` at this Unix time is later than the newest page."""
        return self.page_s is None or at_s > self.page_s

    def read(self, target: Target, at_s: float, page: Page) -> "PodPages":
        """With a newer page."""
        return PodPages(target, self.page, self.page_s or 0.0, page, at_s, failed=False)

    @property
    def reading(self) -> Reading | None:
        """The last two pages; None before the second one."""
        if self.before is None or self.page is None or self.page_s is None:
            return None
        return Reading(self.before, self.page, self.page_s - self.before_s, is_old=self.failed)
