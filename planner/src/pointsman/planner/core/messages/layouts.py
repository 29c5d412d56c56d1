"""What a decision about the layout does, and why."""

from typing import Final

from pointsman.planner.core.types import Layout, Reason

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


def change(action: str, now: Layout, target: Layout, reason: Reason) -> str:
    """For example ``Switch roles from 1P2D to 2P1D: prefill is short``."""
    return f"{_DONE[action]} from {now} to {target}: {_BECAUSE.get(reason, 'the need has changed')}"


def load(rate_per_s: float, prompt_tokens: float, output_tokens: float, ahead_per_s: float, backlog: float) -> str:
    """The present load and the expected rate."""
    waiting = f", {backlog:.0f} waiting" if backlog > 0 else ""
    lengths = f"{prompt_tokens:.0f}+{output_tokens:.0f} tokens"
    return f"{rate_per_s:.2f} requests/s of {lengths} now, {ahead_per_s:.2f} expected{waiting}"


def enough(now: Layout, serving: Layout) -> str:
    """The present layout is."""
    return f"{now} is enough" + ("" if serving == now else f" when all of it serves, {serving} does")


def spare(targets: Layout, now: Layout, serving: Layout) -> str:
    """Fewer workers are enough."""
    return f"{targets} is enough, {_there(now, serving)}"


def needed(need: Layout, now: Layout, serving: Layout) -> str:
    """More workers are."""
    return f"{need} needed, {_there(now, serving)}"


def _there(now: Layout, serving: Layout) -> str:
    return f"{now} there" + ("" if serving == now else f" ({serving} serve)")


def over_budget(gpus: int, max_gpus: int, scale_in: bool) -> str:
    """More GPUs are in use than the policy allows."""
    return f"{gpus} GPUs there, the budget is {max_gpus}{'' if scale_in else ' and scale-in is not allowed'}"


def minimum(min_gpus: int) -> str:
    """Workers are started for the policy's minimum."""
    return f"budget.minGpus is {min_gpus}"


def allowed(target: Layout) -> str:
    """Fewer workers than needed."""
    return f"the policy allows {target}"


def too_late(target: Layout) -> str:
    """The shortage is over before a worker could serve."""
    return f"a worker started now would serve too late, when {target} is enough"


def present(now: Layout, attainment: float, goal: float) -> str:
    """The estimate for the present layout: of a load that is even and has no past."""
    sentence = f"{now} would keep {attainment:.0%} within objectives"
    return f"{sentence}, with no margin for peaks" if attainment >= goal else sentence


def not_followed(need: Layout, why: str) -> str:
    """The layout that is needed is not the one that is chosen."""
    return f"not {need}: {why}"


def not_yet(message: str, deferred: str) -> str:
    """A guard defers the switch."""
    return f"{message}; not yet: {deferred}"


def unread_pages(pages: int) -> str:
    """Why no worker is removed."""
    noun = "1 page" if pages == 1 else f"{pages} pages"
    return f"{noun} of metrics could not be read: no worker is removed until they are"


def during_switch(made: bool) -> str:
    """Why no worker is removed. ``made``: the switch is made now, and not awaited."""
    return f"no worker is removed while a switch is {'made' if made else 'awaited'}"
