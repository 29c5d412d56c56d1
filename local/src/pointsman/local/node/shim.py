"""Stands beside one run of a container and outlives the node. Standard library only, run as a file.

It starts the program, writes what it prints to a log in the kubelet's format, and, when it ends, ends everything it
left running and writes down how it ended. A node that was killed and started again reads the same files.

Request, one JSON object on stdin: ``argv``, ``env``, ``cwd``, ``directory`` (of this run), ``owner`` (``{pid,
start_ticks}`` or null: when that process ends, so does the container) and ``cpu_group`` (a control group's directory or
null: the program joins it, and it is removed when all is over). Answer, one JSON line on stdout: ``{"pid": n,
"unlimited": why it did not join, or null}`` or ``{"error": sentence}``. Files in ``directory``: ``shim.pid.json``,
``log`` (and ``log.1``), ``started.json``, ``exit.json``. Signals: SIGTERM is passed on to the program; SIGUSR1 kills it
and all it started.
"""

import contextlib
import ctypes
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any, Final

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_LINE_BYTES: Final = 16 * 1024  # longer lines are written in parts, as the kubelet's runtimes do
_LOG_BYTES: Final = 64 * 1024 * 1024
_READ_BYTES: Final = 64 * 1024
_KILL_PAUSE_S: Final = 0.005
_EMPTIES_S: Final = 2.0  # a control group does so when the last process is gone for good
_DRAIN_S: Final = 1.0  # for the last output of what was just killed


class Shim:
    """One run of one container."""

    def __init__(self, request: dict[str, Any]) -> None:
        self._request = request
        self._directory = Path(request["directory"])
        self._selector = selectors.DefaultSelector()
        self._log = (self._directory / "log").open("ab")
        self._partial = {"stdout": b"", "stderr": b""}
        self._open: set[str] = set()
        self._killed = False

    def run(self) -> None:
        """Start the program, stay until it and all it started are gone, write down how it ended."""
        _write(self._directory / "shim.pid.json", {**identity(os.getpid()), "kill_signal": int(signal.SIGUSR1)})
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1)  # what the program leaves behind becomes ours, and can be ended
        wakeup, signalled = os.pipe()
        os.set_blocking(signalled, False)
        signal.set_wakeup_fd(signalled)
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)  # they come through the pipe
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        process = self._start()
        if process is None:
            return
        self._selector.register(wakeup, selectors.EVENT_READ, lambda: self._on_signals(os.read(wakeup, 64), process))
        ended = os.pidfd_open(process.pid)
        self._selector.register(ended, selectors.EVENT_READ, lambda: None)
        self._watch_owner(process)
        while process.poll() is None:
            self._turn(None)
        self._selector.unregister(ended)
        finished_at = time.time()
        kill_descendants(None)
        deadline = time.monotonic() + _DRAIN_S
        while self._open and time.monotonic() < deadline:
            self._turn(deadline - time.monotonic())
        self._flush()
        record = {"returncode": process.returncode, "finished_at": finished_at}
        _write(self._directory / "exit.json", record)
        self._remove_group()

    def _remove_group(self) -> None:
        """Remove the control group, as soon as what the program had others start for it is gone, too."""
        group, deadline = self._request["cpu_group"], time.monotonic() + _EMPTIES_S
        while group is not None and time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                Path(group).rmdir()
                return
            time.sleep(_KILL_PAUSE_S)

    def _start(self) -> "subprocess.Popen[bytes] | None":
        pipes = {stream: os.pipe() for stream in self._partial}
        group, unlimited = self._request["cpu_group"], None
        try:
            try:
                process = self._popen(pipes, group)
            except subprocess.SubprocessError:  # of what runs between fork and exec: it may not join
                unlimited = f"{group}: it cannot be joined"
                process = self._popen(pipes, None)
        except OSError as error:
            self._refuse(f"cannot start {self._request['argv'][0]!r}: {error.strerror}")
            self._remove_group()
            return None
        started = {**identity(process.pid), "started_at": time.time()}
        _write(self._directory / "started.json", started)
        _answer({"pid": process.pid, "unlimited": unlimited})
        for stream, (reading, writing) in pipes.items():
            os.close(writing)
            self._open.add(stream)
            self._selector.register(reading, selectors.EVENT_READ, lambda s=stream, r=reading: self._read(s, r))
        return process

    def _popen(self, pipes: dict[str, tuple[int, int]], group: str | None) -> "subprocess.Popen[bytes]":
        shim = os.getpid()

        def tie() -> None:  # this process has one thread, so code between fork and exec is safe
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
                signal.signal(number, signal.SIG_DFL)
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != shim:
                os._exit(1)
            if group is not None:
                Path(group, "cgroup.procs").write_text(str(os.getpid()))

        return subprocess.Popen(
            self._request["argv"],
            env=self._request["env"],
            cwd=self._request["cwd"],
            stdin=subprocess.DEVNULL,
            stdout=pipes["stdout"][1],
            stderr=pipes["stderr"][1],
            preexec_fn=tie,
        )

    def _refuse(self, sentence: str) -> None:
        _write(self._directory / "exit.json", {"error": sentence, "finished_at": time.time()})
        _answer({"error": sentence})

    def _turn(self, timeout: float | None) -> None:
        for key, _ in self._selector.select(timeout):
            key.data()

    def _watch_owner(self, process: "subprocess.Popen[bytes]") -> None:
        owner = self._request["owner"]
        if owner is None:
            return
        try:
            descriptor = os.pidfd_open(owner["pid"])
        except ProcessLookupError:
            self._kill(process)
            return
        if identity(owner["pid"]) != owner:
            self._kill(process)  # another process has its number by now
            return

        def gone() -> None:
            self._selector.unregister(descriptor)
            self._kill(process)

        self._selector.register(descriptor, selectors.EVENT_READ, gone)

    def _on_signals(self, numbers: bytes, process: "subprocess.Popen[bytes]") -> None:
        for number in numbers:
            if number == signal.SIGTERM:
                process.send_signal(signal.SIGTERM)
            elif number == signal.SIGUSR1:
                self._kill(process)
            elif number == signal.SIGCHLD:
                _reap(process.pid)

    def _kill(self, process: "subprocess.Popen[bytes]") -> None:
        process.kill()
        kill_descendants(process.pid)

    # --- the log ---

    def _read(self, stream: str, descriptor: int) -> None:
        data = os.read(descriptor, _READ_BYTES)
        if not data:
            self._selector.unregister(descriptor)
            os.close(descriptor)
            self._open.discard(stream)
            return
        *lines, rest = (self._partial[stream] + data).split(b"\n")
        stamp = _stamp()
        entries = [_entry(stamp, stream, line) for line in lines]
        while len(rest) >= _LINE_BYTES:
            entries.append(_entry(stamp, stream, rest[:_LINE_BYTES], whole=False))
            rest = rest[_LINE_BYTES:]
        self._partial[stream] = rest
        self._append(b"".join(entries))

    def _flush(self) -> None:
        """Write what was printed without a newline at the end."""
        for stream, rest in self._partial.items():
            if rest:
                self._append(_entry(_stamp(), stream, rest, whole=False))
        self._log.close()

    def _append(self, data: bytes) -> None:
        self._log.write(data)
        self._log.flush()
        if self._log.tell() > _LOG_BYTES:
            self._log.close()
            path = self._directory / "log"
            path.replace(self._directory / "log.1")
            self._log = path.open("ab")


