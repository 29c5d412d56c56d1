"""Why a layout was not chosen, in the numbers by which the chosen one was."""

from typing import Final

from pointsman.api.protocol.names import Role
from pointsman.planner.core.types import Layout
from pointsman.serving.words import are, quantity


def budget(gpus: int, draining: int, max_gpus: int, shared: bool) -> str:
    """More GPUs than the policy allows, with those of draining workers. ``shared``: encode workers have a part of the
    budget."""
    more = f" in addition to {draining} of draining workers" if draining else ""
    return f"needs {quantity(gpus, 'GPU')}{more}, the budget {'leaves' if shared else 'is'} {max_gpus}"


def limit(count: int, role: Role | None, field: str, bound: int) -> str:
    """Workers of a role, or GPUs, beyond another limit of the policy."""
    return f"has {quantity(count, f'{role.label} worker' if role else 'GPU')}, {field} is {bound}"


def not_allowed(action: str) -> str:
    """The policy switches this action off."""
    return f"{action} is not allowed"


TOO_FEW_REQUESTS: Final = "too few requests were seen yet to start or stop workers"


def short(need: Layout, for_peaks: bool, queue: float) -> str:
    """``for_peaks``: the layout would keep the objectives of an even load; ``queue``: requests that have to be served
    in addition."""
    margin = ", with the margin for peaks" if for_peaks else ""
    more = f", which includes a queue of {queue:.0f}" if queue else ""
    return f"does not cover the need of {need}{margin}{more}"


def too_many_switches(most: int, workers: int) -> str:
    """More workers would switch than may."""
    return f"at most {most} of {quantity(workers, 'worker')} may switch at a time"


def slower_than_switch(start_s: float, switch_s: float) -> str:
    """A switch serves sooner."""
    return f"a switch serves in {switch_s:.0f} s, a start in {start_s:.0f} s"


def little_gain(gain: float, needed: float) -> str:
    """Of the switch, as shares of the need; negative: it would serve less."""
    return f"a switch must gain {needed:.1%} of the present need; this one gains {gain:.1%}"


def loses(then: float, now: float) -> str:
    """Shares of requests that serving workers would keep within objectives."""
    return f"serving workers would keep {then:.0%} within objectives, not {now:.0%}"


def retained(workers: int, role: Role | None) -> str:
    """Workers that were needed recently. ``role`` None: of both roles."""
    which = quantity(workers, f"{role.label} worker" if role else "worker")
    return f"{which} {are(workers)} retained, because as many were needed recently"


def during_queue(requests: float) -> str:
    """Serving workers clear the queue."""
    return f"no worker that serves is removed while {quantity(requests, 'request')} {are(requests)} queued"


NONE_FOR_WHO_GIVES: Final = "a role that gives workers by a switch gets no new ones in the same decision"
ONE_AT_A_TIME: Final = "no worker is removed while another one starts or a switch is awaited"


def too_early(role: Role, whole_s: float, left_s: float) -> str:
    """The need must have lasted. ``left_s``: until there are metrics for so long; 0: the need varied."""
    left = f"; {left_s:.0f} s are left" if left_s else ""
    return f"{role.label} workers are started for the lowest need of {whole_s:.0f} s{left}"


def too_many(enough: Layout, workers: int) -> str:
    """More workers than needed, or as many in other roles."""
    return f"more workers than needed: {enough} is enough" if workers > enough.total else f"{enough} serves more now"


NO_OTHER_REASON: Final = "fewer workers than the planner's rules retain"
