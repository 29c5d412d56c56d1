"""What the planner learns of an engine from the service alone."""

import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.api.protocol.names import LANGUAGE_ROLES, Role
from pointsman.planner.core.engine.learned_model import (
    MOST_BUCKETS,
    LearnedModel,
    Learner,
    of_even_prompts,
    pass_ms,
    undisturbed,
)
from pointsman.planner.core.engine.performance_model import CorrectedModel
from pointsman.planner.core.metrics.scrape_pair import Histogram
from pointsman.planner.core.state import State, learn, model_of
from pointsman.planner.core.types import EngineSample, Load, Observation
from pointsman.planner.performance_tables import performance_table, table_names
from pointsman.planner.profile.linear_model import LinearModel
from pointsman.planner.simulator.pages import engine_token_bounds
from unit.planner.scenes import POLICY, observed


def prefill_ms(tokens: float) -> float:
    return 16.5 + 0.0152 * tokens + 4.2e-7 * tokens * tokens


def step_ms(kv_tokens: float) -> float:
    return 5.74 + 2.06e-4 * kv_tokens - 3.75e-10 * kv_tokens * kv_tokens


def samples(draw: random.Random, count: int, noise: float = 0.0) -> list[EngineSample]:
    found = []
    for _ in range(count):
        tokens, batch = draw.uniform(500, 8192), draw.randint(1, 60)
        kv = batch * draw.uniform(3000, 4500)
        found.append(EngineSample(Role.PREFILL, prefill_ms(tokens) * draw.lognormvariate(0, noise), tokens))
        found.append(EngineSample(Role.DECODE, step_ms(kv) * draw.lognormvariate(0, noise), kv, batch))
    return found


def taught(found: list[EngineSample]) -> LearnedModel:
    learner = Learner()
    for sample in found:
        learner = learner.observe((sample,))
    model = learner.fit()
    assert isinstance(model, LearnedModel)
    return model


@pytest.mark.parametrize(("count", "noise", "within"), [(60, 0.0, 0.06), (60, 0.08, 0.06), (2000, 0.0, 0.01)])
def test_curved_times_are_learned_with_and_without_noise(count: int, noise: float, within: float) -> None:
    model = taught(samples(random.Random(2), count, noise))
    for tokens in (1000, 4000, 8000):
        assert model.prefill_ms(tokens, 0) == pytest.approx(prefill_ms(tokens), rel=within)
    for batch in (10, 30, 55):
        assert model.decode_step_ms(batch, batch * 4000) == pytest.approx(step_ms(batch * 4000), rel=within)


def test_hours_of_one_load_do_not_make_it_forget_what_another_taught() -> None:
    draw = random.Random(3)
    found = samples(draw, 60)
    found += [EngineSample(Role.DECODE, step_ms(8000), 8000, 2) for _ in range(3000)]
    assert taught(found).decode_step_ms(50, 200_000) == pytest.approx(step_ms(200_000), rel=0.03)


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
    assert corrected.prefill_ms(1000, 0) == pytest.approx(1.5 * TABLE.prefill_ms(1000, 0), rel=0.03)
    assert pass_ms(corrected, 8, 1000, 0) < 8 * corrected.prefill_ms(1000, 0), "they share the fixed part"


def test_prompts_of_a_pass_do_not_attend_to_one_another() -> None:
    """Long prompts, one or two a pass, where attention is a third of their time: a pass of many short ones takes less
    than they take alone."""

    def took_ms(prompts: int, tokens: float) -> float:
        return 40 + prompts * (0.8 * tokens + 3e-4 * tokens * tokens)

    draw, found = random.Random(5), [EngineSample(Role.DECODE, 50.0, 2000.0, 4.0)]
    for _ in range(300):
        prompts, tokens = draw.choice((1, 1, 2)), draw.uniform(400, 2000)
        found.append(EngineSample(Role.PREFILL, took_ms(prompts, tokens), prompts * tokens, prompts))
    model = taught(found)
    assert model.prefill_ms(400, 0) == pytest.approx(took_ms(1, 400), rel=0.1)
    assert pass_ms(model, 20, 400, 0) == pytest.approx(took_ms(20, 400), rel=0.1)
    assert pass_ms(model, 20, 400, 0) < 20 * model.prefill_ms(400, 0)


def test_passes_of_one_long_prompt_and_of_many_short_ones_with_as_many_tokens_are_told_apart() -> None:
    draw, found = random.Random(6), [EngineSample(Role.DECODE, 50.0, 2000.0, 4.0)]
    for prompts, tokens in [(1, 8000), (16, 500)] * 150:
        took_ms = 40 + prompts * (0.8 * tokens + 3e-4 * tokens * tokens)
        found.append(EngineSample(Role.PREFILL, took_ms * draw.lognormvariate(0, 0.05), prompts * tokens, prompts))
    model = taught(found)
    assert pass_ms(model, 16, 500, 0) == pytest.approx(40 + 16 * 475, rel=0.1)
    assert model.prefill_ms(8000, 0) == pytest.approx(40 + 25_600, rel=0.1)
    assert model.prefill_ms(500, 0) == pytest.approx(40 + 475, rel=0.15)


