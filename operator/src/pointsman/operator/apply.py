"""Writes to the API server. Each is idempotent, and none is made by a process that does not lead."""

import asyncio
import base64
import contextlib
import logging
import re
import secrets
from collections.abc import Callable, Collection, Mapping
from datetime import UTC
from typing import Any, Final

from pointsman.api.protocol import names
from pointsman.api.protocol.control import rotated
from pointsman.api.protocol.names import Role
from pointsman.api.v1alpha1.llmservice import Routing
from pointsman.kube import resources
from pointsman.kube.client import Kube, Object
from pointsman.kube.errors import AlreadyExists, Conflict, Invalid, NotFound
from pointsman.kube.resources import Resource
from pointsman.operator.core import actions as act
from pointsman.operator.core.children import (
    is_current,
    owner_reference,
    service_secret,
    with_live_replicas,
    worker_pool,
)
from pointsman.operator.core.elastic.plans import SetInstances
from pointsman.operator.core.ledger import ledger_annotations
from pointsman.operator.core.naming import (
    BEFORE_PLAN_ANNOTATION,
    SERVICE_UID_LABEL,
    SET_BY_ANNOTATION,
    gateway_name,
    gateway_role_binding_name,
    pool_name,
    secret_name,
)
from pointsman.operator.core.nats_credentials import NatsCredentials
from pointsman.operator.core.network import policy_names
from pointsman.operator.core.snapshot import Pool, Service, Worker
from pointsman.operator.errors import NameConflict, NotLeading
from pointsman.operator.expectations import Expectations
from pointsman.operator.observe import is_left_by_predecessor, is_owned_by, owner_in_words
from pointsman.process.clock import SYSTEM_CLOCK, Clock

log = logging.getLogger(__name__)

_UNDECLARED: Final = re.compile(r"\.status\.([\w.]+): field not declared in schema")
CUT_OFF_GRACE_S: Final = 10  # for a worker whose drain ran out of time

_KINDS: Final[Mapping[str, Resource]] = {
    resource.kind: resource
    for resource in (
        resources.SERVICES,
        resources.SERVICE_ACCOUNTS,
        resources.ROLES,
        resources.ROLE_BINDINGS,
        resources.DEPLOYMENTS,
        resources.STATEFUL_SETS,
        resources.POD_DISRUPTION_BUDGETS,
        resources.NETWORK_POLICIES,
    )
}


