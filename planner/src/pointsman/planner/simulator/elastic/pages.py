"""What the manager of a simulated group shows at /metrics, and the pages of a target as the live planner keeps them.

Pages of gateways are those of services, ``simulator.pages``: a group's gateways know no objectives.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from pointsman.api.protocol import metrics as named
from pointsman.planner.core.metrics.observe import Reading
from pointsman.planner.core.metrics.scrape_pair import Page
from pointsman.serving.elastic.requests import Slots


def manager_page(step_sums: Mapping[str, float], slots: Slots, waiting: int) -> Page:
    """The page of the manager, whose engine reports as vLLM's. ``step_sums``: by ``step_sums.TERMS``."""
    return {
        named.ELASTIC_DECODE_SUMS.name: {(("term", term),): value for term, value in step_sums.items()},
        named.ELASTIC_SLOTS.name: {
            (("state", "total"),): float(slots.total),
            (("state", "free"),): float(slots.total - slots.used),
        },
        "vllm:num_requests_waiting": {(): float(waiting)},
    }


@dataclass
class Scrapes:
    """The last two pages of one target, as the live planner's ``Scraper`` keeps them."""

    lost_share: float
    rng: Random
    _before: Page | None = None
    _before_s: float = 0.0
    _page: Page | None = None
    _page_s: float = 0.0
    _failed: bool = False

    def scrape(self, page: Page, now_s: float, *, out: bool) -> None:
        """Read the target; by chance, or while metrics are ``out``, it fails."""
        self._failed = out or (self.lost_share > 0 and self.rng.random() < self.lost_share)
        if not self._failed:
            self._before, self._before_s = self._page, self._page_s
            self._page, self._page_s = page, now_s

    @property
    def reading(self) -> Reading | None:
        """None before the second page."""
        if self._before is None or self._page is None:
            return None
        return Reading(self._before, self._page, self._page_s - self._before_s, is_old=self._failed)

    def age_s(self, now_s: float) -> float:
        """Of the newest page; infinite if there is none."""
        return now_s - self._page_s if self._page is not None else float("inf")
