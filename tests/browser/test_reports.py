"""Reports of replays, seen as a reader sees them: in a browser, on a screen and on a phone, by day and by night."""

import asyncio
import re
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest

from browser.conftest import Report
from browser.looking import (
    FAINT,
    NAMES_OF_CURVES,
    NOT_FINITE,
    NOT_POINTED_AT,
    OUTSIDE_OF_PICTURE,
    PHONE,
    SIDEWAYS,
    SMALL_LETTERS,
    UPON_EACH_OTHER,
    WIDE,
    Opened,
    Opener,
    Scheme,
)
from pointsman.planner.replay.axes import clock
from pointsman.planner.replay.pictures import layout_changes, panels
from pointsman.planner.replay.table import figure_rows, layout

pytestmark = pytest.mark.asyncio(loop_scope="session")

DOCS: Final = Path(__file__).parents[2] / "docs"
KEPT: Final = [*sorted((DOCS / "reports" / "replays").glob("*.html"))]
PICTURES: Final = [*sorted(DOCS.rglob("*.svg"))]
MADE: Final = ("step", "not-worse", "worse", "images", "long", "calm")
PAGES: Final = (*MADE, *(f"docs/{path.name}" for path in KEPT))
SCROLLED_WITHIN_S: Final = 20.0
TALL: Final = 12_000  # higher than any page, for looks at what lies where
SCHEMES: Final[tuple[Scheme, ...]] = ("light", "dark")


@pytest.fixture
def path(request: pytest.FixtureRequest, reports: dict[str, Report]) -> Path:
    name = str(request.param)
    return DOCS / "reports" / "replays" / name.removeprefix("docs/") if name.startswith("docs/") else reports[name].page


every_page = pytest.mark.parametrize("path", PAGES, indirect=True)
every_picture = pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.stem)


async def test_there_are_pages_and_pictures_to_look_at() -> None:
    assert len(KEPT) >= 4 and len(PICTURES) >= 4


@every_page
@pytest.mark.parametrize("width", [WIDE, PHONE])
async def test_a_page_loads_nothing_and_can_be_read_at_this_width(opener: Opener, path: Path, width: int) -> None:
    async with opener(path, width=width) as opened:
        for _ in range(2):
            assert await opened.look(SIDEWAYS) == []
            assert await opened.look(SMALL_LETTERS) == []
            await opened.open_details()
        assert opened.asked_for == [path.as_uri()]
        assert opened.said == [], "the browser complains of nothing"


@every_page
async def test_all_that_a_picture_draws_is_seen_and_no_text_covers_another(opener: Opener, path: Path) -> None:
    async with opener(path) as opened:
        assert await opened.page.locator("svg").count() == 1
        for look in (NOT_FINITE, OUTSIDE_OF_PICTURE, UPON_EACH_OTHER):
            assert await opened.look(look) == []


@every_page
async def test_every_text_stands_out_from_what_is_behind_it_by_day_and_by_night(opener: Opener, path: Path) -> None:
    async with opener(path, height=TALL) as opened:
        await opened.open_details()
        for scheme in SCHEMES:
            await opened.page.emulate_media(color_scheme=scheme)
            assert await opened.look(FAINT) == []
            red = await opened.page.evaluate("parseInt(getComputedStyle(document.body).backgroundColor.slice(4))")
            assert (red > 127) == (scheme == "light")
        assert opened.said == []


@pytest.mark.parametrize("name", ["step", "images"])
async def test_every_curve_tells_its_name_to_who_points_at_it(
    opener: Opener, reports: dict[str, Report], name: str
) -> None:
    report = reports[name]
    curves = [curve for panel in panels(report.document) for curve in panel.curves]
    nothing = {curve.name for curve in curves if not any(value for _, value in curve.points)}
    async with opener(report.page, height=TALL) as opened:
        assert {*await opened.look(NAMES_OF_CURVES)} == {curve.name for curve in curves}
        assert {*await opened.look(NOT_POINTED_AT)} <= nothing, "what was never above 0 has no area"


