"""The systems of LoongServe's evaluation: what is alone takes the formula's time, and no bound is exceeded."""

import math
from random import Random
from statistics import mean

import pytest
from bench.elastic.paper import ELASTIC, FIXED_SP, PATH, PEERS, Served, rates, refused
from bench.elastic.paper_costs import KV_BYTES, Chunk, SequenceParallel, TensorParallel
from bench.elastic.paper_mixes import DATA_SETS, Mix, mixed
from bench.elastic.paper_search import ALL, FACTOR, GOODPUT, INPUT, TOTAL, Tally, find_rates, objectives_of
from bench.elastic.paper_static import OneEngine, PrefillDecode
from bench.elastic.simulation import Asked
from bench.rows import read

from pointsman.serving.elastic.requests import MemberLoad

ENGINE = TensorParallel(8)
SHORT, LONG = Asked(1.0, 300, 9), Asked(1.0, 100_000, 5)
STATIC = (OneEngine(ENGINE), OneEngine(ENGINE, 512), PrefillDecode(TensorParallel(4)))


def load(rate: float = 30.0, count: int = 200, most: int = 2300, seed: int = 1) -> list[Asked]:
    rng, at_s, found = Random(seed), 0.0, []
    for _ in range(count):
        at_s += rng.expovariate(rate)
        found.append(Asked(at_s, rng.randint(4, most), rng.randint(2, 60)))
    return found


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
    """One group of one member is the engine itself, and a whole prompt is a chunk of all its tokens."""
    alone = SequenceParallel(ENGINE)
    assert alone.prefill_s(1, [300, 20_000]) == pytest.approx(ENGINE.prefill_s([300, 20_000]))
    assert alone.decode_s([MemberLoad(7, 9000)]) == pytest.approx(ENGINE.step_s(7, 9000))
    assert ENGINE.step_s(0, 0, [Chunk(300)]) == ENGINE.prefill_s([300])


def test_the_managers_model_fits_the_times_within_the_papers_error() -> None:
    model = SequenceParallel(TensorParallel(2)).latency_model((1, 2, 3, 4))
    assert max(each.error for each in model.by_degree.values()) < 0.02
    assert [model.seconds([100_000], degree) for degree in (1, 2, 4)] == pytest.approx([10.86, 5.50, 2.84], abs=0.02)


@pytest.mark.parametrize("asked", [SHORT, LONG], ids=["short", "long"])
def test_a_request_that_is_alone_takes_the_formulas_time(asked: Asked) -> None:
    first_s, end_s = ENGINE.alone_s(asked.prompt_tokens, asked.output_tokens)
    steps = [ENGINE.step_s(1, asked.prompt_tokens + number) for number in range(1, asked.output_tokens)]
    assert end_s == pytest.approx(first_s + sum(steps))
    (found,) = OneEngine(ENGINE).outcomes([asked])
    assert found.first_s - asked.at_s == pytest.approx(first_s)
    assert found.end_s - asked.at_s == pytest.approx(end_s)


def test_a_request_alone_is_prefilled_in_chunks() -> None:
    (found,) = OneEngine(ENGINE, 512).outcomes([Asked(0.0, 1200, 2)])
    chunks = [Chunk(512), Chunk(512, 512), Chunk(176, 1024)]
    assert found.first_s == pytest.approx(sum(ENGINE.step_s(0, 0, [each]) for each in chunks))


def test_static_pd_alone_adds_the_transfer() -> None:
    """100 000 x 512 KiB over four GPUs with 200 GB/s each: 65.5 ms."""
    engine = TensorParallel(4)
    (found,) = PrefillDecode(engine).outcomes([LONG])
    assert engine.send_s(100_000) == pytest.approx(0.0655, abs=1e-4)
    assert found.end_s - 1.0 == pytest.approx(engine.alone_s(100_000, 5)[1] + engine.send_s(100_000))


def test_an_elastic_group_prefills_a_lone_prompt_on_all_instances_and_decodes_on_one() -> None:
    times = SequenceParallel(TensorParallel(2))
    (found,) = ELASTIC.outcomes([LONG])
    steps = [times.decode_s([MemberLoad(1, 100_000 + number)]) for number in range(1, 5)]
    assert found.end_s - 1.0 == pytest.approx(times.prefill_s(4, [100_000]) + sum(steps))
    (fixed,) = FIXED_SP.outcomes([LONG])
    assert fixed.first_s == pytest.approx(found.first_s)


