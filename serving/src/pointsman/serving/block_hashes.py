"""Chained hashes of KV blocks.

A block's hash covers its tokens and the hash of the block before it, so one 64-bit number names a whole prefix (as in
vLLM's prefix caching and Dynamo's KV indexer). Ours are xxh3 with a seed over the tokens as little-endian u32: they are
computed by gateway and worker from token ids, and are independent of the engine's own hash algorithm.
"""

import sys
from array import array
from collections.abc import Sequence

import xxhash

SEED = 1337  # Dynamo's compute_block_hash_for_seq uses the same seed for its local hashes
_ADAPTER_SEED = SEED + 1


def chained_block_hashes(
    token_ids: Sequence[int],
    block_size: int,
    *,
    parent: int | None = None,
    salt: str | None = None,
    adapter: str | None = None,
) -> list[int]:
    """Hashes of the full blocks of ``token_ids``, in order; a rest shorter than a block has none.

    ``parent``: the hash of the block before the first one (None at the start of a prompt). ``salt`` (a request's
    ``cache_salt``) keeps tenants' caches apart, ``adapter`` (a LoRA adapter's served name) those of adapters; both
    seed the first block of a prompt and thereby all that follow it. Raises ValueError for a block size below 1.
    """
    if block_size < 1:
        raise ValueError(f"block_size is {block_size}: it must be at least 1")
    packed = array("I", token_ids)
    if sys.byteorder == "big":
        packed.byteswap()
    data = memoryview(packed).cast("B")
    width = block_size * 4
    previous = parent if parent is not None else _root(salt, adapter)
    hashes: list[int] = []
    digest = xxhash.xxh3_64_intdigest
    for start in range(0, len(data) - width + 1, width):
        previous = digest(previous.to_bytes(8, "little") + data[start : start + width], SEED)
        hashes.append(previous)
    return hashes


def _root(salt: str | None, adapter: str | None) -> int:
    digest = xxhash.xxh3_64_intdigest
    if adapter:
        # Another seed and a fixed width: no salt gives the root of an adapter.
        return digest(
            digest(adapter.encode(), _ADAPTER_SEED).to_bytes(8, "little") + (salt or "").encode(), _ADAPTER_SEED
        )
    return digest(salt.encode(), SEED) if salt else 0
