"""The role of a worker and what follows from it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.api.protocol.control import RetryReason, WorkerPhase
from pointsman.api.protocol.names import Role
from pointsman.workers.core.roles import EngineCondition, RoleState

STATES = st.builds(
    RoleState,
    role=st.sampled_from([None, *Role]),
    draining=st.booleans(),
    engine=st.sampled_from(EngineCondition),
)


def test_a_worker_starts_without_a_role_and_takes_no_work() -> None:
    fresh = RoleState()
    assert fresh.phase is WorkerPhase.STARTING
    up = fresh.with_engine(EngineCondition.UP)
    assert (up.phase, up.role, up.refusal, up.pulls_prefills) == (WorkerPhase.IDLE, None, RetryReason.NO_ROLE, False)


@pytest.mark.parametrize(
    ("state", "refusal"),
    [
        (RoleState(Role.DECODE, False, EngineCondition.UP), None),
        (RoleState(Role.ENCODE, False, EngineCondition.UP), None),
        (RoleState(Role.PREFILL, False, EngineCondition.UP), RetryReason.WRONG_ROLE),
        (RoleState(Role.DECODE, True, EngineCondition.UP), RetryReason.DRAINING),
        (RoleState(None, False, EngineCondition.UP), RetryReason.NO_ROLE),
        (RoleState(Role.DECODE, False, EngineCondition.FAILED), RetryReason.ENGINE_FAILED),
        (RoleState(Role.DECODE, False, EngineCondition.STARTING), RetryReason.ENGINE_FAILED),
    ],
)
def test_a_refusal_says_why(state: RoleState, refusal: RetryReason | None) -> None:
    assert state.refusal is refusal


@given(STATES)
def test_only_a_serving_worker_takes_new_work_and_only_that_of_its_role(state: RoleState) -> None:
    takes_clients = state.refusal is None
    assert not (takes_clients and state.pulls_prefills)
    assert (takes_clients or state.pulls_prefills) == (state.phase is WorkerPhase.SERVING)


@given(STATES, st.sampled_from([None, *Role]))
def test_a_role_ends_a_drain_and_is_taken_as_often_as_it_is_given(state: RoleState, role: Role | None) -> None:
    once = state.assigned(role)
    assert not once.draining
    assert once.role is role
    assert once.assigned(role) == once


@given(STATES)
def test_a_drain_keeps_the_role(state: RoleState) -> None:
    drained = state.drained()
    assert drained.role is state.role
    assert drained.refusal is not None
    assert not drained.pulls_prefills
