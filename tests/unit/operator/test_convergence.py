"""From any state, through lost actions, crashes, restarts and reorderings, a service ends where its spec says."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman.api.protocol.names import LANGUAGE_ROLES, Role
from pointsman.api.v1alpha1.llmservice import EncodePoolSpec, EncodeSpec
from pointsman.operator.core import actions as act
from pointsman.operator.core.decide import decide, next_look_s, workers_to_ask
from pointsman.operator.core.snapshot import Pool
from unit.operator.random_worlds import worlds
from unit.operator.world import FOUND_LOST_S, LOST_NODE_S, NODES, Render, World


@settings(max_examples=150, deadline=None)
@given(worlds(), st.floats(0.0, 0.4))
def test_every_state_converges_once_misfortune_ends(world: World, misfortune: float) -> None:
    world.misfortune = misfortune
    for _ in range(30):
        world.reconcile()
        world.tick()
    world.misfortune = 0.0
    assert world.run(200), [(pod.name, pod.role, world.engines[uid]) for uid, pod in world.pods.items()]


@settings(max_examples=60, deadline=None)
@given(worlds(), st.floats(0.0, 0.3))
def test_an_encode_pool_comes_and_goes_with_the_spec(world: World, misfortune: float) -> None:
    """Whether the service has one is edited back and forth; the other pools have what they should all the time."""
    world.service = replace(world.service, has_finalizer=True)
    with_encode = world.service.spec.model_copy(
        update={
            "encode": EncodeSpec(),
            "pools": world.service.spec.pools.model_copy(update={"encode": EncodePoolSpec(replicas=2)}),
        }
    )
    without = with_encode.model_copy(
        update={"encode": None, "pools": with_encode.pools.model_copy(update={"encode": None})}
    )
    for wanted in (with_encode, without, with_encode):
        world.service = replace(world.service, spec=wanted)
        if wanted.encode is not None and Role.ENCODE not in world.pools:  # the shell makes a missing pool
            world.pools[Role.ENCODE] = Pool(uid="p-e", resource_version="1", replicas=2, copied_replicas=2)
        world.misfortune = misfortune
        for _ in range(10):
            world.reconcile()
            world.tick()
        world.misfortune = 0.0
        assert world.run(200), [(pod.name, pod.role, world.engines[uid]) for uid, pod in world.pods.items()]
    assert len(world.routable(Role.ENCODE)) == world.pools[Role.ENCODE].replicas


@settings(max_examples=100, deadline=None)
@given(worlds())
def test_a_role_that_served_is_never_emptied_by_the_operator(world: World) -> None:
    """Without crashes, a role with a routable worker keeps one through any change of the numbers."""
    assert world.run(200)
    for _ in range(40):
        if world.dice.random() < 0.2:
            role = world.dice.choice(LANGUAGE_ROLES)
            world.pools[role] = replace(world.pools[role], replicas=world.dice.randint(1, 4))
        world.reconcile()
        world.tick()
        for role in LANGUAGE_ROLES:
            assert world.routable(role), f"no {role} worker is routable"


@settings(max_examples=100, deadline=None)
@given(worlds(), st.floats(0.0, 0.3))
def test_a_deleted_service_ends_with_no_worker_and_no_finalizer(world: World, misfortune: float) -> None:
    world.service = replace(world.service, has_finalizer=True, deleting_since_s=world.now_s)
    world.misfortune = misfortune
    for _ in range(400):
        before = set(world.pods)
        world.reconcile()
        assert set(world.pods) <= before, "a deleted service got a new worker"
        world.tick()
        if not world.service.has_finalizer:
            break
    assert not world.service.has_finalizer
    assert all(pod.terminating for pod in world.pods.values())


@settings(max_examples=100, deadline=None)
@given(worlds())
def test_a_settled_service_needs_no_action_no_question_and_no_timer(world: World) -> None:
    assert world.run(200)
    snapshot = world.snapshot()
    assert decide(snapshot, Render()).actions == ()
    assert workers_to_ask(snapshot) == ()
    assert next_look_s(snapshot) is None


@settings(max_examples=100, deadline=None)
@given(worlds(), st.data())
def test_a_worker_that_drains_itself_is_unrouted_and_serves_again_after_a_real_request(
    world: World, data: st.DataObject
) -> None:
    """Its pod is Ready and its label says routable: it is found because every serving worker is polled."""
    assert world.run(200)
    before = set(world.pods)
    serving = sorted(uid for uid, pod in world.pods.items() if pod.routable)
    drained = data.draw(st.lists(st.sampled_from(serving), min_size=1, unique=True))
    for uid in drained:
        world.drain_itself(uid)
    unrouted: set[str] = set()
    for _ in range(60):
        world.tick()
        for action in world.reconcile().actions:
            if action.label == "SetRoutable" and isinstance(action, act.PatchPod) and not action.adds_to_routing:
                unrouted.add(action.uid)
    assert world.settled()
    assert unrouted == set(drained)
    assert set(world.pods) == before, "none is replaced"


@settings(max_examples=60, deadline=None)
@given(worlds())
def test_a_paused_service_is_not_touched(world: World) -> None:
    world.service = replace(world.service, spec=world.service.spec.model_copy(update={"paused": True}))
    assert decide(world.snapshot(), Render()).actions == ()


@settings(max_examples=60, deadline=None)
@given(worlds())
def test_without_a_renderer_nothing_is_created_but_what_lives_is_cared_for(world: World) -> None:
    world.service = replace(world.service, has_finalizer=True)
    for _ in range(20):
        before = set(world.pods)
        for action in decide(world.snapshot(), None).actions:
            world.execute(action)
        world.tick()
        assert set(world.pods) <= before


@settings(max_examples=60, deadline=None)
@given(worlds(), st.floats(0.0, 0.3))
def test_workers_on_lost_nodes_are_replaced_whether_or_not_the_nodes_come_back(world: World, misfortune: float) -> None:
    """Old and new pods, with and without a readiness gate. The world checks that there are never two for one."""
    world.service = replace(world.service, has_finalizer=True)
    assert world.run(200)
    for _ in range(3):
        world.misfortune = misfortune
        world.lose_node(world.dice.choice(NODES))
        for _ in range(world.dice.randrange(15)):
            world.reconcile()
            world.tick()
        for node in list(world.lost_nodes):
            if world.dice.random() < 0.5:
                world.return_node(node)
    world.misfortune = 0.0
    assert world.run(300), [(pod.name, pod.role, world.engines[uid]) for uid, pod in world.pods.items()]


@settings(max_examples=60, deadline=None)
@given(worlds())
def test_a_lost_worker_is_replaced_as_soon_as_kubernetes_deletes_its_pod(world: World) -> None:
    world.service = replace(world.service, has_finalizer=True)
    assert world.run(200)
    node = world.dice.choice(NODES)
    world.lose_node(node)
    for _ in range(int(FOUND_LOST_S + LOST_NODE_S) + 2):
        world.reconcile()
        world.tick()
    for role, pool in world.pools.items():
        bounds = world.service.spec.pools.of(role)
        there = [pod for pod in world.pods.values() if pod.role is role and not pod.terminating]
        assert len(there) == min(max(pool.replicas, bounds.min_replicas), bounds.max_replicas)
        assert all(pod.node != node for pod in there)
