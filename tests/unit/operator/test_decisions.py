"""Single decisions of the core: victims, drains, roles, names."""

from dataclasses import replace
from itertools import islice
from typing import Any

import pytest

from pointsman.api.protocol.control import WorkerPhase
from pointsman.api.protocol.names import LANGUAGE_ROLES, METRICS_PORT_LABEL, ROUTABLE_LABEL, Role
from pointsman.operator.core import actions as act
from pointsman.operator.core.decide import MAX_ACTIONS, decide, workers_to_ask
from pointsman.operator.core.drain import choose_victims, drain_step
from pointsman.operator.core.naming import free_worker_names
from pointsman.operator.core.roles import prefill_partner, role_actions
from pointsman.operator.core.snapshot import (
    Container,
    GatewayDeployment,
    GatewayPod,
    Pool,
    Worker,
)
from unit.operator.scenes import leaving, snapshot, worker
from unit.operator.world import Render, service, spec, state

DRAINING = WorkerPhase.DRAINING


def test_victims_are_unready_first_then_outdated_then_the_idlest_then_the_newest() -> None:
    unready = worker("unready", pod_ready=False)
    outdated = worker("outdated", revision="old", state=state(role=Role.DECODE, in_flight_tokens=900))
    silent = worker("silent", state=None)
    busy = worker("busy", state=state(role=Role.DECODE, in_flight_tokens=500))
    older = worker("older", created_s=1.0)
    newer = worker("newer", created_s=2.0)
    order = choose_victims([silent, busy, older, newer, outdated, unready], 6, "r")
    assert [item.name for item in order] == ["unready", "outdated", "newer", "older", "busy", "silent"]


def test_of_idle_victims_those_with_the_least_kv_go_first_and_the_rest_stay_spread_over_nodes() -> None:
    def idle(name: str, node: str, blocks: int | None, created_s: float) -> Worker:
        found = state(role=Role.DECODE, cached_blocks=blocks)
        return worker(name, node=node, state=found, created_s=created_s)

    cold, warm, unknown = idle("cold", "n1", 3, 1.0), idle("warm", "n1", 900, 9.0), idle("unknown", "n1", None, 9.0)
    assert [item.name for item in choose_victims([unknown, warm, cold], 3, "r")] == ["cold", "warm", "unknown"]
    alone, first, second = idle("alone", "n1", 0, 9.0), idle("first", "n2", 0, 1.0), idle("second", "n2", 0, 2.0)
    assert [item.name for item in choose_victims([alone, first, second], 1, "r")] == ["second"]


@pytest.mark.parametrize("uses", [None, frozenset({"u-chat-r-0"})])
def test_a_decode_worker_is_not_asked_to_drain_while_a_gateway_may_send_to_it(uses: frozenset[str] | None) -> None:
    gateways = (GatewayPod(name="g", ready=True, uses=uses),)
    assert drain_step(leaving(), snapshot(leaving(), gateways=gateways)) is None


def test_a_prefill_worker_stops_pulling_at_once() -> None:
    gone = leaving(Role.PREFILL)
    gateways = (GatewayPod(name="g", ready=True, uses=None),)
    assert isinstance(drain_step(gone, snapshot(gone, gateways=gateways)), act.AskDrain)


def test_a_gateway_that_cannot_be_reached_is_passed_over() -> None:
    gateways = (GatewayPod(name="g", ready=True, unreachable=True),)
    assert isinstance(drain_step(leaving(), snapshot(leaving(), gateways=gateways)), act.AskDrain)


@pytest.mark.parametrize("work", [{"in_flight": 1}, {"leases": 1}, {"queued_prefills": 1}])
def test_a_draining_worker_with_work_stays_until_its_deadline(work: dict[str, Any]) -> None:
    busy = leaving(state=state(role=Role.DECODE, phase=DRAINING, **work))
    assert drain_step(busy, snapshot(busy, now_s=149.9)) is None
    action = drain_step(busy, snapshot(busy, now_s=150.0))
    assert isinstance(action, act.DeleteWorker)
    assert not action.lossless


def test_a_draining_worker_that_does_not_answer_is_not_taken_for_idle() -> None:
    assert drain_step(leaving(state=None), snapshot(leaving(state=None))) is None


