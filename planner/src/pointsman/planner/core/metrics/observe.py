"""From readings of /metrics pages to an Observation."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import chain, pairwise, product
from statistics import median_high
from typing import Final

from pointsman.api.protocol import metrics as named
from pointsman.api.protocol.metrics import Objective, TpotVerdict, TtftVerdict
from pointsman.api.protocol.names import Role
from pointsman.planner.core.metrics import scrape_pair
from pointsman.planner.core.metrics.scrape_pair import EMPTY, Histogram, Page
from pointsman.planner.core.types import (
    EncodeLoad,
    EngineSample,
    Load,
    Objectives,
    Observation,
    RoutingNumbers,
    Service,
    Uncached,
    Worker,
    WorkerCondition,
)
from pointsman.serving.local_remote import ONLY_LOCAL, PrefillReason

ENGINE_STEPS: Final = "vllm:iteration_tokens_total_count"
"""Steps of an engine in which it computed anything."""
_HISTOGRAMS: Final = (
    named.GATEWAY_PROMPT_TOKENS.name,
    named.GATEWAY_REFUSED_PROMPT_TOKENS.name,
    named.GATEWAY_OUTPUT_TOKENS.name,
    named.GATEWAY_TTFT.name,
    named.GATEWAY_TPOT.name,
    named.WORKER_PREFILL_SECONDS.name,
    named.WORKER_UNCACHED_TOKENS.name,
    named.WORKER_ENCODE_SECONDS.name,
    "vllm:request_prefill_time_seconds",
    "vllm:request_prefill_kv_computed_tokens",
    "vllm:inter_token_latency_seconds",
    "vllm:nixl_xfer_time_seconds",
)
FAMILIES: Final = (
    named.ELASTIC_SLOTS.name,
    named.ELASTIC_DECODE_SUMS.name,
    named.GATEWAY_ARRIVALS.name,
    named.GATEWAY_ACCEPTED.name,
    named.GATEWAY_ACCEPTED_REFUSED.name,
    named.GATEWAY_FIRST_TOKENS.name,
    named.GATEWAY_ENDED.name,
    named.GATEWAY_OBJECTIVE.name,
    named.GATEWAY_ANSWERS.name,
    named.GATEWAY_ANSWER_TOKENS.name,
    named.WORKER_PREFILL_ENGINE_SECONDS.name,
    named.WORKER_PROMPT_TOKENS.name,
    named.WORKER_DECISIONS.name,
    named.GATEWAY_ENCODE_IMAGES.name,
    named.GATEWAY_ENCODE_REQUESTS.name,
    named.GATEWAY_ENCODE_IMAGES_SQUARED.name,
    "vllm:prompt_tokens_by_source_total",
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    ENGINE_STEPS,
    named.GATEWAY_HELD.name,
    named.GATEWAY_ENCODE_IN_FLIGHT.name,
    named.WORKER_IN_FLIGHT.name,
    named.WORKER_QUEUE_DEPTH.name,
    named.WORKER_MAX_SEQUENCES.name,
    "vllm:kv_cache_usage_perc",
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:cache_config_info",
    *(f"{name}_{part}" for name in _HISTOGRAMS for part in ("bucket", "sum")),
)
"""Names of all samples an observation is made of: a source other than a whole page need not bring more."""

_KNOWN_TTFT: Final = (TtftVerdict.MET, TtftVerdict.MISSED)
_KNOWN_TPOT: Final = (TpotVerdict.MET, TpotVerdict.MISSED, TpotVerdict.NONE)

LONG_UNREAD_S: Final = 300.0  # a worker's page that is lost for longer no longer keeps others from being removed


@dataclass(frozen=True, slots=True)
class Reading:
    """Two pages of one target, ``seconds`` apart. ``page`` None: nothing of it is known now.

    ``is_old``: the newest scrape failed, and these are the two pages before it. They stand for what is not known until
    the policy's ``staleAfterSeconds`` are over.
    """

    before: Page
    page: Page | None
    seconds: float
    is_old: bool = False

    def within(self, age_s: float, stale_after_s: float) -> "Reading":
        """Without the newest page, where it is old and older than ``stale_after_s``."""
        return replace(self, page=None) if self.is_old and age_s > stale_after_s else self

    def gauge(self, name: str) -> float | None:
        """A gauge on the newest page; None if it is not known."""
        return scrape_pair.gauge(self.page or {}, name)

    def added(self, name: str, **only: str) -> float | None:
        """What a counter gained between the two pages; None if it is not known."""
        return scrape_pair.added(self.before, self.page or {}, name, **only)

    def added_by(self, names: Sequence[str], label: str) -> dict[str, tuple[float, ...]]:
        """What counters gained between the two pages by the values of a label; empty if it is not known."""
        return scrape_pair.added_by(self.before, self.page or {}, names, label)

    def observed(self, name: str) -> Histogram:
        """A histogram's observations between the two pages; empty if they are not known."""
        return scrape_pair.observed(self.before, self.page or {}, name)


