"""How many workers of each role, by switches and scaling, within the policy; and the sentence that says why."""

import math
from dataclasses import replace
from typing import Final

from pointsman.planner.core.layout.alternatives import considered, in_short
from pointsman.planner.core.layout.rejection_reasons import Choice
from pointsman.planner.core.layout.role_switches import MOVE_COST, kept_by, switch, switches_between
from pointsman.planner.core.sizing.operating_point import OperatingPoint
from pointsman.planner.core.sizing.pool_targets import Targets, without_idle
from pointsman.planner.core.state import State
from pointsman.planner.core.switch_guards import DEAD_BAND
from pointsman.planner.core.types import (
    Alternative,
    Decision,
    Observation,
    Policy,
    Reason,
    WorkerCondition,
    WorkerRole,
)

READY_REQUESTS: Final = 25.0  # before anything is scaled
_DONE: Final = {
    "switch": "Switch roles",
    "scale-out": "Scale out",
    "scale-in": "Scale in",
    "switch+scale-out": "Switch roles and scale out",
    "replace": "Replace workers",
}
_BECAUSE: Final = {
    Reason.PREFILL_SHORT: "prefill is short",
    Reason.DECODE_SHORT: "decode is short",
    Reason.BOTH_SHORT: "prefill and decode are short",
    Reason.SPARE_CAPACITY: "fewer workers are enough",
    Reason.UNSATISFIABLE: "the policy allows no more workers",
}
SHORT: Final = (Reason.PREFILL_SHORT, Reason.DECODE_SHORT, Reason.BOTH_SHORT)


def layout(
    state: State,
    observation: Observation,
    policy: Policy,
    now_s: float,
    wanted: Targets,
    point: OperatingPoint,
) -> tuple[State, Decision]:
    """The decision but for its routing numbers, and the state that remembers it."""
    now = observation.committed(WorkerRole.PREFILL), observation.committed(WorkerRole.DECODE)
    reason, sentence = _why(state, observation, policy, wanted, now)
    if _beyond_budget(observation, policy, now):  # as it was when they were started
        # A plan for more than the budget is refused: no switch before the rest of them has gone.
        state, switched, deferred, coming = replace(state, wanting=None, wanting_ticks=0), now, None, now
        answered = False
        sentence = f"{sentence}; {sum(now) * observation.gpus_each} GPUs there, the budget is {policy.max_gpus}"
        if not policy.scale_in:
            sentence = f"{sentence} and scale-in is not allowed"
        if reason in SHORT or not policy.scale_in:
            reason = Reason.UNSATISFIABLE
        elif reason is Reason.STEADY:
            reason = Reason.SPARE_CAPACITY
    else:
        keeps = kept_by(point, observation, wanted.rate_per_s, state.forecaster.dispersion)
        state, switched, deferred, coming, answered = switch(state, observation, policy, now_s, wanted, now, keeps)
    target, short = _scaled(observation, policy, wanted, now, switched, deferred is not None, coming, answered, state)
    if reason in (Reason.STEADY, Reason.SPARE_CAPACITY) and sum(target) > sum(now):
        reason = _grows(now, target)
        sentence = f"{sentence}; budget.minGpus is {policy.min_gpus}"
    if short and reason not in (Reason.STEADY, Reason.SPARE_CAPACITY):
        # A change that helps as far as it goes says what it helps against.
        reason, sentence = reason if target != now else Reason.UNSATISFIABLE, f"{sentence}; {short}"
    enough = target[0] >= wanted.grow[0] and target[1] >= wanted.grow[1]
    if reason in SHORT and enough and target != now and max(target[0] - now[0], target[1] - now[1]) <= 0:
        # What is short at this moment no start would reach in time, and what it could reach needs fewer.
        reason = Reason.SPARE_CAPACITY
        sentence += f"; what is started now would come too late, and {target[0]}P{target[1]}D is enough then"
    scales = state.requests >= READY_REQUESTS
    holds = _holds(observation, switched != now, deferred is not None)
    choice = Choice(state, observation, policy, wanted, now, switched, target, deferred, holds, scales)
    alternatives = considered(choice, point)
    if reason not in (Reason.STEADY, Reason.SPARE_CAPACITY):
        # A layout without a worker of some role is no alternative: nobody is served by it.
        here = next((a.expected_attainment for a in alternatives if (a.prefill, a.decode) == now), 0.0)
        sentence = f"{sentence}; {now[0]}P{now[1]}D would keep {here:.0%} within objectives"
        if here >= policy.objectives.attainment:  # an estimate for a load that is even and has no past
            sentence += ", with no margin for peaks"
    if reason in SHORT and not short and (deferred is None or target != now):
        sentence += _not_followed(wanted, alternatives)
    base = Decision(
        reason, sentence, now[0], now[1], observation.routing,
        inputs=_inputs(state, wanted, point, now, observation),
        alternatives=alternatives,
    )  # fmt: skip
    if target == now and switched == now:
        if deferred is not None:
            return state, replace(base, reason=Reason.SWITCH_DEFERRED, message=f"{sentence}; not yet: {deferred}")
        return state, base
    switches = switches_between(now, switched)
    history = state.history.remember(switches, now_s, policy)
    if switches:
        # What is left of it was seen for long enough already, and so was what is not made at once.
        if state.wanting == switched and policy.switches_at_once:
            state = replace(state, wanting=None, wanting_ticks=0)
        short = Reason.PREFILL_SHORT if switches[0].target is WorkerRole.PREFILL else Reason.DECODE_SHORT
        if reason in (Reason.STEADY, Reason.SPARE_CAPACITY):  # what starts would be enough, what serves is not
            base = replace(base, reason=short)
    words = f"{_change(now, switched, target)}: {_BECAUSE.get(base.reason, 'the need has changed')}. {sentence}"
    done = replace(base, message=words, prefill=target[0], decode=target[1], switches=switches, changes_layout=True)
    return replace(state, history=history), done


