"""Which requests a gateway queues while the service has more than it can answer in time.

First in, first out serves nobody under overload: everyone waits as long as the queue has become, and every answer is
late. Here a request waits for room at the decode workers as long as that leaves it the time it needs; one that can not
be in time any more is *late*, and lets those pass that still can. No request is refused, and as many as the workers can
serve are in time. Late ones go, first in, first out, as soon as there is room that nobody in time needs.

The numbers are live: the planner computes them from the objectives, per worker, so that they hold from the moment a
worker comes or goes. The idea is that of overload control by deadlines: a job that misses its deadline anyway yields
to those that do not (Buttazzo, *Hard Real-Time Computing Systems*, §9); the flow control of the Gateway API Inference
Extension holds requests at the gateway too, by priority instead of by deadline.
"""

from dataclasses import dataclass
from typing import Final

LATE_PENDING_SHARE: Final = 0.3
"""Of the pending bound that late requests may fill: who comes in time finds the queue short."""
LATE_DECODING_SHARE: Final = 0.85
"""… and of the bound on what decodes."""


@dataclass(frozen=True, slots=True)
class FlowBounds:
    """What one gateway may have in flight at its workers. None: no bound.

    ``pending_tokens_per_prefill_worker``: prompt tokens that are not cached, of requests without a first token: what is
    computed within the slack, what waits for its first decode step, and what decode workers compute meanwhile.
    ``decoding_per_decode_worker``: requests between their first and last token.
    ``slack_ms``: how long a request may wait in all, queued and behind other prompts, and be in time; None: a request
    that must wait for room is late.
    """

    pending_tokens_per_prefill_worker: int | None = None
    decoding_per_decode_worker: int | None = None
    slack_ms: int | None = None

    def __post_init__(self) -> None:
        for field in ("pending_tokens_per_prefill_worker", "decoding_per_decode_worker", "slack_ms"):
            value = getattr(self, field)
            if value is not None and value < 1:
                raise ValueError(f"{field} is {value}: it must be at least 1, or None for no bound")

    def counted(self, prompt_tokens: int) -> int:
        """What a prompt counts among the pending tokens: at most just more than one prefill worker may have.

        It keeps its worker busy for longer than others may wait, but that one only: the others are as free as before.
        """
        most = self.pending_tokens_per_prefill_worker
        return prompt_tokens if most is None else min(prompt_tokens, most + 1)


UNBOUNDED: Final = FlowBounds()


@dataclass(frozen=True, slots=True)
class InFlight:
    """What one gateway has at its workers now, and how many of those serve.

    ``pending_tokens``: of all prompts without a first token, ``pending_prompts``, each as ``FlowBounds.counted`` when
    it was sent.
    """

    pending_tokens: float
    decoding: int
    prefill_workers: int
    decode_workers: int
    pending_prompts: int


def in_time(in_flight: InFlight, bounds: FlowBounds, queued_ms: float = 0.0) -> bool:
    """Whether a request that was queued so long would be in time, were it sent now: behind the prompts in flight."""
    if bounds.slack_ms is not None:
        waited = queued_ms / bounds.slack_ms
    else:
        waited = 0.0 if queued_ms <= 0 else 1.0
    return waited + _pending_share(in_flight, bounds) <= 1.0 and waited < 1.0


def can_decode(in_flight: InFlight, bounds: FlowBounds) -> bool:
    """Whether the decode workers have room for one more within the token objective."""
    return _decodes_below(in_flight, bounds, 1.0)


def has_room(in_flight: InFlight, bounds: FlowBounds) -> bool:
    """Whether a late request may go: without making those late that are still to come.

    What is idle is always given work: with less than one prompt a prefill worker, and less than one request a decode
    worker. Where a prompt takes as long as it may wait, the share alone would let most workers stand idle.
    """
    pending = _pending_share(in_flight, bounds)
    idle = in_flight.pending_prompts < _prefilling_workers(in_flight) and pending <= 1.0
    return (idle or pending <= LATE_PENDING_SHARE) and _decodes_below(in_flight, bounds, LATE_DECODING_SHARE)


def _pending_share(in_flight: InFlight, bounds: FlowBounds) -> float:
    """Of what may be pending; 0 without a bound."""
    tokens = bounds.pending_tokens_per_prefill_worker
    if tokens is None or in_flight.pending_tokens <= 0:
        return 0.0
    return in_flight.pending_tokens / (tokens * _prefilling_workers(in_flight))


def _prefilling_workers(in_flight: InFlight) -> int:
    """Workers; without a prefill worker the decode workers do it."""
    return max(1, in_flight.prefill_workers or in_flight.decode_workers)


def _decodes_below(in_flight: InFlight, bounds: FlowBounds, share: float) -> bool:
    requests = bounds.decoding_per_decode_worker
    if requests is None or in_flight.decoding < in_flight.decode_workers:
        return True
    return in_flight.decoding + 1 <= share * requests * in_flight.decode_workers
