"""Reading a container's log: lines of ``<time> <stream> <F|P> <text>``, as the kubelet's runtimes write them."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

_TAIL_BYTES: Final = 64 * 1024
_TAIL_LINES: Final = 80


@dataclass(frozen=True)
class LogLine:
    """One entry. ``whole``: a newline follows it."""

    stamp: bytes
    text: bytes
    whole: bool

    @property
    def time(self) -> datetime:
        """When it was written."""
        text = self.stamp.decode()
        return datetime.fromisoformat(text[:26].rstrip("Z") + "+00:00")

    def render(self, timestamps: bool) -> bytes:
        """As ``kubectl logs`` prints it."""
        return (self.stamp + b" " if timestamps else b"") + self.text + (b"\n" if self.whole else b"")


def parse(line: bytes) -> LogLine | None:
    """One line of the file, without its newline; None if it is none of the format."""
    parts = line.split(b" ", 3)
    if len(parts) < 4:
        return None
    return LogLine(parts[0], parts[3], parts[2] == b"F")


class LogReader:
    """Reads a log from the beginning, and on from where it was; finds its way when the file was rotated."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files = [path.with_name(f"{path.name}.1"), path]
        self._inode: int | None = None
        self._at = 0
        self._partial = b""

    def read(self) -> Iterator[LogLine]:
        """What was written since the last call (the first: all that is kept)."""
        if self._inode is None:
            older = self._files[0]
            if older.exists():
                yield from self._lines(older.read_bytes())
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            inode = _inode(self._path)
            if self._inode not in (None, inode):
                older = self._files[0]
                if older.exists() and _inode(older) == self._inode:
                    with older.open("rb") as rotated:
                        rotated.seek(self._at)
                        yield from self._lines(rotated.read())
                self._at = 0
            self._inode = inode
            file.seek(self._at)
            data = file.read()
            self._at += len(data)
        yield from self._lines(data)

    def _lines(self, data: bytes) -> Iterator[LogLine]:
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            entry = parse(line)
            if entry is not None:
                yield entry


def tail(lines: Iterator[LogLine], count: int) -> Iterator[LogLine]:
    """The last ``count`` of the lines."""
    return iter(deque(lines, maxlen=count))


def last_lines(path: Path, limit_bytes: int) -> str:
    """The end of what a container printed, for its status: at most 80 lines and ``limit_bytes``."""
    if not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        entries = [entry for entry in map(parse, file.read().split(b"\n")) if entry is not None]
    text = b"".join(entry.render(False) for entry in entries[-_TAIL_LINES:])
    return text[-limit_bytes:].decode(errors="replace").strip()


def _inode(path: Path) -> int:
    return path.stat().st_ino