def test_steps_whose_tokens_are_not_known_teach_a_line_over_the_batch() -> None:
    found = [EngineSample(Role.DECODE, 5.0 + 0.25 * batch, None, batch) for batch in (1, 4, 8, 16)]
    found.append(EngineSample(Role.PREFILL, 30.0, 400))
    assert taught(found).decode_step_ms(12, 0) == pytest.approx(8.0, rel=0.03)


def of_prompts(took_ms: Callable[[float], float], shortest: float, longest: float, noise: float = 0.08) -> LearnedModel:
    """400 prompts, evenly on a scale of logs; one decode step, without which there is no model."""
    draw = random.Random(7)
    lengths = [math.exp(draw.uniform(math.log(shortest), math.log(longest))) for _ in range(400)]
    found = [EngineSample(Role.PREFILL, took_ms(n) * draw.lognormvariate(0, noise), n) for n in lengths]
    return taught([*found, EngineSample(Role.DECODE, 10.0, 4000.0, 4.0)])


@pytest.mark.parametrize(
    ("fixed", "token", "squared"),
    [(5, 0.01, 3e-6), (0, 0.003, 2e-6), (0, 0.0176, 4.4e-7), (30, 0.06, 1e-6), (1, 0.12, 0)],
)
@pytest.mark.parametrize(("shortest", "longest"), [(200, 30_000), (2000, 12_000)])
def test_prompts_of_any_engine_are_learned_where_they_came(
    fixed: float, token: float, squared: float, shortest: float, longest: float
) -> None:
    """Also where one part of the work takes nothing, so that noise would make it less than that."""

    def took_ms(n: float) -> float:
        return fixed + token * n + squared * n * n

    model = of_prompts(took_ms, shortest, longest)
    for n in (shortest, math.sqrt(shortest * longest), longest):
        assert model.prefill_ms(n, 0) == pytest.approx(took_ms(n), rel=0.1)


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


def test_a_step_does_not_bend_upwards() -> None:
    """Two or three sequences that hold different numbers of tokens, which cost nothing, as on a CPU."""
    draw = random.Random(9)
    found = [EngineSample(Role.PREFILL, 70.0, 600.0)]
    for _ in range(12):
        batch = draw.choice([1, 2, 3])
        took_ms = (7.5 + 1.3 * batch) * draw.lognormvariate(0, 0.25)
        found.append(EngineSample(Role.DECODE, took_ms, draw.uniform(250, 800) * batch, batch))
    model = taught(found)
    first, second, third = (model.decode_step_ms(2, tokens) for tokens in (0, 20_000, 40_000))
    assert third - second <= second - first + 1e-9


def test_times_that_are_millions_apart_make_a_model() -> None:
    """As after a pod was paused."""
    found = [
        EngineSample(Role.DECODE, ms, tokens, 1)
        for ms, tokens in ((0.031, 50), (9e6, 2000), (0.031, 50), (0.031, 2000))
    ]
    assert Learner().observe([EngineSample(Role.PREFILL, 20.0, 1000.0), *found]).fit() is not None


def test_one_role_alone_makes_no_model() -> None:
    assert Learner().observe([EngineSample(Role.PREFILL, 30.0, 400)]).fit() is None


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
    model = learner.fit()
    if model is not None:
        assert 0 <= model.prefill_ms(100, 0) <= model.prefill_ms(2000, 0) <= model.prefill_ms(20_000, 0) + 1e-9
        times = [model.decode_step_ms(8, kv) for kv in (0, 1e3, 1e5, 1e7)]
        assert times == sorted(times)


def test_a_step_between_which_prompts_are_computed_is_learned_without_them() -> None:
    model = LearnedModel((0.0, 0.1, 0.0), (10.0, 0.0, 0.0, 0.0))  # 0.1 ms a token
    alone = EngineSample(Role.DECODE, 10.0, 5000.0, 8.0)
    fifth = replace(alone, observed_ms=12.5, local_tokens_per_s=2000.0)  # a fifth of each second
    hardly = replace(alone, observed_ms=40.0, local_tokens_per_s=7500.0)
    found = undisturbed([alone, fifth, hardly], model, 1000.0)
    assert [sample.observed_ms for sample in found] == pytest.approx([10.0, 10.0])


def test_steps_between_prompts_teach_nothing_before_the_first_answer_has_ended() -> None:
    """Prefill takes three times as long as the table says, and decode workers do it for six tenths of the time."""
    table = LinearModel(0.0, 0.3, 0.0, 10.0, 0.0, 0.0)
    load = Load(arrivals_per_s=10, prompt_tokens=300, output_tokens=None)
    prefill = EngineSample(Role.PREFILL, 270.0, 300.0)
    decode = EngineSample(Role.DECODE, 400.0, 3000.0, 4.0, local_tokens_per_s=700.0)
    state = learn(State(), observed(0.0, load, samples=(prefill, decode)), load, POLICY, table)
    model = model_of(state, table)
    assert model is not None
    assert model.prefill_ms(300, 0) >= 1.9 * table.prefill_ms(300, 0)
    assert model.decode_step_ms(4, 3000) == table.decode_step_ms(4, 3000)


