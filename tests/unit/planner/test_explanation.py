"""What would change a decision, and how the planner tells one."""

import itertools
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from pydantic import TypeAdapter

from messages.style import faults
from pointsman.api.protocol.names import Role
from pointsman.api.v1alpha1.conditions import Condition, ConditionStatus
from pointsman.api.v1alpha1.plannerpolicy import Mode
from pointsman.planner.core.decide import decide
from pointsman.planner.core.engine.startup_time import Begun, Leads
from pointsman.planner.core.routing.publication import Publication
from pointsman.planner.core.state import State
from pointsman.planner.core.types import (
    Bounds,
    Decision,
    Load,
    Observation,
    Policy,
    Reason,
    RoutingNumbers,
    Uncached,
    WorkerCondition,
)
from pointsman.planner.core.what_if import TurningPoints, turning_points
from pointsman.planner.core.workload.seasonality import SeasonalForecast
from pointsman.planner.explain.command import parse
from pointsman.planner.explain.explanation import Told, explanation
from pointsman.planner.memory import Last, last_to_json
from pointsman.serving.flow_control import FlowBounds
from unit.planner.plans import DECISION, plan
from unit.planner.scenes import LLAMA_8B_H100, LONG, observed

EASY = replace(LONG, arrivals_per_s=15.0)
ROOM = Policy(mode=Mode.ACTIVE, max_gpus=10, prefill=Bounds(1, 8), decode=Bounds(1, 8))


def settled(
    load: Load | None, policy: Policy = ROOM, prefill: int = 2, decode: int = 1, ticks: int = 72
) -> tuple[State, Observation, Decision]:
    """After three minutes of one load at one layout: the first decision that changes it, else the last."""
    state = State()
    for tick in range(ticks):
        seen = observed(2.5 * tick, load, prefill, decode, plan_in_progress=tick < ticks - 12)
        state, decision, _ = decide(state, seen, policy, seen.at_s, LLAMA_8B_H100)
        if decision.changes_layout:
            break
    return state, seen, decision


@pytest.fixture(scope="module")
def calm() -> tuple[State, Observation, Decision, TurningPoints]:
    state, seen, decision = settled(EASY)
    points = turning_points(state, seen, ROOM, LLAMA_8B_H100)
    assert points is not None
    return state, seen, decision, points


def test_more_requests_and_longer_prompts_would_need_more_prefill(
    calm: tuple[State, Observation, Decision, TurningPoints],
) -> None:
    points = calm[3]
    assert points.more_requests is not None
    assert points.longer_prompts is not None
    assert EASY.arrivals_per_s < points.more_requests.value < 8 * EASY.arrivals_per_s
    assert 4000 < points.longer_prompts.value < 32_000
    assert points.more_requests.decision.prefill > 2


def test_fewer_requests_would_need_fewer_workers(calm: tuple[State, Observation, Decision, TurningPoints]) -> None:
    points = calm[3]
    assert points.fewer_requests is not None
    assert points.fewer_requests.value < EASY.arrivals_per_s
    assert points.fewer_requests.decision.prefill + points.fewer_requests.decision.decode < 3


def test_the_planner_itself_turns_where_it_was_foretold(
    calm: tuple[State, Observation, Decision, TurningPoints],
) -> None:
    point = calm[3].more_requests
    assert point is not None
    stays = replace(ROOM, scale_in=False)
    beyond = settled(replace(EASY, arrivals_per_s=point.value * 1.1), stays)[2]
    before = settled(replace(EASY, arrivals_per_s=point.value / 1.15), stays)[2]
    assert beyond.changes_layout
    assert (beyond.prefill, beyond.decode) == (point.decision.prefill, point.decision.decode)
    assert not before.changes_layout


@pytest.mark.parametrize("start_s", [300.0, 1800.0])
def test_fewer_workers_are_foretold_however_long_a_start_takes(
    calm: tuple[State, Observation, Decision, TurningPoints], start_s: float
) -> None:
    """What the load was a start-up ago keeps workers: a look that is shorter than that would see none go."""
    state, seen, _, soon = calm
    points = turning_points(replace(state, leads=Leads(start_s=start_s)), seen, ROOM, LLAMA_8B_H100)
    assert points is not None
    assert points.fewer_requests is not None
    assert soon.fewer_requests is not None
    assert points.fewer_requests.value == pytest.approx(soon.fewer_requests.value, rel=0.1)


