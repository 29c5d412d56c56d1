"""The closed form against a loop that makes every single step."""

import math
from collections import deque
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pointsman.planner.profile.linear_model import LinearModel
from pointsman.planner.simulator.decode_engine import ITL_BINS, DecodeEngine
from pointsman.planner.simulator.request import Request
from pointsman.planner.simulator.timing import Timing
from pointsman.planner.simulator.types import Engine, Truth

MODEL = LinearModel(
    prefill_a=4.0, prefill_b=0.05, prefill_c=1e-5, decode_d0=5.0, decode_d1=0.1, decode_d2=2e-3, prefill_floor_ms=0.0
)
Job = tuple[float, int, int, int]  # arrives, prompt, output, of the prompt to be computed here


def every_step(jobs: list[Job], engine: Engine) -> dict[int, tuple[float, float, int]]:
    """First token, end and preemptions of each job, one step at a time. Sequences are lists [job, held, left, todo]."""
    timing = Timing(engine, Truth(), Random(0))
    coming = deque(sorted((job[0], i) for i, job in enumerate(jobs)))
    waiting: deque[list[int]] = deque()
    computing: list[list[int]] = []
    running: list[list[int]] = []
    first: dict[int, float] = {}
    found: dict[int, tuple[float, float, int]] = {}
    preempted = [0] * len(jobs)
    now_s = 0.0
    while coming or waiting or computing or running:
        if not (waiting or computing or running):
            now_s = max(now_s, coming[0][0])
        while coming and coming[0][0] <= now_s + 1e-12:
            _, i = coming.popleft()
            waiting.append([i, jobs[i][1], jobs[i][2], jobs[i][3]])

        def free() -> int:
            return engine.kv_capacity_tokens - sum(s[1] for s in (*running, *computing))

        while running and free() < len(running):
            if computing:
                out = computing.pop()
            elif len(running) > 1:
                out = running.pop()
            else:
                break
            out[3] = out[1]
            preempted[out[0]] += 1
            waiting.appendleft(out)
        budget = engine.max_batched_tokens - len(running)
        chunk: list[tuple[list[int], int]] = []
        for s in computing:
            tokens = min(s[3], budget)
            if tokens > 0:
                chunk.append((s, tokens))
                budget -= tokens
        while waiting and len(running) + len(computing) < engine.max_batch:
            s = waiting[0]
            if s[1] + len(running) + 1 > free() or (s[3] > 0 and budget <= 0):
                break
            waiting.popleft()
            if s[3] == 0:
                running.append(s)
            else:
                computing.append(s)
                tokens = min(s[3], budget)
                chunk.append((s, tokens))
                budget -= tokens
        batch, context = len(running), sum(s[1] for s in running)
        took = timing.step_s(batch, context) if batch else timing.prefill_fixed_s
        took += sum(timing.prefill_work_s(n, s[1] - s[3]) for s, n in chunk)
        now_s += took
        for s in list(running):
            s[1] += 1
            s[2] -= 1
            first.setdefault(s[0], now_s)
            if s[2] == 0:
                running.remove(s)
                found[s[0]] = (first[s[0]], now_s, preempted[s[0]])
        for s, n in chunk:
            s[3] -= n
            if s[3] == 0:
                computing.remove(s)
                s[1] += 1
                s[2] -= 1
                first.setdefault(s[0], now_s)
                if s[2] == 0:
                    found[s[0]] = (first[s[0]], now_s, preempted[s[0]])
                else:
                    running.append(s)
    return found


def closed_form(jobs: list[Job], engine: Engine) -> tuple[dict[int, tuple[float, float, int]], int]:
    """The same by the engine under test, and how many events it took."""
    found: dict[int, tuple[float, float, int]] = {}

    def finished(request: Request, now_s: float) -> None:
        assert request.index not in found, "ended twice"
        found[request.index] = (request.first_token_s, now_s, request.preemptions)

    under_test = DecodeEngine(engine, Timing(engine, Truth(), Random(0)), [0.0] * ITL_BINS, lambda _: None, finished)
    events = 0
    for at_s, index in sorted((job[0], i) for i, job in enumerate(jobs)):
        while under_test.next_s < at_s:
            under_test.advance(under_test.next_s)
            events += 1
        _, prompt, output, new = jobs[index]
        request = Request(index, prompt, output, at_s, cached_tokens=prompt - new, new_tokens=new)
        under_test.add(request, at_s)
    while under_test.next_s < math.inf:
        under_test.advance(under_test.next_s)
        events += 1
    assert under_test.idle
    assert under_test.kv_tokens(math.inf) == 0, "KV of requests that ended is held"
    return found, events


@st.composite
def job_lists(draw: st.DrawFn) -> list[Job]:
    jobs = []
    for number in range(draw(st.integers(1, 14))):
        prompt = draw(st.integers(1, 120))
        new = draw(st.sampled_from([0, 0, prompt, max(1, prompt // 3)]))
        # Times that fall on no boundary of steps, so that both sides agree on what came before what.
        at_s = draw(st.integers(0, 400)) * 0.00137 + 0.000071 + 1e-6 * number
        jobs.append((at_s, prompt, draw(st.integers(1, 60)), new))
    return jobs


PREEMPTED_WHILE_PREFILLED: list[Job] = [
    (0.250781, 83, 1, 27),
    (0.000072, 1, 1, 0),
    (0.079533, 71, 38, 0),
    (0.097344, 114, 34, 0),
    (0.000075, 1, 1, 0),
    (0.186396, 75, 15, 0),
    (0.243937, 55, 6, 0),
]


@settings(max_examples=60, deadline=None)
@example(jobs=PREEMPTED_WHILE_PREFILLED, capacity=400, batched=32)
@given(jobs=job_lists(), capacity=st.sampled_from([200, 400, 5000]), batched=st.sampled_from([32, 4096]))
def test_the_closed_form_gives_every_request_the_times_of_a_step_by_step_loop(
    jobs: list[Job], capacity: int, batched: int
) -> None:
    engine = Engine(MODEL, capacity, 1, max_batch=8, max_batched_tokens=batched)
    expected = every_step(jobs, engine)
    found, _ = closed_form(jobs, engine)
    assert found.keys() == expected.keys()
    for index, (first_s, end_s, preempted) in expected.items():
        assert found[index][:2] == pytest.approx((first_s, end_s), abs=1e-7), index
        assert found[index][2] == preempted, index


def test_work_grows_with_requests_and_not_with_tokens() -> None:
    engine = Engine(MODEL, 10_000_000, 1)
    jobs = [(0.01 * i, 100, 50, 0) for i in range(40)]
    short = closed_form(jobs, engine)[1]
    long = closed_form([(at_s, prompt, 100 * output, new) for at_s, prompt, output, new in jobs], engine)[1]
    assert long <= 3 * len(jobs) and short <= 3 * len(jobs)