def _entry(stamp: bytes, stream: str, line: bytes, *, whole: bool = True) -> bytes:
    parts = [line[at : at + _LINE_BYTES] for at in range(0, len(line), _LINE_BYTES)] or [b""]
    tags = [b"P"] * (len(parts) - 1) + [b"F" if whole else b"P"]
    return b"".join(
        b"%s %s %s %s\n" % (stamp, stream.encode(), tag, part) for tag, part in zip(tags, parts, strict=True)
    )


def _stamp() -> bytes:
    now_ns = time.time_ns()
    seconds, rest_ns = divmod(now_ns, 1_000_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{rest_ns:09d}Z".encode()


def identity(pid: int) -> dict[str, int]:
    """A process for good: number and start time, as ``pointsman.local.processes.ProcessId`` has it; zeros if gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return {"pid": pid, "start_ticks": 0}
    return {"pid": pid, "start_ticks": int(stat[stat.rindex(")") + 2 :].split()[19])}


def kill_descendants(spare: int | None) -> None:
    """SIGKILL everything this process's tree holds but ``spare``, until nothing is left, and reap it."""
    while True:
        found = _descendants(os.getpid()) - {spare}
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _reap(spare)
        if not found:
            return
        time.sleep(_KILL_PAUSE_S)  # a killed process takes a moment to go, and hands its children to us only then


def _reap(spare: int | None) -> None:
    """Collect children that ended, but for ``spare``, whose exit code somebody else waits for."""
    for pid in _children(os.getpid()):
        if pid != spare:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0 if _zombie(pid) else os.WNOHANG)


def _descendants(root: int) -> set[int]:
    found: set[int] = set()
    fresh = {root}
    while fresh:
        fresh = {child for pid in fresh for child in _children(pid)} - found
        found |= fresh
    return found


def _children(pid: int) -> set[int]:
    children: set[int] = set()
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            children |= {int(word) for word in task.read_text().split()}
    return children


def _zombie(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat[stat.rindex(")") + 2] == "Z"


def _write(path: Path, record: dict[str, Any]) -> None:
    partial = path.with_name(f".{path.name}")
    partial.write_text(json.dumps(record))
    partial.replace(path)


def _answer(record: dict[str, Any]) -> None:
    out: IO[str] = sys.stdout
    with contextlib.suppress(BrokenPipeError):  # the node was killed meanwhile; it reads the files when it is back
        out.write(json.dumps(record) + "\n")
        out.flush()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def main() -> None:
    """Read the request, run."""
    request = json.loads(sys.stdin.buffer.read())
    Shim(request).run()


if __name__ == "__main__":
    main()
