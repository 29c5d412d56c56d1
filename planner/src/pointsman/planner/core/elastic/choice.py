"""How many instances are chosen, by what is needed, and why not another number."""

from dataclasses import dataclass

from pointsman.planner.core.elastic.sizing import Expected, GroupLoad, GroupModel
from pointsman.planner.core.elastic.types import GroupDecision, GroupObservation
from pointsman.planner.core.messages import decisions, groups
from pointsman.planner.core.types import Alternative, Bounds, Policy, Reason


@dataclass(frozen=True, slots=True)
class Choice:
    """What a number of instances is chosen by.

    ``bounds``: with the budget. ``needed``: for the load that is planned for. ``minimum``: instances that must remain,
    enough for a little more load. ``wanted``: (when, minimum) of the looks of the last ``stable_s`` seconds, this one
    included.
    """

    observation: GroupObservation
    policy: Policy
    bounds: Bounds
    model: GroupModel
    load: GroupLoad
    needed: Expected
    minimum: int
    wanted: tuple[tuple[float, int], ...]
    stable_s: float
    lead_s: float

    def decision(self) -> GroupDecision:
        """Without its inputs and alternatives."""
        observation, policy, bounds = self.observation, self.policy, self.bounds
        now, goal, keeps = observation.desired, policy.objectives.attainment, self.needed.attainment
        needed = min(max(self.needed.instances, bounds.least), bounds.most)
        highest = max(needed, min(bounds.most, self._retained(self._most_wanted)))
        if self._awaits_plan:
            return stays(observation, Reason.PLAN_IN_PROGRESS, decisions.PLAN_EXECUTING)
        if needed > now and policy.scale_out:
            message = groups.too_few(now, needed, keeps, goal, bounds.most)
            return GroupDecision(Reason.INSTANCES_SHORT, message, needed, changes_layout=True)
        lasted = self.wanted[-1][0] - self.wanted[0][0] >= 0.9 * self.stable_s  # there were looks in most of that time
        if highest < now and policy.scale_in and lasted and not (observation.starting or observation.seen.unread):
            message = groups.spare(highest, self.stable_s)
            if keeps < goal:
                message = groups.not_enough(highest, keeps, goal, bounds.most)
            return GroupDecision(Reason.SPARE_CAPACITY, message, highest, changes_layout=True)
        if keeps < goal and needed <= now:
            return stays(observation, Reason.UNSATISFIABLE, groups.not_enough(needed, keeps, goal, bounds.most))
        return stays(observation, Reason.STEADY, groups.unchanged(now, needed, keeps, self._why_kept(needed)))

    def alternatives(self, chosen: int) -> tuple[Alternative, ...]:
        """The chosen number first, then the present one and the neighbours."""
        now, gpus_each = self.observation.desired, self.observation.gpus_each
        around = range(max(1, chosen - 2), min(self.bounds.most, chosen + 2) + 1)
        found = []
        for instances in sorted({chosen, now, *around}, key=lambda number: (number != chosen, number)):
            kept, goal = self.model.expected(self.load, instances).attainment, self.policy.objectives.attainment
            why = groups.enough(chosen) if instances > chosen else self._why_kept(instances)
            why = "" if instances == chosen else groups.misses(goal) if kept < goal else why
            action = "stay" if instances == now else "scale-out" if instances > now else "scale-in"
            starts_s = self.lead_s if instances > now else 0.0
            found.append(Alternative(0, 0, instances * gpus_each, kept, starts_s, action, why, instances=instances))
        return tuple(found)

    def _why_kept(self, enough: int) -> str:
        """Why the group is not reduced to so many instances, although they are enough."""
        most_wanted = self._most_wanted
        if enough < self.bounds.least:
            return groups.least_allowed(self.bounds.least)
        if not self.policy.scale_in:
            return groups.NO_SCALE_IN
        if enough < self.minimum:
            return groups.too_few_for_more(self.policy.tuning.rate_headroom)
        if self._awaits_plan:
            return decisions.PLAN_EXECUTING
        if self.observation.starting:
            return groups.STARTS
        if self.observation.seen.unread:
            return groups.pages_unknown(self.observation.seen.unread)
        if most_wanted <= enough < self._retained(most_wanted):
            return groups.ONE_IS_STUCK
        return groups.not_long_enough(self.stable_s)

    @property
    def _awaits_plan(self) -> bool:
        """Whether a plan is under way that does more than wait for instances to start."""
        return self.observation.seen.plan_in_progress and not self.observation.starting

    @property
    def _most_wanted(self) -> int:
        return max(number for _, number in self.wanted)

    def _retained(self, working: int) -> int:
        """Instances to retain so that ``working`` of them are not stuck: the highest ordinals are removed first."""
        retained = working
        for ordinal in sorted(int(name.rpartition("-")[2]) for name in self.observation.stuck):
            retained += ordinal < retained
        return retained


def stays(observation: GroupObservation, reason: Reason, message: str) -> GroupDecision:
    """As many instances as there are."""
    return GroupDecision(reason, message, observation.desired)
