"""Reports to the person at the terminal: stages with their results and times, and the live table below them."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

from rich.console import Console, RenderableType
from rich.live import Live

Picture = tuple[RenderableType, str]
"""What is shown now: for a terminal, and the same as one line for a log."""


class Narrator:
    """Prints stages to ``console``.

    With ``explain`` it also prints the commands, tables and decisions within a stage. The live picture is redrawn in
    place on a terminal. With ``explain`` it stays there, and without a terminal it becomes a plain line now and then.
    """

    def __init__(self, console: Console, *, stages: int, explain: bool = True, line_every_seconds: float = 5.0) -> None:
        self._console = console
        self._stages = stages
        self._explain = explain
        self._line_every_seconds = line_every_seconds
        self._number = 0
        self._result = ""
        self.stage_seconds: dict[str, float] = {}

    @asynccontextmanager
    async def stage(self, key: str, title: str) -> AsyncIterator[None]:
        """One numbered stage; its duration is kept under ``key`` and printed with its result when it went well."""
        self._number += 1
        self._result = ""
        self._console.print(f"[bold][{self._number}/{self._stages}][/bold] {title}", highlight=False, soft_wrap=True)
        started = time.monotonic()
        yield
        seconds = self.stage_seconds[key] = round(time.monotonic() - started, 2)
        done = f"{self._result} ({seconds:.1f} s)" if self._result else f"done in {seconds:.1f} s"
        self._console.print(
            f"      {done}", style="" if self._result else "dim", highlight=False, markup=False, soft_wrap=True
        )

    def result(self, text: str) -> None:
        """What the stage came to: printed with its duration at its end."""
        self._result = text

    def say(self, text: str) -> None:
        """One line within a stage."""
        self._console.print(f"      {text}", highlight=False, soft_wrap=True, markup=False)

    def explain(self, text: str) -> None:
        """One line within a stage, for those who asked to have it explained."""
        if self._explain:
            self.say(text)

    def show(self, what: RenderableType) -> None:
        """A table or text of its own, for those who asked to have it explained."""
        if self._explain:
            self._console.print(what, highlight=False)

    @asynccontextmanager
    async def live(self, picture: Callable[[], Picture], *, refresh_seconds: float = 0.5) -> AsyncIterator[None]:
        """Show ``picture()`` while the block runs: redrawn in place on a terminal, else as a line every few seconds."""
        if self._console.is_terminal:
            with Live(console=self._console, auto_refresh=False, transient=True) as live:

                async def draw() -> None:
                    while True:
                        live.update(picture()[0], refresh=True)
                        await asyncio.sleep(refresh_seconds)

                async with _beside(draw):
                    yield
                live.update(picture()[0], refresh=True)
            self.show(picture()[0])
            return

        async def log() -> None:
            while True:
                await asyncio.sleep(self._line_every_seconds)
                self.explain(picture()[1])

        async with _beside(log):
            yield
        self.explain(picture()[1])


@asynccontextmanager
async def _beside(work: Callable[[], Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    task = asyncio.create_task(work())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
