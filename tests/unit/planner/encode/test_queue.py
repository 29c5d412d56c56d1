"""Encode workers for a load of images: what must hold everywhere, and the formulas against events."""

import heapq
import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.planner.core.encode.queue import EncodeQueue
from pointsman.planner.core.tuning import SHIPPED

REQUESTS = 10_000
QUEUE = EncodeQueue(images=3.0, images_scv=0.1, image_s=0.1, room_s=1.2, ttft_s=1.5)
queues = st.builds(
    EncodeQueue,
    images=st.floats(1, 12),
    images_scv=st.floats(0, 2),
    image_s=st.floats(0.005, 1),
    room_s=st.floats(0.05, 5),
    ttft_s=st.just(1.5),
)


def simulated(
    queue: EncodeQueue, images: Callable[[random.Random], int], workers: int, rate: float
) -> list[tuple[float, float]]:
    """(until its first image is begun, until its last one is done) of each request, by events: single images from one
    queue to whichever worker is free."""
    rng, free, now_s, found = random.Random(workers), [0.0] * workers, 0.0, []
    for _ in range(REQUESTS):
        now_s += rng.expovariate(rate)
        begun, ended = math.inf, 0.0
        for _ in range(images(rng)):
            begin_s = max(now_s, heapq.heappop(free))
            end_s = begin_s + rng.gammavariate(1 / queue.image_scv, queue.image_scv * queue.image_s)
            heapq.heappush(free, end_s)
            begun, ended = min(begun, begin_s), max(ended, end_s)
        found.append((begun - now_s, ended - now_s))
    return found[REQUESTS // 10 :]


def always(images: int) -> Callable[[random.Random], int]:
    return lambda _: images


def geometric(mean: float) -> Callable[[random.Random], int]:
    return lambda rng: 1 + int(math.log(1 - rng.random()) / math.log(1 - 1 / mean))


LOADS = [(1.0, 0.0, always(1)), (3.0, 0.0, always(3)), (3.0, 2 / 3, geometric(3)), (8.0, 7 / 8, geometric(8))]


@pytest.mark.parametrize(("images", "scv", "draw"), LOADS)
@pytest.mark.parametrize("workers", [1, 4, 12])
@pytest.mark.parametrize("utilisation", [0.6, 0.85])
def test_waits_and_times_agree_with_events_within_a_third_or_are_on_the_safe_side(
    images: float, scv: float, draw: Callable[[random.Random], int], workers: int, utilisation: float
) -> None:
    queue = replace(QUEUE, images=images, images_scv=scv, image_scv=0.02)
    rate = utilisation * workers / queue.work_s
    found = simulated(queue, draw, workers, rate)
    waited_s = sum(wait for wait, _ in found) / len(found)
    took_s = sum(took for _, took in found) / len(found)
    waits, delay_s = queue.wait(rate, 1.0, workers)
    assert 0.65 * waited_s - 0.02 * queue.image_s <= waits * delay_s <= 1.35 * waited_s + 0.2 * queue.image_s
    assert queue.alone_s(rate, workers) + waits * delay_s == pytest.approx(took_s, rel=0.25, abs=0.25 * queue.image_s)


@pytest.mark.parametrize(("images", "scv", "draw"), LOADS)
@pytest.mark.parametrize("rate", [4.0, 20.0])
def test_the_recommended_pool_is_in_time_when_simulated_and_a_smaller_one_is_not(
    images: float, scv: float, draw: Callable[[random.Random], int], rate: float
) -> None:
    queue = replace(QUEUE, images=images, images_scv=scv, image_scv=0.02)

    def late(workers: int) -> float:
        may_s = queue.patience_s(rate, workers) + queue.alone_s(rate, workers)
        return sum(took > may_s for _, took in simulated(queue, draw, workers, rate)) / (0.9 * REQUESTS)

    workers = queue.workers(rate, 1.0, 0.05, 64)
    assert late(workers) <= 0.08
    assert workers == 1 or late(math.floor(0.75 * workers)) > 0.08


@given(queue=queues, rate=st.floats(0, 60), more=st.floats(1, 3), most=st.integers(1, 40))
def test_more_requests_with_images_never_need_fewer_workers(
    queue: EncodeQueue, rate: float, more: float, most: int
) -> None:
    assert 1 <= queue.workers(rate, 1.5, 0.05, most) <= queue.workers(rate * more, 1.5, 0.05, most) <= most


@given(queue=queues, rate=st.floats(0.1, 60), more=st.floats(1, 3))
def test_more_images_or_slower_workers_never_need_fewer_while_the_objective_can_be_met(
    queue: EncodeQueue, rate: float, more: float
) -> None:
    fewer = queue.workers(rate, 1.5, 0.05, 500)
    for harder in (replace(queue, images=queue.images * more), replace(queue, image_s=queue.image_s * more)):
        if harder.patience_s(0.0, 500) > 0.2:
            assert fewer <= harder.workers(rate, 1.5, 0.05, 500)


@given(queue=queues, rate=st.floats(0.1, 60), late=st.floats(0.01, 0.2))
def test_what_is_called_enough_flows_and_keeps_its_word(queue: EncodeQueue, rate: float, late: float) -> None:
    workers = queue.workers(rate, 1.0, late, 500)
    if workers < 500:
        assert rate * queue.work_s <= SHIPPED.max_prefill_utilization * workers
        if queue.patience_s(0.0, 500) > 0.2:
            assert queue.late_share(rate, 1.0, workers) <= late


def test_an_objective_that_no_pool_can_meet_is_not_paid_for() -> None:
    hopeless = replace(QUEUE, room_s=0.05)
    assert hopeless.workers(1.0, 1.0, 0.05, 64) <= 3
    many = replace(QUEUE, images=30.0, images_scv=0.0)
    assert many.workers(0.01, 1.0, 0.05, 64) == 4  # 3 s one after the other, 0.75 s on four
    assert many.workers(0.01, 1.0, 0.05, 2) == 1  # two would be late as well
