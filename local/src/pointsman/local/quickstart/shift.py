"""A load that shifts from many short prompts to long ones and back, while a planner looks on.

Nothing here moves a worker or a threshold: a policy is given to the service, requests are sent, and what planner and
operator do about it is watched. The clients ask again as soon as they are answered, so the pool that is the bottleneck
is full however fast or busy the computer is, and the objectives are measured on it first: what a long prompt takes when
it need not queue, and what short ones get from the layout that suits them.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

import yaml

from pointsman.api.protocol.names import Role
from pointsman.api.v1alpha1.conditions import ConditionStatus, ConditionType
from pointsman.api.v1alpha1.roleswitch import SwitchPhase
from pointsman.local.errors import LocalError
from pointsman.local.observation import Observer, ServiceView
from pointsman.local.quickstart.examples import EXAMPLE, ExampleFailed
from pointsman.local.quickstart.waiting import wait_until
from pointsman.local.traffic import Endpoint, Mix, Record, closed_loop, percentile, prompts, running_load

POLICY: Final = EXAMPLE.with_name("quickstart-policy.yaml")
# Below and above the threshold, which stays as it is (512 tokens).
SHORT: Final = Mix(lengths=(range(300, 480),), max_tokens=range(12, 25))
LONG: Final = Mix(lengths=(range(1_200, 1_800),), max_tokens=range(4, 9))
SHIFT_CLIENTS: Final = 8
# Objectives: two long prompts in a row are fine, a queue of them is not; short ones may get a little slower.
TTFT_TIMES: Final = 3.0  # a long prompt's that is alone
TPOT_TIMES: Final = 1.3  # the slowest tenth of the short ones'
_ALONE: Final = 3  # long prompts, one at a time
_TOGETHER_S: Final = 6.0  # short ones, by all clients
_TURN_S: Final = 180.0  # fifteen on a quiet computer
_AFTERWARDS_S: Final = 6.0  # with a layout that was found: longer than the policy's guards
_LOOK_S: Final = 1.0  # seldom: whoever looks takes time from the workers' two cores


class TurnedBack(LocalError):
    """The planner left the layout of a load that had not changed."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What the service gives before anything shifts, milliseconds.

    ``long_ttft_ms``: median TTFT of long prompts that are alone; ``short_tpot_ms``: 90th percentile of the mean time
    between tokens of short ones under the load of all clients.
    """

    long_ttft_ms: float
    short_tpot_ms: float

    @classmethod
    def of(cls, long: Iterable[Record], short: Iterable[Record]) -> "Measured":
        """From streamed answers. Raises LocalError if one was not answered."""
        long, short = list(long), list(short)
        for record in (*long, *short):
            if not record.served:
                raise LocalError(f"a request of the measurement was not answered: {record.error}")
        ttfts = [record.ttft_seconds for record in long if record.ttft_seconds is not None]
        # Of whole answers: single gaps show how chunks were read, several at a time when the reader is slow.
        tpots = [
            (record.token_seconds[-1] - record.token_seconds[0]) / (record.completion_tokens - 1)
            for record in short
            if record.completion_tokens is not None and record.completion_tokens > 1 and record.token_seconds
        ]
        ttft, tpot = percentile(ttfts, 50), percentile(tpots, 90)
        if not ttft or not tpot:
            raise LocalError(f"{len(ttfts)} long and {len(tpots)} short answers were streamed: objectives need some")
        return cls(1000 * ttft, 1000 * tpot)

    @property
    def objectives(self) -> dict[str, float]:
        """Objectives of a PlannerPolicy."""
        return {
            "ttftMs": round(TTFT_TIMES * self.long_ttft_ms),
            "tpotMs": round(TPOT_TIMES * self.short_tpot_ms, 1),
        }


async def measure(endpoint: Endpoint, *, seed: int, on_record: Callable[[Record], None] | None = None) -> Measured:
    """Some long prompts one at a time, then short ones from all clients. Raises LocalError if one was not answered."""
    # The first of each client are not counted: they shake hands and touch fresh memory.
    alone = prompts(replace(LONG, stream_share=1.0), seed=seed + 1)
    long = await closed_loop(endpoint, islice(alone, _ALONE + 1), clients=1, on_record=on_record)
    together = prompts(replace(SHORT, stream_share=1.0), seed=seed + 2)
    async with running_load(endpoint, together, clients=SHIFT_CLIENTS, on_record=on_record) as traffic:
        await asyncio.sleep(_TOGETHER_S)
        await traffic.answered(SHIFT_CLIENTS, timeout_seconds=_TURN_S)
    return Measured.of(long[1:], traffic.records[SHIFT_CLIENTS:])


def read_policy(path: Path = POLICY) -> dict[str, Any]:
    """The PlannerPolicy of an example file. Raises ExampleFailed."""
    try:
        document = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise ExampleFailed(f"{path} cannot be read: {error}") from error
    if not isinstance(document, dict) or document.get("kind") != "PlannerPolicy":
        raise ExampleFailed(f"{path} is no PlannerPolicy")
    return document


def with_objectives(policy: Mapping[str, Any], objectives: Mapping[str, float]) -> dict[str, Any]:
    """``policy`` with these objectives; the attainment stays."""
    changed = deepcopy(dict(policy))
    changed["spec"]["objectives"] |= objectives
    return changed


def with_prometheus(policy: Mapping[str, Any], url: str) -> dict[str, Any]:
    """``policy`` with a Prometheus that is queried instead of scraping workers and gateways."""
    changed = deepcopy(dict(policy))
    changed["spec"].setdefault("metrics", {})["prometheusUrl"] = url
    return changed


@dataclass(frozen=True, slots=True)
class Turn:
    """A part of the load, and the layout that the planner is expected to find for it."""

    title: str
    mix: Mix
    prefill: int
    decode: int


TURNS: Final = (
    Turn("many short prompts", SHORT, prefill=1, decode=2),
    Turn("long prompts", LONG, prefill=2, decode=1),
    Turn("many short prompts again", SHORT, prefill=1, decode=2),
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
                timeout_seconds=_TURN_S,
                on_view=on_view,
                look_seconds=_LOOK_S,
            )
            made = len(view.switches)
            await asyncio.sleep(_AFTERWARDS_S)
            await traffic.answered(1, timeout_seconds=_TURN_S)
            view = await observer.look()
            on_view(view)
            if len(view.switches) != made:
                why = view.switches[-1].spec.reason
                raise TurnedBack(f"a worker was switched again while the load stayed {turn.title}: {why}")
    return view


def _settled(view: ServiceView, turn: Turn) -> bool:
    """The planner is at work, the layout is the turn's, and nothing is on its way."""
    routable = (len(view.routable(Role.PREFILL)), len(view.routable(Role.DECODE)))
    ended = all(switch.status.phase is SwitchPhase.COMPLETED for switch in view.switches)
    return _planning(view) and ended and routable == (turn.prefill, turn.decode)


def _planning(view: ServiceView) -> bool:
    """The planner says that it decides for the service."""
    conditions = view.service.status.conditions if view.service is not None else ()
    return any(c.type == ConditionType.PLANNER_HEALTHY and c.status is ConditionStatus.TRUE for c in conditions)
