"""A PlannerPolicy and a service's bounds as the core's plain values."""

from dataclasses import replace
from typing import Final

from pointsman.api.protocol.names import Role
from pointsman.api.v1alpha1.elasticgroup import ElasticGroupSpec
from pointsman.api.v1alpha1.llmservice import LLMServiceSpec
from pointsman.api.v1alpha1.plannerpolicy import PlannerPolicySpec, Seasonality
from pointsman.planner.core.engine.startup_time import start_of_model
from pointsman.planner.core.types import Bounds, Objectives, Policy

STALE_INTERVALS: Final = 2.5  # scrapes of Prometheus until metrics are too old: one may fail, and is read a bit later


def policy_of(policy: PlannerPolicySpec, service: LLMServiceSpec) -> Policy:
    """What ``decide`` must respect for one service."""
    pools = {role: service.pools.of(role) for role in service.roles}
    bounds = {role: Bounds(pool.min_replicas, pool.max_replicas) for role, pool in pools.items()}
    made = planner_policy(policy, bounds[Role.PREFILL], bounds[Role.DECODE])
    of_model_s = start_of_model(service.model.source, service.worker.gpus, made.tuning)
    return replace(made, encode=bounds.get(Role.ENCODE), start_s=made.start_s if made.start_is_told else of_model_s)


def policy_of_group(policy: PlannerPolicySpec, group: ElasticGroupSpec | None = None) -> Policy:
    """What must be respected for an elastic group. Its bounds are of instances, and not here."""
    made = planner_policy(policy, Bounds(1, 1), Bounds(1, 1))
    if group is None or made.start_is_told:
        return made
    return replace(made, start_s=start_of_model(group.model.source, group.instance.gpus, made.tuning))


def planner_policy(policy: PlannerPolicySpec, prefill: Bounds, decode: Bounds) -> Policy:
    """The same with the bounds of the pools given: a replay has no service."""
    actions = policy.actions
    switching = actions.role_switch
    made = Policy(
        mode=policy.mode,
        objectives=Objectives(
            ttft_ms=policy.objectives.ttft_ms,
            tpot_ms=policy.objectives.tpot_ms,
            ttft_ms_per_prompt_token=policy.objectives.ttft_ms_per_prompt_token,
            attainment=policy.objectives.attainment,
        ),
        max_gpus=policy.budget.max_gpus,
        min_gpus=policy.budget.min_gpus,
        prefill=prefill,
        decode=decode,
        interval_s=policy.metrics.interval_seconds,
        stale_after_s=policy.metrics.stale_after_seconds,
        remote_prefill=actions.remote_prefill.enabled,
        flow_control=actions.flow_control.enabled,
        role_switch=switching.enabled,
        role_switch_needs_approval=switching.needs_approval,
        max_in_transition_share=switching.max_in_transition_percent / 100,
        scale_out=actions.scale_out.enabled,
        scale_in=actions.scale_in.enabled,
        scale_in_stabilization_s=actions.scale_in.stabilization_seconds,
        seasonal=policy.forecast.seasonality is Seasonality.AUTO,
    )
    lead_s = actions.scale_out.lead_seconds
    return made if lead_s is None else replace(made, start_s=lead_s, start_is_told=True)
