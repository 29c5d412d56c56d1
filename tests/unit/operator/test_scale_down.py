"""How fast a pool shrinks: in batches, so that what the first ones were missed for is seen before the last ones go."""

import random
from itertools import pairwise

from pointsman.api.protocol.names import Role
from pointsman.operator.core.drain import DRAIN_BATCH_S
from unit.operator.world import World, service, spec


def world(decode: int, least: int = 1) -> World:
    """A settled service whose decode pool is to shrink."""
    it = World(service=service(spec(decode=(decode, least, 20))), dice=random.Random(1))
    assert it.run(200)
    return it


def shrink(it: World, to: int, *, busy: bool = True) -> list[int]:
    """Routable decode workers at each second of the scale-down."""
    if busy:
        for engine in it.engines.values():
            engine.in_flight = 5
    pool = it.pools[Role.DECODE]
    it.pools[Role.DECODE] = type(pool)(
        uid=pool.uid, resource_version="9", replicas=to, copied_replicas=pool.copied_replicas
    )
    routable = [len(it.routable(Role.DECODE))]
    for _ in range(60):
        it.reconcile()
        it.tick()
        routable.append(len(it.routable(Role.DECODE)))
    return routable


def test_twelve_of_sixteen_workers_that_have_work_do_not_leave_at_once() -> None:
    it = world(16)
    routable = shrink(it, 4)
    steps = {second: a - b for second, (a, b) in enumerate(pairwise(routable)) if a != b}
    assert list(steps.values()) == [4, 3, 3, 2]
    assert all(b - a >= DRAIN_BATCH_S for a, b in pairwise(steps))
    assert it.settled()


def test_idle_workers_make_room_for_the_next_as_soon_as_they_are_gone() -> None:
    it = world(16)
    routable = shrink(it, 4, busy=False)
    assert max(a - b for a, b in pairwise(routable)) == 4
    assert it.settled()


def test_a_small_pool_shrinks_at_once() -> None:
    routable = shrink(world(3), 1)
    assert routable[1] == 1


def test_workers_that_are_not_drained_yet_serve_on_when_they_are_needed_again() -> None:
    it = world(16)
    pods = set(it.pods)
    pool = it.pools[Role.DECODE]
    it.pools[Role.DECODE] = type(pool)(uid=pool.uid, resource_version="9", replicas=4, copied_replicas=16)
    for engine in it.engines.values():
        engine.in_flight = 5
    it.reconcile()
    it.pools[Role.DECODE] = pool
    assert it.run(60)
    assert set(it.pods) == pods


def test_workers_that_do_not_serve_are_not_waited_for() -> None:
    it = world(4)
    it.nodes = len(it.pods)
    pool = it.pools[Role.DECODE]
    it.pools[Role.DECODE] = type(pool)(uid=pool.uid, resource_version="9", replicas=16, copied_replicas=4)
    it.reconcile()
    it.tick()
    it.pools[Role.DECODE] = pool
    it.reconcile()
    assert sum(pod.draining or pod.terminating for pod in it.pods.values()) == 12