def test_the_planner_itself_gives_back_where_it_was_foretold_where_a_start_takes_long(
    calm: tuple[State, Observation, Decision, TurningPoints],
) -> None:
    slow = replace(ROOM, start_s=300.0, start_is_told=True, scale_in_stabilization_s=0.0)
    foretold = turning_points(calm[0], calm[1], slow, LLAMA_8B_H100)
    assert foretold is not None
    assert foretold.fewer_requests is not None
    point = foretold.fewer_requests
    below = settled(replace(EASY, arrivals_per_s=point.value / 1.1), slow, ticks=140)[2]
    above = settled(replace(EASY, arrivals_per_s=point.value * 1.15), slow, ticks=140)[2]
    assert (below.prefill, below.decode) == (point.decision.prefill, point.decision.decode)
    assert not above.changes_layout


def test_a_worker_that_is_taken_as_arrived_has_not_shown_how_long_starts_take(
    calm: tuple[State, Observation, Decision, TurningPoints],
) -> None:
    """It began three seconds ago and starts take 300 s: what is foretold is as with a worker that serves."""
    state, seen, _, _ = calm
    known = replace(state, leads=Leads(start_s=300.0))
    coming = replace(seen.workers[-1], condition=WorkerCondition.STARTING)
    began = replace(known.leads, starting=((coming.name, coming.role, seen.at_s - 3, Begun.TIMED),), looked_s=seen.at_s)
    begun = turning_points(
        replace(known, leads=began), replace(seen, workers=(*seen.workers[:-1], coming)), ROOM, LLAMA_8B_H100
    )
    assert begun == turning_points(known, seen, ROOM, LLAMA_8B_H100)


@pytest.mark.parametrize("lost", ["gateway", "new gateway", "unreadable gateway", "worker", "encode worker"])
def test_a_page_that_is_lost_for_a_moment_changes_nothing_that_is_foretold(
    calm: tuple[State, Observation, Decision, TurningPoints], lost: str
) -> None:
    state, seen, _, points = calm
    unread = replace(seen.workers[0], condition=WorkerCondition.UNREACHABLE)
    found = {
        "gateway": replace(seen, old_pages=1),
        "new gateway": replace(seen, new_gateways=1),
        "unreadable gateway": replace(seen, unreadable_gateways=("g1",)),
        "worker": replace(seen, workers=(unread, *seen.workers[1:])),
        "encode worker": replace(seen, encode_workers=(replace(unread, role=Role.ENCODE),)),
    }
    foretold = turning_points(state, found[lost], ROOM, LLAMA_8B_H100)
    assert foretold is not None and points.fewer_requests is not None and foretold.fewer_requests is not None
    assert foretold.fewer_requests.value == points.fewer_requests.value
    assert foretold.fewer_requests.decision.layout == points.fewer_requests.decision.layout


def test_a_policy_without_another_layout_has_no_turning_point() -> None:
    fixed = replace(ROOM, prefill=Bounds(2, 2), decode=Bounds(1, 1))
    state, seen, _ = settled(EASY, fixed)
    points = turning_points(state, seen, fixed, LLAMA_8B_H100)
    assert points == TurningPoints(None, None, None, None)


def test_without_a_load_nothing_is_foretold() -> None:
    state, seen, _ = settled(None)
    assert turning_points(state, seen, ROOM, LLAMA_8B_H100) is None


def told(seen: Observation | None, decision: Decision | None, points: TurningPoints | None, **other: object) -> str:
    now = datetime.fromtimestamp(seen.at_s + 3, UTC) if seen else datetime(2026, 1, 1, tzinfo=UTC)
    made = Told(
        service="chat", namespace="serving", policy_name="fast", policy=ROOM, now=now, observation=seen,
        decision=decision, turning=points, plans=(), health=None,
    )  # fmt: skip
    text = explanation(replace(made, **other))  # type: ignore[arg-type]  # tests name real fields
    assert [(line, fault) for line in text.splitlines() for fault in faults(line)] == []
    return text


