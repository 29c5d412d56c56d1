"""On how many instances requests decode: owners, masters, scale-up by memory and by compute."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.serving.elastic.memory import NoRoom
from pointsman.serving.elastic.scaling import DecodePlan, choose_masters, choose_owners, plan_decoding
from pointsman.serving.elastic.types import DecodeBatch, Instance, RunningRequest, Settings, form_decode_batches


def request(name: str, arrival_s: float = 0.0, **tokens: int) -> RunningRequest:
    return RunningRequest(name, 1000, arrival_s, 5, 1.0, tokens)


def instances_with(free_slots: list[int]) -> list[Instance]:
    return [Instance(f"i{index}", free) for index, free in enumerate(free_slots)]


@given(
    st.lists(st.integers(1, 60), max_size=5), st.lists(st.integers(0, 80), min_size=1, max_size=5), st.integers(0, 20)
)
def test_every_token_has_one_owner_and_the_owners_are_as_few_as_possible(
    prompts: list[int], free_slots: list[int], room: int
) -> None:
    total, most_free = sum(prompts), sorted(free_slots, reverse=True)
    if total > sum(free_slots):
        with pytest.raises(NoRoom, match="do not fit"):
            choose_owners(prompts, instances_with(free_slots), room)
        return
    owners = choose_owners(prompts, instances_with(free_slots), room)
    assert [sum(count for _, count in each) for each in owners] == prompts
    stored = Counter[str]()
    for each in owners:
        assert all(count > 0 for _, count in each)
        stored.update(dict(each))
    free = {f"i{index}": count for index, count in enumerate(free_slots)}
    assert all(count <= free[name] for name, count in stored.items())
    needed = total + room if total + room <= sum(free_slots) else total
    if stored:
        assert sum(most_free[: len(stored) - 1]) < needed, "one instance less would not have been enough"


def test_the_fullest_of_the_owners_is_filled_first() -> None:
    """By hand: 80 tokens fit into 90 free slots, but 20 of room need 50 more. The fuller one gets 50, the other 30."""
    assert choose_owners([60, 20], instances_with([50, 90, 30]), 20) == [(("i0", 50), ("i1", 10)), (("i1", 20),)]
    assert choose_owners([60, 20], instances_with([50, 90, 30]), 10) == [(("i1", 60),), (("i1", 20),)]


@given(
    st.lists(st.integers(1, 60), max_size=5), st.lists(st.integers(1, 80), min_size=2, max_size=5), st.integers(2, 5)
)
def test_static_groups_share_each_prompt_evenly(prompts: list[int], free_slots: list[int], least: int) -> None:
    if sum(prompts) > sum(free_slots):
        return
    owners = choose_owners(prompts, instances_with(free_slots), 0, least)
    assert [sum(count for _, count in each) for each in owners] == prompts
    stored = sum((Counter(dict(each)) for each in owners), Counter[str]())
    assert all(count <= free_slots[int(name[1:])] for name, count in stored.items())
    if prompts and max(prompts) <= min(free_slots) // len(prompts):
        sharers = min(least, len(free_slots))
        assert all(max(dict(each).values()) - min(dict(each).values()) <= 1 for each in owners if len(each) == sharers)
        assert all(len(each) == min(sharers, prompt) for each, prompt in zip(owners, prompts, strict=True))


def test_the_room_is_given_up_if_no_instances_have_it() -> None:
    assert choose_owners([60], instances_with([30, 30]), 1) == [(("i1", 30), ("i0", 30))]


@given(
    st.dictionaries(st.sampled_from("abcd"), st.integers(0, 9), min_size=1),
    st.integers(0, 40),
    st.integers(1, 8),
)
def test_every_request_gets_a_master_with_a_free_slot(free: dict[str, int], count: int, per_master: int) -> None:
    requests = [request(f"r{index}", **dict.fromkeys(free, 1)) for index in range(count)]
    if count > sum(free.values()):
        with pytest.raises(NoRoom):
            choose_masters(requests, free, per_master)
        return
    masters = choose_masters(requests, free, per_master)
    assert len(masters) == count
    assert all(used <= free[name] for name, used in Counter(masters.values()).items())


def test_masters_by_hand() -> None:
    """10 requests on 3 instances with 2, 9 and 9 free slots, at most 3 each: 2, then max(8/2, 3) = 4, then 4."""
    requests = [request(f"r{index}", **{"abc"[index % 3]: 7}) for index in range(10)]
    masters = choose_masters(requests, {"a": 9, "b": 2, "c": 9}, 3)
    assert Counter(masters.values()) == {"b": 2, "a": 4, "c": 4}
    assert {masters["r1"], masters["r4"]} == {"b"}, "the ones with KV on b"
    assert all(masters[f"r{index}"] == "a" for index in (0, 3, 6, 9))


def test_a_small_batch_has_one_master() -> None:
    masters = choose_masters([request("r", a=5, b=5)], {"a": 4, "b": 9}, 128)
    assert masters == {"r": "a"}


def planned(
    instances: list[Instance],
    requests: list[RunningRequest],
    idle: list[Instance] | None = None,
    per_master: int = 128,
    stepping: set[str] | None = None,
) -> DecodePlan:
    batches: list[DecodeBatch] = form_decode_batches(instances, requests)
    steps = {each.id for each in requests} if stepping is None else stepping
    return plan_decoding(batches, idle or [], steps, Settings(requests_per_master=per_master))


def test_a_batch_without_slots_merges_with_one_that_has_room_before_an_idle_instance_joins() -> None:
    full, roomy = Instance("full", 10, 10), Instance("roomy", 20, 10)
    requests = [request("p", full=10), request("q", roomy=10)]
    plan = planned([full, roomy], requests, idle=[Instance("i", 10)])
    (iteration,) = plan.iterations
    assert iteration.instances == ("full", "roomy")
    assert dict(iteration.masters) == {"p": "roomy", "q": "roomy"}
    assert plan.reasons == (
        "The decode batches on full and roomy merge: the first one lacks 1 slot, the other one has 9 to spare.",
    )


def test_an_idle_instance_joins_a_batch_that_no_other_can_help() -> None:
    plan = planned([Instance("full", 10, 10)], [request("p", full=10)], idle=[Instance("i", 10)])
    (iteration,) = plan.iterations
    assert (iteration.instances, iteration.masters, iteration.added) == (("full", "i"), (("p", "i"),), ("i",))
    assert plan.reasons == ("i joins the decode batch on full, which lacks 1 slot.",)


def test_the_youngest_request_pauses_if_no_slot_is_left() -> None:
    requests = [request("young", 2.0, a=5), request("old", 1.0, a=4)]
    plan = planned([Instance("a", 10, 9)], requests)
    (iteration,) = plan.iterations
    assert iteration.masters == (("old", "a"),)
    assert iteration.paused == ("young",)
    assert plan.reasons == ("1 request on a must wait, the youngest first: no slot is free.",)
    assert planned([Instance("a", 9, 9)], requests).paused == ("young", "old")


def test_idle_instances_join_a_batch_with_too_many_requests_per_instance() -> None:
    """By hand: 5 requests at 2 each need 3 instances."""
    requests = [request(f"r{index}", a=1) for index in range(5)]
    idle = instances_with([50, 50, 50])
    (iteration,) = planned([Instance("a", 20, 5)], requests, idle, per_master=2).iterations
    assert iteration.added == ("i0", "i1")
    assert sorted(Counter(dict(iteration.masters).values()).values()) == [1, 2, 2]


def test_a_request_that_may_not_step_pauses_and_lends_its_slots() -> None:
    requests = [request("p", full=10), request("q", roomy=10)]
    plan = planned([Instance("full", 10, 10), Instance("roomy", 11, 10)], requests, stepping={"p"})
    (iteration,) = plan.iterations
    assert iteration.masters == (("p", "roomy"),)
    assert iteration.paused == ("q",)
