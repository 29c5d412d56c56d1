"""From readings of /metrics pages to an Observation."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pointsman.api.protocol import metrics as named
from pointsman.api.protocol.metrics import Objective, TpotVerdict, TtftVerdict
from pointsman.api.protocol.names import Role
from pointsman.planner.core.metrics import scrape_pair
from pointsman.planner.core.metrics.scrape_pair import EMPTY, Histogram, Page
from pointsman.planner.core.types import (
    EncodeLoad,
    EngineSample,
    Layout,
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

_GAUGES: Final = (
    named.GATEWAY_HELD.name,
    named.GATEWAY_ENCODE_IN_FLIGHT.name,
    named.WORKER_IN_FLIGHT.name,
    named.WORKER_QUEUE_DEPTH.name,
    named.WORKER_MAX_SEQUENCES.name,
    "vllm:kv_cache_usage_perc",
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:cache_config_info",
)
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
    named.WORKER_PREFILL_ENGINE_SECONDS.name,
    named.WORKER_PROMPT_TOKENS.name,
    named.WORKER_DECISIONS.name,
    named.GATEWAY_IMAGES.name,
    named.GATEWAY_ENCODE_REQUESTS.name,
    named.GATEWAY_ENCODE_IMAGES_SQUARED.name,
    "vllm:prompt_tokens_by_source_total",
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    ENGINE_STEPS,
    *_GAUGES,
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


@dataclass(frozen=True, slots=True)
class Seen:
    """A worker as Kubernetes shows it, and its reading (None: not scraped twice yet)."""

    worker: Worker
    reading: Reading | None
    scrape_failed: bool = False
    age_s: float | None = None  # of its newest page; infinite: it was never read; None: nobody says


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
    awaiting_approval: Layout | None = None,
    worker_gpus: int = 1,
    pods_start_s: float | None = None,
    encoders: Sequence[Seen] = (),
    encode_replicas: int | None = None,
) -> Observation:
    """Everything about one service now. ``age_s``: age of the oldest gateway reading; ``gateways``: those that were
    read twice, beside the two kinds of others, for which see ``Observation``; ``worker_gpus``: of one worker, also
    where none is there; ``pods_start_s``: see ``Observation``; ``encode_replicas``: that are asked for, None where
    there is no encode pool."""
    live = [reading for reading in gateways if reading.page is not None and reading.seconds > 0]
    window_s = min((reading.seconds for reading in live), default=0.0)
    shown = tuple(_worker(seen) for seen in workers)
    readings = [s.reading for s in workers if s.reading is not None and s.reading.page is not None]
    load = _load(live, workers) if live else None
    unread = new_gateways + len(unreadable_gateways)
    if load is not None and unread:
        load = replace(load, ended_per_s=None)  # engines know who decodes, but not all of those who ended are counted
    return Observation(
        at_s=at_s,
        window_s=window_s,
        age_s=float("inf") if len(live) < len(gateways) or not gateways else max(age_s, _half_unread_s(workers)),
        workers=shown,
        routing=routing,
        load=load,
        service=_service(live, workers, objectives) if live else None,
        samples=tuple(_samples(workers)),
        kv_capacity_tokens=_kv_capacity(readings),
        max_sequences=_max_sequences(readings),
        worker_gpus=max(1, worker_gpus),
        pods_start_s=pods_start_s,
        gateways=max(1, len(gateways) + unread),
        new_gateways=new_gateways,
        unreadable_gateways=unreadable_gateways,
        old_pages=sum(reading.is_old for reading in gateways),
        long_unread=sum(_is_long_unread(seen) for seen in workers),
        gateways_age_s=float("inf") if unreadable_gateways else age_s,
        workers_age_s=_oldest_s(workers),
        plan_in_progress=plan_in_progress,
        awaiting_approval=awaiting_approval,
        encode_workers=tuple(_worker(seen) for seen in encoders),
        encode_replicas=encode_replicas,
        encode=_encode_load(live, encoders) if live and encode_replicas is not None else None,
    )


def counted_once(observed: Observation, before: Observation) -> Observation:
    """With a window that begins at the look ``before``, where in one of the two old pages stand for newer ones: the
    requests of the time before it are counted."""
    since_s = observed.at_s - before.at_s
    if since_s <= 0 or not (observed.old_pages or before.old_pages):
        return observed
    return replace(observed, window_s=min(observed.window_s, since_s))


def _encode_load(gateways: Sequence[Reading], encoders: Sequence[Seen]) -> EncodeLoad | None:
    """What came for encode workers; None: no gateway counts images."""
    counted = [counts for reading in gateways if (counts := _to_encode(reading)) is not None]
    if not counted:
        return None
    requests, images, squared = (sum(counts[part] for counts in counted) for part in range(3))
    mean_square = squared / requests if requests > 0 else None
    in_flight = [scrape_pair.gauge(r.page, named.GATEWAY_ENCODE_IN_FLIGHT.name) for r in gateways if r.page is not None]
    known = [count for count in in_flight if count is not None]
    busy = sum(seen.worker.condition is WorkerCondition.ACTIVE for seen in encoders)
    return EncodeLoad(
        requests_per_s=sum(counts[0] / counts[3] for counts in counted),
        # A request is counted when it comes, its images when they are encoded: a mean is never above the mean square.
        images=None if mean_square is None else min(images / requests, math.sqrt(mean_square)),
        squared_images=mean_square,
        image_ms=_image_ms(encoders),
        waiting=max(0.0, sum(known) - busy) if known else None,
    )


def _to_encode(reading: Reading) -> tuple[float, float, float, float] | None:
    """(requests with images for encode workers, such images, sum of their squares, seconds) of one gateway."""
    if reading.page is None:
        return None
    before, page = reading.before, reading.page
    requests = scrape_pair.added(before, page, named.GATEWAY_ENCODE_REQUESTS.name)
    squared = scrape_pair.added(before, page, named.GATEWAY_ENCODE_IMAGES_SQUARED.name)
    paths = [scrape_pair.added(before, page, named.GATEWAY_IMAGES.name, path=path) for path in ("encode", "local")]
    if requests is None or squared is None or None in paths:
        return None
    return requests, sum(path or 0.0 for path in paths), squared, reading.seconds


def _image_ms(encoders: Sequence[Seen]) -> float | None:
    """What an image takes of an encode worker's time. A gateway sends each image by itself."""
    images = busy_s = 0.0
    for seen in encoders:
        if seen.reading is None or seen.reading.page is None:
            continue
        took = scrape_pair.observed(seen.reading.before, seen.reading.page, named.WORKER_ENCODE_SECONDS.name)
        if took.mean is not None:
            together = prefilled_together(took.total, took.mean, seen.reading.seconds)
            images, busy_s = images + took.count, busy_s + took.total / together
    return busy_s / images * 1000 if images > 0 else None


