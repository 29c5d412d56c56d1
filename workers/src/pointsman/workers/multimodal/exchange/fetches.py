"""Which embeddings are fetched, and which requests wait for them. No I/O; the clock is an argument.

An item is fetched once, however many requests have it. A request waits for its items until each is here, or has failed:
then the engine encodes it. Memory is reserved before a fetch begins, so all embeddings that are fetched or wait for the
engine have at most ``max_bytes``.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from math import inf

from pointsman.workers.multimodal.exchange.references import EmbeddingReference
from pointsman.workers.multimodal.transfer.buffers import Buffer


class FetchState(Enum):
    """Of one item."""

    QUEUED = "waiting for memory"
    FETCHING = "on its way"
    READY = "here"


class FetchOutcome(Enum):
    """How the fetch of an item ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed-out"
    TOO_LARGE = "too-large"
    OTHER_MODEL = "other-model"  # not begun: it is of another model than the engine's
    ABANDONED = "abandoned"  # no request needs it any more


@dataclass(frozen=True, slots=True)
class BeginFetch:
    """Fetch this embedding, then report ``delivered`` or ``failed`` once, unless it is cancelled."""

    number: int
    reference: EmbeddingReference


@dataclass(frozen=True, slots=True)
class CancelFetch:
    """Nobody waits for this fetch any more; what it reports changes nothing."""

    number: int


Action = BeginFetch | CancelFetch


@dataclass(slots=True)
class _Fetch:
    number: int
    reference: EmbeddingReference
    deadline_s: float
    requests: set[str] = field(default_factory=set)
    state: FetchState = FetchState.QUEUED
    vectors: Buffer | None = None


class EmbeddingFetches:
    """All fetches of one engine. ``timeout_s``: longest time that a request waits for an item.

    ``counts``: fetches by FetchOutcome.
    """

    def __init__(self, max_bytes: int, timeout_s: float) -> None:
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._fetches: dict[str, _Fetch] = {}  # by item, in the order in which they were asked for
        self._failed: dict[str, set[str]] = {}  # by request: items that it has the engine encode
        self._begun = 0
        self.counts: Counter[FetchOutcome] = Counter()

    @property
    def reserved_bytes(self) -> int:
        """Of the embeddings that are fetched or wait for the engine."""
        return sum(each.reference.size_bytes for each in self._fetches.values() if each.state is not FetchState.QUEUED)

    @property
    def next_deadline_s(self) -> float:
        """When ``expire`` has something to do; infinity: never."""
        waiting = (each.deadline_s for each in self._fetches.values() if each.state is not FetchState.READY)
        return min(waiting, default=inf)

    def need(self, request: str, needed: Iterable[EmbeddingReference], now_s: float) -> tuple[bool, list[Action]]:
        """What ``request`` needs now; what it needed before and is not in ``needed`` is given up.

        Returns whether it need not wait: each item is here or has failed.
        """
        references = {reference.item: reference for reference in needed}
        actions: list[Action] = []
        for item in [
            item for item, each in self._fetches.items() if request in each.requests and item not in references
        ]:
            actions += self._give_up(item, request)
        failed = self._failed.get(request, set())
        for item, reference in references.items():
            if item in failed:
                continue
            fetch = self._fetches.get(item)
            if fetch is None:
                if reference.size_bytes > self._max_bytes or reference.num_tokens < 1 or reference.token_bytes < 1:
                    self._failed.setdefault(request, set()).add(item)
                    self.counts[FetchOutcome.TOO_LARGE] += 1
                    continue
                self._begun += 1
                fetch = self._fetches[item] = _Fetch(self._begun, reference, now_s + self._timeout_s)
            fetch.requests.add(request)
        actions += self._admit()
        failed = self._failed.get(request, set())
        ready = all(item in failed or self._fetches[item].state is FetchState.READY for item in references)
        return ready, actions

    def delivered(self, number: int, vectors: Buffer) -> list[Action]:
        """The embedding is here; ``vectors`` has ``size_bytes`` of its reference."""
        fetch = self._numbered(number)
        if fetch is None:
            return []
        fetch.state, fetch.vectors = FetchState.READY, vectors
        self.counts[FetchOutcome.SUCCEEDED] += 1
        return []

    def failed(self, number: int) -> list[Action]:
        """The embedding will not come: the requests that wait for it have the engine encode it."""
        fetch = self._numbered(number)
        return [] if fetch is None else [*self._fail(fetch, FetchOutcome.FAILED), *self._admit()]

    def expire(self, now_s: float) -> list[Action]:
        """Fail what has waited too long."""
        actions: list[Action] = []
        for fetch in list(self._fetches.values()):
            if fetch.state is not FetchState.READY and fetch.deadline_s <= now_s:
                if fetch.state is FetchState.FETCHING:
                    actions.append(CancelFetch(fetch.number))
                actions += self._fail(fetch, FetchOutcome.TIMED_OUT)
        return [*actions, *self._admit()] if actions or self._fetches else actions

    def is_ready(self, item: str) -> bool:
        """Whether ``take`` has it."""
        fetch = self._fetches.get(item)
        return fetch is not None and fetch.state is FetchState.READY

    def take(self, item: str) -> tuple[EmbeddingReference, Buffer]:
        """A ready embedding, which the engine keeps from now on. Raises KeyError if it is not ready."""
        if not self.is_ready(item):
            raise KeyError(item)
        fetch = self._fetches.pop(item)
        assert fetch.vectors is not None
        return fetch.reference, fetch.vectors

    def finished(self, request: str) -> list[Action]:
        """The request has ended, however."""
        self._failed.pop(request, None)
        actions: list[Action] = []
        for item in [item for item, each in self._fetches.items() if request in each.requests]:
            actions += self._give_up(item, request)
        return [*actions, *self._admit()]

    def _admit(self) -> list[Action]:
        """Begin what memory is there for, first come first served."""
        actions: list[Action] = []
        reserved = self.reserved_bytes
        for fetch in self._fetches.values():
            if fetch.state is not FetchState.QUEUED:
                continue
            if reserved + fetch.reference.size_bytes > self._max_bytes:
                break
            reserved += fetch.reference.size_bytes
            fetch.state = FetchState.FETCHING
            actions.append(BeginFetch(fetch.number, fetch.reference))
        return actions

    def _fail(self, fetch: _Fetch, outcome: FetchOutcome) -> list[Action]:
        self.counts[outcome] += 1
        del self._fetches[fetch.reference.item]
        for request in fetch.requests:
            self._failed.setdefault(request, set()).add(fetch.reference.item)
        return []

    def _give_up(self, item: str, request: str) -> list[Action]:
        fetch = self._fetches[item]
        fetch.requests.discard(request)
        if fetch.requests:
            return []
        del self._fetches[item]
        if fetch.state is FetchState.READY:
            return []
        self.counts[FetchOutcome.ABANDONED] += 1
        return [CancelFetch(fetch.number)] if fetch.state is FetchState.FETCHING else []

    def _numbered(self, number: int) -> _Fetch | None:
        for fetch in self._fetches.values():
            if fetch.number == number and fetch.state is FetchState.FETCHING:
                return fetch
        return None
