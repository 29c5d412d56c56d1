"""What this gateway has in flight at each worker: the part of the load that no metric shows yet."""

from collections.abc import Callable
from dataclasses import dataclass, field

from pointsman.gateway.types import WorkerKey


@dataclass(slots=True)
class Totals:
    """Sums over one worker's requests of this gateway."""

    pending_requests: int = 0
    pending_tokens: int = 0
    unseen_requests: int = 0  # of the pending ones, those whose first token this gateway will not see
    active_requests: int = 0
    active_tokens: int = 0
    last_chosen: int = 0

    @property
    def in_flight(self) -> int:
        """Requests sent and not ended."""
        return self.pending_requests + self.active_requests

    @property
    def decoding(self) -> int:
        """Requests that decode, as far as can be seen: without a stream perhaps from the start."""
        return self.active_requests + self.unseen_requests


@dataclass(slots=True)
class Entry:
    """One request at one worker: pending until its first token, then active, until ``end``."""

    _book: "LoadBook"
    _totals: Totals
    _prompt_tokens: int
    _new_tokens: int
    _awaited_tokens: int
    _streamed: bool
    _generated: int = 0
    _state: str = "pending"

    def produced(self, tokens: int) -> None:
        """``tokens`` more arrived; the first of them ends the wait for the prefill."""
        if self._state == "ended" or tokens <= 0:
            return
        totals = self._totals
        if self._state == "pending":
            self._state = "active"
            totals.pending_requests -= 1
            totals.pending_tokens -= self._new_tokens
            self._no_longer_awaited()
            totals.active_requests += 1
            totals.active_tokens += self._prompt_tokens
            self._book.on_less()
        self._generated += tokens
        totals.active_tokens += tokens

    def end(self) -> None:
        """The request left the worker, however. Ending twice is ending once."""
        if self._state == "ended":
            return
        totals = self._totals
        if self._state == "pending":
            totals.pending_requests -= 1
            totals.pending_tokens -= self._new_tokens
            self._no_longer_awaited()
        elif self._state == "active":
            totals.active_requests -= 1
            totals.active_tokens -= self._prompt_tokens + self._generated
        self._state = "ended"
        self._book.on_less()

    def _no_longer_awaited(self) -> None:
        if self._streamed:
            self._book.awaited_tokens -= self._awaited_tokens
            self._book.awaited_prompts -= 1
        else:
            self._totals.unseen_requests -= 1


@dataclass(slots=True)
class LoadBook:
    """Totals per worker. A worker that discovery forgot stays until its last request ended.

    ``on_less`` is called whenever less is pending or in flight than before. ``awaited_tokens``: of the pending tokens
    everywhere those whose requests' first token will be seen, each prompt's as ``counted`` has it when it is sent;
    ``awaited_prompts``: how many those are.
    """

    on_less: Callable[[], None] = lambda: None
    counted: Callable[[int], int] = lambda new_tokens: new_tokens
    awaited_tokens: int = 0
    awaited_prompts: int = 0
    _totals: dict[WorkerKey, Totals] = field(default_factory=dict)
    _sequence: int = 0

    def begin(self, worker: WorkerKey, *, prompt_tokens: int, overlap_tokens: int, streamed: bool = True) -> Entry:
        """A request of ``prompt_tokens`` goes to ``worker``, which is thought to hold ``overlap_tokens`` of it.

        Not ``streamed``: it is pending until its end, because its first token is not seen.
        """
        totals = self._totals.setdefault(worker, Totals())
        self._sequence += 1
        totals.last_chosen = self._sequence
        new_tokens = max(prompt_tokens - overlap_tokens, 0)
        totals.pending_requests += 1
        totals.pending_tokens += new_tokens
        awaited_tokens = self.counted(new_tokens)
        if streamed:
            self.awaited_tokens += awaited_tokens
            self.awaited_prompts += 1
        else:
            totals.unseen_requests += 1
        return Entry(self, totals, prompt_tokens, new_tokens, awaited_tokens, streamed)

    def of(self, worker: WorkerKey) -> Totals:
        """Totals of ``worker``."""
        return self._totals.get(worker) or Totals()

    def sweep(self, known: set[WorkerKey]) -> None:
        """Drop workers that are not ``known`` and have nothing of ours in flight."""
        for key in [k for k, totals in self._totals.items() if k not in known and not totals.in_flight]:
            del self._totals[key]
