"""A DNS server on loopback: it knows some hosts, and never answers for others."""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import cast

_A, _AAAA = 1, 28


@dataclass(eq=False)
class NameServer(asyncio.DatagramProtocol):
    """``hosts``: addresses by name, which may not be kept; other names do not exist. Those that end with ``silent`` get
    no answer.

    ``asked``: names, in order.
    """

    hosts: dict[str, tuple[str, ...]]
    silent: str = ".silent.test"
    asked: list[str] = field(default_factory=list)
    port: int = 0
    _transport: asyncio.DatagramTransport | None = None

    @property
    def servers(self) -> list[str]:
        """Where it is."""
        return [f"127.0.0.1:{self.port}"]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)
        self.port = transport.get_extra_info("sockname")[1]

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        name, end = _name(data)
        self.asked.append(name)
        if name.endswith(self.silent):
            return
        (kind,) = struct.unpack_from("!H", data, end)
        question = data[12 : end + 4]
        known = [ip_address(address) for address in self.hosts.get(name, ())]
        records = [
            struct.pack("!HHHIH", 0xC00C, kind, 1, 0, len(address.packed)) + address.packed
            for address in known
            if kind == (_A if address.version == 4 else _AAAA)
        ]
        code = 0 if known else 3  # NXDOMAIN
        head = data[:2] + struct.pack("!HHHHH", 0x8180 | code, 1, len(records), 0, 0)
        assert self._transport is not None
        self._transport.sendto(head + question + b"".join(records), addr)


def _name(data: bytes) -> tuple[str, int]:
    """The name in a question, and where it ends."""
    labels, at = [], 12
    while length := data[at]:
        labels.append(data[at + 1 : at + 1 + length].decode().lower())
        at += 1 + length
    return ".".join(labels), at + 1


@asynccontextmanager
async def name_server(**hosts: tuple[str, ...]) -> AsyncIterator[NameServer]:
    """One that knows ``NAME.test`` for each name in ``hosts``."""
    server = NameServer({f"{name}.test": addresses for name, addresses in hosts.items()})
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(lambda: server, ("127.0.0.1", 0))
    try:
        yield server
    finally:
        transport.close()
