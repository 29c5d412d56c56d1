"""The plans of one service or elastic group in the API server: those there are, new ones, and old ones that go."""

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

from pointsman.api.v1alpha1.plan import Plan
from pointsman.kube import resources
from pointsman.kube.client import Kube
from pointsman.kube.errors import AlreadyExists, NotFound
from pointsman.kube.events import EventRecorder, Reference
from pointsman.planner.core import plan_ledger
from pointsman.planner.metrics import PlannerMetrics
from pointsman.process.clock import Clock

log = logging.getLogger(__name__)


RESERVED_NUMBERS: Final = 10  # with each save: a plan needs none before it, and after a death no number is used twice
KEPT_PLANS: Final = 50  # ended ones of a service
DELETED_AT_ONCE: Final = 3
_SHOWN_AFTER_S: Final = 60.0  # a plan that was written and that the API server does not show by then was deleted


class PlanWriter:
    """``of``: what the plans are for; ``mirrored``: all plans with its name, as the mirror has them now; ``reserved``:
    the number in the saved memory, up to which numbers may have been used."""

    def __init__(
        self,
        kube: Kube,
        events: EventRecorder,
        metrics: PlannerMetrics,
        clock: Clock,
        of: Reference,
        mirrored: Callable[[], Sequence[Plan]],
        reserved: int,
    ) -> None:
        self._kube = kube
        self._events = events
        self._metrics = metrics
        self._clock = clock
        self._of = of
        self._mirrored = mirrored
        self._last = self._reserved = reserved
        self._written: tuple[Plan, float] | None = None  # the last one, and when; until the mirror has it

    def known(self) -> list[Plan]:
        """All its plans, and none of what had its name before. What the mirror does not show yet is none the less
        written."""
        plans = [plan for plan in self._mirrored() if _owned(plan, self._of.uid)]
        if self._written is not None:
            plan, written_s = self._written
            is_shown = any(known.spec.sequence == plan.spec.sequence for known in plans)
            if is_shown or self._clock.monotonic_s() - written_s > _SHOWN_AFTER_S:
                self._written = None
            else:
                plans.append(plan)
        return plans

    def next_sequence(self) -> int:
        """Of a new plan; above those of what had its name before, too."""
        self._last = plan_ledger.next_sequence(self._mirrored(), self._last)
        return self._last

    @property
    def must_save(self) -> bool:
        """Whether the last number may be used only after a save with ``to_reserve``."""
        return self._last > self._reserved

    @property
    def to_reserve(self) -> int:
        """The number to save: after a restart, numbers above it are used."""
        return self._last + RESERVED_NUMBERS

    def saved(self) -> None:
        """``to_reserve`` was saved."""
        self._reserved = self.to_reserve

    async def create(self, manifest: dict[str, Any]) -> None:
        """Write a plan, tell and count it. Raises KubeError."""
        try:
            await self._kube.create(resources.PLANS, manifest)
        except AlreadyExists:
            return  # of what had its name before; the next look takes the next number
        plan = Plan.model_validate(manifest)
        self._written = plan, self._clock.monotonic_s()
        of, name, spec = self._of, plan.metadata.name, plan.spec
        log.info(
            "plan written",
            extra={"service": f"{of.namespace}/{of.name}", "plan": name, "reason": spec.reason, "detail": spec.message},
        )
        self._metrics.planned(of.namespace, of.name, spec.reason)
        self._events.record(of, f"Planned{spec.reason}", f"{name}: {spec.message}")

    async def delete_outdated(self) -> None:
        """Delete the oldest ended plans beyond the history. Raises KubeError."""
        for old in plan_ledger.outdated(self._mirrored(), KEPT_PLANS)[:DELETED_AT_ONCE]:
            try:
                await self._kube.delete(resources.PLANS, old.metadata.name, self._of.namespace, uid=old.metadata.uid)
            except NotFound:
                continue


def _owned(plan: Plan, uid: str) -> bool:
    owners = [owner.uid for owner in plan.metadata.owner_references]
    return not owners or uid in owners
