"""The objects beside the workers: pools, Secret, gateway, budgets, NetworkPolicies; made, watched, put back."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import ValidationError

from pointsman.api.protocol.names import Role
from pointsman.api.v1alpha1.conditions import Reason
from pointsman.api.v1alpha1.workerpool import WorkerPool
from pointsman.kube import resources
from pointsman.kube.client import Object
from pointsman.kube.errors import AlreadyExists, Forbidden, Invalid
from pointsman.kube.mirror import Mirror
from pointsman.kube.objects import unreadable_fields
from pointsman.kube.pods import Pod
from pointsman.operator.apply import Writer
from pointsman.operator.core.children import disruption_budget
from pointsman.operator.core.desired import pool_target
from pointsman.operator.core.gateway import gateway_objects
from pointsman.operator.core.install import Install
from pointsman.operator.core.messages import status as texts
from pointsman.operator.core.naming import pool_name, secret_name
from pointsman.operator.core.network import network_policies
from pointsman.operator.core.problems import Problem, unreadable
from pointsman.operator.core.snapshot import Pool, Service, Snapshot
from pointsman.operator.errors import NameConflict, Refused
from pointsman.operator.observe import is_gateway, pool_of
from pointsman.process.clock import SYSTEM_CLOCK, Clock

log = logging.getLogger(__name__)

RETRY_S: Final = 10.0  # an object the API server refused, or a gateway that is missing, is looked at again after this


@dataclass
class _Made:
    """Of one service: what its objects were last made of, and what became of it."""

    of: tuple[Any, ...] | None = None
    at_s: float = 0.0  # monotonic
    until_s: float = 0.0
    token: str | None = None
    problems: list[Problem] = field(default_factory=list)


class Children:
    """What it remembers may be forgotten: it only looks more often then."""

    def __init__(
        self, writer: Writer, pods: Mirror[Pod], install: Install, resync_s: float, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._writer = writer
        self._pods = pods
        self._install = install
        self._resync_s = resync_s
        self._clock = clock
        self._made: dict[str, _Made] = {}  # by the service's uid

    async def pools(
        self, service: Service, first_replicas: Callable[[Role], int], *, make: bool, had_encode: bool = False
    ) -> tuple[dict[Role, Pool], list[Problem]]:
        """The service's pools, made if they are missing and ``make`` says so, and what kept one from being made.

        ``first_replicas``: the number of a pool that is made. ``had_encode``: an encode pool that is not in the spec
        any more is looked for, too.
        """
        wanted = service.spec.roles

        async def one(role: Role) -> Object | None:
            name = pool_name(service.name, role)
            raw = await self._writer.find_own(resources.WORKER_POOLS, name, service, make_way=make)
            if raw is None and make and role in wanted:
                return await self._writer.create_pool(service, role, first_replicas(role))
            return raw

        pools: dict[Role, Pool] = {}
        problems: list[Problem] = []
        roles = (*wanted, Role.ENCODE) if had_encode and Role.ENCODE not in wanted else wanted
        for role, raw in zip(roles, await asyncio.gather(*map(one, roles), return_exceptions=True), strict=True):
            match raw:
                case None | AlreadyExists():
                    continue  # made between our look and our write: the next look sees whose it is
                case NameConflict():
                    problems.append(Problem(reason=Reason.NAME_CONFLICT, message=str(raw)))
                case Forbidden() | Invalid():
                    problems.append(
                        Problem(
                            reason=Reason.OBJECT_REFUSED,
                            message=texts.refused(f"WorkerPool of role {role.label}", str(raw)),
                        )
                    )
                case BaseException():
                    raise raw
                case _ if raw["metadata"].get("deletionTimestamp") is None:
                    try:
                        pools[role] = pool_of(WorkerPool.model_validate(raw))
                    except ValidationError as error:
                        problems.append(unreadable("WorkerPool", raw["metadata"]["name"], unreadable_fields(error)))
        return pools, problems

    async def ensure(self, service: Service, pools: dict[Role, Pool]) -> None:
        """Secret, gateway, budgets, NetworkPolicies: looked at when what they are made of changed, and when due."""
        bare = Snapshot(now_s=0.0, service=service, pools=pools)
        # Without its WorkerPool the number of a pool is not known: its budget stays as it is.
        known = [role for role in service.spec.roles if role in pools]
        budgets = [disruption_budget(service, role, pool_target(bare, role).replicas) for role in known]
        made_of = (service.generation, *(budget["spec"]["minAvailable"] for budget in budgets))
        made, now_s = self._made.setdefault(service.uid, _Made()), self._clock.monotonic_s()
        if made.of == made_of and now_s < self.due_s(service):
            return
        problems: list[Problem] = []
        try:
            made.token = await self._writer.ensure_secret(service, made.token)
        except NameConflict as error:
            problems.append(Problem(reason=Reason.NAME_CONFLICT, message=str(error)))
        except (Forbidden, Invalid) as error:
            name = secret_name(service.name)
            problems.append(Problem(reason=Reason.OBJECT_REFUSED, message=texts.refused(f"Secret {name}", str(error))))
        try:
            gateway = gateway_objects(service, self._install)
        except Refused as error:
            problems.append(Problem(reason=error.reason, message=str(error), of_gateway=True))
        else:
            problems += await make_all(self._writer, service, gateway, Reason.GATEWAY_REFUSED)
        problems += await make_all(self._writer, service, budgets, Reason.OBJECT_REFUSED)
        if not problems:
            await self._writer.delete_earlier_binding(service)
        problems += await make_network_policies(self._writer, service, self._install)
        made.of, made.problems, made.at_s = made_of, problems, now_s
        made.until_s = now_s + (RETRY_S if problems else self._resync_s)

    def problems(self, service: Service) -> list[Problem]:
        """What kept one of them from being made, when that was last tried."""
        return self._made.setdefault(service.uid, _Made()).problems

    def due_s(self, service: Service) -> float:
        """When they are looked at again (monotonic). Without a gateway soon: somebody may have deleted it."""
        made = self._made.setdefault(service.uid, _Made())
        pods = self._pods.by((service.namespace, service.name))
        if any(is_gateway(pod) and not pod.terminating for pod in pods):
            return made.until_s
        return min(made.until_s, made.at_s + RETRY_S)

    async def token(self, service: Service) -> str | None:
        """The service's control token; None while it has no Secret of its own."""
        made = self._made.setdefault(service.uid, _Made())
        if made.token is None:
            made.token = await self._writer.control_token(service)
        return made.token

    def forget(self, uid: str) -> None:
        """The service is gone."""
        self._made.pop(uid, None)


