"""How long prefilled KV may be pulled, and which of it is still waiting.

vLLM keeps the blocks of a prefill ``kv_lease_duration`` seconds for the decode engine. A pull after that reads blocks
that others have overwritten: HTTP 200 and wrong tokens. So nothing may pull in the last third of a lease.
"""

from dataclasses import dataclass, field

from pointsman.api.protocol.prefill import LEASE_USABLE_SHARE

SETTLED_AFTER_SECONDS = 1.0  # by then the engine's gauges count the blocks of a prefill that has ended
FORGOTTEN_AFTER_LEASES = 4  # the decode engine's heartbeats extend a lease by 2/3 each; no request waits for this long


def usable_until_s(published_at_s: float, lease_s: float) -> float:
    """When a request published at ``published_at_s`` can no longer be pulled safely.

    Counted from the publication, on the decode worker's own monotonic clock: the lease began later than that, so
    neither clock skew nor the time the answer was on its way can make this too late.
    """
    return published_at_s + lease_s * LEASE_USABLE_SHARE


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
            freed = engine_holds_blocks is False and age_s >= SETTLED_AFTER_SECONDS
            over = engine_holds_blocks is None and age_s >= self.lease_s
            if freed or over or age_s >= FORGOTTEN_AFTER_LEASES * self.lease_s:
                del self._begun_s[request_id]
        return {request_id: now_s - begun_s for request_id, begun_s in self._begun_s.items()}
