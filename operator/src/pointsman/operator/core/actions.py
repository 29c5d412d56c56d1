"""What the operator can do.

An action is data with a ``why``, the reason that is logged, and an ``outcome``, the Event after it succeeded. The shell
executes it, and its failure changes nothing but the next snapshot. Every action is safe to repeat.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from pointsman.api.protocol.names import ROUTABLE_LABEL, Role
from pointsman.api.v1alpha1.plan import PlanRouting, PlanStatus
from pointsman.api.v1alpha1.roleswitch import RoleSwitchStatus
from pointsman.operator.core.ledger import PoolChange
from pointsman.operator.core.messages import outcomes
from pointsman.operator.core.snapshot import DrainReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """``why``: the reason of the decision, for the log."""

    why: str

    def outcome(self) -> str:
        """What happened, in the past tense and complete without its neighbours: the text of the Event."""
        raise NotImplementedError(type(self).__name__)

    @property
    def label(self) -> str:
        """What logs, metrics and refusals call it."""
        return type(self).__name__


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerAction(Action):
    """Done to one pod; the uid keeps it from hitting a successor of the same name."""

    worker: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AddFinalizer(Action):
    """Before the first worker exists, so that no service ever goes without its workers being drained."""

    def outcome(self) -> str:
        return outcomes.finalizer_added(self.why)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveFinalizer(Action):
    """The service may go; garbage collection takes what it owned."""

    def outcome(self) -> str:
        return outcomes.finalizer_removed(self.why)


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePool(Action):
    """Change a pool's number and ledger, all changes of a pass in one write under ``resource_version``."""

    role: Role
    changes: tuple[PoolChange, ...]
    resource_version: str

    @property
    def label(self) -> str:
        return str(self.changes[0].kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletePool(Action):
    """Delete the WorkerPool of a role that the service has no more, and its PodDisruptionBudget."""

    role: Role

    def outcome(self) -> str:
        return outcomes.pool_deleted(self.role, self.why)


@dataclass(frozen=True, slots=True, kw_only=True)
class StopGateway(Action):
    """Scale the gateway's Deployment to zero: its pods stop accepting and finish their streams."""

    def outcome(self) -> str:
        return outcomes.gateway_stopped(self.why)


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateWorker(Action):
    """Create one pod. The name is computed, so a repeat is a conflict with ourselves."""

    name: str
    role: Role
    manifest: Mapping[str, Any]

    def outcome(self) -> str:
        return outcomes.worker_created(self.name, self.role, self.why)


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveRole(WorkerAction):
    """POST role on the worker's control API, with the prompt tokens that a prefill worker computes at one time."""

    url: str
    role: Role
    prefill_token_budget: int

    def outcome(self) -> str:
        return outcomes.role_assigned(self.worker, self.role)


@dataclass(frozen=True, slots=True, kw_only=True)
class SetPrefillTokenBudget(WorkerAction):
    """The same request to a worker that serves as prefill worker already: only the budget changes."""

    url: str
    prefill_token_budget: int

    def outcome(self) -> str:
        return outcomes.budget_set(self.worker, self.prefill_token_budget)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyWorker(WorkerAction):
    """POST verify: a real request in the role; prefill with a partner that pulls the KV."""

    url: str
    role: Role
    partner_url: str | None
    partner: str | None = None  # name of the worker at partner_url

    def outcome(self) -> str:
        return outcomes.worker_verified(self.worker, self.role, self.partner)


class PodChange(StrEnum):
    """What a write says of a worker; the value names it in logs and metrics."""

    ROUTABLE = "SetRoutable"  # the label that gateways obey, true or false
    DRAIN = "BeginDrain"
    CANCEL_DRAIN = "CancelDrain"
    CLAIM = "HoldWorker"
    ROLE = "Relabel"
    RELEASE = "ReleaseWorker"


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchPod(WorkerAction):
    """Labels and annotations of one pod in one write; None takes one away. Made by ``pod_changes``.

    ``text`` is the outcome.
    """

    change: PodChange
    labels: Mapping[str, str | None] = field(default_factory=dict)
    annotations: Mapping[str, str | None] = field(default_factory=dict)
    text: str

    def outcome(self) -> str:
        return self.text

    @property
    def label(self) -> str:
        return str(self.change)

    @property
    def adds_to_routing(self) -> bool:
        """Gateways may use the worker from now on."""
        return self.labels.get(ROUTABLE_LABEL) == "true"


@dataclass(frozen=True, slots=True, kw_only=True)
class SetRoutableCondition(WorkerAction):
    """Write the condition of the pod's readiness gate, so that the pod is Ready only while it is routable."""

    routable: bool

    def outcome(self) -> str:
        return outcomes.condition_set(self.worker, self.routable)


@dataclass(frozen=True, slots=True, kw_only=True)
class AskDrain(WorkerAction):
    """POST drain on the worker's control API: it takes nothing new."""

    url: str
    reason: DrainReason

    def outcome(self) -> str:
        return outcomes.drain_requested(self.worker, self.reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class SetSwitchStatus(Action):
    """Write the status of a RoleSwitch."""

    name: str
    uid: str
    status: RoleSwitchStatus

    def outcome(self) -> str:
        return self.status.message or self.why


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteSwitch(Action):
    """Delete a RoleSwitch that ended long ago."""

    name: str
    uid: str

    def outcome(self) -> str:
        return outcomes.switch_deleted(self.name, self.why)


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateSwitch(Action):
    """Create a RoleSwitch of a plan. The name is computed, so a repeat is a conflict with ourselves."""

    name: str
    plan: str
    plan_uid: str
    source: Role
    target: Role
    drain_first: bool

    def outcome(self) -> str:
        return outcomes.switch_created(self.name, self.source, self.target, self.plan)


@dataclass(frozen=True, slots=True, kw_only=True)
class SetRouting(Action):
    """Write the routing numbers into the service's status, where gateways watch them."""

    routing: PlanRouting
    set_by: str

    def outcome(self) -> str:
        return outcomes.routing_set(self.why)


@dataclass(frozen=True, slots=True, kw_only=True)
class SetPlanStatus(Action):
    """Write the status of a Plan."""

    name: str
    uid: str
    status: PlanStatus

    def outcome(self) -> str:
        return self.status.message or self.why


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteWorker(WorkerAction):
    """Delete the pod under its uid. ``lossless`` is False when a deadline, not idleness, ended the drain."""

    lossless: bool = True

    def outcome(self) -> str:
        return outcomes.worker_deleted(self.worker, self.lossless, self.why)


def write_pool(role: Role, resource_version: str, change: PoolChange) -> WritePool:
    """One change of a pool."""
    return WritePool(role=role, changes=(change,), resource_version=resource_version, why=change.why)


def merge_pool_writes(actions: Iterable[Action]) -> Iterator[Action]:
    """The same actions with one write for each pool, in the place of its first."""
    merged: dict[Role | int, Action] = {}
    for action in actions:
        if not isinstance(action, WritePool):
            merged[id(action)] = action
            continue
        known = merged.get(action.role)
        if isinstance(known, WritePool):
            action = replace(known, changes=(*known.changes, *action.changes))
        merged[action.role] = action
    yield from merged.values()
