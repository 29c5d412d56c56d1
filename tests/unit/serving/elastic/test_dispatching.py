"""Which waiting requests are admitted: bounds, order, and Gain > Cost by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.serving.elastic.dispatching import (
    Dispatch,
    count_overtakes,
    dispatch,
    estimate_decode_s,
    estimate_wait_s,
    preemption_cost,
    preemption_gain,
    spare_instances,
)
from pointsman.serving.elastic.latency_model import LatencyModel, PrefillTime
from pointsman.serving.elastic.memory import peak_slots
from pointsman.serving.elastic.types import (
    DecodeBatch,
    Instance,
    RunningRequest,
    Settings,
    WaitingRequest,
    form_decode_batches,
)
from pointsman.serving.objectives import Objectives

MODEL = LatencyModel({1: PrefillTime(0.0, 0.01, 0.0), 2: PrefillTime(0.0, 0.005, 0.0)})
"""10 ms a token, 5 ms on two instances."""


def waits(name: str, prompt: int, output: int = 1, overtaken: int = 0) -> WaitingRequest:
    return WaitingRequest(name, prompt, output, float(name.strip("abcdefghijklmnopqrstuvwxyz") or 0), overtaken)


def decodes(name: str, generated: int, decode_s: float, future: int = 1000, **tokens: int) -> RunningRequest:
    return RunningRequest(name, sum(tokens.values()) + future, 0.0, generated, decode_s, tokens)


def chosen(
    waiting: list[WaitingRequest],
    idle: list[Instance],
    batches: list[DecodeBatch] | None = None,
    mean_decode_s: float | None = None,
    slots: int = 10_000,
    settings: Settings | None = None,
) -> Dispatch:
    running = [request for batch in batches or [] for request in batch.requests]
    return dispatch(waiting, idle, batches or [], running, slots, MODEL, mean_decode_s, settings or Settings())


def ids(dispatched: Dispatch) -> list[str]:
    return [request.id for request in dispatched.requests]


def test_cost_and_gain_by_hand() -> None:
    """A prefill of 6 s delays requests with 10 and 30 tokens by 0.6 + 0.2 s a token.

    Waiting costs 20 - 4 s at worst, divided by prompts of 8 and 80 tokens: 2 + 0.2 s a token.
    """
    assert preemption_cost(6.0, [10, 30]) == pytest.approx(0.8)
    assert preemption_gain(20.0, [4.0, 9.0], [8, 80]) == pytest.approx(2.2)
    assert preemption_gain(20.0, [25.0, 30.0], [8]) == 0.0


def test_before_a_request_has_finished_running_ones_are_taken_to_their_most_output() -> None:
    """By hand: 4 s for 4 steps is 1 s a token, 99 tokens at most after the first; the other one has no pace yet."""
    running = [decodes("r", 5, 4.0, future=95, a=1), decodes("s", 1, 0.0, a=1)]
    assert estimate_decode_s(None, running) == pytest.approx(99.0)
    assert estimate_decode_s(7.0, running) == 7.0
    assert estimate_decode_s(None, []) == 0.0


def test_the_queue_is_admitted_in_order_until_the_tipping_point() -> None:
    """By hand: 3 s, then 3 + 1.9 s; a further 0.2 s would make it longer than 5 s, and later ones do not pass."""
    waiting = [waits("r1", 300), waits("r2", 190), waits("r3", 20), waits("r4", 1)]
    result = chosen(waiting, [Instance("a", 10_000)])
    assert ids(result) == ["r1", "r2"]
    assert result.reasons[-1] == "Request r3 waits: the prefill would take longer than 5 s."


def test_a_prompt_longer_than_the_tipping_point_is_prefilled_alone() -> None:
    assert ids(chosen([waits("r1", 9000), waits("r2", 1)], [Instance("a", 10_000)])) == ["r1"]


def test_a_request_that_could_be_evicted_later_waits() -> None:
    """By hand: 100 + 50 slots at most with 150 in all; one more output token would be one too many."""
    assert ids(chosen([waits("r1", 100, 51)], [Instance("a", 150)], slots=150)) == ["r1"]
    result = chosen([waits("r1", 100, 52)], [Instance("a", 150)], slots=150)
    assert ids(result) == []
    assert result.reasons == ("Request r1 waits: with its most output, all requests would need more than 150 slots.",)


def test_later_requests_pass_one_that_does_not_fit_but_only_so_often() -> None:
    idle = [Instance("a", 100)]
    waiting = [waits("r1", 200), *(waits(f"r{number}", 5) for number in range(2, 9))]
    assert ids(chosen(waiting, idle, settings=Settings(max_overtakes=3))) == ["r2", "r3", "r4"]
    assert ids(chosen(waiting, idle, settings=Settings(max_overtakes=0))) == []
    waiting[0] = waits("r1", 200, overtaken=2)
    assert ids(chosen(waiting, idle, settings=Settings(max_overtakes=3))) == ["r2"]


def test_a_request_that_must_not_be_overtaken_takes_the_slots_of_decode_batches() -> None:
    """No Gain > Cost: it was passed as often as allowed, and an instance is idle."""
    batch = DecodeBatch((Instance("b", 300, 100),), (decodes("d", 1, 100.0, b=100),))
    result = chosen([waits("r1", 200, overtaken=16)], [Instance("a", 100)], [batch], mean_decode_s=1.0)
    assert ids(result) == ["r1"]
    assert result.preempted == ()
    assert ids(chosen([waits("r1", 200, overtaken=15)], [Instance("a", 100)], [batch], mean_decode_s=1.0)) == []
    assert ids(chosen([waits("r1", 200, overtaken=16)], [], [batch], mean_decode_s=1.0)) == []


def test_requests_end_when_they_reach_the_mean_or_after_a_tenth_of_their_time() -> None:
    assert estimate_wait_s(5.0, [2.0, 4.0]) == pytest.approx(3.0)
    assert estimate_wait_s(5.0, [40.0]) == pytest.approx(4.0)
    assert estimate_wait_s(5.0, []) == 0.0


def test_spare_instances_are_the_smallest_that_others_could_empty() -> None:
    instances = [Instance("a", 50, 30), Instance("b", 100, 60), Instance("c", 40, 11), Instance("d", 20)]
    assert [each.name for each in spare_instances(instances)] == ["c", "d"]  # by hand: 101 tokens need a and b
    assert spare_instances([Instance("a", 50, 50)]) == []
    assert [each.name for each in spare_instances([Instance("a", 50)])] == ["a"]


@pytest.mark.parametrize(("decode_s", "admitted"), [(1.4, ["r1"]), (1.6, [])])
def test_a_prompt_does_not_wait_for_a_batch_that_could_make_room(decode_s: float, admitted: list[str]) -> None:
    """By hand: 100 tokens take 1 s on one instance, 0.5 s on two. The gain of a preemption is below its cost."""
    batch = DecodeBatch((Instance("b", 1000, 300),), (decodes("d", 10, decode_s, b=300),))
    running = list(batch.requests)
    result = dispatch([waits("r1", 100)], [], [batch], running, 10_000, MODEL, 2.0, Settings(), 1000, 2)
    assert ids(result) == admitted
    assert result.preempted == ()
    assert ("does not need" in result.reasons[0]) == bool(admitted)
    assert ids(dispatch([waits("r1", 100)], [], [batch], running, 10_000, MODEL, 2.0, Settings(), 99, 2)) == []


@pytest.mark.parametrize(("generated", "admitted"), [(10, ["r1"]), (9, [])])
def test_prompts_do_not_starve_decoding(generated: int, admitted: list[str]) -> None:
    """A batch that paused gets ten tokens before it pauses again for prompts that need spare instances only."""
    requests = (decodes("d", 30, 1.4, b=300), decodes("e", generated, 1.4, b=300))
    batch = DecodeBatch((Instance("b", 1000, 600),), requests)
    result = dispatch([waits("r1", 100)], [], [batch], list(requests), 10_000, MODEL, 2.0, Settings(), 1000, 2)
    assert ids(result) == admitted


@pytest.mark.parametrize(("mean_decode_s", "admitted"), [(2.1, ["r1"]), (1.9, [])])
def test_a_decode_batch_is_preempted_only_if_the_gain_exceeds_the_cost(
    mean_decode_s: float, admitted: list[str]
) -> None:
    """By hand: 100 tokens take 1 s; cost 1/100. Gain (mean - 1)/100: above or below 1/100 at a mean of 2 s."""
    batch = DecodeBatch((Instance("b", 1000, 300),), (decodes("d", 100, 1.0, b=300),))
    result = chosen([waits("r1", 100)], [], [batch], mean_decode_s)
    assert ids(result) == admitted
    assert [each.names for each in result.preempted] == ([("b",)] if admitted else [])
    assert "gain" in result.reasons[0] and "s/token" in result.reasons[0]


def test_batches_with_too_few_slots_each_are_judged_together() -> None:
    """By hand: 150 tokens on two instances take 0.75 s; cost 0.75/50 twice, gain 99/150."""
    batches = [
        DecodeBatch((Instance(name, 200, 100),), (decodes(f"d{name}", 50, 1.0, **{name: 100}),)) for name in "bc"
    ]
    result = chosen([waits("r1", 150)], [], batches, mean_decode_s=100.0)
    assert ids(result) == ["r1"]
    assert result.reasons[0] == "The decode batch on b, c pauses for 1 prompt: gain 0.66 > cost 0.03 s/token."


def test_a_batch_that_is_not_worth_it_does_not_spoil_the_next_one() -> None:
    """By hand: 1 s of prefill costs 1/1 s a token on b and 1/500 on c; both gain 99/100."""
    batches = [
        DecodeBatch((Instance("b", 200, 50),), (decodes("p", 1, 1.0, b=50),)),
        DecodeBatch((Instance("c", 200, 60),), (decodes("q", 500, 1.0, c=60),)),
    ]
    result = chosen([waits("r1", 100)], [], batches, mean_decode_s=100.0)
    assert [each.names for each in result.preempted] == [("c",)]
    assert result.reasons == (
        "The decode batch on b is not preempted for 1 prompt: gain 0.99 <= cost 1 s/token.",
        "The decode batch on c pauses for 1 prompt: gain 0.99 > cost 0.002 s/token.",
    )


def test_requests_that_passed_on_idle_instances_count_when_a_batch_is_preempted() -> None:
    """r2 passes r1 on the idle instance; r3 would fit into the batch's slots, but would be the second one."""
    batch = DecodeBatch((Instance("b", 60, 10),), (decodes("d", 500, 1.0, b=10),))
    waiting = [waits("r1", 200), waits("r2", 8), waits("r3", 20)]
    for max_overtakes, admitted in ((1, ["r2"]), (2, ["r2", "r3"])):
        settings = Settings(max_overtakes=max_overtakes)
        assert ids(chosen(waiting, [Instance("a", 10)], [batch], 100.0, settings=settings)) == admitted


