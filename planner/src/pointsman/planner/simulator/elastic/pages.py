"""What gateways and the manager of a simulated group show at /metrics, and how the planner reads it.

The pages are texts with the families that the planner's ``core.observe`` reads, and go through the parser of the live
planner: it sees histograms and counters, as in a cluster.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from pointsman.api.protocol import metrics as named
from pointsman.api.protocol.metrics import LATENCY_BOUNDS_S, TOKEN_BOUNDS, Metric
from pointsman.planner.core.exposition import PageParser
from pointsman.planner.core.observe import FAMILIES, Reading
from pointsman.planner.core.scrapes import Page
from pointsman.serving.elastic.requests import Slots
from pointsman.serving.elastic.step_sums import TERMS

_GROUP = "group"
_PATH = "local"  # the manager decides where a prompt is computed: a gateway knows of no other path


class GatewayPage:
    """The metrics of one gateway: it sees the first token of streams only."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._arrivals = _counter(named.GATEWAY_ARRIVALS, self._registry).labels(_GROUP, "chat")
        self._prompt_tokens = _histogram(named.GATEWAY_PROMPT_TOKENS, TOKEN_BOUNDS, self._registry).labels(_GROUP)
        self._output_tokens = _histogram(named.GATEWAY_OUTPUT_TOKENS, TOKEN_BOUNDS, self._registry).labels(_GROUP)
        self._ttft = _histogram(named.GATEWAY_TTFT, LATENCY_BOUNDS_S, self._registry).labels(_GROUP, _PATH)
        self._tpot = _histogram(named.GATEWAY_TPOT, LATENCY_BOUNDS_S, self._registry).labels(_GROUP, _PATH)
        held = named.GATEWAY_HELD
        Gauge(held.name, held.help, held.labels, registry=self._registry).labels(_GROUP).set(0)

    def arrived(self, prompt_tokens: int) -> None:
        """A request came."""
        self._arrivals.inc()
        self._prompt_tokens.observe(prompt_tokens)

    def started(self, ttft_s: float) -> None:
        """A stream began."""
        self._ttft.observe(ttft_s)

    def finished(self, output_tokens: int, tpot_s: float | None) -> None:
        """A request ended. ``tpot_s``: None of one that was not streamed or has one token."""
        self._output_tokens.observe(output_tokens)
        if tpot_s is not None:
            self._tpot.observe(tpot_s)

    def text(self) -> str:
        """The page."""
        return generate_latest(self._registry).decode()


def manager_page(step_sums: Mapping[str, float], slots: Slots, waiting: int) -> str:
    """The page of the manager, whose engine reports as vLLM's."""
    registry = CollectorRegistry()
    sums = _counter(named.ELASTIC_DECODE_SUMS, registry)
    for term in TERMS:
        sums.labels(term).inc(step_sums[term])
    of = named.ELASTIC_SLOTS
    tokens = Gauge(of.name, of.help, of.labels, registry=registry)
    tokens.labels("total").set(slots.total)
    tokens.labels("free").set(slots.total - slots.used)
    Gauge("vllm:num_requests_waiting", "Requests that wait.", registry=registry).set(waiting)
    return generate_latest(registry).decode()


@dataclass
class Scrapes:
    """The last two pages of one target, as the live planner's ``Scraper`` keeps them."""

    lost_share: float
    rng: Random
    _parser: PageParser = field(default_factory=lambda: PageParser(FAMILIES))
    _before: Page | None = None
    _before_s: float = 0.0
    _page: Page | None = None
    _page_s: float = 0.0
    _failed: bool = False

    def scrape(self, text: str, now_s: float, *, out: bool) -> None:
        """Read the target; by chance, or while metrics are ``out``, it fails."""
        self._failed = out or (self.lost_share > 0 and self.rng.random() < self.lost_share)
        if not self._failed:
            self._before, self._before_s = self._page, self._page_s
            self._page, self._page_s = self._parser.parse(text), now_s

    @property
    def reading(self) -> Reading | None:
        """None before the second page."""
        if self._before is None or self._page is None:
            return None
        return Reading(self._before, self._page, self._page_s - self._before_s, is_old=self._failed)

    def age_s(self, now_s: float) -> float:
        """Of the newest page; infinite if there is none."""
        return now_s - self._page_s if self._page is not None else float("inf")


def _counter(metric: Metric, registry: CollectorRegistry) -> Counter:
    return Counter(metric.name, metric.help, metric.labels, registry=registry)


def _histogram(metric: Metric, bounds: tuple[float, ...], registry: CollectorRegistry) -> Histogram:
    return Histogram(metric.name, metric.help, metric.labels, buckets=bounds, registry=registry)
