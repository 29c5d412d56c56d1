"""How long starts take: what one unlucky worker may teach, what all of them must, and who is waited for no longer."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from pointsman.api.protocol.names import LANGUAGE_ROLES, Role
from pointsman.planner.core.decide import decide
from pointsman.planner.core.engine.startup_time import MOST_ENDED, Leads, start_of_model, with_pods_start
from pointsman.planner.core.state import State
from pointsman.planner.core.types import (
    Bounds,
    Decision,
    Load,
    Observation,
    Policy,
    Reason,
    RoutingNumbers,
    Worker,
    WorkerCondition,
)
from pointsman.planner.memory import from_json, to_json
from unit.planner.sizing.forecast_scenes import ENGINE, POLICY, TICK_S

Starts = Mapping[str, tuple[float, float]]
"""By name: when a worker begins to start, and when it serves."""


def seen(starts: Starts, now_s: float, **other: object) -> Observation:
    workers = tuple(
        Worker(name, Role.DECODE, WorkerCondition.ACTIVE if now_s >= ready_s else WorkerCondition.STARTING)
        for name, (begins_s, ready_s) in starts.items()
        if begins_s <= now_s
    )
    return replace(Observation(now_s, TICK_S, 0.0, workers, RoutingNumbers(0, 0)), **other)  # type: ignore[arg-type]


def after(starts: Starts, until_s: float, believed_s: float, leads: Leads | None = None) -> Leads:
    """Looked at every tick."""
    leads = leads or Leads()
    began_s = leads.looked_s or 0.0
    for tick in range(1, int((until_s - began_s) / TICK_S) + 1):
        now_s = began_s + tick * TICK_S
        leads = leads.look(seen(starts, now_s).workers, now_s, TICK_S, believed_s)
    return leads


def starting(ready_s: tuple[float, ...], begins_s: float = 100.0) -> dict[str, tuple[float, float]]:
    """Workers that begin together; each serves so long after."""
    return {f"w{begins_s:.0f}-{n}": (begins_s, begins_s + s) for n, s in enumerate(ready_s)}


LUCKY = (113.0, 117.0, 119.0, 121.0, 123.0, 127.0)


def test_workers_that_fail_to_start_do_not_make_every_later_one_believed_slow() -> None:
    starts = starting((*LUCKY, 240.0, 245.0))
    for until_s in (225.0, 300.0, 339.0, 360.0):
        assert after(starts, until_s, believed_s=120.0).lead_s(120.0) == pytest.approx(120.0, abs=5.0), until_s


def test_a_late_worker_is_expected_one_start_later_and_not_at_any_moment() -> None:
    leads = after(starting((*LUCKY, 240.0)), 260.0, believed_s=120.0)  # 160 s old
    assert leads.ready_in_s(Role.DECODE, 260.0, 120.0) == pytest.approx([80.0], abs=10.0)


def test_a_late_worker_is_expected_when_late_ones_were_ready_before() -> None:
    """On a node without the image everything takes 300 s: once seen, that is what a late one is expected to take."""
    leads = after(starting((*LUCKY, 300.0)), 450.0, believed_s=120.0)
    leads = after(starting((*LUCKY, math.inf), begins_s=1000.0), 1180.0, 120.0, leads)
    assert leads.ready_in_s(Role.DECODE, 1180.0, 120.0) == pytest.approx([120.0], abs=10.0)


@pytest.mark.parametrize("together", [1, 6])
def test_a_start_up_that_was_told_far_too_short_is_outgrown_while_nobody_serves_yet(together: int) -> None:
    starts = starting(tuple(300.0 + n for n in range(together)))
    for age_s in (150.0, 200.0, 290.0):
        leads = after(starts, 100 + age_s, believed_s=120.0)
        assert leads.lead_s(120.0) == pytest.approx(age_s, abs=3.0)
        assert not leads.stuck(100 + age_s, 120.0)
    assert after(starts, 410.0, 120.0).lead_s(120.0) == pytest.approx(300, rel=0.02)


def test_a_start_up_that_was_told_far_too_long_is_corrected_when_half_of_the_first_serve() -> None:
    leads = after(starting((29.0, 30.0, 31.0, 40.0)), 132.5, believed_s=120.0)
    assert leads.lead_s(120.0) == pytest.approx(30.0, abs=2.5)


def test_starts_that_became_slow_are_learned_though_all_before_were_fast() -> None:
    """A new image: the memory of the fast ones must not call the slow ones failed."""
    fast = {f"f{n}": (50.0 * n, 50.0 * n + 30.0) for n in range(1, 9)}
    leads = after(fast, 500.0, believed_s=30.0)
    assert leads.lead_s(30.0) == pytest.approx(30.0, abs=2.0)
    slow = {**fast, **starting((90.0, 91.0, 92.0, 93.0, 94.0, 95.0), begins_s=500.0)}
    leads = after(slow, 580.0, 30.0, leads)
    assert not leads.stuck(580.0, 30.0)
    assert leads.ready_in_s(Role.DECODE, 580.0, 30.0) == pytest.approx([10.0] * 6, abs=3.0)  # the third try
    assert after(slow, 600.0, 30.0, leads).lead_s(30.0) == pytest.approx(91.0, abs=4.0)


def test_a_worker_that_never_starts_is_stuck_once_others_overtook_it_and_teaches_nothing() -> None:
    leads = after(starting((*LUCKY, math.inf)), 100 + 2.4 * 120, believed_s=120.0)
    assert not leads.stuck(100 + 2.4 * 120, 120.0)
    leads = after(starting((*LUCKY, math.inf)), 100 + 2.6 * 120, 120.0)
    assert leads.stuck(100 + 2.6 * 120, 120.0) == {"w100-6"}
    assert leads.ready_in_s(Role.DECODE, 100 + 2.6 * 120, 120.0) == []
    alone = after(starting((math.inf,)), 100 + 3.9 * 120, 120.0)
    assert not alone.stuck(100 + 3.9 * 120, 120.0)
    assert after(starting((math.inf,)), 2000, 120.0, alone).lead_s(120.0) <= 4 * 120


def test_a_start_longer_than_the_user_says_is_not_stuck_once_others_took_as_long() -> None:
    """``leadSeconds`` is 60 and starts take 300 s: the first is replaced after 240 s, and no later one."""
    policy, state = replace(POLICY, start_s=60.0, start_is_told=True), State()
    starts = {"w0": (100.0, 400.0), "w1": (1000.0, math.inf)}
    stuck_at_s = set[float]()
    for tick in range(1, 1000):
        now_s = tick * TICK_S
        state, _, _ = decide(state, seen(starts, now_s, age_s=math.inf), policy, now_s)
        assert state.leads.lead_s(policy.start_s) == 60.0, "what the user says is planned with"
        stuck_at_s |= {now_s} if state.leads.stuck(now_s, policy.start_s) else set()
    assert min(stuck_at_s) == pytest.approx(340.0, abs=5.0)
    assert min(stuck_at_s - {at_s for at_s in stuck_at_s if at_s <= 400.0}) == pytest.approx(1000 + 4 * 300, abs=20.0)


def test_a_start_that_ended_while_nothing_could_be_read_is_not_taken_as_that_long() -> None:
    leads = after(starting((20.0,)), 110.0, believed_s=120.0)
    leads = leads.look(seen(starting((20.0,)), 140.0).workers, 140.0, TICK_S, 120.0)  # half a minute later
    assert leads.lead_s(120.0) == pytest.approx(25.0, abs=3.0)


def test_a_start_that_ended_while_the_planner_was_away_teaches_no_more_than_what_was_seen_of_it() -> None:
    starts = {"w0": (100.0, 150.0)}
    for seen_s, lead_s in ((20.0, 90.0), (44.0, 90.0), (49.0, 30.0)):
        leads = after(starts, 100.0 + seen_s, believed_s=lead_s)
        leads = leads.look(seen(starts, 3600.0).workers, 3600.0, TICK_S, lead_s)
        assert lead_s <= leads.lead_s(lead_s) <= max(lead_s, seen_s)


def test_a_worker_that_began_while_the_planner_was_away_is_not_stuck_at_first_sight() -> None:
    leads = after({"w0": (0.0, 0.0)}, 100.0, believed_s=90.0)
    starts = {"w0": (0.0, 0.0), "w1": (3590.0, 3680.0)}
    leads = leads.look(seen(starts, 3600.0).workers, 3600.0, TICK_S, 90.0)
    assert not leads.stuck(3600.0, 90.0)
    assert leads.ready_in_s(Role.DECODE, 3600.0, 90.0) == [pytest.approx(90.0, abs=TICK_S)]
    leads = after(starts, 3700.0, 90.0, leads)
    assert leads.lead_s(90.0) == 90.0  # when it began nobody saw


@pytest.mark.parametrize(("seconds", "ends"), [(2.5, "serves"), (297.5, "serves"), (297.5, "is taken away")])
def test_a_worker_that_served_and_is_not_ready_for_a_while_is_no_start(seconds: float, ends: str) -> None:
    leads = after({"w0": (0.0, 0.0), "w1": (0.0, 0.0)}, 100.0, believed_s=90.0)
    away = {"w0": (0.0, math.inf), "w1": (0.0, 0.0)}
    for tick in range(int(seconds / TICK_S) + 1):
        leads = leads.look(seen(away, 102.5 + tick * TICK_S).workers, 102.5 + tick * TICK_S, TICK_S, 90.0)
        assert leads.lead_s(90.0) == 90.0
    back = {"w0": (0.0, 0.0)} if ends == "serves" else {}
    leads = leads.look(seen({**back, "w1": (0.0, 0.0)}, 105.0 + seconds).workers, 105.0 + seconds, TICK_S, 90.0)
    assert (leads.took_s, leads.lead_s(90.0), leads.overtaken_s) == ((), 90.0, None)


def test_a_worker_that_served_and_comes_back_from_a_switch_by_a_start_is_no_start() -> None:
    leads = after({"w0": (0.0, 0.0)}, 100.0, believed_s=90.0)
    here = seen({"w0": (0.0, 0.0)}, 102.5)
    conditions = (
        WorkerCondition.SWITCHING,
        WorkerCondition.SWITCHING,
        WorkerCondition.STARTING,
        WorkerCondition.ACTIVE,
    )
    for tick, condition in enumerate(conditions):
        worker = replace(here.workers[0], condition=condition)
        leads = leads.look((worker,), 102.5 + tick * TICK_S, TICK_S, 90.0)
    assert (leads.took_s, leads.lead_s(90.0)) == ((), 90.0)


def test_starts_are_observed_also_while_the_metrics_are_stale() -> None:
    state, policy = State(), replace(POLICY, start_s=120.0)
    for tick in range(1, 40):
        observation = seen(starting((30.0,), begins_s=20.0), tick * TICK_S, age_s=math.inf)
        state, decision, _ = decide(state, observation, policy, tick * TICK_S)
        assert decision.reason is Reason.STALE_METRICS
    assert state.leads.lead_s(120.0) == pytest.approx(30.0, abs=2.5)


def test_the_memory_of_starts_is_bounded_and_an_older_one_is_read() -> None:
    many = {f"w{n}": (10.0 * n, 10.0 * n + 30.0 + n % 3) for n in range(200)}
    leads = after(many, 2100.0, believed_s=120.0)
    assert len(leads.took_s) == MOST_ENDED
    assert leads.lead_s(120.0) == pytest.approx(31.0, abs=2.5)
    restored = from_json(to_json(State(leads=leads)))
    assert restored is not None
    assert restored.leads == leads
    before = from_json('{"leads": {"start_s": 42.0, "starting": [["w", "Decode", 7.0, "Timed"]]}}')
    assert before is not None
    assert before.leads.lead_s(120.0) == 42.0
    assert after({"w": (7.0, 60.0)}, 30.0, 120.0, before.leads).lead_s(120.0) == 42.0


class Service:
    """A load on workers of which some never start; the decisions are carried out, unready workers leave first."""

    def __init__(self, policy: Policy, never: Callable[[str], bool]) -> None:
        self.policy, self.never, self.state = policy, never, State()
        self.since: dict[tuple[str, Role], float] = {(f"first-{role}", role): -math.inf for role in LANGUAGE_ROLES}
        self.now_s, self.decisions = 0.0, list[Decision]()

    def serves(self, name: str, since_s: float) -> bool:
        return self.now_s - since_s >= 45.0 and not self.never(name)

    def run(self, rate: float, until_s: float) -> None:
        while self.now_s < until_s:
            self.now_s += TICK_S
            workers = tuple(
                Worker(name, role, WorkerCondition.ACTIVE if self.serves(name, since) else WorkerCondition.STARTING)
                for (name, role), since in self.since.items()
            )
            load = Load(rate, 4000, 0.0, 250)
            observation = Observation(
                self.now_s, TICK_S, 0.0, workers, RoutingNumbers(0, 0), load,
                kv_capacity_tokens=262_144.0, max_sequences=64.0,
            )  # fmt: skip
            self.state, decision, _ = decide(self.state, observation, self.policy, self.now_s, ENGINE)
            self.decisions.append(decision)
            if not decision.changes_layout:
                continue
            assert (decision.prefill, decision.decode) != tuple(observation.committed(role) for role in LANGUAGE_ROLES)
            for role, count in ((Role.PREFILL, decision.prefill), (Role.DECODE, decision.decode)):
                present = [key for key in self.since if key[1] is role]
                for number in range(count - len(present)):
                    self.since[f"{role}-{self.now_s}-{number}", role] = self.now_s
                present.sort(key=lambda key: self.serves(key[0], self.since[key]))
                for key in present[: max(0, len(present) - count)]:
                    del self.since[key]

    def serving(self, role: Role) -> int:
        return sum(r is role and self.serves(name, since) for (name, r), since in self.since.items())

    def waiting(self) -> int:
        return sum(not self.serves(name, since) for (name, _), since in self.since.items())


def test_workers_that_never_start_are_replaced_and_given_up_when_the_others_serve() -> None:
    """Three of those that start never serve: without them the others are too few."""
    broken: set[str] = set()

    def never(name: str) -> bool:
        if len(broken) < 3 and name.startswith("Decode"):
            broken.add(name)
        return name in broken

    whole, service = Service(POLICY, lambda _: False), Service(POLICY, never)
    for each in (whole, service):
        each.run(3.0, 200.0)
        each.run(14.0, 700.0)
    enough = whole.serving(Role.DECODE)
    assert enough > 2
    assert service.serving(Role.DECODE) >= enough
    assert service.waiting() == 0
    words = [decision.message for decision in service.decisions if "too long to start" in decision.message]
    assert "3 decode workers take too long to start and are not counted in this message." in words[0]
    assert "3 decode workers take too long to start and are removed." in words[-1].lower()
    assert service.state.leads.lead_s(45.0) == pytest.approx(45.0, abs=3.0)


@pytest.mark.parametrize("policy", [
    replace(POLICY, max_gpus=6),
    replace(POLICY, prefill=Bounds(1, 3), decode=Bounds(1, 4)),
], ids=["budget", "bounds"])  # fmt: skip
def test_workers_that_never_start_take_up_budget_and_bounds(policy: Policy) -> None:
    service = Service(policy, lambda name: name.startswith("Decode-2"))
    service.run(3.0, 200.0)
    service.run(14.0, 900.0)
    assert any("too long to start" in decision.message for decision in service.decisions)
    for decision in service.decisions:
        assert decision.prefill + decision.decode <= policy.max_gpus
        assert decision.prefill <= policy.prefill.most
        assert decision.decode <= policy.decode.most


def test_a_worker_that_never_starts_is_not_given_up_below_what_its_pool_must_have() -> None:
    service = Service(replace(POLICY, decode=Bounds(2, 15)), lambda name: name.startswith("broken"))
    service.since["broken", Role.DECODE] = 0.0
    service.run(1.0, 900.0)
    assert any("too long to start" in decision.message for decision in service.decisions)
    assert all(decision.decode >= 2 for decision in service.decisions if decision.changes_layout)


@pytest.mark.parametrize(
    ("model", "gpus", "seconds"),
    [
        ("hf://meta-llama/Meta-Llama-3.1-8B-Instruct", 1, 89),
        ("hf://meta-llama/Meta-Llama-3.1-70B", 4, 312),
        ("pvc://models/Mixtral-8x7B-v0.1", 2, 262),
        ("hf://Qwen/Qwen3-30B-A3B", 1, 168),
        ("hf://Qwen/Qwen2.5-0.5B", 1, 62),
        ("hf://meta-llama/Llama-3.1-405B-FP8", 8, 1518),
        ("hf://some/1000B", 16, 1800),
        ("hf://deepseek-ai/DeepSeek-V3", 8, 636),
        ("hf://test/tiny", 0, 89),
        ("file:///models/8bit-tuned", 1, 89),  # no size
    ],
)
def test_before_any_start_the_model_s_size_says_how_long_one_takes(model: str, gpus: int, seconds: float) -> None:
    assert start_of_model(model, gpus) == pytest.approx(seconds, abs=0.5)


def test_what_pods_took_to_start_is_planned_with_unless_the_user_says_it() -> None:
    assert with_pods_start(Policy(start_s=90.0), 300.0).start_s == 300.0
    assert with_pods_start(Policy(start_s=90.0), None).start_s == 90.0
    assert with_pods_start(Policy(start_s=90.0, start_is_told=True), 300.0).start_s == 90.0
    seen_start = after(starting((120.0, 121.0)), 300.0, believed_s=300.0)
    assert seen_start.lead_s(with_pods_start(Policy(), 300.0).start_s) == pytest.approx(120.0, abs=3.0)