def test_without_a_measured_degree_nothing_is_admitted() -> None:
    model = LatencyModel({2: PrefillTime(1, 1, 1)})
    result = dispatch([waits("r1", 1)], [Instance("a", 9)], [], [], 9, model, None, Settings())
    assert result == Dispatch((), (), ("Nothing is prefilled: no degree up to 1 was measured.",))


def test_overtakes_are_counted_over_rounds() -> None:
    waiting = [waits("r1", 1, overtaken=2), waits("r2", 1), waits("r3", 1), waits("r4", 1)]
    assert count_overtakes(waiting, ["r2", "r4"]) == {"r1": 4, "r3": 1}


@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 40), st.integers(0, 3)), max_size=12),
    st.lists(st.integers(0, 120), max_size=3),
    st.lists(st.tuples(st.integers(1, 50), st.integers(1, 30), st.floats(0, 9)), max_size=4),
    st.sampled_from([None, 0.0, 5.0, 1e6]),
    st.builds(Settings, max_overtakes=st.integers(0, 3), max_prefill_s=st.sampled_from([0.3, 5.0])),
)
def test_bounds_hold_for_every_queue(
    queue: list[tuple[int, int, int]],
    idle_slots: list[int],
    decoding: list[tuple[int, int, float]],
    mean_decode_s: float | None,
    settings: Settings,
) -> None:
    waiting = [waits(f"r{index}", prompt, most, overtaken) for index, (prompt, most, overtaken) in enumerate(queue)]
    idle = [Instance(f"i{index}", slots) for index, slots in enumerate(idle_slots)]
    running = [
        RunningRequest(f"d{index}", tokens + 40 - generated, 0.0, generated, decode_s, {f"b{index}": tokens})
        for index, (tokens, generated, decode_s) in enumerate(decoding)
    ]
    busy = [Instance(f"b{index}", 90, request.tokens) for index, request in enumerate(running)]
    batches = form_decode_batches(busy, running)
    slots = sum(instance.slots for instance in (*idle, *busy))
    result = dispatch(waiting, idle, batches, running, slots, MODEL, mean_decode_s, settings)
    admitted = set(ids(result))
    if admitted and peak_slots(request.demand for request in running) <= slots:
        demands = [request.demand for request in running] + [request.demand for request in result.requests]
        assert peak_slots(demands) <= slots
    free = sum(each.free_slots for each in idle) + sum(each.free_slots for each in batches)
    assert sum(request.prompt_tokens for request in result.requests) <= free
    counts = count_overtakes(waiting, admitted)
    for request in waiting:
        if request.id in counts:
            assert counts[request.id] <= max(settings.max_overtakes, request.overtaken)
    if len(result.requests) > 1:
        degree = 2 if len(idle) + len(result.preempted) > 1 else 1
        assert MODEL.seconds([r.prompt_tokens for r in result.requests], degree) <= settings.max_prefill_s


