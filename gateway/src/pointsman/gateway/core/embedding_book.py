"""Which encode worker has the embedding of which image, as far as this gateway can know, and what it answered.

An encode worker keeps the embeddings that it used last, up to ``spec.multimodal.cacheMiB``. The book assumes the same
of what this gateway sent there. An answer is used again for a while. After that the image goes to the same worker once
more, because other gateways also fill its cache. Where the book is wrong, the worker that prefills encodes the image.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pointsman.gateway.types import WorkerKey
from pointsman.serving.image_tokens import EMBEDDING_BYTES_PER_TOKEN

REUSE_S: Final = 60.0
"""How long an answer of an encode worker is used again."""


@dataclass(frozen=True, slots=True)
class Embedding:
    """An embedding at ``worker``. ``params``: its ``ec_transfer_params``, JSON of an object, from ``answered_s``."""

    worker: WorkerKey
    params: bytes
    size_bytes: int
    answered_s: float

    def is_fresh(self, now_s: float) -> bool:
        """Whether ``params`` may be used again."""
        return now_s - self.answered_s < REUSE_S


class EmbeddingBook:
    """``max_bytes``: of each encode worker's cache. Times are of one monotonic clock, s."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._of_worker: dict[WorkerKey, OrderedDict[str, Embedding]] = {}  # by image, the one used last at the end
        self._used: dict[WorkerKey, int] = {}
        self._worker_of: dict[str, WorkerKey] = {}

    def __len__(self) -> int:
        """Embeddings remembered."""
        return len(self._worker_of)

    def find(self, image: str, there: Callable[[WorkerKey], bool]) -> Embedding | None:
        """The embedding of ``image`` at a worker that is ``there``, which uses it; None: nobody has it."""
        worker = self._worker_of.get(image)
        if worker is None:
            return None
        if not there(worker):
            self.forget_worker(worker)
            return None
        self._of_worker[worker].move_to_end(image)
        return self._of_worker[worker][image]

    def add(self, image: str, worker: WorkerKey, params: bytes, tokens: int, now_s: float) -> None:
        """``worker`` has the embedding of ``image``, of so many tokens. What it drops for it is forgotten."""
        size_bytes = tokens * EMBEDDING_BYTES_PER_TOKEN
        self._forget(image)
        if size_bytes > self._max_bytes:
            return
        embeddings = self._of_worker.setdefault(worker, OrderedDict())
        embeddings[image] = Embedding(worker, params, size_bytes, now_s)
        self._worker_of[image] = worker
        self._used[worker] = self._used.get(worker, 0) + size_bytes
        while self._used[worker] > self._max_bytes:
            self._forget(next(iter(embeddings)))

    def forget_worker(self, worker: WorkerKey) -> None:
        """``worker`` is gone, and its embeddings with it."""
        for image in self._of_worker.pop(worker, ()):
            del self._worker_of[image]
        self._used.pop(worker, None)

    def _forget(self, image: str) -> None:
        worker = self._worker_of.pop(image, None)
        if worker is not None:
            self._used[worker] -= self._of_worker[worker].pop(image).size_bytes
