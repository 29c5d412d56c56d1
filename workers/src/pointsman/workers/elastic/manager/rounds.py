"""The loop of an elastic group's manager: whatever happens, plan a round, and tell the instances."""

import asyncio
import itertools
import logging
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final
from uuid import uuid4

from pointsman.api.protocol.elastic import (
    ElasticObjectives,
    ElasticState,
    InstanceState,
    IterationState,
    PrefillTimeState,
)
from pointsman.process.clock import SYSTEM_CLOCK, Clock
from pointsman.serving.elastic.iterations import Move, Prompt
from pointsman.serving.elastic.latency_model import LatencyModel, PrefillTime
from pointsman.serving.elastic.requests import Iteration, Refused, Requests, SubmittedRequest, Token
from pointsman.serving.elastic.types import Settings
from pointsman.serving.objectives import Objectives
from pointsman.workers.elastic.manager.latency_store import Measured, keep_measured, read_measured
from pointsman.workers.elastic.manager.links import Links
from pointsman.workers.elastic.manager.metrics import ManagerMetrics
from pointsman.workers.elastic.manager.profiling import measure_degree, measure_move
from pointsman.workers.elastic.protocol import Broken, Dismiss, Done, Hello, Iterate, Release

log = logging.getLogger(__name__)

FIRST_AGAIN_S: Final = 1.0
AGAIN_S: Final = 60.0
"""When a degree whose measuring broke is measured again; the first degree is awaited by all requests."""
_MOVES: Final = 0  # beside the degrees: what takes how long to hand over

Events = Sequence[Token | Refused]


