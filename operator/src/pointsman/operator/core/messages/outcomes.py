"""What an action changed, in the past tense: the Event after it succeeded. Each reads alone in ``kubectl describe``."""

from collections.abc import Sequence

from pointsman.api.protocol.names import Role
from pointsman.serving.words import quantity


def finalizer_added(why: str) -> str:
    return f"finalizer added: {why}"


def finalizer_removed(why: str) -> str:
    return f"finalizer removed: {why}"


def pool_scaled(role: Role, replicas: int, why: str) -> str:
    return f"{role.label} pool scaled to {quantity(replicas, 'replica')}: {why}"


def pool_deleted(role: Role, why: str) -> str:
    return f"WorkerPool of role {role.label} deleted: {why}"


def gateway_stopped(why: str) -> str:
    return f"gateway scaled to 0 replicas: {why}"


def worker_created(worker: str, role: Role, why: str) -> str:
    return f"{worker} created as {role.label} worker: {why}"


def role_assigned(worker: str, role: Role) -> str:
    return f"{worker} assigned role {role.label}"


def budget_set(worker: str, tokens: int) -> str:
    return f"{worker} set to a prefill token budget of {quantity(tokens, 'token')}"


def worker_verified(worker: str, role: Role, partner: str | None) -> str:
    """``partner`` pulled the KV of a prefill worker."""
    if partner is not None:
        return f"{worker} verified as {role.label} worker: {partner} pulled its KV"
    alone = " without a KV transfer, because no decode worker exists" if role is Role.PREFILL else ": it answered"
    return f"{worker} verified as {role.label} worker{alone}"


def routing_started(worker: str, why: str) -> str:
    return f"{worker} added to routing: {why}"


def routing_stopped(worker: str, why: str) -> str:
    return f"{worker} removed from routing: {why}"


def condition_set(worker: str, routable: bool) -> str:
    return f"{worker} set to pod condition Routable={routable}"


def drain_begun(worker: str, reason: str, why: str) -> str:
    return f"{worker} marked for draining ({reason}): {why}"


def drain_cancelled(worker: str, why: str) -> str:
    return f"drain of {worker} cancelled: {why}"


def drain_requested(worker: str, reason: str) -> str:
    return f"{worker} stopped accepting new requests ({reason})"


def worker_claimed(worker: str, why: str) -> str:
    return f"{worker} claimed: {why}"


def role_changed(worker: str, role: Role, why: str) -> str:
    return f"{worker} moved to the {role.label} pool: {why}"


def worker_released(worker: str, why: str) -> str:
    return f"{worker} released: {why}"


def worker_deleted(worker: str, lossless: bool, why: str) -> str:
    return f"{worker} deleted{'' if lossless else ' before its drain ended'}: {why}"


def switch_created(name: str, source: Role, target: Role, plan: str) -> str:
    return f"role switch {name} created ({source.label} to {target.label}) for plan {plan}"


def switch_deleted(name: str, why: str) -> str:
    return f"role switch {name} deleted: {why}"


def switch_ended(name: str, took_s: float | None, message: str) -> str:
    took = f" after {took_s:.1f} s" if took_s is not None else ""
    return f"{name}{took}: {message}"


def plan_ended(name: str, message: str) -> str:
    return f"{name}: {message}"


def gateway_skipped(pod: str, error: str) -> str:
    return f"drains do not wait for gateway {pod}, which did not answer: {error}"


def invalid(problems: Sequence[tuple[str, str]]) -> str:
    """Fields, each with what is wrong."""
    return "; ".join(f"{field}: {problem}" for field, problem in problems)


def replicas_owned(role: Role, why: str, *, by_plans: bool, external: bool) -> str:
    owner = "plans" if by_plans else "an autoscaler or a user" if external else "the spec of the service"
    return f"replicas of the {role.label} pool are now set by {owner}: {why}"


def replicas_restored(role: Role, replicas: int, why: str) -> str:
    return f"{role.label} pool restored to {quantity(replicas, 'replica')}: {why}"


def instances_scaled(replicas: int, why: str) -> str:
    return f"scaled to {quantity(replicas, 'instance')}: {why}"


def routing_set(why: str) -> str:
    return f"routing changed: {why}"
