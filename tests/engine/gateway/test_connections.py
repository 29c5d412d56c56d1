"""Connections to real workers: how long vLLM keeps an idle one, and that the gateway gives it up earlier."""

import asyncio
import subprocess

import aiohttp
import pytest

from pointsman.gateway.worker_connections import worker_connector
from pointsman.local.engine.environment import EngineEnvironment

# vLLM's file of settings alone: the whole package takes 15 s to import.
VLLM_KEEPS = """
import importlib.util, pathlib
package = pathlib.Path(importlib.util.find_spec("vllm").origin).parent
spec = importlib.util.spec_from_file_location("envs", package / "envs.py")
spec.loader.exec_module(envs := importlib.util.module_from_spec(spec))
print(envs.VLLM_HTTP_TIMEOUT_KEEP_ALIVE)
"""


@pytest.fixture
def vllm_keeps_s(engine_environment: EngineEnvironment) -> float:
    """How long vLLM's server keeps an idle connection."""
    command = [str(engine_environment.python), "-c", VLLM_KEEPS]
    return float(subprocess.check_output(command, env=engine_environment.variables()).split()[-1])


async def test_an_idle_connection_is_given_up_before_vllm_closes_it(vllm_keeps_s: float) -> None:
    """Where both close at one time, a request meets a closed connection, and its worker looks dead."""
    idle_s: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        since_s = asyncio.get_running_loop().time()
        await reader.read()
        idle_s.set_result(asyncio.get_running_loop().time() - since_s)
        writer.close()

    server = await asyncio.start_server(served, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, aiohttp.ClientSession(connector=worker_connector()) as session:
        async with session.get(f"http://127.0.0.1:{port}") as answer:
            assert await answer.text() == "ok"
        assert await idle_s < vllm_keeps_s