UNREAD: Final = Reading({}, None, 0.0)
"""Of a target that was not read twice."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A worker as Kubernetes shows it, and its reading (None: not scraped twice yet)."""

    worker: Worker
    reading: Reading | None
    scrape_failed: bool = False
    age_s: float | None = None  # of its newest page; infinite: it was never read; None: nobody says

    @property
    def metrics(self) -> Reading:
        """Its reading, or one of which nothing is known."""
        return self.reading or UNREAD


def observation(
    *,
    at_s: float,
    age_s: float,
    gateways: Sequence[Reading],
    workers: Sequence[Seen],
    routing: RoutingNumbers,
    objectives: Objectives,
    plan_in_progress: bool,
    new_gateways: int = 0,
    unreadable_gateways: tuple[str, ...] = (),
    worker_gpus: int = 1,
    pods_start_s: float | None = None,
    encoders: Sequence[Seen] = (),
    encode_replicas: int | None = None,
    encode_gpus: int = 1,
) -> Observation:
    """Everything about one service now. ``age_s``: age of the oldest gateway reading; ``gateways``: those that were
    read twice, beside the two kinds of others, for which see ``Observation``; ``worker_gpus``: of one worker, also
    where none is there; ``pods_start_s``: see ``Observation``; ``encode_replicas``: that are asked for, None where
    there is no encode pool; ``encode_gpus``: of one encode worker."""
    live = [reading for reading in gateways if reading.page is not None and reading.seconds > 0]
    unread = new_gateways + len(unreadable_gateways)
    # Without workers that start: they have no page yet.
    serving = [seen for seen in workers if seen.worker.condition is WorkerCondition.ACTIVE]
    sequences = _known(seen.metrics.gauge(named.WORKER_MAX_SEQUENCES.name) for seen in workers)
    return Observation(
        at_s=at_s,
        window_s=min((reading.seconds for reading in live), default=0.0),
        age_s=math.inf if not gateways or len(live) < len(gateways) else max(age_s, _half_unread_s(serving)),
        workers=tuple(map(_worker, workers)),
        routing=routing,
        load=_load(live, workers),
        service=_service(live, workers, objectives) if live else None,
        samples=_samples(serving),
        # The smallest of both, since any worker may get any request.
        kv_capacity_tokens=min(_known(_kv_capacity(seen.metrics) for seen in workers), default=None),
        max_sequences=min((most for most in sequences if most > 0), default=None),
        worker_gpus=max(1, worker_gpus),
        pods_start_s=pods_start_s,
        gateways=max(1, len(gateways) + unread),
        new_gateways=new_gateways,
        unreadable_gateways=unreadable_gateways,
        old_pages=sum(reading.is_old for reading in gateways),
        long_unread=sum(lost_s > LONG_UNREAD_S for lost_s in _known(s.age_s for s in serving if s.scrape_failed)),
        gateways_age_s=math.inf if unreadable_gateways else age_s,
        workers_age_s=max(_known(seen.age_s for seen in serving), default=None),
        plan_in_progress=plan_in_progress,
        encode_workers=tuple(map(_worker, encoders)),
        encode_replicas=encode_replicas,
        encode_gpus=max(1, encode_gpus),
        encode=_encode_load(live, encoders) if encode_replicas is not None else None,
    )


