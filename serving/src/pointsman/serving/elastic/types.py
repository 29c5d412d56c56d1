"""What a round of the elastic manager reads: instances, waiting and running requests, and the settings.

Lengths are tokens and a slot holds the KV of one token. Times are seconds. Names of instances and requests are opaque.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from pointsman.serving.elastic.memory import SlotDemand
from pointsman.serving.objectives import Objectives


@dataclass(frozen=True, slots=True)
class Instance:
    """A model replica that can form groups with the other instances of its ``domain``.

    ``slots``: tokens of KV that its pool holds; ``used_slots``: of those in use, including the ones that an iteration
    under way will use. ``busy``: an iteration under way uses it, so it joins no group in this round. ``decoding``: that
    iteration is a token of each request, so it ends soon. ``draining``: it gets no new tokens.
    ``admits_until_s``: requests that arrived later are not prefilled here; None: no limit. ``domain``: the largest set
    of instances that may work together, for example maxDegree consecutive ordinals, or the instances of one node.
    """

    name: str
    slots: int
    used_slots: int = 0
    domain: int = 0
    busy: bool = False
    draining: bool = False
    admits_until_s: float | None = None
    decoding: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.used_slots <= self.slots:
            raise ValueError(f"instance {self.name}: used_slots is {self.used_slots}; it must be 0 to {self.slots}")

    @property
    def free_slots(self) -> int:
        """Slots that new tokens can use; 0 while it drains."""
        return 0 if self.draining else self.slots - self.used_slots


@dataclass(frozen=True, slots=True)
class WaitingRequest:
    """A request without KV.

    ``arrival_s``: on any clock that all requests share. ``overtaken``: later requests that were admitted before it in
    earlier rounds. ``ttft_left_s``: time left until its TTFT objective is missed, None without an objective.
    """

    id: str
    prompt_tokens: int
    max_output_tokens: int
    arrival_s: float
    overtaken: int = 0
    ttft_left_s: float | None = None

    def __post_init__(self) -> None:
        for field in ("prompt_tokens", "max_output_tokens"):
            if getattr(self, field) < 1:
                raise ValueError(f"request {self.id}: {field} is {getattr(self, field)}; it must be at least 1")

    @property
    def demand(self) -> SlotDemand:
        """After its prefill. The prefill produces the first output token, and the KV of the last one is not stored."""
        return SlotDemand(self.prompt_tokens, self.max_output_tokens - 1)


@dataclass(frozen=True, slots=True)
class RunningRequest:
    """A request with KV, or one whose prefill is under way (``generated_tokens`` is 0 then).

    ``max_kv_tokens``: prompt and most output less one, because the KV of the last output token is not stored.
    ``tokens_by_instance``: tokens of KV on each instance that holds some, including those that an iteration under way
    will store. ``decode_s``: time since its prefill ended.
    """

    id: str
    max_kv_tokens: int
    arrival_s: float
    generated_tokens: int
    decode_s: float
    tokens_by_instance: Mapping[str, int]

    @property
    def tokens(self) -> int:
        """Tokens of KV on all instances."""
        return sum(self.tokens_by_instance.values())

    @property
    def demand(self) -> SlotDemand:
        """Slots now and until its end."""
        tokens = self.tokens
        return SlotDemand(tokens, max(self.max_kv_tokens - tokens, 0))


@dataclass(frozen=True, slots=True)
class DecodeBatch:
    """Requests that must decode together, because their KV lies on instances that they share; ``instances``: all."""

    instances: tuple[Instance, ...]
    requests: tuple[RunningRequest, ...]

    @property
    def free_slots(self) -> int:
        """Of all its instances."""
        return sum(instance.free_slots for instance in self.instances)

    @property
    def usable(self) -> tuple[Instance, ...]:
        """Instances that may prefill: those that do not drain."""
        return tuple(instance for instance in self.instances if not instance.draining)

    @property
    def names(self) -> tuple[str, ...]:
        """Of its instances."""
        return tuple(instance.name for instance in self.instances)


@dataclass(frozen=True, slots=True)
class Settings:
    """Bounds that the manager keeps to.

    ``max_prefill_s``: the compute tipping point; a batch that takes longer gets no further prompt (5 s in the paper's
    code). ``max_prefill_requests``: prompts admitted in a round; bounds the time of the batching. ``max_overtakes``:
    later requests that may be admitted before one that waits for slots, in all (0: strict first come, first served).
    ``max_scanned_requests``: waiting requests that a round considers. ``requests_per_master``: a decode batch with
    more per instance is limited by compute (128 in the paper's code). ``decode_room_tokens``: slots that the instances
    chosen after a prefill have left for each request, so that it does not scale up at once.
    ``min_degree``: instances of a group at least, of those that there are; above 1 only for who wants static groups.
    ``migration_s_per_token``: bytes of KV per token / bandwidth between instances; None: KV is moved for drains only.
    ``objectives``: for which decode batches also pause; None: by Gain > Cost alone.
    """

    max_prefill_s: float = 5.0
    max_prefill_requests: int = 64
    max_overtakes: int = 16
    max_scanned_requests: int = 256
    requests_per_master: int = 128
    decode_room_tokens: int = 16
    min_degree: int = 1
    migration_s_per_token: float | None = None
    objectives: Objectives | None = None

    def __post_init__(self) -> None:
        for field, smallest in (
            ("max_prefill_requests", 1),
            ("max_overtakes", 0),
            ("max_scanned_requests", 1),
            ("requests_per_master", 1),
            ("decode_room_tokens", 0),
            ("min_degree", 1),
        ):
            if getattr(self, field) < smallest:
                raise ValueError(f"{field} is {getattr(self, field)}; it must be at least {smallest}")
        if not self.max_prefill_s > 0:
            raise ValueError(f"max_prefill_s is {self.max_prefill_s}; it must be above 0")
        if self.migration_s_per_token is not None and self.migration_s_per_token < 0:
            raise ValueError(f"migration_s_per_token is {self.migration_s_per_token}; it must be 0 or more")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that a round knows. ``mean_decode_s``: mean decode time of finished requests (the paper's AvgLat_d), or None.

    Raises ValueError if names repeat, if a request has KV on an unknown instance, in two domains, or in more slots
    than its instance uses.
    """

    instances: tuple[Instance, ...]
    waiting: tuple[WaitingRequest, ...] = ()
    running: tuple[RunningRequest, ...] = ()
    mean_decode_s: float | None = None

    def __post_init__(self) -> None:
        by_name = {instance.name: instance for instance in self.instances}
        if len(by_name) < len(self.instances):
            raise ValueError("two instances have the same name")
        ids = [request.id for request in self.waiting] + [request.id for request in self.running]
        if len(set(ids)) < len(ids):
            raise ValueError("two requests have the same id")
        tokens = dict.fromkeys(by_name, 0)
        for request in self.running:
            if not request.tokens_by_instance:
                raise ValueError(f"running request {request.id} has no KV; it must wait")
            for name, count in request.tokens_by_instance.items():
                if name not in by_name:
                    raise ValueError(f"request {request.id} has KV on unknown instance {name}")
                if count < 1:
                    raise ValueError(f"request {request.id} has {count} tokens on {name}; it must be at least 1")
                tokens[name] += count
            if len({by_name[name].domain for name in request.tokens_by_instance}) > 1:
                raise ValueError(f"request {request.id} has KV in more than one domain")
        for name, count in tokens.items():
            if count > by_name[name].used_slots:
                raise ValueError(f"instance {name}: requests have {count} tokens in {by_name[name].used_slots} slots")


def form_decode_batches(instances: Iterable[Instance], requests: Iterable[RunningRequest]) -> list[DecodeBatch]:
    """The smallest disjoint groups of ``instances`` in which every one of ``requests`` finds all of its KV.

    A query goes to every instance that holds KV of its request. Requests that share an instance therefore share a
    group. Requests and instances keep their order; batches are ordered by their first request.
    """
    by_name = {instance.name: instance for instance in instances}
    group_of: dict[str, set[str]] = {}
    ordered = list(requests)
    for request in ordered:
        merged = set[str]().union(*(group_of.get(name, {name}) for name in request.tokens_by_instance))
        for name in merged:
            group_of[name] = merged
    members: dict[int, list[RunningRequest]] = {}
    for request in ordered:
        members.setdefault(id(group_of[next(iter(request.tokens_by_instance))]), []).append(request)
    batches = []
    for of_group in members.values():
        names = group_of[next(iter(of_group[0].tokens_by_instance))]
        batches.append(DecodeBatch(tuple(by_name[name] for name in by_name if name in names), tuple(of_group)))
    return batches


@dataclass(frozen=True, slots=True)
class Move:
    """``tokens`` of a request's KV are handed over from instance ``source`` to ``target``; ``why``: drain or vacate.

    The engine hands over the tokens that the source got last. Two moves of one request from one source therefore must
    not be executed at the same time: both would send the same tokens.
    """

    request: str
    source: str
    target: str
    tokens: int
    why: str


def move_tokens(requests: Iterable[RunningRequest], moves: Iterable[Move]) -> list[RunningRequest]:
    """``requests`` with their KV where it is after ``moves``."""
    listed = list(requests)
    tokens = {request.id: dict(request.tokens_by_instance) for request in listed}
    for move in moves:
        of_request = tokens[move.request]
        of_request[move.source] -= move.tokens
        of_request[move.target] = of_request.get(move.target, 0) + move.tokens
        if not of_request[move.source]:
            del of_request[move.source]
    return [replace(request, tokens_by_instance=tokens[request.id]) for request in listed]
