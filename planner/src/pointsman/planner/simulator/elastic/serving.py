"""Requests through the manager's own book and rounds, on instances that are as slow as ``Times`` says."""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, overload

from pointsman.planner.simulator.elastic.types import Times
from pointsman.planner.simulator.events import Events
from pointsman.serving.elastic.iterations import Sampled
from pointsman.serving.elastic.latency_model import LatencyModel
from pointsman.serving.elastic.requests import SETTLE_S, Iteration, Refused, Requests, SubmittedRequest, Token
from pointsman.serving.elastic.step_sums import TERMS, StepSums
from pointsman.serving.elastic.types import Settings

DEATH_NOTICED_S: Final = 3.0
"""After so long the other members of an iteration report that one is gone."""

_TOKEN: Final = Sampled(0)
_NO_TOKENS: Final[dict[str, Sampled]] = {}


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


class Serving:
    """The manager and its instances.

    ``token`` and ``refused`` get what happens to requests; ``dismissed`` an instance that drains and holds nothing any
    more. ``latency``: what the manager measures of prefills. A degree is known from the moment at which so many
    instances of one domain are there and no request is; in truth, measuring takes seconds, during which requests wait.
    ``noise``: a factor on the time of an iteration.
    """

    def __init__(
        self,
        settings: Settings,
        times: Times,
        latency: LatencyModel,
        events: Events,
        *,
        token: Callable[[Token], None],
        refused: Callable[[Refused], None],
        dismissed: Callable[[str], None] = lambda _: None,
        noise: Callable[[], float] = lambda: 1.0,
        settle_s: float = SETTLE_S,
    ) -> None:
        self.book = Requests(settings, settle_s)
        self.measured = LatencyModel({})
        self.step_sums = dict.fromkeys(TERMS, 0.0)
        self.iterations: Counter[tuple[str, int]] = Counter()
        self.moved_tokens: Counter[str] = Counter()
        self.recomputed = 0
        self._times, self._latency, self._events, self._noise = times, latency, events, noise
        self._token, self._refused, self._dismissed = token, refused, dismissed
        self._domains: dict[str, int] = {}  # of instances that are there
        self._broken: set[int] = set()  # numbers of iterations that lost a member
        self._refusals_s = math.inf  # when a round is planned in which requests can be refused

    # --- what happens ---

    def join(self, name: str, slots: int, domain: int) -> None:
        """An instance that holds nothing is there."""
        self._domains[name] = domain
        self.book.join(name, slots, domain)

    def drain(self, name: str) -> None:
        """An instance is to hand over what it has."""
        self.book.drain(name, self._events.now_s)
        self.plan()

    def leave(self, name: str) -> None:
        """An instance is gone, with all that it held."""
        self._domains.pop(name, None)
        for iteration in self.book.iterations():
            if name in iteration.awaited and iteration.number not in self._broken:
                self._broken.add(iteration.number)
                self._events.at(self._events.now_s + DEATH_NOTICED_S, self._broke, iteration)
        self.book.leave(name)
        self.plan()

    def arrive(self, request: str, prompt_tokens: int, output_tokens: int) -> None:
        """A request comes."""
        self.book.add(SubmittedRequest(request, Zeros(prompt_tokens), output_tokens, self._events.now_s))
        self.plan()

    # --- rounds ---

    def plan(self) -> None:
        """A round of the manager, and what follows from it."""
        now_s = self._events.now_s
        self._measure()
        done = self.book.next_round(now_s, self.measured)
        self.recomputed += done.recomputed
        for event in done.events:
            if isinstance(event, Token):
                self._token(event)
            else:
                self._refused(event)
        for iteration in done.iterations:
            self._begin(iteration)
        for name in self.book.dismiss():
            self._dismissed(name)
        if now_s < self.book.settled_s < math.inf and self.book.settled_s != self._refusals_s:
            self._refusals_s = self.book.settled_s
            self._events.at(self._refusals_s, lambda _: self.plan())

    def _begin(self, iteration: Iteration) -> None:
        members = len(iteration.members)
        if iteration.prompts:
            phase = "prefill"
            took_s = self._times.prefill_s(members, [len(prompt.token_ids) for prompt in iteration.prompts])
        elif iteration.steps:
            phase = "decode"
            took_s = self._times.decode_s(self.book.member_loads(iteration))
        else:
            phase = "move"
            tokens = sum(move.tokens for move in iteration.moves)
            self.moved_tokens[iteration.why_moved] += tokens
            took_s = self._times.move_s(tokens)
        self.iterations[phase, members] += 1
        took_s *= self._noise()
        self._events.at(self._events.now_s + took_s, self._ended, (iteration, took_s))

    def _ended(self, what: tuple[Iteration, float]) -> None:
        iteration, took_s = what
        if iteration.number in self._broken:
            self._broken.discard(iteration.number)
            return  # _broke ends it
        if iteration.steps:
            steps = StepSums.of_iteration(len(iteration.members), len(iteration.steps), took_s)
            for term in TERMS:
                self.step_sums[term] += getattr(steps, term)
        tokens = dict.fromkeys(iteration.sampling, _TOKEN)
        for name in iteration.members:
            self.book.done(iteration.number, name, tokens, self._events.now_s)
            tokens = _NO_TOKENS
        self.plan()

    def _broke(self, iteration: Iteration) -> None:
        for name in iteration.members:
            self.book.broke(iteration.number, name, "a member is lost", self._events.now_s)
        self.plan()

    def _measure(self) -> None:
        if len(self.measured.by_degree) == len(self._latency.by_degree):
            return
        if not (self.book.idle if self.measured.by_degree else self.book.resting):
            return
        staying = Counter(domain for name, domain in self._domains.items() if not self.book.draining(name))
        most = max(staying.values(), default=0)
        by_degree = {degree: of for degree, of in self._latency.by_degree.items() if degree <= most}
        if len(by_degree) > len(self.measured.by_degree):
            self.measured = LatencyModel(by_degree)