def counted_once(observed: Observation, before: Observation) -> Observation:
    """With a window that begins at the look ``before``, where in one of the two old pages stand for newer ones: the
    requests of the time before it are counted."""
    since_s = observed.at_s - before.at_s
    if since_s <= 0 or not (observed.old_pages or before.old_pages):
        return observed
    return replace(observed, window_s=min(observed.window_s, since_s))


def _known(values: Iterable[float | None]) -> list[float]:
    """Those that are known."""
    return [value for value in values if value is not None]


def _sum_known(values: Iterable[float | None]) -> float | None:
    """The sum of those that are known; None: none is."""
    known = _known(values)
    return sum(known) if known else None


def _share(part: float, whole: float) -> float | None:
    """None: nothing was counted."""
    return part / whole if whole > 0 else None


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


def together(readings: Iterable[Reading], name: str) -> Histogram:
    """A histogram's observations between the pages of all ``readings``."""
    return reduce(Histogram.plus, (reading.observed(name) for reading in readings), EMPTY)


def _counting(readings: Iterable[Reading], *names: str) -> list[Reading]:
    """Those with all of these counters."""
    return [reading for reading in readings if all(reading.added(name) is not None for name in names)]


def _added(readings: Iterable[Reading], name: str, **only: str) -> float:
    """What a counter gained between the pages of all ``readings`` that have it."""
    return sum(_known(reading.added(name, **only) for reading in readings), 0.0)


def _encode_load(gateways: Sequence[Reading], encoders: Sequence[Seen]) -> EncodeLoad | None:
    """What came for encode workers; None: not each gateway counts images."""
    of_images = (named.GATEWAY_ENCODE_REQUESTS, named.GATEWAY_ENCODE_IMAGES, named.GATEWAY_ENCODE_IMAGES_SQUARED)
    requests_name, images_name, squared_name = (metric.name for metric in of_images)
    counting = _counting(gateways, requests_name, images_name, squared_name)
    if not counting or len(counting) < len(gateways):  # a part of the load is not the load
        return None
    requests = _added(counting, requests_name)
    in_flight = _sum_known(reading.gauge(named.GATEWAY_ENCODE_IN_FLIGHT.name) for reading in gateways)
    busy = sum(seen.worker.condition is WorkerCondition.ACTIVE for seen in encoders)
    return EncodeLoad(
        requests_per_s=sum(_added([reading], requests_name) / reading.seconds for reading in counting),
        images=_share(_added(counting, images_name), requests),
        squared_images=_share(_added(counting, squared_name), requests),
        image_ms=_image_ms(encoders),
        waiting=None if in_flight is None else max(0.0, in_flight - busy),
    )


def _image_ms(encoders: Sequence[Seen]) -> float | None:
    """What an image takes of an encode worker's time. A gateway sends each image by itself.

    Images of an old page were counted when it was new.
    """
    images = busy_s = 0.0
    for seen in encoders:
        took = seen.metrics.observed(named.WORKER_ENCODE_SECONDS.name)
        if took.mean is not None and not seen.metrics.is_old:
            images += took.count
            busy_s += took.total / prefilled_together(took.total, took.mean, seen.metrics.seconds)
    return _milliseconds(_share(busy_s, images))


def _half_unread_s(serving: Sequence[Seen]) -> float:
    """The age that the pages of half of the workers that serve have reached, as their newest scrapes failed; 0: those
    of fewer did."""
    ages_s = [(math.inf if seen.age_s is None else seen.age_s) if seen.scrape_failed else 0.0 for seen in serving]
    return median_high(ages_s or [0.0])


def _worker(seen: Seen) -> Worker:
    worker, in_flight = seen.worker, seen.metrics.gauge(named.WORKER_IN_FLIGHT.name)
    waiting = seen.metrics.gauge("vllm:num_requests_waiting")
    is_lost = worker.condition is WorkerCondition.ACTIVE and seen.scrape_failed
    return replace(
        worker,
        condition=WorkerCondition.UNREACHABLE if is_lost else worker.condition,
        in_flight=None if in_flight is None else int(in_flight),
        queued=None if waiting is None else int(waiting),
        kv_usage=seen.metrics.gauge("vllm:kv_cache_usage_perc"),
    )


