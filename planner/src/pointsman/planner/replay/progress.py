"""The bar of a command that takes its time."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn


@contextmanager
def bar(what: str, total: float) -> Iterator[Callable[[float], None]]:
    """A progress bar, where standard error is a terminal. What it gives is told how much of the total is done."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
    screen = Console(stderr=True)
    with Progress(*columns, TimeElapsedColumn(), console=screen, transient=True, disable=not screen.is_terminal) as it:
        task = it.add_task(escape(what), total=total)
        yield lambda done: it.update(task, completed=done)
