"""Small simulated services for the tests, and planners that only do what a test tells them."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from pointsman.api.protocol.names import LANGUAGE_ROLES
from pointsman.planner.core.engine.performance_model import PerformanceModel
from pointsman.planner.core.types import Bounds, Decision, NextTick, Objectives, Observation, Policy, Reason, Switch
from pointsman.planner.profile.linear_model import LinearModel
from pointsman.planner.simulator.types import Engine, Planner, Trace

MODEL = LinearModel(
    prefill_a=5.0, prefill_b=0.02, prefill_c=1e-6, decode_d0=6.0, decode_d1=0.01, decode_d2=4e-5, prefill_floor_ms=0.0
)
ENGINE = Engine(MODEL, kv_capacity_tokens=400_000, kv_bytes_per_token=131_072)
POLICY = Policy(
    objectives=Objectives(ttft_ms=1500, tpot_ms=25), max_gpus=16, prefill=Bounds(1, 15), decode=Bounds(1, 15)
)


def poisson(rate_per_s: float, seconds: float, prompt: int, output: int, seed: int = 0) -> Trace:
    """Poisson arrivals of requests that are all alike."""
    rng = np.random.default_rng(seed)
    at_s = np.cumsum(rng.exponential(1 / rate_per_s, int(rate_per_s * seconds)))
    return Trace("poisson", at_s, np.full(len(at_s), prompt), np.full(len(at_s), output))


def conversations(
    rate_per_s: float, seconds: float, *, first: int, further: int, turns: int, output: int, seed: int = 0
) -> Trace:
    """Poisson arrivals, each of which begins a conversation or goes on with one; prompts in blocks of 256 tokens."""
    rng = np.random.default_rng(seed)
    at_s = np.cumsum(rng.exponential(1 / rate_per_s, int(rate_per_s * seconds)))
    numbers, open_ones, blocks = itertools.count(), list[list[int]](), []
    for _ in at_s:
        if open_ones and rng.random() < 1 - 1 / turns:
            conversation = open_ones[rng.integers(max(0, len(open_ones) - 30), len(open_ones))]
            conversation += [next(numbers) for _ in range(further)]
        else:
            open_ones.append(conversation := [next(numbers) for _ in range(first)])
        blocks.append(tuple(conversation))
    prompts = np.array([256 * len(each) for each in blocks])
    return Trace(
        "conversations", at_s, prompts, np.full(len(at_s), output), prefix_blocks=tuple(blocks), block_tokens=256
    )


def stay(observation: Observation) -> Decision:
    """Change nothing."""
    prefill, decode = (observation.committed(role) for role in LANGUAGE_ROLES)
    return Decision(Reason.STEADY, "", prefill, decode, observation.routing)


def scripted(acts: dict[float, Callable[[Observation], Decision]], sees: list[Observation] | None = None) -> Planner:
    """Does each act once, at the first tick at or after its time; keeps what it saw in ``sees``."""

    def decide(
        left: Any, observation: Observation, policy: Policy, now_s: float, _base: PerformanceModel | None
    ) -> tuple[Any, Decision, NextTick]:
        if sees is not None:
            sees.append(observation)
        due = [at_s for at_s in left if at_s <= now_s]
        decision = acts[due[0]](observation) if due else stay(observation)
        return tuple(at_s for at_s in left if at_s not in due[:1]), decision, NextTick(policy.interval_s)

    return Planner("scripted", decide, lambda: tuple(sorted(acts)))


def static() -> Planner:
    """Never changes anything."""
    return scripted({})


def to(prefill: int, decode: int, *switches: Switch) -> Callable[[Observation], Decision]:
    """A decision for a layout."""

    def decision(observation: Observation) -> Decision:
        return Decision(
            Reason.BOTH_SHORT, "told to", prefill, decode, observation.routing, switches=switches, changes_layout=True
        )

    return decision