# --- by keyboard ---


async def test_the_keyboard_reaches_picture_and_decisions_in_their_order_and_the_focus_is_seen(
    opener: Opener, reports: dict[str, Report]
) -> None:
    report = reports["step"]
    async with opener(report.page) as opened:
        page, reached = opened.page, []
        for _ in range(1 + len(layout_changes(report.document))):
            await page.keyboard.press("Tab")
            reached.append(
                await page.evaluate(
                    "() => { const at = document.activeElement, style = getComputedStyle(at);"
                    " return [at.tagName.toLowerCase(), style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 1] }"  # noqa: E501
                )
            )
        assert reached == [["figure", True], *[["summary", True]] * (len(reached) - 1)]


async def test_on_a_phone_the_picture_scrolls_by_keyboard(opener: Opener, reports: dict[str, Report]) -> None:
    async with opener(reports["step"].page, width=PHONE) as opened:
        figure = opened.page.locator("figure")
        await figure.focus()
        # The page's own policy forbids what waits for a condition by asking again and again: an event is awaited.
        await figure.evaluate(
            "f => { scrolled = new Promise(done => f.addEventListener('scroll', done, {once: true})) }"
        )
        await opened.page.keyboard.press("ArrowRight")
        async with asyncio.timeout(SCROLLED_WITHIN_S):
            await opened.page.evaluate("scrolled.then(() => true)")
        assert await figure.evaluate("f => f.scrollLeft") > 0
        assert await opened.page.evaluate("scrollX") == 0


@pytest.mark.parametrize("by", ["click", "Enter"])
async def test_a_decision_opens_and_closes(opener: Opener, reports: dict[str, Report], by: str) -> None:
    async with opener(reports["step"].page) as opened:
        row = opened.page.locator("#d1")
        summary, more = row.locator("summary"), row.locator("ul.short")
        assert not await more.is_visible()
        for state in ("visible", "hidden"):
            await (summary.click() if by == "click" else summary.press("Enter"))
            await more.wait_for(state="visible" if state == "visible" else "hidden")


async def test_an_address_may_name_a_decision(opener: Opener, reports: dict[str, Report]) -> None:
    async with opener(reports["long"].page, anchor="#d3", height=300) as opened:
        row = opened.page.locator("tr:target")
        assert await row.get_attribute("id") == "d3"
        box = await row.bounding_box()
        assert box is not None and -1 <= box["y"] < 300


# --- the page says what the document says ---


async def _cells(opened: Opened, rows: str) -> list[list[str]]:
    found: list[list[str]] = await opened.page.evaluate(
        "rows => [...document.querySelectorAll(rows)].map(row => [...row.cells].map(cell => cell.innerText.trim()))",
        rows,
    )
    return found


@pytest.mark.parametrize("name", MADE)
async def test_the_decisions_of_the_page_are_those_of_the_json(
    opener: Opener, reports: dict[str, Report], name: str
) -> None:
    report = reports[name]
    changes = layout_changes(report.document)
    assert len(changes) >= {"step": 2, "images": 1, "long": 6}.get(name, 0)
    async with opener(report.page) as opened:
        rows = await _cells(opened, "tr[id]")
        wanted = [
            [f"{number}", clock(each["at_s"], changes[-1]["at_s"]), layout(each), each["reason"], each["message"]]
            for number, each in enumerate(changes, start=1)
        ]
        assert [[*row[:4], " ".join(row[4].split())] for row in rows] == wanted
        await opened.open_details()
        lists: list[list[list[str]]] = await opened.page.evaluate(
            "[...document.querySelectorAll('tr[id]')].map(row => [...row.querySelectorAll('ul')]"
            ".map(list => [...list.children].map(each => each.innerText.trim())))"
        )
        for shown, each in zip(lists, changes, strict=True):
            said = dict(line.split(": ") for line in shown[0])
            assert said.keys() == each["inputs"].keys()
            for key, value in said.items():
                assert float(value) == pytest.approx(each["inputs"][key], rel=1e-5, abs=1e-9)
            assert len(shown[1:]) == bool(each["alternatives"])
            for line, other in zip(shown[1] if shown[1:] else [], each["alternatives"], strict=True):
                assert line.startswith(
                    f"{other['prefill']}P{other['decode']}D ({other['action']}, {other['gpus']} GPUs)"
                )
                assert f" {100 * other['expected_attainment']:.1f}% expected" in line
                assert line.endswith(other["rejected_because"] or "s")


