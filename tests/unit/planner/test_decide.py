"""Decisions: what must hold for every one, and the ladder in a closed loop."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from pointsman.api.protocol.names import Role
from pointsman.api.v1alpha1.plannerpolicy import Mode
from pointsman.planner.core.decide import decide
from pointsman.planner.core.state import State, model_of
from pointsman.planner.core.switch_guards import History, SwitchRecord
from pointsman.planner.core.types import (
    Bounds,
    Decision,
    EngineSample,
    Layout,
    Load,
    Objectives,
    Policy,
    Reason,
    RoutingNumbers,
    Service,
    Switch,
    Worker,
    WorkerCondition,
)
from pointsman.planner.core.workload.seasonality import Season
from pointsman.planner.memory import from_json, to_json
from pointsman.planner.profile.linear_model import LinearModel
from pointsman.serving.token_budget import DEFAULT_PREFILL_TOKEN_BUDGET
from unit.planner.scenes import LLAMA_8B_H100, LONG, POLICY, SHORT, observed, run, workers

ROUTED = replace(POLICY, flow_control=False, remote_prefill=False)  # nothing about routing is left to decide


def test_a_shift_to_long_prompts_turns_a_decode_worker_into_a_prefill_worker_and_back_again() -> None:
    decisions = run([SHORT] * 40 + [LONG] * 60 + [SHORT] * 80)
    there = [d for d in decisions[40:100] if d.switches]
    back = [d for d in decisions[100:] if d.switches]
    assert there, [d.message for d in decisions[40:60]]
    assert there[0].switches[0].target is Role.PREFILL
    assert there[0].reason is Reason.PREFILL_SHORT
    assert back, [d.message for d in decisions[100:130]]
    assert back[0].switches[0].target is Role.DECODE


def test_requests_without_any_token_raise_nothing() -> None:
    """Prompts and answers of no tokens, beside steps that were measured."""
    load, step = replace(LONG, prompt_tokens=0.0, output_tokens=0.0), EngineSample(Role.DECODE, 8.0, 900.0, batch=4.0)
    for shares in ((), ((0.0, 1.0),)):
        state = State()
        for tick in range(30):
            observation = observed(2.5 * tick, replace(load, prompt_length_shares=shares), samples=(step,))
            state, decision, _ = decide(state, observation, POLICY, 2.5 * tick, LLAMA_8B_H100)
        assert not decision.changes_layout, decision.message


def test_a_rise_of_earlier_days_is_planned_for_a_lead_ahead_and_only_where_the_policy_asks_for_it() -> None:
    begun, ends = 8 * 288, 8 * 288 * 300.0
    rates = {number: 100.0 if number % 288 == 0 else 20.0 for number in range(begun)}
    known = replace(State(), season=Season().with_history(rates, begun - 1))
    load = replace(LONG, arrivals_per_s=20.0)
    found = {}
    for seasonal in (True, False):
        state, policy = known, replace(POLICY, seasonal=seasonal)
        for tick in range(20):
            at_s = ends - 60 + 2.5 * tick
            state, decision, _ = decide(state, observed(at_s, load, 3, 3), policy, at_s, LLAMA_8B_H100)
        found[seasonal] = dict(decision.inputs)
        assert (state.season == Season()) is not seasonal
    assert found[True]["seasonalRisePerSecond"] == pytest.approx(80, rel=0.1)
    assert found[True]["expectedRatePerSecond"] == pytest.approx(100, rel=0.1)
    assert found[True]["ratePerSecond"] == found[False]["ratePerSecond"]
    assert found[True]["prefillNeeded"] > found[False]["prefillNeeded"]
    assert found[True]["prefillNeededNow"] == found[False]["prefillNeededNow"]
    assert "seasonalRisePerSecond" not in found[False]


def test_a_sudden_shift_is_followed_once_each_way_within_seconds() -> None:
    """Rate and lengths change together, tenfold: what is planned for is either load, never one's rate of the other."""
    cpu = LinearModel(2.0, 0.06, 1e-5, 2.0, 0.06, 0.0)
    objectives = Objectives(ttft_ms=15.5, tpot_ms=6.2, ttft_ms_per_prompt_token=0.25, attainment=0.9)
    policy = replace(
        POLICY, objectives=objectives, max_gpus=3, min_gpus=3, interval_s=1.5,
        max_in_transition_share=0.34,
    )  # fmt: skip
    many = Load(arrivals_per_s=36, prompt_tokens=390, output_tokens=12, prompt_length_shares=((362.0, 1.0),))
    few = Load(arrivals_per_s=4.5, prompt_tokens=3000, output_tokens=6, prompt_length_shares=((2896.0, 1.0),))
    state, layout, moves = State(), (1, 2), []
    for tick, load in enumerate([many] * 10 + [few] * 30 + [many] * 30):
        at_s = 1.5 * tick
        seen = replace(observed(at_s, load, *layout), window_s=1.5)
        state, decision, _ = decide(state, seen, policy, at_s, cpu)
        layout = (decision.prefill, decision.decode)
        moves += [(tick, switch.target) for switch in decision.switches]
    assert [target for _, target in moves] == [Role.PREFILL, Role.DECODE], moves
    assert moves[0][0] - 10 <= 12, moves
    assert moves[1][0] - 40 <= 12, moves


