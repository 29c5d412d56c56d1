"""Why the operator decided on an action: the ``why`` of its log line, and the second half of most outcomes."""

from pointsman.api.protocol.names import Role
from pointsman.serving.words import quantity, were


def finalizer_needed() -> str:
    return "workers are drained before the service is deleted"


def skip_drain_annotation() -> str:
    return "the skip-drain annotation is set"


def service_is_deleted() -> str:
    return "the service is being deleted"


def gateway_is_gone() -> str:
    return "the service is being deleted and its gateway has stopped"


def nothing_left() -> str:
    return "no gateway and no worker is left"


def replicas_edited(role: Role) -> str:
    return f"spec.pools.{role.label}.replicas was edited"


def role_removed(role: Role) -> str:
    return f"spec.{role.label} was removed and the last {role.label} worker is deleted"


def pool_size(role: Role, active: int, target: int) -> str:
    return f"the {role.label} pool has {active} of {quantity(target, 'desired worker')}"


def plans_own_replicas() -> str:
    return "the mode of the policy lets plans set them"


def others_own_replicas() -> str:
    return "the mode of the policy is External"


def spec_owns_replicas(role: Role) -> str:
    return f"no plan and no autoscaler sets them; edit spec.pools.{role.label}.replicas to change them"


def written_by_others(replicas: int) -> str:
    written = f"{quantity(replicas, 'replica')} {were(replicas)} written"
    return f"{written}, but plans own this pool; edit the policy, or set its mode to External"


def not_verified(role: Role) -> str:
    return f"its container is not verified as {role.label} worker, because it restarted or changed its role"


def not_in_role(phase: str, reported: Role | None, role: Role) -> str:
    return f"it reports phase {phase} and role {reported or 'none'} instead of serving as {role.label} worker"


def role_missing(role: Role, phase: str) -> str:
    return f"it is in the {role.label} pool and reports phase {phase}"


def budget_differs(before: int | None) -> str:
    return f"it reported {_budget(before)}"


def _budget(tokens: int | None) -> str:
    return f"a prefill token budget of {quantity(tokens, 'token')}" if tokens else "no prefill token budget"


def verified(role: Role) -> str:
    return f"it answered a request as {role.label} worker"


def verification_due(role: Role, partner: str | None) -> str:
    """``partner`` pulls the KV of a prefill worker; None: no worker does."""
    if role is not Role.PREFILL:
        return f"its role {role.label} is not verified yet"
    pull = f"{partner} pulls its KV" if partner else "no decode worker exists that could pull its KV"
    return f"its role prefill is not verified yet; {pull}"


def condition_follows(routable: bool) -> str:
    return "it is routable" if routable else "it is not routable"


def pod_ended(phase: str) -> str:
    return f"its pod is {phase} and does not start again"


def drain_not_running(reason: str) -> str:
    return f"{reason}: its container does not run, so nothing is in flight"


def drain_never_served(reason: str) -> str:
    return f"{reason}: it never served a request"


def drain_deadline(reason: str, timeout_s: int, in_flight: int | None, leases: int) -> str:
    """``in_flight`` None: the worker does not answer."""
    left = (
        "it does not answer"
        if in_flight is None
        else f"{quantity(in_flight, 'request')} in flight, {quantity(leases, 'KV lease')}"
    )
    return f"{reason}: drain.timeoutSeconds {timeout_s} has passed ({left})"


def drain_started(reason: str) -> str:
    return f"{reason}: its drain has started"


def drain_idle(reason: str) -> str:
    return f"{reason}: no request is in flight or queued, and no KV is leased"
