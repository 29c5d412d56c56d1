"""What all baselines share: a layout within the policy as a Decision, rates over a window, and sizes from the model."""

import math
from dataclasses import dataclass, replace

from pointsman.api.protocol.names import Role
from pointsman.planner.core.engine.performance_model import PerformanceModel
from pointsman.planner.core.types import Decision, Observation, Policy, Reason, RoutingNumbers, Switch

ITL_MARGIN = 0.9
KV_MARGIN = 1.1
BATCHED_TOKENS = 8192  # of a prefill step, where sizes depend on it


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


def gpus_each(observation: Observation) -> int:
    """GPUs of one worker."""
    return max((worker.gpus for worker in observation.workers), default=1)


def clamped(prefill: int, decode: int, policy: Policy, gpus: int) -> tuple[int, int]:
    """Within the pools' bounds and the budget; the larger pool gives way first."""
    prefill = min(max(prefill, policy.prefill.least), policy.prefill.most)
    decode = min(max(decode, policy.decode.least), policy.decode.most)
    while (prefill + decode) * gpus > policy.max_gpus:
        if prefill - policy.prefill.least >= decode - policy.decode.least:
            prefill -= 1
        else:
            decode -= 1
    return prefill, decode


def stay(observation: Observation, why: str) -> Decision:
    """Change nothing."""
    prefill, decode = observation.committed(Role.PREFILL), observation.committed(Role.DECODE)
    return Decision(Reason.STEADY, why, prefill, decode, observation.routing)


def go_to(
    observation: Observation, policy: Policy, prefill: int, decode: int, why: str, *, switching: bool = False
) -> Decision:
    """Scale to a layout as far as the policy allows; with ``switching`` opposite changes become role switches."""
    now = observation.committed(Role.PREFILL), observation.committed(Role.DECODE)
    target = clamped(prefill, decode, policy, gpus_each(observation))
    if target == now:
        return stay(observation, why)
    more_prefill, more_decode = target[0] - now[0], target[1] - now[1]
    switches: tuple[Switch, ...] = ()
    if switching and more_prefill > 0 > more_decode:
        switches = (Switch(Role.DECODE, Role.PREFILL, min(more_prefill, -more_decode)),)
    elif switching and more_decode > 0 > more_prefill:
        switches = (Switch(Role.PREFILL, Role.DECODE, min(more_decode, -more_prefill)),)
    reason = Reason.BOTH_SHORT if sum(target) >= sum(now) else Reason.SPARE_CAPACITY
    return Decision(reason, why, *target, observation.routing, switches=switches, changes_layout=True)


ALL_REMOTE = RoutingNumbers(0, 1_000_000)
"""Every prompt to the prefill pool, however long its queue: what systems do that have no local prefill."""


def routed(decision: Decision, routing: RoutingNumbers = ALL_REMOTE) -> Decision:
    """The decision, with these numbers of the local/remote rule."""
    if routing == decision.routing:
        return decision
    return replace(decision, routing=routing, routing_reason=Reason.THRESHOLD)


@dataclass(frozen=True, slots=True)
class Seen:
    """Means of what arrived: requests a second and tokens a request; NaN before the first."""

    rate_per_s: float = math.nan
    prompt_tokens: float = math.nan
    output_tokens: float = math.nan

    def after(self, observation: Observation, window_s: float) -> "Seen":
        """With this observation, as a mean over about ``window_s``."""
        load = observation.load
        if load is None:
            return self
        weight = 1 - math.exp(-observation.window_s / window_s)
        return Seen(
            _toward(self.rate_per_s, load.arrivals_per_s, weight),
            _toward(self.prompt_tokens, load.prompt_tokens, weight),
            _toward(self.output_tokens, load.output_tokens, weight),
        )

    @property
    def known(self) -> bool:
        """Whether all three were seen."""
        return not (math.isnan(self.rate_per_s) or math.isnan(self.prompt_tokens) or math.isnan(self.output_tokens))


NOTHING_SEEN = Seen()


def _toward(old: float, new: float | None, weight: float) -> float:
    if new is None:
        return old
    return new if math.isnan(old) else old + weight * (new - old)


def prefill_requests_per_s(seen: Seen, base: PerformanceModel) -> float:
    """What one prefill worker computes at most, steps filled with prompts of mean length."""
    per_step = max(1, int(BATCHED_TOKENS // max(seen.prompt_tokens, 1.0)))
    fixed_ms = base.prefill_ms(0, 0)
    return 1000 * per_step / (fixed_ms + per_step * (base.prefill_ms(seen.prompt_tokens, 0) - fixed_ms))


def decode_requests_per_s(seen: Seen, base: PerformanceModel, tpot_ms: float, kv_tokens: float | None) -> float:
    """What one decode worker finishes at most with steps of ``tpot_ms``; 0 when not even one sequence fits."""
    load = DecodeLoad.of(seen.rate_per_s, seen.prompt_tokens, seen.output_tokens)
    batch = decode_batch(load, base, tpot_ms, kv_tokens)
    if batch < 1:
        return 0.0
    return 1000 * batch / (seen.output_tokens * base.decode_step_ms(batch, batch * load.context_tokens))
