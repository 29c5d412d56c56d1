"""One look at a service as a person would look: its objects, its workers' own words, its last Events.

Everything comes from where a user can look too: the API server, and the workers' control API with the service's token.
"""

import asyncio
import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import aiohttp
from pydantic import ValidationError

from pointsman.api.protocol import names
from pointsman.api.protocol.control import STATE_PATH, WorkerState
from pointsman.api.v1alpha1 import LLMService, WorkerPool
from pointsman.api.v1alpha1.conditions import Condition, ConditionStatus, ConditionType
from pointsman.api.v1alpha1.plan import Plan
from pointsman.api.v1alpha1.roleswitch import RoleSwitch
from pointsman.kube.client import Kube
from pointsman.kube.pods import Pod
from pointsman.kube.resources import EVENTS, LLM_SERVICES, PLANS, PODS, ROLE_SWITCHES, SECRETS, WORKER_POOLS

_STATE_TIMEOUT: Final = aiohttp.ClientTimeout(total=1.0)


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One worker pod; ``state`` is None while it does not answer."""

    pod: Pod
    state: WorkerState | None

    @property
    def name(self) -> str:
        """The pod's name."""
        return self.pod.metadata.name

    @property
    def role(self) -> names.Role | None:
        """The role the operator's label gives it."""
        return names.Role.from_label(self.pod.metadata.labels.get(names.ROLE_LABEL))

    @property
    def routable(self) -> bool:
        """Whether a gateway may choose it: the label says so and the pod is Ready."""
        return self.pod.metadata.labels.get(names.ROUTABLE_LABEL) == "true" and self.pod.ready

    @property
    def doing(self) -> str:
        """Its phase in a word, for a table."""
        if self.pod.terminating:
            return "Terminating"
        return self.state.phase.value if self.state is not None else self.pod.status.phase


@dataclass(frozen=True, slots=True)
class EventView:
    """One Event. ``at`` is when it last happened."""

    at: datetime
    reason: str
    about: str
    note: str


@dataclass(frozen=True, slots=True)
class ServiceView:
    """A service at one moment. ``service`` is None when it does not exist; ``plans`` and ``switches`` are in the order
    they were made."""

    at: datetime
    service: LLMService | None
    pools: tuple[WorkerPool, ...] = ()
    workers: tuple[WorkerView, ...] = ()
    gateways: tuple[Pod, ...] = ()
    events: tuple[EventView, ...] = ()
    plans: tuple[Plan, ...] = ()
    switches: tuple[RoleSwitch, ...] = ()

    def condition(self, kind: ConditionType) -> Condition | None:
        """A condition of the service, None when it was never set or is about an older spec."""
        if self.service is None:
            return None
        generation = self.service.metadata.generation
        found = next((c for c in self.service.status.conditions if c.type == kind), None)
        return found if found is not None and found.observed_generation == generation else None

    @property
    def ready(self) -> bool:
        """The service is as desired and answers."""
        condition = self.condition(ConditionType.READY)
        return condition is not None and condition.status is ConditionStatus.TRUE

    @property
    def gateway_url(self) -> str | None:
        """Base URL of a Ready gateway's pod, ending with ``/v1``; None while there is none."""
        for pod in self.gateways:
            if pod.ready and pod.status.pod_ip and not pod.terminating:
                return f"http://{pod.status.pod_ip}:{names.GATEWAY_PORT}/v1"
        return None

    def routable(self, role: names.Role) -> tuple[WorkerView, ...]:
        """The workers of a role that a gateway may choose."""
        return tuple(worker for worker in self.workers if worker.role is role and worker.routable)


