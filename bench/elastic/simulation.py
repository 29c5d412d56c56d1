"""An elastic group in simulated time: the manager's own book and rounds, and instances as slow as a model says.

Static systems are the same code with fewer choices: instances that never work together, or one that is all of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from pointsman.planner.simulator.elastic.serving import Serving
from pointsman.planner.simulator.elastic.types import Times
from pointsman.planner.simulator.events import Events
from pointsman.serving.elastic.latency_model import LatencyModel, PrefillTime
from pointsman.serving.elastic.requests import MemberLoad, Refused, Token
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


@dataclass
class Run:
    """One system over one sequence of requests. ``times``: None for those of the model and of ``decode``."""

    system: System
    decode: DecodeTime | None = None
    settings: Settings = field(default_factory=Settings)
    times: Times | None = None

    def outcomes(self, asked: Sequence[Asked], ended: Callable[[Outcome], None] = lambda _: None) -> list[Outcome]:
        """Simulate until all requests have ended. ``ended`` gets each one then, and may raise to stop earlier."""
        found = [Outcome(each) for each in asked]
        events = Events()

        def token(event: Token) -> None:
            outcome = found[int(event.request)]
            outcome.first_s = outcome.first_s or events.now_s
            if event.finish is not None:
                outcome.end_s = events.now_s
                ended(outcome)

        def refused(event: Refused) -> None:
            outcome = found[int(event.request)]
            outcome.refused = True
            ended(outcome)

        serving = Serving(
            self.settings, self._times(), self.system.model, events, token=token, refused=refused,
            settle_s=0.0,  # nobody comes or goes here
        )  # fmt: skip
        for number, domain in enumerate(self.system.domains):
            serving.join(f"i-{number}", self.system.slots, domain)

        def arrive(number: int) -> None:
            serving.arrive(str(number), asked[number].prompt_tokens, asked[number].output_tokens)

        for number, each in enumerate(asked):
            events.at(each.at_s, arrive, number)
        while events.next_s < float("inf"):
            events.step()
        return found

    def _times(self) -> Times:
        if self.times is not None:
            return self.times
        if self.decode is None:
            raise ValueError("one of decode and times is needed")
        return ModelTimes(self.system, self.decode, self.settings.migration_s_per_token or 0.0)


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
