"""The contract of a real worker's server beside roles and requests: no path, port or body that nobody needs.

A test module imports these tests (``from contracts.worker_server import *``) and defines the fixtures ``engine``, the
process with the variables of ``FROM_A_CONFIG_MAP``, ``controlled`` and ``serving``.
"""

import asyncio
import itertools
import re
import subprocess
from pathlib import Path

import aiohttp

from contracts.control_api import Api, Controlled
from contracts.engine_api import Serving
from fixtures.engines import RunningEngine
from pointsman.api.protocol.control import ROLE_PATH, STATE_PATH
from pointsman.api.protocol.names import WORKER_METRICS_PORT
from pointsman.local.engine.environment import EngineEnvironment
from pointsman.workers.core.paths import access

__all__ = [
    "test_a_stranger_cannot_fill_a_workers_memory",
    "test_metrics_have_a_port_of_their_own_with_nothing_else",
    "test_of_the_engines_own_paths_those_that_nobody_needs_are_not_there",
    "test_what_env_from_brings_opens_no_administration",
]

FROM_A_CONFIG_MAP = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_API_KEY": "secret"}


def _paths_of_vllm(environment: EngineEnvironment) -> set[str]:
    """Every path that some part of vLLM's server registers."""
    found = subprocess.run(
        [
            environment.python,
            "-c",
            "import importlib.util as u; print(u.find_spec('vllm').submodule_search_locations[0])",
        ],
        check=True,
        capture_output=True,
        text=True,
    )
    sources = Path(found.stdout.strip(), "entrypoints").rglob("*.py")
    route = re.compile(r'(?:\.(?:get|post|put|delete|api_route|websocket|mount)|add_api_route)\(\s*"(/[^"{]*)')
    return {path for source in sources for path in route.findall(source.read_text())}


async def test_of_the_engines_own_paths_those_that_nobody_needs_are_not_there(
    serving: Serving, engine_environment: EngineEnvironment
) -> None:
    paths = _paths_of_vllm(engine_environment)
    assert {"/invocations", "/generative_scoring", "/scale_elastic_ep", "/sleep", "/v1/completions"} <= paths
    body: dict[str, object] = {"model": serving.model, "prompt": "Hello", "max_tokens": 1}
    body["kv_transfer_params"] = {"do_remote_decode": True}
    async with aiohttp.ClientSession(serving.url) as session:
        for method, path in itertools.product(("GET", "POST"), sorted(paths)):
            if access(method, path) is None:
                async with session.request(method, path, json=body) as answer:
                    assert answer.status == 404, f"{method} {path}"
                    assert f"a worker has no path {method} {path}" in await answer.text()


async def test_what_env_from_brings_opens_no_administration(serving: Serving, engine: RunningEngine) -> None:
    """The engine was started with VLLM_SERVER_DEV_MODE=1: admission cannot see what is in a ConfigMap."""
    said = [line for line in engine.log.read_text().splitlines() if "it is set by Pointsman" in line]  # JSON or text
    assert any("VLLM_SERVER_DEV_MODE" in line for line in said), said
    body = {"model": serving.model, "prompt": "Hello", "max_tokens": 1}
    async with aiohttp.ClientSession(serving.url) as session, session.post("/v1/completions", json=body) as answer:
        assert answer.status == 200, "VLLM_API_KEY of the environment is not asked for"


async def test_a_stranger_cannot_fill_a_workers_memory(serving: Serving) -> None:
    """Over a real connection: what is refused is refused before its body is sent."""
    host, port = serving.url.removeprefix("http://").split(":")
    for request, status in (
        (f"POST {ROLE_PATH} HTTP/1.1\r\nHost: w\r\nContent-Length: 1000000000\r\n\r\n", 401),
        ("POST /v1/completions HTTP/1.1\r\nHost: w\r\nContent-Length: 100000000000\r\n\r\n", 413),
        ("POST /tokenize HTTP/1.1\r\nHost: w\r\nContent-Length: 100000000000\r\n\r\n", 413),
    ):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(request.encode())
        async with asyncio.timeout(30):
            line = await reader.readline()
        assert line.split()[1] == str(status).encode(), request
        writer.close()


async def test_metrics_have_a_port_of_their_own_with_nothing_else(
    controlled: Controlled, engine: RunningEngine
) -> None:
    async with aiohttp.ClientSession() as session:
        state = await Api(session, controlled).state()
        assert state.metrics_port == WORKER_METRICS_PORT
        url = f"http://{engine.address}:{WORKER_METRICS_PORT}"
        async with session.get(url + "/metrics") as answer:
            page = await answer.text()
            assert answer.content_type == "text/plain"
        for family in ("vllm:num_requests_running", "pointsman_worker_phase"):
            assert family in page
        for method, path in (
            ("POST", "/v1/completions"),
            ("GET", "/health"),
            ("GET", STATE_PATH),
            ("POST", "/metrics"),
        ):
            async with session.request(method, url + path, json={}) as answer:
                assert answer.status in (404, 405), path
