"""How long prefilled KV may be pulled, and which of it is still waiting.

vLLM keeps the blocks of a prefill ``kv_lease_duration`` seconds for the decode engine. A pull after that reads blocks
that others have overwritten: HTTP 200 and wrong tokens. So nothing may pull in the last third of a lease.
"""

import math
from dataclasses import dataclass, field

from pointsman.api.protocol.prefill import LEASE_USABLE_SHARE

SETTLED_AFTER_S = 1.0  # by then the engine's gauges count the blocks of a prefill that has ended
FORGOTTEN_AFTER_LEASES = 4  # the decode engine's heartbeats extend a lease by 2/3 each; no request waits for this long


def usable_until_s(began_s: float, lease_s: float) -> float:
    """When KV can no longer be pulled safely, if its lease began at ``began_s`` or later, on the same clock."""
    return began_s + lease_s * LEASE_USABLE_SHARE


def began_s(claimed_s: float | None, *, published_s: float, now_s: float) -> float:
    """The earliest begin of a lease that a decode worker believes; all times are of its own monotonic clock.

    ``claimed_s``: what the reply says (``lease_began_seconds``), None from an earlier version. A lease cannot have
    begun before its request was published, nor after its reply arrived, whatever a reply claims.
    """
    return published_s if claimed_s is None else min(max(claimed_s, published_s), now_s)


class LeaseStart:
    """The earliest moment at which the lease of one prefill can have begun, on the decode worker's clock.

    The engine does not report when a lease begins. It begins when the engine ends the prefill, so after the last moment
    at which the prefill was known to run. That moment is the *last observation but one*: a process that was stopped for
    some seconds may observe first and read the engine's answer afterwards.

    A reading of the decode worker's clock was taken before it arrived here. So reading minus arrival is at most the
    difference of the two clocks, and the largest one known is the best.
    """

    __slots__ = ("_ahead_s", "_observed_s")

    def __init__(self, begun_s: float) -> None:
        """``begun_s``: when the engine got the prompt, on this worker's monotonic clock."""
        self._observed_s = (begun_s, begun_s)
        self._ahead_s: float | None = None

    def runs(self, now_s: float, *, longest_gap_s: float = math.inf) -> None:
        """The engine has not answered yet.

        An observation more than ``longest_gap_s`` after the last one proves nothing: this process was stopped
        meanwhile, and an answer may wait unread.
        """
        before_s, last_s = self._observed_s
        stalled = now_s - last_s > longest_gap_s
        self._observed_s = (before_s if stalled else last_s, now_s)

    def heard(self, their_clock_s: float, now_s: float) -> None:
        """A reading of the decode worker's clock arrived, before or after the prefill ended."""
        ahead_s = their_clock_s - now_s
        self._ahead_s = ahead_s if self._ahead_s is None else max(self._ahead_s, ahead_s)

    @property
    def earliest_s(self) -> float:
        """On this worker's clock."""
        return self._observed_s[0]

    @property
    def on_their_clock_s(self) -> float | None:
        """On the decode worker's clock; None: no reading of it is known."""
        return None if self._ahead_s is None else self.earliest_s + self._ahead_s


@dataclass(slots=True)
class LeaseLedger:
    """Prefilled KV this worker's engine holds for others, by request id. Times are of one monotonic clock."""

    lease_s: float
    _begun_s: dict[str, float] = field(default_factory=dict)

    def begin(self, request_id: str, now_s: float) -> None:
        """A prefill ended: its lease begins."""
        self._begun_s[request_id] = now_s

    def end(self, request_id: str) -> None:
        """Its KV was pulled or freed."""
        self._begun_s.pop(request_id, None)

    def outstanding(self, now_s: float, *, engine_holds_blocks: bool | None) -> dict[str, float]:
        """Age in seconds of each lease that may still be pulled.

        ``engine_holds_blocks``: whether anything in the KV cache is in use, leased blocks included (None: unknown). If
        nothing is, no lease is left, whoever failed to say so. A lease past its duration counts for as long as blocks
        are held, because heartbeats of the decode engine may have extended it.
        """
        for request_id, begun_s in list(self._begun_s.items()):
            age_s = now_s - begun_s
            freed = engine_holds_blocks is False and age_s >= SETTLED_AFTER_S
            over = engine_holds_blocks is None and age_s >= self.lease_s
            if freed or over or age_s >= FORGOTTEN_AFTER_LEASES * self.lease_s:
                del self._begun_s[request_id]
        return {request_id: now_s - begun_s for request_id, begun_s in self._begun_s.items()}
