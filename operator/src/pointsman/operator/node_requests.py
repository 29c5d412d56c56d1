"""What node autoscalers report about Pending pods: an Event on the pod says that a node is being made for it."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from pointsman.kube import resources
from pointsman.kube.client import Kube, Object
from pointsman.kube.errors import Forbidden
from pointsman.operator.core.snapshot import Policy, Worker
from pointsman.operator.core.unschedulable import given_up_at_s
from pointsman.process.clock import SYSTEM_CLOCK, Clock

log = logging.getLogger(__name__)

READ_AGAIN_S: Final = 30.0  # the Events of a pod are listed that often at most
_NODE_COMES: Final = ("TriggeredScaleUp", "Nominated")  # of cluster-autoscaler, of Karpenter
_NO_NODE_COMES: Final = ("NotTriggerScaleUp",)


@dataclass(frozen=True, slots=True)
class _Read:
    at_s: float  # monotonic
    requested_s: float | None


class NodeRequests:
    """Lists Events of a pod only when its worker would be given up. What it remembers may be forgotten."""

    def __init__(self, kube: Kube, clock: Clock = SYSTEM_CLOCK) -> None:
        self._kube = kube
        self._clock = clock
        self._read: dict[str, _Read] = {}  # by pod uid

    async def complete(
        self, workers: tuple[Worker, ...], pending: Iterable[Worker], policy: Policy, namespace: str
    ) -> tuple[Worker, ...]:
        """``workers`` with the node requests of those in ``pending`` whose time is over. Raises KubeError."""
        now_s = self._clock.now().timestamp()
        due = {worker.uid for worker in pending if now_s >= given_up_at_s(worker, policy)}
        self._read = {uid: read for uid, read in self._read.items() if self._age_s(read) < READ_AGAIN_S}
        requested = {uid: await self._requested_s(uid, namespace) for uid in due}
        return tuple(
            replace(worker, node_requested_s=requested[worker.uid]) if worker.uid in due else worker
            for worker in workers
        )

    def _age_s(self, read: _Read) -> float:
        return self._clock.monotonic_s() - read.at_s

    async def _requested_s(self, uid: str, namespace: str) -> float | None:
        if uid not in self._read:
            try:
                listing = await self._kube.list(resources.EVENTS, namespace, field_selector=f"regarding.uid={uid}")
            except Forbidden as error:  # rights of an older chart: the policy's time alone counts
                log.warning(
                    "Events of pods not readable, so pending nodes of autoscalers are ignored",
                    extra={"why": str(error)},
                )
                found_s = None
            else:
                found_s = node_requested_s(listing.items)
            self._read[uid] = _Read(self._clock.monotonic_s(), found_s)
        return self._read[uid].requested_s


def node_requested_s(events: Iterable[Object]) -> float | None:
    """When an autoscaler last reported a node for a pod; None: never, or it reported later that none comes."""
    said = [(_last_s(event), event.get("reason")) for event in events]
    known = [(at_s, reason) for at_s, reason in said if reason in (*_NODE_COMES, *_NO_NODE_COMES)]
    at_s, reason = max(known, default=(0.0, None))
    return at_s if reason in _NODE_COMES else None


def _last_s(event: dict[str, Any]) -> float:
    """When an Event was last seen, in whichever of its API's versions that was written."""
    stamps = (
        (event.get("series") or {}).get("lastObservedTime"),
        event.get("deprecatedLastTimestamp"),
        event.get("eventTime"),
    )
    known = [stamp for stamp in stamps if stamp] or [event["metadata"]["creationTimestamp"]]
    return max(datetime.fromisoformat(stamp).timestamp() for stamp in known)
