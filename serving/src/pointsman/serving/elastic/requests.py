"""The book of an elastic group: its instances, its requests, and where the KV of each lies. Pure.

The book is exact because only the manager changes what instances hold: it counts a token from the moment at which it
asks for it. What an iteration leaves is known when every member has answered or is gone.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from pointsman.serving.elastic.iterations import Move, Prompt, Sampled, Sampling, Step
from pointsman.serving.elastic.latency_model import LatencyModel
from pointsman.serving.elastic.round import RoundPlan, plan_round
from pointsman.serving.elastic.types import Instance, RunningRequest, Settings, Snapshot, WaitingRequest
from pointsman.serving.objectives import Objectives

SETTLE_S: Final = 60.0
"""A request that does not fit is refused when no instance has come or gone for so long: one may be about to."""

BREAKS: Final = 5
"""Iterations with a request that break one after the other although no member is gone: it may be what breaks them."""

_MEAN_OF: Final = 100
"""Finished requests that the mean decode time is taken over, about; the paper does not say how many."""


@dataclass(frozen=True, slots=True)
class SubmittedRequest:
    """A request as it came. ``eos``: the token that ends it without being told; ``arrival_s``: on any one clock."""

    id: str
    prompt: Sequence[int]
    max_tokens: int
    arrival_s: float
    sampling: Sampling = field(default_factory=Sampling)
    eos: int | None = None
    stop_ids: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Token:
    """A token of a request. ``finish``: "stop" or "length" with its last one; ``stopped_by``: which of ``stop_ids``."""

    request: str
    sampled: Sampled
    finish: str | None = None
    stopped_by: int | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """A request that this group can never serve, and why."""

    request: str
    why: str


@dataclass(slots=True)
class Iteration:
    """What a group computes: the parts of an ``Iterate``, and what has become of it. Members are named."""

    number: int
    members: tuple[str, ...]
    prompts: tuple[Prompt, ...] = ()
    steps: tuple[Step, ...] = ()
    moves: tuple[Move, ...] = ()
    sampling: dict[str, Sampling] = field(default_factory=dict)
    why_moved: str = ""
    awaited: set[str] = field(default_factory=set)
    tokens: dict[str, Sampled] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)  # by member: why

    @property
    def requests(self) -> list[str]:
        """All whose KV it touches."""
        parts: tuple[Prompt | Step | Move, ...] = (*self.prompts, *self.steps, *self.moves)
        return [each.request for each in parts]


@dataclass(frozen=True, slots=True)
class Round:
    """What is to be done now: iterations in the order in which members must be told of them, and requests to release.

    ``release``: by instance; told before the iterations. ``events``: tokens and refusals for the front.
    ``recomputed``: requests that lost KV since the last round and wait again.
    """

    iterations: tuple[Iteration, ...] = ()
    release: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    events: tuple[Token | Refused, ...] = ()
    plan: RoundPlan | None = None
    recomputed: int = 0


@dataclass(frozen=True, slots=True)
class MemberLoad:
    """What a member of a group does in a decode iteration: requests that it masters, and tokens of KV that it reads."""

    requests: int
    kv_tokens: int


@dataclass(frozen=True, slots=True)
class Slots:
    """Tokens of KV that instances keep, and how many they have, those of iterations under way included."""

    total: int
    used: int


@dataclass(slots=True)
class _Request:
    ask: SubmittedRequest
    generated: list[int] = field(default_factory=list)
    kv: dict[str, int] = field(default_factory=dict)  # tokens by instance
    under_way: int = 0  # iterations that touch it
    overtaken: int = 0
    prefilled_s: float | None = None
    breaks: int = 0  # of iterations with it since its last token, without a death
    over: bool = False  # finished or aborted: released as soon as nothing touches it
    lost: bool = False  # some of its KV is gone or unknown: computed again as soon as nothing touches it

    @property
    def tokens(self) -> tuple[int, ...]:
        return (*self.ask.prompt, *self.generated)

    @property
    def last_token(self) -> tuple[int, int]:
        """The token and its position, without a copy of the prompt: a decode step asks for it in every round."""
        of = self.generated or self.ask.prompt
        return of[-1], len(self.ask.prompt) + len(self.generated) - 1


@dataclass(slots=True)
class _Instance:
    slots: int
    domain: int
    draining_s: float | None = None  # since when
    dismissed: bool = False  # it may stop, and gets nothing more
    iterations: set[int] = field(default_factory=set)  # under way, also those in which its own part is done


class Requests:
    """See the module. ``settings``: bounds of the rounds; ``settle_s``: see SETTLE_S."""

    def __init__(self, settings: Settings, settle_s: float = SETTLE_S) -> None:
        self._settings = settings
        self._settle_s = settle_s
        self._members_changed = True  # since the last round
        self._settled_s = math.inf  # from when on what does not fit is refused
        self._requests: dict[str, _Request] = {}
        self._instances: dict[str, _Instance] = {}
        self._iterations: dict[int, Iteration] = {}
        self._numbers = itertools.count(1)
        self._release: defaultdict[str, list[str]] = defaultdict(list)
        self._events: list[Token | Refused] = []
        self._mean_decode_s: float | None = None
        self._finished = 0
        self._recomputed = 0

    # --- what happens ---

    def aim_at(self, objectives: Objectives | None) -> None:
        """From the next round on; None: none."""
        self._settings = replace(self._settings, objectives=objectives)

    def vacate(self, move_s_per_token: float) -> None:
        """From the next round on, instances are vacated where a prefill gains more than their KV takes to move."""
        self._settings = replace(self._settings, migration_s_per_token=move_s_per_token)

    def add(self, ask: SubmittedRequest) -> None:
        """A request arrives."""
        self._requests[ask.id] = _Request(ask)

    def abort(self, request: str) -> None:
        """Nobody waits for it any more; unknown ones are over already."""
        found = self._requests.get(request)
        if found is not None:
            found.over = True
            self._settle(found)

    def join(self, name: str, slots: int, domain: int) -> None:
        """An instance that holds nothing is there."""
        self._instances[name] = _Instance(slots, domain)
        self._members_changed = True

    def drain(self, name: str, now_s: float) -> None:
        """It is to get no new tokens and to hand over what it has, while others of its domain can take it."""
        if name in self._instances and self._instances[name].draining_s is None:
            self._instances[name].draining_s = now_s

    def dismiss(self) -> list[str]:
        """Instances that drain and hold nothing any more; they get nothing from now on."""
        holders = {name for request in self._requests.values() for name in request.kv}
        found = [
            name
            for name, of in self._instances.items()
            if of.draining_s is not None and not of.dismissed and not of.iterations and name not in holders
        ]
        for name in found:
            self._instances[name].dismissed = True
        return found

    def leave(self, name: str) -> None:
        """An instance is gone, with all that it held."""
        if self._instances.pop(name, None) is None:
            return
        self._members_changed = True
        self._release.pop(name, None)
        for iteration in [each for each in self._iterations.values() if name in each.awaited]:
            self.broke(iteration.number, name, "it no longer exists")
        for request in list(self._requests.values()):
            if request.kv.pop(name, None) is not None:
                request.lost = True
                self._settle(request)

    def done(self, number: int, member: str, tokens: Mapping[str, Sampled], now_s: float) -> None:
        """``member`` has computed its part."""
        iteration = self._iterations.get(number)
        if iteration is not None and member in iteration.awaited:
            iteration.tokens |= tokens
            self._answered(iteration, member, now_s)

    def broke(self, number: int, member: str, why: str, now_s: float | None = None) -> None:
        """``member`` could not compute its part."""
        iteration = self._iterations.get(number)
        if iteration is not None and member in iteration.awaited:
            iteration.broken[member] = why
            self._answered(iteration, member, now_s)

    # --- what is known ---

    @property
    def resting(self) -> bool:
        """Whether nothing is computed and no request has KV; requests may wait."""
        return not self._iterations and not any(request.kv for request in self._requests.values())

    @property
    def settled_s(self) -> float:
        """From when on a waiting request that does not fit is refused."""
        return self._settled_s

    @property
    def idle(self) -> bool:
        """Whether no request is waiting or running."""
        return not self._requests

    def iterations(self) -> tuple[Iteration, ...]:
        """Those under way."""
        return tuple(self._iterations.values())

    def draining(self, name: str) -> bool:
        """Whether it is to go."""
        return self._instances[name].draining_s is not None

    def tokens_in(self, iteration: Iteration) -> int:
        """Tokens of KV that its requests have, those that it computes included; also where it only measures."""
        prompts = sum(len(prompt.token_ids) for prompt in iteration.prompts)
        others = {step.request for step in iteration.steps} | {move.request for move in iteration.moves}
        others &= self._requests.keys()
        return prompts + sum(sum(self._requests[request].kv.values()) for request in others)

    def member_loads(self, iteration: Iteration) -> list[MemberLoad]:
        """Of each member of a decode iteration that begins, in order; KV that the iteration stores included."""
        mastered, tokens = dict.fromkeys(iteration.members, 0), dict.fromkeys(iteration.members, 0)
        for step in iteration.steps:
            mastered[iteration.members[step.master]] += 1
            for name, count in self._requests[step.request].kv.items():
                tokens[name] += count
        return [MemberLoad(mastered[name], tokens[name]) for name in iteration.members]

    def counts(self) -> tuple[int, int]:
        """Requests that run and that wait."""
        running = sum(bool(request.kv) for request in self._requests.values())
        return running, len(self._requests) - running

    def slots(self) -> Slots:
        """Of all instances."""
        return Slots(
            sum(instance.slots for instance in self._instances.values()),
            sum(sum(request.kv.values()) for request in self._requests.values()),
        )

    def used_slots(self, name: str) -> int:
        """Of an instance, those of iterations under way included."""
        return sum(request.kv.get(name, 0) for request in self._requests.values())

    def snapshot(self, now_s: float) -> Snapshot:
        """All that a round is planned from."""
        staying = {of.domain for of in self._instances.values() if of.draining_s is None}
        used = dict.fromkeys(self._instances, 0)  # as used_slots, in one pass
        for request in self._requests.values():
            for name, tokens in request.kv.items():
                used[name] += tokens
        instances = tuple(
            self._seen(name, of, used[name], staying)
            for name, of in sorted(self._instances.items())
            if not of.dismissed
        )
        waiting, running = [], []
        for request in self._requests.values():
            ask, generated = request.ask, len(request.generated)
            if request.over or request.lost:
                continue  # its slots are in use until nothing touches it
            if request.kv:
                most = len(ask.prompt) + ask.max_tokens - 1
                since_s = 0.0 if request.prefilled_s is None else now_s - request.prefilled_s
                running.append(RunningRequest(ask.id, most, ask.arrival_s, generated, since_s, dict(request.kv)))
            else:
                left = ask.max_tokens - generated
                tokens, late_s = len(ask.prompt) + generated, None
                if self._settings.objectives is not None and not generated:
                    late_s = ask.arrival_s + self._settings.objectives.ttft_for(tokens) - now_s
                waiting.append(WaitingRequest(ask.id, tokens, left, ask.arrival_s, request.overtaken, late_s))
        return Snapshot(instances, tuple(waiting), tuple(running), self._mean_decode_s)

    def _seen(self, name: str, of: _Instance, used_slots: int, staying: set[int]) -> Instance:
        """``staying``: domains with an instance that does not drain.

        Whoever is left of a domain when all of it is to go serves on: nobody could take over what is there. Requests
        that came later wait for others, of which there are some, or which replace those that go.
        """
        draining, until_s = of.draining_s is not None, None
        if of.draining_s is not None and of.domain not in staying:
            draining, until_s = False, of.draining_s if not staying else -math.inf
        decoding = bool(of.iterations) and all(self._iterations[number].steps for number in of.iterations)
        return Instance(name, of.slots, used_slots, of.domain, bool(of.iterations), draining, until_s, decoding)

    # --- what is to be done ---

    def next_round(self, now_s: float, model: LatencyModel) -> Round:
        """Plan a round and take it down as begun."""
        if self._members_changed:
            self._members_changed, self._settled_s = False, now_s + self._settle_s
        plan = None
        iterations: list[Iteration] = []
        if model.by_degree:
            plan = plan_round(self.snapshot(now_s), model, self._settings)
            iterations = self._begin(plan, refuses=now_s >= self._settled_s)
        release = {name: tuple(requests) for name, requests in self._release.items() if name in self._instances}
        self._release.clear()
        events, self._events = tuple(self._events), []
        recomputed, self._recomputed = self._recomputed, 0
        return Round(tuple(iterations), release, events, plan, recomputed)

    def begin(self, members: Iterable[str], prompts: Iterable[Prompt] = (), moves: Iterable[Move] = ()) -> Iteration:
        """An iteration besides the rounds, on instances that are idle: to measure. Its prompts are no requests."""
        return self._iteration(tuple(members), prompts=tuple(prompts), moves=tuple(moves))

    def _begin(self, plan: RoundPlan, *, refuses: bool) -> list[Iteration]:
        for id_, why in plan.too_large.items() if refuses else ():
            del self._requests[id_]
            self._events.append(Refused(id_, why))
        for id_, count in plan.overtaken.items():
            self._requests[id_].overtaken = count
        for id_ in plan.recompute:
            self._requests[id_].lost = True
            self._settle(self._requests[id_])
        iterations = []
        pairs: dict[tuple[str, str, str], list[Move]] = defaultdict(list)
        for move in plan.moves:
            pairs[move.source, move.target, move.why].append(Move(move.request, 0, 1, move.tokens))
            kv = self._requests[move.request].kv
            kv[move.target] = kv.get(move.target, 0) + move.tokens
            kv[move.source] -= move.tokens
            if not kv[move.source]:
                del kv[move.source]
        for (source, target, why), moves in pairs.items():
            iterations.append(self._iteration((source, target), moves=tuple(moves), why_moved=why))
        # A move can break: what counts on it is planned again when it has ended.
        moving = {name for source, target, _ in pairs for name in (source, target)}
        for prefill in plan.prefills:
            if not moving.isdisjoint(prefill.instances):
                continue
            members = tuple(sorted(prefill.instances))
            prompts = []
            for each in prefill.requests:
                request = self._requests[each.id]
                request.kv = dict(each.owners)
                owners = tuple((members.index(name), tokens) for name, tokens in each.owners)
                prompts.append(Prompt(each.id, request.tokens, owners))
            iterations.append(self._iteration(members, prompts=tuple(prompts)))
        for decode in plan.decodes:
            if not moving.isdisjoint(decode.instances):
                continue
            members = tuple(sorted(decode.instances))
            steps = []
            for id_, master in decode.masters:
                request = self._requests[id_]
                holders = tuple(members.index(name) for name in sorted(request.kv))
                steps.append(Step(id_, *request.last_token, members.index(master), holders))
                request.kv[master] = request.kv.get(master, 0) + 1
            iterations.append(self._iteration(members, steps=tuple(steps)))
        return iterations

    def _iteration(
        self,
        members: tuple[str, ...],
        *,
        prompts: tuple[Prompt, ...] = (),
        steps: tuple[Step, ...] = (),
        moves: tuple[Move, ...] = (),
        why_moved: str = "",
    ) -> Iteration:
        made = Iteration(next(self._numbers), members, prompts, steps, moves, {}, why_moved, set(members))
        for id_ in (*(prompt.request for prompt in prompts), *(step.request for step in steps)):
            request = self._requests.get(id_)
            made.sampling[id_] = Sampling(temperature=0) if request is None else request.ask.sampling
        for id_ in made.requests:
            if id_ in self._requests:
                self._requests[id_].under_way += 1
        for name in members:
            self._instances[name].iterations.add(made.number)
        self._iterations[made.number] = made
        return made

    def _answered(self, iteration: Iteration, member: str, now_s: float | None) -> None:
        iteration.awaited.discard(member)
        if not iteration.awaited:
            for name in iteration.members:
                if name in self._instances:
                    self._instances[name].iterations.discard(iteration.number)
            del self._iterations[iteration.number]
            self._ended(iteration, now_s)

    def _ended(self, iteration: Iteration, now_s: float | None) -> None:
        masters = {step.request: iteration.members[step.master] for step in iteration.steps}
        whole = not iteration.broken
        blamed = bool(iteration.broken) and all(name in self._instances for name in iteration.members)
        for id_ in iteration.requests:
            request = self._requests.get(id_)
            if request is None:
                continue
            request.under_way -= 1
            request.breaks += blamed
            if request.breaks >= BREAKS and not request.over:
                why = next(iter(iteration.broken.values()), "it broke")
                self._events.append(Refused(id_, f"{BREAKS} iterations with it broke, the last one: {why}"))
                request.over = True
            if id_ in masters:
                if id_ in iteration.tokens:
                    self._token(request, iteration.tokens[id_], now_s)
                else:
                    self._take_back(request, masters[id_])  # a step that broke left no trace
            elif not whole:
                request.lost = True  # who of the others has what is not known
            elif id_ in iteration.tokens:
                if request.prefilled_s is None:
                    request.prefilled_s = now_s
                self._token(request, iteration.tokens[id_], now_s)
            self._settle(request)

    @staticmethod
    def _take_back(request: _Request, master: str) -> None:
        left = request.kv.get(master, 0) - 1
        if left > 0:
            request.kv[master] = left
        else:
            request.kv.pop(master, None)

    def _token(self, request: _Request, sampled: Sampled, now_s: float | None) -> None:
        if request.over:
            return
        ask = request.ask
        request.generated.append(sampled.token_id)
        request.breaks = 0  # pauses of instances, now and then in a long answer, are not its fault
        finish, stopped_by = None, None
        if sampled.token_id == ask.eos:
            finish = "stop"
        elif sampled.token_id in ask.stop_ids:
            finish, stopped_by = "stop", sampled.token_id
        elif len(request.generated) >= ask.max_tokens:
            finish = "length"
        self._events.append(Token(ask.id, sampled, finish, stopped_by))
        if finish is not None:
            request.over = True
            if now_s is not None and request.prefilled_s is not None:
                self._learn(now_s - request.prefilled_s)

    def _learn(self, decode_s: float) -> None:
        self._finished = min(self._finished + 1, _MEAN_OF)
        before = self._mean_decode_s or 0.0
        self._mean_decode_s = before + (decode_s - before) / self._finished

    def _settle(self, request: _Request) -> None:
        """Release what is over or lost, once nothing touches it."""
        if request.under_way or not (request.over or request.lost):
            return
        for name in self._instances:  # also where a broken iteration may have left something
            self._release[name].append(request.ask.id)
        request.kv.clear()
        self._recomputed += request.lost and not request.over
        request.lost = False
        if request.over:
            del self._requests[request.ask.id]
