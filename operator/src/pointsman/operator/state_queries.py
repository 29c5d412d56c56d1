"""Queries of one look: the states of the workers and gateways that its decision needs, side by side and time-limited.

Workers that serve are polled beside the looks, see ``worker_polls``.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from pointsman.api.protocol.control import WorkerState
from pointsman.kube.pods import Pod
from pointsman.operator.announce import Announcer
from pointsman.operator.control import ControlClient
from pointsman.operator.core.decide import gateways_must_report, workers_to_ask
from pointsman.operator.core.messages import outcomes
from pointsman.operator.core.snapshot import GatewayPod, Service, Snapshot, Worker
from pointsman.operator.errors import ControlFailed
from pointsman.operator.observe import gateway_of

log = logging.getLogger(__name__)

CONCURRENT_QUERIES: Final = 64  # of this process


class StateQueries:
    """Fetches no more than the core says it needs."""

    def __init__(self, control: ControlClient, announcer: Announcer) -> None:
        self._control = control
        self._announcer = announcer
        self._slots = asyncio.Semaphore(CONCURRENT_QUERIES)

    async def fill_in(self, snapshot: Snapshot, gateway_pods: Sequence[Pod], token: str) -> Snapshot:
        """``snapshot`` with the answers of those the next decision needs; None stands for no answer."""
        asked = workers_to_ask(snapshot)
        to_report = gateway_pods if gateways_must_report(snapshot) else ()
        states, gateways = await asyncio.gather(
            asyncio.gather(*(self.state(worker, token) for worker in asked)),
            asyncio.gather(*(self._uses(snapshot.service, pod, token) for pod in to_report if pod.ready)),
        )
        by_uid = dict(zip((worker.uid for worker in asked), states, strict=True))
        if not to_report and any(worker.serves and by_uid[worker.uid] is None for worker in asked):
            # Kubernetes may not know yet that its node is lost: gateways that send requests there do.
            ready = (pod for pod in gateway_pods if pod.ready)
            gateways = await asyncio.gather(*(self._uses(None, pod, token) for pod in ready))
        by_name = {gateway.name: gateway for gateway in gateways}
        return replace(
            snapshot,
            workers=tuple(
                replace(worker, state=by_uid[worker.uid], asked=True) if worker.uid in by_uid else worker
                for worker in snapshot.workers
            ),
            gateways=tuple(by_name.get(gateway.name, gateway) for gateway in snapshot.gateways),
        )

    async def state(self, worker: Worker, token: str) -> WorkerState | None:
        """What a worker says about itself; None: no answer."""
        if worker.control_url is None:
            return None
        async with self._slots:
            try:
                return await self._control.state(worker.control_url, token)
            except ControlFailed as error:
                log.debug("worker state unknown", extra={"worker": worker.name, "why": str(error)})
                return None

    async def _uses(self, drained: Service | None, pod: Pod, token: str) -> GatewayPod:
        """A gateway with the workers that it uses. ``drained``: the service, if workers of it drain."""
        async with self._slots:
            try:
                answer = await self._control.endpoints(pod.status.pod_ip or "", token)
            except ControlFailed as error:
                if drained is not None:
                    note = outcomes.gateway_skipped(pod.metadata.name, str(error))
                    self._announcer.event(drained, "GatewaySkipped", note, True)
                return gateway_of(pod, unreachable=True)
        return gateway_of(
            pod,
            uses=frozenset(item.uid for item in answer.endpoints),
            avoids=frozenset(item.uid for item in answer.endpoints if item.suspect or item.ejections),
        )
