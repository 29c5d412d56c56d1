"""The sockets of the gateway's connections to workers, as the kernel has them."""

import asyncio
import socket

import aiohttp
import pytest

from pointsman.gateway.worker_connections import worker_connector

VLLM_KEEPS_SECONDS = 5.0


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no")
    await writer.drain()
    await reader.read()  # until the client closes
    writer.close()


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="Linux has these options")
async def test_a_worker_whose_node_vanished_is_given_up_after_25_seconds() -> None:
    """Acknowledged or not: probes find a silent peer, the user timeout one that does not acknowledge what was sent."""
    server = await asyncio.start_server(_answer, "127.0.0.1")
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, aiohttp.ClientSession(connector=worker_connector()) as session, session.get(url) as answer:
        assert answer.connection is not None
        assert answer.connection.transport is not None
        made = answer.connection.transport.get_extra_info("socket")

        def option(name: str) -> int:
            return int(made.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)))

        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert option("TCP_KEEPIDLE") + option("TCP_KEEPINTVL") * option("TCP_KEEPCNT") == 25
        assert option("TCP_KEEPCNT") >= 3, "one lost probe is no vanished node"
        assert option("TCP_USER_TIMEOUT") == 25_000


async def test_an_idle_connection_is_not_used_again_when_vllm_may_close_it_and_their_number_is_not_bounded() -> None:
    async with worker_connector() as connector:
        kept_s = connector._keepalive_timeout
        assert kept_s is not None
        assert 0 < kept_s < VLLM_KEEPS_SECONDS
        assert connector.limit == 0
