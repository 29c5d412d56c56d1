"""The text of an explanation of an elastic group: what was seen, expected, considered, chosen and why."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from pointsman.api.v1alpha1.conditions import Condition, ConditionStatus
from pointsman.api.v1alpha1.plan import Plan
from pointsman.planner.core.elastic.types import GroupDecision, GroupObservation
from pointsman.planner.core.messages import explanations as text
from pointsman.planner.core.types import Policy
from pointsman.planner.explain.explanation import (
    considered,
    input_lines,
    operator_is_silent,
    planner_is_silent,
    plans_so_far,
    section,
)
from pointsman.planner.group_memory import GroupLast
from pointsman.serving.words import quantity


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
    shows_inputs: bool = False  # of the decision


def group_explanation(told: GroupTold) -> str:
    """The whole text."""
    looked_s = None if told.last is None else told.now.timestamp() - told.last.observation.seen.at_s
    heading = text.heading(told.namespace, told.group, told.policy_name, told.policy.mode, looked_s)
    sections = []
    wrong = _wrong(told)
    if wrong:
        sections.append(section("Problems", wrong))
    if told.last is None:
        sections.append(told.unknown)
    else:
        observation, decision = told.last.observation, told.last.decision
        sections += [
            section("Metrics", _seen(observation, told.policy)),
            section("Forecast", _expected(decision)),
            section(text.ALTERNATIVES_TITLE, considered(decision.alternatives)),
            section("Decision", _chosen(decision, told.policy)),
        ]
        if told.shows_inputs:
            sections.append(section(text.INPUTS_TITLE, input_lines(decision.inputs)))
    return "\n\n".join([heading, *sections, section("Latest plans", plans_so_far(told.plans, told.now))]) + "\n"


def _wrong(told: GroupTold) -> list[str]:
    lines = []
    if told.health is not None and told.health.status is not ConditionStatus.TRUE:
        lines.append(f"{told.health.reason}: {told.health.message}")
    if told.last is not None:
        lines += planner_is_silent(told.now, told.last.observation.seen, told.policy)
    return [*lines, *operator_is_silent(told.now, told.plans)]


def _seen(observation: GroupObservation, policy: Policy) -> list[str]:
    lines = [text.instances_serve(observation.serving, observation.desired, observation.starting)]
    load, service, manager = observation.seen.load, observation.seen.service, observation.manager
    if load is None:
        return [*lines, text.LOAD_UNREAD]
    lines.append(text.load(load.arrivals_per_s, load.prompt_tokens, load.output_tokens))
    if service is not None:
        goals = policy.objectives
        shares = (service.ttft_attainment, service.tpot_attainment, service.attainment)
        lines.append(text.attainment(goals.ttft_ms, goals.tpot_ms, *shares))
    if manager is not None:
        lines.append(text.manager(manager.waiting, manager.free_slots, manager.slots))
    if observation.seen.plan_in_progress:
        lines.append(text.PLAN_EXECUTING)
    return lines


def _expected(decision: GroupDecision) -> list[str]:
    numbers = dict(decision.inputs)
    if "ratePerSecond" not in numbers:
        return [text.NO_FORECAST]
    return [
        text.group_rate(numbers["ratePerSecond"], numbers["leadSeconds"], numbers["highRatePerSecond"]),
        text.group_step(numbers["stepSeconds"], numbers["stepSecondsPerRequest"]),
        text.instances_needed(
            numbers["instancesNeeded"], numbers["expectedPrompts"], numbers["expectedTokens"], numbers["expectedMemory"]
        ),
    ]


def _chosen(decision: GroupDecision, policy: Policy) -> list[str]:
    number = quantity(decision.instances, "instance")
    lines = [text.outcome(number, decision.reason, decision.changes_layout), decision.message]
    if decision.changes_layout and (consequence := text.consequence(policy.mode)):
        lines.append(consequence)
    return lines
