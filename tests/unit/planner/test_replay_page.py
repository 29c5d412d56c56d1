"""The report of a replay can be read: alone, on a phone, in the dark, and by those who do not see its colours."""

import json
import re
import xml.etree.ElementTree as ElementTree
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.planner.replay import command
from pointsman.planner.replay.axes import (
    clock,
    clock_unit,
    labels,
    linear,
    logarithmic,
    moments,
    number,
    tick_clock,
    tick_unit,
)
from pointsman.planner.replay.generators import described, named_shape
from pointsman.planner.replay.page import page
from pointsman.planner.replay.pictures import Curve, Panel, _axis, panels, picture

SVG, HTML = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xhtml}"
POLICY = """
objectives: {ttftMs: 1500, tpotMs: 40}
budget: {maxGpus: 6}
actions: {scaleIn: {stabilizationSeconds: 60}}
performance: {table: {model: meta-llama/Meta-Llama-3.1-8B, gpu: h100_sxm}}
"""
NAME = 'a "quoted" <name> [bold]'
BEFORE = "kept & <before>.json"
TRACE = "step:low=2,high=10,up_s=60,down_s=150,duration_s=200"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a policy that was replayed, and again against that."""
    path = tmp_path_factory.mktemp("page")
    (path / f"{NAME}.yaml").write_text(POLICY)
    arguments = ["--trace", TRACE, "--policy", str(path / f"{NAME}.yaml"), "--startup-seconds", "30"]
    assert command.main([*arguments, "--html", str(path / "out.html"), "--json", str(path / BEFORE)]) == 0
    assert command.main([*arguments, "--html", str(path / "again.html"), "--compare", str(path / BEFORE)]) == 0
    return path


@pytest.fixture(scope="module")
def document(folder: Path) -> dict[str, Any]:
    made: dict[str, Any] = json.loads((folder / BEFORE).read_text())
    return made


@pytest.fixture(scope="module")
def root(folder: Path) -> ElementTree.Element:
    return read(folder / "out.html")


def read(path: Path) -> ElementTree.Element:
    return ElementTree.fromstring(path.read_text().split("\n", 1)[1])  # without the doctype


def styles(root: ElementTree.Element) -> str:
    return "".join(node.text or "" for kind in (HTML, SVG) for node in root.iter(f"{kind}style"))


def words(node: ElementTree.Element) -> str:
    return "".join(node.itertext())


def test_the_page_may_load_nothing_and_names_no_address(folder: Path, root: ElementTree.Element) -> None:
    metas = [node.attrib for node in root.iter(f"{HTML}meta")]
    (policy,) = (each["content"] for each in metas if each.get("http-equiv") == "Content-Security-Policy")
    assert policy == "default-src 'none'; style-src 'unsafe-inline'", "nothing but the styles it has itself"
    text = (folder / "out.html").read_text()
    assert {*re.findall(r"https?://[^\"' ]+", text)} == {"http://www.w3.org/1999/xhtml", "http://www.w3.org/2000/svg"}
    assert "url(" not in text and "@import" not in text


def test_what_a_user_wrote_is_shown_as_it_is(document: dict[str, Any]) -> None:
    odd = "<b>1</b> & 'more'"
    made = page(document | {"policy": document["policy"] | {"text": odd}, "command": odd})
    root = ElementTree.fromstring(made.split("\n", 1)[1])
    assert [words(node) for node in root.iter(f"{HTML}pre")] == [odd, odd]
    assert words(next(root.iter(f"{HTML}h1"))) == f"Replay: {NAME} on step"


def test_the_page_fits_a_phone_and_only_the_picture_scrolls(root: ElementTree.Element) -> None:
    metas = {node.attrib.get("name"): node.attrib.get("content", "") for node in root.iter(f"{HTML}meta")}
    assert "width=device-width" in metas["viewport"]
    (figure,) = root.iter(f"{HTML}figure")
    assert [node.tag for node in figure] == [f"{SVG}svg"]
    assert re.search(r"figure\{[^}]*overflow-x:auto", styles(root))
    # Narrower, letters of 12 units would be smaller than 10 pixels.
    least = re.search(r"figure svg\{[^}]*min-width:(\d+)px", styles(root))
    (svg,) = figure
    assert least is not None and 12 * int(least[1]) / float(svg.attrib["width"]) >= 10
    for table in root.iter(f"{HTML}table"):
        assert table.attrib.get("class") == "folded"  # its rows are lines under each other there
    assert ".folded tr{display:flex" in styles(root).split("max-width:640px", 1)[1]


def test_the_picture_says_what_it_shows(document: dict[str, Any], root: ElementTree.Element) -> None:
    (svg,) = root.iter(f"{SVG}svg")
    assert svg.attrib["role"] == "img"
    assert svg.attrib["aria-label"].startswith(f"{NAME} on step over time: ")
    for panel in panels(document):
        assert panel.title in svg.attrib["aria-label"]


def test_a_name_with_quotes_makes_a_picture_that_can_be_read(document: dict[str, Any]) -> None:
    assert ElementTree.fromstring(picture(document, NAME)).attrib["aria-label"].startswith(NAME)


def test_a_panel_has_its_legend_beside_its_title(document: dict[str, Any], root: ElementTree.Element) -> None:
    texts = {node.text: [words(part) for part in node] for node in root.iter(f"{SVG}text")}
    for panel in panels(document):
        (found,) = (legend for title, legend in texts.items() if title and title.startswith(panel.title))
        named = [curve.name for curve in panel.curves] if len(panel.curves) > 1 else []
        goal = [panel.goal[1]] if panel.goal else []
        assert [word for word in found if word.isascii()] == named + goal


def test_a_picture_has_only_letters_that_every_font_has(document: dict[str, Any]) -> None:
    for node in ElementTree.fromstring(picture(document, "one")).iter(f"{SVG}text"):
        words(node).encode("cp1252")  # a square of the legend was not drawn in a font without it


def test_every_colour_that_is_drawn_is_defined(root: ElementTree.Element) -> None:
    (svg,) = root.iter(f"{SVG}svg")
    drawn = {name for node in svg.iter() for name in node.attrib.get("class", "").split()}
    assert {"f-blue", "f-orange", "line", "mark"} <= drawn
    (style,) = (node.text or "" for node in svg.iter(f"{SVG}style"))
    light, _ = style.split("@media (prefers-color-scheme:dark)")  # which changes only what must differ
    assert drawn <= {*re.findall(r"\.([a-z-]+)\{", light)}


def test_every_decision_has_its_number_in_the_picture_however_close_they_are(document: dict[str, Any]) -> None:
    change = next(decision for decision in document["decisions"] if decision["changes_layout"])
    many = [change | {"at_s": at_s} for at_s in (65.0, 66.0, 67.0, 120.0, 190.0, 191.0)]
    root = ElementTree.fromstring(picture(document | {"decisions": many}, "many"))
    labels = [node.text for node in root.iter(f"{SVG}text") if node.attrib.get("class") == "f-purple"]
    assert labels == ["1–3", "4", "5–6"]


def test_the_table_has_the_moments_of_the_time_axis(document: dict[str, Any], root: ElementTree.Element) -> None:
    at_s = [decision["at_s"] for decision in document["decisions"] if decision["changes_layout"]]
    rows = [row for row in root.iter(f"{HTML}tr") if row.attrib.get("id", "").startswith("d")]
    assert [words(row[1]) for row in rows] == [f"{each // 60:.0f}:{round(each) % 60:02}" for each in at_s]
    assert "at, min:s" in [words(node) for node in root.iter(f"{HTML}th")]


def test_all_moments_of_a_table_have_the_same_unit() -> None:
    assert [clock(at_s, 3599.4) for at_s in (0.0, 65.0, 3599.4)] == ["0:00", "1:05", "59:59"]
    assert [clock(at_s, 3599.6) for at_s in (65.0, 3599.6)] == ["0:01:05", "1:00:00"]
    assert [clock_unit(end_s) for end_s in (3599.4, 3599.6)] == ["min:s", "h:min:s"]


def test_the_time_axis_has_a_unit(root: ElementTree.Element) -> None:
    assert "min:s" in [node.text for node in root.iter(f"{SVG}text")]


def test_a_figure_of_another_is_set_off_as_its_part(root: ElementTree.Element) -> None:
    parts = [words(node) for node in root.iter(f"{HTML}th") if node.attrib.get("class") == "sub"]
    assert parts == ["within TTFT", "within TPOT"]


def test_a_comparison_shows_both_sides_and_the_same_run_is_not_worse(folder: Path, document: dict[str, Any]) -> None:
    root = read(folder / "again.html")
    assert f"Against {folder / BEFORE}" in [words(node) for node in root.iter(f"{HTML}h2")]
    (verdict,) = (words(node) for node in root.iter(f"{HTML}p") if node.attrib.get("class") == "good")
    assert verdict == "not worse"
    rows = [[*map(words, row)] for row in root.iter(f"{HTML}tr")]
    share = f"{document['figures']['attainment']:.2%}"
    assert rows[0] == ["", "before", "now"]
    assert ["attainment", share, share] in rows


def test_who_does_not_say_the_layout_at_the_start_is_told_which_was_assumed(
    folder: Path, document: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert any("starts with 1P1D" in note and "--workers" in note for note in document["trace"]["notes"])
    arguments = ["--trace", "steady:duration_s=20", "--policy", str(folder / f"{NAME}.yaml")]
    assert command.main(arguments) == 0
    assert "starts with 1P1D" in capsys.readouterr().out
    assert command.main([*arguments, "--workers", "1P2D"]) == 0
    said = capsys.readouterr().out
    assert "begins with" not in said
    assert f"{NAME} on steady" in said


@pytest.mark.parametrize("given", ["step:high=8,images=3", "ramp", "mixshift:later_rate=20", "mixshift:images=3"])
def test_a_synthetic_load_is_said_with_all_its_parameters(given: str) -> None:
    said = described(named_shape(given))
    assert named_shape(said) == named_shape(given)
    assert said.startswith(f"{given.partition(':')[0]}:") and "length_cv=0.25" in said
    assert ("images" in said) == ("images" in given)


# --- on a terminal ---


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> pytest.CaptureFixture[str]:
    """Standard output is a terminal of 80 columns."""
    console = command._console
    monkeypatch.setattr(command, "_console", lambda terminal: console(terminal=not terminal))
    for name, value in (("COLUMNS", "80"), ("TERM", "dumb"), ("NO_COLOR", "1")):
        monkeypatch.setenv(name, value)
    return capsys


def test_a_terminal_folds_between_words_and_loses_none(
    folder: Path, document: dict[str, Any], narrow: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--trace", TRACE, "--policy", str(folder / f"{NAME}.yaml"), "--startup-seconds", "30"]
    assert command.main(arguments) == 0
    lines = narrow.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    heading = next(number for number, line in enumerate(lines) if line.startswith("decisions that changed"))
    assert all(re.match(r"  +\d+ s  →|   {10}", line) for line in lines[heading + 1 :]), "beside what and when"
    said = " ".join(" ".join(lines).split())
    for decision in document["decisions"]:
        if decision["changes_layout"]:
            assert f"{decision['reason']}: {decision['message']}" in said


def test_a_sweep_on_a_narrow_terminal_is_folded_not_cut(folder: Path, narrow: pytest.CaptureFixture[str]) -> None:
    arguments = ["--trace", "steady:duration_s=30", "--policy", str(folder / f"{NAME}.yaml")]
    assert command.main([*arguments, "--sweep", "budget.maxGpus=3,6", "--sweep", "startup-seconds=10"]) == 0
    said = narrow.readouterr().out
    assert "…" not in said
    assert {"budget.maxGpus", "startup-seconds", "attainment", "reversals", "ms"} <= {*said.split()}
    assert max(map(len, said.splitlines())) <= 120  # one fold of a terminal of 80
    long = ("actions.scaleIn.stabilizationSeconds", "actions.roleSwitch.maxInTransitionPercent", "startup-seconds")
    assert command.main([*arguments, *(part for key in long for part in ("--sweep", f"{key}=60"))]) == 0
    said = narrow.readouterr().out
    assert "…" not in said
    assert {*long, "attainment", "reversals"} <= {*said.split()}


# --- axes ---


@pytest.mark.parametrize(
    ("most", "whole", "ticks"),
    [
        (5, True, (0, 2, 4, 6)),
        (1, True, (0, 1)),
        (0, True, (0, 1)),
        (10, True, (0, 3, 6, 9, 12)),
        (9, False, (0, 2.5, 5, 7.5, 10)),
        (0.3, False, (0, 0.1, 0.2, 0.3)),
        (100, True, (0, 25, 50, 75, 100)),
    ],
)
def test_a_linear_axis_has_few_ticks_and_what_is_counted_no_fractions(
    most: float, whole: bool, ticks: tuple[float, ...]
) -> None:
    assert linear(most, whole=whole).ticks == pytest.approx(ticks)


def test_a_logarithmic_axis_has_the_powers_of_ten_around_the_values() -> None:
    axis = logarithmic(0.3, 498)
    assert axis.ticks == pytest.approx((0.1, 1, 10, 100, 1000))
    assert [axis.share(value) for value in (0, 0.1, 10, 1000, 5000)] == pytest.approx([0, 0, 0.5, 1, 1])
    assert logarithmic(1, 1).ticks == (1, 10)


def test_an_objective_far_below_the_worst_is_still_seen() -> None:
    curve = Curve("P95", "blue", [(0, 0.4), (1, 400.0)])
    panel = Panel("seconds", [curve], goal=(1.5, "objective"), wide=True)
    assert 0.2 < _axis(panel, [0.4, 400.0]).share(1.5) < 0.8
    assert not _axis(panel, [0.4, 3.0]).log


def test_moments_are_written_alike_along_an_axis() -> None:
    assert [tick_clock(at_s, 3000) for at_s in (0, 300, 2700)] == ["0:00", "5:00", "45:00"]
    assert [tick_clock(at_s, 7200) for at_s in (0, 600, 6600)] == ["0:00", "0:10", "1:50"]
    assert (tick_unit(3000), tick_unit(7200)) == ("min:s", "h:min")
    for end_s in (3, 59, 600, 3599, 7200, 86400, 30 * 86400):
        assert 2 <= len([*moments(end_s)]) <= 13


def test_where_nothing_is_above_zero_an_axis_goes_to_one() -> None:
    assert [number(value) for value in linear(0.0).ticks] == ["0", "0.25", "0.5", "0.75", "1"]
    assert linear(4e-13).share(2e-13) == pytest.approx(0.5)


@given(st.lists(st.floats(0, 868), max_size=150).map(sorted), st.floats(1, 12))
def test_no_two_labels_lie_upon_each_other_and_together_they_name_every_place(
    places: list[float], letter: float
) -> None:
    found = labels(places, letter)
    for (left, at), (right, then) in pairwise(found):
        assert at + letter * len(left) / 2 < then - letter * len(right) / 2
    named = [[int(end) for end in label.split("–")] for label, _ in found]
    assert [number for each in named for number in range(each[0], each[-1] + 1)] == [*range(1, len(places) + 1)]


def test_labels_are_joined_only_where_they_touch() -> None:
    assert labels([], 6.0) == []
    assert labels([0.0, 10.0, 30.0, 100.0], 6.0) == [("1–2", 5.0), ("3", 30.0), ("4", 100.0)]
    assert labels([0.0, 14.0, 20.0], 6.0) == [("1–3", 10.0)], "as wide as it is now, the second touches the first"
