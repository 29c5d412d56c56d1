"""The KV of one instance: a slot for each token, handed out one at a time."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pointsman.workers.elastic.engine.architecture import Shape


class PoolFull(RuntimeError):
    """More tokens than free slots. The manager plans within what is free, so a plan was wrong."""


@dataclass(slots=True)
class Held:
    """What one request has here: ``slots`` and the ``positions`` of their tokens, of which the first ``count`` hold.

    Both in the host's memory: to write or read one number on a GPU takes as long there as to compute a layer.
    """

    slots: torch.Tensor
    positions: torch.Tensor
    count: int = 0


class KvPool:
    """Keys and values of ``slots`` tokens in all layers.

    A token's keys are stored rotated, so attention needs no order and no positions: a request's tokens may lie in any
    slots, and on any instances. Positions are kept for who takes tokens over.
    """

    def __init__(self, shape: Shape, slots: int, dtype: torch.dtype, device: torch.device) -> None:
        size = (shape.layers, slots, shape.kv_heads, shape.head_size)
        self._keys = torch.zeros(size, dtype=dtype, device=device)
        self._values = torch.zeros(size, dtype=dtype, device=device)
        self._free = list(range(slots - 1, -1, -1))
        self._held: dict[str, Held] = {}
        self._device = device

    @property
    def free(self) -> int:
        """Slots that hold no token."""
        return len(self._free)

    @property
    def requests(self) -> dict[str, int]:
        """Tokens that each request has here."""
        return {request: held.count for request, held in self._held.items()}

    def positions(self, request: str) -> torch.Tensor:
        """Positions (tokens,) of what ``request`` has here, in the order of its slots."""
        held = self._held.get(request)
        return torch.empty(0, dtype=torch.long) if held is None else held.positions[: held.count]

    def slots(self, requests: Sequence[str]) -> tuple[torch.Tensor, list[int]]:
        """Slots (tokens,) of ``requests``, one after another, and how many tokens each of them has here."""
        found = [
            torch.empty(0, dtype=torch.long) if held is None else held.slots[: held.count]
            for held in map(self._held.get, requests)
        ]
        return torch.cat([torch.empty(0, dtype=torch.long), *found]).to(self._device), [len(each) for each in found]

    def allocate(self, request: str, positions: Sequence[int]) -> list[int]:
        """Slots for more tokens of ``request``, one for each position. Raises PoolFull, and takes none then."""
        more = len(positions)
        if more > len(self._free):
            raise PoolFull(f"{more} tokens of request {request} do not fit: {len(self._free)} slots are free")
        if more == 0:
            return []
        taken = [self._free.pop() for _ in range(more)]
        held = self._held.get(request)
        if held is None:
            nothing = torch.empty(0, dtype=torch.long)
            held = self._held[request] = Held(nothing, nothing)
        end = held.count + more
        if end > len(held.slots):
            held.slots = _longer(held.slots, 2 * end)
            held.positions = _longer(held.positions, 2 * end)
        held.slots[held.count : end] = torch.tensor(taken)
        held.positions[held.count : end] = torch.tensor(positions)
        held.count = end
        return taken

    def release_last(self, request: str, tokens: int) -> None:
        """Free the slots that ``request`` got last, ``tokens`` of them."""
        held = self._held[request]
        if tokens >= held.count:
            self.release(request)
            return
        self._free.extend(held.slots[held.count - tokens : held.count].tolist())
        held.count -= tokens

    def undo(self, request: str, position: int) -> None:
        """Free the slot of that token of ``request``, if it is the last one that it got here."""
        held = self._held.get(request)
        if held is not None and int(held.positions[held.count - 1]) == position:
            self.release_last(request, 1)

    def last(self, request: str, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Positions (tokens,) and KV (2, layers, tokens, kv_heads, head_size) that ``request`` got last; copies."""
        held = self._held[request]
        part = slice(held.count - tokens, held.count)
        slots = held.slots[part].to(self._device)
        return held.positions[part].clone(), torch.stack((self._keys[:, slots], self._values[:, slots]))

    def room_for(self, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Empty tensors for what another pool's `last` gives of so many tokens."""
        layers, _, heads, size = self._keys.shape
        return torch.empty(tokens, dtype=torch.long), self._keys.new_empty((2, layers, tokens, heads, size))

    def check_room(self, tokens: int) -> None:
        """Raises PoolFull where so many tokens do not fit."""
        if tokens > len(self._free):
            raise PoolFull(f"{tokens} tokens do not fit: {len(self._free)} slots are free")

    def take(self, request: str, positions: torch.Tensor, both: torch.Tensor) -> None:
        """Store what another pool's `last` gave. Raises PoolFull."""
        slots = torch.tensor(self.allocate(request, positions.tolist()), dtype=torch.long, device=self._device)
        self._keys[:, slots], self._values[:, slots] = both[0], both[1]

    def store(self, layer: int, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Write the tokens of ``slots`` in one layer; keys and values are (tokens, kv_heads, head_size)."""
        self._keys[layer, slots] = keys
        self._values[layer, slots] = values

    def read(self, layer: int, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of ``slots`` in one layer."""
        return self._keys[layer, slots], self._values[layer, slots]

    def release(self, request: str) -> int:
        """Free all that ``request`` has here. Returns how many tokens that were; 0 for one it does not know."""
        held = self._held.pop(request, None)
        if held is None:
            return 0
        self._free.extend(held.slots[: held.count].tolist())
        return held.count


def _longer(values: torch.Tensor, length: int) -> torch.Tensor:
    longer = values.new_empty(length)
    longer[: len(values)] = values
    return longer
