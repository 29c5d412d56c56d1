"""The encode side: offers embeddings of an engine to the engines that prefill."""

import logging
import time
from collections.abc import Callable
from typing import Final

from pointsman.workers.multimodal.exchange.background import BackgroundLoop
from pointsman.workers.multimodal.exchange.publications import HeldBytes
from pointsman.workers.multimodal.exchange.settings import ExchangeSettings
from pointsman.workers.multimodal.transfer.allocator import BlockUsage
from pointsman.workers.multimodal.transfer.buffers import FILL_ID_BYTES, MROPE_BYTES, Buffer, Embedding
from pointsman.workers.multimodal.transfer.errors import AllocationError
from pointsman.workers.multimodal.transfer.server import EmbeddingServer

log = logging.getLogger(__name__)

OPEN_SECONDS: Final = 10.0


class EmbeddingPublisher:
    """Serves embeddings of ``token_bytes`` a token on the pod's own address. Used by one thread.

    ``max_item_tokens``: the longest embedding. Raises OSError if the address is taken.
    """

    def __init__(
        self,
        settings: ExchangeSettings,
        token_bytes: int,
        max_item_tokens: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._token_bytes = token_bytes
        self._max_item_tokens = max_item_tokens
        self._clock = clock
        self._held = HeldBytes(settings.max_bytes, settings.embedding_transfer_timeout_seconds)
        self._loop = BackgroundLoop("embedding-server")
        try:
            self._server = self._loop.start(self._open()).result(OPEN_SECONDS)
        except BaseException:
            self._loop.stop(_nothing())
            raise

    @property
    def token_bytes(self) -> int:
        """Width of the embeddings, bytes."""
        return self._token_bytes

    @property
    def usage(self) -> BlockUsage:
        """Of the buffer that embeddings are sent from."""
        return self._server.usage

    def publish(self, key: str, num_tokens: int, vectors: Buffer) -> None:
        """Have an embedding fetched under ``key``; ``vectors`` must not change until then.

        The oldest ones are dropped if there is no memory for it.
        """
        for dropped in self._held.put(key, num_tokens * self._token_bytes, self._clock()):
            self._loop.call(self._server.fail, dropped, "the encode worker needed its memory")
        # the engine that fetches it knows its prompt, with ids and positions
        embedding = Embedding(num_tokens, vectors, bytes(FILL_ID_BYTES * num_tokens), bytes(MROPE_BYTES * num_tokens))
        self._loop.call(self._put, key, embedding)

    def close(self) -> None:
        """End all transfers and release the address."""
        self._loop.stop(self._server.close())

    def _put(self, key: str, embedding: Embedding) -> None:
        try:
            self._server.put(key, embedding)
        except AllocationError as error:  # another width than the first one's
            log.error("an embedding cannot be published: %s", error)

    async def _open(self) -> EmbeddingServer:
        settings = self._settings
        server = EmbeddingServer(
            settings.allocator(self._max_item_tokens),
            self._token_bytes,
            settings.control_token.get_secret_value(),
            settings.embedding_transfer_timeout_seconds,
            encoded_first=True,
        )
        try:
            server.listen_tcp(settings.pod_ip, settings.embedding_port)
        except OSError:
            await server.close()
            raise
        return server


async def _nothing() -> None:
    pass
