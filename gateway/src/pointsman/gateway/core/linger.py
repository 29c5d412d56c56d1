"""How long a gateway that was told to end still takes requests.

Services and load balancers send requests for a while to a gateway that ends. If no other gateway is ready, they send
them there as long as it is ready: closing its port then refuses connections.
"""

from dataclasses import dataclass
from typing import Final

_REPLACEMENT_CREATED_S: Final = 1.0  # a replacement pod is made within this time, if one is made at all
_API_ANSWER_S: Final = (
    10.0  # the API server answers within this time, if it does: a deleted service's rights are deleted too
)


@dataclass(frozen=True, slots=True)
class OtherGateways:
    """The other gateway pods of the service that are not being deleted."""

    ready: int
    starting: int


class Linger:
    """Ends ``linger_s`` after another gateway is ready; at least ``linger_s`` and at most ``longest_s`` after it began.

    Without another gateway pod none is awaited: the service was deleted or scaled to zero, or no pod can be made.
    Times are seconds of one monotonic clock.
    """

    def __init__(self, *, began_s: float, linger_s: float, longest_s: float) -> None:
        self._began_s = began_s
        self._linger_s = linger_s
        self._longest_s = longest_s
        self._successor_s: float | None = None

    def ends(self, now_s: float, others: OtherGateways | None) -> bool:
        """Whether to take no more requests. ``others`` None: not known, e.g. without the Kubernetes API."""
        lingered_s = now_s - self._began_s
        if others is not None and others.ready:
            self._successor_s = now_s if self._successor_s is None else self._successor_s
        elif others is not None:
            self._successor_s = None  # it ended before this gateway did
        if lingered_s >= self._longest_s:
            return True
        if self._successor_s is not None:
            return now_s - self._successor_s >= self._linger_s
        awaited = lingered_s < _API_ANSWER_S if others is None else others.starting > 0
        return not awaited and lingered_s >= max(self._linger_s, _REPLACEMENT_CREATED_S)
