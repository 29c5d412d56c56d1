"""Execution of the plans of an elastic group: one number, written once, and its end awaited.

The number and the plan's uid are written in one patch of the group. A restarted operator sees the uid and writes
nothing again, also where a person has changed the number meanwhile.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pointsman.api.protocol.elastic import ElasticObjectives
from pointsman.api.v1alpha1.elasticgroup import ElasticGroupSpec, InstanceCounts
from pointsman.api.v1alpha1.plan import PlanPhase, PlanReason
from pointsman.api.v1alpha1.plannerpolicy import Mode
from pointsman.operator.core.actions import Action, SetPlanStatus
from pointsman.operator.core.messages import outcomes
from pointsman.operator.core.messages import plans as text
from pointsman.operator.core.plan_limits import Steps, refused_gpus, refused_steps
from pointsman.operator.core.plans import Gate, executes, gate, newest_of
from pointsman.operator.core.report import report_plan
from pointsman.operator.core.snapshot import Plan, Policy, Worker
from pointsman.operator.core.unschedulable import given_up_at_s, pending_of_plan


@dataclass(frozen=True, slots=True, kw_only=True)
class SetInstances(Action):
    """Write ``spec.instances.replicas``, whose number it is, and the number before; None: the one kept there stays."""

    replicas: int
    before: int | None
    plan_uid: str

    def outcome(self) -> str:
        return outcomes.instances_scaled(self.replicas, self.why)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A group, its plans and its policy at one moment. ``set_by``: uid of the plan that wrote the number last, and
    ``before_plan`` the number that it replaced."""

    name: str
    namespace: str
    spec: ElasticGroupSpec
    set_by: str | None
    plans: Sequence[Plan]
    policy: Policy | None
    counts: InstanceCounts
    instances: Sequence[Worker]
    now_s: float
    before_plan: int | None = None


def group_plan_actions(asked: Asked) -> Iterator[SetInstances | SetPlanStatus]:
    """The next step of the newest plan; older ones are superseded."""
    newest, older = newest_of(asked.plans)
    for plan, newer in older:
        message = text.newer(newer.name)
        yield from report_plan(plan, asked.now_s, PlanPhase.SUPERSEDED, PlanReason.NEWER_PLAN, message)
    if newest is None or newest.spec.instances is None:
        return
    wanted = newest.spec.instances.replicas
    refused = _refusal(asked, newest, wanted)
    gated = gate(newest, Gate(asked.plans, asked.policy, refused, asked.namespace, asked.now_s))
    if gated is not None:
        yield from report_plan(newest, asked.now_s, *gated)
        return
    spec, counts = asked.spec.instances, asked.counts
    if asked.set_by != newest.uid and spec.replicas != wanted:
        why = text.instances_scaled(newest.name, spec.replicas, wanted)
        yield SetInstances(replicas=wanted, before=spec.replicas, plan_uid=newest.uid, why=why)
        yield from report_plan(newest, asked.now_s, PlanPhase.EXECUTING, PlanReason.SCALING, why)
        return
    have = text.instance_progress(counts.ready, spec.replicas)
    pending = pending_instances(asked)
    less = _without_stuck(asked, pending)
    if less < spec.replicas:
        yield from _give_up(newest, asked, less, have)
        return
    others = sum(bool(each.unschedulable and each.active) for each in asked.instances) - len(pending)
    if newest.status.reason == PlanReason.UNSCHEDULABLE and asked.set_by == newest.uid and spec.replicas < wanted:
        # An operator that died between the number and this report gave instances up.
        yield from report_plan(
            newest, asked.now_s, PlanPhase.FAILED, PlanReason.UNSCHEDULABLE, newest.status.message or have
        )
    elif counts.existing != spec.replicas or counts.ready + others < spec.replicas or counts.draining:
        yield from report_plan(newest, asked.now_s, PlanPhase.EXECUTING, PlanReason.SCALING, have)
    else:
        yield from report_plan(newest, asked.now_s, PlanPhase.COMPLETED, PlanReason.DONE, have)


def pending_instances(asked: Asked) -> list[Worker]:
    """Instances without a node that the newest plan added; those of before are not its business."""
    newest, _ = newest_of(asked.plans)
    if newest is None or newest.spec.instances is None or asked.set_by != newest.uid:
        return []
    first = asked.before_plan if asked.before_plan is not None else asked.spec.instances.min_replicas
    added = [each for each in asked.instances if _ordinal(each) >= first]
    return pending_of_plan(added, newest.status.started_at, len(added))


def _without_stuck(asked: Asked, pending: Sequence[Worker]) -> int:
    """The number without instances that are given up. A StatefulSet removes its highest ordinals first, so only a
    row of such instances at its end can go: no healthy one ever goes in the place of a Pending one."""
    policy, left = asked.policy, asked.spec.instances.replicas
    stuck = {_ordinal(each) for each in pending if policy is not None and asked.now_s >= given_up_at_s(each, policy)}
    while left - 1 in stuck and left > asked.spec.instances.min_replicas:
        left -= 1
    return left


def _give_up(plan: Plan, asked: Asked, less: int, have: str) -> Iterator[SetInstances | SetPlanStatus]:
    """Report first, then write, so that no crash between the two can make the plan look completed."""
    count = asked.spec.instances.replicas - less
    why = text.no_node(plan.name, count, "instance")
    if plan.status.reason != PlanReason.UNSCHEDULABLE:
        first = next(each for each in asked.instances if _ordinal(each) == less)
        message = text.given_up(have, first.name, first.unschedulable)
        yield from report_plan(plan, asked.now_s, PlanPhase.EXECUTING, PlanReason.UNSCHEDULABLE, message)
        return
    yield SetInstances(replicas=less, before=None, plan_uid=plan.uid, why=why)
    yield from report_plan(plan, asked.now_s, PlanPhase.FAILED, PlanReason.UNSCHEDULABLE, plan.status.message or why)


def _ordinal(instance: Worker) -> int:
    """Of a StatefulSet's pod."""
    number = instance.name.rpartition("-")[2]
    return int(number) if number.isascii() and number.isdigit() else -1


def objectives_of(policy: Policy | None) -> ElasticObjectives | None:
    """What the manager is told that requests must meet. Nothing in Shadow, which changes nothing."""
    if policy is None or policy.mode is Mode.SHADOW:
        return None
    goals = policy.spec.objectives
    return ElasticObjectives(
        ttft_seconds=goals.ttft_ms / 1000,
        ttft_seconds_per_prompt_token=goals.ttft_ms_per_prompt_token / 1000,
        tpot_seconds=goals.tpot_ms / 1000,
    )


def _refusal(asked: Asked, plan: Plan, wanted: int) -> str | None:
    """Why the plan must not be carried out (any more)."""
    policy, bounds = asked.policy, asked.spec.instances
    gpus_per_instance = max(asked.spec.instance.gpus, 1)
    if policy is None or not executes(policy):
        return None
    gpus, gpus_before = wanted * gpus_per_instance, bounds.replicas * gpus_per_instance
    if (refused := refused_gpus(policy.spec.budget, gpus, gpus_before)) is not None:
        return refused
    if not bounds.min_replicas <= wanted <= bounds.max_replicas:
        return text.out_of_bounds("instances", wanted, "spec.instances", bounds.min_replicas, bounds.max_replicas)
    change = 0 if asked.set_by == plan.uid else wanted - bounds.replicas
    return refused_steps(policy.spec, plan, Steps(starts=max(0, change), removals=max(0, -change)))