def test_within_a_full_budget_no_worker_is_deleted_to_start_one_of_the_other_role() -> None:
    """A switch brings the same in seconds: scaling one pool down and the other up is never the way there."""
    cpu = LinearModel(2.0, 0.25, 1e-5, 5.5, 0.2, 0.0)
    objectives = Objectives(ttft_ms=1300, tpot_ms=45, attainment=0.9)
    policy = replace(POLICY, objectives=objectives, max_gpus=3, min_gpus=3, scale_in=True, scale_out=True)
    mixes = [((450.0, 1 - share), (1500.0, share)) for share in (0.1, 0.3, 0.5, 0.3, 0.1)]
    loads = [
        Load(arrivals_per_s=rate, prompt_tokens=600, output_tokens=18, prompt_length_shares=shares)
        for shares in mixes
        for rate in (2.0, 4.0, 6.0, 9.0, 12.0, 9.0, 6.0, 4.0)
        for _ in range(12)
    ]
    state, layout = State(), (1, 2)
    for tick, load in enumerate(loads):
        at_s = 1.5 * tick
        state, decision, _ = decide(state, replace(observed(at_s, load, *layout), window_s=1.5), policy, at_s, cpu)
        before, layout = layout, (decision.prefill, decision.decode)
        moved = sum(switch.count for switch in decision.switches)
        assert abs(layout[0] - before[0]) == moved, decision


def test_constant_load_is_answered_once_and_then_left_alone() -> None:
    decisions = run([SHORT] * 200)
    moved = [n for n, d in enumerate(decisions) if d.changes_layout]
    assert all(n < 40 for n in moved)


def test_without_a_better_layout_of_the_same_size_it_scales_out_within_the_budget() -> None:
    policy = replace(POLICY, scale_out=True, max_gpus=8, prefill=Bounds(1, 8), decode=Bounds(1, 8))
    heavy = replace(LONG, arrivals_per_s=70)
    decisions = run([heavy] * 60, policy, prefill=2, decode=2)
    assert any(d.prefill + d.decode > 4 for d in decisions)
    assert all(d.prefill + d.decode <= 8 for d in decisions)


def test_spare_capacity_is_given_back_only_after_it_was_spare_for_long() -> None:
    policy = replace(POLICY, scale_in=True, min_gpus=2, scale_in_stabilization_s=60)
    light = replace(SHORT, arrivals_per_s=1)
    decisions = run([light] * 80, policy, prefill=2, decode=4)
    first = next(n for n, d in enumerate(decisions) if d.prefill + d.decode < 6)
    assert 2.5 * first >= 60
    assert decisions[first].reason is Reason.SPARE_CAPACITY


@pytest.mark.parametrize("blind", [{"load": None}, {"age_s": 21.0}])
def test_what_is_stale_or_unknown_freezes_everything_and_says_so(blind: dict[str, Any]) -> None:
    state = State()
    for tick in range(20):
        state, _, _ = decide(state, observed(2.5 * tick, LONG), POLICY, 2.5 * tick, LLAMA_8B_H100)
    _, decision, _ = decide(state, replace(observed(60, LONG), **blind), POLICY, 60, LLAMA_8B_H100)
    assert decision.reason is Reason.STALE_METRICS
    assert not decision.changes_layout
    assert not decision.changes_routing


@pytest.mark.parametrize(("age_s", "said"), [(math.inf, "half of the workers were never read"), (90.0, "are 90 s old")])
def test_what_was_never_read_has_no_age_in_seconds(age_s: float, said: str) -> None:
    _, decision, _ = decide(State(), observed(0, SHORT, age_s=age_s), POLICY, 0, LLAMA_8B_H100)
    assert said in decision.message


def test_without_a_table_it_waits_until_the_service_has_taught_it() -> None:
    state, decision, _ = decide(State(), observed(0, SHORT), POLICY, 0)
    assert decision.reason is Reason.NOT_ENOUGH_DATA
    samples = (
        EngineSample(Role.PREFILL, observed_ms=10, tokens=300),
        EngineSample(Role.DECODE, observed_ms=7, tokens=4000, batch=8),
    )
    _, decision, _ = decide(state, observed(2.5, SHORT, samples=samples), POLICY, 2.5)
    assert decision.reason is not Reason.NOT_ENOUGH_DATA


def measured(times: float = 1.0) -> tuple[EngineSample, ...]:
    """A pass and a step that took so many times as long as usual."""
    return (
        EngineSample(Role.PREFILL, observed_ms=10 * times, tokens=300),
        EngineSample(Role.DECODE, observed_ms=7 * times, tokens=4000, batch=8),
    )


def test_without_a_table_the_engine_is_fitted_at_each_of_twelve_looks_and_then_at_each_twelfth() -> None:
    state, fitted = State(), []
    for tick in range(60):
        before, seen = state.engine_model, observed(2.5 * tick, SHORT, samples=measured(1 + 0.01 * tick))
        state, _, _ = decide(state, seen, POLICY, 2.5 * tick)
        if state.engine_model != before:
            fitted.append(tick)
    assert fitted == [*range(12), 12, 24, 36, 48]


def test_a_look_of_no_length_raises_nothing() -> None:
    state = State()
    for tick in range(20):
        seen = replace(observed(2.5 * tick, SHORT, samples=measured()), window_s=0.0 if tick == 15 else 2.5)
        state, decision, _ = decide(state, seen, POLICY, 2.5 * tick)
    assert decision.inputs


