"""What a quick start reports: every promised key, and nothing that was not measured."""

import json
from pathlib import Path

import pytest

from pointsman.local.quickstart.report import PlanReport, Report, Sides

PROMISED = {
    "token_exact", "requests", "failed_requests", "remote_prefills", "local_prefills", "worst_itl_ms", "p99_itl_ms",
    "first_token_seconds", "total_seconds", "peak_pss_mib", "switch_seconds", "plans",
}  # fmt: skip


def test_the_file_holds_every_promised_key_with_both_sides_of_each_latency(tmp_path: Path) -> None:
    path = tmp_path / "new" / "report.json"
    Report(worst_itl_ms=Sides(pd=20.0, single=600.0)).write(path)
    written = json.loads(path.read_text())
    assert set(written) >= PROMISED
    assert written["worst_itl_ms"] == {"pd": 20.0, "single": 600.0}
    assert written["p99_itl_ms"] == {"pd": None, "single": None}


def test_what_was_not_measured_is_not_claimed() -> None:
    text = "\n".join(Report().lines())
    assert "not compared" in text
    assert "stall" not in text
    assert "first token" not in text


def test_the_planners_moves_are_a_line_each_and_the_threshold_is_one() -> None:
    plan = PlanReport(
        name="chat-00003", phase="Completed", reason="PrefillShort", message="why 3", pools={"prefill": 2, "decode": 1}
    )
    text = "\n".join(Report(plans=[plan], thresholds=[512, 640], switch_seconds=[1.14]).lines())
    assert "threshold 512 -> 640 tokens; 1 role switches (1.1 s)" in text
    assert "chat-00003 Completed 2P1D, PrefillShort: why 3" in text
    assert "planner" not in "\n".join(Report().lines())


def test_different_tokens_and_failures_are_said_loudly() -> None:
    text = "\n".join(Report(token_exact=False, compared_prompts=12, failures=["a request failed: HTTP 500"]).lines())
    assert "DIFFERENT tokens" in text
    assert "FAILED         a request failed: HTTP 500" in text


@pytest.mark.parametrize(("pd", "single", "times"), [(20.0, 600.0, 30.0), (None, 600.0, None), (20.0, None, None)])
def test_how_many_times_smaller_is_known_only_with_both_sides(
    pd: float | None, single: float | None, times: float | None
) -> None:
    assert Sides(pd=pd, single=single).times_smaller == times
