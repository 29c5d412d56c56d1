"""The published threshold by itself: it settles, and does not go to and fro."""

import itertools
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fixtures.ladder import came_down
from pointsman.planner.core.decide import decide
from pointsman.planner.core.hysteresis import RaiseHoldoff
from pointsman.planner.core.routing.prefill_threshold import threshold
from pointsman.planner.core.sizing.operating_point import OperatingPoint, Prompts
from pointsman.planner.core.state import State
from pointsman.planner.core.types import Policy, RoutingNumbers, Service
from unit.planner.operating_points import point
from unit.planner.scenes import LLAMA_8B_H100, POLICY, SHORT, observed

BESIDE_LOCAL = tuple((n / 20, 1.5 * n, 0.03) for n in range(1, 20))  # share of time left for steps, batch, seconds
LOOK_S = 5.0
HOUR_LOOKS = 720

# Rate, attained TPOT and wait for a prefill worker in ms, by the look and the threshold in force.
World = Callable[[int, int], tuple[float, float, float | None]]


def at_lengths(shortest: float, share: float, transfer_s_per_token: float = 0.0) -> OperatingPoint:
    """Prompts of three lengths, a tenth of a millisecond a token; ``share`` of the requests have the shortest."""
    prompts = tuple(
        Prompts(shortest * times, of_all, *(3 * (shortest * times * 1e-4,)), shortest * times)
        for times, of_all in ((1, share), (4, 0.7 * (1 - share)), (8, 0.3 * (1 - share)))
    )
    return replace(
        point(400, 100), prompts=prompts, transfer_s_per_token=transfer_s_per_token, beside_local=lambda: BESIDE_LOCAL
    )


def run(at: OperatingPoint, decode: int, start: int, world: World, looks: int, look_s: float = LOOK_S) -> list[int]:
    """The thresholds in force, from 64 times ``start`` on."""
    tokens, rest = [64 * start], RaiseHoldoff()
    for look in range(looks):
        rate, attained, wait_ms = world(look, tokens[-1])
        service = Service(ttft_attainment=1.0, tpot_attainment=attained, prefill_queue_depth=0.0)
        seen = observed(look_s * look, None, 2, decode, service=service, routing=RoutingNumbers(tokens[-1], 32))
        rest, numbers = threshold(rest, seen, Policy(), at, rate, 1.0, wait_ms)
        tokens.append(numbers.max_local_prefill_tokens)
    return tokens


@given(
    shortest=st.floats(100, 2000), share=st.floats(0, 1), rate=st.floats(0.5, 40), decode=st.integers(1, 4),
    transfer_s_per_token=st.floats(0, 3e-4), start=st.integers(0, 16), wait_ms=st.sampled_from([0.0, 1e6]),
)  # fmt: skip
@example(shortest=100.0, share=1.0, rate=1.0, decode=1, transfer_s_per_token=0.0, start=0, wait_ms=0.0)
@example(shortest=520.0, share=0.44, rate=20.0, decode=2, transfer_s_per_token=1e-4, start=7, wait_ms=0.0)
@example(shortest=720.97, share=0.7831, rate=29.91, decode=3, transfer_s_per_token=6.23e-5, start=4, wait_ms=0.0)
def test_a_threshold_settles_also_where_decode_workers_are_too_few_whatever_it_is(
    shortest: float, share: float, rate: float, decode: int, transfer_s_per_token: float, start: int, wait_ms: float
) -> None:
    """Prompts of three lengths; what arrives and what clients get stay the same."""
    at = at_lengths(shortest, share, transfer_s_per_token)
    tokens = run(at, decode, start, lambda look, now: (rate, 1.0, wait_ms), looks=200)
    # By 128 tokens a look to the highest that may be had, where a queue waits; at most every 16 minutes another try.
    assert len(set(tokens[-20:])) == 1, tokens


