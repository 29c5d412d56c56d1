"""The statuses of plans and role switches, written when they say something else."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from pointsman.api.v1alpha1.plan import PlanPhase, PlanReason, PlanStatus
from pointsman.api.v1alpha1.roleswitch import PhaseTime, RoleSwitchStatus, SwitchPhase, SwitchReason, SwitchWay
from pointsman.operator.core.actions import SetPlanStatus, SetSwitchStatus
from pointsman.operator.core.messages import plans as plan_text
from pointsman.operator.core.messages import switches as switch_text
from pointsman.operator.core.snapshot import Plan, Snapshot, Switch, Worker

MESSAGE_LIMIT: Final = 1500


def report_plan(
    plan: Plan,
    now_s: float,
    phase: PlanPhase,
    reason: PlanReason,
    message: str,
    switches: tuple[str, ...] | None = None,
) -> Iterator[SetPlanStatus]:
    """Write the plan's status, if it says something else. ``switches`` None: those it has stay."""
    before, message = plan.status, message[:MESSAGE_LIMIT]
    made = before.switches if switches is None else switches
    if (before.phase, before.reason, before.message, before.switches) == (phase, reason, message, made):
        return
    now = datetime.fromtimestamp(now_s, UTC)
    status = PlanStatus(
        phase=phase,
        reason=reason,
        message=message,
        switches=made,
        started_at=before.started_at or (now if phase is PlanPhase.EXECUTING else None),
        ended_at=now if phase.ended else None,
    )
    if phase.ended:
        status = status.ended_with(now)
    yield SetPlanStatus(name=plan.name, uid=plan.uid, status=status, why=plan_text.status_changed(phase, message))


def report_switch(
    switch: Switch, snapshot: Snapshot, phase: SwitchPhase, reason: SwitchReason, message: str, worker: Worker | None
) -> Iterator[SetSwitchStatus]:
    """Write the switch's status, if it says something else."""
    before, message = switch.status, message[:MESSAGE_LIMIT]
    if (before.phase, before.reason, before.message) == (phase, reason, message):
        return
    now = datetime.fromtimestamp(snapshot.now_s, UTC)
    phases = before.phases if before.phase is phase else (*before.phases, PhaseTime(phase=phase, at=now))
    after = RoleSwitchStatus(
        phase=phase,
        worker=worker.name if worker else before.worker,
        worker_uid=worker.uid if worker else before.worker_uid,
        way=SwitchWay.HOT if worker else before.way,
        reason=reason,
        message=message,
        phases=phases[-16:],
        seconds=round(switch.age_s(snapshot.now_s), 3) if phase.ended else None,
        conditions=before.conditions,
    )
    if phase.ended:
        after = after.ended_with(now)
    yield SetSwitchStatus(
        name=switch.name, uid=switch.uid, status=after, why=switch_text.status_changed(phase, message)
    )