def _oldest_s(workers: Sequence[Seen]) -> float | None:
    """Of workers that serve: one that starts has no page yet."""
    return max(
        (s.age_s for s in workers if s.age_s is not None and s.worker.condition is WorkerCondition.ACTIVE), default=None
    )


def _half_unread_s(workers: Sequence[Seen]) -> float:
    """The age that the pages of half of the workers that serve have reached, as their newest scrapes failed; 0: those
    of fewer did."""
    serving = [seen for seen in workers if seen.worker.condition is WorkerCondition.ACTIVE]
    ages_s = sorted(
        (float("inf") if seen.age_s is None else seen.age_s for seen in serving if seen.scrape_failed), reverse=True
    )
    half = math.ceil(len(serving) / 2)
    return ages_s[half - 1] if 0 < half <= len(ages_s) else 0.0


def _is_long_unread(seen: Seen) -> bool:
    """Whether a worker that serves was not read for so long, or never, that its page will not come back by itself."""
    unread = seen.worker.condition is WorkerCondition.ACTIVE and seen.scrape_failed
    return unread and seen.age_s is not None and seen.age_s > LONG_UNREAD_S


def _worker(seen: Seen) -> Worker:
    worker = seen.worker
    if worker.condition is WorkerCondition.ACTIVE and seen.scrape_failed:
        worker = replace(worker, condition=WorkerCondition.UNREACHABLE)
    page = seen.reading.page if seen.reading else None
    if page is None:
        return worker
    in_flight = scrape_pair.gauge(page, named.WORKER_IN_FLIGHT.name)
    waits = scrape_pair.gauge(page, "vllm:num_requests_waiting")
    return replace(
        worker,
        in_flight=int(in_flight) if in_flight is not None else None,
        queued=int(waits) if waits is not None else None,
        kv_usage=scrape_pair.gauge(page, "vllm:kv_cache_usage_perc"),
    )


