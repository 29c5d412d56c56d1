"""Workers that may not exchange KV: no upgrade of the operator makes them, and where they are, the status says so."""

import random
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from pointsman.api.protocol.names import LANGUAGE_ROLES, Role
from pointsman.api.v1alpha1.conditions import ConditionStatus, ConditionType, Reason
from pointsman.api.v1alpha1.roleswitch import SwitchPhase, SwitchReason
from pointsman.operator.core import actions as act
from pointsman.operator.core.kv_groups import incompatibilities, worker_image
from pointsman.operator.core.roles import prefill_partner, role_actions
from pointsman.operator.core.snapshot import Container, Service, Snapshot, Worker
from unit.operator.reports import of, told
from unit.operator.scenes import snapshot, worker
from unit.operator.world import IMAGE, KV, World, kv_of, service, spec, state

NEW = "worker:2"
OTHER: dict[str, Any] = {"kv_compatibility": kv_of(NEW), "image": NEW}
SAME: dict[str, Any] = {"kv_compatibility": KV, "image": IMAGE}


def world(seed: int = 1, prefill: int = 2, decode: int = 3) -> World:
    """A settled service that runs the operator's default image."""
    made = World(service=service(spec(prefill=(prefill, 1, 6), decode=(decode, 1, 6))), dice=random.Random(seed))
    assert made.run(200)
    return made


def groups(it: World) -> set[str]:
    """KV groups of the workers that serve."""
    return {pod.kv_compatibility for role in LANGUAGE_ROLES for pod in it.routable(role)}


def image_of(
    of: Service | None = None, *, default: str = NEW, stored: str | None = None, workers: Iterable[Worker] = ()
) -> str:
    """The image of workers that are created now."""
    return worker_image(of or service(), default=default, stored=stored, workers=workers, compatibility_of=kv_of)


def test_the_image_of_new_workers_is_the_specs_or_the_one_that_the_service_runs() -> None:
    running = [worker("p", Role.PREFILL, **SAME), worker("d", **SAME)]
    pinned = service(spec(engine={"image": "mine:3"}))
    assert image_of(pinned, stored=IMAGE, workers=running) == "mine:3"
    assert image_of() == NEW, "a new service begins with the default"
    assert image_of(stored=IMAGE) == IMAGE, "also after its last worker is gone"
    assert image_of(service(follows_default_image=True), stored=IMAGE, workers=running) == NEW


def test_a_service_of_an_earlier_version_keeps_the_image_of_most_of_its_workers() -> None:
    running = [worker("p", Role.PREFILL, **SAME), worker("d", **SAME), worker("e", **OTHER)]
    assert image_of(workers=running) == IMAGE
    assert image_of(workers=running[1:]) == NEW, "of as many, the default"
    leaving = [replace(item, terminating=True) for item in running]
    assert image_of(workers=leaving) == NEW
    rewritten = replace(running[0], image="registry.mirror/worker:1")  # by an admission webhook
    assert image_of(default=IMAGE, workers=[rewritten]) == IMAGE, "what the hash in its label was not made of"


def test_an_image_that_no_worker_could_pull_is_given_up_when_the_default_is_corrected() -> None:
    waits = Container(waiting_reason="ImagePullBackOff")
    stuck = [replace(worker(name, **SAME), container=waits) for name in ("p", "d")]
    assert image_of(stored=IMAGE, workers=stuck) == NEW
    assert image_of(workers=stuck) == NEW, "nor is it taken for what a service of an earlier version runs"
    assert image_of(stored=IMAGE, workers=[*stuck, worker("e", **SAME)]) == IMAGE, "another worker runs it"
    starting = replace(worker("e", **SAME), container=Container())
    assert image_of(stored=IMAGE, workers=[*stuck, starting]) == IMAGE, "another worker may come to run it"


def test_instances_of_an_elastic_group_keep_the_image_of_their_group() -> None:
    told: dict[str, Any] = {
        "resource_version": "1",
        "created_s": 0.0,
        "role": None,
        "revision": "",
        "kv_compatibility": "",
    }
    instance = Worker(name="long-0", uid="u", image=IMAGE, **told)
    found = worker_image(
        service(kind="ElasticGroup"), default=NEW, stored=None, workers=[instance], compatibility_of=lambda _: ""
    )
    assert found == IMAGE


