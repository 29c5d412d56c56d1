"""What becomes of decisions while their plans fail, wait for a person, or outlive an edit of the policy."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from pointsman.api.protocol.names import Role
from pointsman.api.v1alpha1.plan import Plan, PlanPhase
from pointsman.api.v1alpha1.plannerpolicy import Mode
from pointsman.planner.core import plan_ledger
from pointsman.planner.core.decide import decide
from pointsman.planner.core.state import State
from pointsman.planner.core.types import (
    Bounds,
    Decision,
    EncodeLoad,
    Load,
    Observation,
    Policy,
    Worker,
    WorkerCondition,
)
from unit.planner.plans import NOW, OWNER
from unit.planner.plans import policy as policy_spec
from unit.planner.scenes import LLAMA_8B_H100, LONG, POLICY, SHORT, observed

TICK_S = 2.5
BUSY = replace(LONG, arrivals_per_s=70)


@dataclass(slots=True)
class Cluster:
    """Plans as the operator treats them, of a service whose workers stay as they are. ``fails_after_s``: of a plan that
    needs no approval; None: it is carried out for ever."""

    fails_after_s: float | None = None
    plans: list[Plan] = field(default_factory=list)
    written_s: list[float] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    state: State = field(default_factory=State)

    def look(self, seen: Observation, policy: Policy, **fields: Any) -> Decision:
        """One evaluation. ``fields``: of the policy as an object of the API, beside mode and budget."""
        now, spec = NOW + timedelta(seconds=seen.at_s), policy_spec(
            mode=policy.mode.value, budget={"maxGpus": policy.max_gpus}, **fields
        )  # fmt: skip
        for n, (plan, since_s) in enumerate(zip(self.plans, self.written_s, strict=True)):
            fails = self.fails_after_s is not None and seen.at_s - since_s >= self.fails_after_s
            if fails and plan_ledger.to_be_carried_out(plan):
                self._set_phase(n, PlanPhase.FAILED, seen.at_s)
        asked = plan_ledger.asked_of_a_person(self.plans)
        seen = replace(
            seen,
            plan_in_progress=any(map(plan_ledger.to_be_carried_out, self.plans)),
            awaiting_approval=asked.spec.target if asked is not None else None,
            needs_approval=asked is None or plan_ledger.needs_approval(asked.spec, spec, seen.pools),
        )
        self.state, decision, _ = decide(self.state, seen, policy, seen.at_s, LLAMA_8B_H100)
        layout = seen.pools[: len(decision.target)]
        news = plan_ledger.news(decision, self.plans, spec, layout, now)
        if news is not None:
            for n in range(len(self.plans)):
                self._set_phase(n, PlanPhase.SUPERSEDED, seen.at_s)
            manifest = plan_ledger.plan_manifest(
                namespace="default", owner=OWNER, sequence=len(self.plans) + 1, decision=news, policy=spec,
                layout=layout, now=now, awaiting=asked.metadata.name if asked is not None else "",
            )  # fmt: skip
            self.plans.append(Plan.model_validate(manifest))
            self.written_s.append(seen.at_s)
        self.decisions.append(decision)
        return decision

    def looks(self, count: int, seen: Callable[[float], Observation], policy: Policy, **fields: Any) -> None:
        """So many evaluations more."""
        for tick in range(len(self.decisions), len(self.decisions) + count):
            self.look(seen(TICK_S * tick), policy, **fields)

    def _set_phase(self, n: int, phase: PlanPhase, at_s: float) -> None:
        plan = self.plans[n]
        if plan.status.phase is None or not plan.status.phase.ended:
            status = plan.status.model_copy(update={"phase": phase, "ended_at": NOW + timedelta(seconds=at_s)})
            self.plans[n] = plan.model_copy(update={"status": status})


def test_a_switch_whose_plan_fails_before_it_begins_is_tried_again_like_any_plan() -> None:
    cluster = Cluster(fails_after_s=5.0)
    cluster.looks(120, lambda at_s: observed(at_s, LONG), POLICY)
    assert cluster.written_s == [5.0, 40.0, 105.0, 230.0]
    assert not any("in the last 10 minutes" in decision.message for decision in cluster.decisions)


def test_the_plan_for_a_switch_and_starts_that_a_person_is_asked_for_is_not_superseded_by_itself() -> None:
    policy = replace(POLICY, max_gpus=10, prefill=Bounds(1, 8), decode=Bounds(1, 8), scale_out=True)
    load = replace(LONG, arrivals_per_s=20)
    cluster = Cluster()
    cluster.looks(
        200, lambda at_s: observed(at_s, load if at_s < 60 else BUSY, 2, 3), policy,
        actions={"scaleOut": {"needsApproval": True}},
    )  # fmt: skip
    assert [plan.spec.target for plan in cluster.plans] == [(4, 3), (5, 2)], "without the switch and with it"
    assert cluster.plans[-1].spec.switches
    assert plan_ledger.awaits_approval(cluster.plans[-1])


ENCODES = Policy(
    mode=Mode.APPROVE, max_gpus=24, prefill=Bounds(1, 12), decode=Bounds(1, 12), encode=Bounds(1, 12),
    start_s=30.0, scale_in_stabilization_s=60.0,
)  # fmt: skip
PROMPTS = Load(arrivals_per_s=60, prompt_tokens=2000, output_tokens=200, prompt_length_shares=((2000, 1.0),))


def with_images(at_s: float, per_s: float, load: Load = PROMPTS) -> Observation:
    """Two workers of each role."""
    encoders = tuple(Worker(f"e{n}", Role.ENCODE, WorkerCondition.ACTIVE) for n in range(2))
    images = EncodeLoad(per_s, 3, 9.0, 100.0, 0.0)
    return observed(at_s, load, 2, 2, encode=images, encode_workers=encoders, encode_replicas=2)


def test_a_person_is_asked_for_all_three_pools_and_again_only_for_another_layout() -> None:
    """And once more when fewer encode workers are needed, after 30 s: that plan supersedes the first."""
    cluster = Cluster()
    cluster.looks(60, lambda at_s: with_images(at_s, 20), ENCODES)
    assert [plan.spec.target for plan in cluster.plans] == [(3, 2, 8), (3, 2, 7)]
    last = cluster.decisions[-1]
    assert "awaits approval" in last.message
    assert (last.changes_pools, last.target) == (False, (2, 2, 2))
    assert "encodeNeeded" in dict(last.inputs)


def test_a_plan_for_encode_workers_that_are_not_needed_any_more_is_withdrawn() -> None:
    quiet, cluster, policy = replace(PROMPTS, arrivals_per_s=10), Cluster(), replace(ENCODES, scale_in=False)
    cluster.looks(40, lambda at_s: with_images(at_s, 8, quiet), policy)
    (asked,) = cluster.plans
    assert asked.spec.target == (2, 2, 4)
    assert "The plan for this change awaits approval." in cluster.decisions[-1].message
    cluster.looks(160, lambda at_s: with_images(at_s, 2, quiet), policy)
    assert [plan.spec.withdraws for plan in cluster.plans[1:]] == [asked.metadata.name]
    assert cluster.plans[1].spec.message.startswith("The plan for 4E2P2D is withdrawn: it has not been needed for ")


def test_a_plan_that_awaits_approval_is_written_anew_when_the_policy_asks_nobody_any_more() -> None:
    asks = replace(
        POLICY, mode=Mode.APPROVE, max_gpus=10, prefill=Bounds(1, 8), decode=Bounds(1, 8), scale_out=True,
        role_switch=False,
    )  # fmt: skip
    cluster = Cluster()
    cluster.looks(24, lambda at_s: observed(at_s, BUSY, 2, 3), asks)
    assert plan_ledger.awaits_approval(cluster.plans[-1])
    before = cluster.plans[-1].spec.target
    cluster.looks(1, lambda at_s: observed(at_s, BUSY, 2, 3), replace(asks, mode=Mode.ACTIVE))
    assert cluster.written_s[-1] == 60.0
    assert cluster.plans[-1].spec.target == before
    assert not cluster.plans[-1].spec.approval.required
    cluster.looks(5, lambda at_s: observed(at_s, BUSY, 2, 3), replace(asks, mode=Mode.ACTIVE))
    assert cluster.written_s[-1] == 60.0, "once"


def test_a_plan_that_needs_no_approval_any_more_is_withdrawn_when_its_layout_is_not_needed() -> None:
    """Until it expires a person can still approve it, and the operator would carry it out."""
    asks = replace(POLICY, mode=Mode.APPROVE)
    cluster = Cluster()
    cluster.looks(12, lambda at_s: observed(at_s, LONG), asks)
    (asked,) = cluster.plans
    assert plan_ledger.awaits_approval(asked)
    content = replace(SHORT, arrivals_per_s=50.0)
    cluster.looks(240, lambda at_s: observed(at_s, content), replace(asks, mode=Mode.ACTIVE))
    assert [plan.spec.withdraws for plan in cluster.plans[1:]] == [asked.metadata.name]
