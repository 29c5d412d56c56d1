"""One plain vLLM server, without anything of Pointsman: the reference that answers and latencies are compared with."""

import asyncio
import http.client
import os
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pointsman.local.addresses import free_port
from pointsman.local.engine.environment import EngineEnvironment
from pointsman.local.engine.fork_client import ForkedProcess, start
from pointsman.local.errors import EngineEnvironmentFailed

ENTRY: Final = "vllm.entrypoints.launchers.api_server.entry"
_POLL_S: Final = 0.05
_STOP_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class PlainServer:
    """A server that is ready."""

    base_url: str  # ends with /v1
    pid: int


@asynccontextmanager
async def plain_server(
    environment: EngineEnvironment,
    fork_socket: Path,
    model: Path,
    *,
    served_name: str,
    dtype: str,
    log: Path,
    arguments: Sequence[str] = (),
    block_size: int = 128,
    timeout_seconds: float = 120.0,
) -> AsyncIterator[PlainServer]:
    """A server on a free port of 127.0.0.1, started through the fork server at ``fork_socket``; ends with the context.

    ``arguments`` are further vLLM flags. Raises EngineEnvironmentFailed, with the end of ``log``, if it gets not ready.
    """
    port = free_port()
    argv = [
        str(environment.python), "-m", ENTRY, "--model", str(model), "--served-model-name", served_name,
        "--host", "127.0.0.1", "--port", str(port), "--dtype", dtype, "--enforce-eager",
        "--block-size", str(block_size), "--max-model-len", "4096", "--kv-cache-memory-bytes", "256M",
        "--disable-access-log-for-endpoints", "/health", *arguments,
    ]  # fmt: skip
    variables = environment.variables() | {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # lets the CPU engine use one process instead of two
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    deadline_s = time.monotonic() + timeout_seconds
    process = _start(fork_socket, argv, variables, log)
    try:
        await _ready(process, port, log, deadline_s)
        yield PlainServer(f"http://127.0.0.1:{port}/v1", process.pid)
    finally:
        process.terminate()
        if await asyncio.to_thread(process.wait, _STOP_S) is None:
            process.kill()
            await asyncio.to_thread(process.wait, None)


def _start(fork_socket: Path, argv: Sequence[str], variables: Mapping[str, str], log: Path) -> ForkedProcess:
    with log.open("ab") as output, Path(os.devnull).open("rb") as nothing:
        return start(fork_socket, argv, variables, log.parent, nothing.fileno(), output.fileno(), output.fileno())


async def _ready(process: ForkedProcess, port: int, log: Path, deadline_s: float) -> None:
    while not await asyncio.to_thread(_healthy, port):
        ended = process.poll()
        if ended is not None or time.monotonic() > deadline_s:
            what = "did not get ready in time" if ended is None else f"ended with {ended} before it was ready"
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
            raise EngineEnvironmentFailed(f"the plain vLLM server {what}; the end of {log}:\n{tail}")
        await asyncio.sleep(_POLL_S)


def _healthy(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()
