"""How well a layout (prefill workers, decode workers) would serve a demand.

Local prefills run on decode workers and take their time; remote ones queue at the prefill pool. TTFT comes from where a
request is prefilled, TPOT from the decode pool; attainment is the product of the two.
"""

import math
from dataclasses import dataclass

from pointsman.planner.core.capacity import (
    DecodeLoad,
    PrefillLoad,
    decode_attainment,
    decode_batch,
    offered_concurrency,
    prefill_attainment,
)
from pointsman.planner.core.performance import PerformanceModel
from pointsman.planner.core.types import Objectives

TRANSFER_MARGIN_S = 0.05  # of a remote prefill: queue hop, answer, first KV bytes
MAX_LOCAL_BUSY = 0.95


@dataclass(frozen=True, slots=True)
class Demand:
    """What must be served. ``lengths``: (new prompt tokens, share of requests); shares sum to 1."""

    rate_per_s: float
    lengths: tuple[tuple[float, float], ...]
    prompt_tokens: float
    output_tokens: float
    arrival_scv: float
    kv_capacity_tokens: float | None


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a layout would achieve, 0..1 each."""

    attainment: float
    ttft: float
    tpot: float
    local_busy: float  # share of the decode workers' time that local prefills take


def estimate(
    demand: Demand, prefill: int, decode: int, threshold_tokens: int, objectives: Objectives, model: PerformanceModel
) -> Estimate:
    """Serve ``demand`` with ``prefill`` and ``decode`` workers and the local/remote rule at ``threshold_tokens``."""
    remote_lengths = [(n, share) for n, share in demand.lengths if n > threshold_tokens]
    local_lengths = [(n, share) for n, share in demand.lengths if n <= threshold_tokens]
    if prefill == 0:
        remote_lengths, local_lengths = [], list(demand.lengths)
    remote_share = sum(share for _, share in remote_lengths)

    local_work_s = sum(share * model.prefill_ms(n, 0) / 1000 for n, share in local_lengths) * demand.rate_per_s
    local_busy = local_work_s / decode if decode else math.inf
    free = max(1 - local_busy, 0.0)

    load = DecodeLoad.of(demand.rate_per_s, demand.prompt_tokens, demand.output_tokens)
    # A local prefill stops the decodes beside it: on average a step takes 1/free as long.
    batch = decode_batch(load, model, objectives.tpot_ms * free, demand.kv_capacity_tokens) if free > 0 else 0
    if batch < 1 or local_busy > MAX_LOCAL_BUSY:
        tpot = 0.0
    else:
        tpot = decode_attainment(offered_concurrency(load, model, batch) / free, batch, decode)

    ttft = 0.0
    if remote_lengths:
        services, slacks = _sample(remote_lengths, objectives, model)
        remote = PrefillLoad(demand.rate_per_s * remote_share, services, slacks, demand.arrival_scv)
        ttft += remote_share * prefill_attainment(remote, prefill)
    for n, share in local_lengths:
        took = model.prefill_ms(n, 0) / 1000 / max(free, 1e-3)
        ttft += share * (took * 1000 <= objectives.ttft_for(n))
    return Estimate(ttft * tpot, ttft, tpot, local_busy)


def _sample(
    lengths: list[tuple[float, float]], objectives: Objectives, model: PerformanceModel
) -> tuple[list[float], list[float]]:
    """Service times and slacks in seconds, each length as often as its share of fifty says, at least once."""
    total = sum(share for _, share in lengths)
    services: list[float] = []
    slacks: list[float] = []
    for n, share in lengths:
        times = max(1, round(50 * share / total)) if len(lengths) > 1 else 1
        services += [model.prefill_ms(n, 0) / 1000] * times
        slacks += [objectives.ttft_for(n) / 1000 - TRANSFER_MARGIN_S] * times
    return services, slacks