def _not_followed(wanted: Targets, alternatives: tuple[Alternative, ...]) -> str:
    """Why what is said to be needed is not what is done."""
    chosen, need = alternatives[0], wanted.at_least
    enough = max(chosen.prefill, need[0]), max(chosen.decode, need[1])
    why = next((a.rejected_because for a in alternatives if (a.prefill, a.decode) == enough), "")
    return f"; not {enough[0]}P{enough[1]}D: {why}" if why else ""


def _change(now: tuple[int, int], switched: tuple[int, int], target: tuple[int, int]) -> str:
    """What is done, for example ``Switch roles from 1P2D to 2P1D``."""
    done = _DONE[in_short(now, switched, target)]
    return f"{done} from {now[0]}P{now[1]}D to {target[0]}P{target[1]}D"


def _why(
    state: State, observation: Observation, policy: Policy, wanted: Targets, now: tuple[int, int]
) -> tuple[Reason, str]:
    """What is expected and what that means for the present layout."""
    lengths = state.lengths
    need_p, need_d = wanted.at_least
    seen = (
        f"{wanted.rate_per_s:.2f} requests/s of {lengths.prompt_tokens:.0f}+{lengths.output_tokens:.0f} tokens now, "
        f"{wanted.ahead_per_s:.2f} expected"
    )
    if wanted.backlog > 0:
        seen += f", {wanted.backlog:.0f} waiting"
    serves = observation.serving(WorkerRole.PREFILL), observation.serving(WorkerRole.DECODE)
    there = f"{now[0]}P{now[1]}D there" + ("" if serves == now else f" ({serves[0]}P{serves[1]}D serve)")
    needs = f"{seen}: {need_p}P{need_d}D needed, {there}"
    more_prefill, more_decode = need_p > now[0], need_d > now[1]
    if more_prefill and more_decode:
        return Reason.BOTH_SHORT, needs
    if more_prefill:
        return Reason.PREFILL_SHORT, needs
    if more_decode:
        return Reason.DECODE_SHORT, needs
    if wanted.prefill < now[0] or wanted.decode < now[1]:
        return Reason.SPARE_CAPACITY, f"{seen}: {wanted.prefill}P{wanted.decode}D is enough, {there}"
    when = "" if serves == now else f" when all of it serves, {serves[0]}P{serves[1]}D does"
    return Reason.STEADY, f"{seen}: {now[0]}P{now[1]}D is enough{when}"


