"""Raw samples of Prometheus' history as pages: what is known, when, and what is not."""

import pytest

from pointsman.planner.replay.prometheus_history import by_pod


def series(
    name: str, values: dict[float, float | str], pod: str = "a", job: str = "pods", **labels: str
) -> dict[str, object]:
    target = {"__name__": name, "pod": pod, "job": job, "instance": f"{pod}:8000"}
    return {"metric": {**target, **labels}, "values": [[at_s, str(value)] for at_s, value in values.items()]}


def test_each_scrape_is_a_page_with_its_own_time() -> None:
    found = by_pod([series("hits_total", {100.0: 3, 115.0: 5, 130.5: 9}), series("up", {115.0: 1, 130.5: 1})])["a"]
    assert list(found.pages.items()) == [
        (at_s, {"hits_total": {(): float(count)}}) for at_s, count in ((100.0, 3), (115.0, 5), (130.5, 9))
    ]
    assert found.failed_s is None


def test_a_label_that_the_scrape_adds_is_no_part_of_a_page() -> None:
    matrix = [
        series("hits_total", {100.0: 70}, role="decode", model="m"),
        series("hits_total", {115.0: 75}, role="prefill", model="m"),
        series("up", {100.0: 1}, role="decode"),
        series("up", {115.0: 1}, role="prefill"),
    ]
    pages = by_pod(matrix)["a"].pages
    assert [dict(page["hits_total"]) for page in pages.values()] == [{(("model", "m"),): 70}, {(("model", "m"),): 75}]


def test_the_newest_attempt_that_failed_is_known() -> None:
    assert by_pod([series("up", {115.0: 0})])["a"].failed_s == 115.0
    after = by_pod([series("hits_total", {100.0: 3, 130.0: 5}), series("up", {115.0: 0, 130.0: 1})])["a"]
    assert after.failed_s == 115.0
    assert list(after.pages) == [100.0, 130.0]


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf"])
def test_what_is_no_number_is_absent_not_zero(value: str) -> None:
    matrix = [series("depth", {100.0: 2, 115.0: value}), series("hits_total", {100.0: 3, 115.0: 5})]
    pages = by_pod(matrix)["a"].pages
    assert [sorted(page) for page in pages.values()] == [["depth", "hits_total"], ["hits_total"]]


def test_a_pod_scraped_by_two_jobs_is_counted_once() -> None:
    matrix = [series("hits_total", {100.0: 3, 115.0: 5}), series("hits_total", {107.0: 4, 122.0: 7}, job="again")]
    assert list(by_pod(matrix)["a"].pages) == [107.0, 122.0]


def test_of_two_jobs_the_same_one_counts_as_long_as_it_reads_the_pod() -> None:
    def read(first_s: float, until_s: float, job: str) -> dict[str, object]:
        times_s = (first_s + 15.0 * n for n in range(9))
        return series("hits_total", {at_s: at_s for at_s in times_s if at_s <= until_s}, job=job)

    def newest_s(now_s: float, ended_s: float = 1e9) -> float:
        return max(by_pod([read(0.0, min(now_s, ended_s), "a"), read(7.0, now_s, "b")])["a"].pages)

    assert [newest_s(now_s) for now_s in (61.0, 68.0, 76.0, 83.0)] == [60.0, 60.0, 75.0, 75.0]
    assert newest_s(83.0, ended_s=60.0) == 60.0
    assert newest_s(98.0, ended_s=60.0) == 97.0
