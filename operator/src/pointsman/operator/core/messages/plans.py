"""Messages of a Plan's status: what it waits for, what it did, and why it is not carried out."""

from collections.abc import Mapping
from datetime import datetime

from pointsman.api.protocol.names import Role
from pointsman.serving.words import are, do, quantity


def newer(name: str) -> str:
    return f"superseded by the newer plan {name}"


def denied(by: str | None) -> str:
    return f"denied by {by}" if by else "denied"


def withdrawn(plan: str, message: str) -> str:
    return f"withdrawn by plan {plan}: {message}"


def expired(needs_approval: bool, at: datetime) -> str:
    return f"not {'approved' if needs_approval else 'started'} before it expired at {at:%H:%M:%S} UTC"


def awaiting_approval(name: str, namespace: str) -> str:
    return (
        f"awaiting approval: kubectl patch plan {name} --namespace {namespace} "
        '--type=merge -p \'{"spec":{"approval":{"decision":"Approved"}}}\''
    )


def switch_deleted(name: str) -> str:
    return f"role switch {name} was deleted before it ended"


def switching(count: int) -> str:
    return f"switching the role of {quantity(count, 'worker')}"


def switch_failed(name: str, phase: str, message: str) -> str:
    return f"role switch {name} is {phase}: {message}"


def waits_for_switch(name: str) -> str:
    return f"waiting for the end of role switch {name}"


def waits_for_pool(role: str) -> str:
    return f"waiting for WorkerPool {role}, which does not exist"


def scales_pool(plan: str, replicas: int, wanted: int) -> str:
    return f"plan {plan} changes the replicas of this pool from {replicas} to {wanted}"


def progress(counts: Mapping[Role, tuple[int, int]]) -> str:
    """``counts``: serving and desired workers by role."""
    return ", ".join(f"{role.label} {serving} of {desired}" for role, (serving, desired) in counts.items())


def pending_before(progress: str, worker: str) -> str:
    return f"{progress}; {worker} still waits for a node, as it did before the plan"


def no_node(plan: str, count: int, noun: str) -> str:
    """``noun``: prefill worker, instance."""
    return f"plan {plan} gives up {quantity(count, noun)} that {do(count, 'fit')} on no node"


def given_up(progress: str, worker: str, scheduler: str | None) -> str:
    return f"{progress}; {worker} is given up because it fits on no node: {scheduler}"


def shadow() -> str:
    return "recorded only, because the mode of the policy was Shadow when the plan was made"


def not_executed(mode: str | None) -> str:
    now = f"the mode of the policy is now {mode}" if mode is not None else "the service now has no policy"
    return f"not carried out, because {now}"


def routing(local_tokens: int, pending: int | None, decoding: int | None) -> str:
    local = f"prompts of up to {quantity(local_tokens, 'uncached token')} are prefilled on their decode worker"
    bounds = []
    if pending is not None:
        bounds.append(f"{quantity(pending, 'prompt token')} per prefill worker {are(pending)} pending")
    if decoding is not None:
        bounds.append(f"{quantity(decoding, 'request')} per decode worker {are(decoding)} being decoded")
    return f"{local}; each gateway queues new requests while more than {' or '.join(bounds)}" if bounds else local


def instances_scaled(plan: str, replicas: int, wanted: int) -> str:
    return f"plan {plan} changes the number of instances from {replicas} to {wanted}"


def instance_progress(ready: int, desired: int) -> str:
    return f"{ready} of {quantity(desired, 'instance')} ready"


def switch_of_plan(plan: str, source: Role, target: Role) -> str:
    return f"plan {plan} switches one worker from {source.label} to {target.label}"


def step_disabled(what: str, action: str) -> str:
    """``what``: switches roles, starts workers, removes workers."""
    return f"the plan {what}, but actions.{action}.enabled of the policy is false"


def step_unapproved(what: str, rule: str) -> str:
    """``rule``: actions.scaleIn.needsApproval, mode Approve."""
    return f"the plan {what} and was decided before {rule} of the policy required an approval"


def above_budget(gpus: int, maximum: int) -> str:
    return f"the plan needs {quantity(gpus, 'GPU')}, more than budget.maxGpus of the policy ({maximum})"


def below_budget(gpus: int, minimum: int) -> str:
    return f"the plan leaves {quantity(gpus, 'GPU')}, fewer than budget.minGpus of the policy ({minimum})"


def no_policy() -> str:
    return "the service now has no policy"


def no_encode_pool(replicas: int) -> str:
    return f"the plan has {quantity(replicas, 'encode worker')}, but the service has no spec.encode"


def out_of_bounds(what: str, wanted: int, field: str, minimum: int, maximum: int) -> str:
    """``what``: prefill, instances."""
    return f"the plan has {what} {wanted}, which {field} does not allow ({minimum} to {maximum})"


def status_changed(phase: str, message: str) -> str:
    return f"{phase}: {message}"