@given(seed=st.integers(0, 2**32), decode=st.integers(1, 4), shortest=st.floats(100, 2000), start=st.integers(0, 16))
@settings(max_examples=40)
def test_a_threshold_does_not_go_to_and_fro_whatever_the_load_and_what_clients_get_do(
    seed: int, decode: int, shortest: float, start: int
) -> None:
    rng = random.Random(seed)

    def anything(_look: int, _now: int) -> tuple[float, float, float]:
        return rng.uniform(0.5, 40), rng.choice((0.0, 0.9, 1.0, 1.0)), rng.choice((0.0, 1e6))

    tokens = run(at_lengths(shortest, 0.5), decode, start, anything, looks=HOUR_LOOKS)
    # Twice in five minutes at the very most: at once after it stood for four, and after a rest of one.
    assert came_down(tokens) <= 2 * 12 + 1, tokens
    ten_minutes = int(600 / LOOK_S)
    assert max(came_down(tokens[look : look + ten_minutes]) for look in range(HOUR_LOOKS)) <= 5, tokens


@given(limit=st.integers(0, 14), queues=st.booleans(), attained=st.floats(0, 0.94))
@settings(max_examples=40)
def test_where_the_model_says_what_clients_do_not_get_the_threshold_tries_ever_more_seldom(
    limit: int, queues: bool, attained: float
) -> None:
    """By the model every threshold fits; above one that it knows nothing of answers are late."""
    at = replace(at_lengths(100, 0.7), step_s=0.01)

    def truth(_look: int, now: int) -> tuple[float, float, float | None]:
        return 10.0, attained if now > 64 * limit else 1.0, 1e6 if queues else None

    tokens = run(at, 2, 8, truth, looks=HOUR_LOOKS)
    assert came_down(tokens) <= 8, tokens  # after rests of 1, 2, 4, 8 and 16 minutes
    if limit < 8:
        assert came_down(tokens) >= 1


@pytest.mark.parametrize(
    ("at", "rate", "tokens"),
    [
        (at_lengths(3000, 0.03), 4.0, 4096),  # long ones, which a quarter of the answers meet; half are late
        (at_lengths(64, 0.9), 4.0, 512),  # many, which together make an answer longer by a hundredth
    ],
    ids=["few", "short"],
)
def test_answers_that_are_late_for_other_reasons_leave_the_threshold(
    at: OperatingPoint, rate: float, tokens: int
) -> None:
    assert set(run(at, 2, tokens // 64, lambda look, now: (rate, 0.5, None), looks=50)) == {tokens}
    more = replace(at, prompts=tuple(replace(p, share=10 * p.share, local_s=10 * p.local_s) for p in at.prompts[:1]))
    assert came_down(run(more, 2, tokens // 64, lambda look, now: (rate, 0.5, None), looks=50)) >= 1


def test_a_threshold_comes_down_once_for_the_answers_that_began_before_it_did() -> None:
    answers_s = 100 * 0.04  # of 100 tokens, by the objective
    tokens = run(at_lengths(200, 0.9), 2, 8, lambda look, now: (8.0, 0.5, None), looks=40, look_s=1.0)
    down = [look for look, (before, after) in enumerate(itertools.pairwise(tokens)) if after < before]
    assert len(down) > 1
    assert all(later - earlier >= answers_s for earlier, later in itertools.pairwise(down))


def test_pools_are_sized_for_the_threshold_in_force_also_where_the_planner_may_not_move_it() -> None:
    """Nine in ten prompts are computed where they decode, whoever said so."""
    load, needed = replace(SHORT, arrivals_per_s=60, prompt_length_shares=((300, 0.9), (3000, 0.1))), []
    for moves, tokens in ((True, 512), (False, 512), (False, 0)):
        state, policy = State(), replace(POLICY, remote_prefill=moves)
        for look in range(10):
            seen = observed(2.5 * look, load, 3, 3, routing=RoutingNumbers(tokens, 32))
            state, decision, _ = decide(state, seen, policy, seen.at_s, LLAMA_8B_H100)
        needed.append({name: dict(decision.inputs)[name] for name in ("prefillMilliseconds", "thresholdTokens")})
    assert needed[0] == needed[1]
    assert needed[1]["prefillMilliseconds"] > 2 * needed[2]["prefillMilliseconds"], "only long ones are queued"
