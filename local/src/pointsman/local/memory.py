"""Memory of a family of processes as PSS: shared pages are divided by those who share them, so a sum is honest."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import psutil

_PROC: Final = Path("/proc")


def pss_mib(pid: int) -> float | None:
    """Proportional set size of one process in MiB; None if it is gone or not ours to look at."""
    try:
        rollup = (_PROC / str(pid) / "smaps_rollup").read_text()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    return next((int(line.split()[1]) / 1024 for line in rollup.splitlines() if line.startswith("Pss:")), None)


def family(roots: Iterable[int]) -> set[int]:
    """The processes in ``roots`` that live, and all their descendants."""
    children: dict[int, list[int]] = {}
    for process in psutil.process_iter(["ppid"]):
        children.setdefault(process.info["ppid"], []).append(process.pid)
    members: set[int] = set()
    waiting = [root for root in roots if psutil.pid_exists(root)]
    while waiting:
        member = waiting.pop()
        if member not in members:
            members.add(member)
            waiting += children.get(member, ())
    return members


def processes_with(variable: str, value: str) -> set[int]:
    """Processes of this user that were started with ``variable=value`` in their environment.

    Finds what has been re-parented (a pod's shim outlives its node on purpose), which a walk down the tree does not.
    """
    wanted = f"{variable}={value}".encode()
    found: set[int] = set()
    for entry in _PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if entry.stat().st_uid == os.getuid() and wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.add(int(entry.name))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found


class PeakMemory:
    """The largest PSS sum seen so far, in MiB. A sample takes some ms of a core: not in the middle of a measurement."""

    def __init__(self) -> None:
        self.peak_mib = 0.0

    def sample(self, pids: Iterable[int]) -> float:
        """The sum over ``pids`` now."""
        total = sum(value for value in map(pss_mib, pids) if value is not None)
        self.peak_mib = max(self.peak_mib, total)
        return total
