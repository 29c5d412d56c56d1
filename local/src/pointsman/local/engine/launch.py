"""Starts the fork server and owns it."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector

from pointsman.local.engine.environment import EngineEnvironment
from pointsman.local.errors import EngineEnvironmentError


@contextmanager
def fork_server(environment: EngineEnvironment, socket_path: Path, log: Path) -> Iterator[subprocess.Popen[str]]:
    """A fork server listening on ``socket_path``, in a folder that exists; it and all it started end with the context.

    Entering does not wait for the imports (6 s and more): see ``wait_until_ready``. The server also ends when this
    process dies, for it reads the other end of ``stdin``. Its messages go to ``log``.
    """
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [str(environment.python), "-m", "pointsman.local.engine.fork_server", "--socket", str(socket_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=environment.variables() | {"OMP_NUM_THREADS": "1"},
            text=True,
        )
    try:
        yield process
    finally:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.close()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def wait_until_ready(process: subprocess.Popen[str], timeout_s: float = 180.0) -> str:
    """The line with which the fork server says that it listens; raises EngineEnvironmentError if it does not."""
    assert process.stdout is not None
    deadline = time.monotonic() + timeout_s
    with DefaultSelector() as selector:
        selector.register(process.stdout, EVENT_READ)
        if not selector.select(deadline - time.monotonic()):
            raise EngineEnvironmentError(f"the fork server did not get ready within {timeout_s:.0f} s")
    line = process.stdout.readline().strip()
    if not line:
        raise EngineEnvironmentError(f"the fork server ended with {process.wait()} before it was ready; see its log")
    return line


def prefix_of(environment: EngineEnvironment, socket_path: Path) -> list[str]:
    """What stands before a command, ``python -m …``, to have it run through the fork server at ``socket_path``.

    It needs ``environment.own_variables`` in its environment, and so does the process it starts.
    """
    module = "pointsman.local.engine.fork_client"
    return [str(environment.python), "-m", module, "--socket", str(socket_path), "--"]
