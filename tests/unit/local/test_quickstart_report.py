"""What a quick start reports: every promised key, nothing that was not measured, and no more than a screen."""

import json
from pathlib import Path

import pytest

from pointsman.local.quickstart.report import MAX_LINES, MAX_WIDTH, PlanReport, Report, Sides, in_home

PROMISED = {
    "token_exact", "requests", "failed_requests", "remote_prefills", "local_prefills", "worst_itl_ms", "p99_itl_ms",
    "first_token_seconds", "total_seconds", "peak_pss_mib", "switch_seconds", "plans",
}  # fmt: skip


def plan(name: str = "shift-00001") -> PlanReport:
    message = "Switch roles from 1P2D to 2P1D: too few prefill workers. 2.62 requests/s of 676+19 tokens now"
    pools = {"prefill": 2, "decode": 1}
    return PlanReport(name=name, phase="Completed", reason="PrefillShort", message=message, pools=pools)


def whole(**changed: object) -> Report:
    """A run that measured everything."""
    found: dict[str, object] = {
        "passed": True, "token_exact": True, "compared_prompts": 48, "requests": 262, "remote_prefills": 82,
        "local_prefills": 180, "worst_itl_ms": Sides(pd=68.7, single=1079.9), "scaled": ["2", "3", "2"],
        "long_prompt_ttft_p50_ms": Sides(pd=1904.4, single=1115.6), "switch_seconds": [4.7, 2.5],
        "plans": [plan(), plan("shift-00002")], "thresholds": [512, 640], "first_token_seconds": 28.5,
        "total_seconds": 170.8, "peak_pss_mib": 5696.9, "start_seconds": 45.0,
    }  # fmt: skip
    return Report.model_validate(found | changed)


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
    assert [
        word for word in ("Scaling", "Pauses", "Long prompts", "Planner", "First answer", "Memory") if word in text
    ] == []


@pytest.mark.parametrize(
    "report",
    [
        whole(),
        whole(plans=[plan(f"shift-{number:05}") for number in range(40)], switch_seconds=[4.7]),
        whole(passed=False, failures=[f"prompt {number} was not answered" for number in range(300)]),
        whole(plans=[plan()] * 40, passed=False, failures=["a\nseen last"] * 40),
    ],
    ids=["whole", "many plans", "many failures", "many of both"],
)
def test_the_report_fits_a_screen(report: Report) -> None:
    lines = report.lines(Path.home() / ".cache" / "report.json")
    assert len(lines) < MAX_LINES, "and its heading is one"
    assert [line for line in lines if len(line) + 2 > MAX_WIDTH] == []


def test_the_planners_moves_are_a_sentence_each_and_whole_for_those_who_ask() -> None:
    text = "\n".join(whole().lines())
    assert "2 role switches without a restart, in 4.7 s and 2.5 s" in text
    assert "shift-00001: Switch roles from 1P2D to 2P1D: too few prefill workers\n" in text
    assert "1P2D means" in text
    explained = "\n".join(whole().lines(explain=True))
    plan = "shift-00001 Completed PrefillShort: Switch roles from 1P2D to 2P1D: too few prefill workers. 2.62"
    assert plan in explained
    assert "512 -> 640" in explained


def test_what_is_left_out_is_counted() -> None:
    text = "\n".join(whole(plans=[plan()] * 6, failures=["a"] * 9).lines())
    assert "… and 3 more plans" in text
    assert "… and 4 more failures" in text


def test_different_tokens_and_failures_are_said_loudly() -> None:
    text = "\n".join(Report(token_exact=False, compared_prompts=12, failures=["a request failed: HTTP 500"]).lines())
    assert "DIFFERENT tokens" in text
    assert "FAILED" in text
    assert "a request failed: HTTP 500" in text


@pytest.mark.parametrize(("pd", "single", "times"), [(20.0, 600.0, 30.0), (None, 600.0, None), (20.0, None, None)])
def test_how_many_times_smaller_is_known_only_with_both_sides(
    pd: float | None, single: float | None, times: float | None
) -> None:
    assert Sides(pd=pd, single=single).times_smaller == times


def test_a_path_below_the_home_folder_is_short() -> None:
    assert in_home(Path.home() / "a" / "b") == "~/a/b"
    assert in_home(Path("/elsewhere/b")) == "/elsewhere/b"
