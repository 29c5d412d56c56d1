"""An elastic group in simulated time: the manager's own book and rounds, and instances as slow as a model says.

Static systems are the same code with fewer choices: instances that never work together, or one that is all of them.
"""

import heapq
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol, overload

from pointsman.serving.elastic.iterations import Sampled
from pointsman.serving.elastic.latency_model import LatencyModel, PrefillTime
from pointsman.serving.elastic.requests import Ask, Iteration, Requests, Token
from pointsman.serving.elastic.types import Settings

GOOD = 0.9  # share of requests that must be in time


@dataclass(frozen=True, slots=True)
class DecodeTime:
    """Seconds of a decode iteration: a constant, for each further member, request of a master, and token of KV."""

    base_s: float
    per_member_s: float
    per_request_s: float
    per_token_s: float

    def seconds(self, members: int, requests: int, tokens: int) -> float:
        """``requests`` and ``tokens`` are shared by ``members``."""
        shared = (self.per_request_s * requests + self.per_token_s * tokens) / members
        return self.base_s + self.per_member_s * (members - 1) + shared


@dataclass(frozen=True, slots=True)
class MemberLoad:
    """What a member of a group does in a decode iteration: requests that it masters, and tokens of KV that it reads."""

    requests: int
    kv_tokens: int


class Times(Protocol):
    """How long iterations take in truth, which need not be what the manager's model says."""

    def prefill_s(self, members: int, lengths: Sequence[int]) -> float:
        """Of prompts of ``lengths`` on a group of ``members``."""

    def decode_s(self, loads: Sequence[MemberLoad]) -> float:
        """Of a token of each request; a load for each member."""

    def move_s(self, tokens: int) -> float:
        """Of handing the KV of ``tokens`` over."""


@dataclass(frozen=True, slots=True)
class System:
    """``domains``: of each instance, those that may work together; ``widths``: hosts that an instance stands for."""

    name: str
    domains: tuple[int, ...]
    slots: int
    model: LatencyModel
    width: int = 1


@dataclass(frozen=True, slots=True)
class Asked:
    """A request: when, and how many tokens."""

    at_s: float
    prompt_tokens: int
    output_tokens: int


@dataclass(slots=True)
class Outcome:
    """What became of it. ``refused``: it can never fit."""

    asked: Asked
    first_s: float = 0.0
    end_s: float | None = None
    refused: bool = False

    @property
    def latency_s(self) -> float:
        """From its arrival to its last token; infinite if that did not come."""
        return float("inf") if self.end_s is None else self.end_s - self.asked.at_s


@dataclass(frozen=True, slots=True)
class ModelTimes:
    """Prefills take what the manager's model says, and decode iterations share their load evenly."""

    system: System
    decode: DecodeTime
    migration_s_per_token: float

    def prefill_s(self, members: int, lengths: Sequence[int]) -> float:
        """See Times."""
        return self.system.model.prefill_time(members).seconds(sum(lengths), sum(each * each for each in lengths))

    def decode_s(self, loads: Sequence[MemberLoad]) -> float:
        """See Times."""
        requests, tokens = sum(each.requests for each in loads), sum(each.kv_tokens for each in loads)
        return self.decode.seconds(len(loads) * self.system.width, requests, tokens)

    def move_s(self, tokens: int) -> float:
        """See Times."""
        return self.migration_s_per_token * tokens


@dataclass(frozen=True, slots=True)
class Zeros(Sequence[int]):
    """A prompt of ``tokens`` equal tokens, which takes no memory while it waits."""

    tokens: int

    def __len__(self) -> int:
        return self.tokens

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> "Zeros": ...

    def __getitem__(self, index: int | slice) -> "int | Zeros":
        found = range(self.tokens)[index]
        return Zeros(len(found)) if isinstance(found, range) else 0

    def __iter__(self) -> Iterator[int]:
        return itertools.repeat(0, self.tokens)


class Holdings:
    """Which member of a group holds how many tokens of each request."""

    def __init__(self) -> None:
        self._kv: dict[str, dict[str, int]] = {}

    def tokens(self, name: str) -> int:
        """On instance ``name``."""
        return sum(of.get(name, 0) for of in self._kv.values())

    def begin(self, iteration: Iteration) -> list[MemberLoad]:
        """Count what ``iteration`` stores or moves. Returns the loads of its members if it decodes."""
        members = iteration.members
        for prompt in iteration.prompts:
            self._kv[prompt.request] = {members[member]: tokens for member, tokens in prompt.owners}
        for move in iteration.moves:
            self._add(move.request, members[move.source], -move.tokens)
            self._add(move.request, members[move.target], move.tokens)
        requests, tokens = dict.fromkeys(members, 0), dict.fromkeys(members, 0)
        for step in iteration.steps:
            requests[members[step.master]] += 1
            self._add(step.request, members[step.master], 1)
            for name, count in self._kv[step.request].items():
                tokens[name] += count
        return [MemberLoad(requests[name], tokens[name]) for name in members]

    def end(self, request: str) -> None:
        """It has ended and holds nothing."""
        self._kv.pop(request, None)

    def _add(self, request: str, name: str, tokens: int) -> None:
        of = self._kv[request]
        of[name] = of.get(name, 0) + tokens
        if not of[name]:
            del of[name]


