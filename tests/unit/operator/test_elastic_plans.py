"""Plans of elastic groups: one number, written once, and who may say no."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from pointsman.api.v1alpha1.elasticgroup import ElasticGroupSpec, InstanceCounts
from pointsman.api.v1alpha1.plan import Approval, PlanPhase, PlanReason, PlanSpec, PlanStatus
from pointsman.api.v1alpha1.plan import Plan as PlanObject
from pointsman.api.v1alpha1.plannerpolicy import Mode, PlannerPolicySpec
from pointsman.operator.core.actions import SetPlanStatus
from pointsman.operator.core.elastic.plans import Asked, SetInstances, group_plan_actions, objectives_of
from pointsman.operator.core.snapshot import Container, Plan, Policy, Worker
from pointsman.operator.plan_inputs import PlanInputs

METADATA = {"name": "long", "namespace": "models", "uid": "u", "resourceVersion": "1"}
NOW_S = datetime(2026, 11, 26, 12, 0, tzinfo=UTC).timestamp()


def policy(mode: Mode = Mode.ACTIVE, max_gpus: int = 8) -> Policy:
    body = {
        "mode": mode,
        "objectives": {"ttftMs": 1500, "tpotMs": 40, "ttftMsPerPromptToken": 0.5},
        "budget": {"maxGpus": max_gpus},
    }
    return Policy(name="chat", spec=PlannerPolicySpec.model_validate(body))


def plan(instances: int, number: int = 1, **fields: Any) -> Plan:
    body = {
        "serviceRef": {"kind": "ElasticGroup", "name": "long-chat"},
        "sequence": number,
        "mode": Mode.ACTIVE,
        "observedAt": datetime.fromtimestamp(NOW_S, UTC),
        "instances": {"replicas": instances},
        "changesLayout": True,
        "reason": "InstancesShort",
        "message": "more requests",
        "expiresAt": datetime.fromtimestamp(NOW_S + 30, UTC),
        **fields,
    }
    return Plan(name=f"long-chat-{number:05}", uid=f"plan-{number}", spec=PlanSpec.model_validate(body))


def asked(*plans: Plan, replicas: int = 2, **more: Any) -> Asked:
    spec = ElasticGroupSpec.model_validate(
        {
            "model": {"source": "hf://test/tiny"},
            "instance": {"gpus": 1},
            "instances": {"replicas": replicas, "minReplicas": 1, "maxReplicas": 6},
        }
    )
    counts = InstanceCounts(desired=replicas, existing=replicas, ready=replicas, joined=replicas)
    whole = Asked(
        name="long-chat", namespace="models", spec=spec, set_by=None, plans=plans, policy=policy(), counts=counts,
        instances=(), now_s=NOW_S,
    )  # fmt: skip
    return replace(whole, **more)


def done(of: Asked) -> tuple[list[SetInstances], dict[str, tuple[PlanPhase | None, str | None]]]:
    actions = list(group_plan_actions(of))
    written = [each for each in actions if isinstance(each, SetInstances)]
    said = {each.name: (each.status.phase, each.status.reason) for each in actions if isinstance(each, SetPlanStatus)}
    return written, said


def test_the_number_is_written_with_the_plans_uid_and_its_end_is_awaited() -> None:
    first = plan(4)
    written, said = done(asked(first))
    assert [(each.replicas, each.plan_uid) for each in written] == [(4, "plan-1")]
    assert said == {first.name: (PlanPhase.EXECUTING, PlanReason.SCALING)}
    starting = InstanceCounts(desired=4, existing=4, ready=2, joined=2)
    assert done(asked(first, replicas=4, set_by="plan-1", counts=starting))[1] == {
        first.name: (PlanPhase.EXECUTING, PlanReason.SCALING)
    }
    assert done(asked(first, replicas=4, set_by="plan-1")) == ([], {first.name: (PlanPhase.COMPLETED, PlanReason.DONE)})


def test_what_a_person_writes_after_a_plan_stays() -> None:
    written, said = done(asked(plan(4), replicas=3, set_by="plan-1"))
    assert written == []
    assert set(said.values()) == {(PlanPhase.COMPLETED, PlanReason.DONE)}


def test_a_drain_is_part_of_the_plan() -> None:
    draining = InstanceCounts(desired=1, existing=1, ready=1, joined=1, draining=1)
    assert done(asked(plan(1), replicas=1, set_by="plan-1", counts=draining))[1] == {
        "long-chat-00001": (PlanPhase.EXECUTING, PlanReason.SCALING)
    }


def test_a_newer_plan_supersedes_an_older_one() -> None:
    written, said = done(asked(plan(4), plan(3, 2)))
    assert [each.replicas for each in written] == [3]
    assert said["long-chat-00001"] == (PlanPhase.SUPERSEDED, PlanReason.NEWER_PLAN)


@pytest.mark.parametrize(
    ("more", "phase", "reason"),
    [
        ({"policy": None}, PlanPhase.FAILED, PlanReason.NOT_ALLOWED),
        ({"policy": policy(Mode.EXTERNAL)}, PlanPhase.FAILED, PlanReason.NOT_ALLOWED),
        ({"policy": policy(max_gpus=3)}, PlanPhase.FAILED, PlanReason.NOT_ALLOWED),
        ({"now_s": NOW_S + 31}, PlanPhase.EXPIRED, PlanReason.EXPIRED),
    ],
)
def test_what_is_not_allowed_any_more_is_not_done(more: dict[str, Any], phase: PlanPhase, reason: PlanReason) -> None:
    assert done(asked(plan(4), **more)) == ([], {"long-chat-00001": (phase, reason)})


def test_bounds_of_the_group_hold() -> None:
    assert done(asked(plan(7)))[0] == []


@pytest.mark.parametrize("now", [Mode.SHADOW, Mode.ACTIVE])
def test_a_plan_of_shadow_is_only_recorded(now: Mode) -> None:
    recorded = plan(4, mode=Mode.SHADOW)
    assert done(asked(recorded, policy=policy(now))) == (
        [],
        {recorded.name: (PlanPhase.SHADOW, PlanReason.RECORDED)},
    )


def test_a_person_is_asked_and_answered() -> None:
    waits = plan(4, approval=Approval(required=True))
    assert done(asked(waits, policy=policy(Mode.APPROVE))) == (
        [],
        {waits.name: (PlanPhase.AWAITING_APPROVAL, PlanReason.AWAITING_APPROVAL)},
    )
    for word, number in (("Approved", 1), ("Denied", 0)):
        answered = plan(4, approval={"required": True, "decision": word})
        assert len(done(asked(answered, policy=policy(Mode.APPROVE)))[0]) == number


def instance(number: int, age_s: float, *, pending: bool = True, **fields: Any) -> Worker:
    """An instance of the group, without a node unless told otherwise."""
    return Worker(
        name=f"long-chat-{number}", uid=f"u{number}", resource_version="1", created_s=NOW_S - age_s, role=None,
        revision="", kv_compatibility="", container=Container(running=not pending),
        unschedulable="no node has a free GPU" if pending else None, **fields,
    )  # fmt: skip


def executing(instances: int, reason: PlanReason = PlanReason.SCALING, **fields: Any) -> Plan:
    """A plan that began 700 s ago: longer than an instance is waited for."""
    began = datetime.fromtimestamp(NOW_S - 700, UTC)
    status = PlanStatus(phase=PlanPhase.EXECUTING, reason=reason, message="2 of 4", started_at=began)
    return replace(plan(instances, **fields), status=status)


def test_instances_that_find_no_node_end_the_plan_and_are_given_up() -> None:
    counts = InstanceCounts(desired=4, existing=4, ready=3, joined=3)
    healthy = [instance(number, 9000, pending=False) for number in range(3)]
    there = asked(
        executing(4), replicas=4, set_by="plan-1", before_plan=2, counts=counts, instances=(*healthy, instance(3, 690))
    )
    assert done(there) == ([], {"long-chat-00001": (PlanPhase.EXECUTING, PlanReason.UNSCHEDULABLE)}), "reported first"
    told = replace(there, plans=(executing(4, PlanReason.UNSCHEDULABLE),))
    written, said = done(told)
    assert [each.replicas for each in written] == [3]
    failed = {"long-chat-00001": (PlanPhase.FAILED, PlanReason.UNSCHEDULABLE)}
    assert said == failed
    fewer = told.spec.model_copy(update={"instances": told.spec.instances.model_copy(update={"replicas": 3})})
    three = InstanceCounts(desired=3, existing=3, ready=3, joined=3)
    assert done(replace(told, spec=fewer, counts=three, instances=tuple(healthy))) == ([], failed), "it died between"


def test_instances_are_waited_for_as_long_as_the_policy_says_and_while_a_node_is_made() -> None:
    counts = InstanceCounts(desired=4, existing=4, ready=3, joined=3)
    for pending in (instance(3, 500), instance(3, 690, node_requested_s=NOW_S - 100)):
        waits = asked(executing(4), replicas=4, set_by="plan-1", before_plan=3, counts=counts, instances=(pending,))
        assert done(waits) == ([], {"long-chat-00001": (PlanPhase.EXECUTING, PlanReason.SCALING)})


def test_a_pending_instance_never_costs_a_healthy_one() -> None:
    """A StatefulSet removes its highest ordinals, whichever of its pods is Pending."""
    counts = InstanceCounts(desired=3, existing=3, ready=2, joined=2)
    lost_its_node, healthy = instance(0, 690), [instance(number, 9000, pending=False) for number in (1, 2)]
    shrunk = asked(
        executing(3), replicas=3, set_by="plan-1", before_plan=4, counts=counts, instances=(lost_its_node, *healthy)
    )
    completed = {"long-chat-00001": (PlanPhase.COMPLETED, PlanReason.DONE)}
    assert done(shrunk) == ([], completed), "it is not of this plan"
    grown = replace(shrunk, before_plan=2)
    assert done(grown) == ([], completed), "its ordinal was there before the plan"
    earlier = replace(shrunk, before_plan=None)  # a plan that an earlier version began
    assert done(earlier)[0] == []


@pytest.mark.parametrize(("instances", "action"), [(4, "scaleOut"), (1, "scaleIn")])
@pytest.mark.parametrize("rule", ["enabled", "needsApproval"])
def test_a_group_is_not_scaled_against_an_edit_of_the_policys_actions(instances: int, action: str, rule: str) -> None:
    def edited(name: str) -> Policy:
        body = policy().spec.manifest() | {"actions": {name: {rule: rule != "enabled"}}}
        return Policy(name="chat", spec=PlannerPolicySpec.model_validate(body))

    other = "scaleIn" if action == "scaleOut" else "scaleOut"
    assert len(done(asked(plan(instances), policy=edited(other)))[0]) == 1
    assert done(asked(plan(instances), policy=edited(action))) == (
        [],
        {"long-chat-00001": (PlanPhase.FAILED, PlanReason.NOT_ALLOWED)},
    )


def test_the_manager_is_told_the_policys_objectives_in_seconds() -> None:
    told = objectives_of(policy())
    assert told is not None
    assert (told.ttft_seconds, told.tpot_seconds, told.ttft_seconds_per_prompt_token) == (1.5, 0.04, 0.0005)
    assert objectives_of(None) is None
    assert objectives_of(policy(Mode.SHADOW)) is None, "Shadow changes nothing"


def test_a_group_has_no_plans_of_a_service_that_has_its_name() -> None:
    of_group = plan(4).spec
    pools = {"prefill": {"replicas": 1}, "decode": {"replicas": 1}}
    routing = {"maxLocalPrefillTokens": 1, "maxPrefillQueueSize": 1}
    of_service = of_group.model_dump(by_alias=True) | {
        "serviceRef": {"name": "long-chat"}, "instances": None, "pools": pools, "routing": routing
    }  # fmt: skip
    found = [
        PlanObject.model_validate({"metadata": {"name": name}, "spec": spec, "status": {"phase": "Completed"}})
        for name, spec in (("g", of_group.model_dump(by_alias=True)), ("s", of_service))
    ]
    mirror = SimpleNamespace(by=lambda _: found)
    plan_inputs = PlanInputs(None, mirror, mirror, mirror)  # type: ignore[arg-type]
    for kind, name in (("ElasticGroup", "g"), ("LLMService", "s")):
        plans = asyncio.run(plan_inputs.plans(("models", "long-chat"), "u", kind))
        assert [each.name for each in plans] == [name]