@pytest.mark.parametrize(
    "fields",
    [
        {"state": state(role=Role.DECODE, phase=DRAINING)},
        {"state": state(role=Role.DECODE, phase=WorkerPhase.FAILED, in_flight=2)},
        {"container": Container(running=False, restarts=3)},
        {"phase": "Failed"},
        {"pod_ready": False, "verified_container": None, "state": None},
    ],
)
def test_a_leaving_worker_with_nothing_to_lose_goes(fields: dict[str, Any]) -> None:
    gone = leaving(**fields)
    action = drain_step(gone, snapshot(gone))
    assert isinstance(action, act.DeleteWorker)
    assert action.lossless
    assert action.uid == gone.uid


def test_a_role_is_proved_before_it_is_routable() -> None:
    def step(**fields: Any) -> list[str]:
        fresh = worker(**{"routable_label": False, "verified_container": None, **fields})
        return [action.label for action in role_actions(snapshot(fresh))]

    assert step(state=state(phase=WorkerPhase.STARTING)) == []
    assert step(state=state(phase=WorkerPhase.IDLE)) == ["GiveRole"]
    assert step(state=state(role=Role.PREFILL)) == ["GiveRole"]
    assert step(state=state(role=Role.DECODE)) == ["VerifyWorker"]
    assert step(state=state(role=Role.DECODE, verified=Role.PREFILL)) == ["VerifyWorker"]
    assert step(state=state(role=Role.DECODE, verified=Role.DECODE)) == ["SetRoutable"]
    assert step(state=state(role=Role.DECODE), busy="is being verified") == []


@pytest.mark.parametrize("port", [8090, None])
def test_the_port_where_a_worker_serves_metrics_is_written_as_it_reports_it(port: int | None) -> None:
    proved = state(role=Role.DECODE, verified=Role.DECODE, metrics_port=port)
    (action,) = role_actions(snapshot(worker(routable_label=False, verified_container=None, state=proved)))
    assert isinstance(action, act.PatchPod)
    assert action.adds_to_routing
    assert action.labels[METRICS_PORT_LABEL] == (None if port is None else str(port))


def test_a_prefill_worker_gets_the_token_budget_that_is_in_force_and_keeps_its_role() -> None:
    def step(worker: Worker, **fields: Any) -> list[act.WorkerAction]:
        return list(role_actions(replace(snapshot(worker), **fields)))

    serving = worker(
        "p", Role.PREFILL, state=state(role=Role.PREFILL, verified=Role.PREFILL, prefill_token_budget=8192)
    )
    assert step(serving) == []
    [lowered] = step(serving, prefill_token_budget=2048)
    assert isinstance(lowered, act.SetPrefillTokenBudget)
    assert (lowered.prefill_token_budget, lowered.why) == (
        2048,
        "it reported a prefill token budget of 8192 tokens",
    )
    earlier = state(role=Role.PREFILL, verified=Role.PREFILL, prefill_token_budget=None)
    unlimited = replace(serving, state=earlier)
    [limited] = step(unlimited)
    assert isinstance(limited, act.SetPrefillTokenBudget)
    assert limited.why == "it reported no prefill token budget"
    fresh = replace(serving, state=state(phase=WorkerPhase.IDLE), routable_label=False)
    [given] = step(fresh, prefill_token_budget=2048)
    assert isinstance(given, act.GiveRole)
    assert given.prefill_token_budget == 2048
    decode = worker("d", state=state(role=Role.DECODE, verified=Role.DECODE, prefill_token_budget=1))
    assert step(decode) == []


def test_only_prefill_workers_that_have_not_reported_the_budget_in_force_are_asked_for_it() -> None:
    prefill = worker("p", Role.PREFILL, confirmed_budget=8192)
    decode = worker("d")
    assert workers_to_ask(snapshot(prefill, decode)) == ()
    assert workers_to_ask(replace(snapshot(prefill, decode), prefill_token_budget=4096)) == (prefill,)
    restarted_operator = replace(prefill, confirmed_budget=None)
    assert workers_to_ask(snapshot(restarted_operator, decode)) == (restarted_operator,)


def test_a_restarted_container_is_unrouted_without_asking_anybody() -> None:
    restarted = worker(container=Container(id="another", running=True, restarts=1), state=None)
    (action,) = role_actions(snapshot(restarted))
    assert isinstance(action, act.PatchPod)
    assert action.labels == {ROUTABLE_LABEL: "false"}