@pytest.mark.parametrize("name", MADE)
async def test_the_figures_of_the_page_are_those_of_the_json(
    opener: Opener, reports: dict[str, Report], name: str
) -> None:
    report = reports[name]
    figures = report.document["figures"]
    async with opener(report.page) as opened:
        rows = {row[0]: row[1:] for row in await _cells(opened, "table.folded tr:not([id])") if len(row) == 3}
    assert rows == {name.strip(): [value, note] for name, value, note in figure_rows(report.document)}
    assert rows["requests"][0] == str(figures["requests"])
    assert float(rows["attainment"][0].rstrip("%")) == pytest.approx(100 * figures["attainment"], abs=0.005)
    assert float(rows["GPU-hours"][0]) == pytest.approx(figures["gpu_hours"], abs=0.005)


@pytest.mark.parametrize("name", MADE)
async def test_the_marks_stand_at_the_moments_of_their_decisions(
    opener: Opener, reports: dict[str, Report], name: str
) -> None:
    report = reports[name]
    drawn = panels(report.document)
    at_s = [each["at_s"] for each in layout_changes(report.document)]
    async with opener(report.page) as opened:
        ticks: list[tuple[str, float]] = await opened.page.evaluate(
            r"[...document.querySelectorAll('svg text')].filter(each => /^\d+:\d\d$/.test(each.textContent))"
            ".map(each => { const box = each.getBBox(); return [each.textContent, box.x + box.width / 2] })"
        )
        marks: list[float] = await opened.page.evaluate(
            "[...document.querySelectorAll('svg line.mark')].map(each => each.getBBox().x)"
        )
        labels = await opened.page.locator("svg text.f-purple").all_text_contents()
    unit_s = 1 if report.document["timeline"][-1]["at_s"] < 3600 else 60
    places = [((int(text.split(":")[0]) * 60 + int(text.split(":")[1])) * unit_s, x) for text, x in ticks]
    (first_s, first), *_, (last_s, last) = places
    assert all(a < b for (_, a), (_, b) in pairwise(places))
    wanted = [first + (last - first) * (each - first_s) / (last_s - first_s) for each in at_s]
    assert marks == pytest.approx(wanted * len(drawn), abs=0.5)
    named = [[int(end) for end in label.split("–")] for label in labels]
    stacked = sum(panel.stacked for panel in drawn)
    assert [number for each in named for number in range(each[0], each[-1] + 1)] == [*range(1, len(at_s) + 1)] * stacked


@pytest.mark.parametrize("name", ["not-worse", "worse"])
async def test_a_comparison_begins_with_both_sides_and_the_verdict(
    opener: Opener, reports: dict[str, Report], name: str
) -> None:
    report = reports[name]
    assert report.before is not None
    sides = [report.before["figures"], report.document["figures"]]
    async with opener(report.page) as opened:
        headings = await opened.page.locator("h2").all_inner_texts()
        assert headings[0].startswith("Against ") and headings[1] == "Result"
        verdict = opened.page.locator("p.bad, p.good")
        assert await verdict.inner_text() == name.replace("-", " ")
        assert await verdict.get_attribute("class") == ("bad" if name == "worse" else "good")
        rows = {row[0]: row[1:] for row in await _cells(opened, "table:not(.folded) tr")}
    assert rows[""] == ["before", "now"]
    assert rows["attainment"] == [f"{100 * each['attainment']:.2f}%" for each in sides]
    assert rows["GPU-hours"] == [f"{each['gpu_hours']:.2f}" for each in sides]
    assert (sides[0] == sides[1]) == (name == "not-worse")


