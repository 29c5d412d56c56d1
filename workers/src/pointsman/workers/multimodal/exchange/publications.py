"""Which embeddings can be fetched from this engine. No I/O; the clock is an argument.

Each request of an encode worker publishes its items under keys of its own. The transfer server gives an embedding away
once, and two requests with the same image are prefilled by different workers. The engine has it encoded once.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Publication:
    """Have the embedding of ``item`` fetched under ``key``, for the request with this id of the engine."""

    request: str
    item: str
    key: str


class RequestKeys:
    """Scheduler's side: the keys of the requests under way. ``new_key`` returns one that was never used."""

    def __init__(self, new_key: Callable[[], str]) -> None:
        self._new_key = new_key
        self._keys: dict[str, dict[str, str]] = {}

    def publish(self, request: str, items: Iterable[str]) -> list[Publication]:
        """A request begins; nothing if it is known, as after a preemption."""
        if request in self._keys:
            return []
        keys = self._keys[request] = {item: self._new_key() for item in dict.fromkeys(items)}
        return [Publication(request, item, key) for item, key in keys.items()]

    def finished(self, request: str) -> Mapping[str, str]:
        """The request has ended: its keys by item."""
        return self._keys.pop(request, {})


class Outstanding:
    """Model's side: publications whose embedding the engine has not computed yet."""

    def __init__(self) -> None:
        self._publications: list[Publication] = []

    def __len__(self) -> int:
        return len(self._publications)

    def add(self, publications: Iterable[Publication]) -> None:
        """The scheduler wants these."""
        self._publications += publications

    def computed(self, items: Collection[str]) -> list[Publication]:
        """Those of ``items``, which the engine has now."""
        found = [each for each in self._publications if each.item in items]
        self._publications = [each for each in self._publications if each.item not in items]
        return found

    def finished(self, requests: Collection[str]) -> None:
        """These requests have ended, some of them before they were encoded."""
        if requests:
            self._publications = [each for each in self._publications if each.request not in requests]


class HeldBytes:
    """Bounds the embeddings that wait to be fetched. The server drops each after ``timeout_s`` on its own.

    What was fetched counts until then, so the bound errs towards less memory.
    """

    def __init__(self, max_bytes: int, timeout_s: float) -> None:
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._held: deque[tuple[float, str, int]] = deque()  # (until when, key, bytes), oldest first
        self._bytes = 0

    def put(self, key: str, size_bytes: int, now_s: float) -> list[str]:
        """One more is held; returns the keys of the oldest that have to go for it. It stays even if it is larger."""
        while self._held and self._held[0][0] <= now_s:
            self._bytes -= self._held.popleft()[2]
        dropped = []
        while self._held and self._bytes + size_bytes > self._max_bytes:
            _, oldest, size = self._held.popleft()
            self._bytes -= size
            dropped.append(oldest)
        self._held.append((now_s + self._timeout_s, key, size_bytes))
        self._bytes += size_bytes
        return dropped
