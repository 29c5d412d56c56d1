"""Figures that pages say in their own words are those that were measured and committed."""

import json
import re
import statistics
from pathlib import Path

import pytest
from bench import replays, report
from bench.elastic import engine_page, paper_page, planned_page
from bench.planner import per_prompt_results
from bench.planner.cells import OURS, read_cells
from bench.rows import RESULTS, Row, read

ROOT = RESULTS.parents[1]
DOCS = ROOT / "docs"


def rows(name: str) -> dict[str, Row]:
    return {row.name: row for row in read(RESULTS / f"{name}.json")}


def test_the_simulators_page_says_how_far_off_it_was_when_last_measured() -> None:
    page, measured = " ".join((DOCS / "simulator.md").read_text().split()), rows("predicted")
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
    page = (DOCS / "when-pd-does-not-pay.md").read_text()
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


def test_benchmarks_are_the_committed_rows_and_their_pictures_exist(tmp_path: Path) -> None:
    page = (DOCS / "benchmarks.md").read_text()
    for name in (
        "planner",
        "planner_dynamo",
        "foundation",
        "overload",
        "predicted",
        "forecast",
        "per_prompt",
        "elastic_paper",
        "elastic_planned",
    ):
        assert "\n".join(report.table([*rows_of(name)])) in page
    assert {*re.findall(r"\(pictures/([^)]+)\)", page)} <= {each.name for each in (DOCS / "pictures").iterdir()}
    assert all(file in page for files in report.PICTURES.values() for file in files)


def test_the_forecasts_tables_show_the_measured_errors_and_say_where_a_plain_forecast_is_better() -> None:
    page, measured = (DOCS / "planner-evaluation.md").read_text(), rows_of("forecast")
    begins = page.index("## How good the forecast is")
    part = page[begins : page.index("\n## ", begins)]
    lines = [[cell.strip(" *") for cell in line.split("|")[1:-1]] for line in part.splitlines() if line[:1] == "|"]
    heads = lines[0]
    shown = {
        (cells[0].replace("\\", ""), head): cell
        for cells in lines
        if len(cells) == len(heads)
        for head, cell in zip(heads, cells, strict=True)
    }
    bounds = {cells[0].replace("\\", ""): cells for cells in lines if len(cells) == 6}
    better = next(line for line in part.splitlines() if "**A plain forecast is better**" in line)
    of_errors = 0
    for row in measured:
        load, what = row.name.split(": ")
        if what.startswith("MAPE, "):
            assert row.peer is not None
            ahead = what.removeprefix("MAPE, ")
            for who, value in (("Pointsman", row.ours), (row.peer_name, row.peer)):
                assert float(shown[load, f"{who}, {ahead}"].removesuffix(" %")) == pytest.approx(100 * value, abs=0.06)
            told = load.replace("_", "\\_")
            assert (f"on {told}, {ahead} (the {row.peer_name}" in better) == (not row.met)
            of_errors += 1
        else:
            column = 1 if what.startswith("true rates") else 3
            assert float(bounds[load][column].removesuffix(" %")) == pytest.approx(100 * row.ours, abs=0.06)
    assert of_errors == 36


def test_the_planners_page_says_how_often_the_bound_held() -> None:
    page = " ".join((DOCS / "planner.md").read_text().split())
    constant = [100 * row.ours for row in rows_of("forecast") if re.match("constant.*: true rates", row.name)]
    changing = [100 * row.ours for row in rows_of("forecast") if re.match("(?!constant).*: true rates", row.name)]
    assert len(constant) == 2 and len(changing) == 5
    said = f"{min(constant):.0f} to {max(constant):.0f} % of the time on constant loads"
    assert f"{said} and {min(changing):.0f} to {max(changing):.0f} % on those that rise" in page


def test_the_page_of_elastic_groups_shows_the_measured_factors() -> None:
    page, simulated = (DOCS / "elastic-evaluation.md").read_text(), rows_of("elastic_paper")
    assert "\n".join(paper_page.throughput_table(simulated)) in page
    assert "\n".join(paper_page.ablation_table(simulated)) in page
    assert "\n".join(planned_page.planned_table(rows_of("elastic_planned"))) in page
    assert "\n".join(planned_page.planned_table(rows_of("elastic_planned"))) in page
    measured = {row.peer_name: row for row in rows_of("elastic") if row.name.startswith("goodput")}
    apart, together = measured["static 1+1"], measured["static degree 2"]
    for name, mean in (("elastic", apart.ours), ("two inst", apart.peer), ("degree 2 always", together.peer)):
        assert re.search(rf"^\| {name}.*\| {mean:.2f} requests/s \|$", page, re.M), name
    page = " ".join(page.split())
    assert (
        f"serves {apart.ratio:.2f} times as many requests as two separate instances, and {together.ratio:.2f} times"
        in page
    )
    rows = [row for row in rows_of("elastic_simulated") if "1 000 to 1 600" in row.name]
    assert f"simulated time the factors are {rows[0].ratio:.2f} and {rows[1].ratio:.2f}" in page


