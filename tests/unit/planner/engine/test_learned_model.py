"""What the planner learns of an engine from the service alone."""

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.api.protocol.names import LANGUAGE_ROLES, Role
from pointsman.planner.core.engine.learned_model import (
    MOST_BUCKETS,
    USUAL,
    Learner,
    of_even_prompts,
    pass_ms,
)
from pointsman.planner.core.engine.linear_model import LinearModel
from pointsman.planner.core.engine.performance_model import CorrectedModel
from pointsman.planner.core.metrics.scrape_pair import Histogram
from pointsman.planner.core.state import State, model_of
from pointsman.planner.core.types import EngineSample
from pointsman.planner.performance_tables import performance_table, table_names
from pointsman.planner.simulator.pages import engine_token_bounds


def prefill_ms(tokens: float) -> float:
    return 3 * USUAL.prefill_ms(tokens, 0)


def step_ms(batch: float, kv_tokens: float) -> float:
    return 2 + 1.5 * USUAL.decode_step_ms(batch, kv_tokens)


def samples(draw: random.Random, count: int, noise: float = 0.0) -> list[EngineSample]:
    found = []
    for _ in range(count):
        tokens, batch = draw.uniform(500, 8192), draw.randint(1, 60)
        kv = batch * draw.uniform(3000, 4500)
        found.append(EngineSample(Role.PREFILL, prefill_ms(tokens) * draw.lognormvariate(0, noise), tokens))
        found.append(EngineSample(Role.DECODE, step_ms(batch, kv) * draw.lognormvariate(0, noise), kv, batch))
    return found


def taught(found: list[EngineSample]) -> CorrectedModel:
    learner = Learner()
    for sample in found:
        learner = learner.observe((sample,))
    model = learner.corrected(None, 0.0, 1000.0)
    assert model is not None
    return model


@pytest.mark.parametrize(("count", "noise", "within"), [(60, 0.0, 0.01), (60, 0.08, 0.06), (2000, 0.0, 0.01)])
def test_an_engine_of_the_usual_kind_is_learned_with_and_without_noise(count: int, noise: float, within: float) -> None:
    model = taught(samples(random.Random(2), count, noise))
    for tokens in (1000, 4000, 8000):
        assert model.prefill_ms(tokens, 0) == pytest.approx(prefill_ms(tokens), rel=within)
    for batch in (10, 30, 55):
        assert model.decode_step_ms(batch, batch * 4000) == pytest.approx(step_ms(batch, batch * 4000), rel=within)


def test_hours_of_one_load_do_not_make_it_forget_what_another_taught() -> None:
    draw = random.Random(3)
    found = samples(draw, 60)
    found += [EngineSample(Role.DECODE, step_ms(2, 8000), 8000, 2) for _ in range(3000)]
    assert taught(found).decode_step_ms(50, 200_000) == pytest.approx(step_ms(50, 200_000), rel=0.03)


def test_an_engine_that_became_slower_is_followed() -> None:
    draw = random.Random(4)
    found = samples(draw, 60)
    slower = [EngineSample(s.role, s.observed_ms * 1.3, s.tokens, s.batch) for s in samples(draw, 400)]
    assert taught(found + slower).prefill_ms(4000, 0) == pytest.approx(1.3 * prefill_ms(4000), rel=0.05)


def test_passes_of_many_prompts_correct_a_table_of_single_ones() -> None:
    """An engine that takes 1.5 times the table's time, seen in passes of many: what a prompt takes alone is right."""
    learner = Learner()
    for prompts in (2.0, 4.0, 6.5, 8.0):
        took_ms = 1.5 * pass_ms(TABLE, prompts, 1000, 0)
        learner = learner.observe([EngineSample(Role.PREFILL, took_ms, prompts * 1000, prompts)] * 10)
    corrected = learner.corrected(TABLE, 0.0, 2000)
    assert corrected is not None
    assert corrected.prefill_ms(1000, 0) == pytest.approx(1.5 * TABLE.prefill_ms(1000, 0), rel=0.03)
    assert pass_ms(corrected, 8, 1000, 0) < 8 * corrected.prefill_ms(1000, 0), "they share the fixed part"


