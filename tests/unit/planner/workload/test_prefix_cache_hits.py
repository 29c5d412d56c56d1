"""What decode workers and prefill workers have cached, and what that leaves for each to compute."""

from dataclasses import replace

import pytest

from pointsman.api.protocol.names import Role
from pointsman.planner.core.sizing.operating_point import OperatingPoint, operating_point
from pointsman.planner.core.state import State, learn, model_of
from pointsman.planner.core.types import EngineSample, Load, Objectives, Policy, Uncached
from pointsman.planner.core.workload.length_variability import Shape
from pointsman.planner.core.workload.prefix_cache_hits import Prefixes
from pointsman.planner.core.workload.request_lengths import Lengths
from unit.planner.scenes import LLAMA_8B_H100, observed

# A hundred conversations a window: four of five turns go on where they were, with 256 tokens that are new.
TURNS = Uncached(
    requests=100.0, prompt_tokens=600_000.0, tokens=80 * 256.0 + 20 * 3000.0,
    length_shares=((256.0, 0.8), (3000.0, 0.2)), prefilled=20.0, asked_tokens=20 * 3500.0, computed_tokens=20 * 3200.0,
)  # fmt: skip
LOAD = Load(
    20.0, prompt_tokens=6000.0, cached_tokens=500.0, output_tokens=100.0, prompt_length_shares=((6000.0, 1.0),),
    pulled_tokens=20 * 3000.0, uncached=TURNS,
)  # fmt: skip


def after(load: Load, windows: int = 1) -> Lengths:
    lengths = Lengths()
    for tick in range(windows):
        lengths = lengths.observe(load, 5.0, 5.0 * tick)
    return lengths


def point(lengths: Lengths, threshold: int = 512) -> OperatingPoint:
    routing = replace(observed(0, None).routing, max_local_prefill_tokens=threshold)
    policy = Policy(objectives=Objectives(ttft_ms=1500, tpot_ms=40))
    return operating_point(LLAMA_8B_H100, replace(observed(0, None), routing=routing), policy, lengths, Shape())


@pytest.mark.parametrize(("threshold", "sent"), [(0, 1.0), (128, 1.0), (256, 0.6), (512, 0.2), (8192, 0.0)])
def test_only_prompts_that_lack_more_than_the_threshold_where_they_decode_are_sent(threshold: int, sent: float) -> None:
    at = point(after(LOAD, 3))
    assert at.at_threshold(threshold).remote_share == pytest.approx(sent)
    assert point(after(LOAD, 3), threshold).remote_share == pytest.approx(sent)


def test_a_prompt_that_is_sent_costs_what_prefill_workers_lack_and_one_that_stays_what_its_decode_worker_lacks() -> (
    None
):
    at = point(after(LOAD))
    assert at.prefill_alone_s * 1000 == pytest.approx(LLAMA_8B_H100.prefill_ms(3200, 300))
    assert at.queued_tokens == pytest.approx(3000), "as a gateway counts it, and as it goes over the network"
    held = 6000 - TURNS.tokens / TURNS.requests
    assert at.local_s * 1000 == pytest.approx(0.8 * LLAMA_8B_H100.prefill_ms(256, held))


def test_a_measured_prefill_is_held_against_what_its_prompt_and_what_was_cached_of_it_should_take() -> None:
    took_ms = LLAMA_8B_H100.prefill_ms(3200, 300)
    assert took_ms > 1.01 * LLAMA_8B_H100.prefill_ms(3200, 0), "else this shows nothing"
    state = State()
    for tick in range(10):
        samples = (EngineSample(Role.PREFILL, took_ms, 3200.0),)
        seen = replace(observed(5.0 * tick, LOAD), load=LOAD, samples=samples)
        state = learn(state, seen, LOAD, Policy(), LLAMA_8B_H100)
    model = model_of(state, LLAMA_8B_H100)
    assert model is not None
    assert model.prefill_ms(3200, 300) == pytest.approx(took_ms)


