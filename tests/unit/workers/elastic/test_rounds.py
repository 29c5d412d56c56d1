"""The manager's loop beside instances that answer at once: what it measures when, and that it keeps nothing back."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from pointsman.serving.elastic.iterations import Sampled
from pointsman.serving.elastic.latency_model import LatencyModel, PrefillTime
from pointsman.serving.elastic.requests import Refused, SubmittedRequest, Token
from pointsman.serving.elastic.types import Settings
from pointsman.workers.elastic.manager import rounds as module
from pointsman.workers.elastic.manager.latency_store import Measured, read_measured
from pointsman.workers.elastic.manager.metrics import ManagerMetrics
from pointsman.workers.elastic.manager.profiling import REPEATS
from pointsman.workers.elastic.manager.rounds import Events, Rounds
from pointsman.workers.elastic.protocol import Broken, Dismiss, Done, Hello, Iterate, Release, ToInstance
from waiting import eventually

SLOTS = 100
SENT_IN_VAIN = 64  # bytes of KV, by a hand-over that breaks


class Instances:
    """Stands for ``Links``: instances that answer in the next turn of the loop, or break what ``breaks`` names."""

    def __init__(self) -> None:
        self.told: list[tuple[str, ToInstance]] = []
        self.breaks: Callable[[Iterate], bool] = lambda _: False
        self.silent: set[str] = set()  # instances that compute for ever
        self.rounds: Rounds | None = None
        self.events: list[Token | Refused] = []

    def tell(self, name: str, what: ToInstance) -> None:
        """As Links."""
        self.told.append((name, what))
        if isinstance(what, Iterate) and name not in self.silent:
            asyncio.get_running_loop().call_soon(self._answer, name, what)

    def _answer(self, name: str, what: Iterate) -> None:
        assert self.rounds is not None
        if self.breaks(what):
            self.rounds.answered(name, Broken(what.number, "a defect", SENT_IN_VAIN if what.moves else 0))
            return
        mine = name == what.members[0]
        tokens = dict.fromkeys(what.sampling, Sampled(5)) if mine else {}
        self.rounds.answered(name, Done(what.number, tokens, 0.01))

    def hear(self, events: Events) -> None:
        """As vLLM's front."""
        self.events += events

    def measured_degrees(self) -> set[int]:
        """Of prefills that were no request's."""
        return {
            len(what.members)
            for _, what in self.told
            if isinstance(what, Iterate) and any(each.request.startswith("profile") for each in what.prompts)
        }

    def moves(self) -> int:
        """Iterations that hand KV over."""
        return len({what.number for _, what in self.told if isinstance(what, Iterate) and what.moves})


@asynccontextmanager
async def managed(
    model: LatencyModel | None = None, kept: Path | None = None
) -> AsyncIterator[tuple[Rounds, Instances]]:
    """A running loop without instances. ``kept``: its file of measured times."""
    instances = Instances()
    rounds = Rounds(Settings(), 4, 64, instances.hear, ManagerMetrics(CollectorRegistry()), kept)
    if model is not None:
        rounds._model = model
    instances.rounds = rounds
    task = asyncio.create_task(rounds.run(instances), name="rounds")  # type: ignore[arg-type]
    try:
        yield rounds, instances
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def hello(ordinal: int) -> Hello:
    return Hello(f"g-{ordinal}", f"boot-{ordinal}", "127.0.0.1:1", SLOTS, {})


def ask(name: str, tokens: int = 3, most: int = 4) -> SubmittedRequest:
    return SubmittedRequest(name, tuple(range(tokens)), most, 0.0)


def finished(instances: Instances) -> list[str]:
    return [each.request for each in instances.events if isinstance(each, Token) and each.finish is not None]


async def test_a_request_that_is_there_before_the_first_instance_is_served() -> None:
    async with managed() as (rounds, instances):
        rounds.add(ask("early"))
        await asyncio.sleep(0.02)
        rounds.joined(hello(0))
        await eventually(lambda: finished(instances) == ["early"], "it is answered")
        assert 1 in instances.measured_degrees()


async def test_the_last_token_is_told_and_its_kv_released_before_a_further_degree_is_measured() -> None:
    async with managed(LatencyModel({1: PrefillTime(0.01, 1e-3, 1e-7)})) as (rounds, instances):
        rounds.joined(hello(0))
        rounds.add(ask("r"))
        rounds.joined(hello(1))  # degree 2 is not measured yet
        await eventually(lambda: 2 in instances.measured_degrees(), "degree 2 is measured")
        first = next(
            place
            for place, (_, what) in enumerate(instances.told)
            if isinstance(what, Iterate) and len(what.members) == 2 and what.prompts[0].request.startswith("profile")
        )
        assert any(isinstance(what, Release) and "r" in what.requests for _, what in instances.told[:first])
        assert finished(instances) == ["r"]


@pytest.mark.parametrize("turns", range(6))
async def test_the_loop_ends_when_it_is_cancelled_in_the_turn_in_which_something_happens(turns: int) -> None:
    async with managed(LatencyModel({1: PrefillTime(0.01, 1e-3, 1e-7)})) as (rounds, instances):
        rounds.joined(hello(0))
        rounds.add(ask("r"))
        await eventually(lambda: finished(instances) == ["r"], "it waits for the next thing, with a time limit")
        rounds.leaves("g-0")
        for _ in range(turns):
            await asyncio.sleep(0)
        (loop,) = [each for each in asyncio.all_tasks() if each.get_name() == "rounds"]
        loop.cancel()
        done, _ = await asyncio.wait([loop], timeout=60)
        assert done


