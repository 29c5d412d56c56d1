"""What is costly to make is made by one process; the others wait for it."""

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

Report = Callable[[str], None]


@contextmanager
def only_one(lock: Path, busy: str, report: Report) -> Iterator[None]:
    """Hold this lock file; if another process holds it, say that it is ``busy`` and wait."""
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report(f"{busy}: waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
