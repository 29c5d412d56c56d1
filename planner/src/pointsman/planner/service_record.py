"""What the live loop keeps of one service between evaluations, and when its memory is saved."""

from dataclasses import dataclass
from typing import Final

from pointsman.api.v1alpha1.conditions import PlannerHealth
from pointsman.planner import memory
from pointsman.planner.core.state import State
from pointsman.planner.core.types import Reason
from pointsman.planner.plan_writer import PlanWriter
from pointsman.planner.routing_publisher import RoutingPublisher
from pointsman.planner.source import Source

# Where what would be explained has changed, else memory.SAVE_EVERY_S; where reasons come in turn, doubled up to that.
SAVE_CHANGED_S: Final = 5.0
_ROUTING_ONLY: Final = (Reason.STEADY, Reason.FLOW_CONTROL, Reason.THRESHOLD)  # they come in turn

Summary = tuple[object, object]
"""(what was decided, of what)."""


@dataclass
class ServiceRecord:
    """Of one service. ``state`` survives a restart."""

    uid: str
    state: State
    source: Source
    plans: PlanWriter
    routing: RoutingPublisher
    saved_at_s: float = 0.0
    saved_summary: Summary | None = None
    has_unsaved_plan: bool = False  # a plan was written since then
    changed_since_save: bool = False  # the summary was another one since then
    save_interval_s: float = SAVE_CHANGED_S  # where only the reason changes
    last_logged: Reason | None = None
    condition: tuple[bool, PlannerHealth, str] | None = None  # healthy, reason, and of what
    unreachable_share: float = 0.0  # of requests, as the condition reports
    last: memory.Last | None = None
    metrics_published: bool = False  # of the evaluation under way, in /metrics
    history_read: bool = False  # of Prometheus, or it failed

    def summary(self) -> Summary | None:
        """What of the last evaluation a person would miss if ``explain`` reported an earlier one."""
        if self.last is None:
            return None
        seen, decision = self.last.observation, self.last.decision
        workers = sorted((worker.role, worker.condition) for worker in seen.workers)
        reason = Reason.STEADY if decision.reason in _ROUTING_ONLY else decision.reason
        aim = reason, decision.prefill, decision.decode
        return aim, (workers, seen.plan_in_progress, seen.awaiting_approval)

    def note_changes(self) -> None:
        """Remember whether the last evaluation differs from the one that was saved."""
        self.changed_since_save |= self.saved_summary is not None and self.summary() != self.saved_summary

    def must_save(self, now_s: float) -> bool:
        """Whether the memory is to be saved, where no plan is written: that saves it at once."""
        return self.has_unsaved_plan or now_s - self.saved_at_s >= self._save_after_s()

    def _save_after_s(self) -> float:
        summary = self.summary()
        if summary == self.saved_summary:
            return memory.SAVE_EVERY_S
        of_others = summary is None or self.saved_summary is None or summary[1] != self.saved_summary[1]
        return SAVE_CHANGED_S if of_others else self.save_interval_s

    def note_save(self, now_s: float) -> None:
        """The memory is being saved; the more often its summary changes, the longer until the next time."""
        doubled_s = min(2 * self.save_interval_s, memory.SAVE_EVERY_S)
        self.save_interval_s = doubled_s if self.changed_since_save else SAVE_CHANGED_S
        self.saved_at_s, self.saved_summary = now_s, self.summary()
        self.changed_since_save = self.has_unsaved_plan = False
