"""Whole rounds: every plan is one that the instances can carry out, and every request ends."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman.serving.elastic.latency_model import LatencyModel, PrefillTime
from pointsman.serving.elastic.round import PrefillRequest, RoundPlan, plan_round
from pointsman.serving.elastic.scaling import DecodeIteration
from pointsman.serving.elastic.types import Instance, Move, RunningRequest, Settings, Snapshot, WaitingRequest
from unit.serving.elastic.world import World

MODEL = LatencyModel({degree: PrefillTime(0.01, 0.02 / degree, 1e-5 / degree) for degree in range(1, 6)})
SPARSE = LatencyModel({degree: MODEL.by_degree[degree] for degree in (1, 2)})
FEW_REQUESTS_PER_MASTER = 2

REQUESTS = st.lists(st.tuples(st.integers(1, 90), st.integers(1, 25)), min_size=1, max_size=14)
INSTANCES = st.lists(st.tuples(st.integers(5, 60), st.integers(0, 1)), min_size=1, max_size=5)
SETTINGS = st.builds(
    Settings,
    max_prefill_s=st.sampled_from([0.5, 5.0]),
    max_prefill_requests=st.sampled_from([2, 64]),
    max_overtakes=st.integers(0, 3),
    requests_per_master=st.sampled_from([FEW_REQUESTS_PER_MASTER, 128]),
    decode_room_tokens=st.sampled_from([0, 4]),
    min_degree=st.sampled_from([1, 1, 2, 3]),
    migration_s_per_token=st.sampled_from([None, 0.0, 0.005]),
)


def world_of(instances: list[tuple[int, int]], model: LatencyModel, settings: Settings, rng: random.Random) -> World:
    names = [f"i{index}" for index in range(len(instances))]
    return World(
        {name: slots for name, (slots, _) in zip(names, instances, strict=True)},
        {name: domain for name, (_, domain) in zip(names, instances, strict=True)},
        model,
        settings,
        rng,
    )


def arrive(world: World, number: int, prompt: int, most_output: int) -> None:
    name = f"r{number}-{prompt}"
    ttft_s = world.rng.choice([None, 0.0, 1.0])
    world.waiting[name] = WaitingRequest(name, prompt, most_output, float(number), ttft_left_s=ttft_s)


@settings(max_examples=150)
@given(INSTANCES, REQUESTS, SETTINGS, st.sampled_from([MODEL, SPARSE]), st.integers(0, 2**32))
def test_every_request_ends_and_no_plan_exceeds_the_slots(
    instances: list[tuple[int, int]],
    requests: list[tuple[int, int]],
    settings: Settings,
    model: LatencyModel,
    seed: int,
) -> None:
    world = world_of(instances, model, settings, random.Random(seed))
    to_come = list(enumerate(requests))
    for _ in range(3000):
        while to_come and world.rng.random() < 0.5:
            number, (prompt, most_output) = to_come.pop(0)
            arrive(world, number, prompt, most_output)
        plan = world.round()
        assert plan.prefills or plan.decodes or world.iterations or not (world.running or world.waiting)
        if not world.end_one_iteration() and not to_come:
            break
    assert not world.waiting and not world.running
    assert len(world.finished) + len(world.too_large) == len(requests)
    assert set(world.finished.values()) <= {1}
    domains = {domain: sum(slots for slots, of in instances if of == domain) for _, domain in instances}
    for name in world.too_large:
        number, prompt = int(name[1:].split("-")[0]), requests[int(name[1:].split("-")[0])][0]
        assert model is SPARSE or prompt + requests[number][1] - 1 > max(domains.values())


@settings(max_examples=100)
@given(INSTANCES, REQUESTS, SETTINGS, st.integers(0, 2**32))
def test_every_request_ends_while_instances_drain_and_die(
    instances: list[tuple[int, int]], requests: list[tuple[int, int]], settings: Settings, seed: int
) -> None:
    world = world_of([*instances, (150, 0), (150, 1)], MODEL, settings, random.Random(seed))
    world.may_be_unsafe = True
    rng, to_come = world.rng, list(enumerate(requests))
    stable = {f"i{len(instances)}", f"i{len(instances) + 1}"}
    for _ in range(3000):
        while to_come and rng.random() < 0.5:
            number, (prompt, most_output) = to_come.pop(0)
            arrive(world, number, prompt, most_output)
        unstable = sorted(set(world.slots) - stable)
        if unstable and rng.random() < 0.05:
            world.lose(rng.choice(unstable))
        elif unstable and rng.random() < 0.1:
            world.draining.add(rng.choice(unstable))
        world.round()
        world.remove_drained()
        if not world.end_one_iteration() and not to_come and not (world.waiting or world.running):
            break
    assert not world.waiting and not world.running
    assert len(world.finished) + len(world.too_large) == len(requests)


def test_an_empty_snapshot_has_an_empty_plan() -> None:
    assert plan_round(Snapshot(()), MODEL, Settings()) == RoundPlan()
    waiting = WaitingRequest("r", 5, 5, 0.0)
    alone = plan_round(Snapshot((), (waiting,)), MODEL, Settings())
    assert alone == RoundPlan(overtaken={"r": 0})
    assert plan_round(Snapshot((Instance("a", 9),)), MODEL, Settings()) == RoundPlan()


def test_a_round_without_a_model_decodes_and_prefills_nothing() -> None:
    snapshot = Snapshot(
        (Instance("a", 20, 5),), (WaitingRequest("w", 5, 5, 0.0),), (RunningRequest("r", 9, 0.0, 3, 1.0, {"a": 5}),)
    )
    plan = plan_round(snapshot, LatencyModel({}), Settings())
    assert (plan.prefills, plan.decodes) == ((), (DecodeIteration(("a",), (("r", "a"),)),))


@pytest.mark.parametrize("state", ["busy", "draining"])
def test_an_instance_that_is_not_available_gets_nothing(state: str) -> None:
    instance = Instance("a", 20, 0, busy=state == "busy", draining=state == "draining")
    plan = plan_round(Snapshot((instance,), (WaitingRequest("w", 5, 5, 0.0),)), MODEL, Settings())
    assert (plan.prefills, plan.decodes, plan.overtaken) == ((), (), {"w": 0})


def test_an_instance_that_drains_goes_on_while_the_others_have_no_room_for_its_requests() -> None:
    """By hand: b takes over 4 tokens and keeps a slot; 26 stay on a, and once b is full only a has room."""
    instances = (Instance("a", 50, 30, draining=True), Instance("b", 5))
    requests = (RunningRequest("r", 40, 0.0, 3, 1.0, {"a": 30}),)
    plan = plan_round(Snapshot(instances, (), requests), MODEL, Settings())
    assert plan.moves == (Move("r", "a", "b", 4, "drain"),)
    full = (Instance("a", 50, 26, draining=True), Instance("b", 5, 5))
    requests = (RunningRequest("r", 40, 0.0, 3, 1.0, {"a": 26, "b": 5}),)
    plan = plan_round(Snapshot(full, (), requests), MODEL, Settings())
    assert (plan.moves, plan.recompute) == ((), ())
    assert plan.decodes == (DecodeIteration(("a", "b"), (("r", "a"),)),)
    assert plan.reasons[-1] == "a drains and continues meanwhile, because the others have too little room."


def test_a_request_that_can_never_fit_is_named_and_does_not_block_the_queue() -> None:
    waiting = (WaitingRequest("long", 90, 20, 0.0), WaitingRequest("short", 5, 5, 1.0))
    plan = plan_round(Snapshot((Instance("a", 50), Instance("b", 50)), waiting), MODEL, Settings(max_overtakes=0))
    assert plan.too_large == {"long": "Request long may need 109 slots; the instances that work together have 100."}
    assert [request.id for batch in plan.prefills for request in batch.requests] == ["short"]


def test_a_prompt_must_fit_a_measured_degree_of_the_domain_that_can_hold_the_request() -> None:
    """By hand: 47 + 8 slots are in domain 0 only, whose two largest instances hold 44 prompt tokens."""
    instances = (Instance("a", 13), Instance("b", 25), Instance("c", 19), Instance("d", 50, domain=1))
    plan = plan_round(Snapshot(instances, (WaitingRequest("r", 47, 9, 0.0),)), SPARSE, Settings())
    assert plan.too_large == {"r": "Request r has 47 prompt tokens; a prefill group holds 44."}


def test_long_and_short_prompts_are_prefilled_apart_and_decode_on_few_instances() -> None:
    """By hand: the long prompt is prefilled on two instances and kept on one; the short ones take the third."""
    waiting = (
        WaitingRequest("s1", 100, 50, 0.0),
        WaitingRequest("long", 40_000, 50, 1.0),
        WaitingRequest("s2", 100, 50, 2.0),
    )
    model = LatencyModel({degree: PrefillTime(0.002, 1e-4 / degree, 1e-8 / degree) for degree in range(1, 4)})
    snapshot = Snapshot(tuple(Instance(name, 50_000) for name in "abc"), waiting)
    plan = plan_round(snapshot, model, Settings(max_prefill_s=20))
    long, short = plan.prefills
    assert (long.instances, short.instances) == (("a", "b"), ("c",))
    assert long.requests == (PrefillRequest("long", (("a", 40_000),)),)
    assert [request.id for request in short.requests] == ["s1", "s2"]
    assert long.predicted_s == pytest.approx(0.002 + 2.0 + 8.0)
    assert plan.moves == ()
    assert plan.reasons == (
        "Prefill 3 prompts on up to 3 idle instances.",
        "Prefill 1 request on a, b in 10 s and keep the KV on a.",
        "Prefill 2 requests on c in 0.0222 s and keep the KV on c.",
    )


@pytest.mark.parametrize(("prompt", "waits"), [(100, True), (10, False)])
def test_a_prompt_waits_for_a_decode_iteration_only_if_its_instance_saves_more_than_that_takes(
    prompt: int, waits: bool
) -> None:
    """By hand: two instances instead of one save 50 ms for 100 tokens and 5 ms for 10; the constant is 10 ms."""
    model = LatencyModel({degree: PrefillTime(0.01, 0.001 / degree, 0) for degree in (1, 2)})
    instances = (Instance("a", 500, 10), Instance("b", 500, 10, busy=True, decoding=True))
    running = (RunningRequest("p", 200, 0.0, 2, 0.1, {"a": 10}), RunningRequest("q", 200, 0.0, 2, 0.1, {"b": 10}))
    waiting = (WaitingRequest("w", prompt, 1, 0.0),)
    plan = plan_round(Snapshot(instances, waiting, running, 10.0), model, Settings())
    assert [batch.instances for batch in plan.prefills] == ([] if waits else [("a",)])
    assert (plan.decodes, plan.paused) == ((), ("p",))
    assert ("Prompts wait" in plan.reasons[0]) == waits
    prefilling = (instances[0], Instance("b", 500, 10, busy=True))
    assert plan_round(Snapshot(prefilling, waiting, running, 10.0), model, Settings()).prefills


VACATING = Settings(migration_s_per_token=0.001)
ON_B_AND_C = (RunningRequest("p", 200, 0.0, 1, 0.0, {"b": 100}), RunningRequest("q", 100, 0.0, 1, 0.0, {"c": 10}))


def test_a_vacated_instance_hands_its_kv_over_and_prefills() -> None:
    instances = (Instance("a", 500), Instance("b", 500, 100), Instance("c", 500, 10))
    plan = plan_round(Snapshot(instances, (WaitingRequest("w", 400, 1, 0.0),), ON_B_AND_C), MODEL, VACATING)
    assert plan.moves == (Move("q", "c", "b", 10, "vacate"),)
    assert [batch.instances for batch in plan.prefills] == [("a", "c")]
    assert plan.decodes == (DecodeIteration(("b",), (("p", "b"), ("q", "b"))),)


def test_no_instance_is_vacated_that_the_batching_does_not_use() -> None:
    """By hand: together on a, d and c the prompts take 1.67 s instead of 2 s on a and d, but apart only 1 s each."""
    model = LatencyModel({1: PrefillTime(0, 0.01, 0), 2: PrefillTime(1, 0.01 / 2, 0), 3: PrefillTime(1, 0.01 / 3, 0)})
    instances = (Instance("a", 500), Instance("d", 500), Instance("b", 500, 100), Instance("c", 500, 10))
    waiting = (WaitingRequest("v", 100, 1, 0.0), WaitingRequest("w", 100, 1, 1.0))
    plan = plan_round(Snapshot(instances, waiting, ON_B_AND_C), model, VACATING)
    assert plan.moves == ()
    assert [batch.instances for batch in plan.prefills] == [("a",), ("d",)]
    assert [iteration.instances for iteration in plan.decodes] == [("b",), ("c",)]


@pytest.mark.parametrize(("tokens", "steps"), [(5, True), (7, False)])
def test_a_request_waits_if_its_token_would_keep_a_busy_one_from_ending(tokens: int, steps: bool) -> None:
    """By hand: p needs 2 more of 19 slots when its iteration ends. q leaves 3 with 5 + 1 tokens, 1 with 7 + 1."""
    instances = (Instance("a", 10, 10, busy=True), Instance("b", 9, tokens))
    running = (RunningRequest("p", 12, 0.0, 2, 1.0, {"a": 10}), RunningRequest("q", 14, 1.0, 2, 1.0, {"b": tokens}))
    plan = plan_round(Snapshot(instances, (), running), MODEL, Settings())
    assert plan.decodes == ((DecodeIteration(("b",), (("q", "b"),)),) if steps else ())
    assert plan.recompute == ()
    if not steps:
        assert plan.paused == ("q",)
        assert plan.reasons == ("1 request must wait: a further token could keep a paused request from ending.",)


def test_slots_that_no_request_uses_are_not_counted_on() -> None:
    """By hand: 6 of 20 slots are being released, so 10 + 4 slots at most can be promised."""
    for most_output, prefills in ((5, 1), (6, 0)):
        waiting = (WaitingRequest("w", 10, most_output, 0.0),)
        plan = plan_round(Snapshot((Instance("a", 20, 6),), waiting), MODEL, Settings())
        assert len(plan.prefills) == prefills


def test_slots_of_draining_instances_are_not_counted_on() -> None:
    instances = (Instance("a", 20), Instance("b", 20, draining=True))
    plan = plan_round(Snapshot(instances, (WaitingRequest("w", 10, 12, 0.0),)), MODEL, Settings())
    assert (plan.prefills, plan.too_large) == ((), {})


def test_a_drained_instance_hands_its_kv_over() -> None:
    instances = (Instance("a", 50, 20, draining=True), Instance("b", 50, 10))
    running = (RunningRequest("p", 30, 0.0, 2, 1.0, {"a": 20}), RunningRequest("q", 30, 0.0, 2, 1.0, {"b": 10}))
    plan = plan_round(Snapshot(instances, (), running), MODEL, Settings())
    assert plan.moves == (Move("p", "a", "b", 20, "drain"),)
    assert plan.decodes == (DecodeIteration(("b",), (("p", "b"), ("q", "b"))),)
    assert plan.reasons == ("a drains and hands 20 tokens over.",)


def test_the_youngest_is_computed_again_if_no_request_can_get_a_slot() -> None:
    """As after the loss of an instance: both slots of the pool are taken, and both requests want more."""
    running = (RunningRequest("old", 9, 0.0, 2, 1.0, {"a": 1}), RunningRequest("young", 9, 1.0, 2, 1.0, {"a": 1}))
    plan = plan_round(Snapshot((Instance("a", 2, 2),), (), running), MODEL, Settings())
    assert (plan.recompute, plan.paused, plan.decodes) == (("young",), ("old",), ())


@pytest.mark.parametrize(
    ("snapshot", "sentence"),
    [
        (lambda: Snapshot((Instance("a", 1), Instance("a", 1))), "two instances have the same name"),
        (lambda: Snapshot((), (WaitingRequest("r", 1, 1, 0.0),) * 2), "two requests have the same id"),
        (lambda: Snapshot((), (), (RunningRequest("r", 1, 0.0, 1, 0.0, {"a": 1}),)), "unknown instance a"),
        (lambda: Snapshot((), (), (RunningRequest("r", 1, 0.0, 1, 0.0, {}),)), "has no KV"),
        (
            lambda: Snapshot((Instance("a", 5, 1),), (), (RunningRequest("r", 1, 0.0, 1, 0.0, {"a": 2}),)),
            "requests have 2 tokens in 1 slots",
        ),
        (
            lambda: Snapshot(
                (Instance("a", 5, 1), Instance("b", 5, 1, domain=1)),
                (),
                (RunningRequest("r", 1, 0.0, 1, 0.0, {"a": 1, "b": 1}),),
            ),
            "more than one domain",
        ),
        (lambda: Instance("a", 5, 6), "used_slots is 6; it must be 0 to 5"),
        (lambda: WaitingRequest("r", 0, 1, 0.0), "prompt_tokens is 0"),
        (lambda: Settings(requests_per_master=0), "requests_per_master is 0"),
        (lambda: Settings(max_prefill_s=0), "max_prefill_s is 0"),
        (lambda: Settings(migration_s_per_token=-1), "migration_s_per_token is -1"),
    ],
)
def test_an_impossible_snapshot_is_refused(snapshot: object, sentence: str) -> None:
    assert callable(snapshot)
    with pytest.raises(ValueError, match=sentence):
        snapshot()
