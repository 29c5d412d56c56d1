"""Which instances prefill: idle ones, preempted ones, and those that are vacated by Gain > Cost."""

import pytest

from pointsman.serving.elastic.allocation import Allocation, allocate, migration_is_worth_it, pause_is_worth_it
from pointsman.serving.elastic.latency_model import LatencyModel, PrefillTime
from pointsman.serving.elastic.memory import NoRoom
from pointsman.serving.elastic.types import (
    DecodeBatch,
    Instance,
    Move,
    RunningRequest,
    Settings,
    WaitingRequest,
    form_decode_batches,
)

MODEL = LatencyModel({degree: PrefillTime(0.0, 0.012 / degree, 0.0) for degree in range(1, 4)})
"""12 ms a token, divided by the degree."""

SLOW_MOVES = Settings(migration_s_per_token=1.0)
FAST_MOVES = Settings(migration_s_per_token=0.001)


def request(name: str, generated: int = 100, **tokens: int) -> RunningRequest:
    return RunningRequest(name, 1000, 0.0, generated, 1.0, tokens)


def allocated(
    prompt: int,
    idle: list[Instance],
    others: list[DecodeBatch],
    settings: Settings | None = None,
    preempted: list[DecodeBatch] | None = None,
) -> Allocation:
    return allocate(
        [WaitingRequest("r", prompt, 10, 0.0)], idle, preempted or [], others, MODEL, settings or Settings()
    )


def names(allocation: Allocation) -> list[str]:
    return [instance.name for instance in allocation.instances]


def test_idle_instances_come_first_then_the_batch_with_the_most_free_slots() -> None:
    few, many = Instance("few", 200, 150), Instance("many", 200, 50)
    batches = form_decode_batches([few, many], [request("p", 1, few=150), request("q", 1, many=50)])
    assert names(allocated(100, [Instance("i", 100)], batches)) == ["i"]
    short = allocated(101, [Instance("i", 100)], batches)
    assert names(short) == ["i", "many"]
    assert short.reasons == ("The decode batch on many pauses: the prefill needs its 150 free slots.",)
    assert names(allocated(300, [Instance("i", 100)], batches)) == ["i", "many", "few"]
    with pytest.raises(NoRoom, match="301 prompt tokens do not fit into 300 free slots"):
        allocated(301, [Instance("i", 100)], batches)


def test_preempted_batches_join_with_the_instances_that_do_not_drain() -> None:
    batch = DecodeBatch((Instance("b", 100, 10), Instance("c", 100, 10, draining=True)), (request("p", b=10, c=10),))
    assert names(allocated(50, [], [], preempted=[batch])) == ["b"]


def test_gain_and_cost_of_a_migration_by_hand() -> None:
    """The prefill gets 0.6 s shorter; 500 tokens at 1 ms take 0.5 s, 700 take 0.7 s."""
    assert migration_is_worth_it(1.2, 0.6, 500, 0.001)
    assert not migration_is_worth_it(1.2, 0.6, 700, 0.001)


def test_the_least_used_instance_is_vacated_if_that_saves_time() -> None:
    """By hand: 100 tokens take 1.2 s on one instance and 0.6 s on two; 20 tokens move in 0.02 s, or in 20 s."""
    instances = [Instance("b", 200, 20), Instance("c", 200, 60)]
    batches = form_decode_batches(instances, [request("p", 1, b=20), request("q", 1, c=60)])
    fast = allocated(100, [Instance("a", 200)], batches, FAST_MOVES)
    assert names(fast) == ["a", "b"]
    assert fast.moves == (Move("p", "b", "c", 20, "vacate"),)
    assert fast.vacated == ("b",)
    assert fast.instances[1].used_slots == 0
    assert fast.reasons == ("b hands 20 tokens over and joins the prefill, which then takes 0.6 s instead of 1.2 s.",)
    for settings in (SLOW_MOVES, Settings()):
        slow = allocated(100, [Instance("a", 200)], batches, settings)
        assert (names(slow), slow.moves) == (["a"], ())


def test_kv_moves_within_its_batch_first_and_leaves_room_for_the_next_tokens() -> None:
    """By hand: both requests step next, so c keeps 2 of its 12 free slots and the other 10 of p's tokens go to d."""
    instances = [Instance("b", 200, 20), Instance("c", 100, 88), Instance("d", 200, 100)]
    batches = form_decode_batches(instances, [request("p", 1, b=20, c=88), request("q", 1, d=100)])
    moves = allocated(100, [Instance("a", 200)], batches, FAST_MOVES).moves
    assert moves == (Move("p", "b", "c", 10, "vacate"), Move("p", "b", "d", 10, "vacate"))


def test_an_instance_is_not_vacated_if_the_others_could_not_go_on() -> None:
    instances = [Instance("b", 200, 20), Instance("c", 100, 79)]
    batches = form_decode_batches(instances, [request("p", 1, b=20), request("q", 1, c=79)])
    assert allocated(100, [Instance("a", 200)], batches, FAST_MOVES).moves == ()
    assert allocated(100, [Instance("a", 200)], batches[:1], FAST_MOVES).moves == ()


def test_tokens_are_moved_once() -> None:
    """c takes over b's tokens, so it is not vacated afterwards, although it is the least used one."""
    instances = [Instance("b", 200, 2), Instance("c", 200, 4), Instance("d", 200, 150)]
    batches = form_decode_batches(instances, [request("p", 1, b=2), request("q", 1, c=4), request("s", 1, d=150)])
    allocation = allocated(100, [Instance("a", 200)], batches, Settings(migration_s_per_token=0.0))
    sources, targets = ({getattr(move, end) for move in allocation.moves} for end in ("source", "target"))
    assert "b" in sources
    assert not sources & targets


@pytest.mark.parametrize(("generated", "paused"), [(210, True), (190, False)])
def test_a_batch_pauses_if_its_instances_shorten_the_prefill_enough(generated: int, paused: bool) -> None:
    """By hand: 100 tokens save 0.6 of 1.2 s, 0.6/100 s a token. The two requests lose 2 * 0.6/generated."""
    batch = DecodeBatch((Instance("b", 100, 90),), (request("p", generated, b=50), request("q", generated, b=40)))
    assert names(allocated(100, [Instance("a", 100)], [batch])) == (["a", "b"] if paused else ["a"])
    assert pause_is_worth_it(1.2, 0.6, [100], [generated] * 2) == paused
