"""The preStop hook as a kubelet runs it: a program beside a worker that asks the worker's control API."""

import asyncio
import os
import secrets
import sys
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from fixtures.asgi_engine import Call, answer_to
from fixtures.services import Service
from fixtures.workers import DEADLINE_SECONDS, TOKEN, Worker
from pointsman.api.protocol import names
from pointsman.api.protocol.control import WorkerPhase
from pointsman.api.protocol.names import Role
from waiting import eventually


@pytest.fixture
async def decode(service: Service) -> Worker:
    """A decode worker."""
    return await service.worker("decode-0", Role.DECODE)


@pytest.fixture
async def address(decode: Worker) -> AsyncIterator[str]:
    """Where the worker's control API listens."""

    async def control(request: web.Request) -> web.Response:
        said = {"Authorization": request.headers.get("Authorization", "")}
        call = Call(decode.app, request.path, await request.read() or None, method=request.method, headers=said)
        answer = await call.whole()
        return web.json_response(answer.body, status=answer.status)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", control)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    host = f"127.{secrets.randbelow(50) + 130}.{secrets.randbelow(256)}.{secrets.randbelow(254) + 1}"
    await web.TCPSite(runner, host, names.ENGINE_PORT).start()
    yield host
    await runner.cleanup()


async def hook(address: str, **changes: str) -> asyncio.subprocess.Process:
    """Start the hook with the environment of the container."""
    env = {
        names.ENV_NAMESPACE: "tests",
        names.ENV_SERVICE: "small",
        names.ENV_SERVICE_UID: "0123-uid",
        names.ENV_WORKER: "decode-0",
        names.ENV_POD_IP: address,
        names.ENV_KV_COMPATIBILITY: "same",
        names.ENV_BLOCK_SIZE: "16",
        names.ENV_MODEL: "/nowhere",
        names.ENV_SERVED_NAME: "small",
        names.ENV_CONTROL_TOKEN: TOKEN,
        names.ENV_DRAIN_TIMEOUT_SECONDS: "60",
        "http_proxy": "http://127.0.0.1:9",  # a worker's control API is never asked through a proxy
    }
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "pointsman.workers.drain", env=os.environ | env | changes, stderr=asyncio.subprocess.PIPE
    )


async def ended(process: asyncio.subprocess.Process) -> tuple[int | None, str]:
    """Exit code and what it said."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        said = (await process.communicate())[1].decode()
    return process.returncode, said


async def test_the_hook_ends_when_the_streams_of_its_worker_have_ended(decode: Worker, address: str) -> None:
    decode.engine.token_gate.clear()
    stream = decode.call({"prompt": [1, 2, 3], "max_tokens": 5, "stream": True})
    await eventually(lambda: decode.state.in_flight == 1, "the stream runs")
    process = await hook(address)
    await eventually(lambda: decode.state.phase is WorkerPhase.DRAINING, "the worker takes no new work")
    refused = await decode.call({"prompt": [1, 2, 3], "max_tokens": 5}).whole()
    assert refused.status == 503, "another worker gets it"
    assert process.returncode is None
    decode.engine.token_gate.set()
    assert (await stream.whole()).token_ids == answer_to([1, 2, 3], 5)
    assert await ended(process) == (0, "")


async def test_a_deadline_ends_the_hook_and_it_says_what_was_left(decode: Worker, address: str) -> None:
    decode.engine.token_gate.clear()
    stream = decode.call({"prompt": [1, 2, 3], "max_tokens": 5, "stream": True})
    await eventually(lambda: decode.state.in_flight == 1, "the stream runs")
    code, said = await ended(await hook(address, **{names.ENV_DRAIN_TIMEOUT_SECONDS: "0.5"}))
    assert code == 1
    assert "1 in flight" in said
    decode.engine.token_gate.set()
    await stream.whole()


async def test_a_worker_that_does_not_listen_is_not_waited_for(decode: Worker, address: str) -> None:
    assert await ended(await hook("127.129.0.1")) == (0, "")


async def test_a_refused_token_is_said_and_never_waited_for(decode: Worker, address: str) -> None:
    code, said = await ended(await hook(address, **{names.ENV_CONTROL_TOKEN: "another-token-of-16"}))
    assert code == 1
    assert "401 Unauthorized" in said
    assert TOKEN not in said
    assert decode.state.phase is WorkerPhase.SERVING
