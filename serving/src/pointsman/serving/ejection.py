"""When a worker that fails is left alone for a while: outlier ejection, with Envoy's rules.

A worker that cannot be reached is ejected at once, one that answers with failures after `FAILURES_IN_A_ROW` of them.
Each ejection lasts the base time longer than the one before, up to a maximum. When its time is over the worker is on
trial: one request goes there, others only after the base time or after its answer; a failure ejects it again.
Each answer takes one ejection back, except one that comes while the worker is ejected: its request is an older one.
"""

from dataclasses import dataclass
from typing import Final

FAILURES_IN_A_ROW: Final = 5


@dataclass(slots=True)
class Health:
    """What the requests of one gateway, or those that a prefill worker pulls, showed of one worker."""

    failures: int = 0  # in a row
    ejections: int = 0
    avoided_until_s: float = 0.0
    unreachable: bool = False  # why it was ejected last
    on_trial: bool = False

    def avoided(self, now_s: float) -> bool:
        """Whether other workers are preferred now."""
        return self.avoided_until_s > now_s

    def ejected(self, now_s: float) -> bool:
        """Whether it is left alone now, without a trial."""
        return self.avoided(now_s) and not self.on_trial


@dataclass(frozen=True, slots=True)
class EjectionRule:
    """``base_s``: the time of the first ejection; each further one is that much longer, at most ``max_s``."""

    base_s: float
    max_s: float

    def failed(self, health: Health, now_s: float, *, unreachable: bool) -> bool:
        """The worker failed a request. Returns whether it is ejected for that.

        Failures of requests that it had before an ejection change nothing.
        """
        health.failures += 1
        if health.ejected(now_s):
            return False
        if not (unreachable or health.ejections or health.failures >= FAILURES_IN_A_ROW):
            return False
        health.ejections += 1
        health.unreachable = unreachable
        health.on_trial = False
        health.avoided_until_s = now_s + min(self.base_s * health.ejections, self.max_s)
        return True

    def answered(self, health: Health, now_s: float) -> None:
        """The worker answered a request.

        Answers to requests that it had before an ejection change nothing.
        """
        if health.ejected(now_s):
            return
        health.failures = 0
        health.ejections = max(health.ejections - 1, 0)
        health.avoided_until_s = 0.0
        health.on_trial = False

    def chosen(self, health: Health, now_s: float) -> None:
        """A request goes to the worker: the trial, if its ejection is over."""
        if health.ejections and not health.avoided(now_s):
            health.on_trial = True
            health.avoided_until_s = now_s + self.base_s
