"""The live loop with an API server and pods that a test owns: what is written once, and what is counted once."""

import asyncio
import itertools
import json
import logging
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pointsman.api.protocol import metrics as named
from pointsman.api.protocol.names import Role
from pointsman.api.v1alpha1.llmservice import LLMService
from pointsman.api.v1alpha1.plan import Plan
from pointsman.api.v1alpha1.plannerpolicy import PlannerPolicy
from pointsman.gateway.metrics import GatewayMetrics
from pointsman.kube.errors import Invalid, Unreachable
from pointsman.planner import evaluation, loop, loops, memory, source
from pointsman.planner.core.decide import decide
from pointsman.planner.core.metrics.observe import Reading
from pointsman.planner.core.metrics.prometheus_vector import Vector
from pointsman.planner.core.state import STATE_VERSION, State
from pointsman.planner.core.tuning import SHIPPED
from pointsman.planner.core.types import (
    Decision,
    NextTick,
    Observation,
    Reason,
    RoutingNumbers,
    Worker,
    WorkerCondition,
)
from pointsman.planner.exposition import parse
from pointsman.planner.metrics import PlannerMetrics
from pointsman.planner.service_record import SAVE_CHANGED_S
from pointsman.serving.flow_control import FlowBounds
from pointsman.serving.objectives import Objectives
from unit.planner.hands import Hands
from unit.planner.loop_api import KEY, READING, TICK_S, Api, manifest
from unit.planner.own_metrics import shown
from unit.planner.plans import NOW
from unit.planner.plans import plan as finished_plan


@dataclass
class Scenario:
    """A planner whose decisions are written down beforehand. Time passes with every look."""

    policy: dict[str, Any] = field(default_factory=dict)
    uid: str = "new"
    decisions: Callable[[Observation], Decision] = lambda seen: steady(seen)
    gateways: int = 1
    leaving: set[str] = field(default_factory=set)  # gateways whose pods are there, and not ready any more
    api: Api = field(default_factory=Api)
    plans: list[Plan] = field(default_factory=list)
    seen: list[Observation] = field(default_factory=list)
    states: list[State] = field(default_factory=list)
    writes: list[int] = field(default_factory=list)  # before each look, Events counted
    hands: Hands = field(default_factory=Hands)
    layout: tuple[int, int] = (2, 3)
    encoders: int = 0  # above 0: the service has an encode pool
    without: Callable[[], dict[str, Any] | None] = lambda: None  # the service while there is no policy
    unreadable: str | None = None  # why the policy cannot be read while there is none
    metrics: PlannerMetrics = field(default_factory=PlannerMetrics)
    vector: Callable[[str, float], Vector] | None = None
    kept: list[tuple[set[str], str]] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)  # addresses of Prometheus
    reading: Reading = READING  # of each gateway
    something: asyncio.Event = field(default_factory=asyncio.Event)  # happened since ``until`` was asked

    def unplanned(self) -> list[tuple[tuple[str, str], LLMService]]:
        self.something.set()
        service = self.without()
        return [] if service is None else [(KEY, LLMService.model_validate(service))]

    def planned(self) -> list[tuple[tuple[str, str], LLMService, PlannerPolicy]]:
        if self.without() is not None:
            return []
        spec: dict[str, Any] = {"model": {"source": "hf://test/tiny"}, "policyRef": {"name": "chat"}}
        if self.encoders:
            spec |= {"encode": {"gpus": 4}, "pools": {"encode": {"replicas": self.encoders}}}
        policy = {
            "mode": "Active", "objectives": {"ttftMs": 1000, "tpotMs": 50}, "budget": {"maxGpus": 8}, **self.policy,
        }  # fmt: skip
        policy["metrics"] = {**policy.get("metrics", {}), "intervalSeconds": 0.001}
        service = LLMService.model_validate(manifest("LLMService", self.uid, spec))
        return [(KEY, service, PlannerPolicy.model_validate(manifest("PlannerPolicy", "p", policy)))]

    def workers(self, *_: Any) -> list[tuple[None, Worker]]:
        self.hands.go(TICK_S)
        self.something.set()
        roles = [Role.PREFILL] * self.layout[0] + [Role.DECODE] * self.layout[1]
        return [(None, Worker(f"w{n}", role, WorkerCondition.ACTIVE)) for n, role in enumerate(roles)]

    def encode_workers(self, *_: Any) -> list[tuple[None, Worker]]:
        return [(None, Worker(f"e{n}", Role.ENCODE, WorkerCondition.ACTIVE)) for n in range(self.encoders)]

    def targets(self, _: Any, seen: set[str]) -> list[Any]:
        names = {f"g{n}" for n in range(self.gateways)}
        pods = {
            name: SimpleNamespace(metadata=SimpleNamespace(name=name)) for name in sorted(names | self.leaving & seen)
        }
        return [SimpleNamespace(key=name, url="", pod=pods[name], is_ready=name in names) for name in pods]

    def decide(self, state: State, seen: Observation, *_: Any) -> tuple[State, Decision, NextTick]:
        self.seen.append(seen)
        self.writes.append(self.api.writes)
        self.states.append(state)
        return state, self.decisions(seen), NextTick(0.001)

    def per_look(self) -> list[list[str]]:
        """What each look wrote."""
        return [self.api.written[before:after] for before, after in itertools.pairwise(self.writes)]

    async def run(self, monkeypatch: pytest.MonkeyPatch, until: Callable[[], bool]) -> None:
        """Plan until something holds."""

        async def nothing(*_: Any) -> None:
            return None

        def keep(keys: set[str], prefix: str) -> None:
            self.kept.append((keys, prefix))
            self.something.set()

        scraper = SimpleNamespace(
            scrape=nothing, keep=keep, reading=lambda _: self.reading,
            failed=lambda _: False, age_s=lambda _: 0.0,
        )  # fmt: skip
        cluster = SimpleNamespace(
            planned=self.planned, unplanned=self.unplanned, workers=self.workers, gateways=self.targets,
            encode_workers=self.encode_workers, is_switching=lambda _: False, start_s=lambda *_: 77.0,
            plans=SimpleNamespace(by=lambda _: self.plans),
            policies=SimpleNamespace(why_unreadable=lambda *_: self.unreadable),
        )  # fmt: skip
        monkeypatch.setattr(evaluation, "decide", self.decide)
        monkeypatch.setattr(source, "Prometheus", self.server)
        parts: dict[str, Any] = {"kube": self.api, "cluster": cluster, "scraper": scraper}

        def record(*_: Any) -> None:
            self.api.written.append("Event")

        events: Any = SimpleNamespace(record=record)
        metrics, clock = self.metrics, self.hands
        planner = loop.Planner(**parts, events=events, metrics=metrics, leads=lambda: True, clock=clock)
        task = asyncio.create_task(planner.run())
        try:
            async with asyncio.timeout(30):
                while not until():
                    self.something.clear()
                    await self.something.wait()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def server(self, url: str, _: float, __: object, access: object) -> Any:
        async def samples(query: str, at_s: float) -> Vector:
            assert self.vector is not None
            return self.vector(query, at_s)

        return SimpleNamespace(url=url, access=access, samples=samples, close=lambda: self.closed.append(url))


