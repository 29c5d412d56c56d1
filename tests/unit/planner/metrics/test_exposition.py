"""Pages in Prometheus' text format: the needed samples are those that the whole page has."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from pointsman.gateway.metrics import GatewayMetrics
from pointsman.planner import exposition
from pointsman.planner.core.metrics.observe import FAMILIES
from pointsman.planner.core.metrics.scrape_pair import Labels, Page
from pointsman.planner.exposition import PageParser, parse
from pointsman.workers.metrics import WorkerMetrics

CAPTURES = Path(__file__).parents[1] / "captures"


def by_the_library(text: str) -> Page:
    found: dict[str, dict[Labels, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def own_pages() -> list[str]:
    worker = CollectorRegistry()
    WorkerMetrics(worker)
    return [GatewayMetrics("chat").expose().decode(), generate_latest(worker).decode()]


@pytest.mark.parametrize(
    "text", [*((CAPTURES / f"vllm_metrics_{role}.txt").read_text() for role in ("prefill", "decode")), *own_pages()]
)
def test_a_real_page_is_read_as_the_library_reads_it(text: str) -> None:
    whole = by_the_library(text)
    assert repr(parse(text)) == repr(whole)  # NaN is not equal to itself
    needed = PageParser(FAMILIES)
    for _ in range(2):  # parsed, then looked up
        assert repr(needed.parse(text)) == repr({name: of for name, of in whole.items() if name in FAMILIES})


@given(value=st.floats(), label=st.text(max_size=20))
def test_any_label_and_value_is_read_as_it_was_written(value: float, label: str) -> None:
    registry = CollectorRegistry()
    Gauge("depth", "x", ["model"], registry=registry).labels(label).set(value)
    Histogram("took", "x", ["model"], buckets=(0.5, 1.0), registry=registry).labels(label).observe(0.7)
    Counter("hits", "x", registry=registry).inc(3)
    text = generate_latest(registry).decode()
    assert repr(PageParser(["depth", "took_bucket", "hits_total"]).parse(text)) == repr(
        {name: of for name, of in by_the_library(text).items() if name in ("depth", "took_bucket", "hits_total")}
    )


def test_a_sample_may_have_a_time_and_spaces_between() -> None:
    page = parse('# a comment\n\nhits_total{a="b } c"}  7 1700000000000\n  depth\t-Inf\n')
    assert page == {"hits_total": {(("a", "b } c"),): 7.0}, "depth": {(): -math.inf}}


@pytest.mark.parametrize(
    "text",
    ["<!doctype html>\n<p>hello</p>\n", '{"error": "no"}\n', "depth\n", 'depth{a="b\n', "depth one\n", "Not Found"],
)
def test_what_is_no_page_is_an_error_not_a_page_without_samples(text: str) -> None:
    for parser in (PageParser(["depth"]), PageParser()):
        with pytest.raises(ValueError):
            parser.parse(text)


def test_what_is_remembered_of_series_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition, "MAX_SERIES", 10)
    parser = PageParser()
    for number in range(100):
        assert parser.parse(f'hits_total{{model="{number}"}} {number}\n') == {
            "hits_total": {(("model", str(number)),): float(number)}
        }
    assert len(parser._series) <= 10
