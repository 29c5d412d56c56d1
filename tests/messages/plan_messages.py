"""Whole messages of decisions and plans: random layouts, needs and policies, through the planner's own functions.

A sentence may be in order alone and the message of five of them not.
"""

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from pointsman.api.protocol.names import LANGUAGE_ROLES, Role
from pointsman.planner.core.encode.decision import add_encode_decision, shared
from pointsman.planner.core.encode.queue import EncodeQueue
from pointsman.planner.core.encode.target import EncodeTarget
from pointsman.planner.core.layout.choose import layout
from pointsman.planner.core.layout.stuck_starts import add_stuck_workers
from pointsman.planner.core.messages import decisions
from pointsman.planner.core.sizing.pool_targets import Targets
from pointsman.planner.core.state import State
from pointsman.planner.core.types import (
    Bounds,
    Decision,
    EncodeLoad,
    Layout,
    Observation,
    Policy,
    Worker,
    WorkerCondition,
)
from pointsman.planner.core.workload.request_lengths import Lengths
from unit.planner.operating_points import point
from unit.planner.scenes import POLICY, observed

_CASES: Final = 400
_KNOWN: Final = State(requests=1000.0, lengths=Lengths(prompt_tokens=4000.0, output_tokens=200.0))


def plan_messages() -> Iterator[str]:
    """Of each case the decision, and what becomes of its message with workers that do not start, with an encode pool,
    while a plan awaits approval, and when that plan is withdrawn."""
    draw = random.Random(1)
    for _ in range(_CASES):
        observation, policy, wanted, encode = _case(draw)
        state = _KNOWN if draw.random() < 0.9 else replace(_KNOWN, requests=0.0)
        shares = shared(encode, observation, policy, wanted)
        for _ in range(draw.choice([1, 3])):
            state, decision = layout(state, observation, shares.policy, shares.wanted, point())
        yield from _with_more(draw, decision, observation, policy)
        if policy.encode is not None:
            more = add_encode_decision(decision, observation, policy, shares)
            yield from _with_more(draw, more, observation, policy)


def _with_more(draw: random.Random, decision: Decision, observation: Observation, policy: Policy) -> Iterator[str]:
    yield decision.message
    stuck = [Worker(f"x{n}", draw.choice(LANGUAGE_ROLES), WorkerCondition.STARTING) for n in range(draw.randint(1, 3))]
    more = replace(observation, workers=(*observation.workers, *stuck))
    yield add_stuck_workers(decision, more, observation, policy).message
    if decision.changes_layout:
        yield decisions.awaits_approval(decision.message)
    else:
        yield decisions.withdrawn("2P1D", 120.0, decision.message)


def _case(draw: random.Random) -> tuple[Observation, Policy, Targets, EncodeTarget | None]:
    most = draw.choice([1, 3, 9])
    seen = observed(100.0, None, draw.randint(1, most), draw.randint(1, most), old_pages=draw.choice([0, 0, 0, 1, 2]))
    others = tuple(
        Worker(f"{condition}{n}", draw.choice(LANGUAGE_ROLES), condition)
        for condition in (WorkerCondition.STARTING, WorkerCondition.DRAINING)
        for n in range(draw.choice([0, 0, 1, 2]))
    )
    encoding = tuple(Worker(f"e{n}", Role.ENCODE, WorkerCondition.ACTIVE) for n in range(draw.randint(1, 3)))
    encodes = draw.random() < 0.5
    seen = replace(seen, workers=(*seen.workers, *others), encode_workers=encoding if encodes else ())
    now, needed = (_layout(draw, most) for _ in range(2))
    kept = _layout(draw, most)
    grow = Layout(*(draw.randint(1, n) for n in needed))
    rate_per_s = draw.choice([1.0, 8.0, 30.0])
    wanted = Targets(
        prefill=max(now[0], grow[0], kept[0]), decode=max(now[1], grow[1], kept[1]), rate_per_s=rate_per_s,
        ahead_per_s=8.0, backlog=draw.choice([0.0, 1.0, 200.0]), needed_now=now,
        load_now=(float(now[0]), float(now[1])),
        load_ahead=(float(needed[0]), float(needed[1])), needed=needed, grow=grow, retained=kept,
        retained_of_both=draw.randint(2, 2 * most), planned_per_s=8.0,
    )  # fmt: skip
    policy = replace(
        POLICY, max_gpus=max(2, len(seen.workers) + draw.randint(-2, 6)), min_gpus=draw.choice([0, 0, 1, 6]),
        prefill=Bounds(1, draw.randint(1, 14)), decode=Bounds(1, draw.randint(1, 14)),
        role_switch=draw.random() < 0.7, role_switch_needs_approval=draw.random() < 0.3,
        scale_in=draw.random() < 0.7, scale_out=draw.random() < 0.7,
        encode=Bounds(1, draw.randint(1, 9)) if encodes else None,
    )  # fmt: skip
    target = _encode(draw) if draw.random() < 0.8 else None
    return replace(seen, encode=draw.choice([EncodeLoad(5.0), EncodeLoad(5.0), None])), policy, wanted, target


def _layout(draw: random.Random, most: int) -> Layout:
    return Layout(*(draw.randint(1, most) for _ in (Role.PREFILL, Role.DECODE)))


def _encode(draw: random.Random) -> EncodeTarget:
    needed_now, needed = draw.randint(1, 4), draw.randint(1, 4)
    queue = EncodeQueue(images=1.0, images_scv=0.0, image_s=0.1, room_s=1.0, ttft_s=1.5)
    return EncodeTarget(
        workers=needed, stuck=0, needed_now=needed_now, needed=needed, busy=needed - 0.5, serving=needed,
        rate_per_s=5.0, arrival_scv=1.0, queue=queue, share=0.5, mean_s=0.3,
    )  # fmt: skip
