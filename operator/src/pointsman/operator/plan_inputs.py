"""The role switches, plans and policy of a service: from mirrors while nothing happens, live while something does.

An outdated status would be acted on twice, so what runs is always read from the API server, each object by its name;
what has ended never changes and may be read from the mirror.
"""

import asyncio
import logging
from collections.abc import Collection, Iterable, Iterator
from typing import TypeVar

from pydantic import ValidationError

from pointsman.api.v1alpha1.conditions import Reason
from pointsman.api.v1alpha1.plan import Plan as PlanObject
from pointsman.api.v1alpha1.plannerpolicy import PlannerPolicy
from pointsman.api.v1alpha1.roleswitch import RoleSwitch
from pointsman.kube import resources
from pointsman.kube.client import Kube, Object
from pointsman.kube.mirror import Mirror
from pointsman.kube.objects import unreadable_fields
from pointsman.kube.pods import ServiceKey
from pointsman.kube.resources import Resource
from pointsman.operator.core.messages import status as texts
from pointsman.operator.core.naming import SERVICE_UID_LABEL
from pointsman.operator.core.problems import Problem, unreadable
from pointsman.operator.core.snapshot import Plan, Policy, Switch
from pointsman.operator.observe import plan_of, switch_of

log = logging.getLogger(__name__)

M = TypeVar("M", RoleSwitch, PlanObject, PlannerPolicy)


class PlanInputs:
    """What people and the planner want of services, beside the services' own specs."""

    def __init__(
        self, kube: Kube, switches: Mirror[RoleSwitch], plans: Mirror[PlanObject], policies: Mirror[PlannerPolicy]
    ) -> None:
        self._kube = kube
        self._switches = switches
        self._plans = plans
        self._policies = policies

    async def switches(
        self, key: ServiceKey, uid: str, *, claimed: Collection[str], named: Collection[str] = ()
    ) -> tuple[tuple[Switch, ...], list[Object]]:
        """The switches of the service of that uid, and the live objects they came from (none if the mirror sufficed).

        ``claimed``: uids of switches that pods of the service name; ``named``: names of switches that a plan that runs
        has made. If the mirror lacks one of them, all are listed: it is behind, or the switch was deleted.
        """
        mirrored = [found for found in self._switches.by(key) if belongs(uid, found)]
        ended = [found for found in mirrored if switch_of(found).ended]
        known = {found.metadata.uid for found in mirrored} | {found.metadata.name for found in mirrored}
        if not known.issuperset((*claimed, *named)):
            live = await self._listed(resources.ROLE_SWITCHES, key)
            ended = []
        else:
            running = [found.metadata.name for found in mirrored if found not in ended]
            live = await self._live(resources.ROLE_SWITCHES, key[0], running)
        found = [(switch, raw) for switch, raw in _readable(RoleSwitch, live) if belongs(uid, switch)]
        return (*map(switch_of, ended), *(switch_of(switch) for switch, _ in found)), [raw for _, raw in found]

    async def plans(self, key: ServiceKey, uid: str, kind: str = "LLMService") -> tuple[Plan, ...]:
        """The plans of the service, or object of another ``kind``, of that uid."""
        mirrored = [found for found in self._plans.by(key) if _is_for(found, kind, uid)]
        ended = [plan for plan in map(plan_of, mirrored) if plan.ended]
        running = {found.metadata.name for found in mirrored} - {plan.name for plan in ended}
        found = _readable(PlanObject, await self._live(resources.PLANS, key[0], running))
        return (*ended, *(plan_of(plan) for plan, _ in found if _is_for(plan, kind, uid)))

    async def _live(self, resource: Resource, namespace: str, names: Iterable[str]) -> list[Object]:
        """The objects of these names as they are now; one that was deleted meanwhile is left out."""
        listings = await asyncio.gather(
            *(self._kube.list(resource, namespace, field_selector=f"metadata.name={name}") for name in names)
        )
        return [raw for listing in listings for raw in listing.items]

    async def _listed(self, resource: Resource, key: ServiceKey) -> list[Object]:
        namespace, name = key
        listing = await self._kube.list(resource, namespace)
        return [raw for raw in listing.items if _service_name(raw) == name]

    async def policy(self, namespace: str, name: str, *, live: bool) -> Policy | None:
        """The policy of that name, None if there is none.

        ``live`` reads it from the API server: wherever it decides what becomes of a newer object, such as a plan.
        """
        found = self._policies.get(name, namespace)
        if live:
            read = await self._live(resources.PLANNER_POLICIES, namespace, [name])
            found = next((policy for policy, _ in _readable(PlannerPolicy, read)), None)
        return Policy(name=name, spec=found.spec) if found is not None else None

    def no_policy(self, namespace: str, name: str) -> Problem:
        """Why :meth:`policy` has none of that name: it is not there, or this version cannot read it."""
        why = self._policies.why_unreadable(name, namespace)
        if why is not None:
            return unreadable("PlannerPolicy", name, texts.nothing_planned(why))
        return Problem(reason=Reason.POLICY_NOT_FOUND, message=texts.policy_missing(name))

    def pending_switches(self, key: ServiceKey) -> tuple[Switch, ...]:
        """Switches of the service that have not ended, by the mirror."""
        return tuple(switch for switch in map(switch_of, self._switches.by(key)) if not switch.ended)


def _service_name(raw: Object) -> object:
    """The name in ``spec.serviceRef``; of an object of another form None."""
    found = (raw.get("spec") or {}).get("serviceRef")
    return found.get("name") if isinstance(found, dict) else None


def _is_for(plan: PlanObject, kind: str, uid: str) -> bool:
    return plan.spec.service_ref.kind == kind and belongs(uid, plan)


def belongs(uid: str, found: RoleSwitch | PlanObject) -> bool:
    """Nobody's yet, or the service's: what a deleted service of that name left behind is not its successor's."""
    said = {owner.uid for owner in found.metadata.owner_references if owner.kind in ("LLMService", "ElasticGroup")}
    label = found.metadata.labels.get(SERVICE_UID_LABEL)
    return uid in said or label == uid if said or label else True


def _readable(model: type[M], found: Iterable[Object]) -> Iterator[tuple[M, Object]]:
    """What a newer version wrote in a form we cannot read is left alone; the mirror tells of it once."""
    for raw in found:
        try:
            yield model.model_validate(raw), raw
        except ValidationError as error:
            log.debug(
                "object not readable",
                extra={"object": f"{raw['kind']}/{raw['metadata']['name']}", "why": unreadable_fields(error)},
            )
