"""The keyed work queue, on a clock of the test's own."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.clock import FakeClock
from pointsman.operator.work_queue import QueueClosed, QueueStats, WorkQueue


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def queue(clock: FakeClock) -> AsyncIterator[WorkQueue[str]]:
    yield WorkQueue(clock=clock, jitter=lambda: 0.0)


async def test_a_burst_of_one_key_is_one_piece_of_work(queue: WorkQueue[str]) -> None:
    for _ in range(100):
        queue.add("a")
    assert await queue.get() == "a"
    assert queue.stats().ready == 0


async def test_keys_come_in_the_order_they_were_first_added(queue: WorkQueue[str]) -> None:
    for key in ("b", "a", "b", "c"):
        queue.add(key)
    assert [await queue.get() for _ in range(3)] == ["b", "a", "c"]


async def test_a_key_added_while_it_runs_runs_again_after_and_not_beside_itself(queue: WorkQueue[str]) -> None:
    queue.add("a")
    await queue.get()
    queue.add("a")
    queue.add("a")
    assert queue.stats().ready == 0
    queue.done("a")
    assert await queue.get() == "a"
    queue.done("a")
    assert queue.stats().ready == 0


async def test_a_failing_key_backs_off_from_half_a_second_to_a_minute(queue: WorkQueue[str], clock: FakeClock) -> None:
    delays_s = []
    queue.add("a")
    for _ in range(10):
        await queue.get()
        delays_s.append(queue.failed("a"))
        await clock.advance(delays_s[-1] - 0.001)
        assert queue.stats().ready == 0
        await clock.advance(0.001)
    assert delays_s == [0.5, 1, 2, 4, 8, 16, 32, 60, 60, 60]


async def test_success_resets_the_back_off(queue: WorkQueue[str], clock: FakeClock) -> None:
    queue.add("a")
    await queue.get()
    queue.failed("a")
    await clock.advance(0.5)
    await queue.get()
    queue.done("a")
    queue.add("a")
    await queue.get()
    assert queue.failed("a") == 0.5


async def test_jitter_takes_up_to_a_fifth_off_a_back_off(clock: FakeClock) -> None:
    queue: WorkQueue[str] = WorkQueue(clock=clock, jitter=lambda: 0.999)
    queue.add("a")
    await queue.get()
    assert queue.failed("a") == pytest.approx(0.4, abs=0.001)


async def test_of_two_delays_the_earlier_counts(queue: WorkQueue[str], clock: FakeClock) -> None:
    queue.add_later("a", 10)
    queue.add_later("a", 5)
    queue.add_later("a", 20)
    await clock.advance(5)
    assert queue.stats().ready == 1
    await queue.get()
    queue.done("a")
    await clock.advance(100)
    assert queue.stats().ready == 0


async def test_a_change_does_not_wait_for_the_back_off(queue: WorkQueue[str]) -> None:
    queue.add("a")
    await queue.get()
    queue.failed("a")
    queue.add("a")
    assert queue.stats().ready == 1


async def test_a_forgotten_key_does_not_come_back(queue: WorkQueue[str], clock: FakeClock) -> None:
    queue.add("a")
    await queue.get()
    queue.failed("a")
    queue.forget("a")
    await clock.advance(100)
    assert queue.stats() == QueueStats(ready=0, running=0, delayed=0, failing=0, oldest_age_s=0.0)


async def test_stats_tell_how_long_the_oldest_key_waits(queue: WorkQueue[str], clock: FakeClock) -> None:
    queue.add("a")
    await clock.advance(3)
    queue.add("b")
    assert queue.stats().oldest_age_s == 3


async def test_a_getter_that_is_cancelled_when_woken_passes_the_key_on(queue: WorkQueue[str]) -> None:
    first, second = asyncio.create_task(queue.get()), asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.add("a")
    first.cancel()
    async with asyncio.timeout(60):
        assert await second == "a"


async def test_closing_ends_waiting_getters_and_lets_running_work_end(clock: FakeClock) -> None:
    queue: WorkQueue[str] = WorkQueue(clock=clock)
    started, finish = asyncio.Event(), asyncio.Event()

    async def work(_: str) -> None:
        started.set()
        await finish.wait()

    running = asyncio.create_task(queue.run(work, workers=3))
    queue.add("a")
    await started.wait()
    queue.close()
    queue.add("b")
    await clock.settle()
    assert not running.done()
    finish.set()
    async with asyncio.timeout(60):
        await running
    with pytest.raises(QueueClosed):
        await queue.get()


async def test_work_that_asks_to_be_called_again_is(queue: WorkQueue[str], clock: FakeClock) -> None:
    calls_at_s: list[float] = []

    async def work(_: str) -> float:
        calls_at_s.append(clock.monotonic_s())
        return 30.0

    running = asyncio.create_task(queue.run(work))
    queue.add("a")
    await clock.advance(65)
    assert [at_s - calls_at_s[0] for at_s in calls_at_s] == [0, 30, 60]
    queue.close()
    await running


async def test_one_keys_failure_is_reported_and_does_not_stop_the_others(
    queue: WorkQueue[str], clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    done: list[str] = []

    async def work(key: str) -> None:
        if key == "bad":
            raise RuntimeError("broken")
        done.append(key)

    running = asyncio.create_task(queue.run(work, workers=1))
    queue.add("bad")
    queue.add("good")
    await clock.settle()
    assert done == ["good"]
    (failed,) = (record.__dict__ for record in caplog.records)
    assert (failed["key"], failed["why"], failed["retry_in_s"]) == ("bad", "broken", 0.5)
    queue.close()
    await running


_steps = st.lists(
    st.tuples(st.sampled_from(["add", "later", "advance", "finish", "fail"]), st.sampled_from("abc"), st.floats(0, 5)),
    max_size=60,
)


@settings(deadline=None)
@given(_steps, st.integers(1, 4))
def test_nothing_added_is_lost_and_no_key_runs_twice_at_once(steps: list[tuple[str, str, float]], workers: int) -> None:
    asyncio.run(_check(steps, workers))


async def _check(steps: list[tuple[str, str, float]], workers: int) -> None:
    clock = FakeClock()
    queue: WorkQueue[str] = WorkQueue(clock=clock)
    running: dict[str, asyncio.Future[bool]] = {}
    unseen: set[str] = set()  # added, and not begun since

    async def work(key: str) -> None:
        assert key not in running, f"{key} runs twice at once"
        unseen.discard(key)
        running[key] = asyncio.get_running_loop().create_future()
        try:
            if not await running[key]:
                raise RuntimeError("failed")
        finally:
            del running[key]

    task = asyncio.create_task(queue.run(work, workers=workers))
    for step, key, seconds in steps:
        if step == "add":
            unseen.add(key)
            queue.add(key)
        elif step == "later":
            unseen.add(key)
            queue.add_later(key, seconds)
        elif step == "advance":
            await clock.advance(seconds)
        elif key in running:
            running[key].set_result(step == "finish")
            await clock.settle()
        await clock.settle()
        assert len(running) <= workers
    for _ in range(20):
        for future in list(running.values()):
            future.set_result(True)
        await clock.advance(70)
    assert not unseen
    assert queue.stats().ready == queue.stats().running == queue.stats().delayed == queue.stats().failing == 0
    queue.close()
    await task
