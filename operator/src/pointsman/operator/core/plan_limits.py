"""What a policy and a service let a plan do. Both are edited at any time, so this is checked before every step."""

from collections.abc import Iterator
from dataclasses import dataclass

from pointsman.api.protocol.names import Role
from pointsman.api.v1alpha1.plannerpolicy import Budget, Mode, PlannerPolicySpec
from pointsman.operator.core.actions import CreateSwitch
from pointsman.operator.core.desired import budgeted_gpus, pool_target
from pointsman.operator.core.messages import plans as text
from pointsman.operator.core.snapshot import Plan, Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """What a plan has not begun yet: role switches, workers to start, workers to remove."""

    switches: int = 0
    starts: int = 0
    removals: int = 0


def wanted_switches(plan: Plan) -> Iterator[CreateSwitch]:
    """The role switches of a plan, with their computed names."""
    number = 0
    for step in plan.spec.switches:
        for _ in range(step.count):
            yield CreateSwitch(
                name=f"{plan.name}-{number}",
                plan=plan.name,
                plan_uid=plan.uid,
                source=step.from_role,
                target=step.to_role,
                drain_first=plan.spec.drain_first,
                why=text.switch_of_plan(plan.name, step.from_role, step.to_role),
            )
            number += 1


def refused_steps(policy: PlannerPolicySpec, plan: Plan, steps: Steps) -> str | None:
    """Why ``policy.actions`` does not allow what the plan has not begun yet; None: it does."""
    actions, approved = policy.actions, plan.spec.approval.decision == "Approved"
    for count, name, what, action in (
        (steps.switches, "roleSwitch", "switches roles", actions.role_switch),
        (steps.starts, "scaleOut", "starts workers", actions.scale_out),
        (steps.removals, "scaleIn", "removes workers", actions.scale_in),
    ):
        if count and not action.enabled:
            return text.step_disabled(what, name)
        if count and not approved and (action.needs_approval or policy.mode is Mode.APPROVE):
            rule = f"actions.{name}.needsApproval" if action.needs_approval else "mode Approve"
            return text.step_unapproved(what, rule)
    return None


def refused_gpus(budget: Budget, gpus: int, gpus_before: int) -> str | None:
    """Why a policy's budget does not allow this number of GPUs; None: it does."""
    if gpus > budget.max_gpus:
        return text.above_budget(gpus, budget.max_gpus)
    if gpus < min(budget.min_gpus, gpus_before):
        return text.below_budget(gpus, budget.min_gpus)
    return None


def refusal(plan: Plan, snapshot: Snapshot) -> str | None:
    """Why the plan must not be carried out (any further); None: it may be."""
    service, policy = snapshot.service.spec, snapshot.policy
    if policy is None:
        return text.no_policy()
    if Role.ENCODE in plan.spec.roles and service.encode is None:
        return text.no_encode_pool(plan.spec.replicas(Role.ENCODE))
    gpus = sum(budgeted_gpus(service, role) * _after(plan, role, snapshot) for role in service.roles)
    before = sum(budgeted_gpus(service, role) * pool_target(snapshot, role).clamped for role in service.roles)
    if (refused := refused_gpus(policy.spec.budget, gpus, before)) is not None:
        return refused
    for role in plan.spec.roles:
        bounds, wanted = service.pools.of(role), plan.spec.replicas(role)
        if not bounds.min_replicas <= wanted <= bounds.max_replicas:
            field = f"spec.pools.{role.label}"
            return text.out_of_bounds(role.label, wanted, field, bounds.min_replicas, bounds.max_replicas)
    return refused_steps(policy.spec, plan, _steps(plan, snapshot))


def _after(plan: Plan, role: Role, snapshot: Snapshot) -> int:
    """Workers of a role once the plan is carried out; a pool that it does not write stays as it is."""
    return plan.spec.replicas(role) if role in plan.spec.roles else pool_target(snapshot, role).clamped


def _steps(plan: Plan, snapshot: Snapshot) -> Steps:
    known = {switch.name: switch for switch in snapshot.switches}
    not_begun = [
        step
        for step in wanted_switches(plan)
        if (switch := known.get(step.name)) is None
        or not (switch.ended or switch.status.worker_uid or snapshot.claimed_by(switch.uid))
    ]
    starts = removals = 0
    for role in plan.spec.roles:
        pool = snapshot.pools.get(role)
        if pool is None or pool.set_by == plan.uid:
            continue
        # What switches will still bring and take: those on their way, and those that are to begin.
        coming = snapshot.coming_by_switch(role) + sum(step.target is role for step in not_begun)
        leaving = snapshot.leaving_by_switch(role) + sum(step.source is role for step in not_begun)
        change = plan.spec.replicas(role) - (pool.replicas + coming - leaving)
        starts += max(0, change)
        removals += max(0, -change)
    return Steps(switches=len(not_begun), starts=starts, removals=removals)
