"""Raw samples of Prometheus as readings: what is known, when, and what is not."""

import math
from pathlib import Path

import pytest

from pointsman.api.protocol import metrics as named
from pointsman.planner.core import scrapes
from pointsman.planner.core.exposition import parse
from pointsman.planner.core.matrices import by_pod
from pointsman.planner.core.observe import FAMILIES, Reading, Seen, observation
from pointsman.planner.core.scrapes import Page
from pointsman.planner.core.types import Objectives, Observation, RoutingNumbers, Worker, WorkerCondition, WorkerRole

CAPTURES = Path(__file__).parent / "captures"


def series(
    name: str, values: dict[float, float | str], pod: str = "a", job: str = "pods", **labels: str
) -> dict[str, object]:
    target = {"__name__": name, "pod": pod, "job": job, "instance": f"{pod}:8000"}
    return {"metric": {**target, **labels}, "values": [[at_s, str(value)] for at_s, value in values.items()]}


def test_the_last_two_scrapes_are_the_reading_with_their_own_time_between() -> None:
    found = by_pod([series("hits_total", {100.0: 3, 115.0: 5, 130.5: 9}), series("up", {115.0: 1, 130.5: 1})])[
        "a"
    ].last()
    assert found.reading is not None
    assert found.reading.page is not None
    assert found.reading.seconds == 15.5
    assert scrapes.added(found.reading.before, found.reading.page, "hits_total") == 4
    assert (found.at_s, found.failed) == (130.5, False)


def test_a_counter_goes_on_when_a_label_that_the_scrape_adds_changes() -> None:
    matrix = [
        series("hits_total", {100.0: 70}, role="decode", model="m"),
        series("hits_total", {115.0: 75}, role="prefill", model="m"),
        series("up", {100.0: 1}, role="decode"),
        series("up", {115.0: 1}, role="prefill"),
    ]
    reading = by_pod(matrix)["a"].last().reading
    assert reading is not None
    assert reading.page is not None
    assert scrapes.added(reading.before, reading.page, "hits_total") == 5
    assert scrapes.added(reading.before, reading.page, "hits_total", model="m") == 5


def test_one_scrape_is_no_reading_and_no_failure() -> None:
    found = by_pod([series("hits_total", {100.0: 3})])["a"].last()
    assert (found.reading, found.at_s, found.failed) == (None, 100.0, False)


def test_a_newest_attempt_that_failed_makes_the_pages_before_it_old() -> None:
    found = by_pod([series("hits_total", {100.0: 3, 115.0: 5}), series("up", {100.0: 1, 115.0: 1, 130.0: 0})])[
        "a"
    ].last()
    assert found.failed
    assert found.reading is not None
    assert found.reading.is_old
    assert scrapes.added(found.reading.before, found.reading.page or {}, "hits_total") == 2


def test_an_old_failure_is_forgotten_with_the_next_page() -> None:
    found = by_pod([series("hits_total", {100.0: 3, 130.0: 5}), series("up", {115.0: 0, 130.0: 1})])["a"].last()
    assert not found.failed


def test_a_pod_that_only_ever_failed_is_known_as_failed() -> None:
    found = by_pod([series("up", {115.0: 0})])["a"].last()
    assert (found.reading, found.at_s, found.failed) == (None, None, True)


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf"])
def test_what_is_no_number_is_absent_not_zero(value: str) -> None:
    matrix = [series("depth", {100.0: 2, 115.0: value}), series("hits_total", {100.0: 3, 115.0: 5})]
    reading = by_pod(matrix)["a"].last().reading
    assert reading is not None
    assert reading.page is not None
    assert scrapes.gauge(reading.page, "depth") is None
    assert scrapes.gauge(reading.before, "depth") == 2


def test_a_pod_scraped_by_two_jobs_is_counted_once() -> None:
    matrix = [series("hits_total", {100.0: 3, 115.0: 5}), series("hits_total", {107.0: 4, 122.0: 7}, job="again")]
    found = by_pod(matrix)["a"].last()
    assert found.at_s == 122.0
    assert found.reading is not None
    assert found.reading.page is not None
    assert scrapes.added(found.reading.before, found.reading.page, "hits_total") == 3


def _as_matrix(pages: dict[float, Page], pod: str) -> list[dict[str, object]]:
    """What Prometheus would hold of these pages, of the families that are asked for."""
    found: dict[tuple[str, scrapes.Labels], dict[float, float | str]] = {}
    for at_s, page in pages.items():
        for name in FAMILIES:
            for labels, value in page.get(name, {}).items():
                found.setdefault((name, labels), {})[at_s] = value
    return [series(name, values, pod=pod, **dict(labels)) for (name, labels), values in found.items()]


def test_of_two_jobs_the_same_one_counts_as_long_as_it_reads_the_pod() -> None:
    def read(first_s: float, until_s: float, job: str) -> dict[str, object]:
        times_s = (first_s + 15.0 * n for n in range(9))
        return series("hits_total", {at_s: at_s for at_s in times_s if at_s <= until_s}, job=job)

    def at(now_s: float, ended_s: float = 1e9) -> float | None:
        return by_pod([read(0.0, min(now_s, ended_s), "a"), read(7.0, now_s, "b")])["a"].last().at_s

    assert [at(now_s) for now_s in (61.0, 68.0, 76.0, 83.0)] == [60.0, 60.0, 75.0, 75.0]
    assert at(83.0, ended_s=60.0) == 60.0
    assert at(98.0, ended_s=60.0) == 97.0


def test_an_observation_by_way_of_prometheus_is_that_of_a_direct_scrape() -> None:
    worker = Worker("w", WorkerRole.DECODE, WorkerCondition.ACTIVE)
    after: Page = {
        **parse((CAPTURES / "vllm_metrics_decode.txt").read_text()),
        named.WORKER_MAX_SEQUENCES.name: {(): 8.0},
    }
    direct = Reading({}, after, 15.0)
    matrix = [*_as_matrix({115.0: after}, "w"), series("up", {100.0: 1, 115.0: 1}, pod="w")]
    # A first, empty page has no series of its own; one that is not asked for stands for it.
    matrix.append(series("vllm:num_requests_running", {100.0: 0.0}, pod="w", engine="none"))
    through = by_pod(matrix)["w"].last().reading
    assert through is not None

    def seen(reading: Reading) -> Observation:
        return observation(
            at_s=100, age_s=1, gateways=[reading], workers=[Seen(worker, reading)], routing=RoutingNumbers(512, 8),
            objectives=Objectives(), plan_in_progress=False,
        )  # fmt: skip

    assert seen(direct) == seen(through)
    assert seen(direct).samples
    assert seen(direct).max_sequences == 8
    assert not math.isinf(seen(direct).kv_capacity_tokens or math.inf)