def test_a_table_of_another_engine_is_corrected_and_so_is_the_next_one_that_the_policy_names() -> None:
    """Measured times are remembered, not factors of one table: another table is right at its first look."""
    fast = LinearModel(1.0, 0.0064, 0.0, 1.0, 0.0, 4.7e-5)  # a third of what is measured
    slow = LinearModel(6.0, 0.0386, 0.0, 6.0, 0.0, 2.8e-4)  # twice as much
    samples = tuple(
        EngineSample(role, observed_ms=ms, tokens=tokens, batch=batch)
        for role, ms, tokens, batch in (
            (Role.PREFILL, 80.0, 4000, 1),
            (Role.PREFILL, 22.0, 1000, 1),
            (Role.DECODE, 12.0, 64_000, 16),
        )
    )  # fmt: skip
    state = State()
    for tick, table in enumerate([*[fast] * 12, slow, fast]):
        seen = observed(2.5 * tick, LONG, samples=samples)
        state, decision, _ = decide(state, seen, POLICY, seen.at_s, table)
        if tick >= 11:
            assert dict(decision.inputs)["prefillMilliseconds"] == pytest.approx(80, rel=0.1), tick


def test_a_plan_that_waits_for_a_start_does_not_stop_the_planner_one_that_switches_does() -> None:
    policy = replace(POLICY, scale_out=True, max_gpus=12, prefill=Bounds(1, 8), decode=Bounds(1, 8))

    def layouts(condition: WorkerCondition) -> set[tuple[int, int]]:
        state, found = State(), set()
        on_its_way = replace(workers(1, 0)[0], name="new", condition=condition)
        for tick in range(30):
            seen = observed(2.5 * tick, replace(LONG, arrivals_per_s=100), plan_in_progress=True)
            seen = replace(seen, workers=(*seen.workers, on_its_way))
            state, decision, _ = decide(state, seen, policy, seen.at_s, LLAMA_8B_H100)
            found.add((decision.prefill, decision.decode))
        return found

    assert layouts(WorkerCondition.SWITCHING) == {(3, 4)}
    assert max(sum(layout) for layout in layouts(WorkerCondition.STARTING)) > 7


def test_a_worker_that_only_starts_does_not_hide_the_switch_that_helps_now() -> None:
    policy = replace(POLICY, scale_out=True, max_gpus=8, prefill=Bounds(1, 8), decode=Bounds(1, 8))
    starting = tuple(Worker(f"new{n}", Role.PREFILL, WorkerCondition.STARTING) for n in range(2))
    load, state = replace(LONG, arrivals_per_s=20.0), State()
    switched: list[Switch] = []
    for tick in range(12):
        seen = replace(observed(2.5 * tick, load), workers=(*workers(1, 4), *starting))
        state, decision, _ = decide(state, seen, policy, seen.at_s, LLAMA_8B_H100)
        switched += decision.switches
    assert switched
    assert switched[0].target is Role.PREFILL


def test_a_plan_in_progress_is_awaited() -> None:
    state = State()
    for tick in range(30):
        seen = observed(2.5 * tick, LONG, plan_in_progress=True)
        state, decision, _ = decide(state, seen, ROUTED, 2.5 * tick, LLAMA_8B_H100)
        assert not decision.changes_layout
        assert decision.reason is Reason.PLAN_IN_PROGRESS


def many_switches() -> History:
    """As many of six workers as the limit allows."""
    return History(tuple(SwitchRecord(0.0, Role.PREFILL) for _ in range(12)))


def repeated(policy: Policy, ticks: int = 300, **seen: Any) -> tuple[State, list[Decision]]:
    """Decisions while long prompts stay and nobody carries anything out."""
    state, decisions = State(), []
    for tick in range(ticks):
        state, decision, _ = decide(state, observed(2.5 * tick, LONG, **seen), policy, 2.5 * tick, LLAMA_8B_H100)
        decisions.append(decision)
    return state, decisions


@pytest.mark.parametrize("mode", [Mode.SHADOW, Mode.EXTERNAL, Mode.APPROVE, Mode.ACTIVE])
def test_a_switch_that_nobody_makes_is_decided_again_and_never_counted(mode: Mode) -> None:
    policy = POLICY
    _, active = repeated(policy, ticks=20)
    first = next(n for n, decision in enumerate(active) if decision.switches)
    state, decisions = repeated(replace(policy, mode=mode))
    imagined = ("attainmentIfExecuted", "gpusIfExecuted")  # said only where nothing is carried out
    inputs = tuple(each for each in decisions[first].inputs if each[0] not in imagined)
    assert replace(decisions[first], inputs=inputs) == active[first]
    assert {d.switches for d in decisions[first:]} == {active[first].switches}
    assert not state.history.switches


@pytest.mark.parametrize("mode", [Mode.ACTIVE, Mode.APPROVE, Mode.EXTERNAL])
def test_a_switch_counts_from_when_it_begins(mode: Mode) -> None:
    policy = replace(POLICY, mode=mode)
    state, decisions = repeated(policy, ticks=12)
    assert decisions[-1].switches
    assert not state.history.switches
    there = tuple(replace(w, condition=WorkerCondition.SWITCHING) if w.name in "w2 w3" else w for w in workers(4, 2))
    for tick in range(12, 16):
        seen = observed(2.5 * tick, LONG, plan_in_progress=True, workers=there)
        state, _, _ = decide(state, seen, policy, seen.at_s, LLAMA_8B_H100)
    assert [(record.at_s, record.target) for record in state.history.switches] == [(30.0, Role.PREFILL)] * 2
    assert state.history.wanting_ticks == 0, "another one must be wanted for as long again"
    state, _, _ = decide(state, observed(40.0, LONG, prefill=3, decode=3), POLICY, 40.0, LLAMA_8B_H100)
    assert len(state.history.switches) >= 1, "it was made, whatever the mode is now"


