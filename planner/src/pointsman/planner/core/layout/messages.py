"""What a decision about the layout says: sentences and numbers from what was decided. Nothing is decided here."""

from typing import Final

from pointsman.planner.core.layout.alternatives import in_short
from pointsman.planner.core.layout.rejection_reasons import Choice
from pointsman.planner.core.sizing.operating_point import OperatingPoint
from pointsman.planner.core.sizing.pool_targets import Targets
from pointsman.planner.core.state import State
from pointsman.planner.core.types import Alternative, Layout, Observation, Reason

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


def situation(choice: Choice, shortage: Reason) -> str:
    """What comes, and what that means for the present layout."""
    wanted, lengths, now = choice.wanted, choice.state.lengths, choice.now
    seen = (
        f"{wanted.rate_per_s:.2f} requests/s of {lengths.prompt_tokens:.0f}+{lengths.output_tokens:.0f} tokens now, "
        f"{wanted.ahead_per_s:.2f} expected"
    )
    if wanted.backlog > 0:
        seen += f", {wanted.backlog:.0f} waiting"
    serves = choice.observation.serving_layout
    there = f"{now} there" + ("" if serves == now else f" ({serves} serve)")
    if shortage is Reason.STEADY:
        return f"{seen}: {now} is enough" + ("" if serves == now else f" when all of it serves, {serves} does")
    if shortage is Reason.SPARE_CAPACITY:
        return f"{seen}: {Layout(wanted.prefill, wanted.decode)} is enough, {there}"
    return f"{seen}: {wanted.at_least} needed, {there}"


def over_budget(choice: Choice) -> str:
    """That more is there than the policy allows."""
    gpus = choice.now.total * choice.observation.gpus_each
    forbidden = "" if choice.policy.scale_in else " and scale-in is not allowed"
    return f"{gpus} GPUs there, the budget is {choice.policy.max_gpus}{forbidden}"


def stays(choice: Choice, alternatives: tuple[Alternative, ...]) -> str:
    """What the present layout would do."""
    # A layout without a worker of some role is no alternative: nobody is served by it.
    here = next((a.expected_attainment for a in alternatives if a.layout == choice.now), 0.0)
    sentence = f"{choice.now} would keep {here:.0%} within objectives"
    # An estimate for a load that is even and has no past.
    return f"{sentence}, with no margin for peaks" if here >= choice.policy.objectives.attainment else sentence


def not_followed(choice: Choice, alternatives: tuple[Alternative, ...]) -> str:
    """Why what is said to be needed is not what is done; empty: it is."""
    enough = alternatives[0].layout.most(choice.wanted.at_least)
    why = next((a.rejected_because for a in alternatives if a.layout == enough), "")
    return f"not {enough}: {why}" if why else ""


def change(choice: Choice, reason: Reason) -> str:
    """What is done, for example ``Switch roles from 1P2D to 2P1D: prefill is short``."""
    done = _DONE[in_short(choice.now, choice.switched, choice.target)]
    return f"{done} from {choice.now} to {choice.target}: {_BECAUSE.get(reason, 'the need has changed')}"


def holds(observation: Observation, *, switches: bool, deferred: bool) -> str:
    """Why workers that could go stay, where a policy lets them go; empty: nothing keeps them."""
    if observation.unread:
        pages = "1 page" if observation.unread == 1 else f"{observation.unread} pages"
        return f"{pages} of metrics could not be read: no worker is removed until they are"
    if switches or deferred:
        return f"no worker is removed while a switch is {'made' if switches else 'awaited'}"
    return ""


def inputs(
    state: State, wanted: Targets, point: OperatingPoint, now: Layout, observation: Observation
) -> tuple[tuple[str, float], ...]:
    """The numbers behind a decision, by name with unit; what is not known is left out."""
    service = observation.service
    numbers: dict[str, float | None] = {
        "ratePerSecond": wanted.rate_per_s,
        "expectedRatePerSecond": wanted.ahead_per_s,
        "seasonalRisePerSecond": wanted.seasonal_per_s,
        "promptTokens": state.lengths.prompt_tokens,
        "outputTokens": state.lengths.output_tokens,
        "cachedShare": state.lengths.cached_share,
        "prefillWorkers": float(now.prefill),
        "decodeWorkers": float(now.decode),
        "prefillNeededNow": float(wanted.needed_now.prefill),
        "decodeNeededNow": float(wanted.needed_now.decode),
        "prefillNeeded": float(wanted.needed.prefill),
        "decodeNeeded": float(wanted.needed.decode),
        "prefillKept": float(wanted.kept.prefill),
        "decodeKept": float(wanted.kept.decode),
        "workersKept": float(wanted.kept_of_both),
        "backlog": wanted.backlog,
        "prefillMilliseconds": point.prefill_s * 1000,
        "prefillAloneMilliseconds": point.prefill_alone_s * 1000,
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