class Rounds:
    """Decides what the instances compute. ``tell`` gets what happened to requests, in order.

    ``max_degree``: instances of a group at most; ``longest``: tokens of the longest prompt.
    """

    def __init__(
        self,
        settings: Settings,
        max_degree: int,
        longest: int,
        tell: Callable[[Events], None],
        metrics: ManagerMetrics,
        model_file: Path | None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._clock = clock
        self._requests = Requests(settings)
        self._metrics = metrics
        self._max_degree = max_degree
        self._longest = longest
        self._tell = tell
        self._links: Links | None = None
        self._objectives: ElasticObjectives | None = None
        self._hellos: dict[str, Hello] = {}
        self._model_file = model_file
        kept = read_measured(model_file)
        self._model = kept.prefills
        self._move_s_per_token: float | None = None
        if kept.move_s_per_token is not None:
            self._moves_take(kept.move_s_per_token)
        self._changed = asyncio.Event()
        self._manager = uuid4().hex[:8]
        self._epochs = itertools.count(1)
        self._joined: dict[str, tuple[str, tuple[str, ...]]] = {}  # by member: its last group's epoch and members
        self._measured: list[tuple[Iteration, asyncio.Event]] = []  # under way
        self._began_s: dict[int, tuple[Iteration, float]] = {}  # iterations under way
        self._again_s: dict[int, float] = {}  # when a degree may be measured that broke before

    # --- the front ---

    def add(self, ask: SubmittedRequest) -> None:
        """A request arrives."""
        self._requests.add(ask)
        self._changed.set()

    def abort(self, request: str) -> None:
        """Nobody waits for it any more."""
        self._requests.abort(request)
        self._changed.set()

    def aim_at(self, objectives: ElasticObjectives | None) -> None:
        """What requests must meet from now on; None: nothing is known of it."""
        self._objectives = objectives
        self._requests.aim_at(
            None
            if objectives is None
            else Objectives(objectives.ttft_seconds, objectives.tpot_seconds, objectives.ttft_seconds_per_prompt_token)
        )
        self._changed.set()

    def load(self) -> tuple[int, int, float]:
        """Requests that run and that wait, and the share of the slots in use."""
        slots = self._requests.slots()
        return *self._requests.counts(), slots.used / slots.total if slots.total else 0.0

    # --- the instances ---

    def joined(self, hello: Hello) -> None:
        """See Listener."""
        self._hellos[hello.name] = hello
        self._again_s.clear()
        self._requests.join(hello.name, hello.slots, domain_of(hello.name, self._max_degree))
        self._changed.set()

    def left(self, name: str) -> None:
        """See Listener."""
        del self._hellos[name]
        self._forget_group(name)
        self._requests.leave(name)
        self._ended()
        self._changed.set()

    def answered(self, name: str, answer: Done | Broken) -> None:
        """See Listener."""
        now_s = self._clock.monotonic_s()
        if answer.number in self._began_s:
            self._metrics.moved(self._began_s[answer.number][0], answer.moved_bytes)
        if isinstance(answer, Done):
            self._requests.done(answer.number, name, answer.tokens, now_s)
        else:
            log.warning("iteration broken", extra={"instance": name, "why": answer.why})
            self._forget_group(name)
            self._requests.broke(answer.number, name, answer.why, now_s)
        self._ended()
        self._changed.set()

    def leaves(self, name: str) -> None:
        """See Listener."""
        self._requests.drain(name, self._clock.monotonic_s())
        self._changed.set()

    def state(self) -> ElasticState:
        """The group at this moment."""
        running, waiting = self._requests.counts()
        return ElasticState(
            manager=self._manager,
            instances=tuple(
                InstanceState(
                    name=name,
                    slots=hello.slots,
                    used_slots=self._requests.used_slots(name),
                    draining=self._requests.draining(name),
                )
                for name, hello in sorted(self._hellos.items())
            ),
            iterations=tuple(
                IterationState(
                    phase="Prefill" if each.prompts else "Decode" if each.steps else "Move",
                    instances=each.members,
                    requests=len(set(each.requests)),
                    tokens=self._requests.tokens_in(each),
                )
                for each in self._requests.iterations()
            ),
            running=running,
            waiting=waiting,
            latency_model=tuple(
                PrefillTimeState(
                    degree=degree,
                    alpha_seconds=time_of.alpha_s,
                    beta_seconds=time_of.beta_s,
                    gamma_seconds=time_of.gamma_s,
                    error=time_of.error,
                )
                for degree, time_of in sorted(self._model.by_degree.items())
            ),
            totals=self._metrics.totals(),
            objectives=self._objectives,
        )

    # --- the loop ---

    async def run(self, links: Links) -> None:
        """Work until cancelled."""
        self._links = links
        while True:
            # What does not fit is refused when no instance has come or gone for a while, without anything happening.
            left_s = self._requests.settled_s - self._clock.monotonic_s()
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s + 0.1 if 0 < left_s < math.inf else None):
                    await self._changed.wait()
            self._changed.clear()
            began_s = self._clock.monotonic_s()
            done = self._requests.next_round(began_s, self._model)
            if done.plan is not None:
                self._metrics.round_seconds.observe(self._clock.monotonic_s() - began_s)
                self._metrics.planned(done.plan)
                for reason in done.plan.reasons:
                    log.debug("round", extra={"reason": reason})
            for name, requests in done.release.items():
                links.tell(name, Release(requests))
            for iteration in done.iterations:
                self._metrics.begun(iteration)
                self._start(iteration)
            for name in self._requests.dismiss():
                links.tell(name, Dismiss())
            self._metrics.recomputed.inc(done.recomputed)
            slots = self._requests.slots()
            self._metrics.instances.set(len(self._hellos))
            self._metrics.slots.labels("total").set(slots.total)
            self._metrics.slots.labels("free").set(slots.total - slots.used)
            if done.events:
                self._tell(done.events)
            await self._measure()

    def _start(self, iteration: Iteration) -> None:
        assert self._links is not None
        self._began_s[iteration.number] = iteration, self._clock.monotonic_s()
        leader = self._hellos[iteration.members[0]]
        what = Iterate(
            iteration.number,
            self._epoch(iteration.members),
            iteration.members,
            leader.store,
            iteration.prompts,
            iteration.steps,
            iteration.moves,
            iteration.sampling,
        )
        for name in iteration.members:
            self._links.tell(name, what)

    def _epoch(self, members: tuple[str, ...]) -> str:
        """Of the group of ``members``: a group that none of them has left since is used again."""
        known = {self._joined.get(name) for name in members}
        found = known.pop()
        if known or found is None or found[1] != members:
            found = (f"{self._manager}-{next(self._epochs)}", members)
        self._joined |= dict.fromkeys(members, found)
        return found[0]

    def _forget_group(self, name: str) -> None:
        group = self._joined.get(name)
        if group is not None:
            for member in group[1]:
                if self._joined.get(member) == group:
                    del self._joined[member]

    # --- measuring ---

    async def _measure(self) -> None:
        """Measure the degrees that the instances can form since one joined, while no request waits for it.

        Without any degree nothing can be prefilled, so the first one is measured whoever waits.
        """
        while (members := self._unmeasured()) and (
            self._requests.resting if not self._model.by_degree else self._requests.idle
        ):
            degree = len(members)
            slots = min(self._hellos[name].slots for name in members)

            async def measure(prompts: Sequence[Prompt], members: tuple[str, ...] = members) -> float:
                try:
                    return await self._alone(members, prompts)
                finally:
                    self._released(members, prompts)

            try:
                time_of: PrefillTime = await measure_degree(measure, degree, slots, self._longest)
            except _Broken:
                self._later(degree, members)
                return
            self._model = LatencyModel({**self._model.by_degree, degree: time_of})
            self._keep()
            log.info("degree measured", extra={"degree": degree, "error": round(time_of.error, 3)})
        await self._measure_moves()

    async def _measure_moves(self) -> None:
        """Measure once how long KV takes from one instance to another, while there is no request."""
        pair = tuple(self._together()[:2])
        if self._move_s_per_token is not None or len(pair) < 2 or not self._requests.idle or not self._due(_MOVES):
            return
        slots = min(self._hellos[name].slots for name in pair)
        computed: list[Prompt] = []

        async def prefill(prompts: Sequence[Prompt]) -> float:
            computed.extend(prompts)
            return await self._alone(pair[:1], prompts)

        async def move(moves: Sequence[Move]) -> float:
            return await self._alone(pair, moves=moves)

        try:
            self._moves_take(await measure_move(prefill, move, slots, self._longest))
        except _Broken:
            self._later(_MOVES, pair)
        else:
            self._keep()
            log.info("moves measured", extra={"seconds_per_token": self._move_s_per_token})
        finally:
            self._released(pair, computed)

    async def _alone(
        self, members: tuple[str, ...], prompts: Sequence[Prompt] = (), moves: Sequence[Move] = ()
    ) -> float:
        """Seconds of an iteration besides the rounds. Raises _Broken."""
        if not self._hellos.keys() >= set(members) or any(map(self._requests.draining, members)):
            raise _Broken
        began_s = self._clock.monotonic_s()
        iteration = self._requests.begin(members, prompts, moves)
        ended = asyncio.Event()
        self._measured.append((iteration, ended))
        self._start(iteration)
        await ended.wait()
        took_s = self._clock.monotonic_s() - began_s
        if iteration.broken:
            raise _Broken
        return took_s

    def _released(self, members: tuple[str, ...], prompts: Sequence[Prompt]) -> None:
        assert self._links is not None
        for name in members:
            self._links.tell(name, Release(tuple(prompt.request for prompt in prompts)))

    def _moves_take(self, seconds_per_token: float) -> None:
        self._move_s_per_token = seconds_per_token
        self._requests.vacate(seconds_per_token)

    def _keep(self) -> None:
        keep_measured(self._model_file, Measured(self._model, self._move_s_per_token))

    def _due(self, degree: int) -> bool:
        return self._again_s.get(degree, 0.0) <= self._clock.monotonic_s()

    def _later(self, degree: int, members: tuple[str, ...]) -> None:
        """By a member that left or is to leave, most likely. Meanwhile the degrees that are known serve."""
        again_s = AGAIN_S if self._model.by_degree else FIRST_AGAIN_S
        self._again_s[degree] = self._clock.monotonic_s() + again_s
        log.warning(
            "the measuring of a degree broke, and is repeated",
            extra={"degree": degree, "members": members, "again_s": again_s},
        )
        asyncio.get_running_loop().call_later(again_s, self._changed.set)

    def _unmeasured(self) -> tuple[str, ...] | None:
        """Members of a group of a degree that is not measured."""
        largest = self._together()
        for degree in range(1, len(largest) + 1):
            if degree not in self._model.by_degree and self._due(degree):
                return tuple(largest[:degree])
        return None

    def _together(self) -> list[str]:
        """Instances of the domain that has most of them; not those that leave."""
        domains: dict[int, list[str]] = {}
        for name in sorted(each for each in self._hellos if not self._requests.draining(each)):
            domains.setdefault(domain_of(name, self._max_degree), []).append(name)
        return max(domains.values(), key=len, default=[])

    def _ended(self) -> None:
        """Look for iterations that nobody is awaited for."""
        now_s = self._clock.monotonic_s()
        for number, (iteration, began_s) in list(self._began_s.items()):
            if not iteration.awaited:
                del self._began_s[number]
                if not iteration.broken:
                    self._metrics.ended(iteration, now_s - began_s)
        for iteration, ended in self._measured:
            if not iteration.awaited:
                ended.set()
        self._measured = [each for each in self._measured if not each[1].is_set()]


class _Broken(Exception):
    """An iteration that was measured."""


def domain_of(name: str, max_degree: int) -> int:
    """Instances work together with those of the same ``max_degree`` consecutive ordinals; names end in ``-ordinal``."""
    ordinal = name.rpartition("-")[2]
    return int(ordinal) // max_degree if ordinal.isdecimal() else 0