@dataclass
class Run:
    """One system over one sequence of requests. ``times``: None for those of the model and of ``decode``."""

    system: System
    decode: DecodeTime | None = None
    settings: Settings = field(default_factory=Settings)
    times: Times | None = None

    def outcomes(self, asked: Sequence[Asked], ended: Callable[[Outcome], None] = lambda _: None) -> list[Outcome]:
        """Simulate until all requests have ended. ``ended`` gets each one then, and may raise to stop earlier."""
        book = Requests(self.settings, settle_s=0.0)  # nobody comes or goes here
        for number, domain in enumerate(self.system.domains):
            book.join(f"i-{number}", self.system.slots, domain)
        found = {f"r{number}": Outcome(each) for number, each in enumerate(asked)}
        order = itertools.count()
        events: list[tuple[float, int, Iteration | str]] = []
        for name, outcome in found.items():
            heapq.heappush(events, (outcome.asked.at_s, next(order), name))
        times, holdings = self._times(), Holdings()
        while events:
            now_s, _, what = heapq.heappop(events)
            if isinstance(what, str):
                of = found[what].asked
                book.add(Ask(what, Zeros(of.prompt_tokens), of.output_tokens, now_s))
            else:
                tokens = {request: Sampled(0) for request in what.sampling}
                for name in what.members:
                    book.done(what.number, name, tokens, now_s)
            done = book.next_round(now_s, self.system.model)
            for event in done.events:
                outcome = found[event.request]
                if not isinstance(event, Token):
                    outcome.refused = True
                    ended(outcome)
                    continue
                outcome.first_s = outcome.first_s or now_s
                if event.finish is not None:
                    outcome.end_s = now_s
                    holdings.end(event.request)
                    ended(outcome)
            for iteration in done.iterations:
                took_s = _seconds(iteration, holdings.begin(iteration), times)
                heapq.heappush(events, (now_s + took_s, next(order), iteration))
        return list(found.values())

    def _times(self) -> Times:
        if self.times is not None:
            return self.times
        if self.decode is None:
            raise ValueError("one of decode and times is needed")
        return ModelTimes(self.system, self.decode, self.settings.migration_s_per_token or 0.0)


def _seconds(iteration: Iteration, loads: Sequence[MemberLoad], times: Times) -> float:
    if iteration.prompts:
        return times.prefill_s(len(iteration.members), [len(prompt.token_ids) for prompt in iteration.prompts])
    if iteration.steps:
        return times.decode_s(loads)
    return times.move_s(sum(move.tokens for move in iteration.moves))


@dataclass(frozen=True, slots=True)
class Mix:
    """Poisson arrivals: a share of long prompts, lengths drawn evenly from ranges."""

    short: range
    long: range
    long_share: float
    output: range

    def draw(self, rate: float, count: int, seed: int) -> list[Asked]:
        """``count`` requests at ``rate`` a second."""
        rng, at_s, found = Random(seed), 0.0, []
        for _ in range(count):
            at_s += rng.expovariate(rate)
            lengths = self.long if rng.random() < self.long_share else self.short
            found.append(Asked(at_s, rng.choice(lengths), rng.choice(self.output)))
        return found


def in_time(run: Run, asked: Sequence[Asked], unloaded: "Unloaded", factor: float) -> float:
    """The share of requests that end within ``factor`` times what they take alone on one instance."""
    outcomes = run.outcomes(asked)
    return sum(each.latency_s <= factor * unloaded.seconds(each.asked) for each in outcomes) / len(outcomes)


@dataclass(frozen=True, slots=True)
class Unloaded:
    """The latency of a request that is alone on one instance, which objectives are multiples of."""

    time: PrefillTime
    decode: DecodeTime

    def seconds(self, asked: Asked) -> float:
        """Of its prefill and its further tokens."""
        tokens = asked.prompt_tokens
        steps = [self.decode.seconds(1, 1, tokens + number) for number in range(1, asked.output_tokens)]
        return self.time.seconds(tokens, tokens * tokens) + sum(steps)


def goodput(run: Run, mix: Mix, unloaded: Unloaded, factor: float, count: int, seeds: Sequence[int]) -> float:
    """The largest rate (requests a second) at which, over all ``seeds``, a share of `GOOD` is in time."""

    def holds(rate: float) -> bool:
        shares = [in_time(run, mix.draw(rate, count, seed), unloaded, factor) for seed in seeds]
        return sum(shares) / len(shares) >= GOOD

    low, high = 0.0, 0.01
    while holds(high):
        low, high = high, 2 * high
    for _ in range(7):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
