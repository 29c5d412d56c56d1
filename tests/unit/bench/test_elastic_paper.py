"""LoongServe's evaluation: what is alone takes the formula's time, and kept figures are of the present requests."""

import math
from random import Random
from statistics import mean

import pytest
from bench.elastic.paper import ELASTIC, EXPERIMENTS, FIXED_SP, LOONGSERVE, PATH, rates
from bench.elastic.paper_costs import KV_BYTES, SequenceParallel, TensorParallel
from bench.elastic.paper_mixes import DATA_SETS, SHARE_GPT, Mix, mixed
from bench.elastic.paper_search import ALL, FACTOR, GOODPUT, INPUT, TOTAL, Tally, find_rates, objectives_of
from bench.elastic.simulation import Asked, Outcome
from bench.rows import read

from pointsman.serving.elastic.requests import MemberLoad

ENGINE = TensorParallel(8)
LONG = Asked(1.0, 100_000, 5)


def test_a_prefill_by_hand() -> None:
    """100 000 tokens on 8 GPUs at 187.2 TFLOP/s: 0.895 s linear, 0.875 + 0.875 s attention, 0.459 + 0.0006 s
    all-reduce, 0.015 s constant.
    """
    linear_s = 2 * 6.7e9 * 1e5 / (8 * 187.2e12)
    attention_s = 2 * 4096 * 32 * 1e10 / (8 * 187.2e12)
    reduce_s = 64 * (10e-6 + 2 * 7 / 8 * 1e5 * 8192 / 200e9)
    assert ENGINE.prefill_s([100_000]) == pytest.approx(0.015 + linear_s + attention_s + reduce_s)
    assert ENGINE.prefill_s([100_000]) == pytest.approx(3.12, abs=0.01)


def test_a_decode_step_by_hand() -> None:
    """Two GPUs read 13.4 GB of weights and 1 000 x 512 KiB of KV at 1.6 TB/s each: 4.19 and 0.16 ms."""
    step_s = 0.015 + 13.4e9 / 3.2e12 + 1000 * 524_288 / 3.2e12 + 64 * (10e-6 + 8192 / 200e9)
    assert TensorParallel(2).step_s(1, 1000) == pytest.approx(step_s)
    assert KV_BYTES == 512 * 1024


def test_all_systems_have_the_same_times() -> None:
    """One group of one member is the engine itself."""
    alone = SequenceParallel(ENGINE)
    assert alone.prefill_s(1, [300, 20_000]) == pytest.approx(ENGINE.prefill_s([300, 20_000]))
    assert alone.decode_s([MemberLoad(7, 9000)]) == pytest.approx(ENGINE.step_s(7, 9000))
    first_s, end_s = ENGINE.alone_s(100_000, 5)
    assert end_s == pytest.approx(first_s + sum(ENGINE.step_s(1, 100_000 + number) for number in range(1, 5)))


def test_the_managers_model_fits_the_times_within_the_papers_error() -> None:
    model = SequenceParallel(TensorParallel(2)).latency_model((1, 2, 3, 4))
    assert max(each.error for each in model.by_degree.values()) < 0.02
    assert [model.seconds([100_000], degree) for degree in (1, 2, 4)] == pytest.approx([10.86, 5.50, 2.84], abs=0.02)


def test_an_elastic_group_prefills_a_lone_prompt_on_all_instances_and_decodes_on_one() -> None:
    times = SequenceParallel(TensorParallel(2))
    (found,) = ELASTIC.outcomes([LONG])
    steps = [times.decode_s([MemberLoad(1, 100_000 + number)]) for number in range(1, 5)]
    assert found.end_s - 1.0 == pytest.approx(times.prefill_s(4, [100_000]) + sum(steps))
    (fixed,) = FIXED_SP.outcomes([LONG])
    assert fixed.first_s == pytest.approx(found.first_s)


