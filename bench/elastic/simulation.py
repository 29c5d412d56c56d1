"""An elastic group in simulated time: the manager's own book and rounds, and instances as slow as ``times`` says."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pointsman.planner.simulator.elastic.serving import Serving
from pointsman.planner.simulator.elastic.types import Times
from pointsman.planner.simulator.events import Events
from pointsman.serving.elastic.latency_model import LatencyModel
from pointsman.serving.elastic.requests import Refused, Token
from pointsman.serving.elastic.types import Settings


@dataclass(frozen=True, slots=True)
class Asked:
    """A request: when, and how many tokens."""

    at_s: float
    prompt_tokens: int
    output_tokens: int

    @property
    def kv_tokens(self) -> int:
        """At its end: its last token has no KV."""
        return self.prompt_tokens + self.output_tokens - 1


@dataclass(slots=True)
class Outcome:
    """What became of it; ``end_s`` is infinite if it can never fit."""

    asked: Asked
    first_s: float = 0.0
    end_s: float = float("inf")


@dataclass(frozen=True, slots=True)
class Group:
    """``domains``: of each instance; those of one may work together. ``slots``: of an instance, tokens of KV."""

    domains: tuple[int, ...]
    slots: int
    model: LatencyModel
    times: Times
    settings: Settings

    @property
    def capacity(self) -> int:
        """Tokens of the longest request that fits."""
        return self.slots * max(self.domains.count(each) for each in self.domains)

    def outcomes(self, asked: Sequence[Asked]) -> Iterator[Outcome]:
        """Each request when it has ended, or can never fit."""
        found = [Outcome(each) for each in asked]
        ended: list[Outcome] = []
        events = Events()

        def token(event: Token) -> None:
            outcome = found[int(event.request)]
            outcome.first_s = outcome.first_s or events.now_s
            if event.finish is not None:
                outcome.end_s = events.now_s
                ended.append(outcome)

        def refused(event: Refused) -> None:
            ended.append(found[int(event.request)])

        serving = Serving(
            self.settings, self.times, self.model, events, token=token, refused=refused,
            settle_s=0.0,  # nobody comes or goes here
        )  # fmt: skip
        for number, domain in enumerate(self.domains):
            serving.join(f"i-{number}", self.slots, domain)

        def arrive(number: int) -> None:
            serving.arrive(str(number), asked[number].prompt_tokens, asked[number].output_tokens)

        for number, each in enumerate(asked):
            events.at(each.at_s, arrive, number)
        while events.next_s < float("inf"):
            events.step()
            yield from ended
            ended.clear()