def test_the_page_of_elastic_groups_shows_what_the_engine_does() -> None:
    tokens = json.loads((RESULTS / "verify.json").read_text())[engine_page.TOKENS]
    table = engine_page.engine_table(rows_of("elastic"), tokens)
    assert "\n".join(table) in (DOCS / "elastic-evaluation.md").read_text()


def rows_of(name: str) -> list[Row]:
    return read(RESULTS / f"{name}.json")


def test_replays_explain_themselves_and_refuse_a_policy_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, code, said in ((["--help"], 0, "chat"), (["chatt"], 2, "there is no example policy chatt")):
        with pytest.raises(SystemExit) as ended:
            replays.main(arguments)
        assert ended.value.code == code
        captured = capsys.readouterr()
        assert said in captured.out + captured.err


def test_make_bench_runs_every_benchmark_there_is() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = {*re.findall(r"^(bench-[a-z-]+):", makefile, re.M)} - {"bench-report"}
    (listed,) = re.findall(r"^BENCHES := (.*)$", makefile, re.M)
    assert set(listed.split()) == targets


def test_the_planners_page_says_of_an_estimate_for_each_prompt_what_was_measured() -> None:
    page, runs = " ".join((DOCS / "planner.md").read_text().split()), per_prompt_results.read_runs()
    assert " ".join(per_prompt_results.summary(runs)) in page
    found = per_prompt_results.by_load(runs)

    def mean(load: str, rule: str, of: str) -> float:
        return statistics.mean([float(getattr(run, of)) for run in found[load][rule]])

    for load in ("step", "mixshift"):
        assert f"{mean(load, per_prompt_results.KEPT, 'attainment'):.3f} on {load}".removeprefix("0") in page
    shipped, spared, if_late = per_prompt_results.SHIPPED, per_prompt_results.SPARED, per_prompt_results.IF_LATE
    won = {load for load in found if mean(load, spared, "attainment") > mean(load, shipped, "attainment")}
    assert won == {"ramp", "burst", "onoff"}
    assert all(mean(load, spared, "ttft_p50_s") < mean(load, shipped, "ttft_p50_s") for load in found)
    errors = {(load, rule): mean(load, rule, "estimate_error") for load in found for rule in (spared, if_late)}
    assert f"within {100 * min(errors.values()):.0f} to {100 * max(errors.values()):.0f} % of what came" in page
    pairs = {
        load: [
            theirs.attainment - ours.attainment
            for theirs, ours in zip(rules[if_late], rules[shipped], strict=True)
            if theirs.seed == ours.seed
        ]
        for load, rules in found.items()
    }
    everything = [difference for load in pairs.values() for difference in load]
    less = sum(difference < 0 for difference in everything)
    said = f"over all pairs ({statistics.mean(everything):+.3f}, and less than the threshold in {less} of"
    assert f"{said} {len(everything)})".replace("+0.", "+.") in page
    apart = {load for load, of_load in pairs.items() if abs(statistics.mean(of_load)) > 0.01}
    assert apart == {"onoff", "documents"}
    assert all(min(pairs[load]) < 0 < max(pairs[load]) for load in apart), "its sign changes with the seed"


def test_what_is_kept_of_the_estimates_is_what_its_rows_and_their_page_say() -> None:
    runs = per_prompt_results.read_runs()
    assert rows_of("per_prompt") == [*per_prompt_results.rows(runs)]
    assert "\n".join(per_prompt_results.section(runs)) in (DOCS / "planner-evaluation.md").read_text()
    # The shipped rule is the planner of the other benchmark, where both were measured with the same sources.
    ours = {(run.scenario, run.seed, run.sources): run.attainment for run in read_cells() if run.planner == OURS}
    for run in runs:
        if run.rule == per_prompt_results.SHIPPED:
            sources = run.sources.split()[0]
            assert run.attainment == ours.get((run.load, run.seed, sources), run.attainment)