def test_an_explanation_tells_what_was_seen_expected_considered_chosen_and_what_would_change_it(
    calm: tuple[State, Observation, Decision, TurningPoints],
) -> None:
    """P-D14: the present rate was called the one that is expected."""
    _, seen, decision, points = calm
    other = {"ratePerSecond": 14.0, "expectedRatePerSecond": 21.0}  # as on a rising load
    decision = replace(decision, inputs=tuple((name, other.get(name, value)) for name, value in decision.inputs))
    text = told(seen, decision, points)
    assert text.startswith("serving/chat: policy fast, mode Active; evaluated 3 s ago")
    assert "2 prefill and 1 decode worker serve" in text
    assert "page" not in text, "nobody says how old they are"
    assert "15.00 requests/s of 4000 prompt and 30 answer tokens" in text
    rates = dict(decision.inputs)
    assert (
        f"{rates['ratePerSecond']:.2f} requests/s now, {rates['expectedRatePerSecond']:.2f} expected by the "
        "time a worker started now serves"
    ) in text
    assert "→ 2P1D  stay" in text
    assert decision.message in text
    assert points.more_requests is not None
    assert f"more than {points.more_requests.value:.2f} requests/s: the planner would change to" in text
    assert "no plan was made" in text


@pytest.mark.parametrize(
    ("season", "line"),
    [
        (
            SeasonalForecast(22.5, 6, weekly=False, share=0.83, rise_per_s=6.2),
            "as on the last 6 days: 22.50 requests/s then, a rise of 6.20 (83% of such rises recurred recently)",
        ),
        (
            SeasonalForecast(22.5, 1, weekly=True, share=1.0, rise_per_s=7.5),
            "as on the same day a week ago: 22.50 requests/s then, a rise of 7.50 (100% of such rises "
            "recurred recently)",
        ),
        (
            SeasonalForecast(22.5, 1, weekly=False, share=0.0, rise_per_s=0.0),
            "as on the last 1 day: 22.50 requests/s then, a rise of 0.00 (0% of such rises recurred recently)",
        ),
    ],
)
def test_what_earlier_days_add_to_the_forecast_is_told_with_how_far_it_is_believed(
    season: SeasonalForecast, line: str
) -> None:
    _, seen, decision = settled(EASY)
    assert line in told(seen, decision, None, season=season)
    assert "day" not in told(seen, decision, None).split("Alternatives")[0]


def test_how_old_what_was_read_is_is_told_of_gateways_and_of_workers() -> None:
    _, seen, decision = settled(None)
    known = told(replace(seen, gateways_age_s=2.2, workers_age_s=31.0), decision, None)
    assert "the oldest gateway's page is 2 s old, the oldest worker's page is 31 s old" in known
    unread = replace(seen, gateways_age_s=float("inf"))
    saved = TypeAdapter(Last).validate_json(last_to_json(Last(unread, decision)))
    assert "the oldest gateway's page was never read" in told(saved.observation, decision, None)


def test_prompts_that_no_prefill_worker_can_take_are_told_with_their_reasons(
    calm: tuple[State, Observation, Decision, TurningPoints],
) -> None:
    _, seen, decision, _ = calm
    assert seen.load is not None
    assert "cannot be prefilled remotely" not in told(seen, decision, None)
    uncached = Uncached(100.0, 400_000.0, 300_000.0, only_local=(("media", 0.12), ("prompt-logprobs", 0.03)))
    text = told(replace(seen, load=replace(seen.load, uncached=uncached)), decision, None)
    assert "15% of prompts cannot be prefilled remotely: media 12%, prompt-logprobs 3%" in text


def test_what_was_considered_is_told_with_when_it_would_serve_and_why_it_is_not_chosen(
    calm: tuple[State, Observation, Decision, TurningPoints],
) -> None:
    _, seen, decision, points = calm
    lines = told(seen, decision, points).splitlines()
    assert [line.strip()[0] for line in lines if "P1D  stay" in line] == ["→"]
    more = next(line for line in lines if "3P1D  scale-out, 4 GPUs" in line)
    assert "ready in 90 s" in more
    assert more.endswith("; rejected: more workers than needed: 2P1D is enough")


