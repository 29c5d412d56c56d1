"""Messages of a RoleSwitch's status, and the reasons of the actions of a switch."""

from collections.abc import Sequence

from pointsman.api.protocol.names import Role
from pointsman.serving.words import are, names_of, quantity


def claimed(name: str, source: Role, target: Role) -> str:
    return f"role switch {name} from {source.label} to {target.label}"


def pod_ended(name: str, phase: str) -> str:
    return f"role switch {name}: the pod is {phase} and does not start again"


def service_deleted() -> str:
    return "the service is being deleted"


def paused() -> str:
    return "waiting until spec.paused is false"


def kept(count: int) -> str:
    switches = quantity(count, "role switch", "role switches")
    return f"only the {switches} that ended last {are(count)} kept"


def no_service(name: str) -> str:
    return f"spec.serviceRef.name is {name}: this namespace has no such LLMService"


def switch_missing() -> str:
    return "its role switch was deleted or cannot be read"


def replaced(name: str) -> str:
    return f"role switch {name} failed and the worker serves in neither role, so it is replaced"


def ended(name: str, phase: str) -> str:
    return f"role switch {name} is {phase}"


def lost_when_done(name: str, worker: str) -> str:
    return f"role switch {name} had switched {worker} before its pod was lost"


def lost_after(worker: str, target: Role) -> str:
    return f"{worker} was lost right after its role switch; the {target.label} pool replaces it"


def lost_during(worker: str, source: Role) -> str:
    return f"{worker} was lost during its role switch; the {source.label} pool replaces it and no replica was moved"


def plan_ended(plan: str, phase: str) -> str:
    return f"plan {plan} is {phase}, so this role switch does not start"


def below_minimum(source: Role, left: int, minimum: int) -> str:
    return (
        f"the switch would leave {quantity(left, f'{source.label} worker')}, fewer than "
        f"spec.pools.{source.label}.minReplicas ({minimum})"
    )


def above_maximum(target: Role, replicas: int, maximum: int) -> str:
    return (
        f"the switch would make {quantity(replicas, f'{target.label} worker')}, more than "
        f"spec.pools.{target.label}.maxReplicas ({maximum})"
    )


def last_routable(source: Role, routable: int, others: Sequence[tuple[str, str]]) -> str:
    """``others``: names of workers of the pool that are not routable, each with why."""
    states = "".join(f"; {name} {state}" for name, state in others)
    have = f"{quantity(routable, f'{source.label} worker')} {are(routable)} routable"
    return f"{have}, and the last routable worker is never switched{states}"


def not_ready(worker: str) -> str:
    return f"waiting until {worker} is routable"


def no_kv_peer(worker: str) -> str:
    return f"no other decode worker has the image and flags of {worker}, so none could pull its KV"


def worker_not_found(wanted: str, source: Role, workers: Sequence[str]) -> str:
    known = names_of(workers, 8) or "none"
    return f"workerName is {wanted}, which does not exist; the {source.label} workers are: {known}"


def claimed_by_other(worker: str, other: str) -> str:
    return f"waiting for the end of role switch {other}, which has claimed {worker}"


def wrong_role(wanted: str, role: Role | None, source: Role) -> str:
    has = f"a {role.label} worker" if role is not None else "a worker without a role"
    return f"workerName is {wanted}, which is {has}, not a {source.label} worker"


def worker_draining(wanted: str) -> str:
    return f"workerName is {wanted}, which is draining"


def not_running() -> str:
    return "does not run"


def probe_fails() -> str:
    return "fails its readiness probe"


def role_not_verified(role: Role | None) -> str:
    return f"is not verified as {role.label if role else 'any'} worker yet"


def label_pending() -> str:
    return "is not labelled routable yet"


def takes_role(target: Role) -> str:
    return f"the worker takes role {target.label}"


def drain_timed_out(timeout_s: int, in_flight: int | None) -> str:
    left = "it does not answer" if in_flight is None else f"{quantity(in_flight, 'request')} in flight"
    return f"the worker still has work after {timeout_s} s (drainTimeoutSeconds): {left}"


def waiting_for_gateways() -> str:
    return "waiting until no gateway routes requests to the worker"


def draining(answers: bool) -> str:
    return "finishing requests in flight" if answers else "finishing requests in flight; the worker does not answer now"


def serves(worker: str, target: Role) -> str:
    return f"{worker} serves as {target.label} worker"


def done(name: str) -> str:
    return f"role switch {name} is done"


def role_timed_out(target: Role, timeout_s: float) -> str:
    return f"the worker did not serve as {target.label} worker within {timeout_s:.0f} s"


def verifying(target: Role) -> str:
    return f"the worker answers a verification request as {target.label} worker"


def rolled_back(name: str) -> str:
    return f"role switch {name} is rolled back"


def could_not_switch() -> str:
    return "the worker could not switch"


def rollback_failed(cause: str, source: Role) -> str:
    return f"{cause}; the worker no longer serves as {source.label} worker either, so it is replaced"


def replica_moved(why: str, role: Role, delta: int) -> str:
    return f"{why}; {role.label} pool {delta:+d}"


def status_changed(phase: str, message: str) -> str:
    return f"{phase}: {message}"
