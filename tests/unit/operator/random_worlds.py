"""Modelled worlds in any state."""

import random
from dataclasses import replace

from hypothesis import note
from hypothesis import strategies as st

from pointsman.api.protocol.control import WorkerPhase
from pointsman.api.protocol.names import LANGUAGE_ROLES, Role
from pointsman.operator.core.snapshot import Container, DrainReason, Worker
from unit.operator.world import KV, NODES, Engine, Render, World, service, spec

pool_numbers = st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4)).map(
    lambda numbers: (sorted(numbers)[1], sorted(numbers)[0], sorted(numbers)[2])
)


encode_numbers = st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(1, 3)).map(
    lambda numbers: (sorted(numbers)[1], sorted(numbers)[0], sorted(numbers)[2])
)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """A world in the middle of anything: workers of every age, phase, role, label and fate."""
    seed = draw(st.integers(0, 2**32 - 1))
    note(f"seed {seed}")
    dice = random.Random(seed)
    wanted = spec(
        prefill=draw(pool_numbers),
        decode=draw(pool_numbers),
        encode=draw(st.one_of(st.none(), encode_numbers)),
        drain_s=draw(st.sampled_from([0, 5, 60])),
    )
    world = World(service=service(wanted, has_finalizer=draw(st.booleans())), dice=dice)
    room = {role: wanted.pools.of(role).max_replicas for role in wanted.roles}
    for number in range(draw(st.integers(0, 6))):
        role = dice.choice(wanted.roles)
        terminating = dice.random() < 0.2
        if not terminating and not room[role]:
            continue
        room[role] -= not terminating
        engine = Engine(
            phase=dice.choice(list(WorkerPhase)),
            role=None if role is Role.ENCODE else dice.choice([None, *LANGUAGE_ROLES]),
            in_flight=dice.randrange(3),
        )
        if engine.phase in (WorkerPhase.STARTING, WorkerPhase.FAILED):
            engine = Engine()
        draining = dice.random() < 0.3
        verified = dice.choice([None, f"{role.label}/c0", "decode/before"])
        if verified == f"{role.label}/c0":  # only a container that served has this proof
            engine = Engine(phase=WorkerPhase.SERVING, role=role, verified=role, in_flight=dice.randrange(3))
        uid = f"old-{number}"
        world.engines[uid] = engine
        world.pods[uid] = Worker(
            name=f"chat-r-{number}",
            uid=uid,
            resource_version="1",
            created_s=900.0 + number,
            role=role,
            revision=Render().revision(role),
            kv_compatibility=KV,
            phase="Running",
            pod_ip="127.0.0.1",
            node=dice.choice(NODES),
            terminating=terminating,
            pod_ready=engine.phase is not WorkerPhase.STARTING,
            routable_label=not draining and dice.random() < 0.5,
            verified_container=verified,
            drain_started_s=990.0 if draining else None,
            drain_reason=DrainReason.SCALE_DOWN if draining else None,
            container=Container(running=True, id="c0"),
        )
    for role in wanted.roles:
        bounds = wanted.pools.of(role)
        world.pools[role] = replace(world.pools[role], replicas=dice.randint(1, bounds.max_replicas))
    return world
