"""The encode side: a cache of an engine's embeddings, from which the engines that prefill fetch them."""

import asyncio
import logging
from typing import Final

from pointsman.workers.multimodal.exchange.background import BackgroundLoop
from pointsman.workers.multimodal.exchange.publications import EmbeddingCache
from pointsman.workers.multimodal.exchange.settings import ExchangeSettings
from pointsman.workers.multimodal.transfer.allocator import BlockUsage
from pointsman.workers.multimodal.transfer.buffers import FILL_ID_BYTES, MROPE_BYTES, Buffer, Embedding
from pointsman.workers.multimodal.transfer.data_paths import EncodePath
from pointsman.workers.multimodal.transfer.messages import Failed, Fetch, Message
from pointsman.workers.multimodal.transfer.metrics import EmbeddingTransferMetrics
from pointsman.workers.multimodal.transfer.server import EmbeddingServer
from pointsman.workers.multimodal.transfer.shell import Link

log = logging.getLogger(__name__)

OPEN_S: Final = 10.0
METRICS_S: Final = 1.0


class _CacheServer(EmbeddingServer):
    """Sends what is in ``cache``, as often as it is fetched. A Fetch of what is not there fails at once."""

    cache: EmbeddingCache

    async def _receive(self, link: Link[EncodePath], message: Message) -> None:
        if isinstance(message, Fetch):
            embedding = self.cache.get(message.request_id)
            if embedding is None:
                link.outgoing.put_nowait(Failed(message.transfer, "the encode worker does not have this embedding"))
                return
            self.put(message.request_id, embedding)  # for this fetch
        await super()._receive(link, message)


class EmbeddingPublisher:
    """Serves embeddings of ``token_bytes`` a token on the pod's own address. Used by one thread.

    ``max_item_tokens``: the longest embedding. ``metrics``: brought up to date once a second.
    Raises OSError if the address is taken.
    """

    def __init__(
        self,
        settings: ExchangeSettings,
        token_bytes: int,
        max_item_tokens: int,
        metrics: EmbeddingTransferMetrics | None = None,
    ) -> None:
        self._settings = settings
        self._token_bytes = token_bytes
        self._max_item_tokens = max_item_tokens
        self._loop = BackgroundLoop("embedding-server")
        try:
            self._server = self._loop.start(self._open()).result(OPEN_S)
        except BaseException:
            self._loop.stop(_nothing())
            raise
        self._observing = None if metrics is None else self._loop.start(self._observe(metrics))

    @property
    def usage(self) -> BlockUsage:
        """Of the buffer that embeddings are sent from."""
        return self._server.usage

    def publish(self, item: str, num_tokens: int, vectors: Buffer) -> None:
        """Have the embedding of ``item`` fetched, until others need its memory. ``vectors`` must not change."""
        if (size := memoryview(vectors).nbytes) != num_tokens * self._token_bytes:
            log.error("embedding not published: its tokens have another width than the first", extra={"bytes": size})
            return
        # the engine that fetches it knows its prompt, with ids and positions
        embedding = Embedding(num_tokens, vectors, bytes(FILL_ID_BYTES * num_tokens), bytes(MROPE_BYTES * num_tokens))
        self._loop.call(self._server.cache.put, item, embedding)

    def close(self) -> None:
        """End all transfers and release the address."""
        if self._observing is not None:
            self._observing.cancel()
        self._loop.stop(self._server.close())

    async def _observe(self, metrics: EmbeddingTransferMetrics) -> None:
        while True:
            metrics.observe(self._server.statistics())
            await asyncio.sleep(METRICS_S)

    async def _open(self) -> _CacheServer:
        settings = self._settings
        server = _CacheServer(
            settings.allocator(self._max_item_tokens, self._token_bytes),
            self._token_bytes,
            settings.control_token.get_secret_value(),
            settings.embedding_transfer_timeout_seconds,
            transports=settings.transports,
        )
        server.cache = EmbeddingCache(settings.max_bytes)
        try:
            server.listen_tcp(settings.pod_ip, settings.embedding_port)
        except OSError:
            await server.close()
            raise
        return server


async def _nothing() -> None:
    pass
