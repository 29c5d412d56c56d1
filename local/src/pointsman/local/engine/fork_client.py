"""Starts processes through the fork server. Standard library only.

As a library: ``start(socket_path, argv, …)`` returns a ``ForkedProcess``. As a program it stands for the process it
starts, so that whoever runs commands can run this one in its place::

    python -m pointsman.local.engine.fork_client --socket /run/fork.sock -- python -m pointsman.workers.vllm …

It waits for a server that is still importing, hands over its own environment, working folder and standard streams,
passes SIGTERM, SIGINT and SIGHUP on, and ends as the process ended: with the same exit code, or by the same signal.
Killed itself, it takes the process along.

The protocol is one connection per process on a Unix stream socket, JSON lines. The request carries ``argv``, ``env``,
``cwd``, and the descriptors of stdin, stdout and stderr as ancillary data. Answers: ``{"pid": n}`` or
``{"error": sentence}``, later ``{"returncode": n}`` as subprocess has it (negative: the signal). ``{"signal": n}`` is
sent to the process. The server kills the process and all it started when the connection closes.
"""

import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

PATIENCE_S: Final = 120.0  # a server's imports take 8 s, or a minute on a busy computer with cold disks


class ForkServerFailed(Exception):
    """The fork server cannot start the process, or is gone."""


class ForkedProcess:
    """A process started by the fork server; lives no longer than this object's connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._received = b""
        self.returncode: int | None = None
        self.pid: int = int(self._receive("pid"))

    def fileno(self) -> int:
        """Readable when the process has ended: for select, or a loop's add_reader."""
        return self._connection.fileno()

    def poll(self) -> int | None:
        """The exit code (negative: the signal that ended it), None while the process runs."""
        return self.wait(0)

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait at most ``timeout`` seconds for the end (None: forever); the exit code, or None if it still runs."""
        if self.returncode is None and select.select([self._connection], [], [], timeout)[0]:
            self.returncode = int(self._receive("returncode"))
            self._connection.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal to the process; nothing happens if it has ended."""
        if self.returncode is None:
            try:
                self._connection.sendall(json.dumps({"signal": int(number)}).encode() + b"\n")
            except (BrokenPipeError, ConnectionResetError):
                return  # it ended; its exit code is waiting to be read

    def terminate(self) -> None:
        """Ask the process to end (SIGTERM)."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the process and all it started, at once."""
        self.send_signal(signal.SIGKILL)

    def _receive(self, key: str) -> int:
        while b"\n" not in self._received:
            received = self._connection.recv(4096)
            if not received:
                raise ForkServerFailed("the fork server has ended")
            self._received += received
        line, self._received = self._received.split(b"\n", 1)
        answer = json.loads(line)
        if "error" in answer:
            raise ForkServerFailed(answer["error"])
        return int(answer[key])


def start(
    socket_path: Path,
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: Path,
    stdin: int = 0,
    stdout: int = 1,
    stderr: int = 2,
) -> ForkedProcess:
    """Start ``argv`` (``[python, "-m", module, …]`` or ``[python, script, …]``) with exactly ``env``.

    Raises ForkServerFailed when the server refuses, OSError when there is none at ``socket_path``.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(str(socket_path))
        request = json.dumps({"argv": list(argv), "env": dict(env), "cwd": str(cwd)}).encode() + b"\n"
        sent = socket.send_fds(connection, [request], [stdin, stdout, stderr])
        connection.sendall(request[sent:])
        return ForkedProcess(connection)
    except BaseException:
        connection.close()
        raise


def _start_patiently(socket_path: Path, argv: Sequence[str], interrupts: Iterable[signal.Signals]) -> ForkedProcess:
    """``start``, but waits for a server that does not listen yet; ``interrupts`` are blocked signals that end that."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return start(socket_path, argv, os.environ, Path.cwd())
        except (FileNotFoundError, ConnectionRefusedError) as error:
            if time.monotonic() > deadline_s:
                raise ForkServerFailed(f"the fork server did not start listening within {PATIENCE_S:.0f} s") from error
        interrupted = signal.sigtimedwait(set(interrupts), 0.1)
        if interrupted is not None:
            raise SystemExit(128 + interrupted.si_signo)


def main(argv: Sequence[str]) -> int:
    """Stand for a process: start it, pass signals on, end as it ended."""
    if len(argv) < 4 or argv[0] != "--socket" or argv[2] != "--":
        print("usage: fork_client --socket PATH -- PYTHON -m MODULE ARGUMENTS…", file=sys.stderr)
        return 2
    passed = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    signal.pthread_sigmask(signal.SIG_BLOCK, passed)  # none is lost before there is a process to pass it to
    try:
        process = _start_patiently(Path(argv[1]), argv[3:], passed)
    except (ForkServerFailed, OSError) as error:
        print(f"fork_client: cannot start '{' '.join(argv[3:6])} …' through {argv[1]}: {error}", file=sys.stderr)
        return 125
    for number in passed:
        signal.signal(number, lambda number, _frame: process.send_signal(number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, passed)
    try:
        returncode = process.wait()
    except ForkServerFailed as error:
        print(f"fork_client: {error}, and with it process {process.pid}", file=sys.stderr)
        return 125
    assert returncode is not None
    if returncode < 0:
        signal.signal(-returncode, signal.SIG_DFL) if -returncode not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -returncode)
    return returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