def test_a_switch_is_told_in_words_with_who_gives_and_who_gets() -> None:
    seen = observed(0.0, LONG, 2, 3)
    assert "change to 3P2D (PrefillShort)" in told(seen, DECISION, None)


def test_what_is_unknown_is_told_as_unknown() -> None:
    _, seen, decision = settled(None)
    text = told(seen, decision, None)
    assert "the load could not be read: it is unknown, not zero" in text
    assert "none: too few metrics" in text


def test_a_planner_that_has_not_looked_and_one_that_is_unwell_say_so() -> None:
    wrong = Condition(
        type="PlannerHealthy", status=ConditionStatus.FALSE, reason="StaleMetrics", message="the metrics are 90 s old",
        last_transition_time=datetime(2026, 1, 1, tzinfo=UTC),
    )  # fmt: skip
    text = told(None, None, None, health=wrong, unknown="The planner has not evaluated chat yet.")
    assert "\n\nThe planner has not evaluated chat yet.\n\n" in text
    assert "StaleMetrics: the metrics are 90 s old" in text


def test_the_last_plan_that_changed_the_layout_is_told_with_what_became_of_it() -> None:
    first = plan(sequence=7, phase="Completed")
    why = Reason.THRESHOLD
    threshold = Decision(why, "a threshold", 3, 2, RoutingNumbers(640, 32), routing_reason=why)
    routing = plan(threshold, sequence=8)
    now = first.spec.observed_at + timedelta(minutes=5)
    text = told(None, None, None, plans=(first, routing), now=now)
    assert "chat-00007 (5 min ago): 3P2D, PrefillShort; Completed" in text
    assert "chat-00008 (5 min ago): routing" in text


def test_the_last_publications_of_routing_numbers_are_told_the_newest_first() -> None:
    now = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
    numbers = [RoutingNumbers(512, 32, FlowBounds(1000 + n, 12, 800)) for n in range(12)]
    made = [
        Publication(now.timestamp() - 10 * (11 - n), Reason.FLOW_CONTROL, before, after)
        for n, (before, after) in enumerate(itertools.pairwise(numbers), 1)
    ]
    lines = told(None, None, None, publications=made, now=now).splitlines()
    at = lines.index("Latest published routing numbers")
    assert lines[at + 1] == "  0 s ago, FlowControl: pendingTokensPerPrefillWorker 1010 -> 1011"
    assert lines[at + 8] == "  70 s ago, FlowControl: pendingTokensPerPrefillWorker 1003 -> 1004"
    assert lines[at + 9] == ""
    assert "Latest published" not in told(None, None, None)


def test_the_last_look_is_kept_as_json_even_when_nothing_was_ever_read() -> None:
    _, seen, decision = settled(None)
    unread = replace(
        seen, age_s=float("inf"), workers=tuple(replace(w, condition=WorkerCondition.UNREACHABLE) for w in seen.workers)
    )
    text = last_to_json(Last(unread, decision))
    assert "Infinity" not in text
    assert "null" not in text.split('"age_s":')[1][:8]


def test_a_planner_or_an_operator_that_is_silent_is_said_to_be() -> None:
    _, seen, decision = settled(EASY)
    later = datetime.fromtimestamp(seen.at_s + 80, UTC)
    waits = plan(sequence=7, phase=None)
    assert "Problems" not in told(seen, decision, None, now=later)
    assert "the planner has not saved an evaluation for 90 s" in told(
        seen, decision, None, now=later + timedelta(seconds=10)
    )
    seen = replace(seen, at_s=waits.spec.observed_at.timestamp())
    assert "Problems" not in told(seen, decision, None, plans=(waits,))
    unseen = told(seen, decision, None, plans=(waits,), now=waits.spec.observed_at + timedelta(seconds=45))
    assert "the operator has not handled plan chat-00007 for 45 s" in unseen