def test_passes_of_one_long_prompt_and_of_many_short_ones_with_as_many_tokens_are_told_apart() -> None:
    """Prompts of a pass do not attend to one another."""
    draw, found = random.Random(6), [EngineSample(Role.DECODE, 50.0, 2000.0, 4.0)]

    def took_ms(prompts: float, tokens: float) -> float:
        return 10 * pass_ms(USUAL, prompts, tokens, 0)

    for prompts, tokens in [(1, 16_000), (32, 500)] * 150:
        observed_ms = took_ms(prompts, tokens) * draw.lognormvariate(0, 0.05)
        found.append(EngineSample(Role.PREFILL, observed_ms, prompts * tokens, prompts))
    model = taught(found)
    assert took_ms(1, 16_000) > 1.2 * took_ms(32, 500)
    for prompts, tokens in [(1, 16_000), (32, 500)]:
        assert pass_ms(model, prompts, tokens, 0) == pytest.approx(took_ms(prompts, tokens), rel=0.1)


@pytest.mark.parametrize(
    ("role", "tokens", "batch"), [(Role.PREFILL, 60.0, 1.0), (Role.DECODE, 40_000.0, 8.0)], ids=str
)
def test_one_pass_that_compiled_or_was_paused_for_a_minute_is_no_slower_engine(
    role: Role, tokens: float, batch: float
) -> None:
    found = samples(random.Random(10), 200, 0.08)
    model = taught([EngineSample(role, 60_000.0, tokens, batch), *found])
    assert model.prefill_ms(4000, 0) == pytest.approx(prefill_ms(4000), rel=0.1)
    assert model.decode_step_ms(30, 120_000) == pytest.approx(step_ms(30, 120_000), rel=0.1)


def test_steps_whose_tokens_are_not_known_are_taken_as_of_the_usual_context() -> None:
    found = [EngineSample(Role.DECODE, step_ms(batch, 1000 * batch), None, batch) for batch in (1, 4, 8, 16)] * 20
    found.append(EngineSample(Role.PREFILL, 30.0, 400))
    assert taught(found).decode_step_ms(12, 12_000) == pytest.approx(step_ms(12, 12_000), rel=0.03)


@pytest.mark.parametrize("name", table_names())
def test_every_shipped_engine_is_learned_without_its_table(name: str) -> None:
    """From 300 passes and steps of many loads, 8 % uneven. Experts are read one by one as a batch grows, so that a
    step of two sequences takes a third less than is believed."""
    model, gpu, engine, gpus = name.split()
    table, draw = performance_table(model, gpu, engine, int(gpus.removeprefix("tp"))), random.Random(name)
    found = []
    for _ in range(300):
        tokens, batch = math.exp(draw.uniform(math.log(300), math.log(20_000))), draw.randint(1, 40)
        kv_tokens = batch * draw.uniform(1000, 6000)
        prefill_ms, step_ms = table.prefill_ms(tokens, 0), table.decode_step_ms(batch, kv_tokens)
        found.append(EngineSample(Role.PREFILL, prefill_ms * draw.lognormvariate(0, 0.08), tokens))
        found.append(EngineSample(Role.DECODE, step_ms * draw.lognormvariate(0, 0.08), kv_tokens, batch))
    learned = taught(found)
    prefills = [learned.prefill_ms(n, 0) / table.prefill_ms(n, 0) - 1 for n in (300, 1000, 4000, 12_000, 20_000)]
    steps = [
        learned.decode_step_ms(b, b * n) / table.decode_step_ms(b, b * n) - 1
        for b in (2, 10, 25, 40) for n in (1500, 3500, 5500)
    ]  # fmt: skip
    assert sum(map(abs, prefills)) / len(prefills) < 0.15
    assert sum(map(abs, steps)) / len(steps) < (0.25 if "A3B" in model else 0.08)


