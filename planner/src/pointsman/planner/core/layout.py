"""How many workers of each role, by switches and scaling, within the policy; and the sentence that says why."""

from dataclasses import replace
from typing import Final

from pointsman.planner.core.alternatives import considered, in_short
from pointsman.planner.core.guards import SwitchRecord
from pointsman.planner.core.rejections import Choice
from pointsman.planner.core.sizing import OperatingPoint
from pointsman.planner.core.state import State
from pointsman.planner.core.switching import DEAD_BAND, REVERSAL_BAND, REVERSAL_S, kept_by, switch, switches_between
from pointsman.planner.core.targets import Targets
from pointsman.planner.core.types import (
    Alternative,
    Decision,
    Observation,
    Policy,
    Reason,
    WorkerCondition,
    WorkerRole,
)

SAID_SHARE: Final = 0.97  # of what a decode worker can do by the model: where less is counted on, it is said
READY_REQUESTS: Final = 25.0  # before anything is scaled
SHORT: Final = (Reason.PREFILL_SHORT, Reason.DECODE_SHORT, Reason.BOTH_SHORT)
FRESH_LEADS: Final = 3.0  # so long after workers went for others to come, the other way asks for more
ANSWERS_S: Final = 30.0  # after prompts changed their kind, until the answers show what they need


def layout(
    state: State,
    observation: Observation,
    policy: Policy,
    now_s: float,
    wanted: Targets,
    point: OperatingPoint,
    likely: OperatingPoint,
) -> tuple[State, Decision]:
    """The decision but for its routing numbers, and the state that remembers it. ``point`` is what is planned for,
    ``likely`` without what is planned for on the safe side: what a layout achieves is estimated there."""
    now = observation.committed(WorkerRole.PREFILL), observation.committed(WorkerRole.DECODE)
    reason, sentence = _why(state, observation, policy, wanted, now)
    if _beyond_budget(observation, policy, now):  # as it was when they were started
        # A plan for more than the budget is refused: no switch before the rest of them has gone.
        state, switched, deferred, coming = replace(state, wanting=None, wanting_ticks=0), now, None, now
        sentence = f"{sentence}; {sum(now) * observation.gpus_each} GPUs there, the budget is {policy.max_gpus}"
        if not policy.scale_in:
            sentence = f"{sentence} and scale-in is not allowed"
        if reason in SHORT or not policy.scale_in:
            reason = Reason.UNSATISFIABLE
        elif reason is Reason.STEADY:
            reason = Reason.SPARE_CAPACITY
    else:
        keeps = kept_by(likely, observation, wanted.rate_per_s, state.forecaster.dispersion)
        state, switched, deferred, coming = switch(state, observation, policy, now_s, wanted, now, keeps)
    target, short = _scaled(observation, policy, wanted, now, switched, deferred is not None, coming, state)
    if reason in (Reason.STEADY, Reason.SPARE_CAPACITY) and sum(target) > sum(now):
        reason = _grows(now, target)
        sentence = f"{sentence}; budget.minGpus is {policy.min_gpus}"
    if short and reason not in (Reason.STEADY, Reason.SPARE_CAPACITY):
        # A change that helps as far as it goes says what it helps against.
        reason, sentence = reason if target != now else Reason.UNSATISFIABLE, f"{sentence}; {short}"
    if reason in SHORT and target != now and max(target[0] - now[0], target[1] - now[1]) <= 0:
        # What is short at this moment no start would reach in time, and what it could reach needs fewer.
        reason = Reason.SPARE_CAPACITY
        sentence += f"; what is started now would come too late, and {target[0]}P{target[1]}D is enough then"
    scales = state.requests >= READY_REQUESTS
    holds = _holds(state, observation, switched != now, deferred is not None)
    choice = Choice(state, observation, policy, wanted, now, switched, target, deferred, holds, scales)
    alternatives = considered(choice, likely)
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
    trade = switches_between(now, target)
    if (
        policy.switches_at_once
        and trade
        and not switches
        and sum(target) + 1 > policy.max_gpus // observation.gpus_each
    ):
        history = replace(history, traded=SwitchRecord(now_s, trade[0].target))
    if switches:
        # What is left of it was seen for long enough already, and so was what is not made at once.
        if state.wanting == switched and policy.switches_at_once:
            state = replace(state, wanting=None, wanting_ticks=0)
        short = Reason.PREFILL_SHORT if switches[0].target is WorkerRole.PREFILL else Reason.DECODE_SHORT
        if reason in (Reason.STEADY, Reason.SPARE_CAPACITY):  # what starts would be enough, what serves is not
            base = replace(base, reason=short)
    words = f"{sentence}; {_change(now, switched, target)}"
    done = replace(base, message=words, prefill=target[0], decode=target[1], switches=switches, changes_layout=True)
    return replace(state, history=history), done


