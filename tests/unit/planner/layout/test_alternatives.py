"""What else was considered, and why not: every reason agrees with the numbers beside it."""

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.api.protocol.names import Role
from pointsman.api.v1alpha1.plannerpolicy import Mode
from pointsman.planner.core.decide import decide
from pointsman.planner.core.state import State
from pointsman.planner.core.types import (
    Alternative,
    Bounds,
    Decision,
    Load,
    Observation,
    Policy,
    Service,
    Worker,
    WorkerCondition,
)
from unit.planner.scenes import LLAMA_8B_H100, LONG, SHORT, observed, workers

GOAL = 0.95
Numbers = tuple[str, ...]
Check = Callable[[Alternative, Alternative, Numbers], bool]


def of(alternative: Alternative, role: str) -> int:
    return alternative.prefill if role == "prefill" else alternative.decode


def workers_of(words: str) -> tuple[int, int]:
    prefill, decode = words.removesuffix("D").split("P")
    return int(prefill), int(decode)


def fewer(other: Alternative, chosen: Alternative, found: Numbers) -> bool:
    need = workers_of(found[0])
    lacks = any(of(other, r) < min(n, of(chosen, r)) for r, n in zip(("prefill", "decode"), need, strict=True))
    return lacks and bool(found[1]) == (other.expected_attainment >= GOAL)


def more(other: Alternative, chosen: Alternative, found: Numbers) -> bool:
    beyond = other.prefill > chosen.prefill or other.decode > chosen.decode
    return beyond and workers_of(found[-1]) == (chosen.prefill, chosen.decode)


MORE = r"(, with the margin for peaks)?(?:, which includes a queue of \d+)?"
LAYOUT = r"(\d+P\d+D)"
CHECKS: dict[str, Check] = {
    rf"does not cover the need of {LAYOUT}{MORE}": fewer,
    rf"more workers than needed: {LAYOUT} is enough": more,
    rf"a worker started now serves in \d+ s; by then {LAYOUT} is enough": more,
    r"needs (\d+) GPUs?, the budget is (\d+)": lambda o, _, n: o.gpus == int(n[0]) > int(n[1]),
    r"has (\d+) GPUs?, budget\.minGpus is (\d+)": lambda o, _, n: o.gpus == int(n[0]) < int(n[1]),
    r"has (\d+) (prefill|decode) workers?, maxReplicas is (\d+)": (
        lambda o, _, n: of(o, n[1]) == int(n[0]) > int(n[2])
    ),
    r"has (\d+) (prefill|decode) workers?, minReplicas is (\d+)": (
        lambda o, _, n: of(o, n[1]) == int(n[0]) < int(n[2])
    ),
    r"(\d+) (prefill|decode) workers? (?:is|are) retained, because as many were needed recently": (
        lambda o, c, n: of(o, n[1]) < int(n[0]) <= of(c, n[1])
    ),
    r"(\d+) workers are retained, because as many were needed recently": (
        lambda o, c, n: o.prefill + o.decode < int(n[0]) <= c.prefill + c.decode
    ),
    r"no worker that serves is removed while (\d+) requests? (?:is|are) queued": (
        lambda o, c, n: int(n[0]) > 10 and o.gpus < c.gpus
    ),
    r"at most (\d+) of (\d+) workers may switch at a time": (
        lambda o, _, n: int(n[0]) < int(n[1]) and "switch" in o.action
    ),
    r"a switch serves in (\d+) s, a start in (\d+) s": (
        lambda o, _, n: round(o.lead_s) == int(n[1]) >= int(n[0]) and "switch" not in o.action
    ),
    r"a switch must gain ([\d.]+)% of the present need; this one gains (-?[\d.]+)%": (
        lambda o, c, n: float(n[1]) <= float(n[0]) and "switch" in o.action and "switch" not in c.action
    ),
    r"(prefill|decode) workers are started for the lowest need of 15 s(?:; (\d+) s are left)?": (
        lambda o, c, n: of(o, n[0]) > of(c, n[0]) and int(n[1] or 0) <= 15
    ),
    r"the switch is deferred: .+": lambda o, c, _: "switch" not in c.action and o.action != "stay",
    r"serving workers would keep (\d+)% within objectives, not (\d+)%": lambda o, _, n: (
        int(n[0]) < int(n[1]) and "switch" in o.action
    ),
    r"scale-out is not allowed": (
        lambda o, _, __: "scale-out" in o.action or ("switch" not in o.action and o.lead_s > 0)
    ),
    r"scale-in is not allowed": lambda o, c, _: sum((o.prefill, o.decode)) < sum((c.prefill, c.decode)) or o.lead_s > 0,
    r"too few requests were seen yet to start or stop workers": lambda o, _, __: "scale" in o.action,
    r"fewer workers than the planner's rules retain": lambda o, c, _: o.prefill < c.prefill or o.decode < c.decode,
    r"no worker is removed while another one starts or a switch is awaited": (
        lambda o, c, _: o.gpus < c.gpus or "scale-in" in c.action
    ),
}


def agree(decision: Decision) -> None:
    chosen, *others = decision.alternatives
    assert not chosen.rejected_because
    assert (chosen.prefill, chosen.decode) == (decision.prefill, decision.decode)
    assert (chosen.action == "stay") == (not decision.changes_layout)
    for other in others:
        said = [
            (check, found) for words, check in CHECKS.items() if (found := re.fullmatch(words, other.rejected_because))
        ]
        assert said, (decision.message, other)
        for check, found in said:
            assert check(other, chosen, tuple(group or "" for group in found.groups())), (
                decision.message,
                other,
                chosen,
            )


