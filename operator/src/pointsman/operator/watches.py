"""What the operator mirrors, and which key each change puts on which queue. kopf watches the rest: handlers.py."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pointsman.api.protocol.names import SERVICE_LABEL
from pointsman.api.v1alpha1.plan import Plan
from pointsman.api.v1alpha1.plannerpolicy import PlannerPolicy
from pointsman.api.v1alpha1.roleswitch import RoleSwitch
from pointsman.kube import resources
from pointsman.kube.client import Kube
from pointsman.kube.mirror import Mirror, Unreadable
from pointsman.kube.pods import Pod, ServiceKey, label_key, service_key
from pointsman.kube.resources import Resource
from pointsman.operator.announce import Announcer
from pointsman.operator.deployments import GatewayDeployments
from pointsman.operator.expectations import Expectations
from pointsman.operator.observe import is_of_group
from pointsman.operator.policies import PolicyKey
from pointsman.operator.reconcile import Reconciler
from pointsman.operator.work_queue import WorkQueue

STALE_MIRROR_S: Final = 180.0  # bookmarks come about every minute
_GROUP: Final = "ElasticGroup"


@dataclass(frozen=True, slots=True)
class Queues:
    """Keys of what is to be reconciled."""

    services: WorkQueue[ServiceKey] = field(default_factory=WorkQueue)
    groups: WorkQueue[ServiceKey] = field(default_factory=WorkQueue)
    policies: WorkQueue[PolicyKey] = field(default_factory=WorkQueue)

    def of_kind(self, kind: str) -> WorkQueue[ServiceKey]:
        """Where keys of a kind belong: elastic groups, or services."""
        return self.groups if kind == _GROUP else self.services

    def close(self) -> None:
        """Nothing is reconciled any more."""
        for each in (self.services, self.policies, self.groups):
            each.close()


class Watches:
    """The mirrors. Changes fill the queues from the start; :meth:`begin_to_lead` adds what only a leader does."""

    def __init__(self, kube: Kube, namespace: str | None, queues: Queues, expectations: Expectations) -> None:
        self._queues = queues
        self._expectations = expectations
        self._leading: tuple[Announcer, Reconciler] | None = None
        self.pods: Final[Mirror[Pod]] = Mirror(
            kube,
            resources.PODS,
            Pod,
            namespace=namespace,
            label_selector=SERVICE_LABEL,
            index=service_key,
            on_change=self._pod_changed,
            on_unreadable=self._pod_is_unreadable,
        )
        self.switches: Final[Mirror[RoleSwitch]] = Mirror(
            kube,
            resources.ROLE_SWITCHES,
            RoleSwitch,
            namespace=namespace,
            index=switch_key,
            on_change=self._switch_changed,
            on_unreadable=self._announcing(resources.ROLE_SWITCHES),
        )
        self.plans: Final[Mirror[Plan]] = Mirror(
            kube,
            resources.PLANS,
            Plan,
            namespace=namespace,
            index=plan_key,
            on_change=self._plan_changed,
            on_unreadable=self._announcing(resources.PLANS),
        )
        self.policies: Final[Mirror[PlannerPolicy]] = Mirror(
            kube,
            resources.PLANNER_POLICIES,
            PlannerPolicy,
            namespace=namespace,
            on_change=self._policy_changed,
            on_unreadable=self._announcing(resources.PLANNER_POLICIES),
        )
        self.deployments: Final = GatewayDeployments(kube, namespace, self._deployment_changed)
        self.mirrors: Final[Mapping[str, Mirror[Any]]] = {
            "pods": self.pods,
            "role switches": self.switches,
            "plans": self.plans,
            "policies": self.policies,
            "gateways": self.deployments.mirror,
        }

    def why_not_ready(self) -> str | None:
        """An operator that may not see something must not seem ready."""
        listed = all(mirror.synced.is_set() for mirror in self.mirrors.values())
        age_s = self.pods.age_s
        if age_s is None or not listed:
            return "pods, role switches, plans, policies and gateways are not all listed yet"
        return f"the mirror of pods is {age_s:.0f} s old" if age_s > STALE_MIRROR_S else None

    def begin_to_lead(self, announcer: Announcer, reconciler: Reconciler) -> None:
        """Announce unreadable objects, also those that were found before this process led, and follow policies."""
        self._leading = announcer, reconciler
        for mirror in self.mirrors.values():
            for found in mirror.unreadable():
                announcer.unreadable(mirror.resource, found)

    # --- what a change does ---

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        if pod is None:
            return
        if new is None:
            self._expectations.gone(pod.metadata.uid)
        key = service_key(pod)
        if key is not None:
            (self._queues.groups if is_of_group(pod) else self._queues.services).add(key)

    def _switch_changed(self, old: RoleSwitch | None, new: RoleSwitch | None) -> None:
        switch = new or old
        if switch is not None:
            self._queues.services.add(switch_key(switch))

    def _plan_changed(self, old: Plan | None, new: Plan | None) -> None:
        plan = new or old
        if plan is not None:
            self._queues.of_kind(plan.spec.service_ref.kind).add(plan_key(plan))

    def _deployment_changed(self, kind: str, namespace: str, name: str) -> None:
        self._queues.of_kind(kind).add((namespace, name))

    def _policy_changed(self, old: PlannerPolicy | None, new: PlannerPolicy | None) -> None:
        policy = new or old
        if policy is None:
            return
        namespace, name = policy.metadata.namespace, policy.metadata.name
        self._queues.policies.add((namespace, name))
        if self._leading is not None:
            self._leading[1].policy_changed(namespace, name)

    def _announcing(self, resource: Resource) -> Callable[[Unreadable], None]:
        def announce(found: Unreadable) -> None:
            if self._leading is not None:
                self._leading[0].unreadable(resource, found)

        return announce

    def _pod_is_unreadable(self, found: Unreadable) -> None:
        self._announcing(resources.PODS)(found)
        key = label_key(found.metadata)
        if key is not None:
            self._queues.services.add(key)


def plan_key(plan: Plan) -> ServiceKey:
    """The service a plan is about."""
    return plan.metadata.namespace, plan.spec.service_ref.name


def switch_key(switch: RoleSwitch) -> ServiceKey:
    """The service a role switch is about."""
    return switch.metadata.namespace, switch.spec.service_ref.name