def test_a_prefill_worker_waits_for_somebody_who_can_pull_its_kv() -> None:
    fresh = worker("p", Role.PREFILL, routable_label=False, verified_container=None, state=state(role=Role.PREFILL))
    assert list(role_actions(snapshot(fresh))) == []
    stranger = worker("d0", kv_compatibility="other")
    unready = worker("d1", pod_ready=False)
    assert prefill_partner(fresh, snapshot(fresh, stranger, unready)) is None
    beginner = worker("a", verified_container=None, routable_label=False, state=state(phase=WorkerPhase.IDLE))
    assert prefill_partner(fresh, snapshot(fresh, beginner)) == beginner
    proved = worker("z")
    assert prefill_partner(fresh, snapshot(fresh, beginner, proved)) == proved


def test_a_service_without_finalizer_gets_it_before_anything_else() -> None:
    decision = decide(snapshot(service=service(has_finalizer=False)), Render())
    assert [type(action) for action in decision.actions] == [act.AddFinalizer]


def test_a_pass_is_bounded_and_says_that_there_is_more() -> None:
    many = service(spec(decode=(500, 1, 500)))
    pools = {role: Pool(uid=role, resource_version="1", replicas=500, copied_replicas=None) for role in LANGUAGE_ROLES}
    decision = decide(snapshot(service=many, pools=pools), Render())
    assert len(decision.actions) == MAX_ACTIONS
    assert decision.truncated


def test_a_number_scaled_by_hand_stays_until_the_spec_itself_is_edited() -> None:
    scaled = {role: Pool(uid=role, resource_version="7", replicas=3, copied_replicas=1) for role in LANGUAGE_ROLES}
    assert not any(isinstance(action, act.WritePool) for action in decide(snapshot(pools=scaled), Render()).actions)
    edited = snapshot(pools=scaled, service=service(spec(decode=(2, 1, 4))))
    copies = [action for action in decide(edited, Render()).actions if isinstance(action, act.WritePool)]
    assert [(copy.role, copy.changes[0].replicas, copy.resource_version) for copy in copies] == [(Role.DECODE, 2, "7")]


def test_a_pod_that_failed_at_once_is_not_replaced_at_once() -> None:
    prefill = worker("p", Role.PREFILL)
    failed = worker("chat-r-0", phase="Failed", created_s=95.0)
    assert decide(snapshot(prefill, failed), Render()).actions == ()
    later = decide(snapshot(prefill, failed, now_s=140.0), Render()).actions
    assert [type(action) for action in later] == [act.DeleteWorker, act.CreateWorker]


def test_a_terminating_pod_is_replaced_under_another_name() -> None:
    prefill = worker("p", Role.PREFILL)
    (action,) = decide(snapshot(prefill, worker(terminating=True)), Render()).actions
    assert isinstance(action, act.CreateWorker)
    assert action.name == "chat-r-1"


def test_names_are_of_the_next_free_ordinal() -> None:
    taken = {"chat-r-0", "chat-r-2", "chat-q-1"}
    assert list(islice(free_worker_names("chat", "r", taken), 3)) == ["chat-r-1", "chat-r-3", "chat-r-4"]


def test_a_deleted_service_waits_for_its_gateway_before_its_workers_drain() -> None:
    ending = service(deleting_since_s=95.0)
    waiting = snapshot(worker(), service=ending, gateway_deployment=GatewayDeployment(replicas=1))
    assert [type(action) for action in decide(waiting, Render()).actions] == [act.StopGateway]
    stopped = replace(waiting, gateway_deployment=GatewayDeployment(replicas=0))
    assert decide(stopped, Render()).actions == (), "its last pod finishes its streams"
    gone = replace(stopped, gateways=())
    assert [type(action) for action in decide(gone, Render()).actions] == [act.PatchPod]
    late = replace(waiting, now_s=155.0)
    assert [type(action) for action in decide(late, Render()).actions] == [act.StopGateway, act.PatchPod]


def test_a_successor_waits_until_the_leaving_worker_counts_no_more() -> None:
    full = service(spec(decode=(1, 1, 1)))
    ended = leaving(container=Container(running=False))
    prefill = worker("p", Role.PREFILL)
    first = decide(snapshot(prefill, ended, service=full), Render()).actions
    assert [type(action) for action in first] == [act.DeleteWorker]
    second = decide(snapshot(prefill, replace(ended, terminating=True), service=full), Render()).actions
    assert [type(action) for action in second] == [act.CreateWorker]
