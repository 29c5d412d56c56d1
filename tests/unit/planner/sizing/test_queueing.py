"""Queueing formulas, held against an event simulation."""

import heapq
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.planner.core.sizing.queueing import delayed_wait_s, erlang_c, lost_share
from unit.planner.scenes import LLAMA_8B_H100
from unit.planner.sizing.simulated_queue import simulated_waits


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


def simulated_loss(servers: int, rate: float, patience_s: float, arrivals: int, seed: int) -> float:
    """Share of arrivals of M/M/c, service times of a second on average, that find a wait above ``patience_s``."""
    rng, free, now, lost = random.Random(seed), [0.0] * servers, 0.0, 0
    for _ in range(arrivals):
        now += rng.expovariate(rate)
        start = max(now, free[0])
        if start - now > patience_s:
            lost += 1
        else:
            heapq.heapreplace(free, start + rng.expovariate(1.0))
    return lost / arrivals


@pytest.mark.parametrize("servers", [1, 4, 12])
@pytest.mark.parametrize("utilisation", [0.8, 1.0, 1.5, 3.0])
@pytest.mark.parametrize("patience_s", [0.2, 2.0])
def test_who_is_lost_where_nobody_waits_too_long_agrees_with_events(
    servers: int, utilisation: float, patience_s: float
) -> None:
    rate = utilisation * servers
    expected = simulated_loss(servers, rate, patience_s, 60_000, seed=servers)
    assert lost_share(servers, rate, 1.0, 1.0, 1.0, patience_s) == pytest.approx(expected, abs=0.012)


@given(
    servers=st.integers(1, 60), rate=st.floats(0.01, 500), more=st.floats(1, 4), mean=st.floats(0.001, 20),
    scv=st.floats(0.05, 6), patience=st.floats(0, 60),
)  # fmt: skip
def test_more_load_loses_more_and_another_server_less(
    servers: int, rate: float, more: float, mean: float, scv: float, patience: float
) -> None:
    lost = lost_share(servers, rate, mean, 1.0, scv, patience)
    assert 0 <= lost <= 1
    assert lost_share(servers, rate * more, mean, 1.0, scv, patience) >= lost - 1e-9
    assert lost_share(servers + 1, rate, mean, 1.0, scv, patience) <= lost + 1e-9


def test_without_load_nobody_is_lost() -> None:
    assert lost_share(3, 0.0, 1.0, 1.0, 1.0, 1.0) == 0


def test_a_thousand_servers_with_hardly_anything_to_do_lose_nothing() -> None:
    assert lost_share(1000, 0.5, 0.2, 1.0, 1.0, 1.0) == 0.0


def test_far_beyond_what_servers_can_do_all_but_what_they_can_is_lost() -> None:
    assert lost_share(2, 310.0, 119.0, 9.0, 4.0, 600.0) == pytest.approx(1 - 2 / (310.0 * 119.0))
    assert lost_share(4, 1e6, 0.1, 2.0, 4.0, 0.2) == pytest.approx(1 - 4 / 1e5)
