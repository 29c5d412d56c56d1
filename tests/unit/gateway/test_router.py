"""The cost functions and the choice among equals."""

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.gateway.core.router import (
    COST_FUNCTIONS,
    CostFunction,
    NoCandidates,
    RouterName,
    choose,
    overlap_ratio,
    token_load,
)
from pointsman.gateway.types import Candidate, Load, WorkerKey


def candidate(name: str, **values: Any) -> Candidate:
    return Candidate(key=WorkerKey(name), **values)


loads = st.builds(
    Load,
    kv_usage=st.none() | st.floats(0, 1),
    waiting=st.none() | st.integers(0, 100),
    running=st.none() | st.integers(0, 40),
)
candidates = st.lists(
    st.builds(
        Candidate,
        key=st.uuids().map(lambda uuid: WorkerKey(str(uuid))),
        overlap_tokens=st.integers(0, 4096),
        load=loads,
        pending_requests=st.integers(0, 20),
        pending_tokens=st.integers(0, 50_000),
        active_requests=st.integers(0, 20),
        active_tokens=st.integers(0, 50_000),
        last_chosen=st.integers(0, 1000),
        engine_context_tokens=st.none() | st.integers(0, 100_000),
    ),
    min_size=1,
    max_size=12,
)


@given(st.sampled_from(RouterName), st.integers(0, 4096), candidates, st.integers())
def test_every_cost_function_chooses_one_of_the_candidates_of_lowest_cost(
    name: RouterName, prompt_tokens: int, among: list[Candidate], seed: int
) -> None:
    choice = choose(COST_FUNCTIONS[name], prompt_tokens, among, Random(seed))
    cost = choice.costs[among.index(choice.chosen)]
    assert cost <= min(choice.costs) + 1e-9 * max(1.0, abs(min(choice.costs)))


@given(st.sampled_from(RouterName), st.integers(0, 4096), candidates)
def test_the_order_of_candidates_does_not_matter(name: RouterName, prompt_tokens: int, among: list[Candidate]) -> None:
    costs = dict(zip((c.key for c in among), COST_FUNCTIONS[name](prompt_tokens, among), strict=True))
    turned = list(reversed(among))
    again = dict(zip((c.key for c in turned), COST_FUNCTIONS[name](prompt_tokens, turned), strict=True))
    assert costs == again


@given(st.sampled_from([token_load, overlap_ratio]), st.integers(1, 4096), candidates)
def test_a_worker_of_unknown_load_costs_no_less_than_it_would_as_the_most_loaded_one(
    cost: CostFunction, prompt_tokens: int, among: list[Candidate]
) -> None:
    known_usage = [c.load.kv_usage for c in among if c.load.kv_usage is not None]
    known_waiting = [c.load.waiting for c in among if c.load.waiting is not None]
    # What others have there is known where ``running`` is; each of the loud one's is as long as this prompt or longer.
    running = max((c.load.running for c in among if c.load.running is not None), default=0)
    most_context = max((c.engine_context_tokens or 0 for c in among), default=0) + prompt_tokens * running
    worst = Load(max(known_usage, default=0.0), max(known_waiting, default=0), running=running + 1)
    silent = candidate("silent")
    loud = candidate("loud", load=worst, engine_context_tokens=most_context)
    costs = cost(prompt_tokens, [*among, silent, loud])
    assert costs[-2] == pytest.approx(costs[-1])


def test_ties_fall_at_random_and_reach_everybody() -> None:
    among = [candidate(name) for name in "abc"]
    rng = Random(5)
    chosen = [choose(token_load, 100, among, rng).chosen.key for _ in range(60)]
    assert {chosen.count(WorkerKey(name)) > 5 for name in "abc"} == {True}


def test_the_seeds_formula_gives_the_seeds_numbers() -> None:
    # 2 · overlap ratio − kv usage − waiting / max(waiting), Dynamo's KV router of 2025
    costs = overlap_ratio(
        200,
        [
            candidate("a", overlap_tokens=100, load=Load(kv_usage=0.25, waiting=4)),
            candidate("b", overlap_tokens=200, load=Load(kv_usage=0.5, waiting=2)),
            candidate("c", load=Load(kv_usage=0.0, waiting=0)),
        ],
    )
    assert costs == pytest.approx([-(1.0 - 0.25 - 1.0), -(2.0 - 0.5 - 0.5), 0.0])


def test_a_cached_prefix_wins_until_the_queue_before_it_costs_more() -> None:
    cached = {"overlap_tokens": 1000}
    idle = candidate("idle")
    assert choose(token_load, 1200, [candidate("warm", **cached), idle], Random(1)).chosen.key == "warm"
    busy = candidate("warm", pending_requests=1, pending_tokens=1500, **cached)
    assert choose(token_load, 1200, [busy, idle], Random(1)).chosen.key == "idle"
    computed_elsewhere = [one._replace(prefilled_elsewhere=True) for one in (busy, idle)]
    assert choose(token_load, 1200, computed_elsewhere, Random(1)).chosen.key == "warm"


def test_requests_sent_a_moment_ago_count_before_any_metric_shows_them() -> None:
    fresh = Load(kv_usage=0.1, waiting=0)
    a = candidate("a", load=fresh, pending_requests=1, pending_tokens=300)
    b = candidate("b", load=fresh)
    assert choose(token_load, 300, [a, b], Random(1)).chosen.key == "b"


def test_streams_of_other_gateways_count_with_the_context_that_the_engine_reports() -> None:
    # The documentation's example: 5 requests on 200 blocks of 16, of which 2 with 1 000 tokens are this gateway's.
    shared = candidate(
        "shared", load=Load(0.1, 0, running=5), active_requests=2, active_tokens=1000, engine_context_tokens=3200
    )
    own = candidate("own", load=Load(0.1, 0, running=2), active_requests=2, active_tokens=1000)
    costs = token_load(100, [shared, own])
    assert costs == pytest.approx([100 + (1000 + 2200) / 4, 100 + 1000 / 4])
    # Without the blocks each of the others is taken to be as long as this prompt.
    assert token_load(100, [shared._replace(engine_context_tokens=None), own])[0] == pytest.approx(
        100 + (1000 + 3 * 100) / 4
    )
    # What this gateway has sent and the engine does not run yet is not somebody else's.
    sent = candidate("sent", load=Load(0.1, 0, running=2), pending_requests=2, engine_context_tokens=3200)
    assert token_load(100, [sent, own])[0] == pytest.approx(100)


def test_a_full_kv_cache_repels() -> None:
    full = candidate("full", load=Load(kv_usage=0.99, waiting=0))
    free = candidate("free", load=Load(kv_usage=0.2, waiting=0), active_tokens=1000)
    assert choose(token_load, 500, [full, free], Random(1)).chosen.key == "free"


def test_round_robin_takes_the_one_chosen_longest_ago() -> None:
    among = [candidate("a", last_chosen=7), candidate("b", last_chosen=3), candidate("c", last_chosen=9)]
    assert choose(COST_FUNCTIONS[RouterName.ROUND_ROBIN], 1, among, Random(1)).chosen.key == "b"


def test_a_choice_among_nobody_is_an_error() -> None:
    with pytest.raises(NoCandidates):
        choose(token_load, 1, [], Random(1))
