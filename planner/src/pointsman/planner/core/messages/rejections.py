"""Why a layout was not chosen, in the numbers by which the chosen one was."""

from collections.abc import Sequence

from pointsman.api.protocol.names import Role
from pointsman.planner.core.types import Layout
from pointsman.serving.words import are, quantity


def _roles(roles: Sequence[Role]) -> str:
    return " and ".join(role.label for role in roles)


def _numbers(numbers: Sequence[int]) -> str:
    return " and ".join(map(str, numbers))


def budget(gpus: int, max_gpus: int, shared: bool) -> str:
    """More GPUs than the policy allows. ``shared``: encode workers have a part of the budget."""
    return f"needs {quantity(gpus, 'GPU')}, {_budget(max_gpus, shared)}"


def budget_with_draining(gpus: int, draining: int, max_gpus: int, shared: bool) -> str:
    """The same, with the GPUs of draining workers."""
    return f"needs {quantity(gpus, 'GPU')} in addition to {draining} of draining workers, {_budget(max_gpus, shared)}"


def _budget(max_gpus: int, shared: bool) -> str:
    return f"the budget {'leaves' if shared else 'is'} {max_gpus}"


def maximum(replicas: int, role: Role, most: int) -> str:
    """Above the pool's maximum."""
    return f"needs {quantity(replicas, f'{role.label} worker')}, at most {most} {are(most)} allowed"


def minimum(replicas: int, role: Role, least: int) -> str:
    """Below the pool's minimum."""
    return f"has {quantity(replicas, f'{role.label} worker')}, minReplicas is {least}"


def not_allowed(action: str) -> str:
    """The policy switches this action off."""
    return f"{action} is not allowed"


def too_few_requests() -> str:
    """Nothing is scaled yet."""
    return "too few requests were seen yet to start or stop workers"


def below_min_gpus(gpus: int, min_gpus: int) -> str:
    """Below the policy's minimum."""
    return f"uses {quantity(gpus, 'GPU')}, budget.minGpus is {min_gpus}"


def not_yet(why: str) -> str:
    """A guard defers its switch."""
    return f"not yet: {why}"


def short(needs: Sequence[tuple[Role, int]], for_peaks: bool) -> str:
    """Workers needed, of roles that have fewer. ``for_peaks``: they would keep the objectives of an even load."""
    roles, numbers = _roles([role for role, _ in needs]), _numbers([need for _, need in needs])
    margin = ", with the margin for peaks" if for_peaks else ""
    return f"fewer {roles} workers than needed: {numbers} needed{margin}"


def queue_never_cleared(why: str, requests: float) -> str:
    """In addition to ``why``."""
    return f"{why}; the queue of {requests:.0f} would never be cleared"


def queue_cleared_late(why: str, requests: float, seconds: float, goal_s: float) -> str:
    """In addition to ``why``."""
    return f"{why}; the queue of {requests:.0f} would take {seconds:.0f} s to clear (goal: {goal_s:.0f} s)"


def too_many_switches(moved: int, most: int, workers: int) -> str:
    """More workers would switch than may at a time."""
    return f"{quantity(moved, 'worker')} would switch, at most {most} of {workers} may at a time"


def slower_than_switch(start_s: float, switch_s: float) -> str:
    """A switch serves sooner."""
    return f"would take {start_s:.0f} s to start; a switch serves in {switch_s:.0f} s"


def no_gain() -> str:
    """Of the switch."""
    return "serves no more of the present need"


def loses(then: float, now: float) -> str:
    """Shares of requests that serving workers would keep within objectives."""
    return f"serving workers would keep {then:.0%} within objectives, not {now:.0%}"


def little_gain(gain: float, needed: float) -> str:
    """Of the switch, as shares of the need."""
    return f"serves {gain:.1%} more of the present need, a switch must gain {needed:.1%}"


def empty_role() -> str:
    """The switch would leave a role without a worker."""
    return "one role would have no serving worker"


def retained(workers: int, role: Role | None) -> str:
    """Workers that were needed recently. ``role`` None: of both roles."""
    which = quantity(workers, "worker" if role is None else f"{role.label} worker")
    of = " of both roles" if role is None else ""
    return f"{which}{of} {are(workers)} retained, because as many were needed recently"


def during_queue(requests: float) -> str:
    """Serving workers clear the queue."""
    return f"no worker that serves is removed while {quantity(requests, 'request')} {are(requests)} queued"


def during_switch() -> str:
    """The switch uses the serving workers."""
    return "removes serving workers during a switch"


def more_to_spare(role: Role, other: Role) -> str:
    """Another role gives a worker first."""
    return f"{role.label} has more spare workers than {other.label}"


def during_start() -> str:
    """One pool grows."""
    return "no worker is removed while another is started"


def serves_less(target: Layout) -> str:
    """Than the chosen layout."""
    return f"serves less than {target}"


def by_switch(role: Role, why: str) -> str:
    """A deferred switch will bring the worker."""
    return f"a switch will add a {role.label} worker, but not yet: {why}"


def too_early(role: Role, whole_s: float, left_s: float) -> str:
    """Metrics are too young."""
    return f"{role.label} workers are started after {whole_s:.0f} s of metrics; {left_s:.0f} s are left"


def lowest_need(role: Role, seconds: float, need: int) -> str:
    """The need varied."""
    return f"{role.label} workers are started for the lowest need of the last {seconds:.0f} s: {need}"


def after_removal(role: Role) -> str:
    """The budget is in use."""
    return f"{role.label} workers start once the removed workers are deleted"


def spare_worker(role: Role, other: Role) -> str:
    """A switch from ``role`` to ``other`` is quicker."""
    return f"{role.label} has a spare worker, which can switch to {other.label} sooner than one starts"


def shortage_ends(role: Role, start_s: float, enough: int) -> str:
    """A start would be too late."""
    return f"a {role.label} worker started now serves in {start_s:.0f} s; by then {enough} {are(enough)} enough"


def not_all_serve() -> str:
    """Some workers still start."""
    return "not all of its workers would serve yet"


def too_many(roles: Sequence[Role], enough: Sequence[int]) -> str:
    """More workers than needed."""
    verb = are(sum(enough))
    return f"more {_roles(roles)} workers than needed: {_numbers(enough)} {verb} enough"