@pytest.mark.parametrize("told", [0, 1], ids=["none tells its tokens", "one step of 2000 does"])
def test_an_engine_that_does_not_tell_its_tokens_is_no_slower_with_more_sequences(told: int) -> None:
    """Llama 3.1 8B with 1000 tokens a sequence, at a batch of about 30, noise 8 %; asked at a third and three times."""
    draw = random.Random(8)

    def took_ms(batch: float) -> float:
        return 6.4 + 0.01 * batch + 4.3e-5 * 1000 * batch

    batches = [30 * (1 + draw.gauss(0, 0.12)) for _ in range(2000)]
    found = [EngineSample(Role.DECODE, took_ms(b) * draw.lognormvariate(0, 0.08), None, b) for b in batches]
    found += [EngineSample(Role.PREFILL, 20.0, 1000.0), *[EngineSample(Role.DECODE, 150.0, 4000.0, 4.0)] * told]
    model = taught(found)
    for batch in (10, 30, 90):
        assert model.decode_step_ms(batch, 1000 * batch) == pytest.approx(took_ms(batch), rel=0.15)


def test_times_that_are_millions_apart_make_a_model() -> None:
    """As after a pod was paused."""
    found = [
        EngineSample(Role.DECODE, ms, tokens, 1)
        for ms, tokens in ((0.031, 50), (9e6, 2000), (0.031, 50), (0.031, 2000))
    ]
    assert Learner().observe([EngineSample(Role.PREFILL, 20.0, 1000.0), *found]).corrected(None, 0.0, 1000.0)


def test_one_role_alone_makes_no_model() -> None:
    assert Learner().observe([EngineSample(Role.PREFILL, 30.0, 400)]).corrected(None, 0.0, 1000.0) is None


anything = st.builds(
    EngineSample,
    role=st.sampled_from(LANGUAGE_ROLES),
    observed_ms=st.floats(-1, 1e8),
    tokens=st.none() | st.floats(0, 1e7),
    batch=st.floats(0, 1e4),
)


@given(found=st.lists(anything, max_size=80))
def test_no_samples_make_an_engine_that_is_faster_with_more_work_or_an_unbounded_memory(
    found: list[EngineSample],
) -> None:
    learner = Learner().observe(found)
    assert len(learner.prefills.kept) <= MOST_BUCKETS
    assert len(learner.steps.kept) <= MOST_BUCKETS
    model = learner.corrected(None, 0.0, 1000.0)
    if model is not None:
        assert 0 <= model.prefill_ms(100, 0) <= model.prefill_ms(2000, 0) <= model.prefill_ms(20_000, 0) + 1e-9
        times = [model.decode_step_ms(8, kv) for kv in (0, 1e3, 1e5, 1e7)]
        assert times == sorted(times)


def lengths_of(prompts: list[float]) -> tuple[tuple[float, float], ...]:
    """As vLLM's page has them."""
    bounds = (*engine_token_bounds(131_072), math.inf)
    counts = tuple(float(sum(tokens <= bound for tokens in prompts)) for bound in bounds)
    return Histogram(bounds, counts, sum(prompts)).shares()