def test_a_switch_that_begins_while_the_load_cannot_be_read_is_counted() -> None:
    switching = (*workers(2, 3), Worker("w5", Role.PREFILL, WorkerCondition.SWITCHING))
    ended = (*workers(2, 3), Worker("w5", Role.PREFILL, WorkerCondition.ACTIVE))
    state = State()
    for tick, load in enumerate((LONG, None, None, LONG)):
        there = workers(2, 4) if tick == 0 else switching if load is None else ended
        state, _, _ = decide(state, observed(2.5 * tick, load, workers=there), POLICY, 2.5 * tick, LLAMA_8B_H100)
    assert [(record.at_s, record.target) for record in state.history.switches] == [(2.5, Role.PREFILL)]


@pytest.mark.parametrize(
    ("looks", "counted"),
    [
        ("d p p", 1),  # it began and ended between two looks
        ("d P P p p", 1),
        ("P p", 1),  # it was under way at the first look
        ("d p P p", 1),  # its pod was read before its RoleSwitch
        ("d P d d", 1),  # it was undone
        ("d p d", 2),
        ("d P D d", 2),  # the second began before the end of the first was seen
        ("p p", 0),
        ("d s p", 0),  # a new pod that has the name of an old one
    ],
)
@pytest.mark.parametrize("restarts", [False, True])
def test_a_switch_is_counted_once_however_it_is_seen(looks: str, counted: int, restarts: bool) -> None:
    """p, d: the worker has this role; P, D: it is switching to it; s: it starts as a prefill worker."""
    state = State()
    for number, letter in enumerate(looks.split()):
        at_s, role = 30.0 * number, Role.DECODE if letter in "dD" else Role.PREFILL
        condition = WorkerCondition.SWITCHING if letter in "PD" else WorkerCondition.ACTIVE
        worker = Worker("w", role, WorkerCondition.STARTING if letter == "s" else condition)
        seen = observed(at_s, None, workers=(*workers(2, 4), worker), window_s=30.0)
        state, _, _ = decide(state, seen, POLICY, at_s, LLAMA_8B_H100)
        if restarts:
            again = from_json(to_json(state))
            assert again is not None
            state = again
    assert len(state.history.switches) == counted


def test_while_a_person_is_asked_the_planner_goes_on_deciding() -> None:
    policy = replace(POLICY, mode=Mode.APPROVE)
    state, decisions = repeated(policy, ticks=12)
    asked = decisions[-1].layout
    assert decisions[-1].changes_layout
    routed = replace(policy, flow_control=False, remote_prefill=False)
    same = decide(state, observed(30.0, LONG, awaiting_approval=asked), routed, 30.0, LLAMA_8B_H100)[1]
    assert same.reason is Reason.AWAITING_APPROVAL
    assert "awaits approval" in same.message
    assert (same.changes_layout, same.switches, same.prefill, same.decode) == (False, (), 2, 4)
    other = decide(state, observed(30.0, LONG, awaiting_approval=Layout(1, 5)), policy, 30.0, LLAMA_8B_H100)[1]
    assert (other.prefill, other.decode) == asked
    assert other.switches


def withdrawn_at(loads: Sequence[Load | None], policy: Policy, awaiting: tuple[int, int] = (4, 2)) -> list[float]:
    """When the plan that awaits approval is withdrawn, in seconds; nobody answers and nothing is carried out."""
    state, found = State(), []
    for tick, load in enumerate(loads):
        seen = observed(2.5 * tick, load, awaiting_approval=Layout(*awaiting))
        state, decision, _ = decide(state, seen, policy, seen.at_s, LLAMA_8B_H100)
        if decision.withdraws:
            assert decision.reason is Reason.WITHDRAWN
            assert not decision.changes_layout
            found.append(seen.at_s)
    return found


ASKS = replace(POLICY, mode=Mode.APPROVE, scale_in_stabilization_s=150.0, start_s=60.0, start_is_told=True)
CONTENT = replace(SHORT, arrivals_per_s=50.0)


def test_a_plan_that_nobody_wants_any_more_is_withdrawn_and_says_so() -> None:
    state = State()
    for tick in range(61):
        seen = observed(2.5 * tick, CONTENT, awaiting_approval=Layout(4, 2))
        state, decision, _ = decide(state, seen, ASKS, seen.at_s, LLAMA_8B_H100)
    assert decision.withdraws
    assert decision.message.startswith("The plan for 4P2D is withdrawn: it has not been needed for 150 s. 2P4D ")


def test_a_plan_is_withdrawn_only_after_it_was_unwanted_for_long_without_a_break() -> None:
    assert withdrawn_at([CONTENT] * 80, ASKS) == [150.0]
    slow_start = replace(ASKS, scale_in_stabilization_s=10.0, start_s=130.0)
    assert withdrawn_at([CONTENT] * 110, slow_start) == [130.0, 262.5]
    short = replace(ASKS, scale_in_stabilization_s=0.0, start_s=1.0)
    assert withdrawn_at([CONTENT] * 60, short) == [120.0]
    blind = [*[CONTENT] * 30, None, *[CONTENT] * 65]
    assert withdrawn_at(blind, ASKS) == [2.5 * 31 + 150]
    assert withdrawn_at([*[LONG] * 30, *[CONTENT] * 70], ASKS) == [2.5 * 30 + 150]
    assert not withdrawn_at([*[LONG] * 12, *[CONTENT] * 12] * 6, ASKS), "it comes and goes: a person may well decide"


