"""A load that shifts from many short prompts to long ones and back, while a planner looks on.

Nothing here moves a worker or a threshold: a policy is given to the service, requests are sent, and what planner and
operator do about it is watched. The clients ask again as soon as they are answered, so the pool that is the bottleneck
is full however fast or busy the computer is; the objectives are a multiple of what it takes unloaded.
"""

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, Final

import yaml

from pointsman.api.protocol.names import Role
from pointsman.api.v1alpha1.roleswitch import SwitchPhase
from pointsman.local.errors import LocalError
from pointsman.local.observation import Observer, ServiceView
from pointsman.local.quickstart.examples import EXAMPLE, ExampleError
from pointsman.local.quickstart.waiting import wait_until
from pointsman.local.traffic import Endpoint, Mix, Record, closed_loop, prompts, running_load

POLICY: Final = EXAMPLE.with_name("quickstart-policy.yaml")
# Below the lowest and above the highest threshold of the policy.
SHORT: Final = Mix(lengths=(range(300, 480),), max_tokens=range(8, 17))
LONG: Final = Mix(lengths=(range(2_500, 3_500),), max_tokens=range(4, 9))
SHIFT_CLIENTS: Final = 8
# Objectives, in times of a request alone: two long prompts in a row are fine, a queue of them is not; a token
# may wait for short prompts of others, which a decode worker computes itself, and for the few cores that all share.
TTFT_TIMES: Final = 3.0
TPOT_TIMES: Final = 12.0
_ALONE: Final = 4  # requests of each kind, one at a time …
_ALONE_TOKENS: Final = 64  # … with answers so long
_TURN_SECONDS: Final = 90.0
_LOOK_SECONDS: Final = 1.0  # seldom: whoever looks takes time from the workers' two cores


class TurnedBack(LocalError):
    """The planner left the layout of a load that had not changed."""


@dataclass(frozen=True, slots=True)
class Unloaded:
    """What requests take that are alone on the service: (prompt tokens, TTFT in ms) of each kind, and TPOT; medians."""

    short: tuple[float, float]
    long: tuple[float, float]
    tpot_ms: float

    @classmethod
    def of(cls, short: Iterable[Record], long: Iterable[Record]) -> "Unloaded":
        """From streamed answers. Raises LocalError if one was not answered."""
        short, long = list(short), list(long)
        for record in (*short, *long):
            if record.ttft_seconds is None or record.prompt_tokens is None or (record.completion_tokens or 0) < 2:
                raise LocalError(f"a request that was alone on the service was not answered: {record.error}")
        return cls(
            short=_median_ttft(short),
            long=_median_ttft(long),
            # Of whole answers: single gaps show how chunks were read, several at a time when the reader is slow.
            tpot_ms=1000 * median(_tpot_seconds(record) for record in short),
        )

    def __str__(self) -> str:
        """What a person is told."""
        (few, quick_ms), (many, slow_ms) = self.short, self.long
        return (
            f"prompts of {few:.0f} tokens are answered after {quick_ms:.0f} ms, of {many:.0f} after {slow_ms:.0f} ms, "
            f"a token every {self.tpot_ms:.1f} ms"
        )

    @property
    def objectives(self) -> dict[str, float]:
        """Objectives of a PlannerPolicy: ``TTFT_TIMES`` the TTFT of a long prompt, ``TPOT_TIMES`` the TPOT."""
        return {"ttftMs": round(TTFT_TIMES * self.long[1]), "tpotMs": round(TPOT_TIMES * self.tpot_ms, 1)}


def _tpot_seconds(record: Record) -> float:
    return (record.token_seconds[-1] - record.token_seconds[0]) / ((record.completion_tokens or 0) - 1)


def _median_ttft(records: list[Record]) -> tuple[float, float]:
    tokens = median(record.prompt_tokens for record in records if record.prompt_tokens is not None)
    return tokens, 1000 * median(record.ttft_seconds for record in records if record.ttft_seconds is not None)


async def measure_unloaded(endpoint: Endpoint, *, seed: int) -> Unloaded:
    """Send some requests of each kind, one at a time. Raises LocalError if one was not answered."""
    found = []
    for number, mix in enumerate((SHORT, LONG)):
        streamed = Mix(lengths=mix.lengths, max_tokens=range(_ALONE_TOKENS, _ALONE_TOKENS + 1), stream_share=1.0)
        # One more than is counted: the first of a kind shakes hands and touches fresh memory.
        asked = islice(prompts(streamed, seed=seed + number), _ALONE + 1)
        found.append((await closed_loop(endpoint, asked, clients=1))[1:])
    return Unloaded.of(*found)


def read_policy(path: Path = POLICY) -> dict[str, Any]:
    """The PlannerPolicy of an example file. Raises ExampleError."""
    try:
        document = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise ExampleError(f"{path} cannot be read: {error}") from error
    if not isinstance(document, dict) or document.get("kind") != "PlannerPolicy":
        raise ExampleError(f"{path} is no PlannerPolicy")
    return document


def with_objectives(policy: Mapping[str, Any], objectives: Mapping[str, float]) -> dict[str, Any]:
    """``policy`` with these objectives; the attainment stays."""
    changed = deepcopy(dict(policy))
    changed["spec"]["objectives"] |= objectives
    return changed


@dataclass(frozen=True, slots=True)
class Turn:
    """A part of the load, and the layout that the planner is expected to find for it."""

    title: str
    mix: Mix
    prefill: int
    decode: int
    afterwards: int  # requests that are still sent when it has that layout; nothing may turn back then


TURNS: Final = (
    Turn("many short prompts", SHORT, prefill=1, decode=2, afterwards=120),
    Turn("long prompts", LONG, prefill=2, decode=1, afterwards=30),
    Turn("many short prompts again", SHORT, prefill=1, decode=2, afterwards=120),
)


async def shift_load(
    observer: Observer,
    endpoint: Endpoint,
    *,
    seed: int,
    on_turn: Callable[[Turn], None],
    on_view: Callable[[ServiceView], None],
    on_record: Callable[[Record], None],
) -> ServiceView:
    """Send the turns one after the other, each until the planner has the layout for it and a little longer.

    Returns the last view. Raises NotThere when a layout was not reached, TurnedBack when one was left again.
    """
    view = await observer.look()
    for number, turn in enumerate(TURNS):
        on_turn(turn)
        load = prompts(turn.mix, seed=seed + 10 + number)
        async with running_load(endpoint, load, clients=SHIFT_CLIENTS, on_record=on_record) as traffic:
            wanted = f"{turn.prefill}P{turn.decode}D for {turn.title}"
            holds = partial(_settled, turn=turn)
            view = await wait_until(
                observer,
                wanted,
                holds,
                timeout_seconds=_TURN_SECONDS,
                on_view=on_view,
                look_seconds=_LOOK_SECONDS,
            )
            made = len(view.switches)
            await traffic.answered(turn.afterwards, timeout_seconds=_TURN_SECONDS)
            view = await observer.look()
            on_view(view)
            if len(view.switches) != made:
                why = view.switches[-1].spec.reason
                raise TurnedBack(f"a worker was switched again while the load stayed {turn.title}: {why}")
    return view


def _settled(view: ServiceView, turn: Turn) -> bool:
    routable = (len(view.routable(Role.PREFILL)), len(view.routable(Role.DECODE)))
    return routable == (turn.prefill, turn.decode) and all(
        s.status.phase is SwitchPhase.COMPLETED for s in view.switches
    )
