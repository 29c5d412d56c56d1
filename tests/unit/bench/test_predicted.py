"""The benchmark of predictions judges the errors it says it judges, on the trace it says it sends."""

import pytest
from bench.predicted import MOST_PROMPT_TOKENS, Means, load, means_of, predicted, rows

from pointsman.local.traffic import Api, PrefillPath, Prompt, Record
from pointsman.planner.simulator.types import Trace
from pointsman.planner.table_files import KvTransfer, PrefillRows, StepRows, Table, TableDocument, parse_table

TABLE = TableDocument(
    model="m",
    system="cpu",
    backend="vllm",
    tp=1,
    gpus=1,
    kv_capacity_tokens=20_000,
    kv_bytes_per_token=16_384,
    kv_transfer=KvTransfer(bytes_per_second=1e9, hop_ms=10),
    prefill_ms=PrefillRows(columns=("new_tokens", "prefix_tokens", "ms"), rows=((16, 0, 10), (2048, 0, 500))),
    decode_step_ms=StepRows(columns=("batch", "context", "ms"), rows=((1, 128, 10), (8, 128, 12))),
)


def measured(ttft_ms: float, tpot_ms: float) -> Means:
    return Means(ttft_ms, tpot_ms, remote=0.5)


def test_runs_that_agree_leave_fifteen_percent() -> None:
    found = {row.name: row for row in rows([measured(200, 10), measured(200, 10)], measured(229, 8.4), 40)}
    ttft = found["mean TTFT of 40 requests, predicted by the simulator: relative error"]
    assert (ttft.ours, ttft.target, ttft.met) == (0.145, "<= 0.15", True)
    tpot = found["mean TPOT of 40 requests, predicted by the simulator: relative error"]
    assert (tpot.ours, tpot.met) == (0.16, False), "too short is as wrong as too long"
    assert found["mean TTFT of 40 requests, predicted by the simulator"].peer == 200


def test_runs_that_differ_leave_one_and_a_half_times_their_difference() -> None:
    ttft = rows([measured(180, 10), measured(220, 10)], measured(258, 10), 40)[0]
    assert (ttft.ours, ttft.target, ttft.met) == (0.29, "<= 0.3", True)


def test_the_trace_is_the_same_for_a_seed_and_fits_the_workers() -> None:
    trace = load(2.0, 60.0, seed=3)
    again = load(2.0, 60.0, seed=3)
    assert (trace.arrival_s == again.arrival_s).all()
    assert trace.prompt_tokens.max() <= MOST_PROMPT_TOKENS
    assert 80 < len(trace) < 160


def test_a_prediction_has_a_first_token_after_the_prefill_and_a_step_for_every_other() -> None:
    table: Table = parse_table(TABLE.model_dump_json(), "here")
    trace: Trace = load(0.05, 100.0, seed=1)
    assert len(trace) >= 2, "so far apart that nobody waits for another"
    said = predicted(trace, table)
    alone = [table.performance.prefill_ms(int(tokens), 0) for tokens in trace.prompt_tokens]
    assert sum(alone) / len(alone) < said.ttft_ms < sum(alone) / len(alone) + 60
    assert said.tpot_ms == pytest.approx(10, rel=0.1)
    assert 0 < said.remote < 1


def test_a_run_with_a_failed_request_is_not_a_measurement() -> None:
    prompt = Prompt(0, Api.COMPLETION, True, 3, text="x")
    record = Record(prompt, 0.0, 1.0, status=200, token_seconds=(0.5, 0.6, 0.8), path=PrefillPath.REMOTE)
    found = means_of([record])
    assert (found.ttft_ms, found.tpot_ms, found.remote) == pytest.approx((500, 150, 1))
    with pytest.raises(RuntimeError, match="1 of 2 requests failed: HTTP 500"):
        means_of([record, Record(prompt, 0.0, 1.0, status=500, error="HTTP 500")])
