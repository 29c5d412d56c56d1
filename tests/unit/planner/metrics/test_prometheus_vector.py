"""Instant vectors of Prometheus as pages of pods: what is known, when, and what is not."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import pytest

from pointsman.api.protocol import metrics as named
from pointsman.api.protocol.names import Role
from pointsman.planner.core.metrics import scrape_pair
from pointsman.planner.core.metrics.observe import FAMILIES, Reading, Seen, observation
from pointsman.planner.core.metrics.prometheus_vector import (
    PodPages,
    Vector,
    in_queries,
    pages_of,
    pages_query,
    rates_of,
    rates_query,
    scrape_times,
    times_query,
)
from pointsman.planner.core.metrics.scrape_pair import Labels, Page
from pointsman.planner.core.types import Objectives, Observation, RoutingNumbers, Worker, WorkerCondition
from pointsman.planner.exposition import PageParser

CAPTURES = Path(__file__).parents[1] / "captures"
TARGET = ("a", "pods", "a:8000")
OTHER = ("a", "again", "a:8000")


def labels_of(target: tuple[str, str, str], **more: str) -> dict[str, str]:
    return {"pod": target[0], "job": target[1], "instance": target[2], "namespace": "here", **more}


def vector(
    at_s: float, page: Mapping[str, Mapping[Labels, float | str]], target: tuple[str, str, str] = TARGET, **added: str
) -> Vector:
    """What a query for pages answers of one target that was scraped at ``at_s``; ``added``: labels of its series."""
    found: list[dict[str, Any]] = [
        {"metric": {"__name__": name, **labels_of(target, **added), **dict(labels)}, "value": [0.0, str(value)]}
        for name, values in page.items()
        for labels, value in values.items()
    ]
    found.append({"metric": labels_of(target, **added, pointsman="scraped"), "value": [0.0, str(at_s)]})
    return found


def after(known: PodPages, at_s: float, page: Mapping[str, Mapping[Labels, float | str]], **added: str) -> PodPages:
    return known.read(TARGET, *pages_of(vector(at_s, page, TARGET, **added))[TARGET])


def test_two_pages_are_the_reading_with_their_own_time_between() -> None:
    known = after(PodPages(), 115.0, {"hits_total": {(): 5.0}})
    assert (known.reading, known.page_s, known.failed) == (None, 115.0, False), "one page is no reading and no failure"
    reading = after(known, 130.5, {"hits_total": {(): 9.0}}).reading
    assert reading is not None and reading.page is not None
    assert reading.seconds == 15.5
    assert scrape_pair.added(reading.before, reading.page, "hits_total") == 4


def test_a_counter_goes_on_when_a_label_that_the_scrape_adds_changes() -> None:
    known = after(PodPages(), 100.0, {"hits_total": {(("model", "m"),): 70.0}}, role="decode")
    reading = after(known, 115.0, {"hits_total": {(("model", "m"),): 75.0}}, role="prefill").reading
    assert reading is not None and reading.page is not None
    assert scrape_pair.added(reading.before, reading.page, "hits_total") == 5
    assert scrape_pair.added(reading.before, reading.page, "hits_total", model="m") == 5


def test_pods_share_the_labels_of_their_series() -> None:
    """Of a thousand pods they would take most of the memory."""
    target = ("b", "pods", "b:8000")
    page: Page = {"hits_total": {(("engine", "0"), ("model", "m")): 5.0}}
    pages = pages_of([*vector(100.0, page, TARGET, role="decode"), *vector(100.0, page, target, role="prefill")])
    ((one,), (other,)) = (pages[each][1]["hits_total"] for each in (TARGET, target))
    assert one == (("engine", "0"), ("model", "m"))
    assert one is other


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf"])
def test_what_is_no_number_is_absent_not_zero(value: str) -> None:
    known = after(PodPages(), 100.0, {"depth": {(): 2.0}})
    reading = after(known, 115.0, {"depth": {(): value}, "hits_total": {(): 5.0}}).reading
    assert reading is not None and reading.page is not None
    assert scrape_pair.gauge(reading.page, "depth") is None
    assert scrape_pair.gauge(reading.before, "depth") == 2


def test_after_a_scrape_that_failed_the_pages_before_it_are_old() -> None:
    known = after(after(PodPages(), 100.0, {"hits_total": {(): 3.0}}), 115.0, {"hits_total": {(): 5.0}})
    assert known.followed({}) is None
    lost = replace(known, failed=True).reading
    assert lost is not None and lost.is_old
    again = after(replace(known, failed=True), 145.0, {"hits_total": {(): 9.0}}).reading
    assert again is not None and again.page is not None and not again.is_old
    assert (scrape_pair.added(again.before, again.page, "hits_total"), again.seconds) == (4, 30.0)


def test_a_pod_that_was_never_read_has_failed() -> None:
    assert PodPages().failed
    assert (PodPages().reading, PodPages().page_s) == (None, None)


def test_of_two_jobs_one_is_followed_as_long_as_it_reads_the_pod() -> None:
    times = scrape_times([{"metric": labels_of(t), "value": [0, at]} for t, at in ((TARGET, "100"), (OTHER, "107"))])
    assert times == {"a": {TARGET: 100.0, OTHER: 107.0}}
    assert PodPages().followed(times["a"]) == OTHER, "the newest"
    known = PodPages(TARGET, {}, 85.0, {}, 100.0, failed=False)
    assert known.followed({TARGET: 100.0, OTHER: 122.0}) == TARGET
    assert known.followed({TARGET: 100.0, OTHER: 122.6}) == OTHER, "its scrape is overdue by half"
    assert known.followed({OTHER: 101.0}) == OTHER
    assert not known.is_news(TARGET, 100.0)


def test_queries_name_pods_and_families_exactly() -> None:
    assert times_query("here", ["b.c", "a"]) == (
        'timestamp(up{namespace="here",pod=~"a|b[.]c"}) and (up{namespace="here",pod=~"a|b[.]c"} == 1)'
    )
    query = pages_query("here", ["a"])
    assert query.startswith(f'{{__name__=~"{FAMILIES[0]}|')
    assert query.endswith(f'or label_replace({times_query("here", ["a"])}, "pointsman", "scraped", "", "")')


def test_an_observation_by_way_of_prometheus_is_that_of_a_direct_scrape() -> None:
    worker = Worker("w", Role.DECODE, WorkerCondition.ACTIVE)
    shown: Page = {
        **PageParser(FAMILIES).parse((CAPTURES / "vllm_metrics_decode.txt").read_text()),
        named.WORKER_MAX_SEQUENCES.name: {(): 8.0},
    }
    through = after(after(PodPages(), 100.0, {}), 115.0, shown).reading
    assert through is not None

    def seen(reading: Reading) -> Observation:
        return observation(
            at_s=100, age_s=1, gateways=[reading], workers=[Seen(worker, reading)], routing=RoutingNumbers(512, 8),
            objectives=Objectives(), plan_in_progress=False,
        )  # fmt: skip

    direct = seen(Reading({}, shown, 15.0))
    assert direct == seen(through)
    assert direct.samples
    assert direct.max_sequences == 8
    assert not math.isinf(direct.kv_capacity_tokens or math.inf)


@pytest.mark.parametrize("length", [8, 20, 45, 63, 253])
def test_however_long_the_names_of_pods_are_a_query_fits_into_a_url(length: int) -> None:
    pods = [f"{number:04d}".rjust(length, "a") for number in range(300)]
    parts = in_queries("default", pods, 7 * 1024)
    assert sorted(pod for part in parts for pod in part) == sorted(pods)
    assert all(len(quote_plus(pages_query("default", part))) <= 7 * 1024 for part in parts)
    assert len(parts) < len(pods), "several pods go into one query"


def test_the_history_of_a_rate_is_by_bins_and_what_is_no_number_or_missing_is_left_out() -> None:
    query = rates_query("here", "chat", 300.0)
    selected = 'pointsman_gateway_accepted_total{namespace="here",service="chat"}'
    assert query == f"sum(max by (pod) (rate({selected}[300s])))"
    matrix = [{"metric": {}, "values": [[600, "2.5"], [900, "NaN"], [1500, "0"]]}]
    assert rates_of(matrix, 300.0) == {1: 2.5, 4: 0.0}
    assert rates_of([], 300.0) == {}
    with pytest.raises(KeyError):
        rates_of([{"metric": {}}], 300.0)