def _scaled(
    observation: Observation,
    policy: Policy,
    wanted: Targets,
    now: tuple[int, int],
    switched: tuple[int, int],
    deferred: bool,
    coming: tuple[int, int],
    answered: bool,
    state: State,
) -> tuple[tuple[int, int], str]:
    """(the layout after switches and scaling, what stands in the way of all that is wanted)."""
    if _beyond_budget(observation, policy, now):
        return _reduced(observation, policy, wanted, now)
    if state.requests < READY_REQUESTS:
        return switched, ""
    most, bounds = _room(observation, policy, now), (policy.prefill, policy.decode)
    target = list(switched)
    if policy.scale_out:
        # A worker that another role can spare serves in seconds, a new one in minutes: only what the service lacks as a
        # whole is started.
        after = coming if deferred else switched
        lacks = [max(0, min(g, b.most) - n) for g, n, b in zip(wanted.grow, after, bounds, strict=True)]
        spare = _spare(policy, wanted, after) if answered or _will_switch(policy, wanted, now, lacks) else 0
        starts = max(0, sum(lacks) - spare)
        for _ in range(min(starts, most - sum(now))):
            # A role that is to give workers by a switch has them still: it may be at its bound.
            able = [role for role in (0, 1) if lacks[role] > 0 and target[role] < bounds[role].most]
            if not able:
                break
            role = max(able, key=lambda role: lacks[role] / max(1, wanted.grow[role]))
            target[role], lacks[role] = target[role] + 1, lacks[role] - 1
    if policy.scale_in and tuple(target) == now == switched and not deferred and not observation.unread:
        least = max(1, policy.prefill.least), max(1, policy.decode.least)
        size = math.ceil(policy.min_gpus / observation.gpus_each)
        want = max(wanted.prefill, least[0]), max(wanted.decode, least[1])
        target = list(without_idle(now, want, size, wanted.load_ahead))
    while policy.scale_out and sum(target) * observation.gpus_each < policy.min_gpus and sum(target) < most:
        able = [role for role in (0, 1) if target[role] < bounds[role].most]
        if not able:
            break
        target[min(able, key=lambda role: target[role] / wanted.load_ahead[role])] += 1
    p, d = target
    less = any(n < need for n, need in zip(target, wanted.at_least, strict=True))
    allowed = policy.scale_out and all(g <= b.most for g, b in zip(wanted.at_least, bounds, strict=True))
    clipped = not allowed or sum(target) >= most
    return (p, d), f"the policy allows {p}P{d}D" if less and clipped else ""


def _will_switch(policy: Policy, wanted: Targets, now: tuple[int, int], lacks: list[int]) -> bool:
    """Whether a switch will bring what only is to be needed: it would be worth it then, and is allowed."""
    worth = any(lack > (DEAD_BAND + MOVE_COST) * max(1, need) for lack, need in zip(lacks, wanted.grow, strict=True))
    short_now = any(n < need for n, need in zip(now, wanted.needed_now, strict=True))
    return policy.switchable and worth and not short_now


def _spare(policy: Policy, wanted: Targets, layout: tuple[int, int]) -> int:
    """Workers that neither the present nor what is expected needs in their role."""
    bounds = (policy.prefill, policy.decode)
    return sum(max(0, n - max(need, b.least, 1)) for n, need, b in zip(layout, wanted.at_least, bounds, strict=True))


