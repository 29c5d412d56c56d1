"""What an estimate for each prompt came to is judged load by load and over all of them, and said where it is old."""

from dataclasses import replace

import numpy as np
import pytest
from bench.planner import per_prompt
from bench.planner.evaluation_page import REASONS
from bench.planner.per_prompt import LOADS, RULES, documents
from bench.planner.per_prompt_results import (
    IF_LATE,
    KEPT,
    SHIPPED,
    SHORTEST,
    SPARED,
    PlacedRun,
    made_with,
    rows,
    section,
    summary,
)
from bench.planner.scenarios import Synthetic
from bench.planner.verdicts import reason_of


def run(load: str, seed: int, rule: str, attainment: float, gpu_hours: float = 2.0) -> PlacedRun:
    error = None if rule == SHIPPED else 0.1
    return PlacedRun(load, seed, rule, attainment, gpu_hours, 0.4, 0.9, 0.75, error, made_with())


RUNS = [
    *(run("a", seed, SHIPPED, 0.90 + seed / 100) for seed in (1, 2)),
    *(run("a", seed, SHORTEST, 0.5) for seed in (1, 2)),
    *(run("a", seed, KEPT, 0.6) for seed in (1, 2)),
    *(run("a", seed, SPARED, 0.9151, 3.0) for seed in (1, 2)),
    *(run("a", seed, IF_LATE, 0.915) for seed in (1, 2)),
    *(run("b", seed, SHIPPED, 0.7, 1.0) for seed in (1, 2)),
    *(run("b", seed, SHORTEST, 0.8) for seed in (1, 2)),
    *(run("b", seed, SPARED, 0.6) for seed in (1, 2)),
    *(run("b", seed, IF_LATE, 0.75) for seed in (1, 2)),
]


def test_a_row_is_missed_where_the_estimate_served_more_by_however_little() -> None:
    met = {(row.name.split(":")[0], (row.peer_name or "").split(",")[0]): row.met for row in rows(RUNS)}
    assert met == {
        ("a", SHORTEST): True, ("a", KEPT): True, ("a", SPARED): False, ("a", IF_LATE): True,
        ("b", SHORTEST): False, ("b", SPARED): True, ("b", IF_LATE): False,
        # KEPT was not measured on all loads, and is not judged over them.
        ("all loads", SHORTEST): True, ("all loads", SPARED): True, ("all loads", IF_LATE): False,
    }  # fmt: skip
    over_all = [*rows(RUNS)][-1]
    assert (over_all.runs, over_all.ours, over_all.peer) == (4, 0.8075, 0.8325)
    assert over_all.peer_name == f"{IF_LATE}, 2.00 GPU-hours"


def test_a_reason_is_written_for_who_serves_about_as_much_and_none_for_ttft_alone() -> None:
    reasons = {row.peer_name: reason_of(row, REASONS) for row in rows(RUNS) if not row.met}
    assert [name for name, why in reasons.items() if why is None] == [f"{SHORTEST}, 2.00 GPU-hours"]


def test_the_section_and_the_summary_have_every_load_and_say_what_is_old() -> None:
    lines = section(RUNS)
    assert f"| a | {SHIPPED} | 0.915 (0.910–0.920) | 2.00 (2.00–2.00) | 0.40 s | 0.90 s | 75% |  |" in [
        line.replace("*", "") for line in lines
    ]
    bold = [line.split("|")[2].strip() for line in lines if "| **" in line]
    assert bold == [SHIPPED, SPARED, IF_LATE, SHORTEST]  # 0.915 thrice on a; on b
    assert not any("earlier state" in line for line in lines)
    assert any("earlier state" in line for line in section([*RUNS, replace(RUNS[0], sources="another")]))
    assert summary(RUNS)[2:] == [
        "| a | 0.915, 2.00 h | 0.500, 2.00 h | 0.915, 3.00 h | 0.915, 2.00 h |",
        "| b | 0.700, 1.00 h | 0.800, 2.00 h | 0.600, 2.00 h | 0.750, 2.00 h |",
        "| all | 0.807, 1.50 h | 0.650, 2.00 h | 0.758, 2.50 h | 0.833, 2.00 h |",
    ]
    assert section([]) == []


def test_a_load_is_played_by_every_rule_and_the_edge_of_tpot_on_two_of_them() -> None:
    short = replace(LOADS["mixshift"], trace=Synthetic("mixshift:at_s=20,duration_s=40"))
    runs = [*per_prompt.measured(short, 3)]
    assert [each.rule for each in runs] == [SHIPPED, *(rule.name for rule in RULES)]
    assert [each.rule for each in per_prompt.measured(replace(short, name="ramp"), 3)] == [
        SHIPPED, *(rule.name for rule in RULES if rule.name != KEPT),
    ]  # fmt: skip
    assert runs[0].estimate_error is None
    assert all(each.estimate_error is not None and each.estimate_error < 0.5 for each in runs[1:])
    assert runs[0].remote_share > runs[1].remote_share


def test_documents_come_in_waves_beside_short_prompts() -> None:
    trace = documents(11)
    long = trace.prompt_tokens > 2000
    assert (np.diff(trace.arrival_s) >= 0).all()
    assert 0.03 < long.mean() < 0.25
    assert 450 < trace.prompt_tokens[~long].mean() < 550
    assert 7500 < trace.prompt_tokens[long].mean() < 8500
    of_minutes = np.bincount((trace.arrival_s[long] // 60).astype(int))
    assert of_minutes.max() > 4 * max(of_minutes.min(), 1)


def test_a_load_that_is_not_there_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        per_prompt.main(["--only", "step,stairs"])
    assert "there is no stairs" in capsys.readouterr().err
