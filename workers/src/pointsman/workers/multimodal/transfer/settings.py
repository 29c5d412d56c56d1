"""Settings of the embedding buffer, from the environment (``POINTSMAN_*``)."""

from pydantic import Field, field_validator

from pointsman.process.errors import SettingsError
from pointsman.process.settings import ProcessSettings
from pointsman.workers.multimodal.transfer.allocator import (
    DEFAULT_BLOCK_SIZE,
    DEFAULT_BLOCKS,
    ReqToMetadataBlockAllocator,
)
from pointsman.workers.multimodal.transfer.data_paths import TRANSPORTS


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
    embedding_transfer_transports: str = Field(
        default=",".join(TRANSPORTS),
        description="Transports that may be used, best first. A connection uses the first one that both sides can use.",
    )

    @field_validator("embedding_transfer_transports")
    @classmethod
    def _known(cls, value: str) -> str:
        if not set(value.split(",")) <= set(TRANSPORTS):
            raise ValueError(f"it must be names of {', '.join(TRANSPORTS)}, separated by commas")
        return value

    @property
    def transports(self) -> tuple[str, ...]:
        """``embedding_transfer_transports``, one by one."""
        return tuple(self.embedding_transfer_transports.split(","))

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
