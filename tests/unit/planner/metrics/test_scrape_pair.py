"""What two readings of a page say."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.planner.core.metrics import scrape_pair
from pointsman.planner.core.metrics.scrape_pair import Histogram, Labels, Page
from pointsman.planner.exposition import parse
from pointsman.planner.simulator.latencies import quantile

BEFORE = """
# TYPE hits counter
hits_total{path="a"} 10
hits_total{path="b"} 5
# TYPE took histogram
took_bucket{le="1"} 2
took_bucket{le="2"} 4
took_bucket{le="+Inf"} 4
took_sum 4.5
took_count 4
"""
AFTER = """
# TYPE hits counter
hits_total{path="a"} 13
hits_total{path="b"} 1
# TYPE took histogram
took_bucket{le="1"} 2
took_bucket{le="2"} 8
took_bucket{le="+Inf"} 10
took_sum 20.5
took_count 10
# TYPE depth gauge
depth NaN
"""


def test_a_counter_that_went_down_was_restarted() -> None:
    assert scrape_pair.added(parse(BEFORE), parse(AFTER), "hits_total") == 3 + 1


def counted(**by_path: tuple[float, float]) -> Page:
    """A page with two counters of the same labels."""
    return {
        name: {(("path", path), ("service", "chat")): float(values[place]) for path, values in by_path.items()}
        for place, name in enumerate(("hits_total", "bytes_total"))
    }


def gained(before: Page, after: Page) -> dict[str, tuple[float, ...]]:
    return scrape_pair.added_by(before, after, ("hits_total", "bytes_total"), "path")


def test_what_counters_gained_by_a_label() -> None:
    first, second = counted(a=(3, 300)), counted(a=(5, 700), b=(1, 50))
    assert gained(first, second) == {"a": (2, 400), "b": (1, 50)}
    assert gained({}, second) == {"a": (5, 700), "b": (1, 50)}
    assert gained(first, {}) == {}
    assert gained({"up": {}}, second) == {}, "of an earlier time"
    assert gained({**first, "bytes_total": {}}, {"hits_total": second["hits_total"]}) == {}, "one is missing"


def test_values_of_other_labels_are_summed_and_one_without_the_label_is_none_of_them() -> None:
    of_two = {
        name: {**dict(samples), (("path", "a"), ("service", "other")): 10.0, (("service", "chat"),): 7.0}
        for name, samples in counted(a=(5, 700)).items()
    }
    assert gained({}, of_two) == {"a": (15, 710), "": (7, 7)}


def test_counters_that_belong_together_were_restarted_together() -> None:
    """Fewer answers with more tokens, and more with fewer: all that the new process counted was added."""
    assert gained(counted(a=(3, 300)), counted(a=(2, 4000))) == {"a": (2, 4000)}
    assert gained(counted(a=(3, 6000), b=(1, 1)), counted(a=(4, 400), b=(2, 9))) == {"a": (4, 400), "b": (2, 9)}


def test_a_missing_family_is_unknown_not_zero() -> None:
    assert scrape_pair.added(parse(BEFORE), parse(AFTER), "misses_total") is None
    assert scrape_pair.gauge(parse(AFTER), "depth") is None
    assert scrape_pair.observed(parse(BEFORE), parse(AFTER), "other").mean is None


def test_what_a_family_counted_before_it_was_shown_is_not_of_this_time() -> None:
    """A scrape that dropped it was mended; of a first page, which has nothing before it, everything is new."""
    without = parse("depth 3")
    assert scrape_pair.added(without, parse(AFTER), "hits_total") is None
    assert scrape_pair.observed(without, parse(AFTER), "took").count == 0
    assert scrape_pair.added({}, parse(AFTER), "hits_total") == 14
    assert scrape_pair.observed({}, parse(AFTER), "took").count == 10
    one_label = parse('hits_total{path="a"} 10')
    assert scrape_pair.added(one_label, parse(AFTER), "hits_total") == 3 + 1, "a label appears with its first count"


def test_a_histogram_between_two_readings() -> None:
    took = scrape_pair.observed(parse(BEFORE), parse(AFTER), "took")
    assert took.count == 6
    assert took.mean == pytest.approx(16 / 6)
    assert took.share_at_most(1.5) == pytest.approx(4 / 6), "the whole bucket that the bound lies in"
    assert took.share_at_most(2) == pytest.approx(4 / 6)
    assert took.share_at_most(2.1) == 1
    assert quantile(took, 0.5) == pytest.approx(1.75)
    assert quantile(took, 0.99) == 2, "beyond the last finite bound nothing is known but that bound"
    (first, first_share), (last, last_share) = took.shares()
    assert (first, last) == pytest.approx((math.sqrt(2), 2))
    assert (first_share, last_share) == pytest.approx((4 / 6, 2 / 6))


@pytest.mark.parametrize("had", [((10, 100, 100), 500.0), ((10, 10, 10), 5000.0), ((13, 13, 13), 1.0)])
def test_a_histogram_was_restarted_as_a_whole_whatever_its_buckets_have_come_to(
    had: tuple[tuple[int, int, int], float],
) -> None:
    def page(counts: tuple[int, int, int], total: float) -> dict[str, dict[Labels, float]]:
        buckets: dict[Labels, float] = {
            (("le", le), ("role", "x")): float(n) for le, n in zip(("1.0", "10.0", "+Inf"), counts, strict=True)
        }
        other: dict[Labels, float] = {(("le", le), ("role", "y")): 5.0 for le in ("1.0", "10.0", "+Inf")}
        return {"h_bucket": buckets | other, "h_sum": {(("role", "x"),): total, (("role", "y"),): 1.0}}

    found = scrape_pair.observed(page(*had), page((12, 12, 12), 6.0), "h")
    assert found.cumulative == (12, 12, 12)
    assert found.mean == 0.5


def test_what_is_no_page_is_refused() -> None:
    with pytest.raises(ValueError, match="could not convert"):
        parse("this is { nonsense\n")


counts = st.lists(st.integers(0, 50), min_size=1, max_size=8)


@given(counts=counts, bound=st.floats(0, 300))
def test_shares_are_shares_and_quantiles_rise(counts: list[int], bound: float) -> None:
    bounds = (*(float(2**n) for n in range(len(counts) - 1)), math.inf)
    cumulative = tuple(float(sum(counts[: n + 1])) for n in range(len(counts)))
    found = Histogram(bounds, cumulative, 1.0)
    share = found.share_at_most(bound)
    assert (share is None) == (found.count == 0)
    if share is not None:
        assert 0 <= share <= 1
        quantiles = [quantile(found, q / 10) for q in range(1, 11)]
        assert quantiles == sorted(q for q in quantiles if q is not None)
        assert sum(s for _, s in found.shares()) == pytest.approx(1)
        assert found.plus(found).count == 2 * found.count


@given(gained=st.integers(0, 1000), restarted=st.booleans())
def test_what_a_counter_gained_is_never_negative(gained: int, restarted: bool) -> None:
    labels: Labels = (("path", "a"),)
    after = {"hits_total": {labels: float(gained if restarted else 100 + gained)}}
    assert scrape_pair.added({"hits_total": {labels: 100.0}}, after, "hits_total") in (gained, gained - 100)


def of_lengths(*tokens: float) -> Histogram:
    bounds = (64.0, 256.0, 1024.0, 4096.0, 16_384.0, math.inf)
    return Histogram(bounds, tuple(float(sum(t <= bound for t in tokens)) for bound in bounds), float(sum(tokens)))


def test_what_was_refused_later_than_it_was_accepted_leaves_the_others_as_they_are() -> None:
    """Ten short prompts came in this window, and two long ones of an earlier window were refused in it."""
    accepted = of_lengths(*[100.0] * 10)
    assert accepted.less(of_lengths(8000.0, 8000.0)) == accepted
    left = of_lengths(*[100.0] * 10, 8000.0).less(of_lengths(8000.0))
    assert left.count == 10
    assert 64 <= (left.mean or 0) <= 256
    nothing = accepted.less(accepted)
    assert (nothing.count, nothing.mean) == (0, None)


@given(st.lists(st.floats(1, 16_000), min_size=1, max_size=40), st.lists(st.floats(1, 50_000), max_size=40))
def test_what_is_left_has_a_mean_that_its_buckets_allow(these: list[float], others: list[float]) -> None:
    left = of_lengths(*these).less(of_lengths(*others))
    if left.count > 0:
        assert 1 / 64 <= (left.mean or 0) / sum(value * share for value, share in left.shares()) <= 64
