"""What is decided for the encode pool: within the budget, beside the other pools, and only where something is known."""

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pointsman.api.protocol.names import Role
from pointsman.api.v1alpha1.plannerpolicy import Mode
from pointsman.planner.core.decide import decide
from pointsman.planner.core.encode.target import EncodeMemory, Images
from pointsman.planner.core.state import State
from pointsman.planner.core.tuning import SHIPPED
from pointsman.planner.core.types import (
    Bounds,
    Decision,
    EncodeLoad,
    Load,
    Policy,
    Reason,
    Worker,
    WorkerCondition,
)
from pointsman.planner.memory import from_json, to_json
from unit.planner.scenes import LLAMA_8B_H100, observed

TICK_S = 2.5
POLICY = Policy(
    mode=Mode.ACTIVE, max_gpus=24, prefill=Bounds(1, 12), decode=Bounds(1, 12), encode=Bounds(1, 12),
    role_switch=False, start_s=30.0, scale_in_stabilization_s=60.0,
)  # fmt: skip
PROMPTS = Load(arrivals_per_s=10, prompt_tokens=2000, output_tokens=200, prompt_length_shares=((2000, 1.0),))


def images(per_s: float, each: float = 3.0, ms: float | None = 100.0, waiting: float = 0.0) -> EncodeLoad:
    """``per_s`` requests with ``each`` images."""
    return EncodeLoad(per_s, each, each * each, ms, waiting)


def encoders(serving: int, starting: int = 0) -> tuple[Worker, ...]:
    conditions = [WorkerCondition.ACTIVE] * serving + [WorkerCondition.STARTING] * starting
    return tuple(Worker(f"e{n}", Role.ENCODE, condition) for n, condition in enumerate(conditions))


def run(
    loads: Sequence[EncodeLoad | None], policy: Policy = POLICY, encode: int = 2, prompts: Load = PROMPTS,
    layout: tuple[int, int] = (3, 3), **seen: Any,
) -> tuple[State, list[Decision]]:  # fmt: skip
    """Tick by tick, what is decided is there at the next."""
    state, decisions, (prefill, decode) = State(), [], layout
    for tick, load in enumerate(loads):
        at_s = TICK_S * tick
        observation = observed(
            at_s, prompts, prefill, decode, encode=load, encode_workers=encoders(encode), **seen
        )  # fmt: skip
        state, decision, _ = decide(state, observation, policy, at_s, LLAMA_8B_H100)
        prefill, decode = decision.prefill, decision.decode
        encode = encode if decision.encode is None else decision.encode
        decisions.append(decision)
    return state, decisions


def test_a_step_in_images_is_answered_by_encode_workers_alone() -> None:
    _, decisions = run([images(2)] * 130 + [images(10)] * 60 + [images(2)] * 120)
    before, there, after = decisions[129], decisions[189], decisions[-1]
    assert (before.encode or 0) < (there.encode or 0)
    assert after.encode == before.encode
    assert {(d.prefill, d.decode) for d in decisions[129:]} == {(before.prefill, before.decode)}
    first = next(d for d in decisions[130:] if d.changes_encode)
    assert decisions.index(first) <= 132
    assert first.reason is Reason.ENCODE_SHORT
    assert first.message.startswith("Scale encode workers from 2 to ")
    assert not first.changes_layout
    numbers = dict(first.inputs)
    assert numbers["encodeMilliseconds"] == pytest.approx(100)
    assert numbers["encodeNeeded"] > numbers["encodeWorkers"] == before.encode


def test_what_was_never_measured_moves_nothing_and_is_said() -> None:
    for unknown, why in (
        (None, "A gateway does not count images"),
        (images(10, ms=None), "Too few images were measured"),
        (EncodeLoad(0.0), "Too few images were measured"),
    ):
        _, decisions = run([unknown] * 40)
        assert {(d.encode, d.changes_encode) for d in decisions} == {(2, False)}
        assert f"{why}, so the encode pool is not changed" in decisions[-1].message
        assert "encodeMilliseconds" not in dict(decisions[-1].inputs)


