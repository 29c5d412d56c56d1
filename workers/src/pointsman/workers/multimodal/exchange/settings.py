"""Settings of the exchange of embeddings, from the environment of the worker (``POINTSMAN_*``, ``POD_IP``)."""

from pydantic import AliasChoices, Field, SecretStr

from pointsman.api.protocol import names
from pointsman.workers.multimodal.transfer.allocator import ReqToMetadataBlockAllocator
from pointsman.workers.multimodal.transfer.data_paths import TCP
from pointsman.workers.multimodal.transfer.settings import EmbeddingTransferSettings


class ExchangeSettings(EmbeddingTransferSettings):
    """Where embeddings are served, how long one is waited for, and how much memory they may take."""

    pod_ip: str = Field(default="127.0.0.1", validation_alias=AliasChoices("pod_ip", names.ENV_POD_IP))
    control_token: SecretStr = Field(min_length=16)
    embedding_transfer_transports: str = Field(
        default=TCP,
        description="Transports that may be used, best first. TCP needs one port and the token; NIXL opens ports of "
        "UCX that need no token.",
    )
    embedding_cache_buffer_size: int = Field(
        default=4, ge=1, description="Embeddings of the longest length that are under way at once, if memory allows."
    )
    embedding_port: int = Field(
        default=names.EMBEDDING_PORT, ge=1, le=65535, description="Where an encode worker serves its embeddings."
    )
    embedding_fetch_timeout_seconds: float = Field(
        default=3.0, gt=0, description="Longest wait for an embedding; then the engine encodes the image itself."
    )
    embedding_cache_mib: int = Field(
        default=512, ge=1, description="Most memory for embeddings that wait to be fetched or wait for the engine."
    )

    @property
    def max_bytes(self) -> int:
        """``embedding_cache_mib`` in bytes."""
        return self.embedding_cache_mib * 2**20

    @property
    def address(self) -> str:
        """Of the transfer server of this pod."""
        host = f"[{self.pod_ip}]" if ":" in self.pod_ip else self.pod_ip
        return f"{host}:{self.embedding_port}"

    def allocator(self, max_item_tokens: int, token_bytes: int) -> ReqToMetadataBlockAllocator:
        """Of the buffer that embeddings of ``token_bytes`` a token pass through; none is longer than
        ``max_item_tokens``. It has about ``max_bytes`` at most, since no more are under way at once.
        """
        size, default = self.multimodal_block_size, self.default_multimodal_blocks
        tokens = min(self.embedding_cache_buffer_size * max_item_tokens, self.max_bytes // token_bytes)
        blocks = max(-(-tokens // size), default) + 1  # reservations leave one block free
        return ReqToMetadataBlockAllocator(blocks * size, size, default)
