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
from pointsman.operator.core.plans import UNSCHEDULABLE_AFTER_S, Gate, executes, gate, newest_of, report
from pointsman.operator.core.snapshot import Plan, Policy, Worker


@dataclass(frozen=True, slots=True, kw_only=True)
class SetInstances(Action):
    """Write ``spec.instances.replicas``, and whose number it is."""

    replicas: int
    plan_uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A group, its plans and its policy at one moment. ``set_by``: uid of the plan that wrote the number last."""

    name: str
    namespace: str
    spec: ElasticGroupSpec
    set_by: str | None
    plans: Sequence[Plan]
    policy: Policy | None
    counts: InstanceCounts
    instances: Sequence[Worker]
    now_s: float


def group_plan_actions(asked: Asked) -> Iterator[SetInstances | SetPlanStatus]:
    """The next step of the newest plan; older ones are superseded."""
    newest, older = newest_of(asked.plans)
    for plan, newer in older:
        message = f"plan {newer.name} is newer"
        yield from report(plan, asked.now_s, PlanPhase.SUPERSEDED, PlanReason.NEWER_PLAN, message)
    if newest is None or newest.spec.instances is None:
        return
    wanted = newest.spec.instances.replicas
    held = gate(newest, Gate(asked.plans, asked.policy, _refusal(asked, wanted), asked.namespace, asked.now_s))
    if held is not None:
        yield from report(newest, asked.now_s, *held)
        return
    spec, counts = asked.spec.instances, asked.counts
    if asked.set_by != newest.uid and spec.replicas != wanted:
        why = f"plan {newest.name}: instances {spec.replicas} to {wanted}"
        yield SetInstances(replicas=wanted, plan_uid=newest.uid, why=why)
        yield from report(newest, asked.now_s, PlanPhase.EXECUTING, PlanReason.SCALING, why)
        return
    have = f"{counts.ready} of {spec.replicas} instances"
    stuck = [
        each
        for each in asked.instances
        if each.unschedulable and not each.terminating and asked.now_s - each.created_s >= UNSCHEDULABLE_AFTER_S
    ]
    if stuck and newest.status.phase is PlanPhase.EXECUTING:
        message = f"{have}; {stuck[0].name} waits for a node: {stuck[0].unschedulable}"
        less = max(spec.min_replicas, spec.replicas - len(stuck))
        why = f"plan {newest.name}: {len(stuck)} instances find no node"
        yield SetInstances(replicas=less, plan_uid=newest.uid, why=why)
        yield from report(newest, asked.now_s, PlanPhase.FAILED, PlanReason.UNSCHEDULABLE, message)
    elif counts.existing != spec.replicas or counts.ready < spec.replicas or counts.draining:
        yield from report(newest, asked.now_s, PlanPhase.EXECUTING, PlanReason.SCALING, have)
    else:
        yield from report(newest, asked.now_s, PlanPhase.COMPLETED, PlanReason.DONE, have)


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


def _refusal(asked: Asked, wanted: int) -> str | None:
    """Why the plan must not be carried out (any more)."""
    if not executes(asked.policy):
        return None
    bounds, budget = asked.spec.instances, asked.policy.spec.budget if asked.policy else None
    gpus = wanted * max(asked.spec.instance.gpus, 1)
    if budget is not None and gpus > budget.max_gpus:
        return f"it takes {gpus} GPUs, budget.maxGpus of the policy is {budget.max_gpus}"
    if not bounds.min_replicas <= wanted <= bounds.max_replicas:
        return f"{wanted} is not within spec.instances ({bounds.min_replicas} to {bounds.max_replicas})"
    return None
