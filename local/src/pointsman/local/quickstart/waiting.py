"""Waits until a service is as wanted, and says why it is not when the time is up."""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from pointsman.api.v1alpha1.conditions import ConditionStatus, ConditionType
from pointsman.kube.errors import KubeError
from pointsman.local.errors import LocalError
from pointsman.local.observation import Observer, ServiceView
from pointsman.local.quickstart.table import plan_line

_LOOK_S: Final = 0.2


class NotThere(LocalError):
    """What was waited for did not come; the message has the last conditions and Events."""


async def wait_until(
    observer: Observer,
    what: str,
    holds: Callable[[ServiceView], bool],
    *,
    timeout_seconds: float,
    on_view: Callable[[ServiceView], None] | None = None,
    look_seconds: float = _LOOK_S,
) -> ServiceView:
    """Look until ``holds``; the view that it held for. Raises NotThere at the deadline, saying what was seen last."""
    deadline = time.monotonic() + timeout_seconds
    view: ServiceView | None = None
    unreachable = ""
    while True:
        try:
            view = await observer.look()
        except KubeError as error:
            unreachable = f" (the API server did not answer: {error})"
        else:
            unreachable = ""
            if on_view is not None:
                on_view(view)
            if holds(view):
                return view
        if time.monotonic() > deadline:
            raise NotThere(f"{what} did not happen within {timeout_seconds:.0f} s{unreachable}\n{await _why(observer)}")
        await asyncio.sleep(look_seconds)


async def _why(observer: Observer) -> str:
    try:
        view = await observer.look(events=8)
    except KubeError as error:
        return f"and the API server does not answer now: {error}"
    if view.service is None:
        return "the service does not exist"
    usually_false = (ConditionType.DEGRADED, ConditionType.PROGRESSING, ConditionType.SWITCH_IN_PROGRESS)
    lines = [
        f"  condition {condition.type}={condition.status} {condition.reason}: {condition.message}"
        for condition in view.service.status.conditions
        if condition.status is not (ConditionStatus.FALSE if condition.type in usually_false else ConditionStatus.TRUE)
    ]
    lines += [
        f"  pod {worker.name}: {worker.role} {worker.doing}, routable={worker.routable}" for worker in view.workers
    ]
    lines += [f"  pod {pod.metadata.name}: ready={pod.ready}" for pod in view.gateways]
    lines += [f"  {plan_line(plan)}" for plan in view.plans[-4:]]
    lines += [f"  event {event.about} {event.reason}: {event.note}" for event in view.events]
    return "\n".join(lines)