class Writer:
    """The writes of one leader. Raises KubeError, NameConflict, NotLeading."""

    def __init__(
        self,
        kube: Kube,
        expectations: Expectations,
        nats: NatsCredentials,
        leads: Callable[[], bool],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._kube = kube
        self._expectations = expectations
        self._nats = nats
        self._leads = leads
        self._clock = clock

    def _fence(self) -> None:
        if not self._leads():
            raise NotLeading("the Lease is lost, so no write is made")

    # --- the objects beside the workers ---

    async def find_own(
        self, resource: Resource, name: str, service: Service, *, make_way: bool = True
    ) -> Object | None:
        """The service's object of that name, None if there is none. Raises NameConflict for a foreign one.

        What a deleted service of the same name left behind is deleted, under its uid: garbage collection would do the
        same, but may take a minute, and until then the new service could not begin. ``make_way`` needs a service that
        has our finalizer: it cannot have been replaced since it was read, so the object is not a successor's.
        """
        live = await self._kube.find(resource, name, service.namespace)
        if make_way and live is not None and is_left_by_predecessor(live, service.kind, service.name, service.uid):
            self._fence()
            with contextlib.suppress(NotFound, Conflict):
                await self._kube.delete(resource, name, service.namespace, uid=live["metadata"]["uid"])
            log.info(
                "object of the predecessor deleted",
                extra={"service": service.key, "reason": "LeftBehind", "object": f"{resource.kind}/{name}"},
            )
            live = await self._kube.find(resource, name, service.namespace)
        if live is not None:
            refuse_foreign(resource, live, service.uid)
        return live

    async def ensure(self, service: Service, manifest: Mapping[str, Any]) -> bool:
        """Make a stamped manifest so; True if that took a write. Raises NameConflict for a foreign object."""
        resource, name = _KINDS[manifest["kind"]], manifest["metadata"]["name"]
        live = await self.find_own(resource, name, service, make_way=service.has_finalizer)
        if live is not None:
            manifest = with_live_replicas(manifest, live)
            if live["metadata"].get("deletionTimestamp") or is_current(live, manifest):
                return False
        self._fence()
        # A misspelt field of the user's template is refused by name, never dropped.
        try:
            await self._kube.apply(resource, manifest, field_validation="Strict")
        except NotFound as error:
            if resource is not resources.ROLE_BINDINGS:
                raise
            # The authorizer has not heard yet of the Role that was made a moment ago.
            raise Conflict(str(error), status=error.status) from error
        return True

    async def delete_earlier_binding(self, service: Service) -> None:
        """The RoleBinding of an earlier version, which gave the gateway a ClusterRole of the chart."""
        name = gateway_name(service.name)
        live = await self._kube.find(resources.ROLE_BINDINGS, name, service.namespace)
        if live is not None and live["roleRef"]["kind"] == "ClusterRole":
            await self._delete_own(resources.ROLE_BINDINGS, name, service)

    async def ensure_secret(self, service: Service, known: str | None = None) -> str:
        """The service's control token; its Secret is made if it is missing, and follows the NATS credentials.

        ``known`` is the token its workers have: a Secret deleted by hand is made again with it, and a token that was
        replaced by hand keeps it beside the new one, so that no worker is lost.
        """
        name = secret_name(service.name)
        live = await self.find_own(resources.SECRETS, name, service, make_way=service.has_finalizer)
        found = _decoded(live, names.SECRET_CONTROL_TOKEN) or known or secrets.token_urlsafe(32)
        token = rotated(found, known or "")
        wanted = service_secret(service, token, self._nats.of_service(service), self._nats.ca_certificate)
        if live is None or not _is_current_secret(live, wanted):
            self._fence()
            await self._kube.apply(resources.SECRETS, wanted)
        if token != found:
            log.info("old control token kept in addition to the new one", extra={"service": service.key})
        return token

    async def control_token(self, service: Service) -> str | None:
        """The service's control token as it is; None when there is no Secret of ours."""
        live = await self._kube.find(resources.SECRETS, secret_name(service.name), service.namespace)
        if live is None or not is_owned_by(live, service.uid):
            return None
        return _decoded(live, names.SECRET_CONTROL_TOKEN)

    async def create_pool(self, service: Service, role: Role, replicas: int) -> Object:
        """A missing WorkerPool, with the number of workers that it begins with."""
        self._fence()
        return await self._kube.create(resources.WORKER_POOLS, worker_pool(service, role, replicas))

    async def delete_children(self, service: Service) -> None:
        """All that the service has beside its pods, before it goes.

        Garbage collection would delete it too, but takes its time; and if the CRDs are deleted soon after the service,
        it never does, because it cannot look up the owner any more.
        """
        gateway, pools = gateway_name(service.name), [pool_name(service.name, role) for role in Role]
        kinds = (
            resources.DEPLOYMENTS,
            resources.SERVICES,
            resources.POD_DISRUPTION_BUDGETS,
            resources.ROLES,
            resources.SERVICE_ACCOUNTS,
        )
        await asyncio.gather(
            *(self._delete_own(kind, gateway, service) for kind in kinds),
            self._delete_own(resources.ROLE_BINDINGS, gateway_role_binding_name(service.name), service),
            *(self._delete_own(resources.POD_DISRUPTION_BUDGETS, name, service) for name in pools),
            *(self._delete_own(resources.WORKER_POOLS, name, service) for name in pools),
            self.delete_network_policies(service),
            self._delete_own(resources.SECRETS, secret_name(service.name), service),
        )

    async def delete_network_policies(self, service: Service) -> None:
        """Those of a service that shall have none."""
        await asyncio.gather(
            *(self._delete_own(resources.NETWORK_POLICIES, name, service) for name in policy_names(service))
        )

    async def delete_pool(self, service: Service, role: Role) -> None:
        """The WorkerPool and the PodDisruptionBudget of a role that the service has no more."""
        name = pool_name(service.name, role)
        await self._delete_own(resources.POD_DISRUPTION_BUDGETS, name, service)
        await self._delete_own(resources.WORKER_POOLS, name, service)

    async def _delete_own(self, resource: Resource, name: str, service: Service) -> None:
        live = await self._kube.find(resource, name, service.namespace)
        if live is None or not is_owned_by(live, service.uid):
            return
        self._fence()
        with contextlib.suppress(NotFound, Conflict):
            await self._kube.delete(resource, name, service.namespace, uid=live["metadata"]["uid"])

    # --- the service itself ---

    async def add_finalizer(self, service: Object) -> None:
        """Ours, beside those that are there."""
        await self._set_finalizers(service, [*_finalizers(service), names.FINALIZER])

    async def remove_finalizer(self, service: Object) -> None:
        """Ours; others' stay. The service may be gone already."""
        try:
            await self._set_finalizers(service, [item for item in _finalizers(service) if item != names.FINALIZER])
        except NotFound:
            return

    async def _set_finalizers(self, service: Object, wanted: list[str]) -> None:
        self._fence()
        meta = service["metadata"]
        await self._kube.patch(
            resources.LLM_SERVICES,
            meta["name"],
            meta["namespace"],
            {"metadata": {"finalizers": wanted}},
            uid=meta["uid"],
            resource_version=meta["resourceVersion"],
        )

    async def status(
        self, resource: Resource, name: str, namespace: str, status: Mapping[str, Any], *, uid: str
    ) -> None:
        """Own the status fields we say; conditions of others in the same list stay theirs.

        Raises Conflict when another object has the name now.
        """
        self._fence()
        metadata = {"name": name, "namespace": namespace, "uid": uid}
        try:
            await self._kube.apply(resource, {"metadata": metadata, "status": status}, subresource="status")
        except Invalid as error:
            undeclared = [tuple(path.split(".")) for path in _UNDECLARED.findall(str(error))]
            known = _without(status, undeclared)
            if known == status:
                raise
            # The CRDs are of an earlier version, as in the middle of a rollback: the rest is still said. The API server
            # does not name all that they lack at once.
            await self.status(resource, name, namespace, known, uid=uid)

    async def routing(self, service: Service, action: act.SetRouting) -> None:
        """The routing numbers, before the plan that set them is said to be done."""
        self._fence()
        numbers = Routing(**action.routing.model_dump(), set_by=action.set_by)
        # None takes a number away. The objectives are the policy's and stay.
        body = {"status": {"routing": numbers.model_dump(mode="json", by_alias=True, exclude={"objectives"})}}
        await self._kube.patch(
            resources.LLM_SERVICES, service.name, service.namespace, body, subresource="status", uid=service.uid
        )

    async def write_pool(self, service: Service, action: act.WritePool, before: Pool) -> None:
        """Number and ledger of a pool in one write: repeated, it finds in the ledger what was done."""
        self._fence()
        after = before.after(action.changes)
        body: Object = {"metadata": {"annotations": ledger_annotations(after.ledger)}}
        if after.replicas != before.replicas:
            body["spec"] = {"replicas": after.replicas}
        name, version = pool_name(service.name, action.role), action.resource_version
        await self._kube.patch(resources.WORKER_POOLS, name, service.namespace, body, resource_version=version)

    async def set_instances(self, service: Service, action: SetInstances, resource_version: str) -> None:
        """A plan's number and its uid in one write of the elastic group."""
        self._fence()
        body = {
            "metadata": {"annotations": _planned(action)},
            "spec": {"instances": {"replicas": action.replicas}},
        }
        await self._kube.patch(
            resources.ELASTIC_GROUPS, service.name, service.namespace, body, resource_version=resource_version
        )

    async def create_switch(self, service: Service, action: act.CreateSwitch) -> None:
        """A plan's role switch. One of that name is there already: a restarted operator's."""
        self._fence()
        # The plan's, not the service's: it is kept as long as the plan is, and not for ever.
        owner = {"apiVersion": names.API_VERSION, "kind": "Plan", "name": action.plan, "uid": action.plan_uid}
        labels = {
            names.SERVICE_LABEL: service.name,
            names.MANAGED_BY_LABEL: names.MANAGED_BY,
            SERVICE_UID_LABEL: service.uid,
        }
        body = {
            "apiVersion": names.API_VERSION,
            "kind": "RoleSwitch",
            "metadata": {
                "name": action.name,
                "namespace": service.namespace,
                "labels": labels,
                "ownerReferences": [owner],
            },
            "spec": {
                "serviceRef": {"name": service.name},
                "from": action.source,
                "to": action.target,
                "drainFirst": action.drain_first,
                "drainTimeoutSeconds": max(1, service.spec.drain.timeout_seconds),
                "reason": f"plan/{action.plan}",
            },
        }
        with contextlib.suppress(AlreadyExists):
            await self._kube.create(resources.ROLE_SWITCHES, body)

    async def delete_switch(self, namespace: str, action: act.DeleteSwitch) -> None:
        """Delete a RoleSwitch that ended; one that is gone already is no error."""
        self._fence()
        with contextlib.suppress(NotFound, Conflict):
            await self._kube.delete(resources.ROLE_SWITCHES, action.name, namespace, uid=action.uid)

    async def plan_status(self, namespace: str, action: act.SetPlanStatus) -> None:
        """The status of a Plan; one that was deleted meanwhile is no error."""
        with contextlib.suppress(NotFound):
            await self.status(resources.PLANS, action.name, namespace, action.status.manifest(), uid=action.uid)

    async def switch_status(self, namespace: str, action: act.SetSwitchStatus) -> None:
        """The status of a RoleSwitch; one that was deleted meanwhile is no error."""
        with contextlib.suppress(NotFound):
            await self.status(resources.ROLE_SWITCHES, action.name, namespace, action.status.manifest(), uid=action.uid)

    async def own_switch(self, service: Service, switch: Object) -> None:
        """A switch goes with its service."""
        self._fence()
        meta = switch["metadata"]
        owner = {**owner_reference(service), "controller": False, "blockOwnerDeletion": False}
        with contextlib.suppress(NotFound, Conflict):
            await self._kube.patch(
                resources.ROLE_SWITCHES,
                meta["name"],
                meta["namespace"],
                {"metadata": {"ownerReferences": [*(meta.get("ownerReferences") or ()), owner]}},
                resource_version=meta["resourceVersion"],
            )

    async def stop_gateway(self, service: Service) -> None:
        """Scale its Deployment to zero; never creates one."""
        self._fence()
        try:
            await self._kube.patch(
                resources.DEPLOYMENTS, gateway_name(service.name), service.namespace, {"spec": {"replicas": 0}}
            )
        except NotFound:
            return

    # --- workers ---

    async def create_worker(self, service: Service, action: act.CreateWorker) -> None:
        """Create one pod. A pod of ours that is there already is what was wanted."""
        self._fence()
        key = (service.namespace, service.name)
        try:
            # A misspelt field of the user's template is refused by name, never dropped.
            answer = await self._kube.create(resources.PODS, action.manifest, field_validation="Strict")
        except AlreadyExists:
            live = await self._kube.find(resources.PODS, action.name, service.namespace)
            if live is None:
                return
            refuse_foreign(resources.PODS, live, service.uid)
            answer = live
        self._expectations.wrote(key, answer)

    async def patch_pod(self, service: Service, action: act.PatchPod) -> None:
        """Labels and annotations in one write. A pod that is gone is no error."""
        self._fence()
        body = {"metadata": {"labels": action.labels, "annotations": action.annotations}}
        try:
            answer = await self._kube.patch(resources.PODS, action.worker, service.namespace, body, uid=action.uid)
        except (NotFound, Conflict):
            await self._confirm_gone(service, action.worker, action.uid)
            return
        self._expectations.wrote((service.namespace, service.name), answer)

    async def label_metrics_port(self, service: Service, worker: Worker, port: int | None) -> None:
        """Where the manager of an elastic group serves its metrics. A pod that is gone is no error."""
        self._fence()
        body = {"metadata": {"labels": {names.METRICS_PORT_LABEL: None if port is None else str(port)}}}
        with contextlib.suppress(NotFound, Conflict):
            await self._kube.patch(resources.PODS, worker.name, service.namespace, body, uid=worker.uid)

    async def routable_condition(self, service: Service, action: act.SetRoutableCondition) -> None:
        """The condition of a worker pod's readiness gate. A pod that is gone is no error."""
        self._fence()
        condition = {
            "type": names.ROUTABLE_CONDITION,
            "status": "True" if action.routable else "False",
            "reason": "Routable" if action.routable else "NotRoutable",
            "lastTransitionTime": self._clock.now().astimezone(UTC).isoformat(timespec="seconds"),
        }
        body = {
            "metadata": {"name": action.worker, "namespace": service.namespace, "uid": action.uid},
            "status": {"conditions": [condition]},
        }
        try:
            answer = await self._kube.apply(resources.PODS, body, subresource="status")
        except (NotFound, Conflict):  # Conflict: another pod has the name now
            return
        self._expectations.wrote((service.namespace, service.name), answer)

    async def delete_left(self, service: Service, worker: Worker) -> None:
        """Delete a worker with all the time that it has, unless that was done already."""
        if not worker.terminating:
            await self._delete_pod(service, worker.name, worker.uid)

    async def delete_worker(self, service: Service, action: act.DeleteWorker) -> None:
        """Delete exactly the pod that was looked at. One that is gone is no error.

        After a drain that ran out of time its preStop hook must not wait for as long again.
        """
        await self._delete_pod(service, action.worker, action.uid, None if action.lossless else CUT_OFF_GRACE_S)

    async def _delete_pod(self, service: Service, name: str, uid: str, grace_period_s: int | None = None) -> None:
        self._fence()
        try:
            await self._kube.delete(resources.PODS, name, service.namespace, uid=uid, grace_period_s=grace_period_s)
        except (NotFound, Conflict):
            await self._confirm_gone(service, name, uid)
        else:
            self._expectations.deleted(uid)

    async def _confirm_gone(self, service: Service, name: str, uid: str) -> None:
        """After a 404 or 409: the pod of that uid is gone, and counts so from now on. Raises Conflict if it is not.

        A 409 may mean that another pod has the name now, or that the API server gave up after retries of its own.
        """
        live = await self._kube.find(resources.PODS, name, service.namespace)
        if live is not None and live["metadata"]["uid"] == uid:
            raise Conflict(f"pod {name} was written by others at the same time", status=409)
        self._expectations.deleted(uid)


def _planned(action: SetInstances) -> dict[str, str]:
    """Marks of a number that a plan writes: whose it is, and the number before."""
    before = {} if action.before is None else {BEFORE_PLAN_ANNOTATION: str(action.before)}
    return {SET_BY_ANNOTATION: action.plan_uid, **before}


def _without(fields: Mapping[str, Any], paths: Collection[tuple[str, ...]]) -> dict[str, Any]:
    """``fields`` without what is at ``paths``."""
    return {
        name: _without(value, [path[1:] for path in paths if path[0] == name]) if isinstance(value, Mapping) else value
        for name, value in fields.items()
        if (name,) not in paths
    }


def refuse_foreign(resource: Resource, live: Object, uid: str) -> None:
    """Raises NameConflict unless ``live`` belongs to the service of that uid."""
    if not is_owned_by(live, uid):
        raise NameConflict(resource.kind, live["metadata"]["name"], owner_in_words(live))


def _finalizers(item: Object) -> list[str]:
    return list(item["metadata"].get("finalizers") or ())


_OWN_KEYS: Final = frozenset(
    (names.SECRET_CONTROL_TOKEN, names.SECRET_NATS_USER, names.SECRET_NATS_PASSWORD, names.SECRET_NATS_CA_CERTIFICATE)
)


def _is_current_secret(live: Object, wanted: Mapping[str, Any]) -> bool:
    """Whether a Secret has what it should; keys that others added stay, and cost no write."""
    data = live.get("data") or {}
    return bool({key: value for key, value in data.items() if key in _OWN_KEYS} == wanted["data"])


def _decoded(secret: Object | None, key: str) -> str | None:
    value = ((secret or {}).get("data") or {}).get(key)
    try:
        return base64.b64decode(value).decode() if value else None
    except UnicodeDecodeError:
        return None  # somebody wrote bytes that are no token of ours