def _not_followed(wanted: Targets, alternatives: tuple[Alternative, ...]) -> str:
    """Why what is said to be needed is not what is done."""
    chosen, need = alternatives[0], wanted.at_least
    enough = max(chosen.prefill, need[0]), max(chosen.decode, need[1])
    why = next((a.rejected_because for a in alternatives if (a.prefill, a.decode) == enough), "")
    return f"; not {enough[0]}P{enough[1]}D: {why}" if why else ""


def _change(now: tuple[int, int], switched: tuple[int, int], target: tuple[int, int]) -> str:
    """What is done. A switch brings what only starts at once: what is spared then is that start, nobody who serves."""
    switches = switches_between(now, switched)
    if switches and sum(target) <= sum(now):
        gives, gets = switches[0].source.value.lower(), switches[0].target.value.lower()
        pool = 0 if switches[0].source is WorkerRole.PREFILL else 1
        if target == now:
            return f"switch of a {gives} worker that serves, and a {gives} worker starts instead of a {gets} one"
        if sum(target) < sum(now):
            also = f" and {target[pool] - switched[pool]} {gives} start(s)" if target[pool] > switched[pool] else ""
            return (
                f"switch of {switches[0].count} {gives} worker(s){also} in place of {sum(now) - sum(target)} {gets} "
                f"start(s), from {now[0]}P{now[1]}D to {target[0]}P{target[1]}D"
            )
    return f"{in_short(now, switched, target)} from {now[0]}P{now[1]}D to {target[0]}P{target[1]}D"