@pytest.mark.parametrize("role", LANGUAGE_ROLES)
def test_a_worker_that_is_replaced_after_an_upgrade_of_the_operator_serves_with_the_others(role: Role) -> None:
    """Two real clusters lost remote prefill this way: the replaced prefill worker waited for a partner for ever."""
    it = world()
    it.default_image = NEW
    it.terminate(it.routable(role)[0])
    assert it.run(60)
    assert groups(it) == {KV}
    assert len(it.routable(Role.PREFILL)) == 2
    message = of(told(it.snapshot()), ConditionType.PROGRESSING).message
    assert message == f"nothing to do; workers keep image {IMAGE}, the operator's default is {NEW}"


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), misfortune=st.floats(0.0, 0.3), deaths=st.integers(1, 6))
def test_no_death_and_no_lost_write_after_an_upgrade_parts_prefill_from_decode_workers(
    seed: int, misfortune: float, deaths: int
) -> None:
    note(f"seed {seed}")
    it = world(seed)
    it.stored_image = it.dice.choice([None, IMAGE])  # an earlier version stored none
    it.default_image = NEW
    it.misfortune = misfortune
    for _ in range(deaths):
        alive = [pod for pod in it.pods.values() if not pod.terminating]
        if len(alive) > 1:
            it.terminate(it.dice.choice(alive))
        for _ in range(it.dice.randint(0, 5)):
            it.reconcile()
            it.tick()
    it.misfortune = 0.0
    assert it.run(200)
    assert groups(it) == {KV}


def test_who_follows_the_default_image_replaces_workers_one_by_one_and_is_told_which() -> None:
    it = world(prefill=1, decode=2)
    it.default_image = NEW
    it.service = replace(it.service, follows_default_image=True)
    assert it.run(1), "nothing happens by itself"
    it.terminate(it.routable(Role.PREFILL)[0])
    for _ in range(30):
        it.reconcile()
        it.tick()
    said = told(it.snapshot())
    old = sorted(pod.name for pod in it.routable(Role.DECODE))
    for kind, status in ((ConditionType.PREFILL_READY, False), (ConditionType.READY, False)):
        condition = of(said, kind)
        assert (condition.status == "True", condition.reason) == (status, Reason.KV_INCOMPATIBLE), kind
    degraded = of(said, ConditionType.DEGRADED)
    assert (degraded.status, degraded.reason) == (ConditionStatus.TRUE, Reason.KV_INCOMPATIBLE)
    assert f"delete the workers of the older image or flags one by one: {', '.join(old)}" in degraded.message
    assert it.routable(Role.PREFILL) == [], "a prefill worker that nobody pulls from is no capacity"
    for name in old:
        it.terminate(next(pod for pod in it.pods.values() if pod.name == name))
        for _ in range(30):
            it.reconcile()
            it.tick()
    assert it.run(60)
    assert groups(it) == {kv_of(NEW)}
    assert of(told(it.snapshot()), ConditionType.DEGRADED).status is ConditionStatus.FALSE


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), misfortune=st.floats(0.0, 0.3))
def test_mixed_groups_never_end_remote_prefill_in_silence(seed: int, misfortune: float) -> None:
    """Whoever serves has a peer of the other role, or the status says KvIncompatible; and one by one it converges."""
    note(f"seed {seed}")
    it = world(seed)
    it.default_image = NEW
    it.service = replace(it.service, follows_default_image=True)
    it.misfortune = misfortune
    while old := [pod for pod in it.pods.values() if pod.image == IMAGE and not pod.terminating]:
        it.terminate(it.dice.choice(old))
        for _ in range(it.dice.randint(5, 15)):
            it.reconcile()
            it.tick()
            now = it.snapshot()
            prefill, decode = ({w.kv_compatibility for w in now.of(role) if w.active} for role in LANGUAGE_ROLES)
            if prefill and decode and not prefill & decode:
                assert list(incompatibilities(now)), f"no worker of {decode} can pull from one of {prefill}"
    it.misfortune = 0.0
    assert it.run(200)
    assert groups(it) == {kv_of(NEW)}
    assert list(incompatibilities(it.snapshot())) == []


