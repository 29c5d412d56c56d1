"""One run of a container, seen from the node: started through a shim, watched, stopped, found again after a restart."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from pointsman.local.errors import NodeFailed
from pointsman.local.node.container_log import last_lines
from pointsman.local.node.core.types import Finished
from pointsman.local.processes import ProcessId

_SHIM: Final = Path(__file__).with_name("shim.py")
LAST_WORDS_BYTES: Final = 2048


class CannotStart(NodeFailed):
    """The program cannot be started; the message is the operating system's reason."""


@dataclass(frozen=True)
class Command:
    """What to run, resolved: nothing in it refers to anything any more. ``cpu_group``: the control group it joins."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: Path
    cpu_group: Path | None = None


class ContainerRun:
    """A run that was started. ``ended`` is set when it is over; ``unlimited``: why it is not in its control group."""

    def __init__(self, directory: Path, attempt: int, shim: ProcessId | None, started_at: datetime, container_id: str):
        """For ``start`` and ``find``."""
        self.directory = directory
        self.attempt = attempt
        self.started_at = started_at
        self.container_id = container_id
        self.ended = asyncio.Event()
        self.unlimited: str | None = None
        self._shim = shim
        self._descriptor: int | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._watch()

    @classmethod
    async def start(cls, directory: Path, attempt: int, command: Command, owner: ProcessId | None) -> "ContainerRun":
        """Start the program; ``directory`` is made for this run. Raises CannotStart."""
        directory.mkdir(parents=True, mode=0o700)
        request = {
            "argv": list(command.argv),
            "env": dict(command.env),
            "cwd": str(command.cwd),
            "directory": str(directory),
            "owner": owner.as_json() if owner else None,
            "cpu_group": str(command.cpu_group) if command.cpu_group else None,
        }
        shim, answer = await asyncio.to_thread(_spawn, directory / "shim.log", json.dumps(request).encode())
        if "error" in answer:
            raise CannotStart(answer["error"])
        run = cls(directory, attempt, ProcessId.of(shim.pid), *_started(directory))
        run._child = shim
        run.unlimited = answer.get("unlimited")
        return run

    @classmethod
    def find(cls, directory: Path, attempt: int) -> "ContainerRun | None":
        """The run an earlier node started there, over or not; None if it never came to start."""
        if not (directory / "started.json").exists():
            return None
        shim = ProcessId.from_json(_read(directory / "shim.pid.json"))
        return cls(directory, attempt, shim if shim.alive else None, *_started(directory))

    @property
    def log(self) -> Path:
        """What it printed, in the kubelet's format."""
        return self.directory / "log"

    def terminate(self) -> None:
        """SIGTERM to the program."""
        if self._shim is not None:
            self._shim.signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL to the program and all it started."""
        if self._shim is not None:
            self._shim.signal(signal.SIGUSR1)

    def finished(self) -> Finished:
        """How it ended; only after ``ended``."""
        path = self.directory / "exit.json"
        if not path.exists():
            return Finished(
                137,
                "ContainerStatusUnknown",
                "the supervisor of the container was killed, so the end of the container is unknown",
                self.started_at,
                datetime.now(UTC),
                self.container_id,
            )
        record = _read(path)
        code = int(record["returncode"])
        exit_code = code if code >= 0 else 128 - code
        message = last_lines(self.log, LAST_WORDS_BYTES) if exit_code else ""
        finished_at = datetime.fromtimestamp(record["finished_at"], UTC)
        reason = "Error" if exit_code else "Completed"
        return Finished(exit_code, reason, message, self.started_at, finished_at, self.container_id)

    def _watch(self) -> None:
        try:
            self._descriptor = os.pidfd_open(self._shim.pid) if self._shim is not None and self._shim.alive else None
        except ProcessLookupError:
            self._descriptor = None
        if self._descriptor is None:
            self.ended.set()
        else:
            asyncio.get_running_loop().add_reader(self._descriptor, self._on_end)

    def _on_end(self) -> None:
        if self._descriptor is not None:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None
        if self._child is not None:
            self._child.wait()
        self.ended.set()


def _spawn(log: Path, request: bytes) -> tuple["subprocess.Popen[bytes]", dict[str, Any]]:
    """Start a shim and wait for its answer."""
    with log.open("wb") as errors:
        shim = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_SHIM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            process_group=0,
        )
    if shim.stdin is None or shim.stdout is None:
        raise NodeFailed("the shim was started without pipes")
    with shim.stdin, shim.stdout:
        with contextlib.suppress(BrokenPipeError):
            shim.stdin.write(request)
            shim.stdin.close()
        line = shim.stdout.readline()
    answer: dict[str, Any] = json.loads(line) if line else {"error": f"the shim ended with {shim.wait()}, see {log}"}
    if "error" in answer:
        shim.wait()
    return shim, answer


def _started(directory: Path) -> tuple[datetime, str]:
    record = _read(directory / "started.json")
    container_id = f"process://{record['pid']}-{record['start_ticks']}"
    return datetime.fromtimestamp(record["started_at"], UTC), container_id


def _read(path: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(path.read_text())
    return record
