"""Figures from records: nothing invented, nothing flattering."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.local.traffic import Api, Latency, PrefillPath, Prompt, Record, percentile, recent, summarise

PROMPT = Prompt(0, Api.COMPLETION, True, 8, text="a")
seconds = st.floats(min_value=0, max_value=1e4)


def record(**fields: object) -> Record:
    defaults: dict[str, object] = {"prompt": PROMPT, "started_s": 0.0, "total_seconds": 1.0, "finish_reason": "length"}
    return Record(**{**defaults, **fields})  # type: ignore[arg-type] # test factory


@given(st.lists(seconds, min_size=1), st.floats(min_value=0.1, max_value=100))
def test_a_percentile_is_an_observed_value_with_enough_values_at_or_below_it(
    values: list[float], percent: float
) -> None:
    found = percentile(values, percent)
    assert found in values
    at_or_below = sum(value <= found for value in values)
    below = sum(value < found for value in values)
    assert at_or_below * 100 >= percent * len(values) - 1e-6
    assert below * 100 < percent * len(values)


def test_no_values_have_no_percentile() -> None:
    assert percentile([], 50) is None
    assert Latency.of([]) == Latency(None, None, None, 0)


@pytest.mark.parametrize("percent", [0, -1, 100.1])
def test_a_percent_out_of_range_is_refused_with_its_value(percent: float) -> None:
    with pytest.raises(ValueError, match=str(percent)):
        percentile([1.0], percent)


@given(st.lists(seconds, min_size=2, max_size=50))
def test_inter_token_latencies_are_the_gaps_between_chunks_and_sum_to_the_stream_after_its_first_token(
    times: list[float],
) -> None:
    arrivals = tuple(sorted(times))
    answered = record(token_seconds=arrivals)
    assert len(answered.itl_seconds) == len(arrivals) - 1
    assert sum(answered.itl_seconds) == pytest.approx(arrivals[-1] - arrivals[0], abs=1e-6)
    assert answered.ttft_seconds == arrivals[0]


def test_failed_requests_are_counted_and_give_no_latency_and_no_path() -> None:
    good = record(
        token_seconds=(0.1, 0.2), path=PrefillPath.REMOTE, worker="d", prefill_worker="p", completion_tokens=2
    )
    bad = record(error="HTTP 503", status=503, token_seconds=(0.001, 9.0), path=PrefillPath.LOCAL, worker="x")
    summary = summarise([good, bad])
    assert (summary.requests, summary.failed_requests) == (2, 1)
    assert (summary.remote_prefills, summary.local_prefills, summary.paths_unknown) == (1, 0, 0)
    assert summary.ttft.worst_ms == pytest.approx(100)
    assert summary.itl.worst_ms == pytest.approx(100)
    assert summary.workers == ("d",)
    assert summary.prefill_workers == ("p",)


def test_an_answer_without_a_path_is_unknown_not_local() -> None:
    assert summarise([record()]).paths_unknown == 1
    assert summarise([record()]).local_prefills == 0


def test_answers_are_compared_by_token_ids_where_both_have_them_and_never_when_one_failed() -> None:
    one = record(text="a", token_ids=(1, 2))
    assert one.answers_like(record(text="b", token_ids=(1, 2)))
    assert not one.answers_like(record(text="a", token_ids=(1, 3)))
    assert not one.answers_like(record(text="b"))
    assert not one.answers_like(record(text="a", token_ids=(1, 2), finish_reason="stop"))
    failed = record(text="a", token_ids=(1, 2), error="gone")
    assert not failed.answers_like(failed)


def test_recent_records_are_those_that_ended_within_the_window() -> None:
    old, fresh = record(started_s=0.0, total_seconds=1.0), record(started_s=0.0, total_seconds=8.0)
    assert recent([old, fresh], now_s=10.0, window_seconds=5.0) == [fresh]