def test_a_prompt_that_is_cached_where_it_decodes_is_never_sent_and_costs_nobody_anything() -> None:
    cached = replace(TURNS, tokens=20 * 3000.0, length_shares=((1.0, 0.8), (3000.0, 0.2)))
    at = point(after(replace(LOAD, uncached=cached)), threshold=0)
    assert at.remote_share == pytest.approx(0.2)
    assert at.local_s == 0.0


@pytest.mark.parametrize("longer", [2.0, 5.0])
def test_however_long_prompts_become_one_that_is_cached_where_it_decodes_lacks_nothing(longer: float) -> None:
    # The mean is known at once, how they spread only after a while: of the lengths that were seen before.
    lacked = 20 * 3000.0 * longer
    cached = replace(TURNS, tokens=lacked, length_shares=((1.0, 0.8), (3000.0, 0.2)))
    at = point(after(replace(LOAD, uncached=cached)), threshold=0)
    assert at.remote_share == pytest.approx(0.2)
    assert at.queued_tokens == pytest.approx(3000.0 * longer, rel=0.01)
    held = 6000 * (1 - lacked / TURNS.prompt_tokens)
    sent_no_more = at.at_threshold(32_768)
    assert sent_no_more.local_s * 1000 == pytest.approx(0.2 * LLAMA_8B_H100.prefill_ms(at.queued_tokens, held)), (
        "only the others cost a decode worker anything"
    )


def test_conversations_need_far_fewer_prefill_workers_than_prompts_that_are_all_alike() -> None:
    alike = point(after(replace(LOAD, uncached=None)))
    assert alike.remote_share == 1.0
    rate = 100.0
    assert point(after(LOAD)).prefill_workers(rate, 1.0, 0.05, 64) < 0.3 * alike.prefill_workers(rate, 1.0, 0.05, 64)


def test_where_decode_workers_hold_nothing_all_is_as_without_the_measurement() -> None:
    nothing = Uncached(100.0, 600_000.0, 600_000.0, ((5793.0, 1.0),), 100.0, 600_000.0, 550_000.0)
    measured, alike = point(after(replace(LOAD, uncached=nothing))), point(after(replace(LOAD, uncached=None)))
    assert measured.beside_local() == alike.beside_local()
    assert replace(measured, beside_local=alike.beside_local) == alike


def test_prefill_workers_that_have_a_beginning_which_decode_workers_lack_compute_less() -> None:
    seen = Prefixes().observe(replace(LOAD, uncached=replace(TURNS, computed_tokens=20 * 1500.0)), ())
    assert seen.computed_by_prefill(3000.0) == pytest.approx(1500.0)


@pytest.mark.parametrize(
    "unknown",
    [
        replace(LOAD, pulled_tokens=None),
        replace(LOAD, uncached=replace(TURNS, prefilled=0.0, asked_tokens=0.0, computed_tokens=0.0)),
    ],
)
def test_until_prefill_workers_say_what_they_have_it_is_taken_to_be_what_decode_workers_have(unknown: Load) -> None:
    assert Prefixes().observe(unknown, ()).computed_by_prefill(3000.0) == 3000.0


def test_while_no_engine_says_what_it_pulled_a_prompt_does_not_look_dearer() -> None:
    seen = after(LOAD, 10).prefixes
    for _ in range(20):
        seen = seen.observe(replace(LOAD, pulled_tokens=None), seen.shares)
        assert 3000.0 <= seen.computed_by_prefill(3000.0) <= 3200.0


def test_a_window_in_which_nobody_says_changes_nothing_and_what_is_old_is_forgotten() -> None:
    seen = after(LOAD).prefixes
    assert seen.observe(replace(LOAD, uncached=None), ()) == seen
    assert after(replace(LOAD, uncached=None)).prefixes == Prefixes()
    anew = Uncached(100.0, 600_000.0, 600_000.0)
    for _ in range(12):
        seen = seen.observe(replace(LOAD, uncached=anew), ())
    assert seen.missing_share > 0.99