def test_time_in_which_nobody_looked_is_not_time_in_which_nobody_wanted_it() -> None:
    state = State()
    for at_s in (0.0, 2.5, 700.0, 702.5):  # a planner that was down meanwhile goes on from what it remembers
        seen = observed(at_s, CONTENT, awaiting_approval=Layout(4, 2))
        state, decision, _ = decide(state, seen, ASKS, seen.at_s, LLAMA_8B_H100)
        assert not decision.withdraws


def test_a_plan_that_gives_back_what_is_still_spare_is_not_withdrawn() -> None:
    light = replace(SHORT, arrivals_per_s=1)
    may = replace(ASKS, scale_in=True, scale_in_stabilization_s=30.0)
    assert not withdrawn_at([light] * 120, may, awaiting=(1, 1))
    guarded = replace(may, scale_in=False)  # the policy was changed meanwhile: it is still what the load would allow
    assert not withdrawn_at([light] * 120, guarded, awaiting=(1, 1))
    assert withdrawn_at([light] * 120, guarded, awaiting=(3, 4)), "more workers are not wanted"


def test_nothing_is_withdrawn_where_nobody_is_asked() -> None:
    assert not any(decision.withdraws for decision in run([CONTENT] * 120))


QUEUED = Service(ttft_attainment=0.7, tpot_attainment=1.0, prefill_queue_depth=30.0)


@pytest.mark.parametrize(
    ("seen", "awaited"),
    [
        ({"plan_in_progress": True}, "the plan that is being executed"),
        (
            {"workers": tuple(replace(w) for w in workers(2, 4))},
            "The switch is deferred: 12 switches in the last 10 minutes",
        ),
        ({"awaiting_approval": Layout(4, 2)}, "awaits approval"),
    ],
)
def test_what_only_routes_says_a_routing_reason_and_then_what_is_awaited(seen: dict[str, Any], awaited: str) -> None:
    policy = replace(POLICY, mode=Mode.APPROVE)
    state, late = State(history=many_switches() if "deferred" in awaited else History()), []
    for tick in range(12):
        look = observed(2.5 * tick, LONG, **seen)  # none of the bounds it is given is in force at the next look
        look = replace(look, service=QUEUED) if tick % 3 == 2 else look  # raises the threshold as well
        state, decision, _ = decide(state, look, policy, look.at_s, LLAMA_8B_H100)
        late += [decision] if awaited in decision.message else []
    assert {decision.reason for decision in late} == {Reason.THRESHOLD, Reason.FLOW_CONTROL}
    for decision in late:
        assert (decision.reason is Reason.THRESHOLD) == (decision.routing.max_local_prefill_tokens != 512)
        assert decision.reason is decision.routing_reason


def test_in_shadow_numbers_that_are_not_published_are_no_reason() -> None:
    policy = replace(POLICY, mode=Mode.SHADOW)
    state, reasons = State(), []
    for tick in range(12):
        state, decision, _ = decide(state, observed(2.5 * tick, LONG), policy, 2.5 * tick, LLAMA_8B_H100)
        assert decision.changes_routing
        reasons.append(decision.reason)
    assert not {Reason.THRESHOLD, Reason.FLOW_CONTROL} & {*reasons}, reasons


def test_another_limit_of_the_prefill_queue_is_a_reason_of_its_own_and_none_where_nothing_may_be_routed() -> None:
    policy = replace(POLICY, flow_control=False)
    decision = decide(State(), observed(0, SHORT), policy, 0, LLAMA_8B_H100)[1]
    assert decision.reason is Reason.FLOW_CONTROL
    before, limit = observed(0, SHORT).routing, decision.routing.max_prefill_queue_size
    assert decision.routing == replace(before, max_prefill_queue_size=limit)
    assert limit > before.max_prefill_queue_size
    still = decide(State(), observed(0, SHORT), replace(policy, remote_prefill=False), 0, LLAMA_8B_H100)[1]
    assert not still.changes_routing


def test_missed_token_latency_lowers_the_threshold_at_once() -> None:
    bad = Service(ttft_attainment=1.0, tpot_attainment=0.5, prefill_queue_depth=0.0)
    _, decision, _ = decide(State(), observed(0, SHORT, service=bad), POLICY, 0, LLAMA_8B_H100)
    assert decision.routing.max_local_prefill_tokens == 320
    assert decision.changes_routing


def test_a_long_prefill_queue_raises_the_threshold_while_decode_has_room() -> None:
    queue = Service(ttft_attainment=0.7, tpot_attainment=1.0, prefill_queue_depth=30.0)
    _, decision, _ = decide(State(), observed(0, LONG, service=queue), POLICY, 0, LLAMA_8B_H100)
    assert decision.routing.max_local_prefill_tokens == 640


def test_a_step_of_the_threshold_that_gives_decode_workers_nothing_to_do_is_not_refused() -> None:
    queue = Service(ttft_attainment=0.7, tpot_attainment=1.0, prefill_queue_depth=30.0)
    far_too_few = replace(LONG, arrivals_per_s=500)
    _, decision, _ = decide(State(), observed(0, far_too_few, decode=1, service=queue), POLICY, 0, LLAMA_8B_H100)
    assert decision.routing.max_local_prefill_tokens == 640


def test_a_threshold_does_not_rise_among_prompts_that_decode_workers_cannot_bear() -> None:
    """Of a bucket around 4000 tokens nobody says how short its shortest are: they are not all beyond 2900."""
    queue = Service(ttft_attainment=0.7, tpot_attainment=1.0, prefill_queue_depth=30.0)
    seen = observed(0, replace(LONG, arrivals_per_s=100), decode=1, service=queue, routing=RoutingNumbers(2816, 32))
    _, decision, _ = decide(State(), seen, POLICY, 0, LLAMA_8B_H100)
    assert decision.routing.max_local_prefill_tokens == 2816


