"""Why nothing is changed, and what becomes of a plan that awaits approval."""

import math
from collections.abc import Sequence
from typing import Final

from pointsman.planner.core.messages.words import sentences
from pointsman.serving.words import are, do, names_of, quantity

LOAD_UNREADABLE: Final = "the load could not be read, so nothing is changed"


def metrics_stale(age_s: float, at_most_s: float) -> str:
    """``age_s``: of the oldest page, infinite where one was never read."""
    if math.isinf(age_s):
        return "the metrics of a gateway, a manager or half of the workers were never read, so nothing is changed"
    return f"the metrics are {age_s:.0f} s old (at most {at_most_s:.0f} s): nothing is changed"


def too_few_intervals(stale_after_s: float) -> str:
    """Beside ``metrics_stale``, where a policy sets metrics.staleAfterSeconds and Prometheus scrapes."""
    return f"the policy's metrics.staleAfterSeconds ({stale_after_s:g}) must exceed two Prometheus scrape intervals"


def unreadable_gateways(pods: Sequence[str]) -> str:
    """Of these gateways no two pages could be read for so long that nobody waits for them."""
    return sentences(
        f"the metrics of {names_of(pods)} cannot be read, so a part of the load is not known",
        "until they can be, nothing is removed and no role is switched",
    )


def first_reading(target: str) -> str:
    """Of a gateway or a pod."""
    return f"a {target} was read for the first time, and a rate needs two readings, so nothing is changed"


NOTHING_MEASURED: Final = "no prefill or decode step has been measured yet, so nothing is changed"


PLAN_EXECUTING: Final = "waiting for the end of the plan that is being executed"


def awaits_approval(message: str) -> str:
    """The same decision has a plan already."""
    return sentences(message, "the plan for this change awaits approval")


def withdrawn(planned: str, unneeded_s: float, message: str) -> str:
    """The plan for ``planned``, a layout or a number of instances."""
    return sentences(f"the plan for {planned} is withdrawn: it has not been needed for {unneeded_s:.0f} s", message)


def stuck_workers(message: str, stuck: tuple[tuple[int, str, bool], ...]) -> str:
    """``stuck``: (workers that do not start, their role, whether they are given up, which is then the change)."""
    removed = [f"{_stuck(count, role)} removed" for count, role, ends in stuck if ends]
    ignored = [f"{_stuck(count, role)} not counted in this message" for count, role, ends in stuck if not ends]
    return sentences(*removed, message, *ignored)


def _stuck(count: int, role: str) -> str:
    return f"{quantity(count, f'{role} worker')} {do(count, 'take')} too long to start and {are(count)}"


def beside_stuck(why: str, stuck: int) -> str:
    """``why`` another layout was rejected, which has these workers too."""
    without = f"(without {quantity(stuck, 'worker')} that {do(stuck, 'take')} too long to start)"
    return f"{why} {without}" if why and stuck else why
