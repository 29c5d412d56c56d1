"""Free ports, and servers that sit on a port a pod will need."""

import fcntl
import os
import random
import socket
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# Below the range from which the kernel takes ports for outgoing connections: nobody takes one by chance after it was
# found free.
_PORTS: Final = range(20000, 32000)
_LAST_PORT: Final = Path(tempfile.gettempdir(), f"pointsman-last-port-{os.getuid()}")
_LISTEN: Final = "0A"
_ANY: Final = {"00000000", "0" * 32}


def free_port(host: str = "127.0.0.1") -> int:
    """A TCP port on which nobody listens at ``host``, and which no process of this user was given lately."""
    while True:
        port = _next_port()
        with socket.socket() as probe:
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return port


def _next_port() -> int:
    """Ports in turn, not by chance: a process has yet to listen on the port that it was given a second ago."""
    with os.fdopen(os.open(_LAST_PORT, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "r+") as last:
        fcntl.flock(last, fcntl.LOCK_EX)
        port = int(last.read() or random.choice(_PORTS)) + 1
        port = port if port in _PORTS else _PORTS.start
        last.seek(0)
        last.write(str(port))  # all have five digits
    return port


@dataclass(frozen=True)
class Listener:
    """A server on this computer. ``program`` is None if its process belongs to somebody else."""

    host: str
    port: int
    pid: int | None
    program: str | None

    def __str__(self) -> str:
        who = f"process {self.pid} ({self.program})" if self.pid else "a process of another user"
        return f"{who} listens on {self.host}:{self.port}"


def listeners_in_the_way(ports: set[int], host: str | None = None) -> list[Listener]:
    """Servers on every address (0.0.0.0, ::), or on ``host``, at one of ``ports``: a pod could not listen there."""
    found = []
    hosts = _ANY | ({_hex(host)} if host else set())
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            address, port = fields[1].split(":")
            if fields[3] == _LISTEN and address in hosts and int(port, 16) in ports:
                shown = host if host and address == _hex(host) else ("0.0.0.0" if table == "tcp" else "[::]")
                pid = _owner(fields[9])
                found.append(Listener(shown, int(port, 16), pid, _program(pid)))
    return found


def _hex(host: str) -> str:
    return socket.inet_aton(host)[::-1].hex().upper()


def _owner(inode: str) -> int | None:
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if str(descriptor.readlink()) == f"socket:[{inode}]":
                return int(descriptor.parts[2])
        except OSError:
            continue  # it ended, or is not ours to look at
    return None


def _program(pid: int | None) -> str | None:
    if pid is None:
        return None
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return None
    return " ".join(word.decode(errors="replace") for word in words[:4] if word)[:80]