def test_lengths_are_within_the_papers_ranges_and_evenly_spread_over_doublings() -> None:
    rng = Random(1)
    for of in DATA_SETS:
        prompts, outputs = zip(*(of(rng) for _ in range(3000)), strict=True)
        assert of.prompt[0] <= min(prompts) and max(prompts) <= of.prompt[1]
        assert min(outputs) >= 4 and max(outputs) <= of.output[1]
        middle = math.sqrt(of.prompt[0] * of.prompt[1])
        assert sum(each < middle for each in prompts) / 3000 == pytest.approx(0.5, abs=0.03)
    kinds = [mixed(rng)[0] for _ in range(6000)]
    assert sum(each < 2_700 for each in kinds) / 6000 == pytest.approx(1 / 3, abs=0.03)


def test_another_rate_brings_the_same_requests_at_other_times() -> None:
    mix = Mix("of a test", SHARE_GPT, 100.0, 1.0)
    slow, fast = mix.draw(1.0, 7), mix.draw(2.0, 7)
    assert len(fast) == pytest.approx(200, abs=45)
    for one, other in zip(slow, fast, strict=False):
        assert (one.prompt_tokens, one.output_tokens) == (other.prompt_tokens, other.output_tokens)
        assert one.at_s == pytest.approx(2 * other.at_s)


def test_requests_that_are_alone_are_far_within_the_objectives() -> None:
    mix = Mix("of a test", SHARE_GPT, 2000.0, 1.0)
    asked = [Asked(100.0 * number, *lengths) for number, lengths in enumerate(mix.sample())]
    tally = Tally(objectives_of(mix), len(asked))
    for each in asked:
        first_s, end_s = ENGINE.alone_s(each.prompt_tokens, each.output_tokens)
        tally.add(Outcome(each, each.at_s + first_s, each.at_s + end_s))
    for measure in (TOTAL, INPUT, ALL):
        assert tally.judged[measure] == pytest.approx(1 / FACTOR)
    assert tally.judged[GOODPUT] == 0.0


def test_the_rate_is_found_where_a_measure_passes_its_objective() -> None:
    tried: list[float] = []

    def judged(rate: float) -> dict[str, float]:
        tried.append(rate)
        return {TOTAL: rate / 7.3, INPUT: rate / 0.9}

    found = find_rates(judged, (TOTAL, INPUT), 4.0)
    assert found == {TOTAL: pytest.approx(7.3, rel=0.031), INPUT: pytest.approx(0.9, rel=0.031)}
    assert len(tried) == len(set(tried)) < 16


def test_a_committed_rate_is_found_again() -> None:
    (mix,) = (mix for mix, _ in EXPERIMENTS if mix.name == "LV-Eval")
    found = rates(FIXED_SP, mix, (GOODPUT,))
    (committed,) = (
        row.peer for row in read(PATH) if (row.name, row.peer_name) == (f"LV-Eval: {GOODPUT}", "fixed TP2 x SP4")
    )
    assert mean(found[GOODPUT]) == pytest.approx(committed, rel=1e-3)


def test_what_is_kept_of_other_systems_is_in_the_rows_and_of_the_same_requests() -> None:
    """Of other requests, or in other times, it is no comparison: then the rows of other systems have to go."""
    rows = {(row.peer_name, row.name): row.peer for row in read(PATH) if row.peer_name != "fixed TP2 x SP4"}
    kept = {
        (peer, f"{mix}: {what}"): figure
        for mix, peers in LOONGSERVE["simulated"].items()
        for peer, found in peers.items()
        for what, figure in found.items()
    }
    assert kept == rows
    for mix, _ in EXPERIMENTS:
        asked = mix.draw(mix.first_rate, 1)
        sums = sum(each.prompt_tokens for each in asked), sum(each.output_tokens for each in asked)
        assert (mix.seconds, *sums) == {
            "ShareGPT": (8, 484_114, 253_310),
            "L-Eval": (600, 13_355_781, 29_460),
            "LV-Eval": (2400, 32_874_313, 5_413),
            "Mixed": (1200, 15_068_596, 28_384),
        }[mix.name]
