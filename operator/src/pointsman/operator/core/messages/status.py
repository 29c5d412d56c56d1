"""Messages of the conditions of a service, its pools and its policy."""

from collections.abc import Mapping, Sequence

from pointsman.api.protocol.names import Role
from pointsman.api.v1alpha1.plannerpolicy import Mode
from pointsman.operator.core.messages.words import last_lines
from pointsman.serving.words import do, names_of, quantity

# --- workers that fail ---


def unreachable(worker: str, node: str | None) -> str:
    return f"{worker} on node {node} answers neither the operator nor any gateway"


def node_lost(worker: str, node: str | None) -> str:
    return f"{worker} is on node {node}, which does not answer; the pod is replaced when Kubernetes has deleted it"


def unresponsive(worker: str) -> str:
    return f"{worker} served before and fails its readiness probe now; the kubelet restarts it if that lasts"


def unschedulable(worker: str, scheduler: str) -> str:
    return f"{worker} waits for a node: {scheduler}"


def pod_ended(worker: str, phase: str, cause: str) -> str:
    return f"{worker} is {phase}: {cause or 'no reason given'}"


def not_started(worker: str, reason: str | None, message: str) -> str:
    because = f" ({reason})" if reason else ""
    return f"pod {worker} does not start{because}: {message}"


def crashed(worker: str, code: int, reason: str | None, restarts: int, log: str) -> str:
    cause = f" ({reason})" if reason else ""
    lines = last_lines(log) or "none"
    return f"{worker} ended with exit code {code}{cause}, restarts: {restarts}; its last lines: {lines}"


def unreadable(kind: str, name: str, why: str) -> str:
    return f"{kind} {name} cannot be read by this version: {why}"


def nothing_failed() -> str:
    return "nothing has failed"


# --- what a worker that does not serve yet waits for ---


def node_does_not_answer(node: str | None) -> str:
    return f"is on node {node}, which does not answer"


def waits_for_gates() -> str:
    return "waits for its readiness gates"


def waits_for_container() -> str:
    return "waits for its container"


def waits_for_node() -> str:
    return "waits for a node"


def waits_for_role() -> str:
    return "waits for its role"


def probe_fails() -> str:
    return "fails its readiness probe"


def loading() -> str:
    return "loads its engine"


def no_answer_yet() -> str:
    return "does not answer yet"


def waits_for_verification(role: Role | None) -> str:
    return "waits for a decode worker to be verified with" if role is Role.PREFILL else "waits to be verified"


def becomes_routable() -> str:
    return "becomes routable"


# --- one pool ---


def serving(routable: int, target: int, role: Role) -> str:
    return f"{routable} of {quantity(target, f'{role.label} worker')} {do(target, 'serve')}"


def no_pool(routable: int, role: Role) -> str:
    have = f"{quantity(routable, f'{role.label} worker')} {do(routable, 'serve')}"
    return f"{have}; the WorkerPool does not exist, so no worker is added"


def also(have: str, cause: str) -> str:
    return f"{have}; {cause}"


def starting(have: str, workers: Sequence[tuple[str, str]]) -> str:
    """``workers``: names, each with what it waits for."""
    return f"{have}; {names_of(f'{name} {state}' for name, state in workers)}"


def budget_used(have: str, maximum: int) -> str:
    used = "the only GPU of budget.maxGpus is" if maximum == 1 else f"all {maximum} GPUs of budget.maxGpus are"
    return f"{have}; {used} in use (draining workers included)"


def creating(have: str) -> str:
    return f"{have}; the others are being created"


def replicas_clamped(have: str, asked: int, role: Role, minimum: int, maximum: int) -> str:
    return (
        f"{have}; the WorkerPool has spec.replicas {asked}, but spec.pools.{role.label} of the service allows "
        f"{minimum} to {maximum}"
    )


def replicas_kept(have: str, role: Role, replicas: int) -> str:
    return f"{have}; spec.pools.{role.label}.replicas {replicas} takes effect when it is edited again"


def replicas_ignored(have: str, role: Role, replicas: int, mode: Mode, policy: str) -> str:
    owners = "kubectl scale or an autoscaler changes" if mode is Mode.EXTERNAL else "plans change"
    return (
        f"{have}; spec.pools.{role.label}.replicas {replicas} has no effect: PlannerPolicy '{policy}' is in mode "
        f"{mode}, so only {owners} the replicas of the pool"
    )


def replicas_in_bounds() -> str:
    return "replicas are limited by the service"


def pool_draining(count: int) -> str:
    return f"{quantity(count, 'worker')} draining"


def pool_starting(count: int) -> str:
    return f"{quantity(count, 'worker')} starting"


def pool_scaling(existing: int, target: int) -> str:
    return f"{existing} of {quantity(target, 'desired worker')} {do(target, 'exist')}"


def nothing_to_do() -> str:
    return "nothing to do"


# --- the service ---


def summarized(summary: str, message: str) -> str:
    return f"{summary}: {message}"


