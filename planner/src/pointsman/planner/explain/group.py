"""The text of an explanation of an elastic group: what was seen, expected, considered, chosen and why."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from pointsman.api.v1alpha1.conditions import Condition, ConditionStatus
from pointsman.api.v1alpha1.plan import Plan
from pointsman.planner.core.elastic.types import GroupDecision, GroupObservation
from pointsman.planner.core.types import Policy, Reason
from pointsman.planner.explain.explanation import (
    WHAT_MODE_MEANS,
    ago,
    considered,
    operator_is_silent,
    planner_is_silent,
    plans_so_far,
    section,
    share,
)
from pointsman.planner.group_memory import GroupLast


@dataclass(frozen=True, slots=True)
class GroupTold:
    """Everything an explanation is made of. ``last`` None: ``unknown`` says why."""

    group: str
    namespace: str
    policy_name: str
    policy: Policy
    now: datetime
    last: GroupLast | None
    plans: Sequence[Plan]
    health: Condition | None
    unknown: str = ""


def group_explanation(told: GroupTold) -> str:
    """The whole text."""
    heading = f"{told.namespace}/{told.group}: policy {told.policy_name}, mode {told.policy.mode}"
    sections = []
    wrong = _wrong(told)
    if wrong:
        sections.append(section("Problems", wrong))
    if told.last is None:
        sections.append(told.unknown)
    else:
        observation, decision = told.last.observation, told.last.decision
        looked = datetime.fromtimestamp(observation.seen.at_s, told.now.tzinfo)
        heading += f"; evaluated {ago(told.now - looked)}"
        sections += [
            section("Metrics", _seen(observation, told.policy)),
            section("Forecast", _expected(decision)),
            section("Alternatives", considered(decision.alternatives)),
            section("Decision", _chosen(decision, told.policy)),
        ]
    return "\n\n".join([heading, *sections, section("Latest plans", plans_so_far(told.plans, told.now))]) + "\n"


def _wrong(told: GroupTold) -> list[str]:
    lines = []
    if told.health is not None and told.health.status is not ConditionStatus.TRUE:
        lines.append(f"{told.health.reason}: {told.health.message}")
    if told.last is not None:
        lines += planner_is_silent(told.now, told.last.observation.seen.at_s, told.policy)
    return [*lines, *operator_is_silent(told.now, told.plans)]


def _seen(observation: GroupObservation, policy: Policy) -> list[str]:
    starting = f", {observation.starting} start" if observation.starting else ""
    lines = [f"{observation.serving} of {observation.desired} instances serve{starting}"]
    load, service, manager = observation.seen.load, observation.seen.service, observation.manager
    if load is None:
        return [*lines, "the load could not be read: it is unknown, not zero"]
    lengths = (
        f" of {load.prompt_tokens:.0f} prompt and {load.output_tokens:.0f} answer tokens"
        if load.prompt_tokens is not None and load.output_tokens is not None
        else ", of unknown length"
    )
    lines.append(f"{load.arrivals_per_s:.2f} requests/s{lengths}")
    if service is not None:
        goals = policy.objectives
        lines.append(
            f"first tokens within {goals.ttft_ms:g} ms for {share(service.ttft_attainment)} of requests, "
            f"{goals.tpot_ms:g} ms a token for {share(service.tpot_attainment)}"
        )
    if manager is not None:
        lines.append(
            f"{manager.waiting:.0f} requests wait; {manager.free_slots:.0f} of {manager.slots:.0f} KV slots are free"
        )
    if observation.seen.plan_in_progress:
        lines.append("a plan is being executed")
    return lines


def _expected(decision: GroupDecision) -> list[str]:
    numbers = dict(decision.inputs)
    if "ratePerSecond" not in numbers:
        return ["none: too few metrics"]
    return [
        (
            f"{numbers['ratePerSecond']:.2f} requests/s in {numbers['leadSeconds']:.0f} s, when a new "
            f"instance would serve; planned for {numbers['highRatePerSecond']:.2f}"
        ),
        f"a decode step of one instance takes {numbers['stepSeconds'] * 1000:.1f} ms and "
        f"{numbers['stepSecondsPerRequest'] * 1000:.2f} ms for each request in it",
        f"{numbers['instancesNeeded']:.0f} needed: {numbers['expectedPrompts']:.0%} of prompts in time, "
        f"{numbers['expectedTokens']:.0%} of answers, and room for the KV of {numbers['expectedMemory']:.0%}",
    ]


def _chosen(decision: GroupDecision, policy: Policy) -> list[str]:
    word = f"{decision.instances} instance{'' if decision.instances == 1 else 's'}"
    if decision.changes_layout:
        lines = [f"go to {word} ({decision.reason})"]
    elif decision.reason is Reason.AWAITING_APPROVAL:
        lines = ["wait: the plan for this layout awaits approval"]
    else:
        lines = [f"stay at {word} ({decision.reason})"]
    lines.append(decision.message)
    if decision.changes_layout and policy.mode in WHAT_MODE_MEANS:
        lines.append(WHAT_MODE_MEANS[policy.mode])
    return lines
