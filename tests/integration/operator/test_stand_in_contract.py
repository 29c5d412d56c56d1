"""The operator's stand-in for a worker keeps the contract of the real one."""

from collections.abc import AsyncIterator

import pytest

from contracts.control_api import *  # noqa: F403
from contracts.control_api import Api, Controlled
from integration.operator.stand_in import StandInWorker
from pointsman.api.protocol import control as wire
from pointsman.api.protocol import names
from pointsman.api.protocol.names import Role
from pointsman.kube.pods import Pod

ADDRESS = "127.127.0.1"  # outside of what the stand-in kubelet gives to pods


@pytest.fixture
async def controlled() -> AsyncIterator[Controlled]:
    labels = {names.KV_COMPATIBILITY_LABEL: "same"}
    metadata = {"name": "chat-0", "namespace": "tests", "uid": "u", "resourceVersion": "1", "labels": labels}
    pod = Pod.model_validate({"metadata": metadata})
    worker = StandInWorker(pod, ADDRESS, "a-token-of-the-tests")
    await worker.start()
    try:
        yield Controlled(f"http://{ADDRESS}:{names.ENGINE_PORT}", worker.token)
    finally:
        await worker.stop()


async def test_a_role_of_another_engine_is_refused_and_changes_nothing(api: Api) -> None:
    status, body = await api.ask("POST", wire.ROLE_PATH, wire.RoleRequest(role=Role.ENCODE).wire())
    assert (status, body["reason"]) == (409, "WrongEngine")
    assert (await api.state()).role is None
