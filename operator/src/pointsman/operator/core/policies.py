"""What is said about a PlannerPolicy: whether it can be followed as it is written, and who does."""

from collections.abc import Mapping
from datetime import datetime

from pointsman.api.v1alpha1.conditions import ConditionStatus, Reason, with_condition
from pointsman.api.v1alpha1.elasticgroup import ElasticGroupSpec
from pointsman.api.v1alpha1.llmservice import LLMServiceSpec, Routing, RoutingObjectives
from pointsman.api.v1alpha1.plannerpolicy import PlannerPolicySpec, PlannerPolicyStatus, PolicyConditionType
from pointsman.api.v1alpha1.removed import removed_fields
from pointsman.operator.core.desired import budgeted_gpus
from pointsman.operator.core.messages import status as text
from pointsman.operator.core.snapshot import Policy

Follower = LLMServiceSpec | ElasticGroupSpec
"""Spec of what has a policyRef."""


def with_objectives(routing: Routing | None, policy: Policy | None) -> Routing | None:
    """The routing numbers with the objectives that gateways count against; those of no policy are taken away."""
    if policy is None:
        kept = None if routing is None else routing.model_copy(update={"objectives": None})
        return None if kept == Routing() else kept
    goals = policy.spec.objectives
    objectives = RoutingObjectives(
        ttft_ms=goals.ttft_ms, ttft_ms_per_prompt_token=goals.ttft_ms_per_prompt_token, tpot_ms=goals.tpot_ms
    )
    return (routing or Routing()).model_copy(update={"objectives": objectives})


def objectives_of(routing: Routing | None) -> Routing | None:
    """What the operator owns of the routing numbers; None: nothing."""
    if routing is None or routing.objectives is None:
        return None
    return Routing(objectives=routing.objectives)


def contradiction(policy: PlannerPolicySpec, name: str, follower: Follower) -> tuple[Reason, str] | None:
    """Why a service or an elastic group of that name cannot follow the policy: only the two objects together say it."""
    least, most, gpus, budget = *_gpus(follower), policy.budget
    if budget.max_gpus < least:
        return Reason.BUDGET_BELOW_MINIMUM, text.budget_too_small(budget.max_gpus, name, least, gpus)
    if budget.min_gpus > most:
        return Reason.BUDGET_ABOVE_MAXIMUM, text.budget_too_large(budget.min_gpus, name, most, gpus)
    return None


def _gpus(follower: Follower) -> tuple[int, int, list[str]]:
    """(fewest, most, the fields with those of one worker)."""
    if isinstance(follower, ElasticGroupSpec):
        each, bounds = max(follower.instance.gpus, 1), follower.instances
        return each * bounds.min_replicas, each * bounds.max_replicas, ["instance.gpus"]
    pools = [(budgeted_gpus(follower, role), follower.pools.of(role)) for role in follower.roles]
    least = sum(each * pool.min_replicas for each, pool in pools)
    most = sum(each * pool.max_replicas for each, pool in pools)
    return least, most, ["worker.gpus"] if follower.encode is None else ["worker.gpus", "encode.gpus"]


def policy_status(
    policy: PlannerPolicySpec,
    users: Mapping[str, Follower],
    *,
    dropped: str | None,
    before: PlannerPolicyStatus,
    generation: int,
    now: datetime,
) -> PlannerPolicyStatus:
    """The status; ``users`` are those that refer to the policy, by name; ``dropped``: a sentence about fields
    that were applied and are not there. Times stay where nothing flips."""
    refused = [found for name in sorted(users) if (found := contradiction(policy, name, users[name]))]
    if dropped is not None:
        refused.append((Reason.UNKNOWN_FIELD, dropped))
    reason = refused[0][0] if refused else Reason.ACCEPTED
    sentence = text.together([message for _, message in refused]) or text.policy_accepted(
        policy.mode, removed_fields(policy)
    )
    said = [
        (PolicyConditionType.ACCEPTED, not refused, reason, sentence),
        (
            PolicyConditionType.IN_USE,
            bool(users),
            Reason.IN_USE if users else Reason.NOT_IN_USE,
            text.policy_in_use(sorted(users)) if users else text.policy_not_in_use(),
        ),
    ]
    conditions = before.conditions
    for kind, holds, word, message in said:
        status = ConditionStatus.TRUE if holds else ConditionStatus.FALSE
        conditions = with_condition(conditions, kind, status, word, message, generation=generation, now=now)
    return PlannerPolicyStatus(observed_generation=generation, conditions=conditions)