async def make_network_policies(writer: Writer, service: Service, install: Install) -> list[Problem]:
    """The policies of a service or group, or none where the installation has none. Returns as ``make_all``."""
    if install.network is None:
        await writer.delete_network_policies(service)
        return []
    manifests = network_policies(service, install.network)
    return await make_all(writer, service, manifests, Reason.NETWORK_POLICY_REFUSED)


async def make_all(
    writer: Writer, service: Service, manifests: Iterable[Mapping[str, Any]], refused: Reason
) -> list[Problem]:
    """Make stamped manifests so, one after another. Returns what kept one from it; ``refused``: by the API server."""
    problems = []
    refused_roles = set()
    for manifest in manifests:
        what = f"{manifest['kind']} {manifest['metadata']['name']}"
        if manifest["kind"] == "RoleBinding" and manifest["roleRef"]["name"] in refused_roles:
            continue  # it would get the answer of a Role that was made a moment ago, and be tried at once again
        try:
            if await writer.ensure(service, manifest):
                log.info(
                    "object applied",
                    extra={"service": service.key, "reason": "Applied", "object": what.replace(" ", "/")},
                )
        except NameConflict as error:
            problems.append(Problem(reason=Reason.NAME_CONFLICT, message=str(error)))
        except (Forbidden, Invalid) as error:
            problems.append(Problem(reason=refused, message=f"{what}: {error}"))
            if manifest["kind"] == "Role":
                refused_roles.add(manifest["metadata"]["name"])
    return problems
