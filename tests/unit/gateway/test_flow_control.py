"""Who is held and who goes, in whatever order requests, workers and bounds come and go."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.api.protocol.control import ModelInfo
from pointsman.api.protocol.names import Role
from pointsman.gateway.core.index import KvIndex
from pointsman.gateway.core.router import least_loaded
from pointsman.gateway.errors import GatewayError, NoWorkerAvailable, Overloaded
from pointsman.gateway.fleet import Fleet, Pick
from pointsman.gateway.flow_control import FlowControl, HoldLimits
from pointsman.gateway.metrics import GatewayMetrics
from pointsman.gateway.processor import Model
from pointsman.gateway.types import UNKNOWN_LOAD, Discovered, Worker, WorkerKey
from pointsman.serving.flow_control import UNBOUNDED, FlowBounds, has_room, in_time

MODEL = Model(
    ModelInfo(served_name="m", max_model_len=100, block_size=4, files=(), digest="d"),
    None,
    text_verified=True,
    chat_verified=True,
)
PROMPT_TOKENS = 100


@dataclass(eq=False)
class Request:
    """One that asked; ``pick`` once it went."""

    number: int
    task: "asyncio.Task[Pick | None]"
    late: bool  # when it came
    held_s: float | None = None
    pick: Pick | None = None

    @property
    def error(self) -> BaseException | None:
        return self.task.exception() if self.task.done() and not self.task.cancelled() else None


class Stage:
    """Flow control over a fleet without network, with a clock that a test moves."""

    def __init__(self, *, max_held: int = 100, hold_seconds: float = 600.0, bounds: FlowBounds = UNBOUNDED) -> None:
        self.now_s = 0.0
        self.fleet = Fleet(
            clock=self._clock,
            rng=Random(3),
            cost=least_loaded,
            index=KvIndex(),
            load_of=lambda _worker: UNKNOWN_LOAD,
            suspect_seconds=2.0,
        )
        self.metrics = GatewayMetrics("chat")
        limits = HoldLimits(max_held=max_held, hold_seconds=hold_seconds, patience_seconds=10.0)
        self.flow = FlowControl(self.fleet, self.metrics, limits, self._clock)
        self.bounds = bounds
        self.workers = (1, 1)
        self.discover()
        self.requests: list[Request] = []
        self.went: list[Request] = []  # in the order they were sent

    def discover(self, *, prefill: int | None = None, decode: int | None = None) -> None:
        self.workers = (
            self.workers[0] if prefill is None else prefill,
            self.workers[1] if decode is None else decode,
        )
        found = [Worker(WorkerKey(f"p{n}"), f"p{n}", f"http://p{n}", Role.PREFILL) for n in range(self.workers[0])]
        found += [Worker(WorkerKey(f"d{n}"), f"d{n}", f"http://d{n}", Role.DECODE) for n in range(self.workers[1])]
        self.fleet.apply(Discovered(tuple(found), bounds=self.bounds))
        for number in range(self.workers[1]):
            self.fleet.set_model(WorkerKey(f"d{number}"), MODEL)

    def bound(self, bounds: FlowBounds) -> None:
        self.bounds = bounds
        self.discover()

    async def ask(self, *, streamed: bool = True) -> Request:
        request: Request

        def choose() -> Pick | None:
            request.pick = self.fleet.pick(
                prompt_tokens=PROMPT_TOKENS, chain=(), digest=None, avoid=(), streamed=streamed
            )
            self.went.append(request)
            return request.pick

        def held(seconds: float) -> None:
            request.held_s = seconds

        late = not in_time(self.fleet.in_flight(), self.bounds)
        request = Request(len(self.requests), asyncio.create_task(self.flow.admit(choose, held)), late)
        self.requests.append(request)
        await settle()
        return request

    async def begin(self) -> Request:
        """One that decodes."""
        request = await self.ask()
        assert request.pick is not None
        request.pick.entry.produced(1)
        await settle()
        return request

    @property
    def held(self) -> list[Request]:
        return [request for request in self.requests if not request.task.done()]

    @property
    def running(self) -> list[Request]:
        return [r for r in self.requests if r.pick is not None and r.pick.entry in self._entries()]

    def _entries(self) -> list[Any]:
        return [r.pick.entry for r in self.requests if r.pick is not None and r.pick.entry._state != "ended"]

    def sample(self, name: str) -> float:
        value = self.metrics.registry.get_sample_value(name, {"service": "chat"})
        assert value is not None
        return value

    def _clock(self) -> float:
        return self.now_s


async def settle() -> None:
    """Everything that can run has run."""
    for _ in range(5):
        await asyncio.sleep(0)


def on_stage(play: Callable[[Stage], Any], **settings: Any) -> None:
    async def run() -> None:
        stage = Stage(**settings)
        await play(stage)
        for request in stage.requests:
            request.task.cancel()
        await asyncio.gather(*(request.task for request in stage.requests), return_exceptions=True)

    asyncio.run(run())


_KINDS = (
    "ask",
    "ask",
    "ask whole",
    "first token",
    "first token",
    "end",
    "end",
    "leave",
    "leave as it goes",
    "bounds",
    "workers",
)
_STEPS = st.lists(st.tuples(st.sampled_from(_KINDS), st.integers(0, 7)), min_size=5, max_size=50)
_BOUNDS = (
    FlowBounds(250, 4),
    FlowBounds(None, 2),
    FlowBounds(250, None),
    FlowBounds(1, 1),
    FlowBounds(1000, 10),
    FlowBounds(350, 6),
    FlowBounds(600, 3),
    UNBOUNDED,
)


@given(_STEPS)
def test_whatever_happens_order_is_kept_and_nothing_is_idle_while_others_are_held(steps: list[tuple[str, int]]) -> None:
    async def play(stage: Stage) -> None:
        left: list[Request] = []
        for _ in range(8):
            await stage.ask()
        for step, number in steps:
            held_before, went_before = stage.held, len(stage.went)
            if step in ("ask", "ask whole"):
                await stage.ask(streamed=step == "ask")
            elif step == "first token" and stage.running:
                request = stage.running[number % len(stage.running)]
                assert request.pick is not None
                request.pick.entry.produced(1)
            elif step == "end" and stage.running:
                request = stage.running[number % len(stage.running)]
                assert request.pick is not None
                request.pick.entry.end()
            elif step == "leave" and stage.held:
                left.append(stage.held[number % len(stage.held)])
                left[-1].task.cancel()
            elif step == "leave as it goes" and stage.held:
                # The room and the client's leaving in one turn of the loop, in either order.
                left.append(stage.held[0])
                if number % 2:
                    left[-1].task.cancel()
                stage.bound(UNBOUNDED)
                left[-1].task.cancel()
            elif step == "bounds":
                stage.bound(_BOUNDS[number])
            elif step == "workers":
                stage.discover(prefill=number % 3, decode=1 + number // 3)
            await settle()
            gone = stage.went[went_before:]
            late = [r for r in gone if r in held_before and r.late]
            assert late == [r for r in held_before if r in gone and r.late], "out of order"
            assert [r for r in held_before if r in gone or r in left or r in stage.held] == held_before, "lost"
            in_flight = stage.fleet.in_flight()
            assert not (stage.held and has_room(in_flight, stage.bounds)), "idle, and others are held"
            assert stage.sample("pointsman_gateway_held") == len(stage.held)
            for request in left:
                assert request.pick is None or request.pick.entry._state == "ended", "booked for one that left"
            assert sum(stage.fleet.book.of(WorkerKey(f"d{n}")).in_flight for n in range(4)) == len(stage.running)
        stage.bound(UNBOUNDED)
        await settle()
        assert not stage.held
        assert all(request.error is None for request in stage.requests)

    on_stage(play, bounds=_BOUNDS[0])


@given(st.integers(1, 40), st.integers(1, 6), st.sampled_from([b for b in _BOUNDS if b != UNBOUNDED]))
def test_everybody_goes_in_order_once_the_load_is_gone_and_never_more_prompts_than_there_is_room_for(
    requests: int, decode: int, bounds: FlowBounds
) -> None:
    async def play(stage: Stage) -> None:
        stage.discover(decode=decode)
        for _ in range(requests):
            await stage.ask()
        while stage.running:
            in_flight = stage.fleet.in_flight()
            if bounds.pending_tokens_per_prefill_worker is not None:
                assert in_flight.pending_tokens <= bounds.pending_tokens_per_prefill_worker + PROMPT_TOKENS
            request = stage.running[0]
            assert request.pick is not None
            request.pick.entry.produced(1)
            request.pick.entry.end()
            await settle()
        assert [request.number for request in stage.went] == list(range(requests))

    on_stage(play, bounds=bounds)


def test_who_is_in_time_passes_those_that_are_late() -> None:
    async def play(stage: Stage) -> None:
        first, second, late = [await stage.ask() for _ in range(3)]
        assert stage.held == [late]
        assert first.pick is not None
        first.pick.entry.end()
        await settle()
        passing = await stage.ask()
        assert passing.pick is not None
        assert passing.held_s is None
        assert stage.held == [late]
        for request in (second, passing):
            assert request.pick is not None
            request.pick.entry.end()
        await settle()
        assert late.pick is not None

    on_stage(play, bounds=FlowBounds(190, None))


def test_a_prompt_longer_than_may_wait_takes_up_one_prefill_worker_and_no_other() -> None:
    async def play(stage: Stage) -> None:
        stage.discover(prefill=3)
        three = [await stage.ask() for _ in range(3)]  # each of a hundred tokens, where forty may be ahead
        assert stage.went == three
        late = await stage.ask()
        assert stage.held == [late]
        assert three[0].pick is not None
        three[0].pick.entry.produced(1)
        await settle()
        assert stage.went == [*three, late]

    on_stage(play, bounds=FlowBounds(40, None))


def test_who_can_still_be_in_time_waits_for_room_to_decode_and_goes_before_newcomers() -> None:
    async def play(stage: Stage) -> None:
        running = await stage.begin()
        waiting, newcomer = await stage.ask(), await stage.ask()
        assert stage.held == [waiting, newcomer]
        stage.now_s = 9.0  # of ten that both may wait
        assert running.pick is not None
        running.pick.entry.end()
        await settle()
        assert stage.went == [running, waiting, newcomer]

    on_stage(play, bounds=FlowBounds(1000, 1, slack_ms=10_000))


def test_who_waited_too_long_for_room_lets_pass_who_is_in_time() -> None:
    async def play(stage: Stage) -> None:
        running, other = await stage.begin(), await stage.begin()
        waiting = await stage.ask()
        stage.now_s = 10.0
        newcomer = await stage.ask()
        assert stage.held == [waiting, newcomer]
        assert running.pick is not None
        running.pick.entry.end()  # room for one, but not for one that is late
        await settle()
        assert stage.held == [waiting]
        assert newcomer.pick is not None
        assert other.pick is not None
        for request in (other, newcomer):
            assert request.pick is not None
            request.pick.entry.end()
        await settle()
        assert waiting.pick is not None

    on_stage(play, bounds=FlowBounds(1000, 2, slack_ms=10_000))


def test_a_first_token_makes_room_for_the_next_prompt() -> None:
    async def play(stage: Stage) -> None:
        first, second, held = [await stage.ask() for _ in range(3)]
        assert stage.held == [held]
        for request in (first, second):
            assert request.pick is not None
            request.pick.entry.produced(1)
            await settle()
        assert held.pick is not None

    on_stage(play, bounds=FlowBounds(150, None))


@pytest.mark.parametrize("leaves_first", [True, False])
def test_a_client_that_leaves_in_the_moment_of_its_release_leaves_nothing_behind(leaves_first: bool) -> None:
    async def play(stage: Stage) -> None:
        running, leaving, behind = await stage.begin(), await stage.ask(), await stage.ask()
        assert running.pick is not None
        if leaves_first:
            leaving.task.cancel()
        running.pick.entry.end()
        leaving.task.cancel()
        await settle()
        assert leaving.task.cancelled()
        assert (leaving in stage.went) is not leaves_first
        assert behind.pick is not None
        assert [request.number for request in stage.running] == [behind.number]

    on_stage(play, bounds=FlowBounds(None, 1))


def test_who_leaves_makes_a_place_in_the_line() -> None:
    async def play(stage: Stage) -> None:
        _running, leaving = await stage.begin(), await stage.ask()
        leaving.task.cancel()
        await settle()
        assert (await stage.ask()).error is None
        assert len(stage.held) == 1

    on_stage(play, bounds=FlowBounds(None, 1), max_held=1)


def test_answers_that_are_not_streamed_count_as_decoding_but_not_as_pending() -> None:
    async def play(stage: Stage) -> None:
        for _ in range(6):
            assert (await stage.ask(streamed=False)).pick is not None
        assert stage.fleet.in_flight().pending_tokens == 0
        stage.bound(FlowBounds(150, 6))
        assert (await stage.ask(streamed=False)).pick is None

    on_stage(play, bounds=FlowBounds(150, None))


def test_beyond_the_longest_line_and_after_the_longest_time_it_is_429() -> None:
    async def play(stage: Stage) -> None:
        running, first = await stage.begin(), await stage.ask()
        assert running.pick is not None
        stage.now_s = 4.25
        second = await stage.ask()
        refused = await stage.ask()
        assert isinstance(refused.error, Overloaded)
        assert (refused.error.status, refused.error.reason, refused.error.retry_after_seconds) == (429, "overloaded", 1)
        assert refused.held_s is None
        stage.bound(FlowBounds(50, 1, 60_000))  # one prompt at a time
        running.pick.entry.end()
        await settle()
        assert first.held_s == pytest.approx(4.25)
        stage.now_s = 34.25
        stage.flow.look()
        await settle()
        assert isinstance(second.error, Overloaded)
        assert (second.error.reason, second.error.retry_after_seconds) == ("held-too-long", 5)  # the last one's 4.25 s
        assert second.held_s == 30
        assert stage.sample("pointsman_gateway_holds_total") == 2
        assert stage.sample("pointsman_gateway_hold_seconds_sum") == pytest.approx(34.25)

    on_stage(play, bounds=FlowBounds(None, 1, 60_000), max_held=2, hold_seconds=30.0)


def test_nobody_is_held_for_want_of_a_worker_and_who_is_held_outlives_a_short_want() -> None:
    async def play(stage: Stage) -> None:
        running, held = await stage.begin(), await stage.ask()
        assert running.pick is not None
        stage.discover(decode=0)
        newcomer = await stage.ask()
        assert newcomer.task.done()
        assert newcomer.pick is None  # the patience of the attempts decides
        stage.now_s = 9.5
        stage.flow.look()
        running.pick.entry.end()
        await settle()
        assert stage.held == [held]
        stage.discover(decode=1)
        await settle()
        assert held.pick is not None
        held.pick.entry.produced(1)
        last = await stage.ask()
        stage.discover(decode=0)
        stage.now_s += 10
        stage.flow.look()
        await settle()
        assert isinstance(last.error, NoWorkerAvailable)

    on_stage(play, bounds=FlowBounds(None, 1))


def test_a_defect_in_choosing_for_one_request_is_its_own() -> None:
    async def play(stage: Stage) -> None:
        running = await stage.begin()

        def broken() -> Pick | None:
            raise ZeroDivisionError

        victim = asyncio.create_task(stage.flow.admit(broken, lambda _seconds: None))
        behind = await stage.ask()
        assert running.pick is not None
        running.pick.entry.end()
        await settle()
        assert isinstance(victim.exception(), ZeroDivisionError)
        assert behind.pick is not None

    on_stage(play, bounds=FlowBounds(None, 1))


def test_when_the_gateway_ends_who_is_held_is_told_in_time() -> None:
    async def play(stage: Stage) -> None:
        running, first, second = await stage.begin(), await stage.ask(), await stage.ask()
        assert running.pick is not None
        stage.bound(FlowBounds(50, 1))  # one prompt at a time
        stage.flow.end_within(15.0)
        stage.now_s = 14.9
        running.pick.entry.end()
        await settle()
        assert first.pick is not None
        stage.now_s = 15.0
        stage.flow.look()
        await settle()
        assert isinstance(second.error, GatewayError)
        assert second.error.status == 429

    on_stage(play, bounds=FlowBounds(None, 1))
