"""The saved state."""

import asyncio
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pointsman.api.protocol.names import LANGUAGE_ROLES, Role
from pointsman.api.v1alpha1.plannerpolicy import Mode
from pointsman.planner.core.decide import decide
from pointsman.planner.core.encode.target import EncodeMemory
from pointsman.planner.core.engine.learned_model import LearnedModel
from pointsman.planner.core.prediction_score import Score
from pointsman.planner.core.sizing.pool_targets import MOST_RETURNS, Needs
from pointsman.planner.core.state import STATE_VERSION, State
from pointsman.planner.core.types import (
    Bounds,
    EngineSample,
    Load,
    Objectives,
    Observation,
    Policy,
    Reason,
    Service,
    WorkerCondition,
)
from pointsman.planner.core.workload.prefix_cache_hits import Prefixes
from pointsman.planner.core.workload.seasonality import Season
from pointsman.planner.memory import from_json, load, load_last, load_publications, to_json
from unit.planner.loop_api import Api
from unit.planner.scenes import LLAMA_8B_H100, LONG, POLICY, SHORT, observed, workers

MOST_BYTES = 640 * 1024
"""Of a state, as docs/planner/decisions.md says; a ConfigMap holds 1 MiB."""


def test_a_restarted_planner_goes_on_exactly_where_it_was() -> None:
    samples = (EngineSample(Role.PREFILL, 10, 300), EngineSample(Role.DECODE, 7, 0, 8))
    state = State()
    for tick in range(60):
        load = SHORT if tick < 30 else LONG
        seen = observed(2.5 * tick, load, samples=samples)
        continued, decision, _ = decide(state, seen, POLICY, seen.at_s)
        restored = from_json(to_json(state))
        assert restored is not None
        assert decide(restored, seen, POLICY, seen.at_s)[:2] == (continued, decision)
        state = continued
    assert len(to_json(state)) < 64 * 1024


def test_a_week_of_bins_takes_little_of_what_is_saved_and_a_state_without_any_is_read() -> None:
    rates = {number: random.Random(number).uniform(0, 999) for number in range(3000)}
    full = replace(State(), season=Season().with_history(rates, 3000))
    assert len(full.season.rates) == 7 * 288 + 2
    text = to_json(full)
    assert len(text) - len(to_json(State())) < 13_000
    assert from_json(text) == full
    older = json.loads(text)
    del older["season"]
    assert from_json(json.dumps(older)) == State()


def anything(rng: random.Random, at_s: float, look: int, layout: tuple[int, int]) -> Observation:
    """Loads, lengths, engines and workers without any sense or order, as no service has them."""
    rate, prompt, answer = 10 ** rng.uniform(-0.5, 1.5), 10 ** rng.uniform(1.5, 4), 10 ** rng.uniform(0, 2.5)
    load = Load(
        max(0.0, rng.gauss(rate, rate / 4)), prompt_tokens=prompt, output_tokens=answer,
        cached_tokens=rng.uniform(0, prompt),
        prompt_length_shares=tuple((2.0**power, 1 / 12) for power in range(4, 16)),
        pulled_tokens=1e4, pulling_s=rng.uniform(0.01, 2),
    )  # fmt: skip
    samples = tuple(
        EngineSample(role, rng.uniform(3, 60), rng.uniform(10, 2e5), rng.uniform(1, 256)) for role in LANGUAGE_ROLES * 2
    )
    conditions = [*WorkerCondition, *[WorkerCondition.ACTIVE] * 9]
    seen = tuple(replace(w, name=f"{look // 50}-{w.name}", condition=rng.choice(conditions)) for w in workers(*layout))
    made = observed(at_s, load if rng.random() > 0.05 else None, samples=samples)
    return replace(made, workers=seen, plan_in_progress=rng.random() < 0.1)


def test_whatever_comes_in_thousands_of_looks_the_state_stays_small() -> None:
    rng, state, layout, at_s = random.Random(7), State(), (2, 2), 0.0
    policy = Policy(
        mode=Mode.ACTIVE, max_gpus=12, prefill=Bounds(1, 8), decode=Bounds(1, 8),
        scale_in_stabilization_s=20,
    )  # fmt: skip
    sizes = []
    for look in range(2000):
        at_s += rng.choice((1.0, 2.5, 5.0))
        state, decision, _ = decide(state, anything(rng, at_s, look, layout), policy, at_s)
        layout = max(1, decision.prefill), max(1, decision.decode)
        if look % 200 == 199:
            text = to_json(state)
            assert from_json(text) is not None, "what is written can be read"
            sizes.append(len(text))
    assert max(sizes) < MOST_BYTES / 4, sizes
    assert max(sizes[5:]) < 1.25 * max(sizes[:5]), sizes
    falling = tuple((1234567.8901234567, 600 - fewer) for fewer in range(600))
    full = Needs(falling, falling, ((1234567.8901234567, 123.45678901234567),) * MOST_RETURNS)
    most = replace(state, memory=replace(state.memory, needs=(full, full)))
    assert len(to_json(most)) < MOST_BYTES / 4, (
        "a need that fell from 600 workers one by one in ten minutes, and as many returns as are remembered at all"
    )


