"""Role switches: where they may begin, how they end, and that the books are right after every one."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from pointsman.api.protocol.names import LANGUAGE_ROLES, Role
from pointsman.api.v1alpha1.roleswitch import SwitchPhase, SwitchReason
from pointsman.operator.core.actions import SetSwitchStatus
from pointsman.operator.core.decide import decide, next_look_s
from pointsman.operator.core.snapshot import Switch, SwitchClaim
from pointsman.operator.core.switching import KEPT_SWITCHES
from unit.operator.world import Render, World, service, spec


def world(prefill: int = 2, decode: int = 3, *, seed: int = 1, least: int = 1, most: int = 6) -> World:
    """A settled service."""
    wanted = spec(prefill=(prefill, least, most), decode=(decode, least, most))
    made = World(service=service(wanted), dice=random.Random(seed))
    assert made.run(200)
    return made


def status(world: World, switch: Switch) -> tuple[SwitchPhase | None, str | None]:
    now = world.switches[switch.uid].status
    return now.phase, now.reason


def replicas(world: World) -> tuple[int, int]:
    return world.pools[Role.PREFILL].replicas, world.pools[Role.DECODE].replicas


@pytest.mark.parametrize("drain_first", [True, False])
def test_a_switch_moves_one_worker_and_one_replica(drain_first: bool) -> None:
    it = world()
    pods = set(it.pods)
    switch = it.switch(Role.DECODE, drainFirst=drain_first)
    assert it.run(60)
    assert status(it, switch) == (SwitchPhase.COMPLETED, SwitchReason.SWITCHED)
    assert replicas(it) == (3, 2)
    assert len(it.routable(Role.PREFILL)) == 3
    assert set(it.pods) == pods, "no pod was made or deleted"


def test_every_phase_is_passed_and_stamped_once() -> None:
    it = world()
    for engine in it.engines.values():
        engine.in_flight = 3
    switch = it.switch(Role.DECODE)
    assert it.run(60)
    seen = [entry.phase for entry in it.switches[switch.uid].status.phases]
    assert seen == [
        SwitchPhase.UNROUTING,
        SwitchPhase.DRAINING,
        SwitchPhase.SWITCHING,
        SwitchPhase.VERIFYING,
        SwitchPhase.COMPLETED,
    ]
    assert it.switches[switch.uid].status.conditions[0].type == "Complete"


def test_the_last_routable_worker_of_a_role_is_refused() -> None:
    it = world(prefill=1, decode=2, least=1)
    assert it.run(1)
    first = it.switch(Role.PREFILL)
    assert it.run(60)
    assert status(it, first) == (SwitchPhase.FAILED, SwitchReason.BELOW_MINIMUM)
    lonely = next(pod for pod in it.pods.values() if pod.role is Role.DECODE)
    it.engines[lonely.uid].role = None
    it.pods[lonely.uid] = replace(lonely, pod_ready=False)
    second = it.switch(Role.DECODE)
    it.reconcile()
    assert status(it, second) == (SwitchPhase.PENDING, SwitchReason.LAST_ROUTABLE_WORKER)
    message = it.switches[second.uid].status.message
    assert message is not None
    assert message.endswith(f"; {lonely.name} fails its readiness probe")
    assert next_look_s(it.snapshot()) is not None, "it looks again by itself"
    it.now_s += 11
    it.reconcile()
    assert status(it, second) == (SwitchPhase.FAILED, SwitchReason.LAST_ROUTABLE_WORKER)


@pytest.mark.parametrize(
    ("worker", "reason"), [("nobody", SwitchReason.WORKER_NOT_FOUND), ("PREFILL", SwitchReason.WRONG_ROLE)]
)
def test_a_named_worker_that_cannot_is_refused_with_what_would_be_right(worker: str, reason: SwitchReason) -> None:
    it = world()
    name = it.routable(Role.PREFILL)[0].name if worker == "PREFILL" else worker
    switch = it.switch(Role.DECODE, worker=name)
    it.reconcile()
    assert status(it, switch) == (SwitchPhase.FAILED, reason)
    message = it.switches[switch.uid].status.message or ""
    assert name in message
    assert "decode" in message


def test_a_pool_never_leaves_its_bounds() -> None:
    it = world(prefill=2, decode=3, most=2)
    switch = it.switch(Role.DECODE)
    it.reconcile()
    assert status(it, switch) == (SwitchPhase.FAILED, SwitchReason.ABOVE_MAXIMUM)


def test_the_second_of_two_switches_of_one_worker_waits_and_says_for_whom() -> None:
    it = world(decode=4)
    name = it.routable(Role.DECODE)[0].name
    first, second = it.switch(Role.DECODE, worker=name), it.switch(Role.DECODE, worker=name)
    it.reconcile()
    it.reconcile()
    assert status(it, second) == (SwitchPhase.PENDING, SwitchReason.WORKER_BUSY)
    assert first.name in (it.switches[second.uid].status.message or "")
    assert it.run(100)
    assert status(it, first)[0] is SwitchPhase.COMPLETED
    assert status(it, second) == (SwitchPhase.FAILED, SwitchReason.WRONG_ROLE)
    assert replicas(it) == (3, 3)


def test_work_that_does_not_end_in_time_rolls_the_switch_back_and_nothing_is_lost() -> None:
    it = world()
    chosen = it.routable(Role.DECODE)[0]
    switch = it.switch(Role.DECODE, worker=chosen.name, drainTimeoutSeconds=5)
    for _ in range(20):
        it.engines[chosen.uid].in_flight = 4  # a stream without end
        it.reconcile()
        it.tick()
    it.engines[chosen.uid].in_flight = 0
    assert it.run(60)
    assert status(it, switch) == (SwitchPhase.ROLLED_BACK, SwitchReason.DRAIN_TIMED_OUT)
    assert replicas(it) == (2, 3)
    assert it.pods[chosen.uid] in it.routable(Role.DECODE)
    assert not it.lost_work


def test_a_failed_verification_rolls_back() -> None:
    it = world()
    chosen = it.routable(Role.DECODE)[0]
    it.cannot_prove.add((chosen.uid, Role.PREFILL))
    switch = it.switch(Role.DECODE, worker=chosen.name)
    assert it.run(100)
    assert status(it, switch) == (SwitchPhase.ROLLED_BACK, SwitchReason.VERIFY_FAILED)
    assert replicas(it) == (2, 3)
    assert chosen.uid in {pod.uid for pod in it.routable(Role.DECODE)}


def test_a_failed_rollback_replaces_the_worker() -> None:
    it = world()
    chosen = it.routable(Role.DECODE)[0]
    it.cannot_prove |= {(chosen.uid, role) for role in LANGUAGE_ROLES}
    switch = it.switch(Role.DECODE, worker=chosen.name)
    assert it.run(300)
    assert status(it, switch) == (SwitchPhase.FAILED, SwitchReason.ROLLBACK_FAILED)
    assert replicas(it) == (2, 3)
    assert chosen.uid not in it.pods


def test_a_container_that_restarts_after_a_switch_comes_back_in_the_new_role() -> None:
    it = world()
    chosen = it.routable(Role.DECODE)[0]
    it.switch(Role.DECODE, worker=chosen.name)
    assert it.run(60)
    it._crash(chosen.uid, it.pods[chosen.uid])
    assert it.run(60)
    assert it.engines[chosen.uid].role is Role.PREFILL


def test_a_pod_that_dies_on_the_way_fails_the_switch_and_is_replaced_in_its_old_pool() -> None:
    it = world()
    switch = it.switch(Role.DECODE)
    it.reconcile()
    it.reconcile()
    held = next(pod for pod in it.pods.values() if pod.claim)
    it.pods[held.uid] = replace(held, terminating=True)
    assert it.run(100)
    assert status(it, switch) == (SwitchPhase.FAILED, SwitchReason.WORKER_LOST)
    assert replicas(it) == (2, 3)


def test_a_pod_that_ended_for_good_on_the_way_is_not_waited_for() -> None:
    it = world()
    switch = it.switch(Role.DECODE)
    it.reconcile()
    it.reconcile()
    held = next(pod for pod in it.pods.values() if pod.claim)
    it.pods[held.uid] = replace(held, phase="Failed", pod_ready=False, container=replace(held.container, running=False))
    for _ in range(10):
        it.reconcile()
        it.tick()
    assert status(it, switch) == (SwitchPhase.FAILED, SwitchReason.WORKER_LOST)
    assert it.run(100)
    assert replicas(it) == (2, 3)


def test_a_pod_that_dies_with_the_books_half_moved_is_not_followed_by_another_one() -> None:
    """The status of the switch was lost each time: only the books say that it is done."""
    it = world()
    switch = it.switch(Role.DECODE, drainFirst=False)
    while not any(switch.uid in pool.moved_by for pool in it.pools.values()):
        for action in decide(it.snapshot(), Render()).actions:
            if not isinstance(action, SetSwitchStatus):
                it.execute(action)
        it.tick()
    held = next(pod for pod in it.pods.values() if pod.claim)
    others = {uid for uid, pod in it.pods.items() if pod.role is Role.DECODE and uid != held.uid}
    it.pods[held.uid] = replace(held, terminating=True)
    assert it.run(100)
    assert status(it, switch)[0] is SwitchPhase.COMPLETED
    assert replicas(it) == (3, 2)
    assert {it.pods[uid].role for uid in others} == {Role.DECODE}, "nobody else is switched in its place"


def test_of_two_switches_into_the_last_two_places_both_are_carried_out() -> None:
    """The +1 of the first may be in the books while it still runs: it must not be counted twice."""
    it = world(prefill=2, decode=4, most=4)
    first = it.switch(Role.DECODE)
    while not any(first.uid in pool.moved_by for pool in it.pools.values()):
        it.reconcile()
        it.tick(0.2)
    second = it.switch(Role.DECODE)
    it.reconcile()
    assert status(it, second)[0] is not SwitchPhase.FAILED, it.switches[second.uid].status.message
    assert it.run(100)
    assert replicas(it) == (4, 2)


@pytest.mark.parametrize("phase", [SwitchPhase.SWITCHING, SwitchPhase.ROLLING_BACK])
def test_time_in_which_nobody_looked_is_not_held_against_the_worker(phase: SwitchPhase) -> None:
    """The operator was dead, or the service paused, for an hour: the worker gets its whole time all the same."""
    it = world()
    chosen = it.routable(Role.DECODE)[0]
    if phase is SwitchPhase.ROLLING_BACK:
        it.cannot_prove.add((chosen.uid, Role.PREFILL))
    switch = it.switch(Role.DECODE, worker=chosen.name)
    while status(it, switch)[0] is not phase:
        it.reconcile()
        it.tick(0.2)
    it.now_s += 3600
    it.acting_since_s = it.now_s
    assert it.run(100)
    expected = SwitchPhase.COMPLETED if phase is SwitchPhase.SWITCHING else SwitchPhase.ROLLED_BACK
    assert status(it, switch)[0] is expected
    assert chosen.uid in it.pods, "it is not replaced"


def test_a_worker_that_finished_its_work_just_too_late_is_switched_all_the_same() -> None:
    it = world()
    chosen = it.routable(Role.DECODE)[0]
    it.engines[chosen.uid].in_flight = 4
    switch = it.switch(Role.DECODE, worker=chosen.name, drainTimeoutSeconds=5)
    while status(it, switch)[0] is not SwitchPhase.DRAINING:
        it.reconcile()
        it.tick(0.2)
    it.engines[chosen.uid].in_flight = 0
    for uses in it.gateways.values():
        uses.discard(chosen.uid)
    it.now_s += 60  # the look before was long ago
    assert it.run(60)
    assert status(it, switch)[0] is SwitchPhase.COMPLETED


def test_a_switch_created_while_nobody_looked_gets_the_same_patience() -> None:
    it = world(prefill=1, decode=2)
    lonely = it.routable(Role.DECODE)[0]
    it.engines[lonely.uid].role = None
    it.pods[lonely.uid] = replace(lonely, pod_ready=False)
    switch = it.switch(Role.DECODE)
    it.now_s += 60
    it.acting_since_s = it.now_s
    it.reconcile()
    assert status(it, switch) == (SwitchPhase.PENDING, SwitchReason.LAST_ROUTABLE_WORKER)


def test_a_deleted_service_ends_its_switches() -> None:
    it = world()
    switch = it.switch(Role.DECODE)
    it.reconcile()
    it.service = replace(it.service, deleting_since_s=it.now_s)
    it.reconcile()
    assert status(it, switch) == (SwitchPhase.FAILED, SwitchReason.SERVICE_DELETED)


def test_a_claim_survives_its_annotation_and_a_foreign_one_is_none() -> None:
    claim = SwitchClaim(uid="1-2", source=Role.DECODE, target=Role.PREFILL)
    assert SwitchClaim.parse(str(claim)) == claim
    for foreign in (None, "", "1-2", "1-2/decode", "1-2/decode/encode", "/decode/prefill"):
        assert SwitchClaim.parse(foreign) is None


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    misfortune=st.floats(0.0, 0.35),
    plan=st.lists(st.tuples(st.integers(0, 40), st.sampled_from(Role), st.booleans()), min_size=1, max_size=6),
)
def test_through_lost_writes_crashes_and_restarts_every_switch_ends_and_the_books_are_exact(
    seed: int, misfortune: float, plan: list[tuple[int, Role, bool]]
) -> None:
    """A write lost in a shuffled pass is what a killed operator leaves behind: it keeps nothing in memory."""
    note(f"seed {seed}")
    it = world(prefill=2, decode=3, seed=seed)
    it.misfortune = misfortune
    for step in range(60):
        for at, source, drain_first in plan:
            if at == step:
                it.switch(source, drainFirst=drain_first, drainTimeoutSeconds=8)
        it.reconcile()
        it.tick()
    it.misfortune = 0.0
    assert it.run(400), [(s.name, s.status.phase, s.status.reason) for s in it.switches.values()]
    completed = [s for s in it.switches.values() if s.status.phase is SwitchPhase.COMPLETED]
    gained = sum(1 if s.target is Role.PREFILL else -1 for s in completed)
    assert all(s.ended for s in it.switches.values())
    assert replicas(it) == (2 + gained, 3 - gained)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), cut=st.integers(0, 25), drain_first=st.booleans())
def test_a_switch_deleted_at_any_moment_leaves_exact_books_and_no_held_worker(
    seed: int, cut: int, drain_first: bool
) -> None:
    it = world(seed=seed)
    switch = it.switch(Role.DECODE, drainFirst=drain_first)
    for _ in range(cut):
        it.reconcile()
        it.tick(0.2)
    del it.switches[switch.uid]
    assert it.run(200)
    assert replicas(it) in {(2, 3), (3, 2)}


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_no_role_is_emptied_by_any_series_of_switches(seed: int) -> None:
    it = world(seed=seed)
    for _ in range(80):
        if it.dice.random() < 0.3:
            it.switch(it.dice.choice(list(LANGUAGE_ROLES)), drainFirst=it.dice.random() < 0.5)
        it.reconcile()
        it.tick()
        for role in LANGUAGE_ROLES:
            assert it.routable(role), f"no {role} worker is routable"


def test_a_paused_service_needs_no_timer_be_it_in_the_middle_of_a_switch() -> None:
    it = world()
    it.switch(Role.DECODE)
    it.reconcile()
    it.reconcile()
    assert any(pod.claim for pod in it.pods.values())
    it.service = replace(it.service, spec=it.service.spec.model_copy(update={"paused": True}))
    assert decide(it.snapshot(), Render()).actions == ()
    assert next_look_s(it.snapshot()) is None


def test_after_its_switches_a_service_needs_no_timer() -> None:
    it = world()
    it.switch(Role.DECODE)
    assert it.run(60)
    assert decide(it.snapshot(), Render()).actions == ()
    assert next_look_s(it.snapshot()) is None


def test_a_switch_that_is_created_while_the_service_is_paused_says_what_it_waits_for() -> None:
    it = world()
    it.service = replace(it.service, spec=it.service.spec.model_copy(update={"paused": True}))
    switch = it.switch(Role.DECODE)
    it.reconcile()
    assert status(it, switch) == (SwitchPhase.PENDING, SwitchReason.SERVICE_PAUSED)
    assert decide(it.snapshot(), Render()).actions == (), "it is said once"
    assert not any(pod.claim for pod in it.pods.values())
    it.service = replace(it.service, spec=it.service.spec.model_copy(update={"paused": False}))
    assert it.run(60)
    assert status(it, switch) == (SwitchPhase.COMPLETED, SwitchReason.SWITCHED)


def test_a_switch_that_had_begun_before_the_pause_is_left_as_it_is() -> None:
    it = world()
    it.switch(Role.DECODE)
    while not any(pod.claim for pod in it.pods.values()):
        it.reconcile()
    it.service = replace(it.service, spec=it.service.spec.model_copy(update={"paused": True}))
    assert decide(it.snapshot(), Render()).actions == ()


def test_of_ended_switches_that_people_created_the_newest_are_kept() -> None:
    it = world()
    for number in range(KEPT_SWITCHES + 3):
        it.now_s += 1
        it.switch(Role.DECODE, worker=f"nobody-{number}")
    plans = it.switch(Role.DECODE, worker="nobody", reason="plan/chat-00001")
    assert it.run(200)
    left = {s.spec.worker_name for s in it.switches.values()} - {"nobody"}
    assert left == {f"nobody-{number}" for number in range(3, KEPT_SWITCHES + 3)}, "the oldest three are gone"
    assert plans.uid in it.switches, "it goes with its plan"
    running = it.switch(Role.DECODE)
    it.switches[running.uid] = replace(running, created_s=0.0)
    assert it.run(60)
    assert status(it, running)[0] is SwitchPhase.COMPLETED, "one that runs is kept however old it is"
    assert len(it.switches) == KEPT_SWITCHES + 1


@pytest.mark.parametrize("reason", ["GatewaysUseIt", "FinishesWork", "ProvingItself"])
def test_a_switch_that_an_earlier_operator_began_goes_on_under_its_new_reasons(reason: str) -> None:
    it = world(prefill=1, decode=3)
    assert it.run(1)
    switch = it.switch(Role.DECODE)
    while it.switches[switch.uid].status.worker_uid is None:
        it.reconcile()
    seen = it.switches[switch.uid]
    it.switches[switch.uid] = replace(seen, status=seen.status.model_copy(update={"reason": reason}))
    assert it.run(60)
    assert it.switches[switch.uid].status.phase is SwitchPhase.COMPLETED
