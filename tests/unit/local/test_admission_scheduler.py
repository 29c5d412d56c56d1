"""The scheduler of the streaming benchmark's local engine admits prompts by roseinfer's rule, step for step.

vLLM is in the engine's environment only, so its scheduler is a stand-in here: it computes what stands in its queue.
"""

import importlib
import os
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pointsman.local.streaming.engine import SCHEDULER, EngineKnobs

CONTEXT = 100
BASE = "vllm.v1.core.sched.scheduler"


@dataclass(frozen=True)
class Request:
    """A prompt that waits; ``number`` is the order in which it came."""

    number: int
    num_tokens: int


class Queue(deque[Request]):
    """What is used of vLLM's first-come-first-served queue."""

    add_request = deque.append

    def remove_requests(self, requests: Sequence[Request]) -> None:
        """As vLLM's: the others keep their order."""
        kept = [each for each in self if each not in requests]
        self.clear()
        self.extend(kept)


class Scheduler:
    """A step computes the first ``slots`` of the queue: the engine may have less room than the rule allows."""

    max_model_len = CONTEXT

    def __init__(self) -> None:
        self.waiting = Queue()

    def schedule(self, slots: int) -> list[int]:
        """The lengths of what a step computes."""
        return [self.waiting.popleft().num_tokens for _ in range(min(slots, len(self.waiting)))]


def made(max_requests: int, max_tokens: int | None) -> Any:
    """The scheduler as an engine makes it that was started with these knobs."""
    knobs = EngineKnobs(prefill_max_batch_size=max_requests, prefill_max_tokens=max_tokens)
    base = ModuleType(BASE)
    base.Scheduler = Scheduler  # type: ignore[attr-defined]
    module, name = SCHEDULER.rsplit(".", 1)
    with patch.dict(sys.modules, {BASE: base}), patch.dict(os.environ, knobs.variables):
        sys.modules.pop(module, None)
        scheduler = getattr(importlib.import_module(module), name)()
        sys.modules.pop(module)
    return scheduler


def seeds_rule(lengths: Sequence[int], max_requests: int, max_tokens: int | None) -> int:
    """How many from the front one step admits, as the seed's document has it."""
    costs = [min(length, CONTEXT) for length in lengths[:max_requests]]
    if max_tokens is None or not costs:
        return len(costs)
    if costs[0] > max_tokens:
        return 1  # alone
    return max(count for count in range(1, len(costs) + 1) if sum(costs[:count]) <= max_tokens)


LENGTHS = st.lists(st.integers(1, 130), max_size=8)


@given(
    arrivals=st.lists(LENGTHS, min_size=1, max_size=4),
    max_requests=st.integers(1, 5),
    max_tokens=st.none() | st.integers(1, 250),
    slots=st.integers(1, 6),
)
def test_each_step_admits_what_the_seeds_rule_admits_and_keeps_the_order_of_the_others(
    arrivals: list[list[int]], max_requests: int, max_tokens: int | None, slots: int
) -> None:
    scheduler = made(max_requests, max_tokens)
    expected: list[int] = []
    came = 0
    steps = iter(arrivals)
    while (new := next(steps, None)) is not None or expected:
        for length in new or ():
            scheduler.waiting.add_request(Request(came, length))
            expected.append(length)
            came += 1
        admitted = min(seeds_rule(expected, max_requests, max_tokens), slots)
        assert scheduler.schedule(slots) == expected[:admitted]
        del expected[:admitted]
        assert [each.num_tokens for each in scheduler.waiting] == expected
        assert sorted(scheduler.waiting, key=lambda each: each.number) == list(scheduler.waiting)


@pytest.mark.parametrize(
    ("lengths", "steps"),
    [
        ([10, 20, 30, 10], [[10, 20], [30, 10]]),  # stops before the budget would be exceeded
        ([10, 90, 10], [[10], [90], [10]]),  # a larger prompt waits until it is the first, and goes alone
        ([130, 5], [[130], [5]]),  # costs its context window at most, which is more than the budget
        ([10, 10, 10, 10, 10], [[10, 10, 10], [10, 10]]),  # at most so many requests
    ],
)
def test_the_seeds_own_cases(lengths: list[int], steps: list[list[int]]) -> None:
    scheduler = made(max_requests=3, max_tokens=40)
    for number, length in enumerate(lengths):
        scheduler.waiting.add_request(Request(number, length))
    assert [scheduler.schedule(8) for _ in steps] == steps
    assert not scheduler.waiting


def test_a_step_that_fails_loses_no_request() -> None:
    scheduler = made(max_requests=1, max_tokens=None)
    for number in range(3):
        scheduler.waiting.add_request(Request(number, 5))
    with pytest.raises(TypeError):
        scheduler.schedule("no number")
    assert [each.number for each in scheduler.waiting] == [0, 1, 2]