def test_a_prefill_worker_nobody_may_pull_from_is_not_verified_with_another_prefill_worker() -> None:
    fresh = {"routable_label": False, "verified_container": None, "state": state(role=Role.PREFILL)}
    first, second = (worker(name, Role.PREFILL, **OTHER, **fresh) for name in ("p0", "p1"))
    other = worker("d", **SAME)
    assert list(role_actions(snapshot(first, second, other))) == []
    peer = worker("e", **OTHER)
    verified = list(role_actions(snapshot(first, second, other, peer)))
    assert [type(action) for action in verified] == [act.VerifyWorker] * 2


def test_a_decode_worker_without_a_prefill_worker_of_its_group_degrades_the_service_that_stays_ready() -> None:
    found = replace(
        snapshot(worker("p", Role.PREFILL, **SAME), worker("d", **SAME), worker("e", **OTHER)), kv_compatibility=KV
    )
    said = told(found)
    assert of(said, ConditionType.READY).status is ConditionStatus.TRUE
    degraded = of(said, ConditionType.DEGRADED)
    assert (degraded.status, degraded.reason) == (ConditionStatus.TRUE, Reason.KV_INCOMPATIBLE)
    assert degraded.message == (
        f"e ({NEW}, KV group {kv_of(NEW)}) cannot exchange KV with the prefill workers ({IMAGE}, KV group {KV}): "
        "they compute all prompts themselves; delete the workers of the older image or flags one by one: e"
    )


@pytest.mark.parametrize("missing", LANGUAGE_ROLES)
def test_a_role_without_any_worker_is_another_fault(missing: Role) -> None:
    there = worker("x", Role.DECODE if missing is Role.PREFILL else Role.PREFILL, **OTHER)
    assert list(incompatibilities(snapshot(there))) == []


def test_a_worker_whose_kv_nobody_could_pull_is_not_switched_to_prefill() -> None:
    it = world(prefill=1, decode=3)
    lonely = it.routable(Role.DECODE)[0]
    it.pods[lonely.uid] = replace(lonely, **OTHER)
    named, any_one = it.switch(Role.DECODE, worker=lonely.name), it.switch(Role.DECODE)
    for _ in range(60):
        it.reconcile()
        it.tick()
    refused = it.switches[named.uid].status
    assert (refused.phase, refused.reason) == (SwitchPhase.FAILED, SwitchReason.KV_INCOMPATIBLE)
    assert lonely.name in (refused.message or "")
    chosen = it.switches[any_one.uid].status
    assert (chosen.phase, chosen.worker == lonely.name) == (SwitchPhase.COMPLETED, False)


def test_many_new_prefill_workers_are_verified_with_many_decode_workers() -> None:
    """Each verification is a NIXL handshake and two prompts: one partner for all would be held up by hundreds."""
    decode = [worker(f"d{number:03}") for number in range(50)]
    fresh = [
        worker(
            f"p{number:03}", Role.PREFILL, routable_label=False, verified_container=None, state=state(role=Role.PREFILL)
        )
        for number in range(500)
    ]
    now = snapshot(*decode, *fresh)
    chosen = [prefill_partner(item, now) for item in fresh]
    load = {item.name: sum(other == item for other in chosen) for item in decode}
    assert sum(load.values()) == 500
    assert max(load.values()) <= 25, load
    assert min(load.values()) > 0


def test_a_partner_that_fails_is_not_tried_for_ever() -> None:
    decode = [worker(f"d{number}") for number in range(4)]
    fresh = worker("p", Role.PREFILL, routable_label=False, verified_container=None, state=state(role=Role.PREFILL))

    def partner(now: Snapshot) -> str:
        found = prefill_partner(fresh, now)
        assert found is not None
        return found.name

    now = snapshot(fresh, *decode)
    assert len({partner(replace(now, now_s=now.now_s + second)) for second in range(20)}) == 4
