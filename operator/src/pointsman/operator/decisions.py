"""The role switches, plans and policy of a service: from mirrors while nothing happens, live while something does.

An outdated status would be acted on twice, so what runs is always read from the API server; what has ended never
changes and may be read from the mirror.
"""

from collections.abc import Iterator

from pydantic import ValidationError

from pointsman.api.v1alpha1.plan import Plan as PlanObject
from pointsman.api.v1alpha1.plannerpolicy import PlannerPolicy
from pointsman.api.v1alpha1.roleswitch import RoleSwitch
from pointsman.kube import resources
from pointsman.kube.client import Kube, Object
from pointsman.kube.mirror import Mirror
from pointsman.operator.core.snapshot import Plan, Policy, Switch
from pointsman.operator.observe import plan_of, switch_of
from pointsman.operator.pods import ServiceKey


class Decisions:
    """What people and the planner want of services, beside the services' own specs."""

    def __init__(
        self, kube: Kube, switches: Mirror[RoleSwitch], plans: Mirror[PlanObject], policies: Mirror[PlannerPolicy]
    ) -> None:
        self._kube = kube
        self._switches = switches
        self._plans = plans
        self._policies = policies

    async def switches(self, key: ServiceKey, *, held: bool) -> tuple[tuple[Switch, ...], list[Object]]:
        """The service's switches, and the live objects they came from (empty when the mirror sufficed).

        ``held``: a pod of the service carries the mark of a switch.
        """
        mirrored = [switch_of(found) for found in self._switches.by(key)]
        if not held and all(switch.ended for switch in mirrored):
            return tuple(mirrored), []
        namespace, name = key
        listing = await self._kube.list(resources.ROLE_SWITCHES, namespace)
        mine = [raw for raw in listing.items if raw["spec"]["serviceRef"]["name"] == name]
        return tuple(switch_of(RoleSwitch.model_validate(raw)) for raw in mine), mine

    async def plans(self, key: ServiceKey) -> tuple[Plan, ...]:
        """The service's plans."""
        mirrored = [plan_of(found) for found in self._plans.by(key)]
        if all(plan.ended for plan in mirrored):
            return tuple(mirrored)
        namespace, name = key
        listing = await self._kube.list(resources.PLANS, namespace)
        return tuple(_readable(raw for raw in listing.items if raw["spec"]["serviceRef"]["name"] == name))

    def policy(self, namespace: str, name: str) -> Policy | None:
        """The policy of that name, None if there is none."""
        found = self._policies.get(name, namespace)
        return Policy(name=name, spec=found.spec) if found is not None else None

    def pending_switches(self, key: ServiceKey) -> tuple[Switch, ...]:
        """Switches of the service that have not ended, by the mirror."""
        return tuple(switch for switch in map(switch_of, self._switches.by(key)) if not switch.ended)


def _readable(found: Iterator[Object]) -> Iterator[Plan]:
    """A plan that a newer planner wrote in a form we cannot read is left alone."""
    for raw in found:
        try:
            yield plan_of(PlanObject.model_validate(raw))
        except ValidationError:
            continue