class Observer:
    """Looks at one service through ``kube``. Close it after use (``async with``)."""

    def __init__(self, kube: Kube, namespace: str, service: str) -> None:
        self._kube = kube
        self._namespace = namespace
        self._service = service
        self._http = aiohttp.ClientSession(timeout=_STATE_TIMEOUT)

    async def __aenter__(self) -> "Observer":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()

    async def look(self, *, events: int = 0) -> ServiceView:
        """The service now, with its last ``events`` Events. Raises the errors of ``pointsman.kube``."""
        selector = f"{names.SERVICE_LABEL}={self._service}"
        found, secret, pods, pools, plans, switches = await asyncio.gather(
            self._kube.find(LLM_SERVICES, self._service, self._namespace),
            self._kube.find(SECRETS, self._service + names.SECRET_SUFFIX, self._namespace),
            self._kube.list(PODS, self._namespace, label_selector=selector),
            self._kube.list(WORKER_POOLS, self._namespace),
            self._kube.list(PLANS, self._namespace, label_selector=selector),
            self._kube.list(ROLE_SWITCHES, self._namespace),
        )
        mine = [Pod.model_validate(item) for item in pods.items]
        of = {kind: [p for p in mine if p.metadata.labels.get(names.COMPONENT_LABEL) == kind] for kind in _COMPONENTS}
        token = _control_token(secret)
        states = await asyncio.gather(*(self._state(pod, token) for pod in of[names.COMPONENT_WORKER]))
        workers = (WorkerView(pod, state) for pod, state in zip(of[names.COMPONENT_WORKER], states, strict=True))
        return ServiceView(
            at=datetime.now(UTC),
            service=LLMService.model_validate(found) if found is not None else None,
            pools=tuple(
                pool
                for pool in (WorkerPool.model_validate(item) for item in pools.items)
                if pool.spec.service_ref.name == self._service
            ),
            workers=tuple(sorted(workers, key=lambda worker: (worker.role or "", worker.name))),
            gateways=tuple(of[names.COMPONENT_GATEWAY]),
            events=await self._events(events) if events else (),
            plans=tuple(sorted(map(Plan.model_validate, plans.items), key=lambda plan: plan.spec.sequence)),
            switches=self._switches(map(RoleSwitch.model_validate, switches.items)),
        )

    def _switches(self, found: Iterable[RoleSwitch]) -> tuple[RoleSwitch, ...]:
        mine = (switch for switch in found if switch.spec.service_ref.name == self._service)
        return tuple(sorted(mine, key=lambda s: (s.metadata.creation_timestamp or _EARLIEST, s.metadata.name)))

    async def _state(self, pod: Pod, token: str | None) -> WorkerState | None:
        if pod.status.pod_ip is None or token is None:
            return None
        url = f"http://{pod.status.pod_ip}:{names.ENGINE_PORT}{STATE_PATH}"
        try:
            async with self._http.get(url, headers={"Authorization": f"Bearer {token}"}) as answer:
                if answer.status != 200:
                    return None
                return WorkerState.model_validate_json(await answer.read())
        except (aiohttp.ClientError, TimeoutError, ValidationError):
            return None  # not up, busy or gone: unknown

    async def _events(self, count: int) -> tuple[EventView, ...]:
        listed = await self._kube.list(EVENTS, self._namespace)
        about = [event for item in listed.items if (event := _event(item)) is not None]
        # Kubernetes' own words about pods and replica sets would push the operator's decisions out of sight.
        own = {f"llmservice/{self._service}", *(f"workerpool/{self._service}-{role.label}" for role in names.Role)}
        mine = [event for event in about if event.about in own]
        return tuple(sorted(mine, key=lambda event: event.at)[-count:])


_EARLIEST: Final = datetime.min.replace(tzinfo=UTC)
_COMPONENTS: Final = (names.COMPONENT_WORKER, names.COMPONENT_GATEWAY)


def _control_token(secret: Mapping[str, Any] | None) -> str | None:
    value = ((secret or {}).get("data") or {}).get(names.SECRET_CONTROL_TOKEN)
    return None if value is None else base64.b64decode(value).decode()


def _event(item: Mapping[str, Any]) -> EventView | None:
    series = item.get("series") or {}
    at = series.get("lastObservedTime") or item.get("deprecatedLastTimestamp") or item.get("eventTime")
    at = at or item["metadata"].get("creationTimestamp")
    about = item.get("regarding") or {}
    if at is None or not about.get("name"):
        return None
    return EventView(
        at=datetime.fromisoformat(at),
        reason=item.get("reason") or "",
        about=f"{str(about.get('kind', '')).lower()}/{about['name']}",
        note=item.get("note") or "",
    )