def steady(seen: Observation) -> Decision:
    now = seen.committed(Role.PREFILL), seen.committed(Role.DECODE)
    return Decision(Reason.STEADY, "x", *now, seen.routing)


def more(seen: Observation) -> Decision:
    return replace(steady(seen), reason=Reason.DECODE_SHORT, prefill=2, decode=4, changes_layout=True)


async def test_a_plan_that_the_api_server_does_not_show_yet_is_written_once_and_is_in_progress(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scenario = Scenario(decisions=more)
    await scenario.run(monkeypatch, lambda: len(scenario.seen) > 15)
    assert len(scenario.api.created) == 1
    assert [seen.plan_in_progress for seen in scenario.seen[:15]] == [False, *[True] * 14]
    await scenario.run(monkeypatch, lambda: len(scenario.seen) > 60)  # a planner that begins anew; and a minute is over
    numbers = [plan["spec"]["sequence"] for plan in scenario.api.created]
    assert numbers == sorted(set(numbers))
    assert len(numbers) > 2


def more_encode(seen: Observation) -> Decision:
    return replace(steady(seen), reason=Reason.ENCODE_SHORT, encode=3, changes_encode=True)


async def test_encode_workers_that_are_wanted_become_one_plan_which_holds_up_no_other_pool(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scenario = Scenario(decisions=more_encode, encoders=1)
    await scenario.run(monkeypatch, lambda: len(scenario.seen) > 15)
    (plan,) = scenario.api.created
    assert plan["spec"]["pools"] == {"prefill": {"replicas": 2}, "decode": {"replicas": 3}, "encode": {"replicas": 3}}
    assert plan["spec"]["changesLayout"] is True
    assert [len(seen.encode_workers) for seen in scenario.seen[:3]] == [1, 1, 1]
    assert {seen.encode_gpus for seen in scenario.seen} == {4}, "also while no encode worker is there"
    assert not any(seen.plan_in_progress for seen in scenario.seen), "its workers take minutes to start"
    assert all(seen.awaiting_approval is None for seen in scenario.seen)


async def test_a_plan_for_all_pools_is_in_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = Scenario(decisions=lambda seen: replace(more(seen), encode=2, changes_encode=True), encoders=1)
    await scenario.run(monkeypatch, lambda: len(scenario.seen) > 15)
    (plan,) = scenario.api.created
    assert plan["spec"]["pools"] == {"prefill": {"replicas": 2}, "decode": {"replicas": 4}, "encode": {"replicas": 2}}
    assert [seen.plan_in_progress for seen in scenario.seen[:15]] == [False, *[True] * 14]


@pytest.mark.parametrize("mode", ["External", "Shadow"])
async def test_where_plans_own_nothing_encode_workers_are_at_most_recorded(
    monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    scenario = Scenario(decisions=more_encode, encoders=1, policy={"mode": mode})
    await scenario.run(monkeypatch, lambda: len(scenario.seen) > 15)
    assert len(scenario.api.created) == (1 if mode == "Shadow" else 0)


async def test_a_plan_of_a_service_that_had_the_name_before_is_neither_tried_nor_awaited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = Scenario(decisions=more, uid="old")
    await before.run(monkeypatch, lambda: bool(before.api.created))
    scenario = Scenario(decisions=more, plans=[Plan.model_validate(before.api.created[0])])
    await scenario.run(monkeypatch, lambda: len(scenario.seen) > 5)
    assert [plan["metadata"]["name"] for plan in scenario.api.created] == ["chat-00002"]


async def test_what_a_service_of_the_same_name_taught_is_forgotten_but_for_the_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taught = State(requests=1234.0)
    for uid, requests in (("new", 1234.0), ("old", 0.0)):
        scenario = Scenario(decisions=more)
        await memory.save(scenario.api, {"uid": uid}, *KEY, taught, 41)  # type: ignore[arg-type]
        await scenario.run(monkeypatch, partial(bool, scenario.api.created))
        assert scenario.states[0].requests == requests
        assert scenario.api.created[0]["spec"]["sequence"] == 42


@dataclass
class RealDecisions(Scenario):
    """With the planner's own decisions."""

    made: list[Decision] = field(default_factory=list)

    def decide(self, state: State, seen: Observation, *others: Any) -> tuple[State, Decision, NextTick]:
        super().decide(state, seen)
        state, decision, _ = decide(state, seen, *others)
        self.made.append(decision)
        return state, decision, NextTick(0.001)


def busy_gateway(rate_per_s: float, prompt: int, output: int) -> Reading:
    """Two pages of a gateway, by its own code, with so many requests in between that met their objectives."""
    metrics = GatewayMetrics("chat")
    metrics.set_objectives(Objectives(1.0, 0.05))
    before = parse(metrics.expose().decode())
    for _ in range(round(rate_per_s * TICK_S)):
        metrics.accepted.inc()
        metrics.prompt_tokens.observe(prompt)
        metrics.finished(prompt, output)
        metrics.ended(metrics.got_first_token(0.4, prompt), metrics.tpot_verdict(0.02))
    return Reading(before, parse(metrics.expose().decode()), TICK_S)


def of_early_version() -> dict[str, Any]:
    """A whole ConfigMap as the planner wrote it then."""
    saved: dict[str, Any] = json.loads((Path(__file__).parents[2] / "data" / "planner_state_055ea15.json").read_text())
    return saved


def of_version_before() -> dict[str, Any]:
    """As far as it can be read by this version."""
    saved = of_early_version()
    before = replace(State(), version=STATE_VERSION - 1, requests=1234.0)
    return {**saved, "data": {**saved["data"], "state.json": memory.to_json(before)}}


@pytest.mark.parametrize(
    ("saved", "line"),
    [
        (of_early_version(), "saved state not readable, it is discarded"),
        (of_version_before(), "saved state of another version, it is discarded"),
    ],
    ids=["early version", "version before"],
)
async def test_a_planner_that_finds_the_state_of_an_earlier_version_says_so_once_and_plans_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, saved: dict[str, Any], line: str
) -> None:
    """Services run during an upgrade: nothing freezes, and no number of a plan is used twice."""
    assert saved["data"]["sequence"] == "17"
    assert json.loads(saved["data"]["state.json"])["version"] < STATE_VERSION
    scenario = RealDecisions(
        {"performance": {"table": {"model": "meta-llama/Meta-Llama-3.1-8B", "gpu": "h100_sxm"}}}, uid="uid-1",
        api=Api(config_maps={"chat-planner-state": saved}), layout=(2, 1), reading=busy_gateway(40, 4000, 60),
    )  # fmt: skip
    scenario.hands.wall = datetime.fromtimestamp(json.loads(saved["data"]["last.json"])["observation"]["at_s"], UTC)
    with caplog.at_level("INFO"):
        await scenario.run(monkeypatch, lambda: len(scenario.made) > 12)
    lines = [record.getMessage() for record in caplog.records if record.name == memory.__name__]
    assert lines == [line]
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert [state.requests for state in scenario.states[:2]] == [0.0, 100.0], "it begins anew"
    frozen = {Reason.STALE_METRICS, Reason.NOT_ENOUGH_DATA}
    assert not frozen & {decision.reason for decision in scenario.made[2:]}
    assert {reason for reason, _ in conditions(scenario)} == {"Planning"}
    assert [plan["metadata"]["name"] for plan in scenario.api.created] == ["chat-00018"]
    config_map = scenario.api.config_maps["chat-planner-state"]
    assert json.loads(config_map["data"]["state.json"])["version"] == STATE_VERSION, "it is written over"
    assert int(config_map["data"]["sequence"]) > 17


async def test_what_a_config_map_cannot_hold_is_left_out_and_the_state_is_kept() -> None:
    known = Observation(0.0, TICK_S, 0.0, (), RoutingNumbers(0, 0))
    for letters, keys in ((1000, {"last.json"}), (1_000_000, {"last.leftOut"})):
        api = Api()
        last = memory.Last(known, replace(steady(known), message="x" * letters))
        await memory.save(api, {"uid": "new"}, *KEY, State(), 1, last)  # type: ignore[arg-type]
        assert set(api.config_maps["chat-planner-state"]["data"]) == {"state.json", "sequence", *keys}


async def test_why_there_is_no_last_look_to_tell_of_is_known() -> None:
    async def found(api: Api, uid: str = "new") -> str:
        last = await memory.load_last(api, *KEY, uid)  # type: ignore[arg-type]
        return last.why if isinstance(last, memory.NoLast) else "found"

    seen = Observation(0.0, TICK_S, 0.0, (), RoutingNumbers(0, 0))
    last = memory.Last(seen, steady(seen))
    large = replace(last, decision=replace(last.decision, message="x" * 1_000_000))
    api = Api()
    assert await found(api) == "The planner has not evaluated chat yet."
    await memory.save(api, {"uid": "new"}, *KEY, State(), 1, large)  # type: ignore[arg-type]
    assert re.search(r"too large for the ConfigMap of the planner's state \(100\d{4} bytes\)", await found(api))
    await memory.save(api, {"uid": "new"}, *KEY, State(), 1, last)  # type: ignore[arg-type]
    assert await found(api) == "found"
    assert await found(api, "another") == "The planner has not evaluated chat yet."
    data = api.config_maps["chat-planner-state"]["data"]
    data["last.json"] = '{"observation": {}}'
    assert "planner and 'pointsman explain' have different versions" in await found(api)
    del data["last.json"]
    assert "planner and 'pointsman explain' have different versions" in await found(api)


async def test_reasons_that_come_in_turn_are_saved_hardly_more_often_than_one_that_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reasons = (Reason.STEADY, Reason.SWITCH_DEFERRED)
    scenario = Scenario(decisions=lambda seen: replace(steady(seen), reason=reasons[len(scenario.seen) % 2]))
    looks = int(480 / TICK_S)
    await scenario.run(monkeypatch, lambda: len(scenario.seen) > looks)
    assert scenario.api.saves <= 480 / memory.SAVE_EVERY_S + 4


async def test_a_plan_is_saved_at_the_next_look_and_a_new_reason_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def decided(seen: Observation) -> Decision:
        look = len(scenario.seen)
        saves.append(scenario.api.saves)  # before this look
        if look == looks + 2:
            return more(seen)
        return replace(steady(seen), reason=Reason.STEADY if look < calm else Reason.SWITCH_DEFERRED)

    saves: list[int] = []
    scenario = Scenario(decisions=decided)
    looks, calm = 60, 40
    await scenario.run(monkeypatch, lambda: len(scenario.seen) > looks + 5)
    soon = round(SAVE_CHANGED_S / TICK_S)
    assert saves[calm - 1 + soon + 1] > saves[calm - 1], "it was calm before"
    assert saves[looks + 2] == saves[looks + 1], "not before the plan: its number was reserved by an earlier save"
    assert saves[looks + 3] == saves[looks + 2] + 1
    assert scenario.api.created


def bounds(number: int, tokens: int = 512) -> RoutingNumbers:
    return RoutingNumbers(tokens, 32, FlowBounds(number, 12, 800))


def routed(seen: Observation, numbers: RoutingNumbers, why: Reason = Reason.FLOW_CONTROL) -> Decision:
    return replace(steady(seen), routing=numbers, routing_reason=why, reason=why)


@pytest.mark.parametrize("mode", ["Active", "Approve", "External"])
async def test_routing_numbers_are_published_and_become_no_plan_and_no_event(
    monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    def decided(seen: Observation) -> Decision:
        return routed(seen, bounds(1000)) if seen.routing != bounds(1000) else steady(seen)

    scenario = Scenario(decisions=decided, policy={"mode": mode})
    await scenario.run(monkeypatch, lambda: len(scenario.seen) > 20)
    (published,) = scenario.api.published
    assert published == {
        "maxLocalPrefillTokens": 512, "maxPrefillQueueSize": 32, "prefillTokenBudget": 8192,
        "pendingTokensPerPrefillWorker": 1000, "decodingPerDecodeWorker": 12, "slackMilliseconds": 800,
        "setBy": "planner", "reason": "FlowControl", "updatedAt": published["updatedAt"],
    }  # fmt: skip
    assert not scenario.api.created
    assert [seen.routing for seen in scenario.seen[1:]] == [bounds(1000)] * 20, "though the mirror does not show it yet"
    found = await memory.load_publications(scenario.api, *KEY, "new")  # type: ignore[arg-type]
    assert [(each.reason, each.after) for each in found] == [(Reason.FLOW_CONTROL, bounds(1000))]
    updates = shown(scenario.metrics, "routing_updates_total")
    assert updates == {("FlowControl",): 1.0, ("Threshold",): 0.0}


async def test_shadow_never_publishes_routing_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = Scenario(decisions=lambda seen: routed(seen, bounds(1000)), policy={"mode": "Shadow"})
    await scenario.run(monkeypatch, lambda: len(scenario.seen) > 60)
    assert not scenario.api.published
    assert not scenario.api.created


@pytest.mark.parametrize("undeclared", [(), ("reason", "updatedAt")])
async def test_bounds_that_move_with_each_look_are_published_once_an_interval(
    monkeypatch: pytest.MonkeyPatch, undeclared: tuple[str, ...]
) -> None:
    """Also beside CRDs of an earlier version, which have no time of the publication."""
    api = Api(undeclared=frozenset(undeclared))
    scenario = Scenario(api=api, decisions=lambda seen: routed(seen, bounds(1000 + 200 * (len(scenario.seen) % 2))))
    await scenario.run(monkeypatch, lambda: len(scenario.seen) > 120)
    assert 1 < len(scenario.api.published) <= 121 * TICK_S / SHIPPED.publish_interval_s + 1


async def test_an_edit_of_the_objectives_is_published_within_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    def decided(seen: Observation) -> Decision:
        look = len(scenario.seen)
        if look == edit:
            scenario.policy["objectives"] = {"ttftMs": 2000, "tpotMs": 50}  # for the next look
        published.append(len(scenario.api.published))  # before this look
        return routed(seen, bounds(1000 + 200 * (look % 2)))

    scenario, edit = Scenario(decisions=decided), 10
    published: list[int] = []
    await scenario.run(monkeypatch, lambda: len(scenario.seen) > 2 * edit)
    looks = [look for look, (now, then) in enumerate(itertools.pairwise(published), 1) if then > now]
    interval = round(SHIPPED.publish_interval_s / TICK_S)
    assert edit + 1 in looks, "the first look with the new objectives"
    others = [later - look for look, later in itertools.pairwise(looks) if later != edit + 1]
    assert min(others) >= interval, looks
    assert edit + 1 - max(look for look in looks if look <= edit) < interval, "else it would have been due anyway"


async def test_a_look_with_new_numbers_and_a_new_layout_makes_three_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    def decided(seen: Observation) -> Decision:
        number = len(scenario.seen)
        if number < 20:
            return steady(seen)
        takes_ms = 1e6 if number // 4 % 2 else 1.0  # objectives are out of reach, and not, with every other plan
        inputs = (("promptTokens", 100.0), ("prefillAloneMilliseconds", takes_ms))
        made = replace(routed(seen, bounds(100 * number)), prefill=2, decode=4 + number // 4 % 3, inputs=inputs)
        return replace(made, changes_layout=True)

    scenario = Scenario(decisions=decided)
    await scenario.run(monkeypatch, lambda: len(scenario.seen) > 80)
    assert max(map(len, scenario.per_look())) == 3, "status.routing, the plan, its Event"
    assert scenario.per_look()[0] == ["save", "condition"]
    assert len(scenario.api.created) > 5
    assert len(scenario.api.published) > 5
    assert len(scenario.api.applied) > 5, "the condition is written at the looks after"


async def test_old_plans_are_deleted_three_at_a_time_and_only_at_looks_that_write_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def decided(seen: Observation) -> Decision:
        number = len(scenario.seen)
        takes_ms = 1e6 if number // 5 % 2 else 1.0  # objectives are out of reach, and not: the condition changes
        inputs = (("promptTokens", 100.0), ("prefillAloneMilliseconds", takes_ms))
        if number % 9 == 0:
            return replace(more(seen), decode=3 + number // 9, inputs=inputs)
        return replace(routed(seen, bounds(100 * number)), inputs=inputs)

    ended = [finished_plan(sequence=number, phase="Completed") for number in range(1, 80)]
    scenario = Scenario(decisions=decided, plans=ended, uid="u")
    scenario.api.plans = scenario.plans
    await scenario.run(monkeypatch, lambda: len(scenario.seen) > 100)
    looks = scenario.per_look()
    deletions = [look for look in looks if "deletion" in look]
    assert max(map(len, looks)) == 3
    assert all(set(look) == {"deletion"} for look in deletions), "with nothing else"
    assert [len(look) for look in deletions] == [3] * 9 + [2], "29 of 79 ended plans are beyond the history"
    assert [plan.spec.sequence for plan in scenario.plans] == list(range(30, 80)), "the newest"
    others = {kind for look in looks[: looks.index(deletions[-1])] for kind in look}
    assert others == {"save", "condition", "publication", "plan", "Event", "deletion"}, "all came in the same time"


async def test_routing_numbers_wait_for_a_look_while_a_plan_needs_a_save(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first look after a start knows no number that was reserved for it."""

    def decided(seen: Observation) -> Decision:
        if seen.routing == bounds(1000):
            return steady(seen)
        return replace(more(seen), routing=bounds(1000), routing_reason=Reason.FLOW_CONTROL)

    scenario = Scenario(decisions=decided)
    await scenario.run(monkeypatch, lambda: len(scenario.seen) > 5)
    assert scenario.per_look()[:3] == [["save", "plan", "Event"], ["publication", "save", "condition"], []]


async def test_a_number_that_another_manager_keeps_in_place_is_taken_away_at_the_next_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not by a second write at the same look, which may write a plan as well."""

    def decided(seen: Observation) -> Decision:
        look = len(scenario.seen)
        if look == publishes:
            return replace(more(seen), routing=RoutingNumbers(640, 32), routing_reason=Reason.THRESHOLD)
        return routed(seen, RoutingNumbers(576, 32), Reason.THRESHOLD) if look > publishes else steady(seen)

    publishes = 4
    scenario = Scenario(decisions=decided, api=Api(kept_routing={"decodingPerDecodeWorker": 12}))
    await scenario.run(monkeypatch, lambda: len(scenario.seen) > publishes + 3)
    looks = scenario.per_look()
    assert looks[publishes - 1 : publishes + 2] == [
        ["publication", "plan", "Event"], ["patch", "save"], ["publication"],
    ]  # fmt: skip
    assert scenario.api.kept_routing == {}
    assert [seen.routing for seen in scenario.seen[publishes:]] == [
        RoutingNumbers(tokens, 32) for tokens in (640, 640, 576, 576)
    ]  # fmt: skip


async def test_routing_numbers_are_published_although_the_memory_cannot_be_saved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decisions = [0]

    def decided(seen: Observation) -> Decision:
        decisions[0] += 1
        return replace(more(seen), routing=bounds(1000), routing_reason=Reason.FLOW_CONTROL)

    scenario = Scenario(decisions=decided, api=Api(refuses_saves=True))
    await scenario.run(monkeypatch, lambda: bool(scenario.api.published))
    assert decisions == [1]
    assert not scenario.api.created


EVERY_S, RATE_PER_S = 15.0, 4.0
PROMETHEUS = {"prometheusUrl": "http://p:9090", "staleAfterSeconds": 40}


def scraped(gateways: int, lost: Callable[[], str] = str, every_s: float = EVERY_S) -> Callable[[str, float], Vector]:
    """Prometheus that scrapes gateways one after the other, and fails to read the one that is ``lost``."""

    def vector(query: str, at_s: float) -> Vector:
        found: list[dict[str, Any]] = []
        for number in range(gateways):
            offset_s = every_s * number / gateways
            last_s = offset_s + (at_s - offset_s) // every_s * every_s
            target = {"pod": f"g{number}", "job": "pods", "instance": f"g{number}:8000"}
            if target["pod"] == lost():
                continue
            if "label_replace" in query:
                count = {"__name__": named.GATEWAY_ARRIVALS.name, **target}
                found.append({"metric": count, "value": [at_s, str(RATE_PER_S * (last_s - 1e9))]})
                target |= {"pointsman": "scraped"}
            found.append({"metric": target, "value": [at_s, str(last_s)]})
        return found

    return vector


@pytest.mark.parametrize("gateways", [1, 2, 5])
async def test_requests_are_counted_once_however_many_gateways_prometheus_reads_one_after_the_other(
    gateways: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = Scenario({"metrics": PROMETHEUS}, gateways=gateways, vector=scraped(gateways))
    began_s = scenario.hands.now().timestamp()
    await scenario.run(monkeypatch, lambda: len(scenario.seen) > 20)
    lasted_s = scenario.hands.now().timestamp() - began_s
    counted = sum(seen.load.arrivals_per_s * seen.window_s for seen in scenario.seen if seen.load is not None)
    assert counted == pytest.approx(RATE_PER_S * gateways * lasted_s, rel=0.1)


async def test_of_a_gateway_that_prometheus_cannot_read_old_pages_stand_in_until_they_are_stale(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lost() -> str:
        return "g1" if len(scenario.seen) > 6 else ""

    scenario = Scenario({"metrics": PROMETHEUS}, gateways=3, vector=scraped(3, lost))
    await scenario.run(monkeypatch, lambda: sum(bool(seen.unreadable_gateways) for seen in scenario.seen) > 2)
    old = [seen for seen in scenario.seen if seen.old_pages]
    assert [seen.load is not None and seen.load.arrivals_per_s for seen in old] == [3 * RATE_PER_S] * len(old)
    assert 2 <= len(old) <= 4, "one for each round of scrapes"
    later = [seen for seen in scenario.seen if seen.unreadable_gateways]
    assert {seen.unreadable_gateways for seen in later} == {("g1",)}
    assert [seen.load is not None and seen.load.arrivals_per_s for seen in later] == [2 * RATE_PER_S] * len(later)
    assert all(seen.age_s <= 40 and seen.unread == 1 for seen in later), "the others are planned for"
    assert min(b.at_s - a.at_s for a, b in itertools.pairwise(later)) >= 10, "each of their pages is decided on once"
    windows = [(b.at_s - a.at_s, b.window_s) for a, b in itertools.pairwise(scenario.seen) if b.old_pages]
    assert all(window_s <= since_s for since_s, window_s in windows), windows


def conditions(scenario: Scenario) -> list[tuple[str, str]]:
    """That were written: (reason, message)."""
    every = [body["status"]["conditions"][0] for body in scenario.api.applied if body["status"]["conditions"]]
    return [(each["reason"], each["message"]) for each in every]


@pytest.mark.parametrize("before", [1, 3])
async def test_a_gateway_that_is_added_freezes_nothing_until_prometheus_has_read_it_twice(
    before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the HorizontalPodAutoscaler adds one; its requests are counted from its first page on."""
    added_s: list[float] = []

    def over() -> bool:
        if len(scenario.seen) > 20 and not added_s:
            scenario.gateways = before + 1
            added_s.append(scenario.hands.passed_s)
        return len(scenario.seen) > 30

    def not_found_yet() -> str:
        return "" if added_s and scenario.hands.passed_s > added_s[0] + EVERY_S else f"g{before}"

    scenario = Scenario({"metrics": PROMETHEUS}, gateways=before, vector=scraped(before + 1, not_found_yet))
    await scenario.run(monkeypatch, over)
    known = scenario.seen[next(n for n, seen in enumerate(scenario.seen) if seen.age_s <= 40) :]
    assert all(seen.load is not None and seen.age_s <= 40 and not seen.unreadable_gateways for seen in known)
    new = [seen for seen in known if seen.new_gateways]
    assert 1 <= len(new) <= 4, "two pages of it, at which the others' loads are decided on once"
    assert [(seen.load.arrivals_per_s, seen.gateways, seen.unread) for seen in new if seen.load is not None] == [
        (before * RATE_PER_S, before + 1, 1)
    ] * len(new)
    after = known[known.index(new[-1]) + 1 :]
    assert len(after) > 3 and all(seen.load.arrivals_per_s == (before + 1) * RATE_PER_S for seen in after if seen.load)
    since_s = [later.at_s - earlier.at_s for earlier, later in itertools.pairwise(known)]
    assert min(since_s) >= 10, "each page is decided on once"
    assert [reason for reason, _ in conditions(scenario)][-1] == "Planning"
    assert len(conditions(scenario)) <= 2, "it flips only at the start"


async def test_a_gateway_that_can_never_be_read_is_named_and_the_others_are_planned_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As behind a NetworkPolicy, from the beginning on."""
    scenario = Scenario({"metrics": PROMETHEUS}, gateways=3, vector=scraped(3, lambda: "g1"))
    await scenario.run(monkeypatch, lambda: len(scenario.seen) > 40 and scenario.seen[-1].age_s <= 40)
    began_s = scenario.seen[0].at_s
    known = [seen for seen in scenario.seen if seen.at_s - began_s > 45]
    assert known and all(seen.unreadable_gateways == ("g1",) and seen.age_s <= 40 for seen in known)
    assert all(seen.load is not None and seen.load.arrivals_per_s == 2 * RATE_PER_S for seen in known)
    assert all(seen.unread == 1 and seen.gateways == 3 and seen.gateways_age_s == math.inf for seen in known)
    assert [seen for seen in scenario.seen if seen.at_s - began_s <= 40 and seen.age_s <= 40] == [], (
        "at first a part of the load would look like all of it"
    )
    (_, _), (reason, message) = conditions(scenario)
    assert reason == "GatewayUnreadable"
    assert message.startswith("The metrics of g1 cannot be read, so a part of the load is not known.")
    last = await memory.load_last(scenario.api, *KEY, "new")  # type: ignore[arg-type]
    assert isinstance(last, memory.Last) and message in last.decision.message


async def test_requests_of_a_gateway_that_is_gone_are_unknown_for_a_look_and_not_zero(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its clients may have been accepted after its last page was read."""
    scenario = Scenario(gateways=2)

    def over() -> bool:
        if len(scenario.seen) > 5:
            scenario.gateways = 1
        return len(scenario.seen) > 10

    await scenario.run(monkeypatch, over)
    looks = [(seen.new_gateways, seen.gateways) for seen in scenario.seen]
    assert [key for key, _ in itertools.groupby(looks)] == [(0, 2), (1, 1), (0, 1)]
    assert looks.count((1, 1)) == 1


async def test_a_gateway_that_is_not_ready_any_more_is_read_for_as_long_as_it_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It serves on while other nodes still send it requests. At the end it cannot be read, as a pod of a lost node."""
    began_s = 0.0

    def lost() -> str:
        return "g1" if scenario.leaving and scenario.hands.passed_s > began_s + 60 else ""

    def over() -> bool:
        nonlocal began_s
        if len(scenario.seen) > 6 and not scenario.leaving:
            scenario.gateways, scenario.leaving, began_s = 1, {"g1"}, scenario.hands.passed_s
        return scenario.hands.passed_s > began_s + 200 and bool(scenario.leaving)

    scenario = Scenario({"metrics": PROMETHEUS}, gateways=2, vector=scraped(2, lost))
    await scenario.run(monkeypatch, over)
    known = [seen for seen in scenario.seen if seen.load is not None and seen.age_s <= 40]
    assert all(not seen.unreadable_gateways for seen in known), "nobody sends it requests any more"
    rates = [(seen.load.arrivals_per_s / RATE_PER_S, seen.unread_gateways) for seen in known if seen.load is not None]
    first = rates.index((1.0, 1))
    assert set(rates[:first]) == {(2.0, 0)} and len(rates[:first]) > 8
    shares = [seen.gateways for seen in known]
    assert [key for key, _ in itertools.groupby(shares)] == [2, 1], "it takes no share of what may be under way"
    assert shares.count(1) > len(rates[first:]), "already while it is read"
    assert set(rates[first + 1 :]) == {(1.0, 0)}


async def test_without_any_gateway_that_can_be_read_nothing_is_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = Scenario({"metrics": PROMETHEUS}, vector=scraped(1, lambda: "g0"))
    await scenario.run(monkeypatch, lambda: len(scenario.seen) > 40)
    assert all(seen.load is None and seen.age_s == math.inf for seen in scenario.seen)


@pytest.mark.parametrize("every_s", [15.0, 30.0, 60.0, 120.0])
async def test_metrics_are_not_too_old_between_two_scrapes_where_the_policy_says_nothing(
    every_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor where a stored policy has the default of 20 s, which no Prometheus with its usual interval keeps."""

    def lost() -> str:
        return "g1" if since_s and scenario.hands.passed_s - since_s[0] < 1.75 * every_s else ""  # one scrape

    def over() -> bool:
        known = [seen for seen in scenario.seen if seen.load is not None]  # all were read twice
        if len(known) > 8 and not since_s:
            since_s.append(scenario.hands.passed_s)  # one scrape fails
        return len(known) > 20

    since_s: list[float] = []
    metrics = {"prometheusUrl": "http://p:9090", "staleAfterSeconds": 20}
    scenario = Scenario({"metrics": metrics}, gateways=2, vector=scraped(2, lost, every_s), decisions=as_decided)
    await scenario.run(monkeypatch, over)
    first = next(n for n, seen in enumerate(scenario.seen) if seen.load is not None and seen.age_s < math.inf)
    known = scenario.seen[first:]
    assert len(known) > 10 and all(seen.age_s <= max(20, 2.5 * every_s) for seen in known)
    assert any(seen.old_pages for seen in known)
    assert not any(seen.unread_gateways for seen in known), "the page before the lost one stands for it"
    assert min(b.at_s - a.at_s for a, b in itertools.pairwise(known)) >= every_s / 3, "no page is decided on twice"
    assert [reason for reason, _ in conditions(scenario)][-1] == "Planning"
    assert len(conditions(scenario)) <= 2, "it flips only at the start"


def as_decided(seen: Observation) -> Decision:
    """Frozen as ``decide`` does it."""
    unknown = seen.load is None or seen.age_s == math.inf
    return replace(steady(seen), reason=Reason.STALE_METRICS) if unknown else steady(seen)


async def test_a_limit_that_a_scrape_cannot_keep_is_said_once_with_what_would_be_right(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A value that a person chose holds, and the condition does not go to and fro with each scrape."""
    metrics = {"prometheusUrl": "http://p:9090", "staleAfterSeconds": 25}
    caplog.set_level(logging.INFO)

    def decided(seen: Observation) -> Decision:
        old = seen.load is None or seen.age_s > 25
        return (
            replace(steady(seen), reason=Reason.STALE_METRICS, message="the metrics are old") if old else steady(seen)
        )

    scenario = Scenario({"metrics": metrics}, vector=scraped(1, every_s=30.0), decisions=decided)
    await scenario.run(monkeypatch, lambda: len(scenario.seen) > 60)
    assert {seen.age_s > 25 for seen in scenario.seen[-20:]} == {True, False}, "it holds"
    *_, last = said = conditions(scenario)
    assert len(said) <= 3
    assert last == (
        "StaleMetrics",
        "metrics.staleAfterSeconds is 25, but Prometheus scrapes gateways every 30 s; set more than 60, or remove the "
        "field",
    )
    told = "The policy's metrics.staleAfterSeconds (25) must exceed two Prometheus scrape intervals."
    assert f"The metrics are old. {told}" in {getattr(record, "detail", "") for record in caplog.records}


async def test_a_client_of_prometheus_is_closed_when_the_policy_names_another_one_or_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P-D12: none was ever closed."""
    sources: list[dict[str, Any]] = [
        *({"prometheusUrl": f"http://{name}", "staleAfterSeconds": 40} for name in "ab"),
        {},
        {"prometheusUrl": "http://c", "staleAfterSeconds": 40},
    ]
    scenario = Scenario({"metrics": sources[0]}, vector=scraped(1))

    def over() -> bool:
        done = min(len(scenario.seen) // 4, len(sources))
        scenario.policy = {"metrics": sources[min(done, len(sources) - 1)]}
        return done == len(sources)

    await scenario.run(monkeypatch, over)
    assert scenario.closed == ["http://a", "http://b", "http://c"], "the last one with the planning of the service"


async def test_the_condition_says_the_policy_s_present_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    def table(model: str) -> dict[str, Any]:
        return {"performance": {"table": {"model": model, "gpu": "h100_sxm"}}}

    scenario = Scenario(table("nobody/has-this"))

    def said() -> list[str]:
        return [body["status"]["conditions"][0]["message"] for body in scenario.api.applied]

    def written() -> bool:
        if len(scenario.seen) == 5:
            scenario.policy = table("nor/has-anybody-that")
        return len(scenario.seen) > 10

    await scenario.run(monkeypatch, written)
    assert len(said()) == 2
    assert "has-this" in said()[0]
    assert "has-anybody-that" in said()[1]


@pytest.mark.parametrize("error", [ZeroDivisionError("division by zero"), Unreachable("the network")])
async def test_a_look_that_failed_leaves_no_figures_of_the_one_before_and_the_third_is_said(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    figures: list[tuple[bool, bool]] = []

    def decided(seen: Observation) -> Decision:
        look = len(scenario.seen)
        figures.append((bool(shown(scenario.metrics, "gpus")), bool(shown(scenario.metrics, "healthy"))))
        if 4 <= look <= 8:
            raise error
        return steady(seen)

    scenario = Scenario(decisions=decided)
    monkeypatch.setattr(loops, "LOOK_FOR_SERVICES_S", 0.001)
    await scenario.run(monkeypatch, lambda: len(scenario.seen) > 12)
    # Before each look: nothing yet; three that went well; five that did not, said from the third on; and again well.
    assert figures[:12] == [
        (False, False), *[(True, True)] * 3, *[(False, False)] * 2, *[(False, True)] * 3, *[(True, True)] * 3,
    ]  # fmt: skip
    said = [body["status"]["conditions"][0] for body in scenario.api.applied]
    assert [(c["status"], c["reason"]) for c in said] == [
        ("True", "Planning"), ("False", "EvaluationFailed"), ("True", "Planning"),
    ]  # fmt: skip
    assert str(error) in said[1]["message"]
    assert shown(scenario.metrics, "healthy") == {("Planning",): 1.0}


async def test_what_was_seen_is_shown_also_where_the_api_server_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = Scenario(api=Api(refuses=True))
    monkeypatch.setattr(loops, "LOOK_FOR_SERVICES_S", 0.001)
    await scenario.run(monkeypatch, lambda: len(scenario.seen) > 6)
    assert shown(scenario.metrics, "gpus") == {(): 5.0}
    assert shown(scenario.metrics, "healthy") == {("EvaluationFailed",): 0.0}


async def test_a_refusal_of_routing_numbers_is_reported_and_stops_neither_plans_nor_saves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refusal = Invalid("spec.slackMilliseconds: Invalid value", status=422)

    def decided(seen: Observation) -> Decision:
        return replace(more(seen), routing=bounds(1000), routing_reason=Reason.FLOW_CONTROL)

    scenario = Scenario(api=Api(routing_refusal=refusal), decisions=decided)
    monkeypatch.setattr(loops, "LOOK_FOR_SERVICES_S", 0.001)
    await scenario.run(monkeypatch, lambda: len(scenario.seen) > 12)
    assert not scenario.api.published
    assert [plan["spec"]["pools"]["decode"] for plan in scenario.api.created] == [{"replicas": 4}]
    assert scenario.api.saves > 1, "at the first look and after the plan"
    [said] = [body["status"]["conditions"][0] for body in scenario.api.applied]
    assert (said["status"], said["reason"]) == ("False", "EvaluationFailed")
    assert str(refusal) in said["message"]
    assert shown(scenario.metrics, "gpus") == {(): 5.0}, "what the look observed"


def service_without(policy_ref: str | None, said: list[dict[str, Any]], version: str = "1") -> dict[str, Any]:
    spec: dict[str, Any] = {"model": {"source": "hf://test/tiny"}}
    made = manifest("LLMService", "new", spec | ({"policyRef": {"name": policy_ref}} if policy_ref else {}))
    made["metadata"]["resourceVersion"] = version
    return {**made, "status": {"conditions": said}}


async def test_a_service_whose_policy_is_deleted_says_that_nothing_is_planned_and_not_that_all_is_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = 0

    def without() -> dict[str, Any] | None:
        nonlocal looks
        if len(scenario.seen) < 4:
            return None
        looks += 1
        return service_without("chat", scenario.api.applied[-1]["status"]["conditions"], str(looks))

    scenario = Scenario(without=without)
    monkeypatch.setattr(loops, "LOOK_FOR_SERVICES_S", 0.001)
    await scenario.run(monkeypatch, lambda: looks > 30)
    first, *others = [body["status"]["conditions"][0] for body in scenario.api.applied]
    assert first["status"] == "True"
    assert [(c["status"], c["reason"]) for c in others] == [("False", "PolicyNotFound")], "and once"
    assert (
        others[0]["message"] == "spec.policyRef names PlannerPolicy 'chat', which does not exist, so nothing is planned"
    )
    assert shown(scenario.metrics, "healthy") == {("PolicyNotFound",): 0.0}
    assert shown(scenario.metrics, "gpus") == {}


async def test_a_service_whose_policy_cannot_be_read_says_that_and_not_that_there_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scenario = Scenario(without=lambda: service_without("chat", []), unreadable="spec.mode: Input should be 'Active'")
    monkeypatch.setattr(loops, "LOOK_FOR_SERVICES_S", 0.001)
    await scenario.run(monkeypatch, lambda: bool(scenario.api.applied))
    (said,) = scenario.api.applied[0]["status"]["conditions"]
    assert (said["status"], said["reason"]) == ("False", "PolicyUnreadable")
    assert "PlannerPolicy 'chat' cannot be read by this version of the planner: spec.mode" in said["message"]
    assert shown(scenario.metrics, "healthy") == {("PolicyUnreadable",): 0.0}


@pytest.mark.parametrize("refuses", [False, True])
async def test_of_a_service_that_names_no_policy_any_more_nothing_is_said(
    monkeypatch: pytest.MonkeyPatch, refuses: bool
) -> None:
    """Also what a planner said that is not there any more; what somebody else says is tried once, and stays."""
    said = {"type": "PlannerHealthy", "status": "True", "reason": "Planning", "lastTransitionTime": NOW.isoformat()}
    looks = 0

    def without() -> dict[str, Any]:
        nonlocal looks
        looks += 1
        scenario.api.refuses = refuses and looks < 20
        return service_without(None, [said])

    scenario = Scenario(without=without)
    monkeypatch.setattr(loops, "LOOK_FOR_SERVICES_S", 0.001)
    await scenario.run(monkeypatch, lambda: looks > 60)
    assert [body["status"] for body in scenario.api.applied] == [{"conditions": []}]
    assert shown(scenario.metrics, "healthy") == {}


async def test_pages_of_a_service_that_is_not_planned_any_more_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = Scenario()
    planned = scenario.planned

    monkeypatch.setattr(scenario, "planned", lambda: [] if len(scenario.seen) > 2 else planned())
    await scenario.run(monkeypatch, lambda: bool(scenario.kept) and scenario.kept[-1] == (set(), f"{KEY}/"))


async def test_the_first_requests_do_not_say_which_share_is_out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = (("unreachableTtftShare", 0.2), ("unreachableTpotShare", 0.0), ("longestReachablePromptTokens", 9000.0))
    scenario = Scenario(decisions=lambda seen: replace(steady(seen), inputs=shares))
    decide = scenario.decide

    def counted(state: State, seen: Observation, *rest: Any) -> tuple[State, Decision, NextTick]:
        state, decision, tick = decide(state, seen, *rest)
        return replace(state, requests=30.0 * len(scenario.seen)), decision, tick

    monkeypatch.setattr(scenario, "decide", counted)
    await scenario.run(monkeypatch, lambda: len(scenario.seen) > 12)
    reasons = [each["reason"] for written in scenario.api.applied for each in written["status"]["conditions"]]
    assert reasons == ["Planning", "ObjectivesOutOfReach"]
    assert [look for look, written in enumerate(scenario.per_look(), 1) if "condition" in written] == [1, 7]


async def test_objectives_stay_out_of_reach_while_decisions_have_no_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    def decisions(seen: Observation) -> Decision:
        batch = {2: 0.5, 6: 0.5, 9: 8.0}.get(len(scenario.seen))  # a batch below one: even a single request is too slow
        inputs = () if batch is None else (("decodeBatch", batch), ("stepMilliseconds", 400.0))
        return replace(steady(seen), inputs=inputs)

    scenario = Scenario(decisions=decisions)
    await scenario.run(monkeypatch, lambda: len(scenario.seen) > 12)
    reasons = [each["reason"] for written in scenario.api.applied for each in written["status"]["conditions"]]
    assert reasons == ["Planning", "ObjectivesOutOfReach", "Planning"]
