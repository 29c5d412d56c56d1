"""State directories: everything a cluster writes lies in one, and what a killed run left is found and cleaned."""

import fcntl
import json
import os
import secrets
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pointsman.local.cache import cache_directory
from pointsman.local.errors import ClusterFailed
from pointsman.local.processes import ProcessId, recorded
from pointsman.local.typed_command import typed_command

_OWNER: Final = "owner.json"
_TERM_GRACE_S: Final = 1.0  # what is ended here is thrown away
_POLL_S: Final = 0.02
_ROUNDS: Final = 5


def clusters_directory() -> Path:
    """Where clusters keep their state, one directory each."""
    return cache_directory() / "clusters"


def new_state_directory(prefix: str) -> Path:
    """A fresh directory owned by this process: when it is killed, the next run ends what it left and removes it."""
    clean_leftovers()
    directory = clusters_directory() / f"{prefix}-{os.getpid()}-{secrets.token_hex(2)}"
    claim_state_directory(directory, keep=False)
    return directory


def claim_state_directory(directory: Path, *, keep: bool) -> None:
    """Make ``directory`` this process's own; with ``keep`` nobody cleans it but ``remove_state_directory``.

    Raises ClusterFailed if another process that lives owns it, or it is kept and its processes run.
    """
    owner = ProcessId.of(os.getpid())
    if owner is None:
        raise ClusterFailed("this process cannot be found in /proc")
    with _cleaning():
        if directory.exists():
            current = _owner(directory)
            if (current is not None and current.alive and current != owner) or recorded(directory):
                raise ClusterFailed(
                    f"the cluster '{directory.name}' runs already ({directory}); end it first: "
                    f"{typed_command()} local down {directory.name}"
                )
            _remove(directory)
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        (directory / _OWNER).write_text(json.dumps({**owner.as_json(), "keep": keep}))


def clean_leftovers() -> list[Path]:
    """End the processes and remove the directories of clusters whose owner is gone; returns the directories."""
    cleaned = []
    with _cleaning():
        for directory in sorted(clusters_directory().glob("*")):
            owner = _owner(directory)
            if owner is not None and not owner.alive and not is_kept(directory):
                _remove(directory)
                cleaned.append(directory)
    return cleaned


def remove_state_directory(directory: Path) -> None:
    """End every process recorded there and remove the directory."""
    with _cleaning():
        _remove(directory)


def end_processes(directory: Path, grace_s: float = _TERM_GRACE_S) -> None:
    """SIGTERM to every process recorded under ``directory``, SIGKILL to those that stay; returns when all are gone."""
    for _ in range(_ROUNDS):  # a process on its way out may have started one more
        processes = recorded(directory)
        if not processes:
            return
        for process in processes:
            process.signal(signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        while any(process.alive for process in processes) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        for process in processes:
            process.signal(process.kill_signal)
        while any(process.alive for process in processes):
            time.sleep(_POLL_S)


def _remove(directory: Path) -> None:
    end_processes(directory)
    shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def _cleaning() -> Iterator[None]:
    """Claims and cleanings of all processes come one after the other."""
    clusters_directory().mkdir(parents=True, exist_ok=True)
    with (cache_directory() / "clusters.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _record(directory: Path) -> dict[str, int]:
    try:
        record: dict[str, int] = json.loads((directory / _OWNER).read_text())
    except (OSError, ValueError):
        return {}
    return record


def _owner(directory: Path) -> ProcessId | None:
    record = _record(directory)
    return ProcessId.from_json(record) if record else None


def is_kept(directory: Path) -> bool:
    """Whether it outlives the process that made it."""
    return bool(_record(directory).get("keep"))
