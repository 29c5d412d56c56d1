"""Random loads: the same for a seed, as large as they are to be, and compared by what is within the objectives."""

import json
import math

import numpy as np
import pytest
from bench.planner import random_loads
from bench.planner.random_loads import EACH, LEAST_REQUESTS, MOST_REQUESTS, SHAPES, WORKERS, load, summary, worse

from pointsman.planner.simulator.types import Trace


def test_a_seed_is_a_load() -> None:
    first, again, other = load(7), load(7), load(8)
    assert first is not None
    assert again is not None
    assert other is not None
    assert first.in_short == again.in_short != other.in_short
    np.testing.assert_array_equal(first.trace.arrival_s, again.trace.arrival_s)


@pytest.mark.parametrize("seed", range(100, 105))
def test_a_load_is_one_that_its_budget_may_serve(seed: int) -> None:
    found = load(seed)
    assert found is not None
    assert LEAST_REQUESTS <= len(found.trace) <= 1.1 * MOST_REQUESTS
    assert found.shape in SHAPES
    simulation, policy = found.simulation, found.policy
    assert policy.max_gpus == WORKERS * simulation.engine.gpus
    assert EACH.least <= simulation.prefill_workers <= EACH.most
    prefill, decode = random_loads._needs(found.trace, simulation, policy, math.ceil(found.trace.duration_s))
    busiest = np.quantile(prefill + decode, 0.95)
    assert busiest <= WORKERS
    assert busiest > 3 or len(found.trace) > 0.9 * MOST_REQUESTS
    alone_ms = simulation.engine.performance.prefill_ms(found.requests.prompt_tokens, 0)
    assert policy.objectives.ttft_ms > 2 * alone_ms
    assert simulation.leads.start_s == policy.start_s or not policy.start_is_told


@pytest.mark.parametrize(
    ("sizes", "taken"),
    [
        ([500, 400, 300, 200, 150], 3),
        ([500, 400, 300, 50, 150, 140], 4),
        ([50, 50, 50, 50, 50, 120, 110], 5),
        ([500, 50, 50, 50, 50, 50, 50, 50], 0),
        ([50] * 8, None),
    ],
    ids=["the last round", "one more", "the first that has enough", "what came before", "none"],
)
def test_a_load_with_enough_requests_is_taken_also_where_the_last_round_has_too_few(
    sizes: list[int], taken: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, played = load(7), []
    assert made is not None
    whole = made.trace

    def trace(seed: int, rates: random_loads.Rates, requests: random_loads.Requests) -> Trace:
        played.append(float(rates.sum()))
        size = sizes[len(played) - 1]
        return Trace(whole.name, whole.arrival_s[:size], whole.prompt_tokens[:size], whole.output_tokens[:size])

    monkeypatch.setattr(random_loads, "_trace", trace)
    found = load(7)
    if taken is None:
        assert found is None
        return
    assert found is not None
    assert len(found.trace) == sizes[taken]
    assert len(played) == (taken + 1 if taken else 8), "what is returned is what was played last"
    small = [n for n in range(len(played) - 1) if sizes[n] < LEAST_REQUESTS]
    assert [played[n + 1] for n in small] == pytest.approx([min(3 * played[n], MOST_REQUESTS) for n in small])


def test_who_is_dearer_is_not_better() -> None:
    found = {"Pointsman": (0.90, 2.0), "dear": (0.99, 2.1), "cheap": (0.92, 2.0), "bad": (0.5, 1.0)}
    more, name = worse(found)
    assert name == "cheap"
    assert more == pytest.approx(0.02)
    lines = list(summary([(3, found)]))
    assert lines[-1] == "seed 3: cheap has 0.020 more for at most 2% more"
    assert lines[0].startswith("Pointsman            0.9000")
    assert list(summary([])) == []


def test_a_range_of_seeds_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        random_loads.main(["3", "3"])
    assert "seeds 3 to 3: the first must be 0 or more, and less than the last" in capsys.readouterr().err


def test_every_load_is_a_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_loads, "MOST_REQUESTS", 300)
    assert random_loads.main(["7", "8", "--ours"]) == 0
    output = capsys.readouterr()
    line = json.loads(output.out)
    assert line["seed"] == 7
    kept, hours = line["Pointsman"]
    assert 0 <= kept <= 1
    assert hours > 0
    assert "Pointsman" in output.err
