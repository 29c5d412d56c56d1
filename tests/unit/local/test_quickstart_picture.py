"""The recorded run that the README shows: it is one of this quick start, and picture and text are both made of it."""

import re
import sys
from xml.etree import ElementTree

import pytest

from pointsman.local.quickstart.picture import (
    PICTURE,
    README,
    SPEED,
    Line,
    NotRecorded,
    in_readme,
    picture,
    read,
    record,
    report,
)
from pointsman.local.quickstart.report import MAX_LINES, MAX_WIDTH
from pointsman.local.quickstart.stages import TITLES

PRINTS = (
    "print('[1/1] One & all'); print(); print('Report'); print('  Result  fine'); print(); print('What to type next')"
)


def test_the_recorded_run_has_the_stages_of_the_quick_start_with_a_line_of_result_each() -> None:
    texts = [line.text for line in read()]
    stages = texts[1 : 1 + 2 * len(TITLES)]
    assert stages[::2] == [f"[{number}/{len(TITLES)}] {title}" for number, title in enumerate(TITLES.values(), 1)]
    assert [text for text in stages[1::2] if not re.fullmatch(r" {6}\S.* \(\d+\.\d s\)", text)] == []
    assert texts[1 + 2 * len(TITLES) :][:2] == ["", "Report"]
    assert [text for text in texts if len(text) > MAX_WIDTH] == []


def test_the_recorded_report_has_the_labels_of_the_present_one() -> None:
    found = report(read())
    assert len(found) < MAX_LINES
    labels = [line[2:16].strip() for line in found if line[2:16].strip()]
    assert labels == [
        "Result", "Answers", "Requests", "Prompts", "Scaling", "Pauses", "Long prompts", "Planner", "First answer",
        "Whole run", "Memory", "All figures",
    ]  # fmt: skip


def test_picture_and_readme_are_made_of_the_recorded_run() -> None:
    assert PICTURE.read_text() == picture(read())
    readme = README.read_text()
    assert readme == in_readme(readme, read())
    assert f"]({PICTURE.relative_to(README.parent)})" in readme
    assert f"{SPEED} times as fast" in readme


def test_a_recording_ends_with_the_report_and_is_drawn_as_it_was_printed() -> None:
    lines = record([sys.executable, "-c", PRINTS])
    assert [line.text for line in lines] == ["$ make quickstart", "[1/1] One & all", "", "Report", "  Result  fine"]
    assert [line.at_s for line in lines] == sorted(line.at_s for line in lines)
    drawn = ElementTree.fromstring(picture(lines))
    assert [text.text for text in drawn if text.tag.endswith("text")] == [line.text for line in lines if line.text]


def test_a_line_appears_when_it_was_printed_so_many_times_as_fast() -> None:
    drawn = picture([Line(0.0, "a"), Line(10.0 * SPEED, "b")])
    assert "animation-delay:10.00s" in drawn


def test_a_run_that_fails_is_not_recorded() -> None:
    with pytest.raises(NotRecorded, match="ended with 3"):
        record([sys.executable, "-c", "raise SystemExit(3)"])
