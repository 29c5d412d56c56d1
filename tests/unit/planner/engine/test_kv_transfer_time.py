"""What a token's KV takes over the network, and what a slow network means for both pools."""

from dataclasses import replace

import pytest

from pointsman.planner.core.decide import decide
from pointsman.planner.core.engine.kv_transfer_time import KEPT, Transfers
from pointsman.planner.core.state import State
from pointsman.planner.replay.generators import generate, named_shape
from pointsman.planner.simulator.baselines import PLANNERS
from pointsman.planner.simulator.simulate import simulate
from pointsman.planner.simulator.types import Network, Result, Simulation
from unit.planner.operating_points import point
from unit.planner.scenes import LLAMA_8B_H100, LONG, observed
from unit.planner.scenes import POLICY as LIVE_POLICY
from unit.planner.simulator.scenes import ENGINE, POLICY


def test_pulls_that_share_the_network_are_no_slower_network() -> None:
    transfers = Transfers()
    for window in range(100):
        busy = 5.0 if window % 3 else 1.0
        transfers = transfers.observe(busy * 1e-5 * 4000, 4000)
    assert transfers.s_per_token == pytest.approx(1e-5)


def test_a_network_that_became_slower_is_believed_once_no_window_is_quick_any_more() -> None:
    transfers = Transfers()
    for seconds in [0.04] * KEPT + [0.4] * KEPT:
        transfers = transfers.observe(seconds, 4000)
    assert transfers.s_per_token == pytest.approx(1e-4)
    assert len(transfers.windows) == KEPT


@pytest.mark.parametrize(("seconds", "tokens"), [(None, 4000.0), (1.0, None), (1.0, 10.0), (0.0, 4000.0)])
def test_what_is_not_known_or_too_little_teaches_nothing(seconds: float | None, tokens: float | None) -> None:
    known = Transfers((1e-5,))
    assert known.observe(seconds, tokens) == known
    assert Transfers().s_per_token == 0


def test_both_pools_have_workers_enough_for_their_links() -> None:
    quick = point()
    slow = replace(quick, transfer_s_per_token=0.2 / 4000).at_threshold(0)
    assert slow.transfer_s == pytest.approx(0.2)
    assert slow.prefill_workers(20.0, 1.0, 0.1, 64) >= 20 * 0.2 / 0.7
    assert slow.decode_workers(20.0, 1.0) >= 20 * 0.2 / 0.7
    assert slow.busy_prefill_workers(20.0) == pytest.approx(20 * 0.2 / 0.7)
    assert slow.slack_s < quick.slack_s
    local = point(400, 100, threshold=1024)  # all prompts are prefilled where they decode: nothing is sent
    assert replace(local, transfer_s=5.0).decode_workers(1.0, 1.0) == local.decode_workers(1.0, 1.0)


def test_a_decision_names_what_a_transfer_takes() -> None:
    load = replace(LONG, pulled_tokens=40_000.0, pulling_s=4.0)
    state, decision, _ = decide(State(), observed(0, load), LIVE_POLICY, 0, LLAMA_8B_H100)
    assert state.transfers.s_per_token == pytest.approx(1e-4)
    assert dict(decision.inputs)["transferMilliseconds"] > 100


def replayed(bytes_per_s: float) -> Result:
    trace = generate(named_shape("steady:rate=8,prompt_tokens=4000,duration_s=240"), 3)
    service = Simulation(ENGINE, 2, 2, network=Network(bytes_per_s=bytes_per_s))
    return simulate(trace, service, POLICY, PLANNERS["pointsman"]())


def test_a_slow_network_is_found_out_and_staffed_for() -> None:
    """Half a gigabyte a prompt: at 10 Gbit/s it takes longer to send than to compute."""
    quick, slow = replayed(25e9), replayed(1.25e9)
    last_quick, last_slow = quick.timeline[-1], slow.timeline[-1]
    assert last_slow.prefill_active + last_slow.starting > last_quick.prefill_active + last_quick.starting
    settled = slow.arrival_s > 180
    assert slow.met[settled].mean() > 0.9
