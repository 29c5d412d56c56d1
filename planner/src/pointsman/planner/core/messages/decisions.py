"""Why nothing is changed, and what becomes of a plan that awaits approval."""

import math
from collections.abc import Sequence

from pointsman.planner.core.messages.words import sentences
from pointsman.planner.core.types import Layout
from pointsman.serving.words import are, quantity


def load_unreadable() -> str:
    """The metrics have no load."""
    return "the load could not be read, so nothing is changed"


def metrics_stale(age_s: float, at_most_s: float) -> str:
    """``age_s``: of the oldest page, infinite where one was never read."""
    if math.isinf(age_s):
        return "the metrics of a gateway or of half of the workers were never read, so nothing is changed"
    return f"the metrics are {age_s:.0f} s old (at most {at_most_s:.0f} s): nothing is changed"


def too_few_intervals(stale_after_s: float) -> str:
    """Beside ``metrics_stale``, where a policy sets metrics.staleAfterSeconds and Prometheus scrapes."""
    return (
        f"the policy's metrics.staleAfterSeconds ({stale_after_s:g}) must be more than twice the scrape interval of "
        "Prometheus"
    )


def unreadable_gateways(pods: Sequence[str]) -> str:
    """Of these gateways no two pages could be read for so long that nobody waits for them."""
    which, more = ", ".join(pods[:3]), len(pods) - 3
    which = f"{which} and {more} more" if more > 0 else which
    return sentences(
        f"the metrics of {which} cannot be read, so a part of the load is not known",
        "until they can be, nothing is removed and no role is switched",
    )


def first_reading(target: str) -> str:
    """Of a gateway or a pod."""
    return f"a {target} was read for the first time, and a rate needs two readings, so nothing is changed"


def nothing_measured() -> str:
    """There is no model of the engine yet."""
    return "no prefill or decode step has been measured yet, so nothing is changed"


def plan_executing() -> str:
    """The next decision waits."""
    return "waiting for the end of the plan that is being executed"


def awaits_approval(message: str) -> str:
    """The same decision has a plan already."""
    return sentences(message, "the plan for this change awaits approval")


def withdrawn(layout: Layout, unneeded_s: float, message: str) -> str:
    """The plan for ``layout`` is withdrawn."""
    return sentences(f"{layout} has not been needed for {unneeded_s:.0f} s, so its plan is withdrawn", message)


def stuck_workers(message: str, stuck: tuple[tuple[int, str, bool], ...]) -> str:
    """``stuck``: (workers that do not start, their role, whether they are given up, which is then the change)."""
    given_up = [f"{_stuck(count, role)}, so {_they(count)} {are(count)} removed" for count, role, ends in stuck if ends]
    ignored = [
        f"{_stuck(count, role)}; the layouts in this message do not include {'it' if count == 1 else 'them'}"
        for count, role, ends in stuck
        if not ends
    ]
    return sentences(*given_up, message, *ignored)


def _stuck(count: int, role: str) -> str:
    return f"{quantity(count, f'{role} worker')} {_have(count)} not started"


def _they(count: int) -> str:
    return "it" if count == 1 else "they"


def _have(count: int) -> str:
    return "has" if count == 1 else "have"


def beside_stuck(why: str, stuck: int) -> str:
    """``why`` another layout was rejected, which has these workers too."""
    without = f"without {quantity(stuck, 'worker')} that {_have(stuck)} not started"
    return f"{why} ({without})" if why and stuck else why
