"""Objectives that no layout can meet: a request that is alone misses them, by what the engine was seen to take."""

import math
from typing import Final

from pointsman.planner.core.sizing.operating_point import TPOT_MARGIN
from pointsman.planner.core.types import Decision, Objectives

MARGIN: Final = 1.1  # beyond the objective, before it is said: estimates move, and a word should not flap


def out_of_reach(decision: Decision, objectives: Objectives, *, said: bool) -> str | None:
    """A sentence with the objective, what the engine takes, and what would be right; None if a layout can meet them,
    or if the decision was made without numbers (frozen, waiting, still learning).

    ``said``: they were out of reach when that was asked last.
    """
    numbers = dict(decision.inputs)
    least = 1.0 if said else MARGIN
    prompt, prefill_ms = numbers.get("promptTokens"), numbers.get("prefillMilliseconds")
    if prompt is not None and prefill_ms is not None and prefill_ms > least * objectives.ttft_for(prompt):
        return (
            f"objectives.ttftMs gives a prompt of {prompt:.0f} tokens {objectives.ttft_for(prompt):.0f} ms; an idle "
            f"prefill worker takes {prefill_ms:.0f} ms at least: no layout meets that, "
            f"write more than {_above(prefill_ms)}"
        )
    batch, step_ms = numbers.get("decodeBatch"), numbers.get("stepMilliseconds")
    # A batch below one may also be for want of memory: then the step is short enough.
    if batch is not None and step_ms is not None and batch < 1 and step_ms > least * TPOT_MARGIN * objectives.tpot_ms:
        return (
            f"objectives.tpotMs is {objectives.tpot_ms:g}; a decode step takes more than {step_ms:.1f} ms however few "
            f"requests there are: no layout meets that, write more than {_above(step_ms)}"
        )
    return None


def _above(milliseconds: float) -> int:
    return math.ceil(milliseconds / TPOT_MARGIN)