def test_more_gpus_than_the_budget_are_said_where_plans_are_carried_out() -> None:
    _, seen, decision = settled(EASY)
    small = replace(ROOM, max_gpus=2)
    assert "3 GPUs are in use, more than budget.maxGpus (2)" in told(seen, decision, None, policy=small)
    assert "GPUs are in use" not in told(seen, decision, None)
    assert "GPUs are in use" not in told(seen, decision, None, policy=replace(small, mode=Mode.SHADOW))


def test_a_person_is_asked_for_layouts_and_not_for_routing() -> None:
    _, seen, decision = settled(EASY)
    approve, asked = replace(ROOM, mode=Mode.APPROVE), "The plan needs an approval"
    routing = replace(decision, routing=RoutingNumbers(640, 32), routing_reason=Reason.THRESHOLD)
    assert not routing.changes_layout
    assert routing.changes_routing
    assert asked not in told(seen, routing, None, policy=approve)
    text = told(seen, routing, None, policy=replace(ROOM, mode=Mode.SHADOW))
    assert "routing numbers (not published: the policy is in mode Shadow): maxLocalPrefillTokens 512 -> 640" in text
    moves = settled(replace(LONG, arrivals_per_s=60.0))[2]
    assert moves.changes_layout
    assert asked in told(seen, moves, None, policy=approve)


@pytest.mark.parametrize(
    ("phase", "words"),
    [
        (
            "Denied",
            "chat-00007 for this layout became Denied 40 s ago; the planner retries after 300 s "
            "(approvals.expireAfterSeconds)",
        ),
        ("Failed", "chat-00007 for this layout became Failed 40 s ago; the planner retries after 30 s, with back-off"),
        ("Completed", ""),
    ],
)
def test_a_layout_that_was_tried_says_when_it_is_tried_again(phase: str, words: str) -> None:
    _, seen, _ = settled(EASY)
    ended = plan(sequence=7, phase=phase)
    moves = settled(replace(LONG, arrivals_per_s=60.0))[2]
    same = replace(moves, prefill=ended.spec.target[0], decode=ended.spec.target[1])
    now = ended.spec.observed_at + timedelta(seconds=40)
    text = told(seen, same, None, plans=(ended,), now=now, denied_for_s=300.0)
    assert (words in text) if words else "again" not in text
    other = replace(same, decode=same.decode + 1)
    assert "again" not in told(seen, other, None, plans=(ended,), now=now)


def test_a_load_that_was_looked_at_once_is_not_called_unreadable() -> None:
    _, seen, decision = settled(None)
    text = told(seen, replace(decision, reason=Reason.NOT_ENOUGH_DATA, message="one evaluation"), None)
    assert "the load is unknown until the second evaluation, because a rate needs two" in text
    assert "could not be read" not in text


def test_the_inputs_are_shown_with_units_where_they_are_requested(
    calm: tuple[State, Observation, Decision, TurningPoints],
) -> None:
    _, seen, decision, points = calm
    title = "Inputs, by the names in spec.inputs of a plan"
    assert title not in told(seen, decision, points)
    lines = told(seen, decision, points, shows_inputs=True).splitlines()
    first = lines.index(title) + 1
    shown = lines[first : lines.index("", first)]
    assert [(name, float(value)) for name, value, *_ in map(str.split, shown)] == list(decision.inputs)
    units = {name: unit for name, _, *unit in map(str.split, shown)}
    assert units["expectedRatePerSecond"] == ["requests/s"]
    assert units["prefillMilliseconds"] == ["ms"]
    assert units["thresholdTokens"] == ["tokens"]
    assert units["decodeNeeded"] == units["workersKept"] == ["workers"]
    assert units["remoteShare"] == units["arrivalDispersion"] == []
    ends = {re.match(r"  \w+ +[-.\d]+", line).end() for line in shown}  # type: ignore[union-attr]  # each line matches
    assert len(ends) == 1, "the values are aligned"


def test_a_decision_without_inputs_says_so_where_they_are_requested() -> None:
    _, seen, decision = settled(None)
    assert not decision.inputs
    assert "\n  none: the latest decision is based on no numbers\n" in told(seen, decision, None, shows_inputs=True)


def test_the_command_takes_the_option_for_inputs() -> None:
    assert parse(["chat", "--inputs"]).inputs
    assert not parse(["chat"]).inputs