def test_a_pool_that_cannot_be_seen_is_not_decided_for() -> None:
    _, decisions = run([None] * 20, encode=0)
    assert {(d.encode, d.changes_encode) for d in decisions} == {(None, False)}
    assert "The encode pool could not be read" in decisions[-1].message


def test_stale_metrics_freeze_the_pool() -> None:
    state, _ = run([images(10)] * 40)
    stale = replace(observed(200.0, PROMPTS), age_s=900.0, encode=images(60), encode_workers=encoders(3))
    state, decision, _ = decide(state, stale, POLICY, 200.0, LLAMA_8B_H100)
    assert (decision.reason, decision.encode, decision.changes_encode) == (Reason.STALE_METRICS, 3, False)
    starts = replace(stale, encode_workers=encoders(3, starting=1))
    state, _, _ = decide(state, starts, POLICY, 202.5, LLAMA_8B_H100)
    assert len(state.encode.leads.starting) == 1  # who starts is known all the same


def test_a_service_without_such_a_pool_decides_as_if_images_were_unheard_of() -> None:
    """What is observed of images changes nothing where the policy has no pool, nor does a pool without images."""

    def decided(policy: Policy, load: EncodeLoad | None, workers: int) -> list[Decision]:
        return run([load] * 80, policy, workers)[1]

    none = replace(POLICY, encode=None)
    plain = decided(none, None, 0)
    assert decided(none, images(10), 3) == plain
    assert {d.encode for d in plain} == {None}
    beside = decided(POLICY, EncodeLoad(0.0), 1)
    assert run([images(10)] * 5, none, 3)[0].encode == EncodeMemory()
    same = ("prefill", "decode", "routing", "switches", "changes_layout", "reason", "alternatives")
    for name in same:
        assert [getattr(d, name) for d in beside] == [getattr(d, name) for d in plain]


def test_the_mean_encoding_is_taken_off_what_a_request_may_wait_for_its_prefill() -> None:
    def slack_ms(share: float) -> float:
        _, decisions = run([images(10 * share, each=1, ms=200)] * 60, encode=6)
        return decisions[-1].routing.flow.slack_ms or 0.0

    plain = run([None] * 60, replace(POLICY, encode=None), 0)[1][-1].routing.flow.slack_ms
    assert plain is not None
    for share in (0.5, 1.0):  # 200 ms, and some waiting
        assert plain - share * 300 < slack_ms(share) < plain - share * 200 + 5


CONDITIONS = (WorkerCondition.ACTIVE, WorkerCondition.STARTING, WorkerCondition.DRAINING)


@settings(max_examples=15, deadline=None)
@given(
    rates=st.lists(st.floats(0, 40), min_size=4, max_size=10), each=st.floats(1, 9), ms=st.floats(5, 900),
    requests=st.floats(0.1, 60), gpus=st.integers(4, 16), encode_gpus=st.sampled_from([1, 2]),
    first=st.integers(1, 3), scale_in=st.booleans(), data=st.data(),
)  # fmt: skip
def test_no_decision_is_above_the_budget_or_the_bounds_or_leaves_a_pool_empty(
    rates: list[float], each: float, ms: float, requests: float, gpus: int, encode_gpus: int, first: int,
    scale_in: bool, data: st.DataObject,
) -> None:  # fmt: skip
    gpus = max(gpus, 2 + first * encode_gpus)
    policy = replace(POLICY, max_gpus=gpus, scale_in=scale_in, encode=Bounds(1, max(first, 5)))
    prompts = replace(PROMPTS, arrivals_per_s=requests)
    state, layout, encode = State(), (1, 1), first
    for tick, rate in enumerate(rate for rate in rates for _ in range(8)):
        conditions = [data.draw(st.sampled_from(CONDITIONS)) if tick % 7 == 3 else CONDITIONS[0] for _ in range(encode)]
        shown = tuple(Worker(f"e{n}", Role.ENCODE, condition, encode_gpus) for n, condition in enumerate(conditions))
        seen = observed(TICK_S * tick, prompts, *layout, encode=images(rate, each, ms), encode_workers=shown)
        seen = replace(seen, encode_gpus=encode_gpus)
        state, decision, _ = decide(state, seen, policy, TICK_S * tick, LLAMA_8B_H100)
        if decision.encode is None:
            continue
        assert decision.prefill + decision.decode + decision.encode * encode_gpus <= gpus
        assert min(decision.prefill, decision.decode, decision.encode) >= 1
        assert decision.encode <= max(first, 5)
        layout, encode = (decision.prefill, decision.decode), decision.encode


