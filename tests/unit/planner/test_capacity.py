"""From objectives to workers, held against an event simulation of the queue."""

import heapq
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.planner.core.capacity import (
    DecodeLoad,
    PrefillLoad,
    decode_attainment,
    decode_batch,
    decode_workers,
    delayed_wait_s,
    erlang_c,
    offered_concurrency,
    prefill_attainment,
    prefill_workers,
)
from pointsman.planner.core.performance import LinearModel

LLAMA_8B_H100 = LinearModel(4.705, 0.01757, 8.785e-7, 6.392, 0.009885, 4.273e-5)


def simulated_waits(servers: int, rate: float, services: list[float], arrivals: int, seed: int) -> list[float]:
    """Waiting times of M/G/c, by events."""
    rng, free, now, waits = random.Random(seed), [0.0] * servers, 0.0, []
    for _ in range(arrivals):
        now += rng.expovariate(rate)
        start = max(now, heapq.heappop(free))
        waits.append(start - now)
        heapq.heappush(free, start + rng.choice(services))
    return waits[arrivals // 10 :]


def test_erlang_c_agrees_with_known_values() -> None:
    assert erlang_c(1, 0.5) == pytest.approx(0.5)
    assert erlang_c(10, 8) == pytest.approx(0.4092, abs=1e-3)
    assert erlang_c(4, 4) == 1.0


@pytest.mark.parametrize("servers", [1, 4, 16])
@pytest.mark.parametrize("utilisation", [0.6, 0.85])
def test_the_mean_wait_agrees_with_events_within_a_quarter(servers: int, utilisation: float) -> None:
    rng = random.Random(11)
    services = [LLAMA_8B_H100.prefill_ms(rng.lognormvariate(7, 0.8), 0) / 1000 for _ in range(2000)]
    mean = sum(services) / len(services)
    scv = sum((s - mean) ** 2 for s in services) / len(services) / mean**2
    rate = utilisation * servers / mean
    waits = simulated_waits(servers, rate, services, 60_000, seed=servers)
    expected = sum(waits) / len(waits)
    predicted = erlang_c(servers, rate * mean) * delayed_wait_s(servers, rate, mean, 1.0, scv)
    assert predicted == pytest.approx(expected, rel=0.25, abs=0.05 * mean)


def test_the_recommended_prefill_pool_meets_its_objective_when_simulated_and_a_much_smaller_one_does_not() -> None:
    rng = random.Random(5)
    services = [LLAMA_8B_H100.prefill_ms(rng.lognormvariate(7.5, 0.7), 0) / 1000 for _ in range(2000)]
    load = PrefillLoad(rate_per_s=60, service_s=services, slack_s=[0.3] * len(services))
    workers = prefill_workers(load, 0.95, most=32)
    assert workers is not None

    def attained(count: int) -> float:
        waits = simulated_waits(count, 60, services, 40_000, seed=2)
        draw = random.Random(9)
        return sum(wait + draw.choice(services) <= 0.3 for wait in waits) / len(waits)

    assert attained(workers) >= 0.93
    assert attained(workers - 2) < 0.93


@given(rate=st.floats(0.1, 200), more=st.floats(0.1, 50), workers=st.integers(1, 40))
def test_prefill_attainment_falls_with_load_and_rises_with_workers(rate: float, more: float, workers: int) -> None:
    services, slacks = [0.02, 0.05, 0.2], [0.5, 0.5, 0.5]
    here = prefill_attainment(PrefillLoad(rate, services, slacks), workers)
    assert prefill_attainment(PrefillLoad(rate + more, services, slacks), workers) <= here + 1e-9
    assert prefill_attainment(PrefillLoad(rate, services, slacks), workers + 1) >= here - 1e-9
    assert 0 <= here <= 1


def test_an_objective_no_pool_can_meet_is_none_not_the_largest() -> None:
    assert prefill_workers(PrefillLoad(5, [1.0], [0.5]), 0.95, most=64) is None


def test_no_load_needs_nobody() -> None:
    assert prefill_workers(PrefillLoad(0, [], []), 0.95, most=8) == 0
    assert decode_workers(0, 32) == 0


@given(tpot=st.floats(8, 200), prompt=st.floats(16, 30_000), output=st.floats(1, 2000))
def test_the_decode_batch_keeps_the_objective_and_one_more_breaks_it(tpot: float, prompt: float, output: float) -> None:
    load = DecodeLoad.of(1, prompt, output)
    batch = decode_batch(load, LLAMA_8B_H100, tpot, kv_capacity_tokens=None)
    assert batch == 0 or LLAMA_8B_H100.decode_step_ms(batch, batch * load.context_tokens) <= 0.9 * tpot
    if batch < 4096:
        assert LLAMA_8B_H100.decode_step_ms(batch + 1, (batch + 1) * load.context_tokens) > 0.9 * tpot


def test_kv_capacity_limits_the_batch() -> None:
    load = DecodeLoad.of(1, 4000, 96)
    assert decode_batch(load, LLAMA_8B_H100, 1000, kv_capacity_tokens=45_056) == 10


def test_an_objective_below_one_step_holds_no_sequence() -> None:
    load = DecodeLoad.of(1, 1000, 100)
    assert decode_batch(load, LLAMA_8B_H100, 1.0, None) == 0
    assert decode_workers(3.0, 0) is None
    assert decode_attainment(3.0, 0, 5) == 0.0


@given(offered=st.floats(0.5, 5000), batch=st.integers(1, 256))
def test_the_staffed_decode_pool_holds_the_load_nineteen_times_of_twenty(offered: float, batch: int) -> None:
    workers = decode_workers(offered, batch)
    assert workers is not None
    assert decode_attainment(offered, batch, workers) >= 0.949


def test_offered_concurrency_is_littles_law() -> None:
    load = DecodeLoad.of(10, 1000, 200)
    step_s = LLAMA_8B_H100.decode_step_ms(32, 32 * 1100) / 1000
    assert offered_concurrency(load, LLAMA_8B_H100, 32) == pytest.approx(10 * 200 * step_s)