async def test_a_degree_that_breaks_is_left_alone_and_requests_are_served_by_those_that_work() -> None:
    async with managed(LatencyModel({1: PrefillTime(0.01, 1e-3, 1e-7)})) as (rounds, instances):
        instances.breaks = lambda what: len(what.members) == 2
        rounds.joined(hello(0))
        rounds.joined(hello(1))
        await eventually(lambda: 2 in instances.measured_degrees(), "it is tried")
        for number in range(5):  # the group is idle after each
            rounds.add(ask(f"r{number}"))
            await eventually(lambda: len(finished(instances)) == number + 1, "the request is served")  # noqa: B023
        together = {
            what.number: "moves" if what.moves else "degree 2"
            for _, what in instances.told
            if isinstance(what, Iterate) and len(what.members) == 2
        }
        assert list(together.values()) == ["degree 2", "moves"], "each is tried once"
        instances.breaks = lambda _: False
        rounds.joined(hello(2))
        await eventually(lambda: {2, 3} <= instances.measured_degrees(), "with another instance it is tried again")


async def test_moves_are_measured_once_and_a_manager_that_comes_back_reads_what_was_measured(tmp_path: Path) -> None:
    kept = tmp_path / "times.json"
    for moves in (REPEATS, 0):
        async with managed(kept=kept) as (rounds, instances):
            for ordinal in range(2):
                rounds.joined(hello(ordinal))
            rounds.add(ask("r"))
            await eventually(lambda: finished(instances) == ["r"], "it is answered")
            await eventually(lambda: rounds._move_s_per_token is not None, "the manager knows what a move takes")
            assert instances.moves() == moves
            released = [what.requests for _, what in instances.told if isinstance(what, Release)]
            assert (("profile-0",) in released) == bool(moves)
    assert read_measured(kept).move_s_per_token == rounds._move_s_per_token
    kept.write_text('{"moveSecondsPerToken": -1}')
    assert read_measured(kept) == Measured()


async def test_a_first_degree_that_breaks_once_is_measured_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_AGAIN_S", 0.01)
    async with managed() as (rounds, instances):
        broken = iter([True])
        instances.breaks = lambda _: next(broken, False)
        rounds.joined(hello(0))
        rounds.add(ask("r"))
        await eventually(lambda: finished(instances) == ["r"], "it is served")


async def test_an_instance_that_drains_while_a_degree_is_measured_is_dismissed() -> None:
    async with managed() as (rounds, instances):
        rounds.joined(hello(0))
        rounds.joined(hello(1))
        rounds.leaves("g-1")
        await eventually(lambda: ("g-1", Dismiss()) in instances.told, "it may go")
        assert ("g-0", Dismiss()) not in instances.told


async def test_a_request_whose_every_prefill_breaks_is_refused_and_the_others_go_on() -> None:
    async with managed(LatencyModel({1: PrefillTime(0.01, 1e-3, 1e-7)})) as (rounds, instances):
        instances.breaks = lambda what: any(each.request == "poison" for each in what.prompts)
        rounds.joined(hello(0))
        rounds.add(ask("poison"))
        await eventually(lambda: any(isinstance(each, Refused) for each in instances.events), "it is refused")
        rounds.add(ask("good"))
        await eventually(lambda: finished(instances) == ["good"], "the next one is served")
        (refused,) = [each for each in instances.events if isinstance(each, Refused)]
        assert (refused.request, refused.why) == ("poison", "5 iterations with it broke, the last one: a defect")


async def test_what_a_hand_over_that_breaks_has_sent_is_counted() -> None:
    async with managed(LatencyModel({1: PrefillTime(0.01, 1e-3, 1e-7)})) as (rounds, instances):
        rounds.joined(hello(0))
        rounds.add(ask("r", most=60))
        await eventually(lambda: bool(instances.events), "it has KV on the instance")
        broken = iter([True])
        instances.breaks = lambda what: bool(what.moves) and next(broken, False)
        rounds.joined(hello(1))
        rounds.leaves("g-0")
        await eventually(lambda: finished(instances) == ["r"], "it is answered")
        assert next(broken, None) is None, "a hand-over broke"
        assert rounds.state().totals.moved_bytes["drain"] == SENT_IN_VAIN


async def test_decode_steps_are_summed_and_those_of_broken_iterations_are_not() -> None:
    async with managed(LatencyModel({1: PrefillTime(0.01, 1e-3, 1e-7)})) as (rounds, instances):
        rounds.joined(hello(0))
        rounds.add(ask("r", most=5))
        await eventually(lambda: finished(instances) == ["r"], "it is answered")
        sums = decode_sums(rounds)
        assert (sums["steps"], sums["requests"], sums["requests_squared"]) == (4, 4, 4), (
            "the first token is a prefill's"
        )
        assert 0 < sums["request_seconds"] == sums["seconds"]
        broken = iter([True])
        instances.breaks = lambda what: bool(what.steps) and next(broken, False)
        rounds.add(ask("s", most=5))
        await eventually(lambda: finished(instances) == ["r", "s"], "it is answered")
        assert decode_sums(rounds)["steps"] == 8


def decode_sums(rounds: Rounds) -> dict[str, float]:
    (family,) = rounds._metrics.decode_sums.collect()
    return {each.labels["term"]: each.value for each in family.samples if each.name.endswith("_total")}