def scarce(requests_with_images: float, encode: int, layout: tuple[int, int] = (2, 2)) -> list[Decision]:
    """16 GPUs where prefill and decode need 20, of 120 requests a second, and their images keep 3.7 encode workers as
    busy as they may be."""
    prompts = Load(arrivals_per_s=120, prompt_tokens=4000, output_tokens=250, prompt_length_shares=((4000, 1.0),))
    load = images(requests_with_images, each=3, ms=9.5 * 120 / requests_with_images)
    _, decisions = run([load] * 160, replace(POLICY, max_gpus=16, start_s=30.0), encode, prompts, layout)
    assert all(d.prefill + d.decode + (d.encode or 0) <= 16 for d in decisions)
    assert not any(d.changes_encode or d.changes_layout for d in decisions[-60:])
    return decisions


def test_of_a_scarce_budget_encode_workers_get_what_keeps_up_if_so_more_requests_are_in_time() -> None:
    """The split by work is 3 and 13. With three, each request is late that waits for its images: all, or one in 20."""
    assert [scarce(requests, 1)[-1].encode for requests in (120.0, 6.0)] == [4, 3]


def test_an_encode_worker_that_others_need_more_is_no_spare_capacity() -> None:
    removed = next(d for d in scarce(6.0, 6, (5, 5)) if d.changes_encode)
    assert not removed.changes_layout
    assert (removed.encode or 0) < dict(removed.inputs)["encodeNeededNow"]
    assert removed.reason is Reason.UNSATISFIABLE


@pytest.mark.parametrize(("rate", "heavier"), [(20.0, 12.0), (15.0, 4.0)])
def test_a_budget_that_is_too_small_is_split_by_the_work(rate: float, heavier: float) -> None:
    """The others have it all at first, and give workers to a pool that is scarcer than they are."""
    policy = replace(POLICY, max_gpus=8)
    prompts = Load(arrivals_per_s=rate, prompt_tokens=8000, output_tokens=300, prompt_length_shares=((8000, 1.0),))
    _, decisions = run([images(heavier, each=4, ms=200)] * 160, policy, 1, prompts, (4, 3))
    last = decisions[-1]
    assert last.encode is not None
    assert last.prefill + last.decode + last.encode == 8
    assert last.encode > 1
    numbers = dict(last.inputs)
    work = heavier * 4 * 0.2, numbers["prefillNeeded"] + numbers["decodeNeeded"]
    served = last.encode / work[0], (last.prefill + last.decode) / work[1]
    assert 0.4 < served[0] / served[1] < 2.5
    gave = next(d for d in decisions if d.changes_layout and d.prefill + d.decode < 7)
    assert gave.reason is Reason.UNSATISFIABLE
    assert "more than 8 GPUs, so some get less than they need" in gave.message
    assert not any(d.changes_encode or d.changes_layout for d in decisions[-60:])


def poisson(draw: random.Random, mean: float) -> int:
    count, product = 0, draw.random()
    while product > 2.718281828**-mean:
        count, product = count + 1, product * draw.random()
    return count


