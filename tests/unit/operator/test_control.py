"""Requests to workers, over HTTP: a process that lost the Lease commands none of them."""

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import web

from pointsman.api.protocol import control as wire
from pointsman.api.protocol.names import Role
from pointsman.operator.control import ControlClient
from pointsman.operator.errors import ControlFailed, NotLeading

Command = Callable[[ControlClient, str], Awaitable[object]]

COMMANDS: dict[str, Command] = {
    "role": lambda client, url: client.give_role(url, "t", Role.DECODE),
    "budget": lambda client, url: client.set_prefill_token_budget(url, "t", 4096),
    "drain": lambda client, url: client.drain(url, "t", "ScaleDown"),
    "verify": lambda client, url: client.verify(url, "t", Role.DECODE, None),
    "objectives": lambda client, url: client.elastic_objectives(url, "t", None),
}


class Recorder:
    """A worker that answers 404 to all and remembers what it was sent."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []
        self.url = ""

    async def answer(self, request: web.Request) -> web.Response:
        self.seen.append((request.method, request.path))
        problem = wire.ControlError(reason="NoSuchPath", message="of the tests")
        return web.Response(status=404, text=problem.wire(), content_type="application/json")


@pytest.fixture
async def recorder() -> AsyncIterator[Recorder]:
    made = Recorder()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", made.answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.url = "http://{}:{}".format(*runner.addresses[0][:2])
    yield made
    await runner.cleanup()


@pytest.mark.parametrize("name", COMMANDS)
async def test_no_command_is_sent_by_a_process_that_lost_the_lease(recorder: Recorder, name: str) -> None:
    leads = True
    async with ControlClient(lambda: leads) as client:
        with pytest.raises(ControlFailed):
            await COMMANDS[name](client, recorder.url)
        assert len(recorder.seen) == 1
        leads = False
        with pytest.raises(NotLeading):
            await COMMANDS[name](client, recorder.url)
        assert len(recorder.seen) == 1


def test_every_request_that_changes_something_is_among_them() -> None:
    methods = {name for name in vars(ControlClient) if not name.startswith("_")}
    assert methods - {"state", "elastic_state", "endpoints", "fence"} == {
        "give_role",
        "set_prefill_token_budget",
        "drain",
        "verify",
        "elastic_objectives",
    }


async def test_a_question_needs_no_lease(recorder: Recorder) -> None:
    async with ControlClient(lambda: False) as client:
        with pytest.raises(ControlFailed):
            await client.state(recorder.url, "t")
    assert recorder.seen == [("GET", wire.STATE_PATH)]
