"""The planner's process: what it reads from pods, what it writes, and that a death in the middle repeats nothing."""

import asyncio
import itertools
import re
from importlib.resources import files

import pytest

from fixtures.mirrors import caught_up
from integration.planner.live_loads import LIGHT, LONG, SHORT, SILENCE, earlier_plan, explained, health, healthy
from pointsman.api.protocol import names
from pointsman.api.v1alpha1.conditions import ConditionStatus
from pointsman.api.v1alpha1.llmservice import Routing
from pointsman.api.v1alpha1.plan import Plan, PlanPhase
from pointsman.kube import resources
from pointsman.planner.errors import ProfileError
from pointsman.planner.plan_writer import KEPT_PLANS
from pointsman.planner.profile.find import decode_worker
from waiting import eventually

from .conftest import ONLY_SWITCHES, World


async def test_a_shift_to_long_prompts_becomes_a_plan_with_its_reasons(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    await world.policy()
    await world.service()
    world.planner.start()
    load = asyncio.create_task(world.load(**LONG))
    told = ""

    async def looked() -> bool:  # a plan is saved at the look after it
        nonlocal told
        told = await explained(world, capsys, "chat", "--inputs")
        return "prompt and 16 answer tokens" in told

    try:
        await world.until(lambda: bool(world.layouts()), "a plan that changes the layout")
        await healthy(world, ConditionStatus.TRUE)
        await eventually(looked, "an explanation of a look that found the load", 60)
    finally:
        load.cancel()
    plan = world.layouts()[0]
    assert plan.spec.reason == "PrefillShort"
    assert plan.spec.switches[0].to_role == "Prefill"
    assert sum(plan.spec.target) == 5
    assert {entry.name for entry in plan.spec.inputs} >= {"ratePerSecond", "promptTokens", "prefillNeeded"}
    assert plan.spec.alternatives
    assert not plan.spec.approval.required
    assert f"{world.namespace}/chat: policy chat, mode Active; evaluated" in told
    assert any(f"{made.metadata.name} (" in told and made.spec.message in told for made in world.layouts())
    assert "Loads at which the decision changes" in told
    assert "Inputs, by the names in spec.inputs of a plan" in told


async def test_what_is_not_there_or_not_planned_cannot_be_explained(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "there is no LLMService and no ElasticGroup 'nobody'" in await explained(world, capsys, "nobody", status=1)
    await world.service()
    assert "spec.policyRef names PlannerPolicy 'chat', which does not exist" in await explained(
        world, capsys, "chat", status=1
    )
    await world.policy()
    assert "has not evaluated chat yet" in await explained(world, capsys, "chat")


async def test_shadow_writes_the_same_decision_once_not_every_tick(world: World) -> None:
    await world.policy(mode="Shadow", actions=ONLY_SWITCHES)
    await world.service()
    world.planner.start()
    load = asyncio.create_task(world.load(**LONG))
    try:
        await world.until(lambda: bool(world.layouts()), "a plan in shadow")
        decided = await world.looked_again(10)
    finally:
        load.cancel()
    assert decided.get("PrefillShort", 0) > 1, f"it is wanted again and again: {decided}"
    plans = sorted(world.plans.objects(), key=lambda plan: plan.spec.sequence)
    # What is wanted may change as the engine becomes known; what is wanted again without a change is not written again.
    said = [plan.spec.pools for plan in plans]
    assert all(after != before for before, after in itertools.pairwise(said)), said
    assert len(plans) <= 3
    assert all(plan.spec.mode == "Shadow" and plan.spec.changes_layout for plan in plans)
    service = await world.kube.get(resources.LLM_SERVICES, "chat", world.namespace)
    assert "routing" not in service.get("status", {}), "Shadow never writes it"


async def test_routing_numbers_become_no_plan_and_no_event_and_stay_in_shadow(world: World) -> None:
    layout_stays = {**ONLY_SWITCHES, "roleSwitch": {"enabled": False}}
    await world.policy(mode="External", actions=layout_stays)
    await world.service()
    world.planner.start()
    load = asyncio.create_task(world.load(**SHORT))

    def published() -> Routing | None:
        found = [service.status.routing for service in world.services.objects()]
        return found[0] if found else None

    try:
        await world.until(lambda: published() is not None, "routing numbers", world.services)
        first = published()
        assert first is not None
        assert (first.set_by, first.objectives) == ("planner", None)
        assert first.reason in ("FlowControl", "Threshold")
        assert first.decoding_per_decode_worker is not None
        without = {**layout_stays, "flowControl": {"enabled": False}}
        await world.policy(mode="Shadow", actions=without)

        async def shadowed() -> bool:
            reasons = await world.looked_again(5)
            return not reasons.get("FlowControl") and not reasons.get("Threshold")

        await eventually(shadowed, "numbers that Shadow does not publish are no reason")
        found = await world.kube.get(resources.LLM_SERVICES, "chat", world.namespace)
        assert "decodingPerDecodeWorker" in found["status"]["routing"]
        world.planner.kill()
        await world.policy(mode="External", actions=without)
        world.planner.start()

        def taken_away() -> bool:
            now = published()
            return now is not None and now.set_by == "planner" and now.decoding_per_decode_worker is None

        await world.until(taken_away, "the bounds are taken away", world.services)
    finally:
        load.cancel()
    assert not (await world.kube.list(resources.PLANS, world.namespace)).items
    assert not (await world.kube.list(resources.EVENTS, world.namespace)).items


async def test_a_killed_planner_goes_on_with_its_memory_and_never_uses_a_number_twice(world: World) -> None:
    await world.policy(mode="Approve")
    await world.service()
    world.planner.start()
    load = asyncio.create_task(world.load(**LONG))
    try:
        await world.until(lambda: bool(world.layouts()), "a first plan")
        world.planner.kill()
        # What is wanted may change as the engine becomes known: perhaps there is a second one by now.
        await caught_up(world.kube, world.plans, world.namespace)
        before = world.layouts()
        assert all(plan.spec.approval.required for plan in before)
        for plan in before:
            await world.kube.delete(resources.PLANS, plan.metadata.name, world.namespace)
        await world.until(lambda: not world.layouts(), "the plans gone")
        world.planner.start()
        await world.until(lambda: bool(world.layouts()), "a plan after the restart")
    finally:
        load.cancel()
    assert world.layouts()[0].spec.sequence > before[-1].spec.sequence


async def test_unreadable_gateways_freeze_everything_and_the_condition_says_so(world: World) -> None:
    await world.policy()
    await world.service()
    world.planner.start()
    await world.load(2, **SHORT)
    await healthy(world, ConditionStatus.TRUE)
    world.pages["gateway"].failing = True
    await healthy(world, ConditionStatus.FALSE)
    before = len(world.plans.objects())
    await world.load(3, **LONG)
    assert len(world.plans.objects()) == before
    world.pages["gateway"].failing = False
    load = asyncio.create_task(world.load(**LONG))
    try:
        await healthy(world, ConditionStatus.TRUE)
    finally:
        load.cancel()


async def test_a_policy_with_an_unknown_table_is_said_with_the_nearest(world: World) -> None:
    table = {"table": {"model": "meta-llama/Meta-Llama-3.1-8B", "gpu": "h100", "engine": "vllm", "tp": 1}}
    await world.policy(performance=table)
    await world.service()
    world.planner.start()
    load = asyncio.create_task(world.load(**SHORT))
    try:
        await healthy(world, ConditionStatus.FALSE)
    finally:
        load.cancel()
    assert health(world).reason in {"UnknownTable", "StaleMetrics"}


async def test_an_edited_policy_that_is_as_wrong_is_said_in_new_words(world: World) -> None:
    def table(gpu: str) -> dict[str, object]:
        return {"table": {"model": "meta-llama/Meta-Llama-3.1-8B", "gpu": gpu, "engine": "vllm", "tp": 1}}

    await world.policy(performance=table("h100"))
    await world.service()
    world.planner.start()
    load = asyncio.create_task(world.load(**SHORT))
    try:
        await world.until(lambda: "h100 vllm" in health(world).message, "the first name", world.services)
        await world.policy(performance=table("abacus"))
        await world.until(lambda: "abacus vllm" in health(world).message, "the second name", world.services)
    finally:
        load.cancel()
    assert health(world).reason == "UnknownTable"


async def test_the_first_look_is_too_early_and_not_stale(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    await world.policy(metrics={"intervalSeconds": 60})  # there is no second one here
    await world.service()
    world.planner.start()
    await healthy(world, ConditionStatus.TRUE)
    told = await explained(world, capsys, "chat")
    assert "NotEnoughData" in told
    assert "a rate needs two" in told
    assert "StaleMetrics" not in told


async def test_objectives_that_no_layout_can_meet_are_said_with_what_would_be_right(world: World) -> None:
    await world.policy(objectives={"ttftMs": 1000, "tpotMs": 2})
    await world.service()
    world.planner.start()
    load = asyncio.create_task(world.load(**SHORT))
    try:
        await world.until(lambda: health(world).reason == "ObjectivesOutOfReach", "it is said", world.services)
        said = health(world)
        assert said.status is ConditionStatus.FALSE
        found = re.search(
            r"objectives\.tpotMs is 2, but a decode step of one request takes more than ([\d.]+) ms", said.message
        )
        assert found, said.message
        assert 4 < float(found[1]) <= 8, "the workers show steps of 8 ms"
        await world.policy(objectives={"ttftMs": 1000, "tpotMs": 10})
        await healthy(world, ConditionStatus.TRUE)
    finally:
        load.cancel()


async def test_planning_goes_on_while_a_plan_awaits_approval_and_a_stable_wish_is_written_once(world: World) -> None:
    await world.policy(mode="Approve", actions=ONLY_SWITCHES)
    await world.service()
    old = await earlier_plan(world, 1, PlanPhase.AWAITING_APPROVAL, asked=True)
    world.planner.start()
    load = asyncio.create_task(world.load(**LONG))

    async def said() -> bool:
        return "reason=AwaitingApproval" in world.planner.log

    try:
        await world.until(lambda: len(world.layouts()) > 1, "a plan for what is wanted now")
        await eventually(said, "the planner says that it is asked for")
        for _ in range(4):  # what is wanted may change as the engine becomes known
            written = len(world.layouts())
            await world.looked_again(10)
            if len(world.layouts()) == written:
                break
        else:
            pytest.fail("a plan was written in each of four times ten looks")
        # What is wanted again is not written again.
        made = [plan.spec.pools for plan in world.layouts()]
        assert all(after != before for before, after in itertools.pairwise(made)), made
        assert len(made) <= 4
    finally:
        load.cancel()
    assert world.layouts()[0].metadata.name == old
    assert world.layouts()[-1].spec.approval.required
    assert "the plan that is being executed" not in world.planner.log


async def test_a_plan_that_awaits_approval_gets_a_successor_once_the_policy_asks_nobody_any_more(world: World) -> None:
    await world.policy(mode="Approve", actions=ONLY_SWITCHES)
    await world.service()
    world.planner.start()
    load = asyncio.create_task(world.load(**LONG))
    try:
        await world.until(lambda: bool(world.layouts()), "a plan that awaits approval")
        await world.looked_again(10)
        assert all(plan.spec.approval.required for plan in world.layouts())
        await world.policy(mode="Active", actions=ONLY_SWITCHES)
        await world.until(lambda: not world.layouts()[-1].spec.approval.required, "a plan that nobody approves")
    finally:
        load.cancel()


async def test_a_plan_that_nobody_wants_any_more_is_withdrawn_while_it_awaits_approval(world: World) -> None:
    calm = {"scaleIn": {"stabilizationSeconds": 0, "enabled": False}, "scaleOut": {"leadSeconds": 1, "enabled": False}}
    await world.policy(mode="Approve", actions={**ONLY_SWITCHES, **calm})
    await world.service()
    asked = await earlier_plan(world, 1, PlanPhase.AWAITING_APPROVAL, asked=True)
    world.planner.start()
    load = asyncio.create_task(world.load(**LIGHT))

    def withdrawals() -> list[Plan]:
        return [plan for plan in world.plans.objects() if plan.spec.withdraws]

    try:
        await world.until(lambda: bool(withdrawals()), "the plan is withdrawn")
    finally:
        load.cancel()
    (withdrawal,) = withdrawals()
    assert withdrawal.spec.withdraws == asked
    assert withdrawal.spec.reason == "Withdrawn"
    assert not withdrawal.spec.changes_layout
    assert "The plan for 2P3D is withdrawn: it has not been needed for" in withdrawal.spec.message


async def test_ended_plans_beyond_the_history_are_deleted_and_those_that_wait_are_not(world: World) -> None:
    await world.policy()
    await world.service()
    waiting = await earlier_plan(world, 1, PlanPhase.AWAITING_APPROVAL)
    ended = [await earlier_plan(world, sequence, PlanPhase.COMPLETED) for sequence in range(2, KEPT_PLANS + 6)]
    ended.append(await earlier_plan(world, KEPT_PLANS + 6, PlanPhase.FAILED))
    world.planner.start()
    left = [waiting, *ended[-KEPT_PLANS:]]
    await world.until(lambda: [plan.metadata.name for plan in world.layouts()] == left, "the newest are left")


async def test_a_table_of_ones_own_is_read_from_its_config_map_and_a_bad_one_is_said(world: World) -> None:
    shipped = files("pointsman.planner") / "tables" / "Meta-Llama-3.1-8B__h100_sxm__vllm__tp1.json"
    tables = {
        "bad": {"table.json": "{", "notes": "mine"},
        "two": {"a.json": "{", "b.json": "{"},
        "good": {"llama.json": shipped.read_text()},
    }
    for name, data in tables.items():
        metadata = {"name": name, "namespace": world.namespace}
        await world.kube.create(resources.CONFIG_MAPS, {"metadata": metadata, "data": data})
    await world.policy(performance={"configMap": {"name": "bad"}})
    await world.service()
    world.planner.start()
    load = asyncio.create_task(world.load(**SHORT))
    try:
        await until_reason(world, "UnknownTable", "performance.configMap is 'bad', key 'table.json': it is no JSON")
        await world.policy(performance={"configMap": {"name": "two"}})
        await until_reason(world, "UnknownTable", "'two': it has a.json, b.json: name the table table.json")
        await world.policy(performance={"configMap": {"name": "good"}})
        await healthy(world, ConditionStatus.TRUE)
    finally:
        load.cancel()


async def test_what_is_said_of_planning_ends_with_the_policy_and_with_the_wish_for_one(world: World) -> None:
    await world.policy()
    await world.service()
    world.planner.start()
    load = asyncio.create_task(world.load(**SHORT))
    try:
        await healthy(world, ConditionStatus.TRUE)
        await world.kube.delete(resources.PLANNER_POLICIES, "chat", world.namespace)
        await until_reason(
            world,
            "PolicyNotFound",
            "spec.policyRef names PlannerPolicy 'chat', which does not exist, so nothing is planned",
        )
        await world.policy()
        await healthy(world, ConditionStatus.TRUE)
        await world.kube.patch(resources.LLM_SERVICES, "chat", world.namespace, {"spec": {"policyRef": None}})
        await world.until(lambda: health(world) is SILENCE, "no PlannerHealthy", world.services)
    finally:
        load.cancel()


async def until_reason(world: World, reason: str, words: str) -> None:
    def says() -> bool:
        found = [c for s in world.services.objects() for c in s.status.conditions if c.type == "PlannerHealthy"]
        return bool(found) and found[0].reason == reason and words in found[0].message

    await world.until(says, f"PlannerHealthy for {reason} with {words!r}", world.services)


async def test_a_profile_finds_a_decode_worker_that_serves_or_says_what_there_is(world: World) -> None:
    with pytest.raises(ProfileError, match="there is no LLMService 'chat'"):
        await decode_worker("chat", world.namespace, world.kubeconfig)
    await world.service()
    assert await decode_worker("chat", world.namespace, world.kubeconfig) == (
        "chat-4",
        f"http://{world.address('chat-4')}",
    )
    for name in ("chat-4", "chat-3", "chat-2"):
        unrouted = {"metadata": {"labels": {names.ROUTABLE_LABEL: "false"}}}
        await world.kube.patch(resources.PODS, name, world.namespace, unrouted)
    with pytest.raises(ProfileError, match="chat has no decode worker that serves, of 5 workers"):
        await decode_worker("chat", world.namespace, world.kubeconfig)
