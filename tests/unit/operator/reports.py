"""What a status reports of a snapshot."""

from datetime import UTC, datetime

from pointsman.api.v1alpha1.conditions import Condition, ConditionType
from pointsman.api.v1alpha1.llmservice import LLMServiceStatus
from pointsman.operator.core.problems import Problem
from pointsman.operator.core.snapshot import (
    Snapshot,
)
from pointsman.operator.core.status import Report, report

NOW = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)


def told(
    found: Snapshot,
    *problems: Problem,
    before: LLMServiceStatus | None = None,
    now: datetime = NOW,
    revision: str = "r",
) -> Report:
    """The report of a snapshot."""
    return report(
        found,
        problems,
        endpoint="http://chat",
        revision=revision,
        before=before or LLMServiceStatus(),
        now=now,
    )


def of(outcome: Report, kind: ConditionType) -> Condition:
    """One condition of a report."""
    return next(item for item in outcome.status.conditions if item.type == kind)
