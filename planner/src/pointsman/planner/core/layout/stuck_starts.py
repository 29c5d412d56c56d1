"""Workers that do not start: left out of every count, and beside what is decided until others serve in their place."""

from dataclasses import replace

from pointsman.api.protocol.names import LANGUAGE_ROLES, Role
from pointsman.planner.core.messages import decisions
from pointsman.planner.core.state import State
from pointsman.planner.core.types import Bounds, Decision, Observation, Policy, Reason


def exclude_stuck_workers(state: State, observation: Observation, policy: Policy) -> tuple[Observation, Policy]:
    """The service and its limits without workers that do not start: they only take up budget, and get no requests."""
    names = state.leads.stuck(observation.at_s, policy.start_s, policy.tuning)
    if not names:
        return observation, policy
    stuck = [worker for worker in observation.workers if worker.name in names]
    counted = replace(observation, workers=tuple(w for w in observation.workers if w.name not in names))
    left = {
        role: Bounds(bounds.least, max(bounds.least, bounds.most - sum(w.role is role for w in stuck)))
        for role in LANGUAGE_ROLES
        for bounds in [policy.bounds(role)]
    }
    gpus = policy.max_gpus - sum(worker.gpus for worker in stuck)
    return counted, replace(policy, max_gpus=gpus, prefill=left[Role.PREFILL], decode=left[Role.DECODE])


def add_stuck_workers(decision: Decision, observation: Observation, counted: Observation, policy: Policy) -> Decision:
    """The decision in replicas: workers that do not start are among them until others serve in their place."""
    each, replicas = observation.gpus_each, [decision.prefill, decision.decode]
    stuck_workers: list[tuple[int, str, bool]] = []
    given_up = False
    for pool, role in enumerate((Role.PREFILL, Role.DECODE)):
        stuck = observation.committed(role) - counted.committed(role)
        if stuck == 0:
            continue
        enough = decision.reason in (Reason.STEADY, Reason.SPARE_CAPACITY) and not decision.changes_layout
        bounds = policy.bounds(role)
        served = enough and counted.active(role) == replicas[pool] >= bounds.least and policy.scale_in
        ends = served and sum(replicas) * each >= policy.min_gpus
        if not ends:
            replicas[pool] = min(replicas[pool] + stuck, max(replicas[pool], bounds.most))
        given_up |= ends
        stuck_workers.append((stuck, role.label, ends))
    if not stuck_workers:
        return decision
    more = replicas[0] - decision.prefill, replicas[1] - decision.decode
    return replace(
        decision,
        reason=Reason.SPARE_CAPACITY if given_up else decision.reason,
        message=decisions.stuck_workers(decision.message, tuple(stuck_workers)),
        prefill=replicas[0],
        decode=replicas[1],
        changes_layout=decision.changes_layout or given_up,
        alternatives=tuple(
            replace(
                a,
                prefill=a.prefill + more[0],
                decode=a.decode + more[1],
                gpus=a.gpus + sum(more) * each,
                rejected_because=decisions.beside_stuck(a.rejected_because, sum(more)),
            )
            for a in decision.alternatives
        ),
    )