def together(readings: Sequence[Reading], name: str) -> Histogram:
    """A histogram's observations between the pages of all ``readings``."""
    found = EMPTY
    for reading in readings:
        if reading.page is not None:
            found = found.plus(scrape_pair.observed(reading.before, reading.page, name))
    return found


def _load(gateways: Sequence[Reading], workers: Sequence[Seen]) -> Load | None:
    # Each over its own time: that of a gateway whose last scrape failed is longer.
    counted = [(_accepted(r.before, r.page), r.seconds) for r in gateways if r.page is not None]
    rates = [count / seconds for count, seconds in counted if count is not None]
    if not rates:
        return None
    ended = sum(together([r], named.GATEWAY_OUTPUT_TOKENS.name).count / r.seconds for r in gateways)
    accepted, outputs = (
        together(gateways, named.GATEWAY_PROMPT_TOKENS.name),
        together(gateways, named.GATEWAY_OUTPUT_TOKENS.name),
    )
    prompts = accepted.less(together(gateways, named.GATEWAY_REFUSED_PROMPT_TOKENS.name))
    cached = _cached_share(workers)
    decoding, step_ms = _decoding(workers)
    pulled_tokens, pulling_s = _pulled(workers)
    return Load(
        arrivals_per_s=sum(rates),
        prompt_tokens=prompts.mean,
        cached_tokens=None if cached is None or prompts.mean is None else cached * prompts.mean,
        output_tokens=outputs.mean,
        prompt_length_shares=prompts.shares(),
        ended_per_s=ended,
        decoding=decoding,
        step_ms=step_ms,
        pulled_tokens=pulled_tokens,
        pulling_s=pulling_s,
        uncached=_uncached(workers),
    )


def _accepted(before: Page, page: Page) -> float | None:
    """Requests that a gateway accepted and that were not refused afterwards; None: it does not count requests.

    A gateway of an earlier version counts those that it received, with all that it refused.
    """
    accepted = scrape_pair.added(before, page, named.GATEWAY_ACCEPTED.name)
    if accepted is None:
        return scrape_pair.added(before, page, named.GATEWAY_ARRIVALS.name)
    return max(0.0, accepted - (scrape_pair.added(before, page, named.GATEWAY_ACCEPTED_REFUSED.name) or 0.0))


def _decoding(workers: Sequence[Seen]) -> tuple[float | None, float | None]:
    """(sequences that decode, milliseconds between two of their tokens); None: a decode worker does not report it."""
    running, steps = 0.0, EMPTY
    for seen in workers:
        if seen.worker.role is not Role.DECODE or seen.worker.condition is WorkerCondition.STARTING:
            continue
        if seen.reading is None or seen.reading.page is None:
            return None, None
        before, page = seen.reading.before, seen.reading.page
        here = scrape_pair.gauge(page, "vllm:num_requests_running")
        if here is None:
            return None, None
        running += here
        steps = steps.plus(scrape_pair.observed(before, page, "vllm:inter_token_latency_seconds"))
    return running, _milliseconds(steps.mean)


def _pages(workers: Sequence[Seen], role: Role | None = None) -> Iterator[tuple[Page, Page]]:
    """(page before, page) of the workers that were read and whose engines have started; ``role`` None: of both."""
    for seen in workers:
        if seen.reading is None or seen.reading.page is None or seen.worker.condition is WorkerCondition.STARTING:
            continue
        if role in (None, seen.worker.role):
            yield seen.reading.before, seen.reading.page