@pytest.mark.parametrize(
    ("tpot_s", "left_s", "paused"),
    [
        (0.05, 1.0, True),  # 10 tokens took 0.1 s and 90 are left: 5 s are allowed, 0.1 + 0.6 + 0.9 s are needed
        (0.05, 0.5, False),  # the prefill takes 0.6 s: it would be late all the same
        (0.012, 1.0, False),  # 1.2 s are allowed: the batch would be late
        (0.001, 1.0, True),  # the batch is late already: nothing is lost
    ],
)
def test_with_objectives_a_batch_pauses_for_a_prompt_that_can_be_in_time(
    tpot_s: float, left_s: float, paused: bool
) -> None:
    busy = Instance("i", 1000, 200)
    batch = form_decode_batches([busy], [decodes("r", 11, 0.1, future=90, i=200)])
    prompt = WaitingRequest("w1", 60, 1, 1.0, ttft_left_s=left_s)
    plain = chosen([prompt], [], batch, mean_decode_s=0.0)
    assert not plain.preempted, "Gain > Cost lets it wait"
    aimed = chosen([prompt], [], batch, 0.0, settings=Settings(objectives=Objectives(1.0, tpot_s)))
    assert bool(aimed.preempted) is paused
    assert ids(aimed) == (["w1"] if paused else [])


def test_more_must_be_in_time_than_are_lost() -> None:
    busy = Instance("i", 1000, 400)
    running = [decodes(f"r{n}", 11, 0.1, future=90, i=200) for n in range(2)]
    batch = form_decode_batches([busy], running)
    aims = Settings(objectives=Objectives(10.0, 0.012))
    prompts = [WaitingRequest(f"w{n}", 20, 1, float(n), ttft_left_s=5.0) for n in range(3)]
    assert not chosen(prompts[:2], [], batch, 0.0, settings=aims).preempted
    assert chosen(prompts, [], batch, 0.0, settings=aims).preempted
