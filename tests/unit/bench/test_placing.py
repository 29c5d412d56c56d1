"""The estimates that place a prompt are those one computes by hand, and only where it is computed changes."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from bench.planner import placing
from bench.planner.placing import (
    Beliefs,
    DecodePlace,
    PlacingPath,
    Rule,
    Told,
    keeps_tpot,
    local_ttft_ms,
    remote_ttft_ms,
    remote_work_ms,
    simulate_with,
    telling,
    tpot_ms,
    work_ms,
)
from bench.planner.scenarios import SCENARIOS

from pointsman.planner.core.performance import Bucket, CalibratedModel, Calibration, LinearModel
from pointsman.planner.core.prefixes import Prefixes
from pointsman.planner.core.state import State
from pointsman.planner.core.transfers import Transfers
from pointsman.planner.core.types import Bounds, Objectives, Policy
from pointsman.planner.replay.generators import generate, named_shape
from pointsman.planner.simulator.baselines.pointsman import ours
from pointsman.planner.simulator.baselines.static import static
from pointsman.planner.simulator.simulate import simulate
from pointsman.planner.simulator.types import Engine, Faults, Planner, PrefillPlace, Result, Simulation, Trace

# A pass takes 10 ms and 0.1 ms a token, a decode step 10 ms and 1 ms a sequence.
MODEL = LinearModel(10, 0.1, 0, 10, 1, 0)
BELIEFS = Beliefs(MODEL, transfer_s_per_token=1e-5, held_by_prefill=500, output_tokens=100)
SHORTEST = Rule("shortest")


def test_work_is_what_a_prompt_adds_to_a_pass_that_is_made_anyway() -> None:
    assert work_ms(MODEL, 2000, 0) == pytest.approx(200)
    assert work_ms(LinearModel(10, 0.1, 0, 10, 1, 0, prefill_floor_ms=50), 300, 0) == 0  # the floor's 50 ms, both


def test_a_prefill_worker_computes_what_the_mean_one_lacks_and_at_least_one_token() -> None:
    model = LinearModel(10, 0.1, 0.001, 10, 1, 0)
    beliefs = Beliefs(model, held_by_prefill=500)
    assert remote_work_ms(beliefs, 1500) == pytest.approx(0.1 * 1000 + 0.001 * (1000 * 500 + 1000**2 / 2))
    assert remote_work_ms(beliefs, 400) == pytest.approx(0.1 + 0.001 * (399 + 0.5))


@pytest.mark.parametrize(
    ("changed", "expected_ms"),
    [
        # A third of 900 ms waiting; 10 + 150 for the 1500 tokens that a prefill worker lacks; 15 ms for as many sent;
        # 1.5 steps of 20 ms.
        ({}, 300 + 160 + 15 + 30),
        ({"waiting_ms": 0.0}, 160 + 15 + 30),
        ({"prefill_workers": 1}, 900 + 160 + 15 + 30),
        ({"missing_tokens": 0}, 300 + 160 + 30),
        ({"place": DecodePlace(30.0)}, 300 + 160 + 15 + 45),
        # No prefill worker has all of a prompt: at least its last token is computed.
        ({"prompt_tokens": 400, "missing_tokens": 400}, 300 + 10.1 + 4 + 30),
    ],
)
def test_remote_waits_its_share_of_the_queue_is_computed_sent_and_joins(
    changed: dict[str, Any], expected_ms: float
) -> None:
    asked: dict[str, Any] = {
        "waiting_ms": 900.0, "prefill_workers": 3, "prompt_tokens": 2000, "missing_tokens": 1500,
        "place": DecodePlace(20.0, decoding=9),
    }  # fmt: skip
    assert remote_ttft_ms(BELIEFS, **asked | changed) == pytest.approx(expected_ms)


@pytest.mark.parametrize(
    ("place", "expected_ms"),
    [
        # Alone: 150 ms for the 1500 tokens that are not cached, and the fixed part of two passes of 1000.
        (DecodePlace(11.0), 150 + 20),
        # Beside nine streams two chunks of 991: two steps of 20 ms, and half a step until they begin.
        (DecodePlace(20.0, decoding=9), 150 + 50),
        # Behind 600 tokens that take 60 ms: 2100 tokens are three chunks.
        (DecodePlace(20.0, decoding=9, ahead_tokens=600, ahead_ms=60), 60 + 150 + 70),
        (DecodePlace(11.0, ahead_tokens=600, ahead_ms=60), 60 + 150 + 30),
        # Each stream takes a token of every step: 1990 tokens are two chunks of 1000, and three of 991.
        (DecodePlace(11.0, ahead_tokens=490, ahead_ms=49), 49 + 150 + 20),
        (DecodePlace(20.0, decoding=9, ahead_tokens=490, ahead_ms=49), 49 + 150 + 70),
    ],
)
def test_local_is_computed_in_mixed_steps_behind_what_was_sent_there_before(
    place: DecodePlace, expected_ms: float
) -> None:
    found = local_ttft_ms(BELIEFS, prompt_tokens=2000, cached_tokens=500, max_batched_tokens=1000, place=place)
    assert found == pytest.approx(expected_ms)


def test_the_work_computed_beside_streams_is_spread_over_an_answer() -> None:
    place = DecodePlace(20.0, decoding=9, lately_ms=250)
    # 150 ms of its own and 250 of others while 100 tokens are made.
    assert tpot_ms(BELIEFS, prompt_tokens=2000, cached_tokens=500, place=place) == pytest.approx(24)
    unknown = replace(BELIEFS, output_tokens=None)
    assert tpot_ms(unknown, prompt_tokens=2000, cached_tokens=500, place=place) == math.inf


def test_streams_are_protected_as_the_rule_says_and_where_there_are_none_nobody_is_disturbed() -> None:
    def kept(tpot_share: float | None, objective_ms: float, place: DecodePlace, beliefs: Beliefs = BELIEFS) -> bool:
        rule = Rule("", tpot_share)
        return keeps_tpot(rule, beliefs, objective_ms, prompt_tokens=2000, cached_tokens=500, place=place)

    busy = DecodePlace(20.0, decoding=9, lately_ms=250)  # 24 ms with the prompt
    assert kept(1.0, 24.01, busy)
    assert not kept(1.0, 23.99, busy)
    assert kept(0.8, 30.01, busy)
    assert not kept(0.8, 29.99, busy)
    assert kept(None, 1.0, busy)
    assert kept(0.8, 1.0, DecodePlace(20.0, decoding=0, lately_ms=250))
    assert not kept(1.0, 1000.0, busy, replace(BELIEFS, output_tokens=None))


# --- in the simulator ---

POLICY = Policy(objectives=Objectives(1000, 40), max_gpus=8, prefill=Bounds(1, 6), decode=Bounds(1, 6))
ENGINE = Engine(MODEL, kv_capacity_tokens=100_000, kv_bytes_per_token=1000)


def at_once(*prompt_tokens: int, output_tokens: int = 50, gap_s: float = 0.001) -> Trace:
    count = len(prompt_tokens)
    arrival_s = 10 + gap_s * np.arange(count, dtype=np.float64)
    return Trace("at once", arrival_s.astype(np.float64), np.array(prompt_tokens), np.full(count, output_tokens))


def telling_always(beliefs: Beliefs) -> Callable[[Any, Told], Any]:
    def telling_these(planner: Any, told: Told) -> Any:
        told.beliefs = beliefs
        return planner

    return telling_these


def placed(
    monkeypatch: pytest.MonkeyPatch, trace: Trace, rule: Rule, workers: tuple[int, int], beliefs: Beliefs = BELIEFS
) -> tuple[list[PrefillPlace], Result]:
    """Where prompts went on a layout that stays, by beliefs that stay."""
    monkeypatch.setattr(placing, "telling", telling_always(beliefs))
    result, _ = simulate_with(trace, Simulation(ENGINE, *workers), POLICY, static(), rule)
    return [PrefillPlace(each) for each in result.prefilled.tolist()], result


LOCAL, REMOTE = PrefillPlace.LOCAL, PrefillPlace.REMOTE
NOTHING_HELD = replace(BELIEFS, held_by_prefill=0.0)


def test_a_prompt_goes_where_its_first_token_is_expected_first(monkeypatch: pytest.MonkeyPatch) -> None:
    # An idle decode worker has no transfer: local. Behind the first one, 300 ms, the prefill worker is sooner; then it
    # has one that it computes and none that waits, and is sooner once more; then one waits there.
    found, _ = placed(monkeypatch, at_once(3000, 3000, 3000, 3000), SHORTEST, (1, 1), NOTHING_HELD)
    assert found == [LOCAL, REMOTE, REMOTE, LOCAL]
    # A second decode worker is idle when the second one comes.
    found, _ = placed(monkeypatch, at_once(3000, 3000, 3000), SHORTEST, (1, 2), NOTHING_HELD)
    assert found == [LOCAL, LOCAL, REMOTE]


def test_what_the_streams_would_lose_keeps_prompts_from_decode_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    # Streams of the first prompt run when the others come, a second apart: 4000 tokens are 400 ms, over an answer of
    # 100 tokens 4 ms more than the step's 12.
    trace = at_once(100, 4000, 4000, output_tokens=400, gap_s=1.0)
    for share, expected in ((None, [LOCAL, LOCAL, LOCAL]), (16.5 / 40, [LOCAL, LOCAL, REMOTE])):
        rule = Rule("", share)
        found, _ = placed(monkeypatch, trace, rule, (1, 1), replace(NOTHING_HELD, transfer_s_per_token=1e-4))
        assert found == expected
    found, _ = placed(monkeypatch, trace, Rule("", 15.5 / 40), (1, 1), NOTHING_HELD)
    assert found == [LOCAL, REMOTE, REMOTE]


def test_what_was_computed_longer_ago_than_an_answer_takes_disturbs_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    # The third finds two streams, whose answers take 1.3 s by their mean of 100 tokens: 13 ms and 4 of its own, and 4
    # more where the second was sent within that time.
    rule = Rule("", 18 / 40)
    for gap_s, expected in ((1.2, REMOTE), (1.4, LOCAL)):
        trace = at_once(100, 4000, 4000, output_tokens=400, gap_s=gap_s)
        found, _ = placed(monkeypatch, trace, rule, (1, 1), replace(NOTHING_HELD, transfer_s_per_token=1e-4))
        assert found == [LOCAL, LOCAL, expected]


def test_contexts_that_are_read_in_every_step_count(monkeypatch: pytest.MonkeyPatch) -> None:
    # A stream of 20 000 tokens makes the step 10 + 2 + 21 ms; 1 ms more for 1000 tokens over an answer of 100.
    reading = replace(NOTHING_HELD, model=LinearModel(10, 0.1, 0, 10, 1, 0.001), transfer_s_per_token=1e-2)
    for tpot_share, expected in ((33.5 / 40, REMOTE), (35 / 40, LOCAL)):
        trace = at_once(20_000, 1000, output_tokens=600, gap_s=5.0)
        found, _ = placed(monkeypatch, trace, Rule("", tpot_share), (1, 1), reading)
        assert found == [LOCAL, expected]


def test_what_a_decode_worker_has_cached_is_not_computed_there_again(monkeypatch: pytest.MonkeyPatch) -> None:
    # Behind 2000 tokens, 200 ms, a prompt of 3000 takes 510 ms there, and 254 ms with five blocks of 512 cached;
    # remotely 356.
    blocks = tuple(range(5))
    for third, expected in ((blocks, LOCAL), (tuple(range(10, 15)), REMOTE)):
        trace = replace(
            at_once(3000, 2000, 3000, output_tokens=2),
            arrival_s=np.array([10.0, 12.0, 12.001]),
            prefix_blocks=(blocks, (), third),
        )
        found, _ = placed(monkeypatch, trace, SHORTEST, (1, 1), NOTHING_HELD)
        assert found == [LOCAL, LOCAL, expected]


def test_nothing_is_estimated_of_a_prompt_that_is_cached_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = tuple(range(5))
    trace = replace(at_once(2560, 2560, gap_s=2.0), prefix_blocks=(blocks, blocks))
    with monkeypatch.context() as patched:
        patched.setattr(placing, "telling", telling_always(NOTHING_HELD))
        result, errors = simulate_with(trace, Simulation(ENGINE, 1, 1), POLICY, static(), SHORTEST)
    assert result.prefilled.tolist() == [LOCAL, LOCAL]
    assert len(errors) == 1


def test_prefill_workers_come_first_while_they_are_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    # Each takes 410 ms, and the objective is 1000 ms: one is computed and one waits, the next would be late.
    rule = Rule("", None, if_late=True)
    found, _ = placed(monkeypatch, at_once(4000, 4000, 4000, 4000), rule, (1, 1), NOTHING_HELD)
    assert found == [REMOTE, REMOTE, REMOTE, LOCAL]


def test_a_prompt_whose_kv_has_no_room_at_a_decode_worker_is_not_computed_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trace = at_once(60_000, 50_000, output_tokens=400, gap_s=8.0)
    found, _ = placed(monkeypatch, trace, SHORTEST, (1, 1), replace(NOTHING_HELD, transfer_s_per_token=1.0))
    assert found == [LOCAL, REMOTE]


def results_differ(one: Result, other: Result) -> bool:
    columns = ("outcome", "prefilled", "ttft_s", "tpot_s", "end_s", "held_s")
    return any(not np.array_equal(getattr(one, name), getattr(other, name), equal_nan=True) for name in columns) or (
        (one.gpu_hours, one.transitions) != (other.gpu_hours, other.transitions)
    )


@pytest.fixture(scope="module")
def short_step() -> Iterator[tuple[Trace, Simulation, Policy]]:
    scenario = SCENARIOS["step"]
    trace = generate(named_shape("step:up_s=60,down_s=120,duration_s=180,length_cv=1"), 5)
    yield trace, scenario.simulation(5), scenario.policy()


def test_until_something_is_told_everything_is_as_shipped_and_so_it_is_afterwards(
    monkeypatch: pytest.MonkeyPatch, short_step: tuple[Trace, Simulation, Policy]
) -> None:
    shipped = simulate(*short_step, ours())
    told, _ = simulate_with(*short_step, ours(), SHORTEST)
    assert results_differ(told, shipped)
    monkeypatch.setattr(placing, "telling", lambda planner, told: planner)
    untold, errors = simulate_with(*short_step, ours(), SHORTEST)
    assert not results_differ(untold, shipped)
    assert errors == []
    assert not results_differ(simulate(*short_step, ours()), shipped)


def test_beliefs_are_told_when_the_planner_looks_and_never_between(
    monkeypatch: pytest.MonkeyPatch, short_step: tuple[Trace, Simulation, Policy]
) -> None:
    looks = 0
    seen: list[tuple[int, Beliefs]] = []
    tell: Callable[..., Any] = telling
    place = PlacingPath._place

    def counted(planner: Any, told: Told) -> Any:
        telling_planner = tell(planner, told)

        def decide(state: Any, observation: Any, policy: Any, now_s: float, base: Any) -> Any:
            nonlocal looks
            looks += 1
            return telling_planner.decide(state, observation, policy, now_s, base)

        return replace(telling_planner, decide=decide)

    def kept(path: PlacingPath, request: Any, beliefs: Beliefs, now_s: float) -> Any:
        seen.append((looks, beliefs))
        return place(path, request, beliefs, now_s)

    monkeypatch.setattr(placing, "telling", counted)
    monkeypatch.setattr(PlacingPath, "_place", kept)
    simulate_with(*short_step, ours(), SHORTEST)
    by_look: dict[int, set[int]] = {}
    for look, beliefs in seen:
        by_look.setdefault(look, set()).add(id(beliefs))
    assert 0 not in by_look  # nothing was estimated before the first
    assert len(by_look) > 50
    assert all(len(each) == 1 for each in by_look.values())


def test_what_is_told_is_what_the_planner_believes() -> None:
    """Of transfers the quickest, of prefixes what prefill workers hold of a prompt, and an answer's length."""
    kept = replace(State().lengths, output_tokens=250.0, prefixes=Prefixes(prefilled=2, asked=1000, computed=400))
    state = State(transfers=Transfers((1e-5, 3e-5)), lengths=kept)
    told = Told()
    decide = telling(Planner("", lambda *_: (state, None, None), State), told).decide  # type: ignore[arg-type]
    decide(state, None, None, 0.0, None)  # type: ignore[arg-type]
    assert told.beliefs is None  # without a table, before anything is learned
    decide(state, None, None, 0.0, MODEL)  # type: ignore[arg-type]
    assert told.beliefs is not None
    assert (told.beliefs.transfer_s_per_token, told.beliefs.held_by_prefill) == (1e-5, 300)
    assert told.beliefs.output_tokens == 250