def test_missed_token_latency_lowers_a_threshold_that_is_among_prompts_also_below_their_mean() -> None:
    bad = Service(ttft_attainment=1.0, tpot_attainment=0.5, prefill_queue_depth=0.0)
    seen = observed(0, replace(LONG, arrivals_per_s=4), service=bad, routing=RoutingNumbers(3456, 32))
    _, decision, _ = decide(State(), seen, POLICY, 0, LLAMA_8B_H100)
    assert decision.routing.max_local_prefill_tokens == 2368


def test_a_lowered_threshold_comes_back_by_itself_and_stops_where_every_service_begins() -> None:
    fine, state = Service(ttft_attainment=1.0, tpot_attainment=1.0, prefill_queue_depth=0.0), State()
    tokens = [0]
    for tick in range(20):
        seen = observed(2.5 * tick, SHORT, service=fine, routing=RoutingNumbers(tokens[-1], 32))
        state, decision, _ = decide(state, seen, POLICY, seen.at_s, LLAMA_8B_H100)
        tokens.append(decision.routing.max_local_prefill_tokens)
    assert tokens[1:] == [512] * 20


def test_the_limit_of_switches_defers_one_and_is_named() -> None:
    state, decision = State(history=many_switches()), None
    for tick in range(12):
        seen = replace(observed(2.5 * tick, replace(LONG, arrivals_per_s=30)), workers=workers(1, 5))
        state, decision, _ = decide(state, seen, ROUTED, 2.5 * tick, LLAMA_8B_H100)
    assert decision is not None
    assert decision.reason is Reason.SWITCH_DEFERRED
    assert "12 switches in the last 10 minutes, at most 12 are allowed" in decision.message


loads = st.builds(
    Load,
    arrivals_per_s=st.floats(0, 500),
    prompt_tokens=st.floats(1, 30_000),
    output_tokens=st.floats(1, 2_000),
)
services = st.none() | st.builds(
    Service,
    ttft_attainment=st.none() | st.floats(0, 1),
    tpot_attainment=st.none() | st.floats(0, 1),
    prefill_queue_depth=st.none() | st.floats(0, 1000),
)


@given(
    history=st.lists(st.tuples(st.none() | loads, services), min_size=1, max_size=25),
    prefill=st.integers(1, 4),
    decode=st.integers(1, 4),
    budget=st.integers(2, 12),
)
def test_no_history_exceeds_the_budget_empties_a_role_or_leaves_the_bounds(
    history: list[tuple[Load | None, Service | None]], prefill: int, decode: int, budget: int
) -> None:
    policy = Policy(
        mode=Mode.ACTIVE, max_gpus=budget, prefill=Bounds(1, 6), decode=Bounds(1, 6),
        scale_in_stabilization_s=10,
    )  # fmt: skip
    state = State()
    for tick, (load, service) in enumerate(history):
        seen = observed(2.5 * tick, load, prefill, decode, service=service)
        state, decision, next_tick = decide(state, seen, policy, seen.at_s, LLAMA_8B_H100)
        assert next_tick.after_s == policy.interval_s
        assert decision.message
        said = decision.message, *(other.rejected_because for other in decision.alternatives)
        assert all(map(str.isascii, said)), "pages show it in whatever font there is"
        if decision.changes_layout:
            assert decision.prefill + decision.decode <= max(budget, prefill + decode)
            assert 1 <= decision.prefill <= 6
            assert 1 <= decision.decode <= 6
            moved = sum(s.count for s in decision.switches)
            assert moved <= max(abs(decision.prefill - prefill), abs(decision.decode - decode))
        threshold = decision.routing.max_local_prefill_tokens
        assert 0 <= threshold <= DEFAULT_PREFILL_TOKEN_BUDGET
        prefill, decode = decision.prefill, decision.decode


conditions = st.sampled_from(WorkerCondition)


@given(
    loads=st.lists(st.none() | loads, min_size=1, max_size=12),
    services=services,
    prefill=st.lists(conditions, max_size=5),
    decode=st.lists(conditions, max_size=5),
    each=st.sampled_from([1, 2, 4]),
    budget=st.integers(2, 40),
    least=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    may=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    min_gpus=st.integers(0, 12),
)
def test_no_look_at_workers_in_any_condition_leaves_a_role_empty_or_goes_beyond_what_is_allowed(
    loads: list[Load | None],
    services: Service | None,
    prefill: list[WorkerCondition],
    decode: list[WorkerCondition],
    each: int,
    budget: int,
    least: tuple[int, int],
    may: tuple[bool, bool, bool],
    min_gpus: int,
) -> None:
    budget = max(budget, each * sum(least))
    policy = Policy(
        mode=Mode.ACTIVE, max_gpus=budget, min_gpus=min(min_gpus, budget), prefill=Bounds(least[0], 6),
        decode=Bounds(least[1], 6), scale_in_stabilization_s=0,
        role_switch=may[0], scale_out=may[1], scale_in=may[2],
    )  # fmt: skip
    roles = [*((Role.PREFILL, c) for c in prefill), *((Role.DECODE, c) for c in decode)]
    there = tuple(Worker(f"w{n}", role, condition, gpus=each) for n, (role, condition) in enumerate(roles))
    state = State()
    for tick, load in enumerate(loads):
        seen = observed(2.5 * tick, load, service=services, workers=there, worker_gpus=each)
        now = seen.committed(Role.PREFILL), seen.committed(Role.DECODE)
        state, decision, _ = decide(state, seen, policy, seen.at_s, LLAMA_8B_H100)
        if not decision.changes_layout:
            continue
        target = decision.prefill, decision.decode
        note(f"{now} to {target}: {decision.message}")
        leaving = [w for w in there if w.condition is WorkerCondition.DRAINING]
        full = bool(leaving) and (sum(max(1, has) for has in now) + len(leaving)) * each > budget
        for had, has, low in zip(now, target, least, strict=True):
            assert has >= min(had, low), "below its least"
            assert has >= 1 or full or not policy.scale_out, "nobody left to serve in a role"
            assert has <= max(6, had)
        assert sum(target) * each <= max(budget, sum(now) * each)
        if sum(target) < sum(now):
            assert policy.scale_in
            assert sum(target) * each >= min(policy.min_gpus, sum(now) * each) or sum(now) * each > budget
        if sum(target) > sum(now):
            assert policy.scale_out
        assert policy.role_switch or not decision.switches