def window(draw: random.Random, rate: float, ms: float) -> EncodeLoad:
    """Requests with three images each in the mean, as they come by chance."""
    counts = [1 + poisson(draw, 2.0) for _ in range(poisson(draw, rate * TICK_S))]
    if not counts:
        return EncodeLoad(0.0, waiting=0.0)
    return EncodeLoad(
        len(counts) / TICK_S, sum(counts) / len(counts), sum(n * n for n in counts) / len(counts),
        ms * draw.lognormvariate(0, 0.05), 0.0,
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(6))
def test_a_scarce_budget_is_not_split_to_and_fro_at_a_constant_load(seed: int) -> None:
    """Twenty minutes. The encode pool is near its limit with each number of workers that the others can spare."""
    draw = random.Random(seed)
    rate, gpus, busy = draw.uniform(5, 12), draw.choice([7, 8, 9]), draw.uniform(2, 4)
    prompts = Load(arrivals_per_s=42, prompt_tokens=4000, output_tokens=300, prompt_length_shares=((4000, 1.0),))
    policy = replace(POLICY, max_gpus=gpus, role_switch=draw.random() < 0.5)
    loads = [window(draw, rate, 1000 * busy / (3 * rate)) for _ in range(480)]
    _, decisions = run(loads, policy, 1, prompts, (2, 2))
    moves = [(TICK_S * n, d.in_words) for n, d in enumerate(decisions) if d.changes_encode]
    assert len([move for move in moves if move[0] > 120]) <= 2, moves


def test_at_a_constant_load_nothing_is_taken_away_and_given_back() -> None:
    draw = random.Random(3)
    _, decisions = run([window(draw, 7.0, 100) for _ in range(480)])
    moves = [(TICK_S * n, d.encode) for n, d in enumerate(decisions) if d.changes_encode]
    settled = [move for move in moves if move[0] > 120]
    assert len(settled) <= 1, moves


def test_what_is_needed_is_named_also_if_the_pool_may_not_have_it() -> None:
    _, decisions = run([images(12)] * 40, replace(POLICY, encode=Bounds(1, 3)))
    last = decisions[-1]
    assert last.encode == 3
    needed = dict(last.inputs)["encodeNeeded"]
    assert needed > 3
    assert f"{needed:.0f} encode workers are needed, maxReplicas is 3; 3 run" in last.message


def test_the_first_requests_scale_nothing() -> None:
    _, decisions = run([images(4)] * 40, encode=1)
    first = next(n for n, decision in enumerate(decisions) if decision.changes_encode)
    known = first - (int(SHIPPED.patience_s / TICK_S) - 1)  # it was short at so many looks before
    assert known * 4 * TICK_S < SHIPPED.ready_requests <= (known + 1) * 4 * TICK_S


def waves(on_s: float, off_s: float, count: int) -> list[EncodeLoad]:
    """Many requests with images for ``on_s`` and few for ``off_s``, again and again."""
    one = [images(1.0)] * int(off_s / TICK_S) + [images(12.0)] * int(on_s / TICK_S)
    return one * count


def test_workers_are_held_for_bursts_that_come_back_before_one_could_start() -> None:
    _, decisions = run(waves(20, 180, 4))
    each = int(200 / TICK_S)
    second, third = (decisions[each * n - int(20 / TICK_S) - 2].encode or 0 for n in (2, 3))
    assert second < third  # just before the second burst, and before the third
    assert third >= 4


def test_a_level_that_keeps_coming_back_is_kept_for_the_usual_gap() -> None:
    _, decisions = run([*waves(100, 100, 5), *[images(1.0)] * 200])
    each = int(200 / TICK_S)
    first, last = (decisions[each * n - int(100 / TICK_S) - 2].encode or 0 for n in (2, 5))
    assert first < last
    assert decisions[-1].encode == first  # it did not come back


def test_a_pool_that_is_not_there_begins_when_the_budget_has_room() -> None:
    full, room = (run([images(5)] * 20, replace(POLICY, max_gpus=gpus, scale_in=False), 0)[1] for gpus in (6, 8))
    assert {(d.encode, d.changes_encode) for d in full} <= {(None, False), (0, False)}
    assert room[-1].encode == 2


