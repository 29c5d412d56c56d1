"""Decisions while a gateway is not read: its part of the load is not known."""

from dataclasses import replace

from pointsman.planner.core.messages import layouts
from pointsman.planner.core.types import Decision, Observation, Policy


def without_removals(decision: Decision, observation: Observation, policy: Policy) -> Decision:
    """The decision without any change of the pools, if it switches or removes workers: all may be needed.

    It stays as it is where the GPUs exceed the budget, and where a role has no worker.
    """
    if not observation.unread_gateways or min(observation.serving_layout) == 0:
        return decision
    now = observation.pools[: len(decision.target)]
    takes = bool(decision.switches) or any(after < before for after, before in zip(decision.target, now, strict=True))
    if observation.gpus_in_use > policy.max_gpus or not takes:
        return decision
    return replace(decision.without_change(now), message=layouts.unread_pages(observation.unread))
