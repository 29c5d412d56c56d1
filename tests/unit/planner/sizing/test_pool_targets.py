"""Targets over time: rises, falls, queues, noise, wrong beliefs; in a fluid world where workers take time to start."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from pointsman.api.protocol.names import LANGUAGE_ROLES, Role
from pointsman.planner.core.decide import decide
from pointsman.planner.core.state import State
from pointsman.planner.core.types import (
    Load,
    Observation,
    Policy,
    RoutingNumbers,
    Worker,
    WorkerCondition,
)
from unit.planner.sizing.forecast_scenes import ENGINE, POLICY, TICK_S


@dataclass
class Ran:
    """Layouts tick by tick, and the changes of the number of workers of each role: (second, role, by how many)."""

    layouts: list[tuple[int, int]]
    changes: list[tuple[float, Role, int]]
    state: State

    def reversals(self, within_s: float) -> int:
        """Changes of a role undone within so long."""
        return sum(
            a[1] is b[1] and a[2] * b[2] < 0 and b[0] - a[0] < within_s
            for n, a in enumerate(self.changes)
            for b in self.changes[n + 1 :]
        )


def run(
    rate: Callable[[float], float],
    seconds: float,
    policy: Policy = POLICY,
    start_s: float = 45.0,
    output_tokens: Callable[[float], float] = lambda _: 250,
    begins: tuple[int, int] = (1, 1),
) -> Ran:
    """Poisson arrivals of 4000+250 tokens; nothing queues, workers serve ``start_s`` after they were wanted, those that
    switch at the next tick."""
    draw, ran = random.Random(17), Ran([], [], State())
    born = {(role, -n): -math.inf for role, count in zip(LANGUAGE_ROLES, begins, strict=True) for n in range(count)}
    serial = 0
    for tick in range(1, int(seconds / TICK_S)):
        now_s = tick * TICK_S
        workers = tuple(
            Worker(
                f"{role}-{number}", role,
                WorkerCondition.ACTIVE if now_s - since >= start_s else WorkerCondition.STARTING,
            )
            for (role, number), since in born.items()
        )  # fmt: skip
        arrived = sum(draw.random() < rate(now_s) * TICK_S / 200 for _ in range(200))
        seen = Observation(
            at_s=now_s, window_s=TICK_S, age_s=0.0, workers=workers, routing=RoutingNumbers(0, 0),
            load=Load(
                arrived / TICK_S, 4000 * draw.uniform(0.95, 1.05), 0.0, output_tokens(now_s) * draw.uniform(0.95, 1.05)
            ),
            kv_capacity_tokens=262_144.0, max_sequences=64.0,
        )  # fmt: skip
        ran.state, decision, _ = decide(ran.state, seen, policy, now_s, ENGINE)
        for switch in decision.switches:
            for key in [key for key in born if key[0] is switch.source][: switch.count]:
                serial += 1
                del born[key]
                born[(switch.target, serial)] = now_s + TICK_S - start_s
                ran.changes += [(now_s, switch.source, -1), (now_s, switch.target, 1)]
        for role, count in ((Role.PREFILL, decision.prefill), (Role.DECODE, decision.decode)):
            present = [key for key in born if key[0] is role]
            if count != len(present):
                ran.changes.append((now_s, role, count - len(present)))
            for _ in range(count - len(present)):
                serial += 1
                born[(role, serial)] = now_s
            for key in present[count:]:
                del born[key]
        ran.layouts.append((decision.prefill, decision.decode))
    return ran


def test_a_step_is_answered_with_one_jump_not_with_one_worker_after_another() -> None:
    ran = run(lambda t: 3 if t < 300 else 14, 420)
    after = [c for c in ran.changes if c[0] >= 300]
    assert sum(c[2] for c in after if c[0] <= 307.5) >= 3
    assert ran.layouts[-1] >= (2, 4)


def constant(rate: float, seconds: float, begins: tuple[int, int] = (1, 1)) -> Ran:
    """One rate all the time."""
    return run(lambda _: rate, seconds, begins=begins)


@pytest.mark.parametrize("rate", [3.0, 13.0])
def test_constant_load_with_all_its_noise_is_answered_without_to_and_fro(rate: float) -> None:
    assert constant(rate, 900).reversals(2 * 45.0) == 0


@pytest.mark.parametrize(
    ("rate", "enough"), [(5.0, (1, 2)), (8.0, (1, 3)), (10.0, (1, 3)), (13.0, (2, 4)), (16.0, (2, 5))]
)
def test_what_noise_needs_for_moments_is_not_started(rate: float, enough: tuple[int, int]) -> None:
    ran = constant(rate, 1800, enough)
    assert ran.changes == []
    assert {needs.returns for needs in ran.state.memory.needs} == {()}


def test_a_higher_load_is_never_given_fewer_workers() -> None:
    totals = [sum(constant(rate, 300).layouts[-1]) for rate in (1.0, 4.0, 8.0, 16.0)]
    assert totals == sorted(totals)


def test_capacity_outlives_its_need_by_the_stabilisation_and_then_goes() -> None:
    ran = run(lambda t: 14 if t < 300 else 3, 600)
    layouts = {round(tick * TICK_S): layout for tick, layout in enumerate(ran.layouts, 1)}
    before, held, after = layouts[300], layouts[390], layouts[590]
    assert sum(held) >= sum(before) - 1
    assert sum(after) <= 4


@pytest.mark.parametrize("lasts_s", [60, 75, 100])
def test_a_need_that_returns_within_the_stabilisation_finds_its_workers_still_there(lasts_s: int) -> None:
    policy = replace(POLICY, scale_in_stabilization_s=600.0)
    assert run(lambda t: 14 if t % 240 < lasts_s else 8, 1100, policy).reversals(600.0) == 0


def test_one_that_was_over_before_its_workers_served_finds_them_when_it_came_back() -> None:
    ran = run(lambda t: 14 if t % 240 < 45 else 8, 1100, replace(POLICY, scale_in_stabilization_s=600.0))
    assert max(sum(layout) for layout in ran.layouts[: int(60 / TICK_S)]) > sum(ran.layouts[int(120 / TICK_S)])
    assert all(number < 0 for at_s, _, number in ran.changes if at_s > 250)
    assert ran.layouts[-1] >= (2, 4)


def test_a_lone_burst_leaves_no_worker_behind() -> None:
    ran = run(lambda t: 14 if 300 <= t < 360 else 1.2, 700)
    assert ran.layouts[-1] == (1, 1)


def test_bursts_that_return_within_the_usual_gap_find_their_workers() -> None:
    def bursts(t: float) -> float:
        return 14 if t % 300 < 60 else 2

    ran = run(bursts, 1500, replace(POLICY, scale_in_stabilization_s=60.0))
    quiet = [sum(layout) for tick, layout in enumerate(ran.layouts, 1) if tick * TICK_S > 1000]
    assert min(quiet) >= 4


@pytest.mark.parametrize("start_s", [45.0, 120.0, 200.0, 900.0])
def test_bursts_shorter_than_a_start_find_their_workers_from_the_third_on_and_calmly(start_s: float) -> None:
    def bursts(t: float) -> float:
        return 12 if t % 150 >= 120 else 1.5

    ran = run(bursts, 1800, replace(POLICY, start_s=start_s), start_s)
    held = [layout for tick, layout in enumerate(ran.layouts, 1) if tick * TICK_S > 430]
    assert min(prefill for prefill, _ in held) >= 2
    assert min(decode for _, decode in held) >= 3
    assert all(number < 0 for at_s, _, number in ran.changes if at_s > 600)
    # 12/s need 2P4D, and 2P5D with the head-room of scale-in.
    assert ran.layouts[-1] in ((2, 4), (2, 5))


def test_bursts_that_stay_away_are_not_held_for_any_longer() -> None:
    ran = run(lambda t: 12 if t < 800 and t % 150 >= 120 else 1.5, 1300)
    prefill, decode = ran.layouts[round(780 / TICK_S)]
    assert prefill >= 2
    assert decode >= 3
    assert ran.layouts[-1] == (1, 1)


@pytest.mark.parametrize(("believed_s", "true_s"), [(45.0, 110.0), (120.0, 48.0)])
def test_a_wrong_belief_about_starts_is_corrected_by_the_first_ones(believed_s: float, true_s: float) -> None:
    ran = run(lambda t: 3 + t / 60, 600, replace(POLICY, start_s=believed_s), start_s=true_s)
    assert ran.state.leads.lead_s(believed_s) == pytest.approx(true_s, rel=0.1)


def test_the_budget_holds_whatever_comes() -> None:
    ran = run(lambda t: 60 if 200 < t < 400 else 5, 700, replace(POLICY, max_gpus=7))
    assert max(sum(layout) for layout in ran.layouts) == 7
    assert min(min(layout) for layout in ran.layouts) >= 1


@pytest.mark.parametrize(("budget", "peak"), [(6, 24.0), (8, 30.0), (10, 42.0), (13, 54.0)])
def test_where_the_budget_is_less_than_both_roles_need_the_split_comes_to_rest(budget: int, peak: float) -> None:
    ran = run(lambda t: 2 + peak * min(1.0, t / 300), 600, replace(POLICY, max_gpus=budget, start_s=90.0), 90.0)
    assert sum(ran.layouts[-1]) == budget
    assert ran.reversals(180.0) == 0


@pytest.mark.parametrize("role_switch", [True, False])
def test_where_the_budget_is_full_workers_change_their_role_and_nobody_goes_for_another(role_switch: bool) -> None:
    """First many prompts, then long answers, and both need more than the budget. Without switches prefill keeps what
    it needs: no worker goes so that another one can start."""
    policy = replace(POLICY, max_gpus=10, role_switch=role_switch)
    ran = run(lambda t: 50.0, 900, policy, output_tokens=lambda t: 20 if t < 300 else 400)
    before, after = ran.layouts[int(295 / TICK_S)], ran.layouts[-1]
    assert before == (5, 2)
    assert after == ((2, 8) if role_switch else (5, 5))