def _pulled(workers: Sequence[Seen]) -> tuple[float | None, float | None]:
    """(tokens whose KV came over the network, seconds that took, all pulls together); None: not known of all engines.

    What the reporting engines of a mixed fleet pulled cannot be compared with what all prefill workers computed.
    """
    pulled_tokens, pulling_s = None, None
    for before, page in _pages(workers):
        tokens = scrape_pair.added(before, page, "vllm:prompt_tokens_by_source_total", source="external_kv_transfer")
        seconds = scrape_pair.added(before, page, "vllm:nixl_xfer_time_seconds_sum")
        if tokens is None or seconds is None:
            return None, None
        pulled_tokens, pulling_s = (pulled_tokens or 0.0) + tokens, (pulling_s or 0.0) + seconds
    return pulled_tokens, pulling_s


def _cached_share(workers: Sequence[Seen]) -> float | None:
    """Of the prompt tokens that came to prefill workers, those whose KV was there; None: none came, or nobody says."""
    _, asked, computed = _prefilled(workers)
    return 1 - computed / asked if asked > 0 else None


def _prefilled(workers: Sequence[Seen]) -> tuple[float, float, float]:
    """(prompts that prefill workers computed, tokens of them, those whose KV was not there)."""
    prompts = queries = hits = 0.0
    for before, page in _pages(workers, Role.PREFILL):
        asked = scrape_pair.added(before, page, "vllm:prefix_cache_queries_total")
        found = scrape_pair.added(before, page, "vllm:prefix_cache_hits_total")
        if asked is not None and found is not None:
            prompts += scrape_pair.observed(before, page, "vllm:request_prefill_kv_computed_tokens").count
            queries, hits = queries + asked, hits + found
    return prompts, queries, queries - hits


def _uncached(workers: Sequence[Seen]) -> Uncached | None:
    """What the window's prompts lacked of cached tokens; None: no decode worker says."""
    given, tokens = EMPTY, None
    for before, page in _pages(workers, Role.DECODE):
        here = scrape_pair.added(before, page, named.WORKER_PROMPT_TOKENS.name)
        if here is not None:
            tokens = (tokens or 0.0) + here
            given = given.plus(scrape_pair.observed(before, page, named.WORKER_UNCACHED_TOKENS.name))
    if tokens is None:
        return None
    found = Uncached(given.count, tokens, given.total, given.shares(), *_prefilled(workers))
    return _with_only_local(found, workers)


def _with_only_local(uncached: Uncached, workers: Sequence[Seen]) -> Uncached:
    """With the prompts that no prefill worker can take, as prompts of which nothing is to be prefilled elsewhere.

    Workers count them but not their tokens: they are taken to be as long as the others.
    """
    counts: dict[PrefillReason, float] = {}
    for before, page in _pages(workers, Role.DECODE):
        for reason in PrefillReason:
            here = scrape_pair.added(before, page, named.WORKER_DECISIONS.name, reason=reason.value)
            counts[reason] = counts.get(reason, 0.0) + (here or 0.0)
    decided = sum(counts.values()) - counts.get(PrefillReason.INVALID, 0.0)  # what the engine refuses is no load
    only_local = sum(counts.get(reason, 0.0) for reason in ONLY_LOCAL)
    if only_local <= 0:
        return uncached
    others = decided - only_local
    more = only_local if others <= 0 or uncached.requests <= 0 else uncached.requests * only_local / others
    requests = uncached.requests + more
    mean_tokens = uncached.prompt_tokens / uncached.requests if uncached.requests > 0 else 1.0
    return replace(
        uncached,
        requests=requests,
        prompt_tokens=uncached.prompt_tokens + more * mean_tokens,
        length_shares=(
            (0.0, more / requests),
            *((tokens, share * uncached.requests / requests) for tokens, share in uncached.length_shares),
        ),
        only_local=tuple(
            (reason.value, count / decided) for reason, count in counts.items() if reason in ONLY_LOCAL and count > 0
        ),
    )


