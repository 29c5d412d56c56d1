"""The language side: fetches embeddings in the background for the scheduler of an engine."""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Final

from pointsman.workers.multimodal.exchange.background import BackgroundLoop
from pointsman.workers.multimodal.exchange.fetches import (
    Action,
    BeginFetch,
    CancelFetch,
    EmbeddingFetches,
    FetchOutcome,
)
from pointsman.workers.multimodal.exchange.references import EmbeddingReference
from pointsman.workers.multimodal.exchange.settings import ExchangeSettings
from pointsman.workers.multimodal.transfer.allocator import BlockUsage
from pointsman.workers.multimodal.transfer.buffers import Buffer
from pointsman.workers.multimodal.transfer.client import EmbeddingClient
from pointsman.workers.multimodal.transfer.errors import TransferError, TransferFailed
from pointsman.workers.multimodal.transfer.metrics import TransferStatistics

log = logging.getLogger(__name__)

MAX_WIDTHS: Final = 4  # of embeddings that one engine fetches: each has a buffer of its own


class EmbeddingFetcher:
    """Used by one thread, which never waits. ``max_item_tokens``: the longest embedding that the engine takes."""

    def __init__(
        self, settings: ExchangeSettings, max_item_tokens: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings = settings
        self._max_item_tokens = max_item_tokens
        self._clock = clock
        self._fetches = EmbeddingFetches(settings.max_bytes, settings.embedding_fetch_timeout_seconds)
        self._results: SimpleQueue[tuple[int, Buffer | None, float]] = SimpleQueue()
        self._statistics: SimpleQueue[TransferStatistics] = SimpleQueue()
        self._running: dict[int, Future[None]] = {}
        self._seconds: list[float] = []
        self._clients: dict[int, EmbeddingClient] = {}  # by the width of their embeddings; of the background loop
        self._loop = BackgroundLoop("embedding-fetches")

    def admit(self, request: str, needed: Iterable[EmbeddingReference]) -> bool:
        """Fetch what ``request`` needs. Returns whether it need not wait any more."""
        now_s = self._clock()
        self._receive()
        ready, actions = self._fetches.need(request, needed, now_s)
        self._perform([*actions, *self._fetches.expire(now_s)])
        return ready

    def is_ready(self, item: str) -> bool:
        """Whether ``take`` has the embedding of ``item``."""
        return self._fetches.is_ready(item)

    def take(self, item: str) -> tuple[EmbeddingReference, Buffer]:
        """A ready embedding, once. Raises KeyError if it is not ready."""
        taken = self._fetches.take(item)
        self._perform(self._fetches.expire(self._clock()))  # its memory may be another's now
        return taken

    def refused(self) -> None:
        """An embedding is of another model: count it."""
        self._fetches.counts[FetchOutcome.OTHER_MODEL] += 1

    def finished(self, request: str) -> None:
        """The request has ended, however: what only it waited for is cancelled."""
        self._receive()
        self._perform(self._fetches.finished(request))

    def outcomes(self) -> tuple[dict[str, int], list[float]]:
        """Fetches that ended since the last call, by outcome, and the seconds of those that succeeded."""
        counts = {outcome.value: count for outcome, count in self._fetches.counts.items() if count}
        self._fetches.counts.clear()
        seconds, self._seconds = self._seconds, []
        return counts, seconds

    def transfers(self) -> list[TransferStatistics]:
        """Of the buffers that embeddings are fetched into, as fetches ended since the last call."""
        found: list[TransferStatistics] = []
        with suppress(Empty):
            while True:
                found.append(self._statistics.get_nowait())
        return found

    @property
    def reserved_bytes(self) -> int:
        """Of the embeddings that are fetched or wait for the engine."""
        return self._fetches.reserved_bytes

    @property
    def usages(self) -> Sequence[BlockUsage]:
        """Of the buffers that embeddings are fetched into."""
        return [client.usage for client in list(self._clients.values())]

    def close(self) -> None:
        """End all fetches."""
        self._loop.stop(self._close())

    async def _close(self) -> None:
        for client in self._clients.values():
            await client.close()

    def _receive(self) -> None:
        while True:
            try:
                number, vectors, seconds = self._results.get_nowait()
            except Empty:
                return
            self._running.pop(number, None)
            if vectors is None:
                self._perform(self._fetches.failed(number))
            else:
                self._seconds.append(seconds)
                self._perform(self._fetches.delivered(number, vectors))

    def _perform(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case BeginFetch(number, reference):
                    self._running[number] = self._loop.start(self._fetch(number, reference))
                case CancelFetch(number):
                    log.warning("the fetch of an embedding is given up", extra={"fetch": number})
                    self._running.pop(number).cancel()

    async def _fetch(self, number: int, reference: EmbeddingReference) -> None:
        begun_s = self._clock()
        vectors: Buffer | None = None
        try:
            client = self._client(reference.token_bytes)
            embedding = await client.fetch(reference.address, reference.key, reference.num_tokens)
            vectors = embedding.embeddings
        except (TransferError, TimeoutError, OSError, ValueError) as error:
            log.warning(
                "embedding not fetched, the engine encodes the image",
                extra={"address": reference.address, "why": str(error) or type(error).__name__},
            )
        finally:
            if reference.token_bytes in self._clients:
                self._statistics.put(self._clients[reference.token_bytes].statistics())
        self._results.put((number, vectors, self._clock() - begun_s))

    def _client(self, token_bytes: int) -> EmbeddingClient:
        client = self._clients.get(token_bytes)
        if client is None:
            if len(self._clients) >= MAX_WIDTHS:
                raise TransferFailed(f"embeddings of {MAX_WIDTHS} other widths were fetched already")
            settings = self._settings
            client = self._clients[token_bytes] = EmbeddingClient(
                settings.allocator(self._max_item_tokens, token_bytes),
                token_bytes,
                settings.control_token.get_secret_value(),
                settings.embedding_transfer_timeout_seconds,
                max_request_tokens=self._max_item_tokens,
                transports=settings.transports,
            )
        return client
