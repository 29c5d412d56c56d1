"""The manager's book beside instances that compute, break and die in any order: every request ends, with its tokens.

The instances here do in plain Python what the engine does: they keep positions.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random

import pytest

from pointsman.serving.elastic.iterations import Sampled
from pointsman.serving.elastic.latency_model import LatencyModel, PrefillTime, extrapolate
from pointsman.serving.elastic.requests import Iteration, Refused, Requests, SubmittedRequest, Token
from pointsman.serving.elastic.types import Settings
from pointsman.serving.objectives import Objectives

MAX_DEGREE = 3
MODEL = LatencyModel({degree: extrapolate(PrefillTime(0.01, 1e-3, 1e-6), degree, 0.9, 0.001) for degree in (1, 2, 3)})
EOS = 9
SEEDS = 30


def token(request: str, position: int) -> int:
    """What the model says at this position, on whatever instance."""
    return Random(f"{request}/{position}").randrange(10)


@dataclass
class Pod:
    """An instance: positions of each request in the order in which it got them, and what it was told."""

    slots: int
    held: dict[str, list[int]] = field(default_factory=dict)
    todo: "deque[Iteration | tuple[str, ...]]" = field(default_factory=deque)
    leaves: bool = False  # it was told to stop
    dismissed: bool = False  # and then that it may

    @property
    def used(self) -> int:
        return sum(map(len, self.held.values()))

    def store(self, request: str, positions: Iterable[int]) -> None:
        mine = self.held.setdefault(request, [])
        mine += positions
        assert len(set(mine)) == len(mine), "a token is kept twice"
        assert self.used <= self.slots, "more tokens than slots"


class World:
    """Instances that do what the book says, in a random order, and break and die."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.book = Requests(
            Settings(decode_room_tokens=2, requests_per_master=2, migration_s_per_token=1e-6), settle_s=5
        )
        self.pods: dict[str, Pod] = {}
        self.answers: list[tuple[int, str, dict[str, Sampled] | None]] = []
        self.prompts: dict[str, tuple[int, ...]] = {}
        self.expected: dict[str, list[int]] = {}
        self.got: dict[str, list[int]] = {}
        self.over: set[str] = set()
        self.aborted: set[str] = set()
        self.now_s = 0.0
        self.joined = 0
        self.recomputed = self.moved = self.broken = self.refused = self.dismissed = 0
        self.breaks = True  # iterations do, now and then
        self.degrees: set[int] = set()
        for _ in range(self.rng.randint(1, 4)):
            self.join()

    def join(self) -> None:
        """An instance is there."""
        name, self.joined = f"i-{self.joined}", self.joined + 1
        self.pods[name] = Pod(self.rng.randint(40, 90))
        self.book.join(name, self.pods[name].slots, int(name[2:]) // MAX_DEGREE)

    def ask(self, number: int) -> None:
        """A request comes."""
        length = self.rng.choice((1, 3, 200, *[self.rng.randint(4, 30)] * 5))
        prompt = tuple(self.rng.randrange(9) for _ in range(length))
        ask = SubmittedRequest(f"r{number}", prompt, self.rng.randint(1, 9), self.now_s, eos=EOS)
        tokens: list[int] = []
        while len(tokens) < ask.max_tokens and EOS not in tokens:
            tokens.append(token(ask.id, len(prompt) + len(tokens)))
        self.prompts[ask.id] = prompt
        self.expected[ask.id] = tokens
        self.got[ask.id] = []
        self.book.add(ask)

    def plan(self) -> None:
        """A round."""
        found = self.book.next_round(self.now_s, MODEL)
        self.recomputed += found.recomputed
        for name, requests in found.release.items():
            self.pods[name].todo.append(requests)
        for iteration in found.iterations:
            assert not any(self.pods[name].dismissed for name in iteration.members), "it may have gone"
            self.degrees.add(len(iteration.members))
            for name in iteration.members:
                self.pods[name].todo.append(iteration)
        for event in found.events:
            self.hear(event)
        for name in self.book.dismiss():
            self.pods[name].dismissed = True

    def leave(self) -> None:
        """An instance is told to stop, and to hand over what it has first."""
        staying = [name for name, pod in sorted(self.pods.items()) if not pod.leaves]
        if staying:
            name = self.rng.choice(staying)
            self.pods[name].leaves = True
            self.book.drain(name, self.now_s)

    def go(self) -> None:
        """An instance that may go and has done all that it was told goes."""
        for name in [name for name, pod in self.pods.items() if pod.dismissed and not pod.todo]:
            assert not any(self.pods[name].held.values()), "it was dismissed with KV"
            self.dismissed += 1
            del self.pods[name]
            self.book.leave(name)

    def hear(self, event: Token | Refused) -> None:
        """What the front is told."""
        if event.request in self.aborted:  # told before the book knew
            return
        if isinstance(event, Refused):
            self.refused += 1
            self.over.add(event.request)
            return
        assert event.request not in self.over, "a token after the last one"
        self.got[event.request].append(event.sampled.token_id)
        if event.finish is not None:
            self.over.add(event.request)
            assert self.got[event.request] == self.expected[event.request], event.request

    def work(self) -> None:
        """Some instance does the next thing that it can do."""
        ready = [name for name, pod in self.pods.items() if pod.todo and self.can_begin(pod.todo[0])]
        if not ready:
            return
        name = self.rng.choice(ready)
        what = self.pods[name].todo[0]
        if isinstance(what, tuple):
            self.pods[name].todo.popleft()
            for request in what:
                self.pods[name].held.pop(request, None)
            return
        members = [each for each in what.members if each in self.pods]
        for each in members:
            assert self.pods[each].todo.popleft() is what
        if len(members) < len(what.members) or (self.breaks and self.rng.random() < 0.03):
            self.compute_in_part(what, members)
        else:
            self.compute(what)

    def can_begin(self, what: "Iteration | tuple[str, ...]") -> bool:
        """All members have come to it."""
        if isinstance(what, tuple):
            return True
        return all(self.pods[name].todo[0] is what for name in what.members if name in self.pods)

    def compute(self, what: Iteration) -> None:
        """As the engine does."""
        tokens: dict[str, dict[str, Sampled]] = {name: {} for name in what.members}
        for prompt in what.prompts:
            for member, positions in prompt.owned():
                self.pods[what.members[member]].store(prompt.request, positions)
            length = len(prompt.token_ids)
            tokens[self.rng.choice(what.members)][prompt.request] = Sampled(token(prompt.request, length))
        for step in what.steps:
            parts = [self.pods[what.members[holder]].held[step.request] for holder in step.holders]
            kept = sorted(position for part in parts for position in part)
            assert kept == list(range(step.position)), "a query finds all keys, each once"
            assert step.token_id == self.tokens_of(step.request)[step.position]
            master = what.members[step.master]
            self.pods[master].store(step.request, (step.position,))
            tokens[master][step.request] = Sampled(token(step.request, step.position + 1))
        for move in what.moves:
            source, target = self.pods[what.members[move.source]], self.pods[what.members[move.target]]
            given = source.held[move.request][-move.tokens :]
            assert len(given) == move.tokens
            target.store(move.request, given)
            self.moved += len(given)
            source.held[move.request] = source.held[move.request][: -move.tokens]
        self.answers += [(what.number, name, tokens[name]) for name in what.members]

    def tokens_of(self, request: str) -> tuple[int, ...]:
        """The prompt and what has been told."""
        return self.prompts[request] + tuple(self.expected[request])

    def compute_in_part(self, what: Iteration, members: list[str]) -> None:
        """A member broke off: of prompts and moves anything may be left, of steps either all or nothing."""
        self.broken += 1
        tokens: dict[str, dict[str, Sampled]] = {}
        for name in members:
            if what.steps and len(members) == len(what.members) and self.rng.random() < 0.5:
                tokens[name] = {}  # it was through before
        for step in what.steps:
            master = what.members[step.master]
            if master in tokens:
                self.pods[master].store(step.request, (step.position,))
                tokens[master][step.request] = Sampled(token(step.request, step.position + 1))
        for prompt in what.prompts:
            for member, positions in prompt.owned():
                if (name := what.members[member]) in members and self.rng.random() < 0.5:
                    self.pods[name].store(prompt.request, positions)
        self.answers += [(what.number, name, tokens.get(name)) for name in members]

    def answer(self) -> None:
        """The book hears of something that was done."""
        if self.answers:
            number, name, tokens = self.answers.pop(self.rng.randrange(len(self.answers)))
            if name not in self.pods:
                return
            if tokens is None:
                self.book.broke(number, name, "a member broke off", self.now_s)
            else:
                self.book.done(number, name, tokens, self.now_s)

    def die(self) -> None:
        """An instance is gone."""
        name = self.rng.choice(sorted(self.pods))
        del self.pods[name]
        self.answers = [each for each in self.answers if each[1] != name]
        self.book.leave(name)


def test_every_request_gets_its_tokens_however_instances_come_go_and_break() -> None:
    worlds = [played(seed) for seed in range(SEEDS)]
    assert set[int]().union(*(world.degrees for world in worlds)) == {1, 2, 3}
    for what in ("recomputed", "moved", "broken", "refused", "dismissed"):
        assert sum(getattr(world, what) for world in worlds) > SEEDS // 4, what


def test_instances_that_are_told_to_stop_cost_no_request_anything() -> None:
    worlds = [played(1000 + seed, calm=True) for seed in range(SEEDS)]
    assert sum(world.dismissed for world in worlds) > SEEDS
    assert sum(world.moved for world in worlds) > SEEDS
    assert sum(world.recomputed for world in worlds) == 0


def test_the_last_instance_serves_on_until_its_requests_have_ended() -> None:
    world = World(3)
    while len(world.pods) > 1:
        world.die()
    (only,) = world.pods
    world.breaks = False
    world.ask(0)
    world.plan()
    world.leave()
    for _ in range(500):
        world.now_s += 0.01
        world.plan()
        world.work()
        world.answer()
        world.go()
    assert world.over == {"r0"}
    assert world.got == world.expected
    assert only not in world.pods


def test_an_instance_that_is_alone_in_its_domain_leaves_though_requests_never_end() -> None:
    world = World(7)
    while world.joined < MAX_DEGREE + 1:
        world.join()
    last = f"i-{MAX_DEGREE}"
    world.breaks = False
    number = 0
    for step in range(6000):
        world.now_s += 0.01
        if len(world.prompts) - len(world.over) < 8:
            world.ask(number)
            number += 1
        if step == 500:
            world.pods[last].leaves = True
            world.book.drain(last, world.now_s)
        world.rng.choice((world.plan, world.work, world.work, world.answer, world.answer, world.go))()
    assert last not in world.pods
    assert world.recomputed == 0


def played(seed: int, *, calm: bool = False) -> World:
    """A world in which all requests have ended; in a ``calm`` one nothing dies, breaks or is aborted."""
    world = World(seed)
    world.breaks = not calm
    rng, asked = world.rng, 0
    for _ in range(100_000):
        world.now_s += 0.01
        if asked < 25 and rng.random() < 0.05:
            world.ask(asked)
            asked += 1
        elif rng.random() < (0.01 if calm else 0.002) and world.joined < 12:
            world.join()
        elif rng.random() < (0.01 if calm else 0.002) and len(world.pods) > 1 and world.joined < 12:
            world.leave() if calm or rng.random() < 0.3 else world.die()
        elif rng.random() < 0.002 and asked and not calm:
            request = f"r{rng.randrange(asked)}"
            if request not in world.over:
                world.aborted.add(request)
                world.over.add(request)
                world.book.abort(request)
        else:
            rng.choice((world.plan, world.work, world.work, world.answer, world.answer, world.go))()
            if not world.pods:  # all were told to stop, and went
                world.join()
        if (
            asked == 25
            and len(world.over) == 25
            and world.book.idle
            and not any(pod.todo for pod in world.pods.values())
        ):
            world.plan()
            if not any(pod.todo for pod in world.pods.values()):
                break
    assert world.over == {f"r{number}" for number in range(25)}
    assert {name: pod.held for name, pod in world.pods.items() if any(pod.held.values())} == {}
    assert world.book.slots().used == 0
    return world


def test_only_a_request_without_a_token_can_be_late_with_its_first_one() -> None:
    book = Requests(Settings(objectives=Objectives(ttft_s=2.0, tpot_s=0.1, ttft_s_per_prompt_token=0.01)), settle_s=0)
    book.join("i-0", 100, 0)
    book.add(SubmittedRequest("r", (0,) * 10, 5, arrival_s=1.0))
    (waiting,) = book.snapshot(2.0).waiting
    assert waiting.ttft_left_s == 1.0 + 2.0 + 0.1 - 2.0
    (prefill,) = book.next_round(2.0, MODEL).iterations
    book.done(prefill.number, "i-0", {"r": Sampled(1)}, 2.5)
    book.next_round(2.5, MODEL)
    book.leave("i-0")
    (again,) = book.snapshot(3.0).waiting
    assert again.ttft_left_s is None, "it had its first token"


@pytest.mark.parametrize("tokens_between", [True, False])
def test_pauses_of_instances_in_a_long_answer_are_not_taken_for_its_fault(tokens_between: bool) -> None:
    """A pause of more than 2 s breaks an iteration; a request that breaks all its iterations is refused."""
    book = Requests(Settings(), settle_s=0)
    book.join("i-0", 100, 0)
    book.add(SubmittedRequest("r", (0,) * 10, 40, arrival_s=0.0))
    refused, now_s = False, 0.0
    for number in range(20):
        now_s += 1.0
        found = book.next_round(now_s, MODEL)
        refused = refused or any(isinstance(event, Refused) for event in found.events)
        for iteration in found.iterations:
            if number == 0 or (tokens_between and number % 3 == 0):
                book.done(iteration.number, "i-0", {"r": Sampled(1)}, now_s)
            else:
                book.broke(iteration.number, "i-0", "i-0 sent nothing for 2 s", now_s)
    assert refused is not tokens_between
