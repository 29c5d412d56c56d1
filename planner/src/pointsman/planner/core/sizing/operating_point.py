"""How many workers a rate needs: the pools' queueing formulas at the operating point the service is at.

The operating point is everything that does not change with the rate: what a request costs a prefill worker, how many
sequences a decode worker may hold within the token objective, and how uneven requests are.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

from pointsman.planner.core.engine.learned_model import pass_ms
from pointsman.planner.core.engine.performance_model import PerformanceModel
from pointsman.planner.core.sizing.queueing import delayed_wait_s, erlang_c, lost_share
from pointsman.planner.core.tuning import SHIPPED, Tuning
from pointsman.planner.core.types import Observation, Policy
from pointsman.planner.core.workload.length_variability import Shape
from pointsman.planner.core.workload.prefix_cache_hits import Prefixes
from pointsman.planner.core.workload.request_lengths import Lengths

FREE_SHARES: Final = (*(0.05 * step for step in range(1, 20)), 0.975, 0.99, 0.998)
MOST_SEQUENCES: Final = 4096.0
LEAST_SEQUENCES: Final = 0.5  # of a worker that cannot meet the token objective at all
BUCKET_REACH: Final = math.sqrt(2)  # from the middle of a bucket of lengths to its bounds


@dataclass(frozen=True, slots=True)
class Prompts:
    """Requests with prompts of about one length: tokens, and seconds of a worker."""

    new_tokens: float  # that are not cached where it decodes
    share: float  # of all requests
    alone_s: float  # of a prefill worker …
    amortised_s: float  # … in a full pass
    local_s: float  # of the decode worker
    bucket_tokens: float  # the middle of the bucket they were counted in, which need not be their mean
    prompt_tokens: float = 0.0  # with those that are cached
    reachable: bool = True  # False: such a request misses an objective even if it is alone

    def local_share(self, threshold_tokens: float) -> float:
        """Of them, those of at most so many tokens: as even over a bucket as its bounds allow, on a scale of logs."""
        if self.new_tokens <= 1:
            return 1.0 if self.new_tokens <= threshold_tokens else 0.0
        # Those around the mean that the bucket's bounds allow.
        shortest = max(self.bucket_tokens, self.new_tokens) / BUCKET_REACH
        longest = min(self.bucket_tokens, self.new_tokens) * BUCKET_REACH
        if longest <= shortest:  # the mean is of others, that came a moment ago: it is known sooner
            shortest, longest = self.new_tokens / BUCKET_REACH, self.new_tokens * BUCKET_REACH
        if threshold_tokens <= shortest:
            return 0.0
        share = math.log(threshold_tokens / shortest) / math.log(longest / shortest)
        return share if share < 1 - 1e-9 else 1.0

    @property
    def shortest(self) -> float:
        """The lower bound of their bucket, in tokens."""
        return self.bucket_tokens / BUCKET_REACH


@dataclass(frozen=True, slots=True)
class Unreachable:
    """Requests that miss an objective even if they are alone."""

    ttft_share: float = 0.0  # of all requests
    tpot_share: float = 0.0
    longest_tokens: float | None = None  # of a prompt that meets both, about; None: all that come do, or none does

    @property
    def share(self) -> float:
        """Of all requests, those that miss either: both miss the longest ones."""
        return max(self.ttft_share, self.tpot_share)


ALL_REACHABLE: Final = Unreachable()


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """Times in seconds, of one worker and means over requests."""

    prefill_s: float  # of a worker's time, in a full pass
    prefill_alone_s: float
    reachable_s: float  # of prompts that can be in time, alone: prefill and transfer
    prefill_scv: float
    queued_tokens: float  # that are not cached where it decodes, of a prompt that prefill workers compute
    transfer_s: float  # of such a prompt's KV, alone on the network
    ttft_s: float  # objective
    output_tokens: float
    batch: float  # sequences of a decode worker within the token objective
    step_s: float  # … and how long a step then takes
    context_scv: float
    drain_per_s: float  # requests/s of a decode worker with its memory full
    prompts: tuple[Prompts, ...] = ()
    remote_share: float = 1.0  # of requests that are prefilled by prefill workers
    transfer_s_per_token: float = 0.0
    local_s: float = 0.0  # of a decode worker's time, for the others' prefills; mean over all requests
    # (share of its time left for steps, batch, step_s): many, so found when first asked for, if it prefills at all
    beside_local: Callable[[], tuple[tuple[float, float, float], ...]] = tuple
    encode_s: float = 0.0  # until the embeddings of its images are there; mean over all requests
    unreachable: Unreachable = ALL_REACHABLE
    tuning: Tuning = SHIPPED

    def at_threshold(self, tokens: int) -> "OperatingPoint":
        """The same, with prompts of at most ``tokens`` that are not cached prefilled where they decode."""
        local_shares = [p.local_share(tokens) for p in self.prompts]
        remote = [
            replace(p, share=p.share * (1 - local))
            for p, local in zip(self.prompts, local_shares, strict=True)
            if local < 1 and p.share > 0
        ]
        remote_share = sum(p.share for p in remote)
        # Attention grows with the square of a prompt: the mean of the times is more than the time of the mean.
        queued = remote or self.prompts
        weight = sum(p.share for p in queued)
        prefill_s = sum(p.amortised_s * p.share for p in queued) / weight
        scv = self.prefill_scv
        if len(queued) > 1:
            squares = sum(p.amortised_s * p.amortised_s * p.share for p in queued) / weight
            scv = max(0.05, squares / (prefill_s * prefill_s) - 1)
        queued_tokens = sum(p.new_tokens * p.share for p in queued) / weight
        in_time = [p for p in queued if p.reachable] or queued
        return replace(
            self,
            prefill_s=prefill_s,
            prefill_alone_s=sum(p.alone_s * p.share for p in queued) / weight,
            reachable_s=sum((p.alone_s + p.new_tokens * self.transfer_s_per_token) * p.share for p in in_time)
            / sum(p.share for p in in_time),
            prefill_scv=scv,
            queued_tokens=queued_tokens,
            transfer_s=queued_tokens * self.transfer_s_per_token,
            remote_share=remote_share,
            local_s=sum(p.local_s * p.share * local for p, local in zip(self.prompts, local_shares, strict=True)),
        )

    @property
    def local_tokens(self) -> float:
        """Of a prompt that its decode worker computes, those that are not cached; 0: there is none."""
        of_remote, share = self.queued_tokens * self.remote_share, 1 - self.remote_share
        return (sum(p.new_tokens * p.share for p in self.prompts) - of_remote) / share if share > 0 else 0.0

    def local_share(self, tokens: int) -> float:
        """Of all requests, those with at most so many tokens that are not cached where they decode."""
        return sum(p.share * p.local_share(tokens) for p in self.prompts)

    @property
    def prefill_per_s(self) -> float:
        """Requests a prefill worker can do in a second."""
        return 1 / max(self.prefill_s * self.remote_share, 1e-9)

    @property
    def slack_s(self) -> float:
        """What a request may wait for a prefill worker."""
        return max(self.tuning.min_slack_share * self.ttft_s, self.room_s - self.encode_s)

    @property
    def first_step_s(self) -> float:
        """Until a decode worker has given a first token: half of the step that is under way, and a whole one."""
        return 1.5 * self.step_s

    @property
    def room_s(self) -> float:
        """What the objective leaves of a request's time beside its prefill, transfer and first step.

        Requests that miss it anyway leave nothing, and do not count.
        """
        return self.tuning.usable_ttft_share * self.ttft_s - self.reachable_s - self.first_step_s

    def prefill_workers(self, rate_per_s: float, arrival_scv: float, late: float, most: int) -> int:
        """The least pool where at most a share ``late`` of the requests waits beyond the slack, or ``most``."""
        rate_per_s = rate_per_s * self.remote_share
        offered = rate_per_s * self.prefill_s
        if offered <= 0:
            return 1
        blocking, slack_s = 1.0, self.slack_s
        least = self._links(rate_per_s)
        for workers in range(1, most):
            blocking = offered * blocking / (workers + offered * blocking)  # Erlang B
            utilisation = offered / workers
            if utilisation > self.tuning.max_prefill_utilization or workers < least:
                continue
            waits = blocking / (1 - utilisation * (1 - blocking))  # Erlang C
            delay_s = delayed_wait_s(workers, rate_per_s, self.prefill_s, arrival_scv, self.prefill_scv)
            if waits * math.exp(-min(50.0, slack_s / max(delay_s, 1e-9))) <= late:
                return workers
        return most

    def busy_prefill_workers(self, rate_per_s: float) -> float:
        """Workers that such a rate keeps as busy as they may be, or their network; no less and no whole number."""
        busy = rate_per_s / self.prefill_per_s / self.tuning.max_prefill_utilization
        return max(busy, self._links(rate_per_s * self.remote_share))

    def _links(self, rate_per_s: float) -> float:
        """Workers whose network carries the KV of so many prompts a second, sent or pulled."""
        return rate_per_s * self.transfer_s / self.tuning.max_network_utilization

    def decode_workers(self, rate_per_s: float, deviations: float) -> float:
        """⟨(A + z·√A)/B*⟩ before rounding, A being the sequences that decode at once; at least what pulls the KV."""
        return max(self._decode_workers(rate_per_s, deviations), self._links(rate_per_s * self.remote_share))

    def _decode_workers(self, rate_per_s: float, deviations: float) -> float:
        if self.local_s <= 0:
            return self._staffed(rate_per_s, deviations, 1.0, self.batch, self.step_s)
        # Prefills stop the steps beside them: the less of its time is left for steps, the shorter they must be.
        busy = rate_per_s * self.local_s
        return min(
            max(busy / (1 - free), self._staffed(rate_per_s, deviations, free, batch, step_s))
            for free, batch, step_s in self.beside_local()
        )

    def attainment(
        self, rate_per_s: float, arrival_scv: float, prefill: int, decode: int, *, holds_back: bool
    ) -> float:
        """Share of requests within both objectives, were this load to last; ``holds_back``: flow control is at work.

        It falls with the load and rises with workers, also where there are too few: one layout is better than another.
        """
        return self._first_tokens(rate_per_s, arrival_scv, prefill, holds_back) * self._pace(
            rate_per_s, decode, holds_back
        )

    def _first_tokens(self, rate_per_s: float, arrival_scv: float, workers: int, holds_back: bool) -> float:
        """Share within the TTFT objective."""
        missed = self.unreachable.share
        if self.remote_share <= 0:
            return 1.0 - missed
        rate_per_s = rate_per_s * self.remote_share
        load = rate_per_s, self.prefill_s, arrival_scv, self.prefill_scv
        if holds_back:
            served = 1 - lost_share(workers, *load, self.slack_s)
        else:
            utilisation = rate_per_s * self.prefill_s / workers
            most = self.tuning.max_prefill_utilization
            kept = min(1.0, most / utilisation) if utilisation > 0 else 1.0  # of the rest all are late
            rate_per_s *= kept
            delay_s = delayed_wait_s(workers, rate_per_s, *load[1:])
            waits = erlang_c(workers, rate_per_s * self.prefill_s)
            served = kept * (1 - waits * math.exp(-min(50.0, self.slack_s / max(delay_s, 1e-9))))
        return 1.0 - missed - max(0.0, self.remote_share - missed) * (1.0 - served)  # the longest are all remote

    def _pace(self, rate_per_s: float, workers: int, holds_back: bool) -> float:
        """Share within the TPOT objective."""
        if self.batch < 1:
            return 0.0
        need = self.decode_workers(rate_per_s, 0.0)
        spread = max(self.decode_workers(rate_per_s, 1.0) - need, 1e-9)
        fits = 0.5 * (1 + math.erf((workers - need) / spread / math.sqrt(2)))
        return max(fits, min(1.0, workers / max(need, 1e-9))) if holds_back else fits

    def batch_beside_local(self, rate_per_s: float) -> float:
        """Sequences counted on, of a decode worker that also prefills its share of ``rate_per_s``.

        Where these prefills leave no time for a single one, fewer sequences do not help: it is the batch without them.
        """
        batch = self.batch
        if self.local_s > 0:
            free = 1 - rate_per_s * self.local_s
            batches = [batch for share, batch, _ in self.beside_local() if share <= free and batch >= 1]
            batch = batches[-1] if batches else batch
        return batch

    def _staffed(self, rate_per_s: float, deviations: float, free: float, batch: float, step_s: float) -> float:
        offered = rate_per_s * self.output_tokens * step_s / free
        return (offered + deviations * math.sqrt(offered * (1 + self.context_scv))) / max(batch, 1e-9)


def operating_point(
    model: PerformanceModel,
    observation: Observation,
    policy: Policy,
    lengths: Lengths,
    shape: Shape,
    *,
    transfer_s_per_token: float = 0.0,
    missed_share: float = 1.0,
) -> OperatingPoint:
    """What requests of these ``lengths`` and this ``shape`` cost, at the threshold in force.

    ``missed_share``: of the requests, those that missed an objective lately, which bounds those that always will, since
    the buckets of lengths are wide.
    """
    objectives, tuning, prefixes = policy.objectives, policy.tuning, lengths.prefixes
    prompt_tokens, output_tokens = max(1.0, lengths.prompt_tokens or 1.0), max(1.0, lengths.output_tokens or 1.0)
    context_tokens = shape.context_tokens(lengths)
    batch, step_s = _decode_batch(model, observation, objectives.tpot_ms, context_tokens, tuning)
    budget = observation.routing.prefill_token_budget
    if prefixes.matter:
        prompts = _of_conversations(model, budget, prefixes, prompt_tokens)
        all_cached = 1 - prefixes.missing_share
    else:
        prompts = _all_alike(model, budget, lengths.shares, prompt_tokens, lengths.cached_share)
        all_cached = lengths.cached_share

    def misses_alone(prompt: Prompts) -> tuple[bool, bool]:
        step_ms = model.decode_step_ms(1, prompt.prompt_tokens + output_tokens / 2)
        prefill_s = min(prompt.alone_s + prompt.new_tokens * transfer_s_per_token, prompt.local_s)
        late = prefill_s * 1000 + step_ms > objectives.ttft_for(prompt.prompt_tokens)
        return late, step_ms > objectives.tpot_ms

    def of_length(tokens: float) -> Prompts:
        return _all_alike(model, 1, ((tokens, 1.0),), tokens, all_cached)[0]

    prompts, unreachable = _apart(prompts, misses_alone, of_length, missed_share)

    @cache
    def beside_local() -> tuple[tuple[float, float, float], ...]:
        tpots_ms = {free: free * objectives.tpot_ms for free in FREE_SHARES}
        return tuple(
            (free, *_decode_batch(model, observation, tpot_ms, context_tokens, tuning))
            for free, tpot_ms in tpots_ms.items()
        )

    full = observation.max_sequences or MOST_SEQUENCES
    if observation.kv_capacity_tokens is not None:
        full = min(full, observation.kv_capacity_tokens / context_tokens)
    full = max(full, 1.0)
    return OperatingPoint(
        prefill_s=0.0,
        prefill_alone_s=0.0,
        reachable_s=0.0,
        prefill_scv=shape.prefill_scv,
        queued_tokens=0.0,
        transfer_s=0.0,
        transfer_s_per_token=transfer_s_per_token,
        ttft_s=objectives.ttft_for(_mean_reachable(prompts, prompt_tokens)) / 1000,
        output_tokens=output_tokens,
        batch=batch,
        step_s=step_s,
        context_scv=shape.context_scv,
        drain_per_s=full / max(output_tokens * model.decode_step_ms(full, full * context_tokens) / 1000, 1e-9),
        prompts=prompts,
        beside_local=beside_local,
        unreachable=unreachable,
        tuning=tuning,
    ).at_threshold(observation.routing.max_local_prefill_tokens)


def _all_alike(
    model: PerformanceModel,
    batch_tokens: float,
    lengths: Sequence[tuple[float, float]],
    prompt_tokens: float,
    cached_share: float,
) -> tuple[Prompts, ...]:
    """Prompts of ``lengths``, a share of each cached wherever it is computed."""
    found = []
    for (measured, share), tokens in zip(lengths, _with_mean(lengths, prompt_tokens), strict=True):
        new, cached = max(1.0, tokens * (1 - cached_share)), tokens * cached_share
        alone_s = model.prefill_ms(new, cached) / 1000
        amortised_s = _amortised_s(model, new, cached, batch_tokens)
        bucket_tokens = max(1.0, measured * (1 - cached_share))
        found.append(Prompts(new, share, alone_s, amortised_s, alone_s, bucket_tokens, tokens))
    return tuple(found)


def _of_conversations(
    model: PerformanceModel, batch_tokens: float, prefixes: Prefixes, prompt_tokens: float
) -> tuple[Prompts, ...]:
    """Prompts by what decode workers lack of them, which have one part cached, and prefill workers another."""
    held, cached = prompt_tokens * (1 - prefixes.missing_share), prefixes.held_by_prefill
    found = []
    stretched = _with_mean(prefixes.shares, prompt_tokens * prefixes.missing_share)
    for (measured, share), tokens in zip(prefixes.shares, stretched, strict=True):
        missing = tokens if round(measured) > 1 else 0.0  # nothing is to be computed but what gives the first token
        computed = max(1.0, prefixes.computed_by_prefill(missing))
        found.append(
            Prompts(
                missing,
                share,
                model.prefill_ms(computed, cached) / 1000,
                _amortised_s(model, computed, cached, batch_tokens),
                model.prefill_ms(missing, held) / 1000 if missing > 0 else 0.0,
                measured if missing > 0 else 0.0,
                held + missing,
            )
        )
    return tuple(found)


def _apart(
    prompts: tuple[Prompts, ...],
    misses_alone: Callable[[Prompts], tuple[bool, bool]],
    of_length: Callable[[float], Prompts],
    missed_share: float,
) -> tuple[tuple[Prompts, ...], Unreachable]:
    """Prompts with those marked that miss TTFT or TPOT alone, wherever they are prefilled; and their shares."""
    missed = [misses_alone(prompt) for prompt in prompts]
    if not any(any(late) for late in missed):
        return prompts, ALL_REACHABLE
    of_ttft, of_tpot = (
        min(missed_share, sum(p.share for p, late in zip(prompts, missed, strict=True) if late[objective]))
        for objective in (0, 1)
    )
    prompts = tuple(replace(p, reachable=not any(late)) for p, late in zip(prompts, missed, strict=True))
    longest = _longest(prompts, lambda tokens: any(misses_alone(of_length(tokens))))
    return prompts, Unreachable(of_ttft, of_tpot, longest)


def _mean_reachable(prompts: Sequence[Prompts], mean: float) -> float:
    """Tokens of a prompt that can be in time; ``mean``: of all prompts."""
    in_time = [p for p in prompts if p.reachable]
    if len(in_time) in (0, len(prompts)):
        return mean
    return sum(p.prompt_tokens * p.share for p in in_time) / sum(p.share for p in in_time)


def _longest(prompts: Sequence[Prompts], is_late: Callable[[float], bool]) -> float | None:
    """Tokens of the longest prompt that can be in time, about; None: none can."""
    low = max((p.prompt_tokens for p in prompts if p.reachable), default=None)
    if low is None:
        return None
    high = max(p.prompt_tokens for p in prompts if not p.reachable)
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (low, middle) if is_late(middle) else (middle, high)
    return low


def _with_mean(lengths: Sequence[tuple[float, float]], mean: float) -> list[float]:
    """The distribution's tokens stretched to a mean that is known better: a histogram's buckets are wide."""
    total = sum(n * share for n, share in lengths)
    return [n * mean / total if total > 0 else n for n, _ in lengths]


def _amortised_s(model: PerformanceModel, tokens: float, cached: float, batch_tokens: float) -> float:
    """A worker's time per prompt when it always has enough for a full pass."""
    together = max(1.0, math.floor(batch_tokens / (tokens + cached)))  # workers admit by the whole prompt
    return pass_ms(model, together, tokens, cached) / together / 1000


def _decode_batch(
    model: PerformanceModel, observation: Observation, tpot_ms: float, context_tokens: float, tuning: Tuning
) -> tuple[float, float]:
    """(the largest batch within the token objective and memory, its step in seconds)."""
    high = _most_sequences(observation, context_tokens, tuning)
    limit_ms = tuning.usable_tpot_share * tpot_ms
    step_ms = model.decode_step_ms(high, high * context_tokens)
    if step_ms <= limit_ms:
        return high, step_ms / 1000
    low = LEAST_SEQUENCES
    for _ in range(24):
        middle = (low + high) / 2
        if model.decode_step_ms(middle, middle * context_tokens) <= limit_ms:
            low = middle
        else:
            high = middle
    return low, model.decode_step_ms(low, low * context_tokens) / 1000


def _most_sequences(observation: Observation, context_tokens: float, tuning: Tuning) -> float:
    """That a worker's memory has room for, with a margin."""
    most = MOST_SEQUENCES if observation.max_sequences is None else observation.max_sequences
    if observation.kv_capacity_tokens is None:
        return most
    return max(min(most, tuning.usable_kv_share * observation.kv_capacity_tokens / context_tokens), LEAST_SEQUENCES)