loads = st.builds(
    lambda rate, long, queued: (
        replace(LONG if long else SHORT, arrivals_per_s=rate),
        Service(ttft_attainment=1.0, tpot_attainment=1.0, prefill_queue_depth=queued),
    ),
    st.floats(0.5, 120),
    st.booleans(),
    st.sampled_from([0.0, 20.0, 400.0]),
)


@given(
    phases=st.lists(st.tuples(loads, st.integers(1, 14)), min_size=1, max_size=4),
    layout=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    allowed=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    budget=st.integers(4, 14),
)
def test_exactly_one_layout_is_chosen_and_every_other_is_refused_in_numbers_that_agree(
    phases: list[tuple[tuple[Load, Service], int]],
    layout: tuple[int, int],
    allowed: tuple[bool, bool, bool],
    budget: int,
) -> None:
    switches, out, gives_back = allowed
    policy = Policy(
        mode=Mode.ACTIVE, max_gpus=budget, prefill=Bounds(1, 6), decode=Bounds(1, 6), role_switch=switches,
        scale_out=out, scale_in=gives_back, scale_in_stabilization_s=10, start_s=30,
    )  # fmt: skip
    state, fleet, tick = State(), Fleet(*layout), 0
    for (load, service), ticks in phases:
        for _ in range(ticks):
            tick += 1
            seen = fleet.seen(2.5 * tick, load, service)
            state, decision, _ = decide(state, seen, policy, seen.at_s, LLAMA_8B_H100)
            if decision.alternatives:
                agree(decision)
            fleet.follow(decision)


class Fleet:
    """Workers that do what is decided; whoever starts serves twelve looks later."""

    def __init__(self, prefill: int, decode: int) -> None:
        self.serve = {Role.PREFILL: prefill, Role.DECODE: decode}
        self.starts: list[tuple[Role, int]] = []
        self.looks = 0

    def seen(self, at_s: float, load: Load, service: Service) -> Observation:
        self.looks += 1
        ready = [role for role, look in self.starts if look <= self.looks]
        self.starts = [(role, look) for role, look in self.starts if look > self.looks]
        for role in ready:
            self.serve[role] += 1
        starting = tuple(
            Worker(f"s{look}-{n}", role, WorkerCondition.STARTING) for n, (role, look) in enumerate(self.starts)
        )
        serving = workers(self.serve[Role.PREFILL], self.serve[Role.DECODE])
        return replace(observed(at_s, load, 1, 1), service=service, workers=(*serving, *starting))

    def follow(self, decision: Decision) -> None:
        for switch in decision.switches:
            self.serve[switch.source] -= switch.count
            self.serve[switch.target] += switch.count
        for role, count in ((Role.PREFILL, decision.prefill), (Role.DECODE, decision.decode)):
            has = self.serve[role] + sum(r is role for r, _ in self.starts)
            self.starts += [(role, self.looks + 12)] * max(0, count - has)
            for _ in range(max(0, has - count)):
                late = next((start for start in reversed(self.starts) if start[0] is role), None)
                if late is not None:
                    self.starts.remove(late)
                else:
                    self.serve[role] -= 1


def test_a_switch_is_chosen_before_a_start_because_it_serves_sooner() -> None:
    policy = Policy(mode=Mode.ACTIVE, max_gpus=8, prefill=Bounds(1, 6), decode=Bounds(1, 6))
    state = State()
    for tick in range(80):
        seen = observed(2.5 * tick, SHORT if tick < 40 else LONG, prefill=2, decode=4)
        state, decision, _ = decide(state, seen, policy, seen.at_s, LLAMA_8B_H100)
        if decision.switches:
            break
    chosen, *others = decision.alternatives
    assert chosen.lead_s == pytest.approx(10.0)
    starts = [other for other in others if other.action == "scale-out" and "s, a start in" in other.rejected_because]
    assert starts, others
    assert all(other.lead_s == pytest.approx(90.0) for other in starts)
    stay = next(other for other in others if other.action == "stay")
    assert stay.lead_s == 0
    assert stay.expected_attainment < chosen.expected_attainment


@pytest.mark.parametrize(("role_switch", "words"), [
    (True, "6 workers are retained, because as many were needed recently"),
    (False, "4 decode workers are retained, because as many were needed recently"),
])  # fmt: skip
def test_workers_that_a_lower_load_does_not_need_are_retained_of_both_roles_only_where_they_can_switch(
    role_switch: bool, words: str
) -> None:
    policy = Policy(
        mode=Mode.ACTIVE, max_gpus=8, prefill=Bounds(1, 6), decode=Bounds(1, 6), role_switch=role_switch
    )  # fmt: skip
    state = State()
    for tick in range(45):
        load = SHORT if tick < 30 else replace(SHORT, arrivals_per_s=5)
        seen = observed(2.5 * tick, load, prefill=2, decode=4)
        state, decision, _ = decide(state, seen, policy, seen.at_s, LLAMA_8B_H100)
    assert not decision.changes_layout
    fewer = next(other for other in decision.alternatives if (other.prefill, other.decode) == (2, 3))
    assert fewer.rejected_because == words


def test_a_pool_that_is_short_says_for_how_long_it_must_be() -> None:
    policy = Policy(mode=Mode.ACTIVE, max_gpus=8, prefill=Bounds(1, 6), decode=Bounds(1, 6), role_switch=False)
    state, said = State(), []
    for tick in range(10):
        seen = observed(2.5 * tick, LONG, prefill=2, decode=1)
        state, decision, _ = decide(state, seen, policy, seen.at_s, LLAMA_8B_H100)
        said += [other.rejected_because for other in decision.alternatives if other.action == "scale-out"]
        if decision.changes_layout:
            break
    for left_s in ("12", "10", "8", "5", "2"):
        assert f"prefill workers are started for the lowest need of 15 s; {left_s} s are left" in said
    assert decision.prefill > 2
