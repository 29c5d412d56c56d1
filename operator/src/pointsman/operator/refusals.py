"""Actions that the API server refuses, for example by a quota or an admission policy: not tried at every look."""

from typing import Final

from pointsman.api.v1alpha1.conditions import Reason
from pointsman.kube.errors import Forbidden, Invalid
from pointsman.operator.core import actions as act
from pointsman.operator.core.messages import status as texts
from pointsman.operator.core.problems import Problem
from pointsman.process.clock import SYSTEM_CLOCK, Clock

RETRY_S: Final = 10.0  # an action that was refused is tried again after this

What = tuple[str, ...]
"""An action's name and what it is done to."""


class Refusals:
    """What may be forgotten: then an action is only tried sooner."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._known: dict[str, dict[What, tuple[Problem, float]]] = {}  # by the service's uid; until when

    def find(self, uid: str, what: What) -> Problem | None:
        """The refusal of this action that is not yet to be tried again; None: try it."""
        problem, until_s = self._known.get(uid, {}).get(what, (None, 0.0))
        return problem if until_s > self._clock.monotonic_s() else None

    def add(self, uid: str, what: What, error: Forbidden | Invalid) -> Problem:
        """The API server refused an action of the service of that uid."""
        problem = Problem(reason=Reason.OBJECT_REFUSED, message=texts.refused(" ".join(what), str(error)))
        now_s = self._clock.monotonic_s()
        known = {other: entry for other, entry in self._known.get(uid, {}).items() if entry[1] > now_s}
        self._known[uid] = known | {what: (problem, now_s + RETRY_S)}
        return problem

    def forget(self, uid: str) -> None:
        """The service is gone."""
        self._known.pop(uid, None)


def what_of(action: act.Action) -> What:
    """The key of an action."""
    done_to = (str(getattr(action, field, "")) for field in ("worker", "name", "role"))
    return (action.label, *filter(None, done_to))
