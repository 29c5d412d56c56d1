"""Figures that pages say in their own words are those that were measured and committed."""

import json
import re
import statistics
from pathlib import Path

import pytest
from bench import pages, report
from bench.rows import RESULTS, Row, read

ROOT = RESULTS.parents[1]
DOCS = ROOT / "docs"
REPORTS = DOCS / "reports"


def rows(name: str) -> dict[str, Row]:
    return {row.name: row for row in read(RESULTS / f"{name}.json")}


def test_the_simulators_page_says_how_far_off_it_was_when_last_measured() -> None:
    page, measured = " ".join((DOCS / "planner" / "simulator.md").read_text().split()), rows("predicted")
    of_means = r"mean TTFT of \d+ requests at (.*)/s, predicted by the simulator"
    loads = [found[1] for name in measured if (found := re.fullmatch(of_means, name))]
    assert len(loads) == 2
    for load in loads:
        said = [f"Last measured at {load} requests a second:"]
        for what in ("TTFT", "TPOT"):
            of = rf"of \d+ requests at {load}/s, predicted by the simulator"
            (means,) = (row for name, row in measured.items() if re.fullmatch(f"mean {what} {of}", name))
            (each,) = (row for name, row in measured.items() if re.fullmatch(f"{what} of each {of}: mean.*", name))
            assert means.ratio is not None
            direction = "short" if means.ratio < 1 else "long"
            off = 100 * abs(means.ratio - 1)
            said.append(f"{what} {off:.1f} % too {direction} in the mean, {100 * each.ours:.0f} % off for one request;")
        assert " ".join(said)[:-1] in page


def test_the_page_of_when_separation_does_not_pay_shows_the_measured_stalls() -> None:
    page = (DOCS / "use" / "when-pd-does-not-pay.md").read_text()
    measured = rows("foundation")
    names = ("worst ITL of 3 streams, 2 000-token prompts", "p99 ITL of the same", "TTFT p50 of the long prompts")
    for line, ours in (("one prefill and one decode worker", True), ("one plain vLLM server", False)):
        cells = next(each for each in page.splitlines() if each.startswith(f"| {line} |")).split("|")[2:5]
        for cell, name in zip(cells, names, strict=True):
            number, unit = re.fullmatch(r"\s*([\d. ]+) (ms|s)\s*", cell).groups()  # type: ignore[union-attr]
            value = measured[name].ours if ours else measured[name].peer
            assert value is not None
            shown = float(number.replace(" ", "")) * (1000 if unit == "s" else 1)
            assert shown == pytest.approx(value, abs=60 if unit == "s" else 0.5)


def test_pages_and_pictures_are_made_of_the_committed_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pictures").mkdir()
    monkeypatch.setattr(pages, "REPORTS", tmp_path)
    report.main()
    made = [path.relative_to(tmp_path) for path in tmp_path.rglob("*.*")]
    assert len(made) > 10
    for path in made:
        assert (tmp_path / path).read_text() == (REPORTS / path).read_text(), f"make bench-report: {path}"
    shown = re.findall(r"\(pictures/([^)]+)\)", (REPORTS / "benchmarks.md").read_text())
    assert {*shown} <= {each.name for each in (REPORTS / "pictures").iterdir()}


def test_the_page_of_elastic_groups_shows_the_measured_factors() -> None:
    page = (REPORTS / "elastic-evaluation.md").read_text()
    measured = {row.peer_name: row for row in read(RESULTS / "elastic.json") if row.name.startswith("goodput")}
    apart, together = measured["static 1+1"], measured["static degree 2"]
    for name, mean in (("elastic", apart.ours), ("two inst", apart.peer), ("degree 2 always", together.peer)):
        assert re.search(rf"^\| {name}.*\| {mean:.2f} requests/s \|$", page, re.M), name
    page = " ".join(page.split())
    assert (
        f"serves {apart.ratio:.2f} times as many requests as two separate instances, and {together.ratio:.2f} times"
        in page
    )


def test_the_page_of_the_engine_on_a_gpu_shows_what_was_measured_there() -> None:
    page, found = (REPORTS / "elastic-gpu.md").read_text(), json.loads((RESULTS / "elastic_gpu.json").read_text())
    computer, memory = found["alone"]["computer"], found["alone"]["memory"]
    for said in (computer["gpu"], computer["driver"], computer["nccl"], f"{memory['slots']:,}".replace(",", " ")):
        assert said in page
    assert "**Not shown: NCCL between two GPUs.**" in page
    now, before = found["together"]["degree 2"], found["before"]["degree 2"]
    for name, line in (("decode 64", "64 requests, two instances over gloo"), ("prefill 32768", "two instances over")):
        values = [statistics.median(of[name]) for of in (before, now)]
        shown = [f"{1000 * each:.0f} ms" if each < 1 else f"{each:.1f} s" for each in values]
        assert re.search(rf"{line}.* \| {shown[0]} \| {shown[1]} \|", page), shown


def test_the_note_on_the_elastic_engine_has_the_figures_of_kills_while_a_group_scales() -> None:
    verified = json.loads((RESULTS / "verify.json").read_text())
    found = verified[
        "test_manager_and_operator_are_killed_while_the_group_scales_and_it_converges_and_no_answer_is_lost"
    ]
    (tie,) = found["ties_of_float32"]
    note = " ".join((DOCS / "design" / "0003-elastic-engine.md").read_text().split())
    answers, converged = f"{found['answers']:,}".replace(",", " "), found["seconds_to_converge"]
    assert f"after {converged['median']} s in the median and {converged['max']} s at most. Of {answers} answers" in note
    assert f"lie {tie['apart']:.0e} apart".replace("e-0", "e-") in note
    assert f"float32 changes logits by {tie['rounding']:.1e}".replace("e-0", "e-") in note
    assert (found["answers_that_two_deaths_ended"], "none of these" in note) == (0, True)


def test_the_note_on_benchmarks_has_the_figures_of_the_scraper_and_says_which_target_it_misses() -> None:
    note = " ".join((DOCS / "design" / "0015-benchmarks.md").read_text().split())
    measured = rows("scraping")
    stall = measured["longest stall of the event loop in a round over 1000 workers"]
    seconds = measured["one round over 1000 workers"].ours
    assert (
        f"a round took {seconds:g} s, and the longest stall was {stall.ours:g} ms in the median of nine rounds" in note
    )
    assert ("The target of 100 ms is **missed**" in note) is not stall.met
    assert all(row.met for name, row in measured.items() if name != stall.name)


def test_make_bench_runs_every_benchmark_there_is() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = {*re.findall(r"^(bench-[a-z-]+):", makefile, re.M)} - {"bench-report"}
    (listed,) = re.findall(r"^BENCHES := (.*)$", makefile, re.M)
    assert set(listed.split()) == targets