@given(
    kind=st.sampled_from([SHORT, LONG]),
    rate=st.floats(0.5, 80),
    more=st.floats(1.0, 4.0),
    layout=st.tuples(st.integers(1, 4), st.integers(1, 4)),
)
@settings(max_examples=30)
def test_more_load_never_asks_for_fewer_workers(kind: Load, rate: float, more: float, layout: tuple[int, int]) -> None:
    policy, needs = replace(POLICY, max_gpus=64, scale_out=True, prefill=Bounds(1, 32), decode=Bounds(1, 32)), []
    for arrivals_per_s in (rate, more * rate):
        state = State()
        for tick in range(12):
            seen = observed(2.5 * tick, replace(kind, arrivals_per_s=arrivals_per_s), *layout)
            state, decision, _ = decide(state, seen, policy, seen.at_s, LLAMA_8B_H100)
        inputs = dict(decision.inputs)
        needs.append(
            [inputs[name] for name in ("prefillNeededNow", "prefillNeeded", "decodeNeededNow", "decodeNeeded")]
        )
    assert all(low <= high for low, high in zip(*needs, strict=True)), needs


@pytest.mark.parametrize(
    ("prefill", "decode"),
    [([WorkerCondition.ACTIVE] * 4, []), ([WorkerCondition.ACTIVE] * 4, [WorkerCondition.DRAINING])],
)
def test_a_lowered_budget_leaves_no_role_without_a_worker_that_starts(
    prefill: list[WorkerCondition], decode: list[WorkerCondition]
) -> None:
    """A plan without a worker of some role is no plan: the service would stay as it is, and serve nobody."""
    policy = replace(POLICY, max_gpus=3, scale_out=True, scale_in=True, role_switch=False)
    roles = [*((Role.PREFILL, c) for c in prefill), *((Role.DECODE, c) for c in decode)]
    there = tuple(Worker(f"w{n}", role, condition) for n, (role, condition) in enumerate(roles))
    state = State()
    for tick in range(4):
        seen = observed(2.5 * tick, replace(SHORT, arrivals_per_s=5), workers=there)
        state, decision, _ = decide(state, seen, policy, seen.at_s, LLAMA_8B_H100)
        assert decision.changes_layout
        assert (decision.prefill, decision.decode) == (2, 1), decision.message


def test_nobody_shrinks_below_what_a_pool_must_have_while_workers_that_drain_take_the_room() -> None:
    policy = replace(POLICY, max_gpus=3, scale_out=True, scale_in=True, role_switch=False, decode=Bounds(2, 5))
    conditions = [WorkerCondition.STARTING, WorkerCondition.STARTING, WorkerCondition.DRAINING]
    there = tuple(Worker(f"w{n}", Role.DECODE, condition) for n, condition in enumerate(conditions))
    seen = observed(0, replace(SHORT, arrivals_per_s=1), workers=there)
    _, decision, _ = decide(State(), seen, policy, 0, LLAMA_8B_H100)
    assert decision.decode == 2, decision.message


def test_a_role_without_a_worker_gets_one_of_the_other_at_once() -> None:
    seen = observed(0, replace(SHORT, arrivals_per_s=5), 0, 3)
    _, decision, _ = decide(State(), seen, POLICY, 0, LLAMA_8B_H100)
    assert decision.switches == (Switch(Role.DECODE, Role.PREFILL, 1),)


@given(load=loads)
def test_the_same_inputs_give_the_same_decision(load: Load) -> None:
    seen = observed(0, load)
    assert decide(State(), seen, POLICY, 0, LLAMA_8B_H100) == decide(State(), seen, POLICY, 0, LLAMA_8B_H100)


def test_a_threshold_that_decode_workers_cannot_bear_comes_down_before_clients_notice() -> None:
    fine = Service(ttft_attainment=1.0, tpot_attainment=1.0, prefill_queue_depth=0.0)
    few, many = replace(SHORT, arrivals_per_s=5), replace(SHORT, arrivals_per_s=150)
    for load, expected in ((few, 512), (many, 192)):
        seen = observed(0, load, prefill=3, decode=2, service=fine, routing=RoutingNumbers(512, 32))
        _, decision, _ = decide(State(), seen, POLICY, 0, LLAMA_8B_H100)
        assert decision.routing.max_local_prefill_tokens == expected


def test_missed_token_latency_leaves_a_threshold_that_is_below_every_prompt() -> None:
    bad = Service(ttft_attainment=1.0, tpot_attainment=0.5, prefill_queue_depth=0.0)
    _, decision, _ = decide(State(), observed(0, LONG, service=bad), POLICY, 0, LLAMA_8B_H100)
    assert decision.routing.max_local_prefill_tokens == 512