def test_the_quick_model_is_the_calibrated_one() -> None:
    kappas = Calibration(tuple((key, Bucket(0.1 * n, 9)) for n, key in enumerate(("p1", "p4", "d0-2", "d3-3", "d4-6"))))
    model = CalibratedModel(LinearModel(10, 0.1, 0.001, 10, 1, 0.002), kappas, kappas)
    quick = placing._quick(model)
    for tokens, cached in ((0, 0), (1, 0), (150, 0), (2000, 0), (2000, 500), (150, 0)):
        assert quick.prefill_ms(tokens, cached) == model.prefill_ms(tokens, cached)
    for batch, held in ((1, 500), (1, 3000), (14, 9000), (40, 200_000), (14, 9000)):
        assert quick.decode_step_ms(batch, held) == model.decode_step_ms(batch, held)
    assert quick.prefill_ms(2000, 0) != pytest.approx(model.base.prefill_ms(2000, 0))
    assert quick.decode_step_ms(14, 9000) != pytest.approx(model.base.decode_step_ms(14, 9000))


def test_the_estimates_are_near_what_comes_and_the_book_is_empty_at_the_end(
    monkeypatch: pytest.MonkeyPatch, short_step: tuple[Trace, Simulation, Policy]
) -> None:
    paths: list[PlacingPath] = []
    begin = PlacingPath.__init__

    def kept(path: PlacingPath, *arguments: Any, **named: Any) -> None:
        begin(path, *arguments, **named)
        paths.append(path)

    send = PlacingPath.dispatch

    def sent(path: PlacingPath, request: Any, now_s: float) -> None:
        send(path, request, now_s)
        assert path._rule.max_local_prefill_tokens == path.routing.max_local_prefill_tokens  # the shipped rule is back

    monkeypatch.setattr(PlacingPath, "__init__", kept)
    monkeypatch.setattr(PlacingPath, "dispatch", sent)
    trace, simulation, policy = short_step
    # Workers that die take what they compute with them, and it begins anew elsewhere.
    simulation = replace(simulation, faults=Faults(crashes_per_worker_hour=30))
    for rule in (Rule("", 0.8), SHORTEST):
        result, errors = simulate_with(trace, simulation, policy, ours(), rule)
        assert any(each.kind == "crash" for each in result.transitions)
        assert np.median(np.abs(errors)) < 0.15
        path = paths.pop()
        assert not path._remote_ms
        assert not any(path._ahead.values())
        assert not path._expected
