"""How connections to workers are made: re-used while they live, and given up soon after their node vanished."""

import socket
from typing import Any, Final

import aiohttp

IDLE_S: Final = 2.0
"""An idle connection is kept so long. vLLM's server closes it after 5 s, and a request that meets a closed connection
makes its worker look dead: so a gateway that is short of CPU has 3 s to send it.
"""

KEEPALIVE_IDLE_S: Final = 10
KEEPALIVE_INTERVAL_S: Final = 5
KEEPALIVE_PROBES: Final = 3
UNACKNOWLEDGED_MILLISECONDS: Final = 25_000
"""A peer that acknowledges nothing for so long is gone: as long as the probes take."""


def worker_connector() -> aiohttp.TCPConnector:
    """Connections without a limit of their number: the requests are bounded."""
    return aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_S, socket_factory=_socket)


def _socket(address: Any) -> socket.socket:
    family, kind, protocol, _name, _address = address
    made = socket.socket(family=family, type=kind, proto=protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE_S),
        ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL_S),
        ("TCP_KEEPCNT", KEEPALIVE_PROBES),
        ("TCP_USER_TIMEOUT", UNACKNOWLEDGED_MILLISECONDS),
    ):
        if hasattr(socket, option):  # not everywhere but on Linux
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return made