@pytest.mark.parametrize(("stabilization_s", "start_s", "stays_s"), [(30.0, 1.0, 75.0), (0.0, 90.0, 90.0)])
def test_nobody_is_removed_until_prompts_of_another_kind_came_for_long_enough_or_for_a_start(
    stabilization_s: float, start_s: float, stays_s: float
) -> None:
    """Those before may come back: for two and a half scale-in windows after a change what they need stays."""
    small = Load(arrivals_per_s=15, prompt_tokens=500, output_tokens=100, prompt_length_shares=((500, 1.0),))
    large = replace(small, prompt_tokens=8000, prompt_length_shares=((8000, 1.0),))
    policy = replace(
        POLICY, scale_in=True, role_switch=False, scale_in_stabilization_s=stabilization_s, start_s=start_s
    )
    state, removed = State(), []
    for tick in range(80):
        seen = observed(2.5 * tick, small if tick >= 30 else large, prefill=3, decode=1)
        state, decision, _ = decide(state, seen, policy, 2.5 * tick, LLAMA_8B_H100)
        if decision.changes_layout:
            removed.append(2.5 * tick)
    assert removed
    assert removed[0] >= 75 + stays_s


@pytest.mark.parametrize("lost", range(4))
@pytest.mark.parametrize(
    "load", [replace(LONG, arrivals_per_s=18.0), replace(SHORT, arrivals_per_s=80.0)], ids=["long", "short"]
)
def test_a_page_that_could_not_be_read_once_is_no_worker_that_is_missing(load: Load, lost: int) -> None:
    """Requests wait, so that a role with far less than it needs would be given a worker of the other one at once."""
    state, bounds, queue = State(), set(), Service(1.0, 1.0, prefill_queue_depth=25.0)
    for tick in range(48):
        seen = observed(2.5 * tick, load, 2, 2, service=queue)
        if tick % 4 == 3:
            unread = replace(seen.workers[lost], condition=WorkerCondition.UNREACHABLE, in_flight=None)
            seen = replace(seen, workers=(*seen.workers[:lost], unread, *seen.workers[lost + 1 :]))
        state, decision, _ = decide(state, seen, POLICY, seen.at_s, LLAMA_8B_H100)
        assert not decision.switches, decision.message
        if tick > 8:
            bounds.add(decision.routing.flow)
    assert len(bounds) == 1


@pytest.mark.parametrize(("prefill", "decode"), [(0, 2), (2, 0), (0, 0)])
def test_a_role_that_has_lost_all_its_workers_is_given_some(prefill: int, decode: int) -> None:
    policy, state = replace(POLICY, scale_out=True, max_gpus=8), State()
    for tick in range(12):
        seen = observed(2.5 * tick, LONG, prefill, decode)
        state, decision, _ = decide(state, seen, policy, seen.at_s, LLAMA_8B_H100)
    assert decision.prefill >= 1
    assert decision.decode >= 1
    assert "Staying would keep 0% of requests within objectives" in decision.message


def test_a_shortage_before_a_time_in_which_nothing_was_seen_does_not_count_after_it() -> None:
    policy = replace(ROUTED, max_gpus=16, prefill=Bounds(1, 8), scale_out=True, role_switch=False)
    short = [LONG] * 5  # 12.5 s of the 15 s after which workers are started
    unseen = [None] * 6  # with the look after it more than these 15 s; one look is no such time, see below
    assert not any(decision.changes_layout for decision in run([*short, *unseen, *short], policy, decode=1))
    assert run([*short, LONG], policy, decode=1)[-1].changes_layout


@pytest.mark.parametrize(("missed_at_s", "allowed_s"), [((), 0.0), ((10.0,), 2.5), ((5.0, 10.0), 5.0)])
def test_a_look_that_saw_nothing_delays_a_start_by_that_look(missed_at_s: tuple[float, ...], allowed_s: float) -> None:
    """A gateway that was read for the first time has no rate yet. A need that is there before and after was there."""
    policy, state = replace(POLICY, scale_out=True, max_gpus=16, prefill=Bounds(1, 8), role_switch=False), State()
    for tick in range(40):
        seen = observed(2.5 * tick, None if 2.5 * tick in missed_at_s else replace(LONG, arrivals_per_s=60.0), 2, 4)
        state, decision, _ = decide(state, seen, policy, seen.at_s, LLAMA_8B_H100)
        if decision.changes_layout:
            break
    assert decision.changes_layout
    assert seen.at_s <= 15.0 + allowed_s


def test_times_of_uneven_prompts_are_learned_as_those_of_even_ones() -> None:
    """Their mean is longer than the time of the mean, and sizing adds that from the lengths."""
    factors = []
    for lengths in ((), ((1000.0, 0.75), (60_000.0, 0.25))):
        state = State()
        for tick in range(20):
            sample = EngineSample(Role.PREFILL, 1.3 * LLAMA_8B_H100.prefill_ms(15_000, 0), 15_000, lengths=lengths)
            seen = observed(2.5 * tick, LONG, samples=(sample,))
            state, _, _ = decide(state, seen, POLICY, seen.at_s, LLAMA_8B_H100)
        model = model_of(state, LLAMA_8B_H100)
        assert model is not None
        factors.append(model.prefill_ms(15_000, 0) / LLAMA_8B_H100.prefill_ms(15_000, 0))
    assert factors[0] > 1.1 + factors[1] - 1.0