def _load(gateways: Sequence[Reading], workers: Sequence[Seen]) -> Load | None:
    """What came in the window; None: no gateway counts requests."""
    # Each over its own time: that of a gateway whose last scrape failed is longer.
    rates = _known(_accepted_per_s(reading) for reading in gateways)
    if not rates:
        return None
    outputs = named.GATEWAY_OUTPUT_TOKENS.name
    accepted = together(gateways, named.GATEWAY_PROMPT_TOKENS.name)
    prompts = accepted.less(together(gateways, named.GATEWAY_REFUSED_PROMPT_TOKENS.name))
    prefilled = _prefilled(_engines(workers, Role.PREFILL))
    _, asked, computed = prefilled
    cached = 1 - computed / asked if asked > 0 else None
    pulled_tokens, pulling_s = _pulled(_engines(workers, *Role))
    return Load(
        arrivals_per_s=sum(rates),
        prompt_tokens=prompts.mean,
        cached_tokens=None if cached is None or prompts.mean is None else cached * prompts.mean,
        output_tokens=together(gateways, outputs).mean,
        prompt_length_shares=prompts.shares(),
        answers=_answers(gateways),
        pulled_tokens=pulled_tokens,
        pulling_s=pulling_s,
        uncached=_uncached(_engines(workers, Role.DECODE), prefilled),
    )


def _answers(gateways: Sequence[Reading]) -> tuple[tuple[float, float, float], ...]:
    """Answers that ended by the bucket of their prompts: (its middle, answers, their tokens).

    Those of an old page were counted when it was new.
    """
    names = named.GATEWAY_ANSWERS.name, named.GATEWAY_ANSWER_TOKENS.name
    gained = [reading.added_by(names, "prompt_tokens") for reading in gateways if not reading.is_old]
    found = []
    for bucket, (low, upper) in zip(named.TOKEN_BUCKETS, pairwise((0.0, *named.TOKEN_BOUNDS, math.inf)), strict=True):
        answers, tokens = (sum(each[bucket][place] for each in gained if bucket in each) for place in (0, 1))
        if answers > 0:
            found.append((scrape_pair.middle(low, upper), answers, tokens))
    return tuple(found)


def _accepted_per_s(gateway: Reading) -> float | None:
    """Requests a second that a gateway accepted and did not refuse afterwards; None: it does not count requests.

    A gateway of an earlier version counts those that it received, with all that it refused.
    """
    accepted, refused = gateway.added(named.GATEWAY_ACCEPTED.name), gateway.added(named.GATEWAY_ACCEPTED_REFUSED.name)
    count = gateway.added(named.GATEWAY_ARRIVALS.name) if accepted is None else max(0.0, accepted - (refused or 0.0))
    return None if count is None else count / gateway.seconds


def _engines(workers: Sequence[Seen], *roles: Role) -> list[Reading]:
    """The readings of workers of these roles whose engines have started; an old page was counted when it was new."""
    fresh = (seen for seen in workers if not seen.metrics.is_old)
    started = (seen for seen in fresh if seen.worker.condition is not WorkerCondition.STARTING)
    return [seen.metrics for seen in started if seen.worker.role in roles]


def _pulled(engines: Sequence[Reading]) -> tuple[float | None, float | None]:
    """(tokens whose KV came over the network, seconds that took, all pulls together); None: not known of all engines.

    What the reporting engines of a mixed fleet pulled cannot be compared with what all prefill workers computed.
    """
    read = [reading for reading in engines if reading.page is not None]
    tokens, seconds = "vllm:prompt_tokens_by_source_total", "vllm:nixl_xfer_time_seconds_sum"
    if not read or len(_counting(read, tokens, seconds)) < len(read):
        return None, None
    return _added(read, tokens, source="external_kv_transfer"), _added(read, seconds)


def _prefilled(prefillers: Sequence[Reading]) -> tuple[float, float, float]:
    """(prompts that prefill workers computed, tokens of them, those whose KV was not there)."""
    queries, hits = "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"
    counting = _counting(prefillers, queries, hits)
    computed = [reading.observed("vllm:request_prefill_kv_computed_tokens").count for reading in counting]
    asked = _added(counting, queries)
    return sum(computed, 0.0), asked, asked - _added(counting, hits)


