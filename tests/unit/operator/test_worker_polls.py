"""Workers that stop by themselves are found by polling, on a clock of the test's own."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fakes.clock import FakeClock
from pointsman.api.protocol.control import WorkerPhase, WorkerState
from pointsman.api.protocol.names import Role
from pointsman.kube.pods import ServiceKey
from pointsman.operator.core.snapshot import Worker
from pointsman.operator.worker_polls import MAX_POLLS_PER_S, POLL_S, WorkerPolls
from unit.operator.scenes import worker
from unit.operator.world import state

KEY = ("default", "chat")
SERVING = state(role=Role.DECODE)


class Service:
    """Workers, what they answer, how often they were polled, and how often their service was looked at."""

    def __init__(self, size: int = 2) -> None:
        self.workers = [worker(f"w{number}") for number in range(size)]
        self.states: dict[str, WorkerState | None] = {item.uid: SERVING for item in self.workers}
        self.polls: Counter[str] = Counter()
        self.looks = 0
        self.clock = FakeClock()
        self.polled = WorkerPolls(lambda: [(KEY, item) for item in self.workers], self._ask, self._look, self.clock)

    async def _ask(self, key: ServiceKey, asked: Worker) -> WorkerState | None:
        assert key == KEY
        self.polls[asked.uid] += 1
        return self.states[asked.uid]

    def _look(self, key: ServiceKey) -> None:
        assert key == KEY
        self.looks += 1

    @contextmanager
    def polling(self) -> Iterator[None]:
        task = asyncio.create_task(self.polled.run())
        try:
            yield
        finally:
            task.cancel()


async def test_each_serving_worker_is_polled_every_few_seconds_and_nothing_else_happens() -> None:
    it = Service(3)
    with it.polling():
        await it.clock.advance(10 * POLL_S - 0.1)
    assert it.polls == {"u-w0": 10, "u-w1": 10, "u-w2": 10}
    assert it.looks == 0


@pytest.mark.parametrize(
    "told",
    [
        state(phase=WorkerPhase.DRAINING, role=Role.DECODE),
        state(phase=WorkerPhase.IDLE),
        state(phase=WorkerPhase.FAILED, role=Role.DECODE),
        state(role=Role.PREFILL),
        None,  # its node may be lost: gateways know more
    ],
)
async def test_a_worker_that_does_not_serve_as_its_label_says_has_its_service_looked_at_once(
    told: WorkerState | None,
) -> None:
    it = Service()
    it.states["u-w1"] = told
    with it.polling():
        await it.clock.advance(POLL_S)
        assert (it.looks, it.polled.suspects("u-w1"), it.polled.suspects("u-w0")) == (1, True, False)
        await it.clock.advance(3 * POLL_S)
        assert it.looks == 1, "the doubt stands, and the service is looked at as long as it does"
        it.states["u-w1"] = SERVING
        await it.clock.advance(POLL_S)
        assert not it.polled.suspects("u-w1")


async def test_a_state_that_was_asked_for_elsewhere_ends_the_doubt_too() -> None:
    it = Service(1)
    it.states["u-w0"] = state(phase=WorkerPhase.DRAINING, role=Role.DECODE)
    with it.polling():
        await it.clock.advance(1)
        it.polled.answered(it.workers[0], state(phase=WorkerPhase.DRAINING, role=Role.DECODE))
        assert it.polled.suspects("u-w0")
        it.polled.answered(it.workers[0], SERVING)
        assert not it.polled.suspects("u-w0")


async def test_a_worker_that_went_leaves_no_doubt_behind() -> None:
    it = Service(1)
    it.states["u-w0"] = state(phase=WorkerPhase.DRAINING, role=Role.DECODE)
    with it.polling():
        await it.clock.advance(1)
        it.workers.clear()
        await it.clock.advance(2 * POLL_S)
        assert not it.polled.suspects("u-w0")


async def test_many_workers_are_polled_at_a_bounded_rate() -> None:
    it = Service(1000)
    with it.polling():
        await it.clock.advance(20)
    assert it.polls.total() <= 20 * MAX_POLLS_PER_S + 1
    assert len(it.polls) == 1000, "each has its turn"
