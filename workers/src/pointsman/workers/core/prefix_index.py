"""Which prefixes the own engine has in its KV cache, from its KV events.

The engine names blocks by hashes of its own (algorithm, seed and width are its affair). The events carry each block's
tokens and its parent, so every engine hash is mapped to the chained hash of ``pointsman.serving.block_hashes``, which
a prompt's tokens alone give. A block whose parent is unknown is left out: the index may miss a hit, never invent one.
vLLM reports every physical block, and several may have one hash, so the copies of a hash are counted.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pointsman.serving.block_hashes import chained_block_hashes

EngineHash = int | bytes


@dataclass(frozen=True, slots=True)
class BlocksStored:
    """vLLM's BlockStored: consecutive full blocks with their tokens; ``salt`` is of a prompt's first block.

    ``adapter`` is the served name of the LoRA adapter that computed them; None: the model itself.
    """

    block_hashes: tuple[EngineHash, ...]
    parent: EngineHash | None
    token_ids: Sequence[int]
    block_size: int
    salt: str | None = None
    adapter: str | None = None


@dataclass(frozen=True, slots=True)
class BlocksRemoved:
    """vLLM's BlockRemoved: one physical block of each hash is evicted."""

    block_hashes: tuple[EngineHash, ...]


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    """vLLM's AllBlocksCleared."""


KvEvent = BlocksStored | BlocksRemoved | AllBlocksCleared


@dataclass(frozen=True, slots=True)
class HashesStored:
    """The index now has these blocks: chained hashes in the order of a prompt.

    ``parent``: the block before the first; None: they begin a prompt.
    """

    parent: int | None
    hashes: Sequence[int]


@dataclass(frozen=True, slots=True)
class HashesRemoved:
    """The index no longer has these chained hashes."""

    hashes: Sequence[int]


@dataclass(frozen=True, slots=True)
class IndexCleared:
    """The index is empty."""


IndexChange = HashesStored | HashesRemoved | IndexCleared


class PrefixIndex:
    """The prefixes one engine holds."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._chained: dict[EngineHash, int] = {}
        self._more_copies: Counter[EngineHash] = Counter()  # physical blocks beyond the first of a hash
        self._held: dict[int, int | None] = {}  # chained hash -> that of the block before it
        self._followers: dict[int, int | set[int]] = {}  # chained hash, held or not -> the held blocks right after it

    def __len__(self) -> int:
        return len(self._held)

    def apply(self, events: Iterable[KvEvent]) -> list[IndexChange]:
        """Take in events, in order. Returns what they changed, in order."""
        changes: list[IndexChange] = []
        for event in events:
            match event:
                case BlocksStored():
                    changes += self._store(event)
                case BlocksRemoved(block_hashes=engine_hashes):
                    removed = self._remove(engine_hashes)
                    if removed:
                        changes.append(HashesRemoved(removed))
                case AllBlocksCleared():
                    changes.append(self.clear())
        return changes

    def clear(self) -> IndexCleared:
        """Forget everything: the cache was reset, or events were lost."""
        self._chained.clear()
        self._more_copies.clear()
        self._held.clear()
        self._followers.clear()
        return IndexCleared()

    def runs(self, slice_blocks: int) -> Iterator[list[HashesStored]]:
        """What the index has when the first list is asked for, as runs, each after the run that it follows.

        Between two lists lies the work on at most about ``slice_blocks`` blocks, so that a caller can pause there; the
        first ones are empty. Blocks whose prefix is gone are left out: nothing can hit them. The copy of the index is
        the only step that is not cut, a millisecond or two for 100 000 blocks.
        """
        hashes, parents = list(self._held), list(self._held.values())
        yield []
        heads: list[tuple[int | None, int]] = []  # first blocks of runs that are still to come
        following: dict[int, int] = {}
        siblings: dict[int, list[int]] = {}
        for start in range(0, len(hashes), slice_blocks):
            end = start + slice_blocks
            for block, parent in zip(hashes[start:end], parents[start:end], strict=True):
                if parent is None:
                    heads.append((None, block))
                elif parent not in following:
                    following[parent] = block
                else:
                    siblings.setdefault(parent, []).append(block)
            yield []
        ready: list[HashesStored] = []
        work = 0
        while heads:
            parent, block = heads.pop()
            run = [block]
            while len(run) < slice_blocks and (child := following.get(block)) is not None:
                if block in siblings:
                    heads += [(block, other) for other in siblings[block]]
                block = child
                run.append(block)
            if len(run) == slice_blocks and block in following:
                heads += [(block, child) for child in (following[block], *siblings.get(block, ()))]
            ready.append(HashesStored(parent, run))
            work += len(run)
            if work >= slice_blocks:
                yield ready
                ready, work = [], 0
        yield ready

    def cached_tokens(self, token_ids: Sequence[int], salt: str | None = None, adapter: str | None = None) -> int:
        """Length in tokens of the longest prefix of ``token_ids`` the engine holds, in whole blocks."""
        if not self._held:
            return 0
        blocks = 0
        for chained in chained_block_hashes(token_ids, self._block_size, salt=salt, adapter=adapter):
            if chained not in self._held:
                break
            blocks += 1
        return blocks * self._block_size

    def _store(self, event: BlocksStored) -> Iterator[HashesStored]:
        if event.block_size != self._block_size:
            return
        parent: int | None = None
        if event.parent is not None:
            parent = self._chained.get(event.parent)
            if parent is None:
                return
        chain = chained_block_hashes(
            event.token_ids, self._block_size, parent=parent, salt=event.salt, adapter=event.adapter
        )
        self._more_copies.update(name for name in event.block_hashes if name in self._chained)
        self._chained.update(zip(event.block_hashes, chain, strict=False))
        held, filled = self._held, None
        for block, before in zip(chain, (parent, *chain), strict=False):
            if block not in held:
                if filled is None and block in self._followers:
                    filled = block
                held[block] = before
                if before is not None and self._followers.setdefault(before, block) != block:
                    self._add_follower(before, block)
        yield HashesStored(parent, chain)
        if filled is not None:  # a subscriber dropped what follows a hole, and the engine does not store it again
            yield from self._runs_behind(filled)

    def _runs_behind(self, block: int) -> Iterator[HashesStored]:
        """What the index has behind ``block``, as runs, each after the run that it follows."""
        heads = [(block, follower) for follower in self._followers_of(block)]
        while heads:
            parent, block = heads.pop()
            run = [block]
            while followers := self._followers_of(block):
                heads += [(block, other) for other in followers[1:]]
                block = followers[0]
                run.append(block)
            yield HashesStored(parent, run)

    def _followers_of(self, block: int) -> Sequence[int]:
        followers = self._followers.get(block, ())
        return (followers,) if isinstance(followers, int) else tuple(followers)

    def _add_follower(self, before: int, block: int) -> None:
        followers = self._followers[before]
        if isinstance(followers, set):
            followers.add(block)
        else:
            self._followers[before] = {followers, block}

    def _remove_follower(self, before: int, block: int) -> None:
        followers = self._followers[before]
        if isinstance(followers, set) and len(followers) > 1:
            followers.discard(block)
        else:
            del self._followers[before]

    def _remove(self, engine_hashes: Iterable[EngineHash]) -> list[int]:
        removed = []
        for engine_hash in engine_hashes:
            if more := self._more_copies.pop(engine_hash, 0):
                if more > 1:
                    self._more_copies[engine_hash] = more - 1
                continue
            chained = self._chained.pop(engine_hash, None)
            if chained is not None:
                before = self._held.pop(chained, None)
                if before is not None:
                    self._remove_follower(before, chained)
                removed.append(chained)
        return removed
