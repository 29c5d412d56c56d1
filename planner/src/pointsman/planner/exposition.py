"""Prometheus' text format, of which only the needed samples are read.

The page of an engine has hundreds of samples and an observation needs a part of them. The series of a page are the same
in each scrape, and mostly in each page of the same component: what is before the value is parsed once and looked up
after that, as Prometheus does (scrape/scrape.go, scrapeCache).
"""

from collections.abc import Collection
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from pointsman.planner.core.metrics.scrape_pair import Labels, Page

MAX_SERIES: Final = 100_000  # remembered; beyond it all are forgotten and parsed again


def parse(text: str) -> Page:
    """A whole page by sample name and labels. Raises ValueError if the text is not a /metrics page."""
    return PageParser().parse(text)


class PageParser:
    """Parses pages of any number of targets. Not thread-safe.

    ``names``: the samples that are kept, by name (``…_bucket``, ``…_sum``, … are names of their own); None: all.
    """

    def __init__(self, names: Collection[str] | None = None) -> None:
        self._names = None if names is None else frozenset(names)
        self._series: dict[str, tuple[str, Labels]] = {}

    def parse(self, text: str) -> Page:
        """A page by sample name and labels. Raises ValueError if the text is not a /metrics page."""
        found: dict[str, dict[Labels, float]] = {}
        names, series, is_page = self._names, self._series, False
        for line in text.split("\n"):
            if not line or line[0] == "#" or line.isspace():
                continue
            brace = line.find("{")
            name = (line[:brace] if brace >= 0 else line.split(None, 1)[0]).strip()
            if names is not None and name not in names:
                is_page = is_page or self._is_sample(line)
                continue
            end = line.rfind("}") + 1 or line.find(name) + len(name)
            known = series.get(line[:end]) or self._learn(line[:end])
            value = line[end:].split(None, 1)
            if not value:
                raise ValueError(f"a sample has no value: {line[:200]!r}")
            found.setdefault(known[0], {})[known[1]] = float(value[0])
        return found

    def _is_sample(self, line: str) -> bool:
        """Whether the first line that is not needed is a sample at all. Raises ValueError: the text is another page."""
        if not any(family.samples for family in text_string_to_metric_families(f"{line}\n")):
            raise ValueError(f"not a sample: {line[:200]!r}")
        return True

    def _learn(self, text: str) -> tuple[str, Labels]:
        samples = [s for family in text_string_to_metric_families(f"{text} 0\n") for s in family.samples]
        if len(samples) != 1:
            raise ValueError(f"not a series: {text[:200]!r}")
        if len(self._series) >= MAX_SERIES:
            self._series.clear()
        known = samples[0].name, tuple(sorted(samples[0].labels.items()))
        self._series[text] = known
        return known
