"""Starts the cluster's own processes, remembers them on disk, and ends them."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

_DIE_WITH_PARENT: Final = Path(__file__).with_name("die_with_parent.py")
_POLL_S: Final = 0.02


@dataclass(frozen=True)
class ProcessId:
    """One process for good: its number, and the clock ticks since boot at which it started (numbers are used again)."""

    pid: int
    start_ticks: int
    kill_signal: int = field(default=signal.SIGKILL, compare=False)  # of one that has children to take along: its own

    @classmethod
    def of(cls, pid: int) -> "ProcessId | None":
        """The process that has this number now; None if none has, or it has ended (a zombie)."""
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return None
        fields = stat[stat.rindex(")") + 2 :].split()  # the name, in parentheses, may hold anything
        return None if fields[0] in "ZX" else cls(pid, int(fields[19]))

    @property
    def alive(self) -> bool:
        """Whether this very process still runs."""
        return ProcessId.of(self.pid) == self

    def signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.alive:
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                return  # it ended since the line above

    def end(self, grace_s: float) -> None:
        """SIGTERM, then SIGKILL after ``grace_s``; returns when it is gone (or a zombie)."""
        self.signal(signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        while self.alive and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        self.signal(signal.SIGKILL)
        while self.alive:
            time.sleep(_POLL_S)

    def as_json(self) -> dict[str, int]:
        """For a record on disk."""
        return {"pid": self.pid, "start_ticks": self.start_ticks}

    @classmethod
    def from_json(cls, record: Mapping[str, int]) -> "ProcessId":
        """Back from a record."""
        return cls(record["pid"], record["start_ticks"], record.get("kill_signal", signal.SIGKILL))


@cache
def _starter() -> ThreadPoolExecutor:
    """One thread that lives as long as this process: what it starts is killed when it ends, not before."""
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="starter")


class Part:
    """One process of the cluster.

    ``keep``: it outlives this process; otherwise the kernel ends it together with this one. Its identity is kept in
    ``record``, so that a later run can find and end what a killed one left behind.
    """

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        log: Path,
        record: Path,
        *,
        keep: bool,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.argv = list(argv)
        self.log = log
        self._record = record
        self._keep = keep
        self._env = dict(os.environ if env is None else env)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; its output is appended to ``log``. Does not wait until it is ready."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._record.parent.mkdir(parents=True, exist_ok=True)
        self._process = _starter().submit(self._spawn).result()
        identity = ProcessId.of(self._process.pid)
        if identity is not None:
            self._record.write_text(json.dumps(identity.as_json()))

    def _spawn(self) -> subprocess.Popen[bytes]:
        tied = [sys.executable, "-I", "-S", str(_DIE_WITH_PARENT), str(os.getpid())]
        argv = self.argv if self._keep else [*tied, *self.argv]
        with self.log.open("ab") as output:
            # A process group of its own: Ctrl-C at the terminal is for the owner, who then ends the parts in order.
            # Not a session of its own, here and wherever pods are started: Linux gives each session (autogroup) its
            # share of a core, and one that mostly sleeps, as a gateway does, then waits tenths of a second for its
            # turn beside two engines that compute (docs/use/local-cluster.md has the figures).
            return subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=self._env, process_group=0
            )

    @property
    def pid(self) -> int:
        """The number of the running process. Raises RuntimeError before ``start``."""
        if self._process is None:
            raise RuntimeError(f"{self.name} was not started")
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """How it ended, as subprocess has it; None while it runs or before it was started."""
        return None if self._process is None else self._process.poll()

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self, grace_s: float = 10.0) -> None:
        """SIGTERM, SIGKILL after ``grace_s``, and wait until it is gone."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self.kill()
        self._record.unlink(missing_ok=True)

    def last_words(self, lines: int = 15) -> str:
        """The end of its log."""
        if not self.log.exists():
            return ""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def recorded(directory: Path) -> list[ProcessId]:
    """The processes recorded under a directory that still run."""
    processes = []
    for record in sorted(directory.rglob("*.pid.json")):
        try:
            process = ProcessId.from_json(json.loads(record.read_text()))
        except (ValueError, KeyError, OSError):
            continue  # half written by a killed run: the process it names was not started by then
        if process.alive:
            processes.append(process)
    return processes
