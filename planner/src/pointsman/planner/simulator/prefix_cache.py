"""Which prefixes a worker still holds: blocks by id, least recently used goes first."""

from collections.abc import Sequence


class PrefixBlocks:
    """The blocks of one worker, at most ``capacity``.

    A Python dict keeps order of insertion: the front is the oldest.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._blocks: dict[int, None] = {}

    def matched(self, blocks: Sequence[int]) -> int:
        """How many leading ``blocks`` are held."""
        held = self._blocks
        for count, block in enumerate(blocks):
            if block not in held:
                return count
        return len(blocks)

    def hold(self, blocks: Sequence[int]) -> None:
        """``blocks`` were computed or pulled; the last of a prompt is forgotten before its first."""
        held = self._blocks
        for block in reversed(blocks):
            if block in held:
                del held[block]
            held[block] = None
        while len(held) > self._capacity:
            del held[next(iter(held))]

    def clear(self) -> None:
        """Forget everything (a switch of role drops the cache)."""
        self._blocks.clear()