def test_what_encode_workers_keep_waiting_is_part_of_what_is_predicted() -> None:
    few, enough = (
        run([images(9)] * 60, replace(POLICY, scale_out=False), encode)[0].score.predicted for encode in (1, 6)
    )
    assert few is not None and enough is not None
    assert few < 0.2 < 0.9 < enough


def test_a_queue_of_images_needs_more_than_the_rate_alone() -> None:
    quiet, queued = (run([images(5)] * 40 + [images(5, waiting=w)])[1][-1] for w in (0.0, 600.0))
    assert dict(queued.inputs)["encodeNeededNow"] > dict(quiet.inputs)["encodeNeededNow"]


def test_a_new_kind_of_request_is_believed_after_tens_and_noise_is_not() -> None:
    few = many = Images()
    draw = random.Random(5)

    def window(mean: int) -> tuple[float, float]:
        counts = [draw.randint(1, 2 * mean - 1) for _ in range(10)]
        return sum(counts) / 10, sum(n * n for n in counts) / 10

    for _ in range(300):
        few = few.observe(*window(4), 10)
    assert few.mean == pytest.approx(4, rel=0.05)
    assert few.requests == 600
    many = few
    for _ in range(12):
        many = many.observe(*window(8), 10)
    assert many.mean == pytest.approx(8, rel=0.2)


@pytest.mark.parametrize("scale_in", [True, False])
def test_a_worker_that_does_not_start_is_replaced_and_then_given_up_if_scale_in_is_allowed(scale_in: bool) -> None:
    """Two more are wanted; one of them never serves. Another one starts in its place, and when that serves it goes."""
    policy = replace(POLICY, scale_in=scale_in)
    state, replicas, born = State(), 2, {"e0": -1e9, "e1": -1e9}
    stuck, asked = "e2", []
    for tick in range(400):
        at_s = TICK_S * tick
        for n in range(len(born), replicas):
            born[f"e{n}"] = at_s
        shown = tuple(
            Worker(
                name,
                Role.ENCODE,
                WorkerCondition.ACTIVE if at_s - since_s >= 30 and name != stuck else WorkerCondition.STARTING,
            )
            for name, since_s in born.items()
        )
        seen = observed(at_s, PROMPTS, 3, 3, encode=images(2 if tick < 40 else 9), encode_workers=shown)
        state, decision, _ = decide(state, seen, policy, at_s, LLAMA_8B_H100)
        assert decision.encode is not None
        replicas = decision.encode
        asked.append(replicas)
        if replicas < len(born):
            break
    needed = dict(decision.inputs)["encodeNeeded"]
    changes = [after for before, after in itertools.pairwise(asked) if before != after]
    assert changes == [needed, needed + 1, *([needed] if scale_in else [])]


@pytest.mark.parametrize(("scale_in", "stabilization_s"), [(False, 60.0), (True, 600.0)])
def test_a_worker_that_is_evicted_is_not_scaled_in(scale_in: bool, stabilization_s: float) -> None:
    """Three are enough of the four that are desired; one is drained, is gone, and its replacement starts."""
    policy = replace(POLICY, scale_in=scale_in, scale_in_stabilization_s=stabilization_s)
    state, drained = State(), Worker("e3", Role.ENCODE, WorkerCondition.DRAINING)
    for tick in range(100):
        shown = encoders(4) if tick < 60 else (*encoders(3), drained) if tick < 70 else encoders(3)
        shown = shown if tick < 80 else encoders(3, starting=1)
        seen = observed(TICK_S * tick, PROMPTS, 3, 3, encode=images(2), encode_workers=shown, encode_replicas=4)
        state, decision, _ = decide(state, seen, policy, seen.at_s, LLAMA_8B_H100)
        assert (decision.encode, decision.changes_encode) == (4, False), tick
    assert dict(decision.inputs)["encodeNeeded"] < 4


