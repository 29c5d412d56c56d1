"""Which prefixes the own engine has in its KV cache, from its KV events.

The engine names blocks by hashes of its own (algorithm, seed and width are its affair). The events carry each block's
tokens and its parent, so every engine hash is mapped to the chained hash of ``pointsman.serving.block_hashes``, which
a prompt's tokens alone give. A block whose parent is unknown is left out: the index may miss a hit, never invent one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pointsman.serving.block_hashes import chained_block_hashes

EngineHash = int | bytes


@dataclass(frozen=True, slots=True)
class BlocksStored:
    """vLLM's BlockStored: consecutive full blocks with their tokens; ``salt`` is of a prompt's first block."""

    block_hashes: tuple[EngineHash, ...]
    parent: EngineHash | None
    token_ids: Sequence[int]
    block_size: int
    salt: str | None = None


@dataclass(frozen=True, slots=True)
class BlocksRemoved:
    """vLLM's BlockRemoved."""

    block_hashes: tuple[EngineHash, ...]


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    """vLLM's AllBlocksCleared."""


KvEvent = BlocksStored | BlocksRemoved | AllBlocksCleared


class PrefixIndex:
    """The prefixes one engine holds."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._chained: dict[EngineHash, int] = {}
        self._held: set[int] = set()

    def __len__(self) -> int:
        return len(self._held)

    def apply(self, events: Iterable[KvEvent]) -> None:
        """Take in events, in order."""
        for event in events:
            match event:
                case BlocksStored():
                    self._store(event)
                case BlocksRemoved(block_hashes=hashes):
                    for engine_hash in hashes:
                        chained = self._chained.pop(engine_hash, None)
                        if chained is not None:
                            self._held.discard(chained)
                case AllBlocksCleared():
                    self.clear()

    def clear(self) -> None:
        """Forget everything: the cache was reset, or events were lost."""
        self._chained.clear()
        self._held.clear()

    def cached_tokens(self, token_ids: Sequence[int], salt: str | None = None) -> int:
        """Length in tokens of the longest prefix of ``token_ids`` the engine holds, in whole blocks."""
        if not self._held:
            return 0
        blocks = 0
        for chained in chained_block_hashes(token_ids, self._block_size, salt=salt):
            if chained not in self._held:
                break
            blocks += 1
        return blocks * self._block_size

    def _store(self, event: BlocksStored) -> None:
        if event.block_size != self._block_size:
            return
        parent: int | None = None
        if event.parent is not None:
            parent = self._chained.get(event.parent)
            if parent is None:
                return
        chain = chained_block_hashes(event.token_ids, self._block_size, parent=parent, salt=event.salt)
        for engine_hash, chained in zip(event.block_hashes, chain, strict=False):
            self._chained[engine_hash] = chained
            self._held.add(chained)
