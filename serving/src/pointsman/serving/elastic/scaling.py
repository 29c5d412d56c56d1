"""Step 4 of a round: on how many instances requests decode (LoongServe, arXiv 2404.09526, scaling plan).

*Down*, without moving KV: before a prefill its batch gets the fewest instances that can hold its KV and the room for
the next tokens. Decoding gains little from more. They keep these tokens while KV circulates in the prefill.

*Up*, without moving KV: an instance joins a decode batch as a further master. There are two triggers.

* Memory: the batch stores more tokens in the next iteration than its instances have free slots. It is merged with
  decode batches that have room, then idle instances join. If that is not enough, its youngest requests pause.
* Compute: the batch has more requests per instance than ``Settings.requests_per_master`` and instances are idle.

Each request of an iteration has one master, which computes its token and stores the KV of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from pointsman.serving.elastic.memory import NoRoom
from pointsman.serving.elastic.types import DecodeBatch, Instance, RunningRequest, Settings
from pointsman.serving.words import quantity

Owners = tuple[tuple[str, int], ...]
"""(instance, tokens) in order of positions: the first instance keeps the first so many tokens, and so on."""


@dataclass(frozen=True, slots=True)
class DecodeIteration:
    """One token of each request in ``masters`` (request, instance), computed by the group of ``instances``.

    Requests in ``paused`` keep their KV on these instances and get no token in this iteration. ``added``: instances
    that join the group without holding KV of it.
    """

    instances: tuple[str, ...]
    masters: tuple[tuple[str, str], ...]
    paused: tuple[str, ...] = ()
    added: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """Decode iterations of disjoint groups, requests of batches without a free slot, and why."""

    iterations: tuple[DecodeIteration, ...]
    paused: tuple[str, ...]
    reasons: tuple[str, ...]


def choose_owners(
    prompts: Sequence[int], instances: Sequence[Instance], room_tokens: int, least: int = 1
) -> list[Owners]:
    """Which instances keep the KV of ``prompts`` (tokens each) after their prefill.

    The smallest set whose free slots hold all prompts and ``room_tokens`` more. If no set has the room, the smallest
    one that holds the prompts. Of that set, the instance with the fewest free slots is filled first, so that what
    stays free lies together. With ``least`` above 1 the set has so many instances, and each prompt is shared by them as
    evenly as their slots permit. Raises NoRoom.
    """
    total = sum(prompts)
    by_free = sorted(instances, key=lambda instance: (-instance.free_slots, instance.name))
    free = sum(instance.free_slots for instance in by_free)
    if free < total:
        raise NoRoom(f"{total} prompt tokens do not fit into {free} free slots")
    needed = total + room_tokens if free >= total + room_tokens else total
    chosen, slots = list[Instance](), 0
    while slots < needed or len(chosen) < min(least, len(by_free)):
        chosen.append(by_free[len(chosen)])
        slots += chosen[-1].free_slots
    chosen.reverse()
    if least > 1:
        return _shared(prompts, chosen)
    left = [instance.free_slots for instance in chosen]
    position, owners = 0, list[Owners]()
    for tokens in prompts:
        of_prompt = []
        while tokens:
            while not left[position]:
                position += 1
            count = min(tokens, left[position])
            of_prompt.append((chosen[position].name, count))
            left[position] -= count
            tokens -= count
        owners.append(tuple(of_prompt))
    return owners


def _shared(prompts: Sequence[int], instances: Sequence[Instance]) -> list[Owners]:
    """Each prompt in shares that are as even as the slots permit; ``instances``: the fewest free slots first."""
    left = {instance.name: instance.free_slots for instance in instances}
    owners = list[Owners]()
    for tokens in prompts:
        of_prompt = list[tuple[str, int]]()
        for sharers, name in zip(range(len(instances), 0, -1), sorted(left, key=lambda each: left[each]), strict=True):
            count = min(left[name], ceil(tokens / sharers))
            tokens -= count
            left[name] -= count
            if count:
                of_prompt.append((name, count))
        owners.append(tuple(of_prompt))
    return owners


def choose_masters(
    requests: Sequence[RunningRequest], free_slots: Mapping[str, int], requests_per_master: int
) -> dict[str, str]:
    """The master of each request: instance by id.

    Instances are taken by free slots, the fewest first. Each masters the smallest of: the requests left, its free
    slots, and the larger of an equal share of the requests left and ``requests_per_master``. In this order all
    requests get a master if there is a free slot for each; in another order an instance that is nearly full can come
    last. An instance masters those requests that have the most KV there, which spares sending queries.
    Raises NoRoom.
    """
    if sum(free_slots.values()) < len(requests):
        raise NoRoom(f"{len(requests)} next tokens do not fit into {sum(free_slots.values())} free slots")
    masters: dict[str, str] = {}
    left = list(requests)
    order = sorted(free_slots, key=lambda name: (free_slots[name], name))
    for position, name in enumerate(order):
        share = ceil(len(left) / (len(order) - position))
        count = min(len(left), free_slots[name], max(share, requests_per_master))
        left.sort(key=lambda request: -request.tokens_by_instance.get(name, 0))
        masters.update((request.id, name) for request in left[:count])
        left = left[count:]
    return masters


def plan_decoding(
    batches: Sequence[DecodeBatch], idle: Sequence[Instance], stepping: set[str], settings: Settings
) -> DecodePlan:
    """One iteration of each batch; ``stepping``: requests that may get a token, ``idle``: instances that may join."""
    groups = [_Group(list(batch.instances), list(batch.requests), stepping) for batch in batches]
    spare = sorted((each for each in idle if each.free_slots), key=lambda each: (-each.free_slots, each.name))
    reasons: list[str] = []
    for group in sorted(groups, key=lambda each: each.oldest_s):
        if group.merged or not group.stepping:
            continue
        while group.deficit > 0:
            partner = max(
                (each for each in groups if each is not group and not each.merged and each.deficit < 0),
                key=lambda each: -each.deficit,
                default=None,
            )
            if partner is None:
                break
            reasons.append(
                f"The decode batches on {group.names} and {partner.names} merge: "
                f"the first one lacks {quantity(group.deficit, 'slot')}, the other one has {-partner.deficit} to spare."
            )
            group.merge(partner)
        while group.deficit > 0 and spare:
            joining = spare.pop(0)
            reasons.append(
                f"{joining.name} joins the decode batch on {group.names}, "
                f"which lacks {quantity(group.deficit, 'slot')}."
            )
            group.add(joining)
    for group in groups:
        while not group.merged and group.stepping and len(group.instances) < settings.min_degree and spare:
            group.add(spare.pop(0))
    for group in groups:
        if group.merged or not group.stepping:
            continue
        missing = ceil(len(group.stepping) / settings.requests_per_master) - len(group.usable)
        while missing > 0 and spare:
            joining = spare.pop(0)
            reasons.append(
                f"{joining.name} joins the decode batch on {group.names}: {len(group.stepping)} requests are more than "
                f"{settings.requests_per_master} per instance."
            )
            group.add(joining)
            missing -= 1
    iterations, paused = [], list[str]()
    for group in groups:
        if group.merged:
            continue
        lacking = max(group.deficit, 0)
        if lacking:
            reasons.append(
                f"{quantity(lacking, 'request')} on {group.names} must wait, the youngest first: no slot is free."
            )
        active = sorted(group.stepping, key=lambda request: request.arrival_s)[: len(group.stepping) - lacking]
        active_ids = {request.id for request in active}
        resting = tuple(request.id for request in group.requests if request.id not in active_ids)
        if not active:
            paused += resting
            continue
        free = {instance.name: instance.free_slots for instance in group.instances}
        masters = choose_masters(active, free, settings.requests_per_master)
        iterations.append(
            DecodeIteration(
                tuple(free),
                tuple((request.id, masters[request.id]) for request in active),
                resting,
                tuple(instance.name for instance in group.added),
            )
        )
    return DecodePlan(tuple(iterations), tuple(paused), tuple(reasons))


class _Group:
    """A decode batch that grows by other batches and idle instances."""

    def __init__(self, instances: list[Instance], requests: list[RunningRequest], stepping: set[str]) -> None:
        self.instances = instances
        self.requests = requests
        self.stepping = [request for request in requests if request.id in stepping]
        self.added: list[Instance] = []
        self.merged = False
        self.oldest_s = min(request.arrival_s for request in requests)

    @property
    def deficit(self) -> int:
        """Slots that the next iteration lacks; below 0: that it leaves."""
        return len(self.stepping) - sum(instance.free_slots for instance in self.instances)

    @property
    def usable(self) -> list[Instance]:
        """Instances that can be masters."""
        return [instance for instance in self.instances if instance.free_slots]

    @property
    def names(self) -> str:
        """Of its instances."""
        return ", ".join(instance.name for instance in self.instances)

    def merge(self, other: "_Group") -> None:
        """Take over the instances and requests of ``other``."""
        self.instances += other.instances
        self.requests += other.requests
        self.stepping += other.stepping
        self.added += other.added
        other.merged = True

    def add(self, instance: Instance) -> None:
        """Let an idle instance join."""
        self.instances.append(instance)
        self.added.append(instance)