def test_where_scale_in_is_off_a_scarce_budget_takes_no_encode_worker() -> None:
    """Prefill and decode need more than the budget has beside three encode workers, of which one would be enough."""
    prompts = Load(arrivals_per_s=25, prompt_tokens=8000, output_tokens=300, prompt_length_shares=((8000, 1.0),))

    def fewest(scale_in: bool) -> int:
        policy = replace(POLICY, max_gpus=8, scale_in=scale_in)
        return min(d.encode or 0 for d in run([images(1, each=4)] * 20, policy, 3, prompts, (3, 2))[1])

    assert fewest(scale_in=True) < 3
    assert fewest(scale_in=False) == 3


@pytest.mark.parametrize("per_tick", [0.05, -0.075], ids=["rising", "falling"])
def test_while_no_gateway_counts_images_the_pool_stays_as_it_is(per_tick: float) -> None:
    """A quarter of an hour: the load before is neither followed to where it led, nor taken for none."""
    before: list[EncodeLoad | None] = [images(max(0.5, (2 if per_tick > 0 else 12) + per_tick * n)) for n in range(120)]
    state, decisions = run(before, encode=4)
    gone_state, gone = run([*before, *[None] * 360], encode=4)
    assert {(d.encode, d.changes_encode) for d in gone[120:]} == {(decisions[-1].encode, False)}
    assert "A gateway does not count images, so the encode pool is not changed" in gone[-1].message
    known, unknown = state.encode.forecaster.trend, gone_state.encode.forecaster.trend
    assert known is not None and unknown is not None
    assert unknown.level == known.level
    assert unknown.var_level > known.var_level
    assert gone_state.encode.needs == state.encode.needs, "nobody saw what was needed"
    slack_ms = [d.routing.flow.slack_ms or 0.0 for d in gone[118:]]
    assert max(slack_ms) < 1.05 * min(slack_ms), "images still take time"


@pytest.mark.parametrize("there", [True, False])
def test_a_missing_encode_worker_counts_with_all_of_its_gpus(there: bool) -> None:
    """The only one, of 8 GPUs, is evicted: prefill and decode need more than the budget, and get none of these."""
    policy = replace(POLICY, max_gpus=16, encode=Bounds(1, 3))
    prompts, state = replace(PROMPTS, arrivals_per_s=150), State()
    one = (Worker("e0", Role.ENCODE, WorkerCondition.ACTIVE, gpus=8),)
    for tick in range(64):
        shown = one if there or tick < 60 else ()
        seen = observed(TICK_S * tick, prompts, 5, 3, encode=images(2), encode_workers=shown, encode_replicas=1)
        state, decision, _ = decide(state, replace(seen, encode_gpus=8), policy, seen.at_s, LLAMA_8B_H100)
    assert (decision.prefill, decision.decode, decision.encode) == (5, 3, 1)


def test_its_memory_survives_a_restart() -> None:
    state, _ = run([images(5)] * 30)
    assert from_json(to_json(state)) == state


def test_workers_that_start_are_counted_when_they_will_be_ready() -> None:
    """Six are needed; four serve and two start: nothing more is asked for."""
    state, decisions = run([images(13)] * 80)
    need = decisions[-1].encode
    assert need is not None and need > 3
    seen = observed(200.0, PROMPTS, 3, 3, encode=images(13), encode_workers=encoders(need - 2, starting=2))
    _, decision, _ = decide(state, seen, POLICY, 200.0, LLAMA_8B_H100)
    assert (decision.encode, decision.changes_encode) == (need, False)


def test_an_encode_plan_does_not_wait_for_a_switch() -> None:
    state, decisions = run([images(2)] * 60)
    switching = Worker("w0", Role.PREFILL, WorkerCondition.SWITCHING)
    before = decisions[-1].encode or 0
    for tick in range(60, 66):
        seen = observed(TICK_S * tick, PROMPTS, 3, 3, encode=images(12), encode_workers=encoders(before))
        seen = replace(seen, workers=(switching, *seen.workers[1:]), plan_in_progress=True)
        state, decision, _ = decide(state, seen, POLICY, TICK_S * tick, LLAMA_8B_H100)
    assert not decision.changes_layout
    assert (decision.encode or 0) > before