def _uncached(decoders: Sequence[Reading], prefilled: tuple[float, float, float]) -> Uncached | None:
    """What the window's prompts lacked of cached tokens; None: no decode worker says.

    Of prompts that no prefill worker can take nothing is to be prefilled elsewhere. Workers count them but not their
    tokens: they are taken to be as long as the others.
    """
    counting = _counting(decoders, named.WORKER_PROMPT_TOKENS.name)
    if not counting:
        return None
    tokens = _added(counting, named.WORKER_PROMPT_TOKENS.name)
    lacked = together(counting, named.WORKER_UNCACHED_TOKENS.name)
    counts = {reason: _added(decoders, named.WORKER_DECISIONS.name, reason=reason) for reason in PrefillReason}
    decided = sum(counts.values()) - counts[PrefillReason.INVALID]  # what the engine refuses is no load
    only_local = sum(counts[reason] for reason in ONLY_LOCAL)
    others = decided - only_local
    more = lacked.count * only_local / others if others > 0 and lacked.count > 0 else only_local
    requests, shares = lacked.count + more, lacked.shares()
    if more > 0:
        shares = ((0.0, more / requests), *((length, share * lacked.count / requests) for length, share in shares))
    return Uncached(
        requests,
        tokens + more * (tokens / lacked.count if lacked.count > 0 else 1.0),
        lacked.total,
        shares,
        *prefilled,
        only_local=tuple((each.value, n / decided) for each, n in counts.items() if each in ONLY_LOCAL and n > 0),
    )


def _service(gateways: Sequence[Reading], workers: Sequence[Seen], objectives: Objectives) -> Service:
    judged = [reading for reading in gateways if _counts_against(objectives, reading)]
    first = partial(_added, judged, named.GATEWAY_FIRST_TOKENS.name)
    ended = partial(_added, judged, named.GATEWAY_ENDED.name)
    within = sum(ended(ttft=TtftVerdict.MET, tpot=tpot) for tpot in (TpotVerdict.MET, TpotVerdict.NONE))
    known = sum(ended(ttft=ttft, tpot=tpot) for ttft, tpot in product(_KNOWN_TTFT, _KNOWN_TPOT))
    failed = ended(tpot=TpotVerdict.FAILED)
    whole = sum(ended(ttft=ttft) for ttft in TtftVerdict) - failed
    # A failed request is always known to be late, a whole answer is not: failures count for the share that is known.
    late = failed * known / whole if whole > 0 else failed
    tpot_met, tpot_missed = ended(tpot=TpotVerdict.MET), ended(tpot=TpotVerdict.MISSED)
    return Service(
        ttft_attainment=_share(first(ttft=TtftVerdict.MET), sum(first(ttft=ttft) for ttft in _KNOWN_TTFT)),
        tpot_attainment=_share(tpot_met, tpot_met + tpot_missed),
        attainment=_share(within, known + late),
        prefill_queue_depth=_waiting_for_prefill(workers),
        held=_sum_known(reading.gauge(named.GATEWAY_HELD.name) for reading in gateways),
    )


def _counts_against(objectives: Objectives, reading: Reading) -> bool:
    """Whether a gateway counted against these ``objectives`` in the whole window.

    What it counted against others says nothing of these, so a window in which they changed is left out.
    """
    asked_s = {
        Objective.TTFT: objectives.ttft_ms / 1000,
        Objective.TTFT_PER_PROMPT_TOKEN: objectives.ttft_ms_per_prompt_token / 1000,
        Objective.TPOT: objectives.tpot_ms / 1000,
    }
    pages = (page.get(named.GATEWAY_OBJECTIVE.name, {}) for page in (reading.before, reading.page or {}))
    shown_s = [{dict(labels).get("objective"): value for labels, value in gauges.items()} for gauges in pages]
    return all(math.isclose(on.get(name, math.nan), asked_s[name], rel_tol=1e-9) for on in shown_s for name in asked_s)