def _room(observation: Observation, policy: Policy, now: tuple[int, int]) -> int:
    """Workers there may be at most, beside those that still go."""
    leaving = sum(w.condition is WorkerCondition.DRAINING for w in observation.workers)
    return max(policy.max_gpus // observation.gpus_each - leaving, sum(now))


def _reduced(
    observation: Observation, policy: Policy, wanted: Targets, now: tuple[int, int]
) -> tuple[tuple[int, int], str]:
    """(the present layout within the budget, what stands in the way of all that is wanted).

    Nobody is started in place of another, but for a role that has too few for anybody to be served.
    """
    if not policy.scale_in:
        return now, ""
    most, each = _most(observation, policy), (wanted.prefill, wanted.decode)
    need = wanted.load_ahead if sum(wanted.needed) > most else (max(1.0, each[0]), max(1.0, each[1]))
    least = max(1, policy.prefill.least), max(1, policy.decode.least)
    lowest = least if policy.scale_out else now
    p, d = (max(min(want, has), low) for want, has, low in zip(each, now, map(min, lowest, least), strict=True))
    p, d = _cut((p, d), least, most, need)
    less = any(n < needed for n, needed in zip((p, d), wanted.at_least, strict=True))
    return (p, d), f"the policy allows {p}P{d}D" if less else ""


def _beyond_budget(observation: Observation, policy: Policy, now: tuple[int, int]) -> bool:
    """Whether more workers are there than the budget allows: it was more when they were started, or they were less."""
    return policy.encode is None and sum(now) > _most(observation, policy)  # with a third pool its split says who gives


def _most(observation: Observation, policy: Policy) -> int:
    """Workers that the budget allows; no less than the pools must have."""
    least = max(1, policy.prefill.least) + max(1, policy.decode.least)
    return max(policy.max_gpus // observation.gpus_each, least)


def _cut(target: tuple[int, int], least: tuple[int, int], most: int, need: tuple[float, float]) -> tuple[int, int]:
    """No more than ``most`` workers of ``target``, so that the scarcer pool has the most of its ``need``."""
    if sum(target) <= most:
        return target
    lowest = min(max(1, least[0]), target[0]), min(max(1, least[1]), target[1])
    able = range(max(lowest[0], most - target[1]), min(target[0], most - lowest[1]) + 1)
    p = max(able, key=lambda p: min(p / need[0], (most - p) / need[1]), default=lowest[0])
    return p, max(lowest[1], most - p)


def _grows(now: tuple[int, int], target: tuple[int, int]) -> Reason:
    """The reason of starts that no need asks for."""
    if target[0] > now[0]:
        return Reason.BOTH_SHORT if target[1] > now[1] else Reason.PREFILL_SHORT
    return Reason.DECODE_SHORT


def _holds(observation: Observation, switches: bool, deferred: bool) -> str:
    """Why workers that could go stay, where a policy lets them go; empty: nothing keeps them."""
    if observation.unread:
        pages = "1 page" if observation.unread == 1 else f"{observation.unread} pages"
        return f"{pages} could not be read: no worker is removed before they are"
    if switches or deferred:
        return f"nobody is taken away while a switch is {'made' if switches else 'awaited'}"
    return ""


def _inputs(
    state: State, wanted: Targets, point: OperatingPoint, now: tuple[int, int], observation: Observation
) -> tuple[tuple[str, float], ...]:
    service = observation.service
    numbers: dict[str, float | None] = {
        "ratePerSecond": wanted.rate_per_s,
        "expectedRatePerSecond": wanted.ahead_per_s,
        "promptTokens": state.lengths.prompt_tokens,
        "outputTokens": state.lengths.output_tokens,
        "cachedShare": state.lengths.cached_share,
        "prefillWorkers": float(now[0]),
        "decodeWorkers": float(now[1]),
        "prefillNeededNow": float(wanted.needed_now[0]),
        "decodeNeededNow": float(wanted.needed_now[1]),
        "prefillNeeded": float(wanted.needed[0]),
        "decodeNeeded": float(wanted.needed[1]),
        "prefillKept": float(wanted.kept[0]),
        "decodeKept": float(wanted.kept[1]),
        "workersKept": float(wanted.kept_of_both),
        "backlog": wanted.backlog,
        "prefillMilliseconds": point.prefill_s * 1000,
        "prefillDispersion": point.prefill_scv,
        "remoteShare": point.remote_share,
        "unreachableTtftShare": point.unreachable.ttft_share,
        "unreachableTpotShare": point.unreachable.tpot_share,
        "longestReachablePromptTokens": point.unreachable.longest_tokens,
        "slackMilliseconds": point.slack_s * 1000,
        "arrivalDispersion": state.forecaster.dispersion,
        "decodeBatch": point.batch,
        "contextDispersion": point.context_scv,
        "stepMilliseconds": point.step_s * 1000,
        "transferMilliseconds": point.transfer_s * 1000,
        "thresholdTokens": float(observation.routing.max_local_prefill_tokens),
        "startSeconds": state.leads.start_s,
        "observedTtftAttainment": service.ttft_attainment if service else None,
        "observedTpotAttainment": service.tpot_attainment if service else None,
        "prefillQueueDepth": service.prefill_queue_depth if service else None,
        "held": service.held if service else None,
        "predictedAttainment": state.score.predicted,
        "observedAttainment": state.score.observed,
        "predictionError": state.score.error,
        "attainmentIfExecuted": state.score.if_executed,
        "gpusIfExecuted": len(state.virtual.workers) * observation.gpus_each if state.virtual else None,
    }
    return tuple((name, round(value, 4)) for name, value in numbers.items() if value is not None)
