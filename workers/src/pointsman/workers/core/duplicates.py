"""Which prefill requests this worker has seen, so that a redelivered one is not computed twice."""

from dataclasses import dataclass, field

from pointsman.api.protocol.prefill import PrefillReply


@dataclass(frozen=True, slots=True)
class Answered:
    """A request that was answered: the answer, and when, to send it again if the first one was lost."""

    reply: PrefillReply
    at_s: float


@dataclass(slots=True)
class SeenRequests:
    """The answers of the last ``keep_s`` seconds and the latest cancellations. Times are of one monotonic clock.

    Cancellations are counted rather than timed: a cancelled request may lie in the queue for as long as it may wait.
    """

    keep_s: float
    keep_cancelled: int = 10_000
    _answered: dict[str, Answered] = field(default_factory=dict)  # both in order of time
    _cancelled: dict[str, float] = field(default_factory=dict)

    def answer(self, reply: PrefillReply, now_s: float) -> None:
        """A request ended with ``reply``."""
        self._forget(now_s)
        self._answered[reply.request_id] = Answered(reply, now_s)

    def answered(self, request_id: str, now_s: float) -> Answered | None:
        """The answer given before, if it is not too old to be of use."""
        self._forget(now_s)
        return self._answered.get(request_id)

    def cancel(self, request_id: str, now_s: float) -> None:
        """Nobody waits for it: whether it was seen already or comes later."""
        self._forget(now_s)
        self._cancelled[request_id] = now_s

    def is_cancelled(self, request_id: str) -> bool:
        """Whether its decode worker has given up."""
        return request_id in self._cancelled

    def _forget(self, now_s: float) -> None:
        while self._answered and now_s - next(iter(self._answered.values())).at_s >= self.keep_s:
            del self._answered[next(iter(self._answered))]
        while len(self._cancelled) > self.keep_cancelled:
            del self._cancelled[next(iter(self._cancelled))]
