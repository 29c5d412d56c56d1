"""Serves Services at their cluster IPs, which are loopback addresses: what kube-proxy is on a cluster of machines.

A Service without endpoints has no listener, so a connection is refused. Connections go to a random endpoint and stay
with it until one side closes them.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Iterable
from typing import Any, Final

from pointsman.kube.client import Kube
from pointsman.kube.mirror import Mirror
from pointsman.kube.resources import SERVICES
from pointsman.local.node.core.service_endpoints import Address, service_endpoints
from pointsman.local.node.core.types import Object

log = logging.getLogger(__name__)

_CHUNK_BYTES: Final = 2**16


class ServiceProxy:
    """``pods`` are those of this node; call ``changed`` when one of them did. ``run()`` until cancelled."""

    def __init__(self, kube: Kube, pods: Callable[[], Iterable[Object]]) -> None:
        self._pods = pods
        self._services: Mirror[dict[str, Any]] = Mirror(
            kube, SERVICES, dict, on_change=lambda _old, _new: self.changed(), backoff_max_s=2.0
        )
        self._dirty = asyncio.Event()
        self._endpoints: dict[Address, frozenset[Address]] = {}
        self._servers: dict[Address, asyncio.Server] = {}

    def changed(self) -> None:
        """A pod or a Service changed."""
        self._dirty.set()

    async def run(self) -> None:
        """Follow Services and pods."""
        following = asyncio.create_task(self._services.run(), name="mirror of Services")
        try:
            await self._services.synced.wait()
            while True:
                await self._dirty.wait()
                self._dirty.clear()
                await self._serve()
        finally:
            following.cancel()
            for server in self._servers.values():
                server.close()

    async def _serve(self) -> None:
        pods = list(self._pods())
        self._endpoints = {
            address: targets
            for service in self._services.objects()
            for address, targets in service_endpoints(service, pods).items()
            if targets
        }
        for address in self._servers.keys() - self._endpoints.keys():
            self._servers.pop(address).close()  # connections that are open stay
        for address in self._endpoints.keys() - self._servers.keys():
            try:
                self._servers[address] = await asyncio.start_server(self._connected(address), *_pair(address))
            except OSError as error:
                log.warning(
                    "address of a Service not served",
                    extra={"address": f"{address.host}:{address.port}", "why": str(error)},
                )

    def _connected(self, address: Address) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            targets = self._endpoints.get(address)
            try:
                if not targets:
                    raise ConnectionRefusedError("no endpoint")
                target = random.choice(sorted(targets))
                there_reader, there_writer = await asyncio.open_connection(*_pair(target))
            except OSError:
                writer.transport.abort()
                return
            try:
                await asyncio.gather(_copy(reader, there_writer), _copy(there_reader, writer))
            finally:
                writer.close()
                there_writer.close()

        return connected


def _pair(address: Address) -> tuple[str, int]:
    return address.host, address.port


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until ``reader`` ends; a connection that breaks breaks on its other side too."""
    try:
        while chunk := await reader.read(_CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()
        with contextlib.suppress(OSError):
            writer.write_eof()
    except OSError:
        writer.transport.abort()
