"""Which encode worker an image goes to: the one that has its embedding, unless it is busy, else the least loaded.

The worker that has the embedding gets the image unless another one has less to do by more than the image itself. Of
workers that are loaded alike, every gateway draws the same one for the same image (rendezvous hashing). So gateways
meet each other's embeddings.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from pointsman.gateway.types import WorkerKey


@dataclass(frozen=True, slots=True)
class Encoder:
    """A candidate. ``pending_tokens``: of images that this gateway sent there and that are not encoded yet."""

    key: WorkerKey
    pending_tokens: int


def choose_encoder(image: str, tokens: int, encoders: Sequence[Encoder], holder: WorkerKey | None) -> WorkerKey:
    """The worker for ``image``, of so many tokens, which ``holder`` has. Raises ValueError for no candidates."""
    least = min(encoder.pending_tokens for encoder in encoders)
    having = next((encoder for encoder in encoders if encoder.key == holder), None)
    if having is not None and having.pending_tokens <= least + tokens:
        return having.key
    idlest = (encoder.key for encoder in encoders if encoder.pending_tokens == least)
    return max(idlest, key=lambda key: hashlib.sha256(f"{image}/{key}".encode()).digest())