def together(messages: Sequence[str]) -> str:
    """One message of several."""
    return "; ".join(messages)


def no_gateway() -> str:
    return "no gateway is ready"


def no_decode_worker() -> str:
    return "no decode worker serves"


def answered(has_prefill: bool) -> str:
    alone = "" if has_prefill else "; without a prefill worker, decode workers compute all prompts"
    return f"requests are answered{alone}"


def deleting(gateways: int, workers: int) -> str:
    return f"deleted; {quantity(gateways, 'gateway')} and {quantity(workers, 'worker')} finish their requests"


def paused() -> str:
    return "spec.paused is true: the operator reports and changes nothing"


def scaling(counts: Mapping[Role, tuple[int, int | None]]) -> str:
    """``counts``: existing and desired workers by role."""
    return ", ".join(f"{role.label} {existing} of {desired}" for role, (existing, desired) in counts.items())


def idle(kept_image: str | None = None, default: str | None = None) -> str:
    """``kept_image``: the workers' image, where the operator's default is another one."""
    kept = f"; workers keep image {kept_image}, the operator's default is {default}" if kept_image else ""
    return f"{nothing_to_do()}{kept}"


def rollout_needed(workers: Sequence[str], without_encode: int) -> str:
    """``workers``: names of those of an older revision, ``without_encode`` of which do not use the encode workers."""
    count = len(workers)
    lacking = ""
    if without_encode == count:
        lacking = f" and do{'es' if count == 1 else ''} not use the encode workers"
    elif without_encode:
        lacking = f" ({without_encode} of them without the encode workers)"
    verb, them = ("runs", "it") if count == 1 else ("run", "them one by one")
    return (
        f"{quantity(count, 'worker')} {verb} an older revision{lacking}; "
        f"delete {them} to replace {them.split()[0]}: {', '.join(workers[:5])}"
    )


def no_switch() -> str:
    return "no role switch is running"


def switch_running(name: str, source: Role, target: Role, phase: str) -> str:
    return f"{name} {source.label} to {target.label}: {phase}"


# --- what the shell meets ---


def token_refused(secret: str, workers: Sequence[str]) -> str:
    return (
        f"{names_of(workers)} refuse the control token of Secret {secret}, because they started with another one; "
        "write both tokens as new,old, or delete the pods"
    )


def nats_unreachable(worker: str, url: str) -> str:
    return f"{worker} cannot reach NATS at {url}, so decode workers compute all prompts"


def policy_missing(name: str) -> str:
    return f"spec.policyRef.name is {name}: this namespace has no such PlannerPolicy, so nothing is planned"


def nothing_planned(why: str) -> str:
    return f"{why}; nothing is planned"


def nothing_created(why: str) -> str:
    return f"{why}; no worker is created"


def of_policy(name: str, message: str) -> str:
    return f"policy {name}: {message}"


def refused(what: str, error: str) -> str:
    """``what`` was being written, for example Secret chat-control; ``error`` is the API server's answer."""
    return f"{what}: {error}"


def command_failed(error: str) -> str:
    return f"cannot be configured ({error}); the operator retries"


def verification_failed(worker: str, error: str) -> str:
    return f"{worker}: {error}"


def role_command() -> str:
    return "is being assigned its role"


def budget_command() -> str:
    return "is being set to its prefill token budget"


def verify_command() -> str:
    return "is being verified"


def drain_command() -> str:
    return "is being drained"


def retried(error: str) -> str:
    return f"{error}; the operator retries"


def not_read(why: str) -> str:
    return f"ignored, because this version of the operator cannot read it: {why}"


def dropped_fields(fields: Sequence[str]) -> str:
    more = f"; and {len(fields) - 5} more" if len(fields) > 5 else ""
    return f"applied and dropped: {'; '.join(fields[:5])}{more}"


# --- a policy ---


def budget_too_small(maximum: int, name: str, needed: int, fields: Sequence[str]) -> str:
    return (
        f"budget.maxGpus is {maximum}, but the minReplicas of {name} need {quantity(needed, 'GPU')} "
        f"({' and '.join(fields)}): set maxGpus >= {needed}, or lower minReplicas"
    )


def budget_too_large(minimum: int, name: str, possible: int, fields: Sequence[str]) -> str:
    return (
        f"budget.minGpus is {minimum}, but the maxReplicas of {name} allow {quantity(possible, 'GPU')} "
        f"({' and '.join(fields)}): set minGpus <= {possible}, or raise maxReplicas"
    )


def policy_accepted(mode: str, ignored: Sequence[str]) -> str:
    if not ignored:
        return f"applied as written, in mode {mode}"
    return f"applied in mode {mode}, without fields that this version ignores: {', '.join(ignored)}"


def policy_in_use(names: Sequence[str]) -> str:
    return f"used by {', '.join(names)}"


def policy_not_in_use() -> str:
    return "no service and no elastic group names it in spec.policyRef"
