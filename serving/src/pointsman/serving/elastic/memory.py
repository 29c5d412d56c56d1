"""Slots that requests will need, and which instances keep which tokens. All counts are tokens, a slot holds one."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


class NoRoom(ValueError):
    """More tokens than slots."""


@dataclass(frozen=True, slots=True)
class Holding:
    """A request that holds ``held`` tokens and may still produce ``left``."""

    held: int
    left: int


def most_slots(requests: Iterable[Holding]) -> int:
    """The most slots that ``requests`` hold together at any time, each running to its end.

    When the one that runs i-th longest ends, i requests hold what they had and as many tokens each as that one had
    left. So the most is the largest such sum: with these slots nothing is ever evicted (LoongServe's future-memory
    bound, from LightLLM).
    """
    most = held = 0
    for alive, request in enumerate(sorted(requests, key=lambda each: each.left, reverse=True), 1):
        held += request.held
        most = max(most, held + alive * request.left)
    return most


def kept_by(prompts: Sequence[int], free_slots: Sequence[int], room: int) -> list[list[tuple[int, int]]]:
    """Who keeps the KV of ``prompts`` (tokens each) after their prefill: for each, (instance, tokens) in order.

    As few instances as can hold them all with ``room`` slots more for the tokens that follow: a group decodes best on
    few instances (the paper's scaling plan, section 5.3, step 4). Those with the most free slots are taken; each is
    filled before the next one. The others are free after the prefill. Raises NoRoom.
    """
    needed = sum(prompts) + room
    order = sorted(range(len(free_slots)), key=lambda instance: (-free_slots[instance], instance))
    chosen, slots = [], 0
    for instance in order:
        if slots >= needed:
            break
        chosen.append(instance)
        slots += free_slots[instance]
    if slots < needed:
        raise NoRoom(f"{sum(prompts)} tokens and room for {room} do not fit in {slots} free slots")
    left = {instance: free_slots[instance] for instance in chosen}
    kept: list[list[tuple[int, int]]] = []
    for tokens in prompts:
        owners = []
        while tokens:
            instance = next(instance for instance in chosen if left[instance])
            count = min(tokens, left[instance])
            owners.append((instance, count))
            left[instance] -= count
            tokens -= count
        kept.append(owners)
    return kept
