"""Plans and policies as objects of the API."""

from datetime import UTC, datetime
from typing import Any

from pointsman.api.protocol.names import Role
from pointsman.api.v1alpha1.plan import Plan
from pointsman.api.v1alpha1.plannerpolicy import PlannerPolicySpec
from pointsman.planner.core import plan_ledger
from pointsman.planner.core.types import Alternative, Decision, Reason, RoutingNumbers, Switch

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
OWNER = {
    "apiVersion": "pointsman.dev/v1alpha1", "kind": "LLMService", "name": "chat", "uid": "u",
    "controller": False, "blockOwnerDeletion": False,
}  # fmt: skip


def policy(**fields: Any) -> PlannerPolicySpec:
    return PlannerPolicySpec.model_validate(
        {"objectives": {"ttftMs": 1000, "tpotMs": 50}, "budget": {"maxGpus": 8}, "mode": "Active", **fields}
    )


DECISION = Decision(
    Reason.PREFILL_SHORT, "long prompts", 3, 2, RoutingNumbers(512, 32),
    switches=(Switch(Role.DECODE, Role.PREFILL, 1),), changes_layout=True,
    inputs=(("ratePerSecond", 4.5),), alternatives=(Alternative(3, 2, 5, 0.97, 10.0, "switch"),),
)  # fmt: skip


def plan(decision: Decision = DECISION, sequence: int = 1, phase: str | None = None, **fields: Any) -> Plan:
    manifest = plan_ledger.plan_manifest(
        namespace="default", owner=OWNER, sequence=sequence, decision=decision,
        policy=policy(**fields), layout=(2, 3), now=NOW,
    )  # fmt: skip
    if phase:
        manifest["status"] = {"phase": phase, "endedAt": NOW.isoformat()}
    return Plan.model_validate(manifest)
