"""From objectives to workers: how many prefill and decode workers keep which share of requests inside their objectives.

Prefill is a queue (G/G/c): Erlang-C's probability to wait, and for those that wait an exponential with the mean of
Allen and Cunneen. (Sakasegawa's mean with Erlang-C is not monotone in the load: the two do not fit each other.)
Decode is a shared step: the largest batch whose step stays inside the ITL objective, square-root staffing above the
offered concurrency. Checked against event simulation with Azure and Mooncake lengths: the recommended decode count kept
99.4–100 % of TPOT objectives, one less 0 % or 98 %.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pointsman.planner.core.performance import PerformanceModel

MAX_UTILISATION = 0.95
STAFFING_Z = 1.64  # 95 % of a normal
ITL_MARGIN = 0.9
KV_MARGIN = 1.1


@dataclass(frozen=True, slots=True)
class PrefillLoad:
    """The prefill pool's work. ``service_s``: one request's prefill time each, a sample of recent ones, in seconds;
    ``slack_s``: what is left of its TTFT objective for waiting *and* prefilling, in the same order."""

    rate_per_s: float
    service_s: Sequence[float]
    slack_s: Sequence[float]
    arrival_scv: float = 1.0  # squared coefficient of variation of inter-arrival times

    def __post_init__(self) -> None:
        if len(self.service_s) != len(self.slack_s):
            raise ValueError(f"{len(self.service_s)} service times and {len(self.slack_s)} slacks: they go in pairs")


def erlang_c(servers: int, offered: float) -> float:
    """Probability that an arrival waits, for ``offered`` = rate × service time < ``servers``; 1 when overloaded."""
    if offered <= 0:
        return 0.0
    if offered >= servers:
        return 1.0
    blocking = 1.0  # Erlang-B by its recursion, which does not overflow
    for k in range(1, servers + 1):
        blocking = offered * blocking / (k + offered * blocking)
    return servers * blocking / (servers - offered * (1 - blocking))


def delayed_wait_s(
    servers: int, rate_per_s: float, mean_service_s: float, arrival_scv: float, service_scv: float
) -> float:
    """Mean wait of those that wait at all, in G/G/c (Allen and Cunneen; exact for M/M/c); infinite when overloaded."""
    utilisation = rate_per_s * mean_service_s / servers
    if utilisation >= 1:
        return math.inf
    return mean_service_s * (arrival_scv + service_scv) / 2 / (servers * (1 - utilisation))


def prefill_attainment(load: PrefillLoad, workers: int) -> float:
    """Share of requests whose wait and prefill fit their slack, with ``workers`` ≥ 0 prefill workers.

    Falls with the load and rises with the workers, also where the pool is overloaded: there too one layout is better
    than another.
    """
    if not load.service_s or load.rate_per_s <= 0:
        return 1.0
    if workers < 1:
        return 0.0
    count = len(load.service_s)
    mean = sum(load.service_s) / count
    utilisation = load.rate_per_s * mean / workers
    if utilisation > MAX_UTILISATION * (1 + 1e-9):
        # More than the pool can do: what is beyond misses (shed, or waiting for ever), the rest fares as at the limit.
        kept = MAX_UTILISATION / utilisation
        return kept * prefill_attainment(replace(load, rate_per_s=kept * load.rate_per_s), workers)
    service_scv = sum((s - mean) ** 2 for s in load.service_s) / count / (mean * mean) if mean > 0 else 0.0
    delay = delayed_wait_s(workers, load.rate_per_s, mean, load.arrival_scv, service_scv)
    waits = erlang_c(workers, load.rate_per_s * mean)
    total = 0.0
    for service, slack in zip(load.service_s, load.slack_s, strict=True):
        spare = slack - service
        if spare < 0:
            continue
        total += 1 - waits * math.exp(-spare / delay) if delay > 0 else 1.0
    return total / count


def prefill_workers(load: PrefillLoad, attainment: float, most: int) -> int | None:
    """The least number of workers with that attainment and utilisation ≤ 0.95; None when ``most`` are not enough."""
    if not load.service_s or load.rate_per_s <= 0:
        return 0
    mean = sum(load.service_s) / len(load.service_s)
    for workers in range(1, most + 1):
        if load.rate_per_s * mean / workers > MAX_UTILISATION:
            continue
        if prefill_attainment(load, workers) >= attainment:
            return workers
    return None


@dataclass(frozen=True, slots=True)
class DecodeLoad:
    """The decode pool's work, means over recent requests: lengths in tokens, ``context_tokens`` token-weighted."""

    rate_per_s: float
    prompt_tokens: float
    output_tokens: float
    context_tokens: float

    @classmethod
    def of(cls, rate_per_s: float, prompt_tokens: float, output_tokens: float) -> "DecodeLoad":
        """With the token-weighted mean context of requests of one length: prompt + half of the output."""
        return cls(rate_per_s, prompt_tokens, output_tokens, prompt_tokens + output_tokens / 2)


def decode_batch(load: DecodeLoad, model: PerformanceModel, tpot_ms: float, kv_capacity_tokens: float | None) -> int:
    """The largest batch of one worker whose step stays within 0.9 of ``tpot_ms`` and whose KV fits; 0: not even one."""
    budget = ITL_MARGIN * tpot_ms
    low, high = 0, 1
    while high <= 4096 and model.decode_step_ms(high, high * load.context_tokens) <= budget:
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        if model.decode_step_ms(middle, middle * load.context_tokens) <= budget:
            low = middle
        else:
            high = middle
    if kv_capacity_tokens is None:
        return low
    per_sequence = KV_MARGIN * (load.prompt_tokens + load.output_tokens)
    return min(low, int(kv_capacity_tokens / per_sequence)) if per_sequence > 0 else low


def offered_concurrency(load: DecodeLoad, model: PerformanceModel, batch: int) -> float:
    """Sequences decoding at once when steps are as long as at ``batch``."""
    step_s = model.decode_step_ms(batch, batch * load.context_tokens) / 1000
    return load.rate_per_s * load.output_tokens * step_s


def decode_attainment(offered: float, batch: int, workers: int) -> float:
    """Share of time the pool's places suffice: Φ((B*·n − A)/√A)."""
    if offered <= 0:
        return 1.0
    if batch < 1 or workers < 1:
        return 0.0
    return 0.5 * (1 + math.erf((batch * workers - offered) / math.sqrt(offered) / math.sqrt(2)))


def decode_workers(offered: float, batch: int) -> int | None:
    """⌈(A + z·√A)/B*⌉; None when one worker cannot hold even one sequence."""
    if offered <= 0:
        return 0
    if batch < 1:
        return None
    return math.ceil((offered + STAFFING_Z * math.sqrt(offered)) / batch)
