"""Fetches one embedding, to see that a worker serves it."""

from pointsman.workers.multimodal.exchange.references import EmbeddingReference
from pointsman.workers.multimodal.transfer.allocator import ReqToMetadataBlockAllocator
from pointsman.workers.multimodal.transfer.buffers import Embedding
from pointsman.workers.multimodal.transfer.client import EmbeddingClient

_BLOCK_TOKENS = 128
_TIMEOUT_S = 10.0


async def fetch_once(reference: EmbeddingReference, token: str) -> Embedding:
    """The embedding, over a connection of its own. Raises TransferError."""
    blocks = -(-reference.num_tokens // _BLOCK_TOKENS)
    allocator = ReqToMetadataBlockAllocator((blocks + 1) * _BLOCK_TOKENS, _BLOCK_TOKENS, blocks)
    client = EmbeddingClient(
        allocator, reference.token_bytes, token, _TIMEOUT_S, max_request_tokens=reference.num_tokens
    )
    try:
        return await client.fetch(reference.address, reference.key, reference.num_tokens)
    finally:
        await client.close()
