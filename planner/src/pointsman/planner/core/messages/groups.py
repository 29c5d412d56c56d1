"""What a decision about an elastic group does, and why."""

from collections.abc import Sequence
from typing import Final

from pointsman.planner.core.messages.words import sentences
from pointsman.serving.words import are, do, quantity, were


def _instances(number: int) -> str:
    return quantity(number, "instance")


def _keep(instances: int, attainment: float) -> str:
    return f"{do(instances, 'keep')} {attainment:.0%} of requests within the objectives"


NO_REQUEST: Final = "no request has arrived yet, so nothing is changed"  # no length is known
NO_INSTANCE: Final = "no instance serves, so nothing is changed"  # all still start
NO_REPORT: Final = "the manager has not reported any instance yet, so nothing is changed"  # no memory is known
NO_PREFILL: Final = "no prefill has been measured yet, so nothing is changed"
NO_STEP: Final = "no decode step has been measured yet, so nothing is changed"


def too_few(now: int, targets: int, attainment: float, goal: float, most: int) -> str:
    """Instances are started, although those miss the ``goal`` too if its ``attainment`` is lower."""
    found = f"{_instances(targets)} {_keep(targets, attainment)}"
    found = not_enough(targets, attainment, goal, most) if attainment < goal else found
    return f"{now} {are(now)} too few: {found}"


def not_enough(instances: int, attainment: float, goal: float, most: int) -> str:
    """So many miss the ``goal``, and no more are allowed than ``most``, or more would be as good."""
    limit = "the most that the bounds and the budget allow" if instances >= most else "and more would hardly help"
    return f"{_instances(instances)} {_keep(instances, attainment)}, {limit} (objective: {goal:.0%})"


def spare(most: int, seconds: float) -> str:
    """Instances are removed: no more than ``most`` were needed."""
    return f"no more than {_instances(most)} {were(most)} needed in the last {seconds:.0f} s"


# Why an instance is not removed.
NO_SCALE_IN: Final = "the policy does not allow scale-in"
STARTS: Final = "another instance still starts"
ONE_IS_STUCK: Final = "an instance that serves would be removed before one that does not start"


def least_allowed(instances: int) -> str:
    """The bound of the group."""
    return f"instances.minReplicas is {instances}"


def too_few_for_more(headroom: float) -> str:
    """A little more load would start one again."""
    return f"not enough for {headroom - 1:.0%} more requests"


def pages_unknown(pages: int) -> str:
    """What these pods do is not known."""
    return f"metrics of {quantity(pages, 'pod')} are not known"


def not_long_enough(seconds: float) -> str:
    """Fewer must have been enough at each look of so many seconds."""
    return f"that has not lasted for {seconds:.0f} s yet"


def unchanged(now: int, targets: int, attainment: float, why_kept: str) -> str:
    """The present number is enough, or it must not be changed (yet). ``why_kept``: why none is removed."""
    if targets > now:
        return f"{_instances(targets)} {are(targets)} needed, but the policy does not allow scale-out"
    if targets < now:
        return f"{_instances(targets)} would be enough, but {why_kept}"
    return f"{_instances(targets)} {_keep(targets, attainment)}"


def stuck_instances(message: str, names: Sequence[str]) -> str:
    """Instances that take too long to start."""
    return sentences(message, f"instances that take too long to start and are ignored: {', '.join(names)}")


def misses(goal: float) -> str:
    """Why another number was rejected."""
    return f"keeps fewer than {goal:.0%}"


def enough(instances: int) -> str:
    """Why a higher number than ``instances`` was rejected."""
    return f"{instances} {are(instances)} enough"
