"""Decisions while a gateway is not read: its part of the load is not known."""

from dataclasses import replace

from pointsman.planner.core.messages import layouts
from pointsman.planner.core.types import Decision, Observation, Policy, WorkerCondition


def without_removals(decision: Decision, observation: Observation, policy: Policy) -> Decision:
    """The decision without any change of the pools, if it switches or removes workers: all may be needed.

    It stays as it is where the GPUs exceed the budget, and where a role has no worker.
    """
    there = [worker for worker in observation.encode_workers if worker.condition is not WorkerCondition.DRAINING]
    encode = len(there) if observation.encode_replicas is None else observation.encode_replicas
    now = (*observation.layout, encode)[: len(decision.target)]
    gpus = observation.layout.total * observation.gpus_each + sum(worker.gpus for worker in there)
    takes = bool(decision.switches) or any(after < before for after, before in zip(decision.target, now, strict=True))
    must = gpus > policy.max_gpus or min(observation.serving_layout) == 0
    if must or not (observation.unread_gateways and takes):
        return decision
    return replace(decision.without_change(now), message=layouts.unread_pages(observation.unread))
