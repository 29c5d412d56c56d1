"""After a rollback: objects that a newer version wrote come and go from view; all roles go on serving."""

from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman.api.protocol.names import LANGUAGE_ROLES
from pointsman.operator.core.decide import decide
from unit.operator.random_worlds import worlds
from unit.operator.world import Render, World


@settings(max_examples=60, deadline=None)
@given(worlds(), st.integers(1, 3))
def test_switches_that_cannot_be_read_in_the_middle_empty_no_role_and_end(world: World, count: int) -> None:
    assert world.run(200)
    for _ in range(count):
        world.switch(world.dice.choice(LANGUAGE_ROLES))
    for _ in range(60):
        for uid in world.switches:
            if world.dice.random() < 0.2:
                world.newer ^= {uid}
        world.reconcile()
        world.tick()
        for role in LANGUAGE_ROLES:
            assert world.routable(role), f"no {role} worker is routable"
    world.newer.clear()
    for _ in range(400):
        if world.settled() and not decide(world.snapshot(), Render()).actions:
            break
        world.reconcile()
        world.tick()
    assert world.settled()
    assert all(switch.ended for switch in world.switches.values())
