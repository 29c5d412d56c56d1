"""Polling the workers that serve, all the time: one that stopped by itself tells nobody else.

A worker drains itself when its engine aborts requests or a part of it ends. Its pod stays Ready and its label says
routable, so no object changes.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from pointsman.api.protocol.control import WorkerState
from pointsman.kube.pods import ServiceKey
from pointsman.operator.core.roles import serves
from pointsman.operator.core.snapshot import Worker
from pointsman.process.clock import SYSTEM_CLOCK, Clock

POLL_S: Final = 5.0  # every serving worker is polled this often
MAX_POLLS_PER_S: Final = 50.0  # of this process: above 250 workers each is polled less often


class WorkerPolls:
    """Polls one serving worker after another, evenly over time.

    ``serving`` lists them with their services. ``ask`` returns the state of one, None without an answer: its node may
    be lost, which Kubernetes finds out later. ``reconcile`` has a service looked at.
    """

    def __init__(
        self,
        serving: Callable[[], Iterable[tuple[ServiceKey, Worker]]],
        ask: Callable[[ServiceKey, Worker], Awaitable[WorkerState | None]],
        reconcile: Callable[[ServiceKey], None],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._serving = serving
        self._ask = ask
        self._reconcile = reconcile
        self._clock = clock
        self._suspects: set[str] = set()
        self._polls: set[asyncio.Task[None]] = set()

    def suspects(self, uid: str) -> bool:
        """Whether a worker, by its last poll, does not serve in the role of its label, or does not answer."""
        return uid in self._suspects

    def answered(self, worker: Worker, state: WorkerState) -> None:
        """A worker reported its state elsewhere too: a doubt about one that serves is over."""
        if serves(state, worker.role):
            self._suspects.discard(worker.uid)

    async def run(self) -> None:
        """Poll until cancelled; polls that still wait for an answer are cancelled too."""
        try:
            while True:
                due = tuple(self._serving())
                self._suspects &= {worker.uid for _, worker in due}
                pause_s = max(POLL_S / max(1, len(due)), 1 / MAX_POLLS_PER_S)
                for key, worker in due:
                    task = asyncio.create_task(self._poll(key, worker), name=f"poll of {worker.name}")
                    self._polls.add(task)
                    task.add_done_callback(self._polls.discard)
                    await self._clock.sleep(pause_s)
                if not due:
                    await self._clock.sleep(POLL_S)
        finally:
            for task in self._polls:
                task.cancel()

    async def _poll(self, key: ServiceKey, worker: Worker) -> None:
        state = await self._ask(key, worker)
        if state is not None and serves(state, worker.role):
            self._suspects.discard(worker.uid)
        elif worker.uid not in self._suspects:
            self._suspects.add(worker.uid)
            self._reconcile(key)