def test_measurements_that_contradict_each_other_make_no_time_that_is_none() -> None:
    fitted = LearnedModel(prefill=(-5.0, 0.02, 0.0), decode=(3.0, -0.5, 0.0, 0.0))
    assert fitted.prefill_ms(1, 0) > 0
    assert fitted.decode_step_ms(64, 1000) > 0


def test_what_an_older_planner_remembered_is_taken_over_without_what_it_did_not_know() -> None:
    seen = observed(2.5, SHORT)
    known = decide(State(), seen, POLICY, seen.at_s)[0]
    saved = json.loads(to_json(known))
    del saved["encode"], saved["lengths"]["prefixes"]
    restored = from_json(json.dumps(saved))
    assert restored == replace(known, encode=EncodeMemory(), lengths=replace(known.lengths, prefixes=Prefixes()))


def test_what_clients_got_by_an_older_planner_is_not_replaced_by_the_next_requests() -> None:
    asked = Objectives()
    score = Score().observe(0.9, None, Service(attainment=0.9), 600, asked)
    saved = json.loads(to_json(State(score=score)))
    del saved["score"]["requests"]
    restored = from_json(json.dumps(saved | {"looks": 7}))
    assert restored == State(score=replace(score, requests=500))
    assert restored.score.observe(0.9, None, Service(attainment=1.0), 5, asked).observed == pytest.approx(0.901)


def test_an_engine_that_was_learned_keeps_its_model_over_the_change_of_its_name() -> None:
    known = State(engine_model=LearnedModel(prefill=(4.0, 0.02, 0.0), decode=(3.0, 0.5, 0.0, 0.0)))
    assert from_json(to_json(known).replace("engine_model", "fitted")) == from_json(to_json(known)) == known


def test_a_state_that_cannot_be_read_is_begun_anew() -> None:
    assert from_json("{}") is not None
    assert from_json('{"version": 99}') is None
    assert from_json('{"version": 2}') is None, "its correction factors and returning levels have no place any more"
    assert from_json("not json") is None


def test_a_state_of_the_version_before_is_discarded_with_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    earlier = json.loads(to_json(decide(State(), observed(2.5, SHORT), POLICY, 2.5)[0])) | {
        "version": STATE_VERSION - 1
    }
    with caplog.at_level("INFO"):
        assert from_json(json.dumps(earlier), "serving/chat") is None
    assert [record.getMessage() for record in caplog.records] == ["saved state of another version, it is discarded"]


def test_what_the_planner_of_an_early_version_saved_is_discarded_with_a_line_and_the_next_look_decides(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A whole ConfigMap as it was written then. The number of the last plan is gone on from, its look is not read."""
    saved = json.loads((Path(__file__).parents[2] / "data" / "planner_state_055ea15.json").read_text())
    assert json.loads(saved["data"]["state.json"])["version"] == 2
    api: Any = Api(config_maps={"chat-planner-state": saved})
    with caplog.at_level("INFO"):
        state, sequence = asyncio.run(load(api, "default", "chat", "uid-1"))
    assert (state, sequence) == (None, 17)
    (line,) = caplog.records
    assert line.getMessage() in (
        "saved state of another version, it is discarded", "saved state not readable, it is discarded",
    )  # fmt: skip
    assert line.__dict__["service"] == "default/chat"
    asyncio.run(load_last(api, "default", "chat", "uid-1"))  # read or not, it raises nothing
    assert asyncio.run(load_publications(api, "default", "chat", "uid-1")) == ()
    seen = observed(2.5, LONG)
    _, decision, _ = decide(State(), seen, POLICY, seen.at_s, LLAMA_8B_H100)
    assert decision.reason not in (Reason.STALE_METRICS, Reason.NOT_ENOUGH_DATA)
    assert decision.inputs, "it decides by numbers"
