"""The narrator tells stages and shows the picture as lines where there is no terminal."""

import asyncio
import io
import re

import pytest
from rich.console import Console
from rich.text import Text

from pointsman.local.quickstart.narrator import Narrator, Picture


def narrator(text: io.StringIO, *, line_every_seconds: float = 60.0) -> Narrator:
    return Narrator(Console(file=text, width=100), stages=2, line_every_seconds=line_every_seconds)


async def test_stages_are_numbered_timed_and_remembered() -> None:
    text = io.StringIO()
    telling = narrator(text)
    async with telling.stage("one", "The first"):
        telling.say("within [it]")
    async with telling.stage("two", "The second"):
        pass
    told = text.getvalue()
    assert "[1/2] The first" in told
    assert "[2/2] The second" in told
    assert "within [it]" in told, "brackets are text, not markup"
    assert told.count("done in") == 2
    assert set(telling.stage_seconds) == {"one", "two"}


async def test_a_stage_that_fails_is_not_called_done() -> None:
    text = io.StringIO()
    telling = narrator(text)
    with pytest.raises(RuntimeError, match="no"):
        async with telling.stage("one", "The first"):
            raise RuntimeError("no")
    assert "done" not in text.getvalue()
    assert telling.stage_seconds == {}


async def test_without_a_terminal_the_picture_is_a_line_now_and_then_and_once_at_the_end() -> None:
    text = io.StringIO()
    looked = asyncio.Event()
    looks = 0

    def picture() -> Picture:
        nonlocal looks
        looks += 1
        looked.set()
        return Text("a table"), f"line {looks}"

    async with narrator(text, line_every_seconds=0.01).live(picture), asyncio.timeout(120):
        await looked.wait()
    told = text.getvalue()
    assert "line 1" in told
    assert f"line {looks}" in told
    assert "a table" not in told


async def test_what_fails_within_a_live_picture_comes_out_and_nothing_goes_on_drawing() -> None:
    text = io.StringIO()
    with pytest.raises(RuntimeError, match="no"):
        async with narrator(text).live(lambda: (Text("a"), "b")):
            raise RuntimeError("no")
    assert len(asyncio.all_tasks()) == 1


async def test_a_stage_ends_with_its_result_and_commands_are_for_those_who_ask() -> None:
    text = io.StringIO()
    telling = Narrator(Console(file=text, width=100), stages=1, explain=False)
    async with telling.stage("one", "The first"), telling.live(lambda: (Text("a table"), "a line")):
        telling.explain("$ kubectl get pods")
        telling.show(Text("a table"))
        telling.result("3 of [3] answered")
    assert re.fullmatch(r"\[1/1\] The first\n {6}3 of \[3\] answered \(0\.\d s\)\n", text.getvalue())


async def test_a_result_is_of_its_stage_only() -> None:
    text = io.StringIO()
    telling = narrator(text)
    async with telling.stage("one", "The first"):
        telling.result("three")
    async with telling.stage("two", "The second"):
        telling.explain("$ kubectl get pods")
    assert text.getvalue().count("three") == 1
    assert "$ kubectl get pods" in text.getvalue()
