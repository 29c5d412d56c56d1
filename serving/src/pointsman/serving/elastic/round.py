"""One round of the elastic manager: the four steps of LoongServe (SOSP'24, arXiv 2404.09526) over a snapshot.

Dispatching, allocation, batching and the scaling plan follow one another for each domain, a set of instances that may
form groups. A request's KV stays within one domain. The domain with the most free slots on idle instances is offered
the queue first.

The result is a plan of iterations of disjoint groups. The caller executes ``moves`` first, in order. It counts the
slots that the iterations will use as used, and plans another round when one of them ends: instances of the others are
busy then. Where prompts gain from instances whose decode iteration ends soon, nothing begins until then. The same
snapshot gives the same plan.

No request that was admitted is evicted while the instances stay. Admission keeps to the paper's future-memory bound.
That bound assumes that all requests advance side by side, which is not so while a prefill pauses some of them. A
request therefore gets a token only if each request can still run to its end afterwards (``memory.choose_safe_steps``).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from pointsman.serving.elastic.allocation import Allocation, allocate, hand_over
from pointsman.serving.elastic.batching import split_prompts
from pointsman.serving.elastic.dispatching import Dispatch, count_overtakes, dispatch, spare_instances
from pointsman.serving.elastic.latency_model import LatencyModel
from pointsman.serving.elastic.memory import NoRoom, choose_safe_steps
from pointsman.serving.elastic.scaling import DecodeIteration, Owners, choose_owners, plan_decoding
from pointsman.serving.elastic.types import (
    DecodeBatch,
    Instance,
    Move,
    RunningRequest,
    Settings,
    Snapshot,
    WaitingRequest,
    form_decode_batches,
    move_tokens,
)
from pointsman.serving.words import quantity


@dataclass(frozen=True, slots=True)
class PrefillRequest:
    """A prompt of a batch. ``owners``: which instances keep its KV, chosen before the prefill."""

    id: str
    owners: Owners


@dataclass(frozen=True, slots=True)
class PrefillIteration:
    """The prefill of ``requests`` by the group of ``instances``, which takes about ``predicted_s``."""

    instances: tuple[str, ...]
    requests: tuple[PrefillRequest, ...]
    predicted_s: float


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """What the instances do next.

    ``paused``: running requests without a token in this round, besides those in ``DecodeIteration.paused``.
    ``recompute``: requests whose KV is freed and that wait again, because no running request can get a slot; this
    happens only after instances were lost. ``too_large``: waiting requests that the present instances can never hold,
    with a sentence each. ``overtaken``: the counts for the requests that wait on.
    """

    moves: tuple[Move, ...] = ()
    prefills: tuple[PrefillIteration, ...] = ()
    decodes: tuple[DecodeIteration, ...] = ()
    paused: tuple[str, ...] = ()
    recompute: tuple[str, ...] = ()
    too_large: dict[str, str] = field(default_factory=dict)
    overtaken: dict[str, int] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()


def plan_round(snapshot: Snapshot, model: LatencyModel, settings: Settings) -> RoundPlan:
    """Plan one round. ``settings``: bounds of the manager; ``model``: measured degrees, the only ones that are used."""
    domains = _domains(snapshot)
    queue = sorted(snapshot.waiting, key=lambda request: request.arrival_s)
    limits = _limits(domains, model)
    too_large = {request.id: sentence for request in queue if (sentence := _why_too_large(request, limits)) is not None}
    queue = [request for request in queue if request.id not in too_large]
    moves, prefills, decodes = list[Move](), list[PrefillIteration](), list[DecodeIteration]()
    paused, recompute, reasons = list[str](), list[str](), list[str]()
    for domain in sorted(domains, key=lambda each: -sum(instance.free_slots for instance in each.idle)):
        domain.drain()
        if domain.waits_for_others(queue, model, settings):
            moves += domain.moves
            reasons += [*domain.reasons, "Prompts wait for decode iterations under way: their instances are needed."]
            paused += [each.id for each in domain.settled]
            continue
        of_domain = domain.prefill(queue, snapshot.mean_decode_s, model, settings)
        admitted = {request.id for batch in of_domain for request in batch.requests}
        overtaken = count_overtakes(queue, admitted)
        queue = [replace(each, overtaken=overtaken[each.id]) for each in queue if each.id not in admitted]
        prefills += of_domain
        iterations, of_paused = domain.decode(of_domain, settings)
        if domain.stuck(of_domain, iterations) and domain.go_on_while_draining():
            iterations, of_paused = domain.decode(of_domain, settings)
        decodes += iterations
        paused += of_paused
        recompute += domain.recompute(of_domain, iterations)
        moves += domain.moves
        reasons += domain.reasons
    return RoundPlan(
        tuple(moves),
        tuple(prefills),
        tuple(decodes),
        tuple(each for each in paused if each not in recompute),
        tuple(recompute),
        too_large,
        {request.id: request.overtaken for request in queue},
        tuple(reasons),
    )


class _Domain:
    """Instances that may form groups, with their running requests, while a round is planned."""

    def __init__(self, instances: Sequence[Instance], running: Sequence[RunningRequest]) -> None:
        self.instances = list(instances)
        self.running = list(running)
        self.moves: list[Move] = []
        self.reasons: list[str] = []
        self._admitted: list[WaitingRequest] = []
        stored = dict.fromkeys((instance.name for instance in instances), 0)
        for request in running:
            for name, tokens in request.tokens_by_instance.items():
                stored[name] += tokens
        self._stored = stored
        self._busy = {instance.name for instance in instances if instance.busy}

    @property
    def slots(self) -> int:
        """That running requests can use in all; not those in use without one (a release under way)."""
        return sum(
            instance.slots - (instance.used_slots - self._stored[instance.name])
            for instance in self.instances
            if not instance.draining
        )

    @property
    def settled(self) -> list[RunningRequest]:
        """Running requests that no iteration under way uses."""
        return [each for each in self.running if self._busy.isdisjoint(each.tokens_by_instance)]

    @property
    def batches(self) -> list[DecodeBatch]:
        """Their decode batches. An instance that shares a request with a busy one belongs to none."""
        return form_decode_batches(self.instances, self.settled)

    @property
    def idle(self) -> list[Instance]:
        """Instances without KV that take part in no iteration."""
        in_use = {name for each in self.running for name in each.tokens_by_instance}
        return [each for each in self.instances if not (each.busy or each.draining or each.name in in_use)]

    def drain(self) -> None:
        """Hand the KV of draining instances over, as far as the other ones have room."""
        for source in [each for each in self.instances if each.draining and not each.busy]:
            batch = next((each for each in self.batches if source.name in each.names), None)
            if batch is None:
                continue
            targets = [each for each in self.instances if not (each.busy or each.draining)]
            moves, _ = hand_over(source.name, batch, targets, len(self.settled), "drain")
            self._apply(moves)
            if moves:
                tokens = sum(move.tokens for move in moves)
                self.reasons.append(f"{source.name} drains and hands {tokens} tokens over.")

    def waits_for_others(self, queue: Sequence[WaitingRequest], model: LatencyModel, settings: Settings) -> bool:
        """Whether prompts are faster with the instances whose decode iteration is under way, by more than it takes.

        Decode iterations of several groups do not end at the same time. Without a pause, a round would see one group
        only, and prompts would be prefilled on its instances alone. An iteration is taken to last as long as the
        constant of a prefill.
        """
        soon = [each for each in self.instances if each.decoding and not each.draining]
        if not (queue and soon):
            return False
        now = len(self.idle) + sum(len(batch.usable) for batch in self.batches)
        if not model.degrees_up_to(now):
            return False
        prompts = [each.prompt_tokens for each in queue[: settings.max_prefill_requests]]
        saved_s = model.seconds(prompts, now) - model.seconds(prompts, now + len(soon))
        return saved_s > model.largest(now).alpha_s

    def prefill(
        self,
        queue: Sequence[WaitingRequest],
        mean_decode_s: float | None,
        model: LatencyModel,
        settings: Settings,
    ) -> list[PrefillIteration]:
        """Steps 1 to 3, and the owners of step 4."""
        limits_s = [each.admits_until_s for each in self.instances if each.admits_until_s is not None]
        if limits_s:
            queue = [request for request in queue if request.arrival_s <= min(limits_s)]
        if not queue:
            return []
        staying = sum(not each.draining for each in self.instances)
        model = model.from_degree(min(settings.min_degree, max(model.degrees_up_to(staying), default=1)))
        batches, idle = self.batches, self.idle
        staying_instances = [each for each in self.instances if not each.draining]
        spare = sum(each.slots for each in spare_instances(staying_instances))
        chosen = dispatch(
            queue,
            idle,
            batches,
            self.running,
            self.slots,
            model,
            mean_decode_s,
            settings,
            spare,
            len(staying_instances),
        )
        self.reasons += chosen.reasons
        iterations, allocation = self._batch(chosen, idle, batches, model, settings)
        if allocation is not None:
            used = {name for each in iterations for name in each.instances}
            if not used.issuperset(allocation.vacated):
                # The batching has no use for an instance that would be vacated, so no KV is moved.
                without = replace(settings, migration_s_per_token=None)
                iterations, allocation = self._batch(chosen, idle, batches, model, without)
        left_out = [each.id for each in chosen.requests if each not in self._admitted]
        if left_out:
            self.reasons.append(
                f"{', '.join(left_out)} must wait: no group of a measured degree has slots for the prompt."
            )
        if allocation is None:
            return []
        self._apply(allocation.moves)
        self.reasons += allocation.reasons
        used = {name for each in iterations for name in each.instances}
        unused = [each.name for each in allocation.instances if each.name not in used]
        if unused:
            self.reasons.append(f"The batching does not use {', '.join(unused)}.")
        for each in iterations:
            owners = sorted({name for request in each.requests for name, _ in request.owners})
            self.reasons.append(
                f"Prefill {quantity(len(each.requests), 'request')} on {', '.join(each.instances)} "
                f"in {each.predicted_s:.3g} s and keep the KV on {', '.join(owners)}."
            )
        return iterations

    def _batch(
        self,
        chosen: Dispatch,
        idle: Sequence[Instance],
        batches: Sequence[DecodeBatch],
        model: LatencyModel,
        settings: Settings,
    ) -> tuple[list[PrefillIteration], Allocation | None]:
        """Allocation, batching and owners. The youngest requests are left out while the prompts do not fit."""
        requests = list(chosen.requests)
        others = [batch for batch in batches if batch not in chosen.preempted]
        while requests:
            try:
                allocation = allocate(requests, idle, chosen.preempted, others, model, settings)
                ordered = sorted(requests, key=lambda each: (-each.prompt_tokens, each.arrival_s))
                limits_s = None
                if any(each.ttft_left_s is not None for each in ordered):
                    limits_s = [float("inf") if each.ttft_left_s is None else each.ttft_left_s for each in ordered]
                split = split_prompts(
                    [each.prompt_tokens for each in ordered],
                    [each.free_slots for each in allocation.instances],
                    model,
                    limits_s,
                )
            except NoRoom:
                requests.pop()
                continue
            self._admitted = requests
            iterations = []
            for batch in split.batches:
                members = [allocation.instances[index] for index in batch.instances]
                prompts = [ordered[index] for index in batch.prompts]
                iterations.append(_prefill_iteration(members, prompts, model, settings))
            return iterations, allocation
        self._admitted = []
        return [], None

    def decode(
        self, prefills: Iterable[PrefillIteration], settings: Settings
    ) -> tuple[tuple[DecodeIteration, ...], list[str]]:
        """The decode iterations beside ``prefills``, and the requests that pause."""
        prefilling = {name for each in prefills for name in each.instances}
        settled = self.settled
        paused = [each for each in settled if not prefilling.isdisjoint(each.tokens_by_instance)]
        paused_ids = {each.id for each in paused}
        decoding = [each for each in settled if each.id not in paused_ids]
        demands = {each.id: each.demand for each in self.running}
        candidates = [each for each in decoding if demands[each.id].future_tokens]
        of_candidates = [demands.pop(each.id) for each in candidates]
        others = [*demands.values(), *(each.demand for each in self._admitted)]
        safe = choose_safe_steps(of_candidates, others, self.slots)
        if len(safe) < len(candidates):
            self.reasons.append(
                f"{quantity(len(candidates) - len(safe), 'request')} must wait: "
                "a further token could keep a paused request from ending."
            )
        idle = [each for each in self.idle if each.name not in prefilling]
        plan = plan_decoding(
            form_decode_batches(self.instances, decoding), idle, {candidates[index].id for index in safe}, settings
        )
        self.reasons += plan.reasons
        stepping = {name for each in plan.iterations for name, _ in each.masters}
        listed = {name for each in plan.iterations for name in each.paused}
        return plan.iterations, [each.id for each in settled if each.id not in stepping and each.id not in listed]

    def stuck(self, prefills: Sequence[PrefillIteration], decodes: Sequence[DecodeIteration]) -> bool:
        """Whether all running requests wait for a slot and nothing is under way that could free one."""
        waiting = any(each.demand.future_tokens for each in self.running)
        return waiting and not (prefills or decodes or self._busy or self.moves)

    def go_on_while_draining(self) -> bool:
        """Let instances that drain store tokens in this round; False: none drains."""
        draining = [each.name for each in self.instances if each.draining]
        if draining:
            self.instances = [replace(each, draining=False) for each in self.instances]
            self.reasons.append(
                f"{', '.join(draining)} drains and continues meanwhile, because the others have too little room."
            )
        return bool(draining)

    def recompute(self, prefills: Sequence[PrefillIteration], decodes: Sequence[DecodeIteration]) -> list[str]:
        """The youngest request, if they are stuck."""
        if not self.stuck(prefills, decodes):
            return []
        waiting = [each for each in self.running if each.demand.future_tokens]
        youngest = max(waiting, key=lambda each: each.arrival_s)
        self.reasons.append(f"Request {youngest.id} is computed again later: no running request can get a slot.")
        return [youngest.id]

    def _apply(self, moves: Sequence[Move]) -> None:
        if not moves:
            return
        self.moves += moves
        self.running = move_tokens(self.running, moves)
        change = dict.fromkeys((instance.name for instance in self.instances), 0)
        for move in moves:
            change[move.source] -= move.tokens
            change[move.target] += move.tokens
        self.instances = [replace(each, used_slots=each.used_slots + change[each.name]) for each in self.instances]
        self._stored = {name: tokens + change[name] for name, tokens in self._stored.items()}


def _prefill_iteration(
    instances: Sequence[Instance], requests: Sequence[WaitingRequest], model: LatencyModel, settings: Settings
) -> PrefillIteration:
    prompts = [request.prompt_tokens for request in requests]
    room = sum(min(settings.decode_room_tokens, request.demand.future_tokens) for request in requests)
    owners = choose_owners(prompts, instances, room, settings.min_degree)
    return PrefillIteration(
        tuple(instance.name for instance in instances),
        tuple(PrefillRequest(request.id, of) for request, of in zip(requests, owners, strict=True)),
        model.seconds(prompts, len(instances)),
    )


def _domains(snapshot: Snapshot) -> list[_Domain]:
    """In the order of their first instances."""
    members: dict[int, list[Instance]] = {}
    for instance in snapshot.instances:
        members.setdefault(instance.domain, []).append(instance)
    domain_of = {instance.name: instance.domain for instance in snapshot.instances}
    running: dict[int, list[RunningRequest]] = {}
    for request in snapshot.running:
        running.setdefault(domain_of[next(iter(request.tokens_by_instance))], []).append(request)
    return [_Domain(instances, running.get(domain, [])) for domain, instances in members.items()]


def _limits(domains: Iterable[_Domain], model: LatencyModel) -> list[tuple[int, int]]:
    """Of each domain: all slots, and those of the largest group of a measured degree; the largest domain first."""
    limits = []
    for domain in domains:
        slots = sorted((instance.slots for instance in domain.instances), reverse=True)
        degree = max(model.degrees_up_to(len(slots)), default=len(slots))
        limits.append((sum(slots), sum(slots[:degree])))
    return sorted(limits, reverse=True)


def _why_too_large(request: WaitingRequest, limits: Sequence[tuple[int, int]]) -> str | None:
    """A sentence if no domain could serve the request alone."""
    needed = request.prompt_tokens + request.demand.future_tokens
    if not limits or any(needed <= slots and request.prompt_tokens <= of_group for slots, of_group in limits):
        return None
    slots, of_group = limits[0]
    if needed > slots:
        return f"Request {request.id} may need {needed} slots; the instances that work together have {slots}."
    return f"Request {request.id} has {request.prompt_tokens} prompt tokens; a prefill group holds {of_group}."
