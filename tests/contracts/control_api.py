"""The contract of a worker's control API, as the operator uses it.

Every stand-in for a worker and the real one run these same tests, so that no stand-in can do what no worker does. A
test module imports them (``from contracts.control_api import *``) and defines the fixture ``controlled``: a worker with
its engine up and no role. Each test leaves it without a role.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

from pointsman.api.protocol import control as wire
from pointsman.api.protocol.control import WorkerPhase
from pointsman.api.protocol.names import Role

__all__ = [
    "api",
    "test_a_drain_keeps_the_role_and_the_same_role_ends_it",
    "test_a_role_taken_away_leaves_it_idle",
    "test_a_verification_says_its_role_and_another_role_clears_it",
    "test_a_worker_without_a_role_is_idle_and_says_who_it_is",
    "test_drain_takes_an_empty_body",
    "test_new_numbers_alone_do_not_end_a_drain_or_give_a_role",
    "test_no_answer_without_the_token",
    "test_the_budget_and_the_numbers_come_with_the_role",
    "test_the_same_role_again_changes_nothing",
    "test_what_it_cannot_read_is_refused_and_changes_nothing",
]


@dataclass(frozen=True)
class Controlled:
    """Where a worker answers, and the token it takes."""

    url: str
    token: str


class Api:
    """The control API of one worker, over HTTP."""

    def __init__(self, session: aiohttp.ClientSession, worker: Controlled) -> None:
        self._session = session
        self._worker = worker

    async def ask(self, method: str, path: str, body: str = "", token: str | None = None) -> tuple[int, Any]:
        """Status and JSON of one answer."""
        sent = {"Authorization": f"Bearer {self._worker.token if token is None else token}"}
        async with self._session.request(method, self._worker.url + path, data=body, headers=sent) as answer:
            return answer.status, await answer.json(content_type=None)

    async def state(self) -> wire.WorkerState:
        """What the worker says of itself."""
        status, body = await self.ask("GET", wire.STATE_PATH)
        assert status == 200, body
        return wire.WorkerState.model_validate(body)

    async def role(self, role: Role | None, **numbers: int) -> wire.WorkerState:
        """Give it a role; its answer is its new state."""
        status, body = await self.ask("POST", wire.ROLE_PATH, wire.RoleRequest(role=role, **numbers).wire())
        assert status == 200, body
        return wire.WorkerState.model_validate(body)

    async def drain(self) -> wire.WorkerState:
        """Have it take nothing new."""
        status, body = await self.ask("POST", wire.DRAIN_PATH, wire.DrainRequest(reason="contract").wire())
        assert status == 200, body
        return wire.WorkerState.model_validate(body)

    async def verify(self, role: Role) -> wire.VerifyResult:
        """Have it answer a real request in ``role``."""
        status, body = await self.ask("POST", wire.VERIFY_PATH, wire.VerifyRequest(role=role).wire())
        assert status == 200, body
        return wire.VerifyResult.model_validate(body)


@pytest.fixture
async def api(controlled: Controlled) -> AsyncIterator[Api]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
        made = Api(session, controlled)
        yield made
        await made.role(None)


async def test_no_answer_without_the_token(api: Api) -> None:
    for method, path in (("GET", wire.STATE_PATH), ("POST", wire.ROLE_PATH), ("POST", wire.VERIFY_PATH)):
        status, body = await api.ask(method, path, token="wrong")
        assert (status, wire.ControlError.model_validate(body).reason) == (401, "Unauthorized")


async def test_a_worker_without_a_role_is_idle_and_says_who_it_is(api: Api) -> None:
    first, second = await api.state(), await api.state()
    assert (first.phase, first.role) == (WorkerPhase.IDLE, None)
    assert first.instance == second.instance, "an instance is one start of the process"
    assert first.worker and first.kv_compatibility and first.block_size > 0
    assert first.idle


async def test_the_same_role_again_changes_nothing(api: Api) -> None:
    await api.role(Role.DECODE)
    assert (await api.verify(Role.DECODE)).ok
    again = await api.role(Role.DECODE)
    assert (again.phase, again.role, again.verified) == (WorkerPhase.SERVING, Role.DECODE, Role.DECODE)


async def test_a_role_taken_away_leaves_it_idle(api: Api) -> None:
    await api.role(Role.DECODE)
    assert (await api.role(None)).phase is WorkerPhase.IDLE
    assert (await api.state()).role is None


async def test_a_drain_keeps_the_role_and_the_same_role_ends_it(api: Api) -> None:
    await api.role(Role.DECODE)
    drained = await api.drain()
    assert (drained.phase, drained.role) == (WorkerPhase.DRAINING, Role.DECODE)
    assert (await api.drain()).phase is WorkerPhase.DRAINING, "asking twice is asking once"
    assert (await api.role(Role.DECODE)).phase is WorkerPhase.SERVING


async def test_drain_takes_an_empty_body(api: Api) -> None:
    await api.role(Role.DECODE)
    status, body = await api.ask("POST", wire.DRAIN_PATH)
    assert (status, body["phase"]) == (200, "Draining")


async def test_a_verification_says_its_role_and_another_role_clears_it(api: Api) -> None:
    await api.role(Role.DECODE)
    result = await api.verify(Role.DECODE)
    assert (result.ok, result.role) == (True, Role.DECODE) and result.detail
    assert (await api.state()).verified is Role.DECODE
    assert (await api.verify(Role.PREFILL)).ok, "a worker verifies any role, whichever it has"
    assert (await api.state()).verified is Role.PREFILL
    assert (await api.role(None)).verified is None, "in another role it must prove itself anew"


async def test_the_budget_and_the_numbers_come_with_the_role(api: Api) -> None:
    given = await api.role(Role.DECODE, prefill_token_budget=4096, max_local_prefill_tokens=7)
    assert given.prefill_token_budget == 4096
    assert (await api.state()).prefill_token_budget == 4096


async def test_new_numbers_alone_do_not_end_a_drain_or_give_a_role(api: Api) -> None:
    async def refused() -> bool:
        numbers = wire.RoleRequest(role=Role.DECODE, prefill_token_budget=64, if_serving=True).wire()
        status, answer = await api.ask("POST", wire.ROLE_PATH, numbers)
        return (status, wire.ControlError.model_validate(answer).reason) == (409, "NotServing")

    await api.role(None)
    assert await refused()
    await api.role(Role.DECODE, prefill_token_budget=512)
    assert (await api.role(Role.DECODE, prefill_token_budget=4096, if_serving=True)).prefill_token_budget == 4096
    await api.drain()
    assert await refused()
    state = await api.state()
    assert (state.phase, state.role, state.prefill_token_budget) == (wire.WorkerPhase.DRAINING, Role.DECODE, 4096)


async def test_what_it_cannot_read_is_refused_and_changes_nothing(api: Api) -> None:
    await api.role(Role.DECODE)
    for path, body in ((wire.ROLE_PATH, '{"role": "Pilot"}'), (wire.ROLE_PATH, "[]"), (wire.VERIFY_PATH, "{}")):
        status, answer = await api.ask("POST", path, body)
        assert status == 400, (path, body)
        assert wire.ControlError.model_validate(answer).reason == "BadRequest"
    assert (await api.state()).role is Role.DECODE
    status, answer = await api.ask("GET", "/pointsman/v1/nothing")
    assert (status, wire.ControlError.model_validate(answer).reason) == (404, "NoSuchPath")