@pytest.mark.parametrize("window", [2, 4, 8])
def test_an_engine_is_not_thought_slower_because_prompts_are_uneven(window: int) -> None:
    """An engine that is 1.15 times as slow as its table, and 8 % uneven itself; windows of 2 to 8 prompts of 13 000
    tokens, some of which are ten times as long. Sizing knows the lengths, and adds what they cost."""
    table = LinearModel(6.0, 0.016, 4e-7, 5.0, 0.1, 1e-4)
    draw, found = random.Random(window), []
    sizes = [min(draw.lognormvariate(9.0, 1.0), 120_000.0) for _ in range(2000)]
    for _ in range(300):
        prompts = draw.choices(sizes, k=window)
        took_ms = 1.15 * sum(table.prefill_ms(n, 0) for n in prompts) / window * draw.lognormvariate(0, 0.08)
        found.append(EngineSample(Role.PREFILL, took_ms, sum(prompts) / window, lengths=lengths_of(prompts)))

    def slower(samples: list[EngineSample]) -> float:
        learner = Learner()
        for n in range(0, len(samples), 4):
            learner = learner.observe(samples[n : n + 4])
        corrected = learner.corrected(table, 0.0, 1.0)
        assert corrected is not None
        return sum(corrected.prefill_ms(n, 0) for n in sizes) / sum(table.prefill_ms(n, 0) for n in sizes)

    assert slower(found) > 1.2, "as it is measured"
    assert slower(of_even_prompts(found, table)) == pytest.approx(1.15, rel=0.03)


def test_what_is_not_of_several_lengths_is_left_as_it_is() -> None:
    table = LinearModel(6.0, 0.016, 4e-7, 5.0, 0.1, 1e-4)
    even = EngineSample(Role.PREFILL, 80.0, 4000.0, lengths=((3162.0, 1.0),))
    found = [even, replace(even, lengths=()), EngineSample(Role.DECODE, 20.0, 4000.0, 8.0)]
    assert of_even_prompts(found, table) == found


@pytest.mark.parametrize("seed", range(8))
def test_measurements_that_lie_close_together_say_little_of_what_is_far_from_them(seed: int) -> None:
    """Ten looks at a noisy engine: prompts of 1400 to 1900 tokens at .12 ms a token, and two or three streams."""
    draw, found = random.Random(seed), []
    for _ in range(10):
        tokens, batch = draw.uniform(1400, 1900), draw.choice([2, 3])
        found.append(EngineSample(Role.PREFILL, 0.12 * tokens * draw.lognormvariate(0, 0.25), tokens))
        found.append(EngineSample(Role.DECODE, (5.5 + 0.3 * batch) * draw.lognormvariate(0, 0.25), None, batch))
    model = taught(found)
    assert model.prefill_ms(1650, 0) == pytest.approx(0.12 * 1650, rel=0.3), "where it was measured"
    assert model.decode_step_ms(2.5, 2500) == pytest.approx(6.25, rel=0.3)
    assert model.prefill_ms(100, 0) < 0.5 * model.prefill_ms(1650, 0), "a short prompt is shorter"
    assert 1.05 < model.decode_step_ms(16, 16_000) / model.decode_step_ms(2.5, 2500) < 4.5, "true are 1.65"


TABLE = LinearModel(5, 0.02, 0, 6, 0.01, 1e-5)


def test_a_table_is_corrected_by_the_measurements_that_are_kept_whichever_table_it_is() -> None:
    """A policy that names another table needs no new measurements."""
    learner = Learner()
    for number in range(40):
        tokens, batch = 1000.0 + 100 * number, 1.0 + number
        learner = learner.observe(
            [
                EngineSample(Role.PREFILL, 2.7 * TABLE.prefill_ms(tokens, 0), tokens),
                EngineSample(Role.DECODE, 0.5 * TABLE.decode_step_ms(batch, 2000 * batch), 2000 * batch, batch),
            ]
        )
    for table in (TABLE, LinearModel(10, 0.04, 0, 3, 0.005, 5e-6)):
        model = learner.corrected(table, 0.0, 2000.0)
        assert model is not None
        assert model.prefill_ms(3000, 0) == pytest.approx(2.7 * TABLE.prefill_ms(3000, 0), rel=0.03)
        assert model.decode_step_ms(20, 40_000) == pytest.approx(0.5 * TABLE.decode_step_ms(20, 40_000), rel=0.03)


def test_without_a_table_and_without_both_roles_measured_there_is_no_model() -> None:
    assert model_of(State(), None) is None
    assert model_of(State(), TABLE) == CorrectedModel(TABLE)
