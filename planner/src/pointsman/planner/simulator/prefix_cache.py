"""Which prefixes a worker still holds: blocks by id, least recently used goes first."""

from collections import OrderedDict
from collections.abc import Sequence


class PrefixBlocks:
    """The blocks of one worker, at most ``capacity``, the oldest in front.

    They live as long as the worker: a switch of role keeps them, for the engine and its KV cache go on.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._blocks: OrderedDict[int, None] = OrderedDict()  # of a dict, finding the oldest takes ever longer

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
            held[block] = None
            held.move_to_end(block)
        while len(held) > self._capacity:
            held.popitem(last=False)
