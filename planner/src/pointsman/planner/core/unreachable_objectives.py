"""Objectives that no layout can meet: a request that is alone misses them, by what the engine was seen to take."""

import math

from pointsman.planner.core.messages import objectives as messages
from pointsman.planner.core.tuning import SHIPPED, Tuning
from pointsman.planner.core.types import Decision, Objectives


def out_of_reach(decision: Decision, objectives: Objectives, *, said: bool, tuning: Tuning = SHIPPED) -> str | None:
    """A sentence with the objective, what the engine takes, and what would be right; None if a layout can meet them,
    or if the decision was made without numbers (frozen, waiting, still learning).

    ``said``: they were out of reach when that was asked last. At first a tenth more is needed: estimates move.
    """
    numbers, usable = dict(decision.inputs), tuning.usable_tpot_share
    least = 1.0 if said else 1.1
    share, longest = unreachable_share(decision), numbers.get("longestReachablePromptTokens")
    if longest is not None and share > least * (1 - objectives.attainment):
        return _of_some(numbers, objectives, share, longest)
    if longest is not None:
        return None  # few enough, and the mean prompt says nothing of the others
    prompt, prefill_ms = numbers.get("promptTokens"), numbers.get("prefillAloneMilliseconds")
    if prompt is not None and prefill_ms is not None and prefill_ms > least * objectives.ttft_for(prompt):
        return messages.ttft(objectives.ttft_for(prompt), prompt, prefill_ms, _above(prefill_ms, usable))
    batch, step_ms = numbers.get("decodeBatch"), numbers.get("stepMilliseconds")
    # A batch below one may also be for want of memory: then the step is short enough.
    if batch is not None and step_ms is not None and batch < 1 and step_ms > least * usable * objectives.tpot_ms:
        return messages.tpot(objectives.tpot_ms, step_ms, _above(step_ms, usable))
    return None


def unreachable_share(decision: Decision) -> float:
    """Of all requests, those that miss an objective even if they are alone, about."""
    numbers = dict(decision.inputs)
    return max(numbers.get("unreachableTtftShare", 0.0), numbers.get("unreachableTpotShare", 0.0))


def same_share(share: float, said: float) -> bool:
    """Whether a message with the share ``said`` still tells a reader what is so: within a quarter."""
    return abs(share - said) <= 0.25 * said


def _of_some(numbers: dict[str, float], objectives: Objectives, share: float, longest: float) -> str:
    ttft, tpot = (numbers.get(f"unreachable{objective}Share", 0.0) for objective in ("Ttft", "Tpot"))
    possible, half = math.floor(100 * (1 - share)) / 100, share / 2  # where few requests miss only the other one
    return messages.share_of_requests(
        share, _rounded(longest), objectives.attainment, possible, ttft >= half, tpot >= half
    )


def _rounded(tokens: float) -> int:
    """To two digits: lengths are known from buckets."""
    step: int = 10 ** max(0, math.floor(math.log10(max(tokens, 1.0))) - 1)
    return round(tokens / step) * step


def _above(milliseconds: float, usable: float) -> int:
    return math.ceil(milliseconds / usable)