# --- pictures alone ---


@every_picture
async def test_a_picture_alone_can_be_read_by_day_and_by_night(opener: Opener, picture: Path) -> None:
    async with opener(picture, height=TALL) as opened:
        for look in (NOT_FINITE, OUTSIDE_OF_PICTURE, UPON_EACH_OTHER, SMALL_LETTERS):
            assert await opened.look(look) == []
        for scheme in SCHEMES:
            await opened.page.emulate_media(color_scheme=scheme)
            assert await opened.look(FAINT) == []
        assert opened.asked_for == [picture.as_uri()]
        assert opened.said == []


# --- the looks find what they are for ---

BREAKS: Final[dict[str, tuple[str, str, str]]] = {
    "a number that is none": (NOT_FINITE, r'<line class="grid" x1="[\d.]+"', '<line class="grid" x1="nan"'),
    "a text above the picture": (OUTSIDE_OF_PICTURE, r'y="\d+" font-weight="600"', 'y="-8" font-weight="600"'),
    "a wide table": (SIDEWAYS, r"<h2>Policy", '<p style="width:2000px">wide</p><h2>Policy'),
    "a word that cannot be folded": (SIDEWAYS, r"<h2>Policy", f"<h2 style='white-space:nowrap'>{'long ' * 90}"),
    "a picture that shrinks": (SMALL_LETTERS, r"min-width:800px", "min-width:0"),
    "labels without room": (UPON_EACH_OTHER, r'font-size="12"', 'font-size="40"'),
    "pale text": (FAINT, r"--dim:#57606a", "--dim:#9a9fa5"),
    "pale letters in the picture": (FAINT, r"\.dim\{fill:#57606a\}", ".dim{fill:#9a9fa5}"),
    "a curve behind the background": (NOT_POINTED_AT, r"</svg>", '<rect class="bg" width="960" height="9999"/></svg>'),
}


@pytest.mark.parametrize("what", BREAKS)
async def test_a_look_finds_what_it_is_for(
    opener: Opener, reports: dict[str, Report], tmp_path: Path, what: str
) -> None:
    look, there, instead = BREAKS[what]
    broken = tmp_path / "broken.html"
    text, count = re.subn(there, instead, reports["step"].page.read_text())
    assert count
    broken.write_text(text)
    narrow = look is SMALL_LETTERS
    async with opener(broken, width=PHONE if narrow else WIDE, height=TALL) as opened:
        assert await opened.look(look)


@pytest.mark.parametrize(
    ("what", "allowed"),
    [
        ('<img src="https://pointsman.invalid/one.png" alt=""/>', False),
        ('<link rel="stylesheet" href="one.css"/>', False),
        ("<script>var one = 1</script>", False),
        ("<p>one</p>", True),
    ],
)
async def test_what_would_be_loaded_is_refused_and_said(
    opener: Opener, reports: dict[str, Report], tmp_path: Path, what: str, allowed: bool
) -> None:
    broken = tmp_path / "broken.html"
    broken.write_text(reports["step"].page.read_text().replace("<h2>Policy", f"{what}<h2>Policy"))
    async with opener(broken) as opened:
        assert (opened.said == []) == allowed


async def test_without_its_policy_a_page_is_seen_to_ask(
    opener: Opener, reports: dict[str, Report], tmp_path: Path
) -> None:
    broken = tmp_path / "broken.html"
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", reports["step"].page.read_text())
    broken.write_text(text.replace("<h2>Policy", '<img src="one.png" alt=""/><h2>Policy'))
    async with opener(broken) as opened:
        assert opened.asked_for == [broken.as_uri(), (tmp_path / "one.png").as_uri()]
