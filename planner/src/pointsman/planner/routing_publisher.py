"""The routing numbers of one service in the API server: ``status.routing``, which its gateways watch.

Field by field, ``status.routing`` has two owners by server-side apply: the operator owns ``objectives``, the planner
all others, under a field manager of its own. So neither takes away what the other wrote.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from pointsman.api.protocol.names import API_VERSION, ROUTING_SET_BY_PLANNER
from pointsman.api.v1alpha1.llmservice import LLMService, Routing
from pointsman.kube import resources
from pointsman.kube.client import Kube
from pointsman.kube.errors import Invalid
from pointsman.kube.pods import ServiceKey
from pointsman.planner.core.routing.publication import KEPT_PUBLICATIONS, Publication, named
from pointsman.planner.core.types import Objectives, Reason, RoutingNumbers

FIELD_MANAGER: Final = "pointsman-planner-routing"
_UNDECLARED: Final = re.compile(r"\.status\.routing\.(\w+): field not declared in schema")


class RoutingPublisher:
    """``history``: the last publications, the newest last."""

    def __init__(self, kube: Kube, key: ServiceKey, uid: str, history: tuple[Publication, ...] = ()) -> None:
        self._kube = kube
        self._key = key
        self._uid = uid
        self._written: tuple[str, Routing] | None = None  # with its resourceVersion, until the mirror shows that
        self._leftovers: list[str] = []  # numbers that the last publication was to take away
        self.history = history

    def in_force(self, service: LLMService) -> Routing | None:
        """``status.routing``, also while the mirror does not show yet what was published."""
        if self._written is not None and not _is_older(service.metadata.resource_version, self._written[0]):
            self._written = None
        return service.status.routing if self._written is None else self._written[1]

    async def publish(
        self,
        before: RoutingNumbers,
        after: RoutingNumbers,
        reason: Reason,
        now: datetime,
        objectives: Objectives | None = None,
    ) -> None:
        """Put ``after`` into force, which was made for ``objectives``. Raises KubeError."""
        numbers = {name: value for name, value in named(after).items() if value is not None}
        stamp = now.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        fields = {**numbers, "setBy": ROUTING_SET_BY_PLANNER, "reason": reason.value, "updatedAt": stamp}
        written = await self._apply(fields)
        # Of an earlier operator, which owned all numbers: server-side apply takes away only one's own.
        self._leftovers = [
            name for name in named(after) if name not in numbers and name in written["status"]["routing"]
        ]
        self._note(written)
        made = Publication(now.timestamp(), reason, before, after, objectives)
        self.history = (*self.history, made)[-KEPT_PUBLICATIONS:]

    async def remove_leftovers(self) -> bool:
        """Take away the numbers that another manager kept in place. Returns whether there were any. Raises KubeError.

        This is for the evaluation after their publication, so that each of both makes one write.
        """
        leftovers, self._leftovers = self._leftovers, []  # if it fails, the next publication finds them again
        if not leftovers:
            return False
        body = {"status": {"routing": dict.fromkeys(leftovers)}}
        namespace, name = self._key
        written = await self._kube.patch(
            resources.LLM_SERVICES, name, namespace, body, subresource="status", uid=self._uid
        )
        self._note(written)
        return True

    def _note(self, written: Mapping[str, Any]) -> None:
        routing = {name: value for name, value in written["status"]["routing"].items() if name not in self._leftovers}
        self._written = written["metadata"]["resourceVersion"], Routing.model_validate(routing)

    async def _apply(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            return await self._applied(fields)
        except Invalid as error:
            undeclared = set(_UNDECLARED.findall(str(error))) & fields.keys()
            if not undeclared:
                raise
        # The CRDs are of an earlier version, as in the middle of a rollback. Not all that they lack is named at once.
        return await self._apply({name: value for name, value in fields.items() if name not in undeclared})

    async def _applied(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        namespace, name = self._key
        body = {
            "apiVersion": API_VERSION,
            "kind": resources.LLM_SERVICES.kind,
            "metadata": {"name": name, "namespace": namespace, "uid": self._uid},
            "status": {"routing": fields},
        }
        kind = resources.LLM_SERVICES
        return await self._kube.apply(kind, body, subresource="status", field_manager=FIELD_MANAGER)


def _is_older(version: str, than: str) -> bool:
    """Of two resourceVersions of one object."""
    return version.isdecimal() and than.isdecimal() and int(version) < int(than)
