"""Which embeddings can be fetched from this engine. No I/O."""

from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from pointsman.workers.multimodal.transfer.buffers import Embedding


@dataclass(frozen=True, slots=True)
class Publication:
    """Have the embedding of ``item`` fetched, for the request with this id of the engine."""

    request: str
    item: str


class Outstanding:
    """Publications whose embedding the engine does not have yet."""

    def __init__(self) -> None:
        self._publications: list[Publication] = []

    def __len__(self) -> int:
        return len(self._publications)

    def add(self, publications: Iterable[Publication]) -> None:
        """A request begins."""
        self._publications += publications

    def computed(self, items: Collection[str]) -> list[str]:
        """Those of ``items``, which the engine has now, that are to be published."""
        found = [each.item for each in self._publications if each.item in items]
        self._publications = [each for each in self._publications if each.item not in items]
        return list(dict.fromkeys(found))

    def finished(self, requests: Collection[str]) -> None:
        """These requests have ended, some of them before they were encoded."""
        if requests:
            self._publications = [each for each in self._publications if each.request not in requests]


class EmbeddingCache:
    """The embeddings used last, of at most ``max_bytes``; the last one stays even if it is larger."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._embeddings: OrderedDict[str, Embedding] = OrderedDict()
        self.size_bytes = 0

    def put(self, item: str, embedding: Embedding) -> None:
        """The embedding of ``item``; others make room for it."""
        self._drop(item)
        self._embeddings[item] = embedding
        self.size_bytes += _bytes_of(embedding)
        while self.size_bytes > self._max_bytes and len(self._embeddings) > 1:
            self._drop(next(iter(self._embeddings)))

    def get(self, item: str) -> Embedding | None:
        """The embedding of ``item``, which is the last to go now; None: it is not here."""
        embedding = self._embeddings.get(item)
        if embedding is not None:
            self._embeddings.move_to_end(item)
        return embedding

    def _drop(self, item: str) -> None:
        embedding = self._embeddings.pop(item, None)
        if embedding is not None:
            self.size_bytes -= _bytes_of(embedding)


def _bytes_of(embedding: Embedding) -> int:
    return memoryview(embedding.embeddings).nbytes
