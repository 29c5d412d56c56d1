"""Settings of the embedding buffer, from the environment (``POINTSMAN_*``)."""

from pydantic import Field, field_validator

from pointsman.process.settings import ProcessSettings
from pointsman.workers.multimodal.transfer.allocator import DEFAULT_BLOCK_SIZE, DEFAULT_BLOCKS
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