def test_the_first_look_takes_the_prompts_out_of_its_steps_and_the_second_counts_as_much() -> None:
    """A service whose decode workers compute prompts for a fifth of the time, from the first look on."""
    load = Load(arrivals_per_s=10, prompt_tokens=1000, output_tokens=100, prompt_length_shares=((1000, 1.0),))

    def look(at_s: float, step_ms: float) -> Observation:
        prefill = EngineSample(Role.PREFILL, 100.0, 1000.0)
        decode = EngineSample(Role.DECODE, step_ms / 0.8, 5000.0, 8.0, local_tokens_per_s=2000.0)
        return observed(at_s, load, samples=(prefill, decode))

    state = learn(State(), look(0.0, 10.0), load, POLICY)
    first = model_of(state, None)
    assert first is not None
    assert first.decode_step_ms(8, 5000) == pytest.approx(10.0, rel=0.02)
    state = learn(state, look(2.5, 14.0), load, POLICY)
    second = model_of(state, None)
    assert second is not None
    assert second.decode_step_ms(8, 5000) == pytest.approx(12.0, rel=0.05)


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
    assert model.decode_step_ms(2.5, 0) == pytest.approx(6.25, rel=0.3)
    assert model.prefill_ms(100, 0) < 0.5 * model.prefill_ms(1650, 0), "a short prompt is shorter"
    assert 1.2 < model.decode_step_ms(16, 0) / model.decode_step_ms(2.5, 0) < 4.5, "true are 1.65"


TABLE = LinearModel(5, 0.02, 0, 6, 0.01, 1e-5)
LEARNED = LearnedModel((16.5, 0.0152, 0.0), (5.74, 0.0, 2e-4, 0.0))


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
        assert model.prefill_ms(3000, 0) == pytest.approx(2.7 * TABLE.prefill_ms(3000, 0), rel=0.03)
        assert model.decode_step_ms(20, 40_000) == pytest.approx(0.5 * TABLE.decode_step_ms(20, 40_000), rel=0.03)


def test_without_a_table_what_was_learned_is_all_there_is() -> None:
    assert model_of(State(), None) is None
    learner = Learner().observe(samples(random.Random(7), 20))
    taught_state = State(learner=learner, engine_model=learner.fit())
    assert isinstance(model_of(taught_state, None), LearnedModel)
    corrected = model_of(taught_state, TABLE)
    assert isinstance(corrected, CorrectedModel)
    assert corrected.base == TABLE


@pytest.mark.parametrize(
    ("role", "tokens", "batch"), [(Role.PREFILL, 60.0, 1.0), (Role.DECODE, 40_000.0, 8.0)], ids=str
)
def test_one_pass_that_compiled_or_was_paused_for_a_minute_is_no_slower_engine(
    role: Role, tokens: float, batch: float
) -> None:
    found = samples(random.Random(10), 200, 0.08)
    without, model = taught(found), taught([EngineSample(role, 60_000.0, tokens, batch), *found])
    assert model.prefill_ms(4000, 0) == pytest.approx(without.prefill_ms(4000, 0), rel=0.1)
    assert model.decode_step_ms(30, 120_000) == pytest.approx(without.decode_step_ms(30, 120_000), rel=0.1)


def test_an_engine_whose_steps_rise_more_with_their_tokens_than_usual_is_learned_from_sixty_of_them() -> None:
    """Step times of NVIDIA's simulated engine on a fifth of its speed, over the share of its memory that is in use."""
    draw = random.Random(103)

    def took_ms(kv_tokens: float) -> float:
        used = kv_tokens / 262_144
        return 5 * (5.74 + 54.01 * used - 25.74 * used * used)

    found = [EngineSample(Role.PREFILL, 100 + 0.08 * 1000, 1000.0)]
    for _ in range(60):
        batch = draw.randint(2, 12)
        kv_tokens = batch * draw.uniform(600, 1400)
        found.append(EngineSample(Role.DECODE, took_ms(kv_tokens), kv_tokens, batch))
    model = taught(found)
    for kv_tokens in (1000, 6000, 12_000, 30_000):
        assert model.decode_step_ms(kv_tokens / 1000, kv_tokens) == pytest.approx(took_ms(kv_tokens), rel=0.05)


@pytest.mark.parametrize("name", table_names())
def test_every_shipped_engine_is_learned_without_its_table(name: str) -> None:
    """From 300 passes and steps of many loads, 8 % uneven."""
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
    assert sum(map(abs, prefills)) / len(prefills) < 0.08
    assert sum(map(abs, steps)) / len(steps) < 0.08
