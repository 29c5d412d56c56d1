"""The saved state."""

from pointsman.planner.core.decide import decide
from pointsman.planner.core.state import State
from pointsman.planner.core.types import EngineSample, WorkerRole
from pointsman.planner.memory import from_json, to_json
from unit.planner.test_decide import LONG, POLICY, SHORT, observed


def test_a_restarted_planner_goes_on_exactly_where_it_was() -> None:
    samples = (EngineSample(WorkerRole.PREFILL, 10, 300), EngineSample(WorkerRole.DECODE, 7, 0, 8))
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


def test_a_state_that_cannot_be_read_is_begun_anew() -> None:
    assert from_json("{}") is not None
    assert from_json('{"version": 99}') is None
    assert from_json("not json") is None
