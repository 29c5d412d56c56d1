"""How long a change of role takes: learned from every one that ends in its new role."""

from dataclasses import replace

from pointsman.api.protocol.names import Role
from pointsman.planner.core.engine.startup_time import MOST_ENDED
from pointsman.planner.core.engine.switch_time import SwitchLeads
from pointsman.planner.core.tuning import SHIPPED
from pointsman.planner.core.types import Observation, RoutingNumbers, Worker, WorkerCondition

TICK_S = 2.5
P, D = Role.PREFILL, Role.DECODE
SWITCHING, ACTIVE = WorkerCondition.SWITCHING, WorkerCondition.ACTIVE


def look(leads: SwitchLeads, at_s: float, **workers: tuple[Role, WorkerCondition]) -> SwitchLeads:
    there = tuple(Worker(name, *said) for name, said in workers.items())
    return leads.observe(Observation(at_s, TICK_S, 0.0, there, RoutingNumbers(512, 32)))


def switched(leads: SwitchLeads, ticks: int, since_s: float, ends_as: Role = P) -> SwitchLeads:
    """One worker that was seen switching for so many looks."""
    leads = look(leads, since_s - TICK_S)
    for tick in range(ticks):
        leads = look(leads, since_s + TICK_S * tick, w=(P, SWITCHING))
    return look(leads, since_s + TICK_S * ticks, w=(ends_as, ACTIVE))


def test_it_is_believed_until_switches_were_seen_and_then_their_median() -> None:
    leads = SwitchLeads()
    assert leads.lead_s() == SHIPPED.first_switch_s
    for number in range(3):
        leads = switched(leads, 16, 100.0 * number)
    assert leads.took_s == (40.0, 40.0, 40.0)
    assert leads.lead_s() == 40.0


def test_one_long_drain_is_not_what_is_typical() -> None:
    leads = SwitchLeads()
    for number, ticks in enumerate((2, 40, 2)):
        leads = switched(leads, ticks, 200.0 * number)
    assert leads.lead_s() < SHIPPED.first_switch_s


def test_a_switch_that_was_undone_or_whose_worker_died_teaches_nothing() -> None:
    undone = switched(SwitchLeads(), 16, 0.0, ends_as=D)
    died = look(look(SwitchLeads(), 0.0, w=(P, SWITCHING)), TICK_S)
    assert undone.took_s == died.took_s == ()


def test_what_ended_while_nobody_looked_teaches_nothing() -> None:
    leads = look(SwitchLeads(), 0.0, w=(P, SWITCHING))
    leads = look(leads, 300.0, w=(P, ACTIVE))
    assert leads.took_s == ()
    assert leads.workers == (("w", P, None),)


def test_what_is_remembered_is_bounded() -> None:
    leads = SwitchLeads()
    for number in range(40):
        leads = switched(leads, 2, 20.0 * number)
    assert len(leads.took_s) == MOST_ENDED
    many = {f"w{n}": (P, ACTIVE) for n in range(600)} | {"x": (P, SWITCHING)}
    seen = look(replace(leads), 1000.0, **many).workers
    assert len(seen) == 512
    assert "x" in [name for name, _, _ in seen], "one that switches before any other"
