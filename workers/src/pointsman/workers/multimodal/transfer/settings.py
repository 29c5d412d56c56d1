"""Settings of the embedding buffer, from the environment (``POINTSMAN_*``)."""

from pydantic import Field

from pointsman.process.errors import SettingsError
from pointsman.process.settings import ProcessSettings
from pointsman.workers.multimodal.transfer.allocator import (
    DEFAULT_BLOCK_SIZE,
    DEFAULT_BLOCKS,
    ReqToMetadataBlockAllocator,
)


class EmbeddingTransferSettings(ProcessSettings):
    """How large the embedding buffer is, how it is divided, and how long a transfer may stand still."""

    multimodal_block_size: int = Field(default=DEFAULT_BLOCK_SIZE, ge=1, description="Tokens of one block.")
    default_multimodal_blocks: int = Field(
        default=DEFAULT_BLOCKS, ge=1, description="Blocks that are reserved for an embedding of unknown length."
    )
    embedding_cache_buffer_size: int = Field(
        default=64, ge=1, description="Requests of the longest length that the embedding buffer holds."
    )
    embedding_transfer_timeout_seconds: float = Field(
        default=30.0, gt=0, description="Longest time without progress after which a transfer fails."
    )

    def allocator(self, max_request_tokens: int) -> ReqToMetadataBlockAllocator:
        """The blocks of a buffer for requests of at most ``max_request_tokens``.

        Raises SettingsError if the buffer has no block beside one default reservation.
        """
        total_tokens = self.embedding_cache_buffer_size * max_request_tokens
        needed_tokens = (self.default_multimodal_blocks + 1) * self.multimodal_block_size
        if total_tokens < needed_tokens:
            raise SettingsError(
                f"POINTSMAN_EMBEDDING_CACHE_BUFFER_SIZE: {self.embedding_cache_buffer_size} requests of "
                f"{max_request_tokens} tokens are {total_tokens} tokens: they must be at least {needed_tokens}, one "
                f"block more than POINTSMAN_DEFAULT_MULTIMODAL_BLOCKS ({self.default_multimodal_blocks}) blocks of "
                f"POINTSMAN_MULTIMODAL_BLOCK_SIZE ({self.multimodal_block_size}) tokens"
            )
        return ReqToMetadataBlockAllocator(total_tokens, self.multimodal_block_size, self.default_multimodal_blocks)
