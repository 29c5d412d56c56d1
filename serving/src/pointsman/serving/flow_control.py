"""Which requests a gateway holds back while the service has more than it can answer in time.

First in, first out serves nobody under overload: everyone waits as long as the queue has become, and every answer is
late. Here a request that could not be in time any more is *held*, and lets those pass that still can: no request is
refused, and as many as the workers can serve are in time. Held requests go, first in, first out, as soon as there is
room that nobody in time needs.

The two bounds are live: the planner computes them from the objectives, per worker, so that they hold from the moment a
worker comes or goes. The idea is that of overload control by deadlines: a job that misses its deadline anyway yields
to those that do not (Buttazzo, *Hard Real-Time Computing Systems*, §9); the flow control of the Gateway API Inference
Extension holds requests at the gateway too, by priority instead of by deadline.
"""

from dataclasses import dataclass
from typing import Final

LATE_PENDING_SHARE: Final = 0.3
"""Of the pending bound that held requests may fill: who comes in time finds the queue short."""
LATE_IN_FLIGHT_SHARE: Final = 0.85
"""… and of the bound on what decodes."""


@dataclass(frozen=True, slots=True)
class FlowBounds:
    """What one gateway may have under way at its workers. None: no bound.

    ``pending_tokens_per_prefill_worker``: prompt tokens that are not cached, of requests without a first token.
    ``in_flight_per_decode_worker``: requests that were sent and have not ended.
    """

    pending_tokens_per_prefill_worker: int | None = None
    in_flight_per_decode_worker: int | None = None

    def __post_init__(self) -> None:
        for field in ("pending_tokens_per_prefill_worker", "in_flight_per_decode_worker"):
            value = getattr(self, field)
            if value is not None and value < 1:
                raise ValueError(f"{field} is {value}: it must be at least 1, or None for no bound")


NOTHING_HELD: Final = FlowBounds()


@dataclass(frozen=True, slots=True)
class UnderWay:
    """What one gateway has at its workers now, and how many of those serve."""

    pending_tokens: float
    in_flight: int
    prefill_workers: int
    decode_workers: int


def in_time(under_way: UnderWay, bounds: FlowBounds) -> bool:
    """Whether a request that is sent now will be answered in time: what is ahead of it leaves it the time it needs."""
    return _below(under_way, bounds, 1.0, 1.0)


def has_room(under_way: UnderWay, bounds: FlowBounds) -> bool:
    """Whether a request that was held may go: without making those late that are still to come.

    What is idle is always given work: with nothing pending, or less than one request a decode worker.
    """
    return _below(under_way, bounds, LATE_PENDING_SHARE, LATE_IN_FLIGHT_SHARE)


def _below(under_way: UnderWay, bounds: FlowBounds, pending_share: float, in_flight_share: float) -> bool:
    tokens, requests = bounds.pending_tokens_per_prefill_worker, bounds.in_flight_per_decode_worker
    if tokens is not None and under_way.pending_tokens > 0:
        # Without a prefill worker the decode workers prefill.
        workers = under_way.prefill_workers or under_way.decode_workers
        if under_way.pending_tokens > pending_share * tokens * workers:
            return False
    if requests is None or under_way.in_flight < under_way.decode_workers:
        return True
    return under_way.in_flight + 1 <= in_flight_share * requests * under_way.decode_workers
