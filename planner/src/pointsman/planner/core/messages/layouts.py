"""What a decision about the layout does, and why."""

from typing import Final

from pointsman.planner.core.types import Layout, Reason
from pointsman.serving.words import are, quantity

_DONE: Final = {
    "switch": "Switch roles",
    "scale-out": "Scale out",
    "scale-in": "Scale in",
    "switch+scale-out": "Switch roles and scale out",
    "replace": "Replace workers",
}
_BECAUSE: Final = {
    Reason.PREFILL_SHORT: "too few prefill workers",
    Reason.DECODE_SHORT: "too few decode workers",
    Reason.BOTH_SHORT: "too few workers of both roles",
    Reason.SPARE_CAPACITY: "fewer workers are enough",
    Reason.UNSATISFIABLE: "the policy allows fewer workers than needed",
}


def change(action: str, now: Layout, target: Layout, reason: Reason) -> str:
    """For example ``Switch roles from 1P2D to 2P1D: too few prefill workers``."""
    return f"{_DONE[action]} from {now} to {target}: {_BECAUSE.get(reason, 'the need has changed')}"


def situation(need: Layout, enough: bool, allowed: Layout | None, now: Layout, serving: Layout, changes: bool) -> str:
    """``enough``: no more workers are needed; ``allowed``: by the policy, if that is fewer; ``changes``: the sentence
    before names the present layout."""
    limit = f", the policy allows {allowed}" if allowed else ""
    run = "" if changes or allowed or need == now else f"; running: {now}"
    if serving != now:
        run = f"{' once all serve' if enough and not serving.has(need) else ''}; running: {now}, serving: {serving}"
    return f"{need} is {'enough' if enough else 'needed'}{limit}{run}"


def over_budget(gpus: int, max_gpus: int, scale_in: bool) -> str:
    """More GPUs are in use than the policy allows."""
    more = f"{quantity(gpus, 'GPU')} {are(gpus)} in use, more than budget.maxGpus ({max_gpus})"
    return more if scale_in else f"{more}, and scale-in is not allowed"


def minimum(min_gpus: int) -> str:
    """Workers are started for the policy's minimum."""
    return f"workers are started because budget.minGpus is {min_gpus}"


def too_late(start_s: float, enough: Layout) -> str:
    """The shortage is over before a worker could serve."""
    return f"a worker started now serves in {start_s:.0f} s; by then {enough} is enough"


def present(attainment: float, goal: float) -> str:
    """The estimate for the present layout: of a load that is even and has no past."""
    sentence = f"staying would keep {attainment:.0%} of requests within objectives"
    return f"{sentence}, with no margin for peaks" if attainment >= goal else sentence


def not_followed(need: Layout, why: str) -> str:
    """The layout that is needed is not the one that is chosen."""
    return f"{need} is not chosen: {why}"


def deferred(why: str) -> str:
    """A guard defers the switch."""
    return f"the switch is deferred: {why}"


def unread_pages(pages: int) -> str:
    """Why no worker is removed."""
    return f"{quantity(pages, 'page')} of metrics could not be read, so no worker is removed"