def _why(
    state: State, observation: Observation, policy: Policy, wanted: Targets, now: tuple[int, int]
) -> tuple[Reason, str]:
    """What is expected and what that means for the present layout."""
    lengths = state.lengths
    need_p, need_d = wanted.at_least
    seen = (
        f"{wanted.rate_per_s:.2f} requests/s of {lengths.prompt_tokens:.0f}+{lengths.output_tokens:.0f} tokens now, "
        f"up to {wanted.high_rate_per_s:.2f} expected"
    )
    if wanted.bursts is not None:
        seen += f", bursts of {wanted.bursts.rate_per_s:.2f} about every {wanted.bursts.every_s:.0f} s"
    if wanted.backlog > 0:
        seen += f", {wanted.backlog:.0f} waiting"
    if state.margin.share < SAID_SHARE:
        seen += (
            f"; a decode worker is taken to do {state.margin.share:.0%} of what the model says, as clients got less "
            "than it promised"
        )
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
    state: State,
) -> tuple[tuple[int, int], str]:
    """(the layout after switches and scaling, what stands in the way of all that is wanted)."""
    if state.requests < READY_REQUESTS and not _beyond_budget(observation, policy, now):
        return switched, ""
    scale_in = policy.scale_in and not observation.unread and _answers_known(state, observation)
    target, clipped = [], False
    pools = zip(
        WorkerRole, (wanted.prefill, wanted.decode), wanted.needed_now, now, switched, coming,
        (policy.prefill, policy.decode), strict=True,
    )  # fmt: skip
    for role, want, need, was, has, soon, bounds in pools:
        clipped |= max(want, need) > (bounds.most if policy.scale_out else has)
        if has < was:
            # It gives workers away: only what is needed now is started in their place, not what is kept in reserve.
            target.append(max(has, min(need, bounds.most)) if policy.scale_out else has)
        elif has > was and want < has:
            # The switch brings what would only have started; what serves stays.
            serves = observation.serving(role) + has - was
            target.append(min(has, max(want, need, serves)) if scale_in else has)
        elif want > has:
            # What a switch that only waits to be sure will bring is not started as well.
            more = max(0, want - max(has, soon)) if policy.scale_out else 0
            target.append(max(has, min(has + more, bounds.most)))
        elif want < has and scale_in and switched == now and not deferred:
            target.append(min(has, max(want, bounds.least, 1)))
        else:
            target.append(has)
    each = observation.gpus_each
    leaving = sum(w.condition is WorkerCondition.DRAINING for w in observation.workers)
    most = max(policy.max_gpus // each - leaving, min(sum(now), sum(target)))
    p, d = target
    if policy.scale_in and _beyond_budget(observation, policy, now):
        clipped, most = True, min(most, _most(observation, policy))
        need = wanted.load_ahead if sum(wanted.needed) > most else (max(1.0, p), max(1.0, d))
        # Nobody is started here: who goes for a start serves no more, and both are there for a while. But for a role
        # that has too few for anybody to be served, or for the operator to carry out the plan.
        least = max(1, policy.prefill.least), max(1, policy.decode.least)
        lowest = least if policy.scale_out else now
        p, d = (max(min(want, has), low) for want, has, low in zip((p, d), now, map(min, lowest, least), strict=True))
        p, d = _cut((p, d), least, most, need)
    else:
        # Where workers can change their role, one pool grows at the other's cost by a switch alone: guarded, and no
        # worker is deleted to start another.
        may_shrink = (
            policy.scale_in and not observation.unread and not policy.role_switch and not deferred and switched == now
        )
        lately = _traded_lately(state, observation, policy)
        grown = _beside_each_other((p, d), now, (policy.prefill.most, policy.decode.most))
        gives = WorkerRole.PREFILL if p < now[0] else WorkerRole.DECODE
        back = may_shrink and lately is gives and grown not in ((p, d), now) and sum(grown) > most
        if back or p + d > most:
            clipped |= p + d > most
            starting = now[0] - observation.serving(WorkerRole.PREFILL), now[1] - observation.serving(WorkerRole.DECODE)
            least = max(1, policy.prefill.least), max(1, policy.decode.least)
            need = max(1.0, p), max(1.0, d)
            if back or sum(map(max, wanted.needed, wanted.up)) > most:
                need = _fractional(wanted)
            p, d = _squeezed(grown if back else (p, d), switched, starting, least, most, need, may_shrink, lately)
    while (p + d) * each < policy.min_gpus and (p, d) != switched and p + d < min(most, sum(switched)):
        p, d = (p + 1, d) if p < switched[0] else (p, d + 1)
    # A minimum that was raised, or never reached, is reached by starts.
    while policy.scale_out and (p + d) * each < policy.min_gpus and p + d < most:
        room = [n < bounds.most for n, bounds in ((p, policy.prefill), (d, policy.decode))]
        if not any(room):
            break
        more_prefill = room[0] and (not room[1] or p / wanted.load_ahead[0] <= d / wanted.load_ahead[1])
        p, d = (p + 1, d) if more_prefill else (p, d + 1)
    need_p, need_d = wanted.at_least
    less = p < need_p or d < need_d
    return (p, d), f"the policy allows {p}P{d}D" if clipped and less else ""


def _beside_each_other(target: tuple[int, int], now: tuple[int, int], most: tuple[int, int]) -> tuple[int, int]:
    """``target``, and of a pool that shrinks the next one to go, as if it could stay until another one has started."""
    p, d = (max(want, min(has, want + 1, bound)) for want, has, bound in zip(target, now, most, strict=True))
    return p, d


def _fractional(wanted: Targets) -> tuple[float, float]:
    """Workers that are needed when one started now would serve, as even as the load is, and those held for bursts.

    By rounded needs, which differ with what is there and with the moment, a split has no rest. Half a worker more is
    what rounding up adds on average: without it one that is always busy would be enough.
    """
    p, d = (
        max(load + 0.5, held if held > need else 0.0)
        for load, need, held in zip(wanted.load_ahead, wanted.needed, wanted.up, strict=True)
    )
    return p, d


def _traded_lately(state: State, observation: Observation, policy: Policy) -> WorkerRole | None:
    """The role that got workers for those of the other one, if that was a moment ago."""
    traded = state.history.traded
    fresh_s = max(REVERSAL_S, FRESH_LEADS * state.leads.lead_s(policy.start_s))
    return traded.target if traded is not None and observation.at_s - traded.at_s < fresh_s else None


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


def _answers_known(state: State, observation: Observation) -> bool:
    """Whether answers to prompts of the present kind were seen."""
    changed_s = state.lengths.changed_s
    return changed_s is None or observation.at_s - changed_s >= ANSWERS_S


def _holds(state: State, observation: Observation, switches: bool, deferred: bool) -> str:
    """Why workers that could go stay, where a policy lets them go; empty: nothing keeps them."""
    if observation.unread:
        pages = "1 page" if observation.unread == 1 else f"{observation.unread} pages"
        return f"{pages} could not be read: no worker is removed before they are"
    if not _answers_known(state, observation):
        return "prompts have just changed: answers must show first what they need"
    if switches or deferred:
        return f"nobody is taken away while a switch is {'made' if switches else 'awaited'}"
    return ""


def _squeezed(
    target: tuple[int, int],
    has: tuple[int, int],
    starting: tuple[int, int],
    least: tuple[int, int],
    most: int,
    need: tuple[float, float],
    may_shrink: bool,
    lately: WorkerRole | None,
) -> tuple[int, int]:
    """Within ``most`` workers, so that the scarcer pool has the most of its ``need``.

    A pool shrinks for the other only if it may, and if clearly more is served then, since who goes serves no more at
    once and who comes only after a start: far more, if the pool that gives is itself only just growing, or was the one
    that got ``lately``.
    """

    def served(p: int) -> float:
        return min(p / need[0], (most - p) / need[1])

    def best(least: tuple[int, int], otherwise: int) -> int:
        within = range(max(least[0], most - target[1]), min(target[0], most - least[1]) + 1)
        return max(within, key=served, default=otherwise)

    stays = best((min(has[0], target[0]), min(has[1], target[1])), has[0])
    # There may be no room for what both must have, as long as workers that drain are there.
    moves = best((min(least[0], target[0]), min(least[1], target[1])), stays) if may_shrink else stays
    gives = WorkerRole.PREFILL if moves < stays else WorkerRole.DECODE
    growing = starting[0 if gives is WorkerRole.PREFILL else 1] > 0 or lately is gives
    band = REVERSAL_BAND if growing else DEAD_BAND
    p = moves if served(moves) > (1 + band) * served(stays) else stays
    return p, most - p


def _inputs(
    state: State, wanted: Targets, point: OperatingPoint, now: tuple[int, int], observation: Observation
) -> tuple[tuple[str, float], ...]:
    service = observation.service
    numbers: dict[str, float | None] = {
        "ratePerSecond": wanted.rate_per_s,
        "highRatePerSecond": wanted.high_rate_per_s,
        "burstRatePerSecond": wanted.bursts.rate_per_s if wanted.bursts is not None else None,
        "burstEverySeconds": wanted.bursts.every_s if wanted.bursts is not None else None,
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
        "backlog": wanted.backlog,
        "prefillMilliseconds": point.prefill_s * 1000,
        "decodeBatch": point.decode_share * point.batch,
        "decodeShare": point.decode_share,
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
        "attainmentAsWished": state.score.wished,
    }
    return tuple((name, round(value, 4)) for name, value in numbers.items() if value is not None)
