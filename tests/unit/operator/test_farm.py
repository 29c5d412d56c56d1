"""Everything at once: people, the planner, dying pods, a dead operator, pauses and other people's writes.

Whatever happens, in whatever order: in the end every switch and plan has ended, every pool has what it asks for, all
of it serves, no worker is held, and no bound was ever exceeded on the way.
"""

from dataclasses import replace

from hypothesis import given, note, settings
from hypothesis import strategies as st

from pointsman.api.protocol.names import LANGUAGE_ROLES, Role
from pointsman.api.v1alpha1.plannerpolicy import Mode
from pointsman.operator.core.decide import decide, next_look_s
from unit.operator.limits import policy as limited
from unit.operator.planned import plan, policy
from unit.operator.planned import world as planned_world
from unit.operator.world import NODES, Render, World

BUDGET = 8
EVENTS = (
    *("switch", "plan", "forget a switch", "kill", "end", "scale", "edit", "pause", "outage", "mode", "work"),
    *("no policy", "rules", "full nodes", "free nodes", "forget a pool", "lose a node", "return a node"),
)


def befall(it: World, event: str) -> None:
    """Something happens that the operator did not do."""
    dice = it.dice
    living = [pod for pod in it.pods.values() if not pod.terminating and not pod.finished]
    match event:
        case "switch":
            it.switch(dice.choice(list(LANGUAGE_ROLES)), drainFirst=dice.random() < 0.5, drainTimeoutSeconds=8)
        case "plan":
            now = {role: it.pools[role].replicas if role in it.pools else 1 for role in LANGUAGE_ROLES}
            switched = dice.choice([-1, 0, 0, 1])
            wanted = (
                max(1, now[Role.PREFILL] + switched),
                max(1, now[Role.DECODE] - switched + dice.choice([-1, 0, 1])),
            )
            plan(it, *wanted, switches=switched, changesLayout=dice.random() < 0.8)
        case "forget a switch" if it.switches:
            del it.switches[dice.choice(sorted(it.switches))]
        case "kill" if living:
            pod = dice.choice(living)
            it.pods[pod.uid] = replace(pod, terminating=True)
        case "end" if living:
            pod = dice.choice(living)
            it.pods[pod.uid] = replace(
                pod, phase="Failed", pod_ready=False, container=replace(pod.container, running=False)
            )
        case "scale":
            role = dice.choice(list(LANGUAGE_ROLES))
            if role in it.pools:
                version = str(int(it.pools[role].resource_version) + 1)
                it.pools[role] = replace(it.pools[role], replicas=dice.randint(1, 4), resource_version=version)
        case "edit":
            pools = it.service.spec.pools
            edited = pools.model_copy(
                update={"decode": pools.decode.model_copy(update={"replicas": dice.randint(1, 4)})}
            )
            it.service = replace(it.service, spec=it.service.spec.model_copy(update={"pools": edited}))
        case "pause":
            paused = not it.service.spec.paused
            it.service = replace(it.service, spec=it.service.spec.model_copy(update={"paused": paused}))
            it.acting_since_s = it.now_s
        case "outage":
            it.now_s += dice.choice([5, 40, 4000])
            it.acting_since_s = it.now_s
        case "mode":
            it.policy = policy(dice.choice(list(Mode)), max_gpus=BUDGET)
        case "no policy":
            it.policy = None
        case "rules":
            names = ("roleSwitch", "scaleOut", "scaleIn")
            rules = {name: {"enabled": dice.random() < 0.5, "needsApproval": dice.random() < 0.3} for name in names}
            it.policy = limited(Mode.ACTIVE, budget={"maxGpus": BUDGET}, actions=rules)
        case "full nodes":
            it.nodes = len(living)
        case "free nodes":
            it.nodes = None
        case "lose a node":
            it.lose_node(dice.choice(NODES))
        case "return a node" if it.lost_nodes:
            it.return_node(dice.choice(sorted(it.lost_nodes)))
        case "forget a pool":
            it.pools.pop(dice.choice(list(LANGUAGE_ROLES)), None)
        case "work":
            for uid, engine in it.engines.items():
                if (
                    it.pods[uid].pod_ready or it.pods[uid].verified_container is not None
                ):  # nothing else is ever sent work
                    engine.in_flight = dice.randrange(6)


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    misfortune=st.floats(0.0, 0.25),
    events=st.lists(st.tuples(st.integers(0, 60), st.sampled_from(EVENTS)), max_size=14),
)
def test_whatever_happens_everything_ends_and_the_service_is_as_its_pools_say(
    seed: int, misfortune: float, events: list[tuple[int, str]]
) -> None:
    note(f"seed {seed}")
    it = planned_world(seed=seed, max_gpus=BUDGET)
    it.misfortune = misfortune
    for step in range(70):
        for at, event in events:
            if at == step:
                befall(it, event)
        it.reconcile()
        it.tick()
    it.misfortune, it.nodes = 0.0, None
    it.service = replace(it.service, spec=it.service.spec.model_copy(update={"paused": False}))
    for returned in (
        (),
        tuple(it.lost_nodes),
    ):  # lost nodes are no reason to wait, and their return is none to begin anew
        for node in returned:
            it.return_node(node)
        assert it.run(500), (
            [(s.name, s.status.phase, s.status.message) for s in it.switches.values() if not s.ended],
            [(p.name, p.status.phase, p.status.message) for p in it.plans.values() if not p.ended],
            [(p.name, p.role, p.claim, p.phase, p.ready, p.node) for p in it.pods.values()],
            it.lost_nodes,
        )
    assert all(switch.ended for switch in it.switches.values())
    assert all(made.ended for made in it.plans.values())
    assert decide(it.snapshot(), Render()).actions == ()
    assert next_look_s(it.snapshot()) is None, "nothing is looked at again for nothing"
    replicas = sum(pool.replicas for pool in it.pools.values())
    numbers = ("plan", "scale", "edit", "mode", "rules", "forget a pool")
    switched_only = not any(event in numbers for _, event in events)
    assert replicas == 5 or not switched_only, f"switches alone moved {replicas - 5:+d} replicas out of nowhere"