def _service(gateways: Sequence[Reading], workers: Sequence[Seen], objectives: Objectives) -> Service:
    ttft, tpot = together(gateways, named.GATEWAY_TTFT.name), together(gateways, named.GATEWAY_TPOT.name)
    pages = [(r.before, r.page) for r in gateways if r.page is not None and _counts_against(objectives, r)]

    def counted(metric: named.Metric, **verdicts: str) -> float:
        return sum(scrape_pair.added(before, page, metric.name, **verdicts) or 0.0 for before, page in pages)

    first, ended = named.GATEWAY_FIRST_TOKENS, named.GATEWAY_ENDED
    within = sum(counted(ended, ttft=TtftVerdict.MET, tpot=each) for each in (TpotVerdict.MET, TpotVerdict.NONE))
    known = sum(counted(ended, ttft=each, tpot=tpot) for each in _KNOWN_TTFT for tpot in _KNOWN_TPOT)
    failed = counted(ended, tpot=TpotVerdict.FAILED)
    whole = sum(counted(ended, ttft=each) for each in TtftVerdict) - failed
    # A failed request is always known to be late, a whole answer is not: failures count for the share that is known.
    late = failed * known / whole if whole > 0 else failed
    return Service(
        ttft_attainment=_share(counted(first, ttft=TtftVerdict.MET), sum(counted(first, ttft=v) for v in _KNOWN_TTFT)),
        tpot_attainment=_share(
            counted(ended, tpot=TpotVerdict.MET),
            sum(counted(ended, tpot=each) for each in (TpotVerdict.MET, TpotVerdict.MISSED)),
        ),
        attainment=_share(within, known + late),
        ttft_p95_ms=_milliseconds(ttft.quantile(0.95)),
        tpot_p95_ms=_milliseconds(tpot.quantile(0.95)),
        prefill_queue_depth=_waiting_for_prefill(workers),
        held=_held(gateways),
    )


def _counts_against(objectives: Objectives, reading: Reading) -> bool:
    """Whether a gateway counted against these ``objectives`` in the whole window.

    What it counted against others says nothing of these, so a window in which they changed is left out.
    """
    asked = {
        Objective.TTFT: objectives.ttft_ms / 1000,
        Objective.TTFT_PER_PROMPT_TOKEN: objectives.ttft_ms_per_prompt_token / 1000,
        Objective.TPOT: objectives.tpot_ms / 1000,
    }
    for page in (reading.before, reading.page or {}):
        gauges = page.get(named.GATEWAY_OBJECTIVE.name, {})
        shown = {dict(labels).get("objective"): value for labels, value in gauges.items()}
        if any(not math.isclose(shown.get(name, math.nan), seconds, rel_tol=1e-9) for name, seconds in asked.items()):
            return False
    return True


def _share(part: float, whole: float) -> float | None:
    """None: nothing was counted."""
    return part / whole if whole > 0 else None


def _held(gateways: Sequence[Reading]) -> float | None:
    """Requests that are held back; None if no gateway says."""
    counts = [scrape_pair.gauge(r.page, named.GATEWAY_HELD.name) for r in gateways if r.page is not None]
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _waiting_for_prefill(workers: Sequence[Seen]) -> float | None:
    """Requests in the queue, and those that prefill workers have taken but not begun; None if no worker says."""
    pages = [(seen.worker.role, seen.reading.page) for seen in workers if seen.reading and seen.reading.page]
    depths = [scrape_pair.gauge(page, named.WORKER_QUEUE_DEPTH.name) for _, page in pages]
    known = [depth for depth in depths if depth is not None]
    if not known:
        return None
    taken = (scrape_pair.gauge(page, "vllm:num_requests_waiting") for role, page in pages if role is Role.PREFILL)
    return max(known) + sum(count for count in taken if count is not None)  # every worker looks at the one queue


def _samples(workers: Sequence[Seen]) -> list[EngineSample]:
    """One prefill and one decode-step measurement a worker, where enough happened since the last look."""
    found: list[EngineSample] = []
    for seen in workers:
        reading = seen.reading
        if reading is None or reading.page is None or reading.is_old:
            continue
        if seen.worker.condition is not WorkerCondition.ACTIVE:
            continue
        prefill = _prefill(reading.before, reading.page, reading.seconds)
        if prefill is not None:
            found.append(prefill)
        if seen.worker.role is Role.DECODE:
            decode = _decode(reading.before, reading.page, reading.seconds)
            if decode is not None:
                found.append(decode)
    return found