@pytest.mark.parametrize("served", STATIC, ids=["whole", "chunked", "P/D"])
def test_every_request_ends_and_first_tokens_come_in_order_of_arrival(served: Served) -> None:
    found = served.outcomes(load())
    assert all(each.asked.at_s < each.first_s <= each.end_s < math.inf for each in found)
    firsts = [each.first_s for each in found]
    assert firsts == sorted(firsts)


Step = tuple[int, int, tuple[Chunk, ...]]


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[Step]:
    """Requests, KV tokens and chunks of every step that is simulated."""
    found: list[Step] = []
    step_s = TensorParallel.step_s

    def watched(engine: TensorParallel, requests: int, kv_tokens: int, chunks: tuple[Chunk, ...] = ()) -> float:
        found.append((requests, kv_tokens, chunks))
        return step_s(engine, requests, kv_tokens, chunks)

    monkeypatch.setattr(TensorParallel, "step_s", watched)
    return found


@pytest.mark.parametrize("served", STATIC, ids=["whole", "chunked", "P/D"])
def test_a_step_never_reads_more_kv_than_there_are_slots(
    served: Served, steps: list[Step], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.elastic.paper_costs.SLOTS", {4: 5000, 8: 5000})
    assert all(each.end_s < math.inf for each in served.outcomes(load(rate=1000.0)))
    read = [kv_tokens + sum(each.tokens + each.before for each in chunks) for _, kv_tokens, chunks in steps]
    assert 2500 < max(read) <= 5000


@pytest.mark.parametrize("chunk", [64, 512])
def test_a_chunk_budget_is_never_exceeded(chunk: int, steps: list[Step]) -> None:
    asked = load(rate=1000.0)
    OneEngine(ENGINE, chunk).outcomes(asked)
    prefilling = [(requests, sum(each.tokens for each in chunks)) for requests, _, chunks in steps if chunks]
    assert max(requests + tokens for requests, tokens in prefilling) == chunk
    assert sum(tokens for _, tokens in prefilling) == sum(each.prompt_tokens for each in asked)


def test_a_system_refuses_what_can_never_fit() -> None:
    mix = Mix("LV-Eval", DATA_SETS["LV-Eval"], 2400, 0.1)
    assert {name: round(refused(variants[0], mix), 4) for name, variants in PEERS.items()} == {
        "TP8 as vLLM": 0.0,
        "TP8 with chunked prefill": 0.0,
        "static P/D": 0.0391,
        "fixed TP2 x SP4": 0.0,
    }


def test_lengths_are_within_the_papers_ranges_and_evenly_spread_over_doublings() -> None:
    rng = Random(1)
    for of in DATA_SETS.values():
        prompts, outputs = zip(*(of(rng) for _ in range(3000)), strict=True)
        assert of.prompt[0] <= min(prompts) and max(prompts) <= of.prompt[1]
        assert min(outputs) >= 4 and max(outputs) <= of.output[1]
        middle = math.sqrt(of.prompt[0] * of.prompt[1])
        assert sum(each < middle for each in prompts) / 3000 == pytest.approx(0.5, abs=0.03)
    kinds = [mixed(rng)[0] for _ in range(6000)]
    assert sum(each < 2_700 for each in kinds) / 6000 == pytest.approx(1 / 3, abs=0.03)


def test_another_rate_brings_the_same_requests_at_other_times() -> None:
    mix = Mix("of a test", DATA_SETS["ShareGPT"], 100.0, 1.0)
    slow, fast = mix.draw(1.0, 7), mix.draw(2.0, 7)
    assert len(fast) == pytest.approx(200, abs=45)
    for one, other in zip(slow, fast, strict=False):
        assert (one.prompt_tokens, one.output_tokens) == (other.prompt_tokens, other.output_tokens)
        assert one.at_s == pytest.approx(2 * other.at_s)


def test_requests_that_are_alone_are_far_within_the_objectives() -> None:
    mix = Mix("of a test", DATA_SETS["ShareGPT"], 2000.0, 1.0)
    asked = [Asked(100.0 * number, *lengths) for number, lengths in enumerate(mix.sample())]
    tally = Tally(objectives_of(mix), len(asked))
    for each in OneEngine(ENGINE).outcomes(asked):
        tally.add(each)
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
    found = rates(PEERS["static P/D"], Mix("L-Eval", DATA_SETS["L-Eval"], 600, 0.5), (INPUT, GOODPUT))
    committed = {row.name: row.peer for row in read(PATH) if row.peer_name == "static P/D"}
    for measure in (INPUT, GOODPUT):
        assert mean(found[measure]) == pytest.approx(committed[f"L-Eval: {measure}"], rel=1e-3)
