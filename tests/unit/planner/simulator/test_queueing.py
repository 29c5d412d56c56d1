"""The simulator against what queueing theory knows exactly."""

import heapq

import numpy as np
import pytest

from pointsman.planner.core.sizing.queueing import delayed_wait_s, erlang_c
from pointsman.planner.core.types import RoutingNumbers
from pointsman.planner.profile.linear_model import LinearModel
from pointsman.planner.simulator.simulate import simulate
from pointsman.planner.simulator.types import Engine, Network, Simulation, Trace
from unit.planner.simulator.scenes import ENGINE, POLICY, poisson, static

# Prompts one at a time (budget 1), 0.1 ms a token; an answer is one token of a step that takes no time to speak of.
ALONE = Engine(
    LinearModel(prefill_a=0.0, prefill_b=0.1, prefill_c=0.0, decode_d0=1e-3, decode_d1=0.0, decode_d2=0.0),
    kv_capacity_tokens=10_000_000,
    kv_bytes_per_token=1,
    max_batch=4096,
)
REMOTE = RoutingNumbers(0, 1_000_000, prefill_token_budget=1)


def waits_s(trace: Trace, workers: int) -> np.ndarray:
    simulation = Simulation(ALONE, workers, 1, routing=REMOTE, network=Network(bytes_per_s=1e15, hop_s=0.0))
    result = simulate(trace, simulation, POLICY, static())
    return result.ttft_s - trace.prompt_tokens * 1e-4 - 1e-6


@pytest.mark.parametrize("utilisation", [0.5, 0.8])
def test_equal_prompts_wait_for_one_prefill_worker_as_in_m_d_1(utilisation: float) -> None:
    service_s = 0.1
    trace = poisson(utilisation / service_s, 1500, prompt=1000, output=1, seed=3)
    expected = utilisation * service_s / (2 * (1 - utilisation))
    assert waits_s(trace, 1).mean() == pytest.approx(expected, rel=0.08)


def exponential_prompts(utilisation: float, workers: int, count: int, seed: int) -> Trace:
    """Poisson arrivals of prompts that take 0.1 s on average, exponentially distributed."""
    rng = np.random.default_rng(seed)
    lengths = np.maximum(1, np.rint(rng.exponential(1000, count))).astype(np.int64)
    at_s = np.cumsum(rng.exponential(0.1 / utilisation / workers, count))
    return Trace("m/m/c", at_s, lengths, np.ones(count, np.int64))


def test_prompts_of_exponential_length_wait_for_four_workers_as_in_m_m_4() -> None:
    waits = waits_s(exponential_prompts(0.6, 4, 12_000, seed=5), 4)
    probability = erlang_c(4, 0.6 * 4)
    assert (waits > 1e-6).mean() == pytest.approx(probability, rel=0.06)
    # Means of so many waits differ by 7 % (one standard deviation): how exact it is, the next test says.
    assert waits.mean() == pytest.approx(probability * delayed_wait_s(4, 24.0, 0.1, 1.0, 1.0), rel=0.20)


def test_each_prompt_waits_as_long_as_the_recursion_of_kiefer_and_wolfowitz_says() -> None:
    trace = exponential_prompts(0.9, 3, 3000, seed=6)
    free_at_s = [0.0] * 3
    expected = []
    for at_s, tokens in zip(trace.arrival_s.tolist(), trace.prompt_tokens.tolist(), strict=True):
        begins_s = max(at_s, heapq.heappop(free_at_s))
        heapq.heappush(free_at_s, begins_s + tokens * 1e-4)
        expected.append(begins_s - at_s)
    assert waits_s(trace, 3) == pytest.approx(np.array(expected), abs=1e-9)


def test_sequences_in_decode_are_rate_times_time_in_decode() -> None:
    """Little's law, with the number taken from what the planner sees and the time from the requests."""
    trace = poisson(20.0, 400, prompt=1000, output=200, seed=1)
    result = simulate(trace, Simulation(ENGINE, 3, 2), POLICY, static())
    steady = [p.decoding for p in result.timeline if 30 < p.at_s < 390]
    in_decode_s = result.end_s - result.arrival_s - result.ttft_s
    assert np.mean(steady) == pytest.approx(20.0 * in_decode_s.mean(), rel=0.05)


def test_a_decode_step_takes_what_the_model_says_for_its_batch() -> None:
    """One sequence alone: TPOT is the mean step over its growing context, with nothing else in it."""
    trace = Trace("apart", np.arange(0.0, 200.0, 20.0), np.full(10, 2000), np.full(10, 300))
    result = simulate(trace, Simulation(ENGINE, 1, 1), POLICY, static())
    expected_ms = ENGINE.performance.decode_step_ms(1, 2000 + 300 / 2)
    assert result.tpot_s * 1000 == pytest.approx(np.full(len(trace), expected_ms), rel=1e-3)
