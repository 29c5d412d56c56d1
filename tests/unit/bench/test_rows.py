"""Benchmark rows say what was measured, judge the right figure, and render without hiding a miss."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from bench import pages, rows

COMMAND = "make bench-foundation"


def test_a_row_holds_medians_and_the_spread_of_ours() -> None:
    made = rows.row("first token", "s", [30.0, 20.0, 50.0], at_most=40, command=COMMAND)
    assert (made.ours, made.spread, made.runs, made.met, made.target) == (30.0, (20.0, 50.0), 3, True, "<= 40")
    assert (made.peer, made.peer_name, made.ratio) == (None, None, None)


def test_a_ratio_is_the_median_of_the_runs_ratios_and_is_what_is_judged() -> None:
    beside = partial(rows.row, "worst ITL", "ms", peer=[400, 300, 300], at_most=0.1, of_ratio=True, command=COMMAND)
    made = beside([20, 30, 90])
    assert made.ratio == 0.1
    assert made.met
    assert not beside([20, 31, 90]).met


def test_a_row_of_means_judges_the_mean_and_its_ratio_is_that_of_the_means() -> None:
    lost = rows.row("lost", "", [0.16, 0.02, 0.02], at_most=0.03, of_means=True, command=COMMAND)
    assert (lost.ours, lost.spread, lost.runs, lost.met) == (0.06667, (0.02, 0.16), 3, False)
    assert rows.row("lost", "", [0.16, 0.02, 0.02], at_most=0.03, command=COMMAND).met  # by the median
    ratio = rows.row(
        "x", "", [1.0, 1.0, 4.0], peer=[1.0, 1.0, 2.0], peer_name="p", at_least=1.5, of_ratio=True, of_means=True,
        command=COMMAND,
    )  # fmt: skip
    assert (ratio.ours, ratio.peer, ratio.ratio, ratio.met) == (2.0, 1.333, 1.5, True)


def test_a_peer_of_other_runs_and_a_row_of_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="2 runs of ours and 1 of the peer"):
        rows.row("x", "s", [1, 2], peer=[1], peer_name="p", at_most=1, command=COMMAND)
    with pytest.raises(ValueError, match="no median for empty data"):
        rows.row("x", "s", [], at_most=1, command=COMMAND)


def test_a_missed_target_is_visible_in_the_table() -> None:
    missed = rows.row("first token", "s", [50.0], at_most=40, command=COMMAND)
    assert "| **no** |" in pages.render("rows.md", rows=[missed])


def test_a_picture_has_each_name_above_its_bars_which_are_to_scale() -> None:
    made = [
        rows.row(f'"{n}" < ' * 20, "ms", [20], peer=[400], peer_name="p", at_most=9, command=COMMAND) for n in (1, 2)
    ]
    svg = "{http://www.w3.org/2000/svg}"
    tree = ElementTree.fromstring(pages.render("bars.svg", rows=made))
    names = [float(text.attrib["y"]) for text in tree.iter(f"{svg}text") if '"' in (text.text or "")]
    bars = [bar.attrib for bar in tree.iter(f"{svg}rect") if len(bar)]
    at = [float(bar["y"]) for bar in bars]
    assert float(bars[1]["width"]) == pytest.approx(20 * float(bars[0]["width"]), rel=0.01)
    assert names[0] < at[0] < at[1]
    assert at[1] + float(bars[1]["height"]) < names[1] - 13  # the height of its letters
    assert names[1] < at[2]


def test_a_target_from_below_is_met_by_more_and_a_row_has_one_target() -> None:
    assert rows.row("attainment", "", [0.97], at_least=0.95, command=COMMAND).met
    missed = rows.row("attainment", "", [0.94], at_least=0.95, command=COMMAND)
    assert (missed.met, missed.target) == (False, ">= 0.95")
    targets: tuple[dict[str, Any], ...] = ({}, {"at_least": 1.0, "at_most": 2.0})
    for target in targets:
        with pytest.raises(ValueError, match="one of at_most and at_least"):
            rows.row("x", "s", [1], command=COMMAND, **target)


def test_options_have_the_type_of_their_default_and_several_values_where_it_is_a_tuple() -> None:
    known: dict[str, tuple[Any, str]] = {
        "runs": (3, "runs"), "rates": ((0.4, 0.8), "a second"), "keep_all": (False, "keep"), "cores": ("600m", "limit")
    }  # fmt: skip
    asked = rows.options(COMMAND, None, ["--runs", "5", "--rates", "1", "2.5", "--keep-all"], **known)
    assert (asked.runs, asked.rates, asked.keep_all, asked.cores) == (5, [1.0, 2.5], True, "600m")
    assert rows.options(COMMAND, None, [], **known).rates == (0.4, 0.8)
    with pytest.raises(SystemExit):
        rows.options(COMMAND, None, ["--runs", "many"], **known)


def test_a_command_that_is_repeated_has_its_arguments() -> None:
    assert rows.repeated(COMMAND, []) == COMMAND
    assert rows.repeated(COMMAND, ["--only", "a b"]) == f"{COMMAND} ARGS=\"--only 'a b'\""


def test_a_benchmark_ends_with_an_error_if_a_target_is_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rows, "RESULTS", tmp_path)
    met = rows.row("first token", "s", [30.0], [60.0], peer_name="another", at_most=40, command=COMMAND)
    missed = replace(met, name="whole run", met=False)
    assert rows.finish("one", [met]) == 0
    assert rows.finish("two", [met, missed]) == 1
    assert rows.read(tmp_path / "two.json") == [met, missed]
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "met    first token: 30 s, another: 60 (target <= 40)"
    assert said[3].startswith("MISSED whole run: 30 s")


@pytest.mark.parametrize("name", ["cells.json", "cells.json.xz"])
def test_what_is_kept_is_read_again_whether_it_is_compressed_or_not(name: str, tmp_path: Path) -> None:
    path, found = tmp_path / name, {"b": [1, 2.5, None], "a": "κ"}
    assert rows.kept(path) is None
    rows.keep(path, found)
    assert rows.kept(path) == found
    once = path.read_bytes()
    rows.keep(path, found)
    assert path.read_bytes() == once, "what is the same is no change of a committed file"
    rows.keep(path, found, in_order=True)
    assert [*rows.kept(path)] == ["a", "b"]
