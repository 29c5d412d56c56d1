"""What is asked of workers and takes time: role, proof, drain. It runs beside the queue, so nobody waits for it."""

import asyncio
import logging
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from pointsman.api.v1alpha1.conditions import Reason
from pointsman.kube.pods import ServiceKey
from pointsman.operator.announce import Announcer
from pointsman.operator.control import ControlClient
from pointsman.operator.core import actions as act
from pointsman.operator.core.messages import status as texts
from pointsman.operator.core.problems import Problem
from pointsman.operator.core.snapshot import Service
from pointsman.operator.errors import ControlFailed, NotLeading
from pointsman.operator.metrics import OperatorMetrics
from pointsman.operator.work_queue import WorkQueue
from pointsman.process.clock import SYSTEM_CLOCK, Clock

log = logging.getLogger(__name__)

RETRY_S: Final = (1.0, 30.0)  # after a failure: the time to the next try doubles from the one to the other

WorkerCommand = act.GiveRole | act.SetPrefillTokenBudget | act.VerifyWorker | act.AskDrain


@dataclass
class _Command:
    """What is asked of one worker at the moment, or why it is waited before the next try."""

    key: ServiceKey
    doing: str
    until_s: float | None = None  # monotonic; None: it runs
    failures: int = 0
    problem: Problem | None = None


class Commands:
    """At most one command a worker. All of it may be forgotten: the worker says what became of it."""

    def __init__(
        self,
        control: ControlClient,
        queue: WorkQueue[ServiceKey],
        announcer: Announcer,
        metrics: OperatorMetrics,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._control = control
        self._queue = queue
        self._announcer = announcer
        self._metrics = metrics
        self._clock = clock
        self._commands: dict[str, _Command] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, service: Service, action: WorkerCommand, token: str) -> None:
        """Begin; when it ends, the service is looked at again. Raises NotLeading."""
        self._control.fence()
        before = self._commands.get(action.uid)
        command = _Command(
            key=(service.namespace, service.name),
            doing=_doing(action),
            failures=before.failures if before else 0,
            problem=before.problem if before else None,
        )
        self._commands[action.uid] = command
        task = asyncio.create_task(self._run(service, action, token, command), name=f"{action.worker} {command.doing}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def doing(self, uid: str) -> str | None:
        """What is being done to a worker, or waited for before it is tried again; None: it may be commanded."""
        command = self._commands.get(uid)
        if command is None or (command.until_s is not None and command.until_s <= self._clock.monotonic_s()):
            return None
        return command.doing

    def problem(self, uid: str) -> Problem | None:
        """Why the last proof of a worker failed, until one succeeds."""
        command = self._commands.get(uid)
        return command.problem if command else None

    def forget(self, uid: str) -> None:
        """What failed does not count any more."""
        self._commands.pop(uid, None)

    def keep(self, key: ServiceKey, uids: Collection[str]) -> None:
        """Forget what was asked of workers of the service that are gone."""
        self._commands = {
            uid: command
            for uid, command in self._commands.items()
            if command.key != key or command.until_s is None or uid in uids
        }

    async def stop(self) -> None:
        """Cancel what runs; the next leader asks again."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, service: Service, action: WorkerCommand, token: str, command: _Command) -> None:
        try:
            match action:
                case act.GiveRole():
                    await self._control.give_role(action.url, token, action.role, action.prefill_token_budget)
                case act.SetPrefillTokenBudget():
                    await self._control.set_prefill_token_budget(action.url, token, action.prefill_token_budget)
                case act.VerifyWorker():
                    await self._control.verify(action.url, token, action.role, action.partner_url)
                case act.AskDrain():
                    await self._control.drain(action.url, token, action.reason)
        except NotLeading as error:
            log.info(
                "command not sent",
                extra={
                    "service": service.key,
                    "worker": action.worker,
                    "action": type(action).__name__,
                    "why": str(error),
                },
            )
            self._commands.pop(action.uid, None)
        except Exception as error:  # noqa: BLE001 - whatever it was, the worker must be tried again
            self._failed(service, action, command, error)
        else:
            if self._commands.get(action.uid) is command:  # it may have been forgotten, and another one begun
                del self._commands[action.uid]
            self._announcer.did(service, action, action.worker)
        finally:
            self._queue.add(command.key)

    def _failed(self, service: Service, action: WorkerCommand, command: _Command, error: Exception) -> None:
        name = type(action).__name__
        fields = {"service": service.key, "worker": action.worker, "action": name}
        if isinstance(error, ControlFailed):
            log.warning("command failed", extra=fields | {"why": str(error)})
        else:
            log.exception("command failed", extra=fields)
        self._metrics.actions.labels(name, "failed").inc()
        command.failures += 1
        first_s, most_s = RETRY_S
        wait_s = min(most_s, first_s * 2.0 ** min(command.failures - 1, 16))
        command.until_s = self._clock.monotonic_s() + wait_s
        command.doing = texts.command_failed(str(error))
        if isinstance(action, act.VerifyWorker):
            message = texts.verification_failed(action.worker, str(error))
            command.problem = Problem(reason=Reason.VERIFICATION_FAILED, message=message, role=action.role)
            self._announcer.event(service, Reason.VERIFICATION_FAILED, message, warning=True)
        self._queue.add_later(command.key, wait_s)


def _doing(action: WorkerCommand) -> str:
    match action:
        case act.GiveRole():
            return texts.role_command()
        case act.SetPrefillTokenBudget():
            return texts.budget_command()
        case act.VerifyWorker():
            return texts.verify_command()
        case act.AskDrain():
            return texts.drain_command()