def _waiting_for_prefill(workers: Sequence[Seen]) -> float | None:
    """Requests in the queue, and those that prefill workers have taken but not begun; None if no worker says."""
    depths = _known(seen.metrics.gauge(named.WORKER_QUEUE_DEPTH.name) for seen in workers)
    prefillers = [seen.metrics for seen in workers if seen.worker.role is Role.PREFILL]
    taken = _known(reading.gauge("vllm:num_requests_waiting") for reading in prefillers)
    return max(depths) + sum(taken) if depths else None  # every worker looks at the one queue


def _samples(serving: Sequence[Seen]) -> tuple[EngineSample, ...]:
    """One prefill and one decode-step measurement a worker, where enough happened since the last look."""
    fresh = [seen for seen in serving if not seen.metrics.is_old]
    found = ((_prefill(s.metrics), _decode(s.metrics) if s.worker.role is Role.DECODE else None) for s in fresh)
    return tuple(sample for sample in chain(*found) if sample is not None)


def _decode(reading: Reading) -> EngineSample | None:
    """The mean step of the window, with the mean batch and KV of the same window."""
    gaps, steps = reading.observed("vllm:inter_token_latency_seconds"), reading.added(ENGINE_STEPS)
    # Each sequence has one token a step. Of an engine that does not count its steps, what runs at the end.
    batch = gaps.count / steps if steps else reading.gauge("vllm:num_requests_running")
    if gaps.count < 3 or not gaps.mean or batch is None:
        return None
    pages, capacity = (reading.before, reading.page or {}), _kv_capacity(reading)
    usages = _known(scrape_pair.gauge(page, "vllm:kv_cache_usage_perc") for page in pages)
    local = reading.added("vllm:prompt_tokens_by_source_total", source="local_compute")
    return EngineSample(
        Role.DECODE,
        observed_ms=gaps.mean * 1000,
        tokens=None if not usages or capacity is None else sum(usages) / len(usages) * capacity,
        batch=max(batch, 1.0),
        local_tokens_per_s=(local or 0.0) / reading.seconds,
    )


def _prefill(reading: Reading) -> EngineSample | None:
    """The mean pass of the window, with its prompts; where passes are not known, what one prompt took of the time."""
    took = reading.observed("vllm:request_prefill_time_seconds")
    computed = reading.observed("vllm:request_prefill_kv_computed_tokens")
    pulled = reading.added("vllm:prompt_tokens_by_source_total", source="external_kv_transfer")
    # vLLM counts a prompt whose KV was pulled as computed, in the few milliseconds that the pull took.
    if pulled or reading.seconds <= 0 or not took.mean or not computed.mean or computed.mean <= 1:
        return None
    # Computed where they decode: the engine tells each one's time, and not what they had in common.
    prompts, pass_s = 1.0, took.mean / prefilled_together(took.total, took.mean, reading.seconds)
    for_others = reading.observed(named.WORKER_PREFILL_SECONDS.name).count
    engine_s = reading.added(named.WORKER_PREFILL_ENGINE_SECONDS.name)
    if for_others and engine_s:
        # A long prompt takes several steps: then one is a pass.
        passes = min(reading.added(ENGINE_STEPS) or for_others, for_others)
        prompts, pass_s = for_others / passes, engine_s / passes
    return EngineSample(Role.PREFILL, pass_s * 1000, computed.mean * prompts, prompts, lengths=computed.shares())


def prefilled_together(total_s: float, mean_s: float, window_s: float) -> float:
    """How many prompts were prefilled at a time, from how long those took that ended in a window; a guess.

    Prompts that are prefilled together each take as long as all of them: of k at a time, one costs a k-th. One after
    the other they take the window in all, and the first of them some time before it.
    """
    return total_s / max(window_s, mean_s) if total_s > window_s + mean_s else 1.0


def _kv_capacity(reading: Reading) -> float | None:
    """Tokens that the worker's KV cache holds."""
    info = (reading.page or {}).get("vllm:cache_config_info", {})
    labels = dict(chain(*reversed([*info])))  # of several engines in one worker the first one counts
    blocks, size = labels.get("num_gpu_blocks", ""), labels.get("block_size", "")
    return float(blocks) * float(size) if blocks.isdigit() and size.isdigit() else None