def _decode(before: Page, page: Page, seconds: float) -> EngineSample | None:
    """The mean step of the window, with the mean batch and KV of the same window."""
    gaps = scrape_pair.observed(before, page, "vllm:inter_token_latency_seconds")
    batch = _mean_batch(before, page, gaps.count)
    if gaps.count < 3 or not gaps.mean or batch is None:
        return None
    local = scrape_pair.added(before, page, "vllm:prompt_tokens_by_source_total", source="local_compute")
    usages = [scrape_pair.gauge(each, "vllm:kv_cache_usage_perc") for each in (before, page)]
    known, capacity = [usage for usage in usages if usage is not None], _kv_capacity([Reading(before, page, seconds)])
    return EngineSample(
        Role.DECODE,
        observed_ms=gaps.mean * 1000,
        tokens=None if not known or capacity is None else sum(known) / len(known) * capacity,
        batch=max(batch, 1.0),
        local_tokens_per_s=(local or 0.0) / seconds,
    )


def _mean_batch(before: Page, page: Page, tokens: float) -> float | None:
    """Sequences in a step, where ``tokens`` were decoded: each has one token a step.

    Of an engine that does not count its steps, what runs at the end; None: it does not report that either.
    """
    steps = scrape_pair.added(before, page, ENGINE_STEPS)
    return tokens / steps if steps else scrape_pair.gauge(page, "vllm:num_requests_running")


def _prefill(before: Page, page: Page, seconds: float) -> EngineSample | None:
    """The mean pass of the window, with its prompts; where passes are not known, what one prompt took of the time."""
    took = scrape_pair.observed(before, page, "vllm:request_prefill_time_seconds")
    computed = scrape_pair.observed(before, page, "vllm:request_prefill_kv_computed_tokens")
    pulled = scrape_pair.added(before, page, "vllm:prompt_tokens_by_source_total", source="external_kv_transfer")
    # vLLM counts a prompt whose KV was pulled as computed, in the few milliseconds that the pull took.
    if pulled or seconds <= 0 or not took.mean or not computed.mean or computed.mean <= 1:
        return None
    for_others = scrape_pair.observed(before, page, named.WORKER_PREFILL_SECONDS.name).count
    engine_s = scrape_pair.added(before, page, named.WORKER_PREFILL_ENGINE_SECONDS.name)
    if for_others and engine_s:
        steps = scrape_pair.added(before, page, ENGINE_STEPS)
        passes = min(steps or for_others, for_others)  # a long prompt takes several steps: then one is a pass
        prompts = for_others / passes
        pass_ms, tokens = engine_s / passes * 1000, computed.mean * prompts
        return EngineSample(Role.PREFILL, pass_ms, tokens, prompts, lengths=computed.shares())
    # Computed where they decode: the engine tells each one's time, and not what they had in common.
    each_s = took.mean / prefilled_together(took.total, took.mean, seconds)
    return EngineSample(Role.PREFILL, observed_ms=each_s * 1000, tokens=computed.mean, lengths=computed.shares())


def prefilled_together(total_s: float, mean_s: float, window_s: float) -> float:
    """How many prompts were prefilled at a time, from how long those took that ended in a window; a guess.

    Prompts that are prefilled together each take as long as all of them: of k at a time, one costs a k-th. One after
    the other they take the window in all, and the first of them some time before it.
    """
    return total_s / max(window_s, mean_s) if total_s > window_s + mean_s else 1.0


def _kv_capacity(readings: Sequence[Reading]) -> float | None:
    """Tokens one worker's KV cache holds; the smallest, since any worker may get any request."""
    found: list[float] = []
    for reading in readings:
        page = reading.page or {}
        blocks = list(scrape_pair.label_values(page, "vllm:cache_config_info", "num_gpu_blocks"))
        sizes = list(scrape_pair.label_values(page, "vllm:cache_config_info", "block_size"))
        if blocks and sizes and blocks[0].isdigit() and sizes[0].isdigit():
            found.append(float(blocks[0]) * float(sizes[0]))
    return min(found, default=None)


def _max_sequences(readings: Sequence[Reading]) -> float | None:
    """Sequences one worker runs at once; the smallest, as of the KV cache; None: no worker says."""
    said = (scrape_pair.gauge(reading.page or {}, named.WORKER_MAX_SEQUENCES.name) for reading in readings)
    return min((most for most in said if most is not None and most > 0), default=None)


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000
