"""A worker that restarts without an operator takes the role that it had."""

from pathlib import Path

import pytest

from fixtures.workers import settings, worker
from pointsman.api.protocol.control import RoleRequest, WorkerPhase
from pointsman.api.protocol.names import Role
from pointsman.workers.last_role import OPERATOR_S, LastRole
from waiting import eventually


class Hands:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture(autouse=True)
def own_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


async def test_a_restarted_worker_without_an_operator_takes_its_last_role_with_its_numbers() -> None:
    own, clock = settings("w", pod_uid="u-1"), Hands()
    async with worker(own, clock=clock) as before:
        await eventually(lambda: before.state.phase is WorkerPhase.IDLE, "its engine is up")
        before.sidecar.assign(RoleRequest(role=Role.DECODE, max_local_prefill_tokens=77))
    async with worker(own, clock=clock) as after:
        await eventually(lambda: after.state.phase is WorkerPhase.IDLE, "its engine is up again")
        after.sidecar.take_last_role()
        assert after.state.role is None, "an operator has time to give it"
        clock.now_s += OPERATOR_S
        await eventually(lambda: after.state.phase is WorkerPhase.SERVING, "it serves")
        assert after.state.role is Role.DECODE
        assert after.state.verified is None, "the operator verifies it when it is back"
        assert after.sidecar.rule.max_local_prefill_tokens == 77


async def test_an_operator_that_runs_gives_the_role_before_the_last_one_is_taken() -> None:
    own, clock = settings("w", pod_uid="u-1"), Hands()
    LastRole.of_pod("u-1").keep(RoleRequest(role=Role.DECODE))
    async with worker(own, clock=clock) as after:
        await eventually(lambda: after.state.phase is WorkerPhase.IDLE, "its engine is up")
        after.sidecar.assign(RoleRequest(role=None))
        clock.now_s += 2 * OPERATOR_S
        after.sidecar.take_last_role()
        assert after.state.role is None, "the operator took the role away"


async def test_a_new_pod_takes_the_role_of_no_other() -> None:
    LastRole.of_pod("u-1").keep(RoleRequest(role=Role.DECODE))
    clock = Hands()
    async with worker(settings("w", pod_uid="u-2"), clock=clock) as new:
        await eventually(lambda: new.state.phase is WorkerPhase.IDLE, "its engine is up")
        new.sidecar.take_last_role()
        clock.now_s += 2 * OPERATOR_S
        new.sidecar.take_last_role()
        assert new.state.role is None


def test_a_file_that_cannot_be_read_is_logged_once_and_one_that_is_absent_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "role.json"
    last = LastRole(path)
    assert last.read() is None
    assert not caplog.records
    path.write_text("{")
    assert [last.read(), last.read()] == [None, None]
    assert [each.levelname for each in caplog.records] == ["WARNING"]


@pytest.mark.parametrize("content", ["", "{", '{"role": "Cook"}', '{"role": null}'])
def test_a_file_that_says_no_role_is_none(tmp_path: Path, content: str) -> None:
    path = tmp_path / "role.json"
    path.write_text(content)
    assert LastRole(path).read() is None
    assert LastRole(tmp_path / "absent").read() is None
    assert LastRole(None).read() is None
