"""The encode pool: how many workers make embeddings of images, a third pool beside prefill and decode.

Its workers run another engine configuration, so it is only scaled. What a request asks of it (images, their time) is
learned from measurements alone; before any is there nothing is decided. It is sized by the rule of ``targets``: need,
grow, keep. One budget holds for all pools.
"""

import math
from dataclasses import dataclass, field, replace

from pointsman.planner.core.encode.queue import EncodeQueue
from pointsman.planner.core.engine.startup_time import Leads
from pointsman.planner.core.sizing.demand import is_sudden, last_fall_s, late_share
from pointsman.planner.core.sizing.operating_point import OperatingPoint
from pointsman.planner.core.sizing.pool_targets import Needs, Patience
from pointsman.planner.core.tuning import SHIPPED, Tuning
from pointsman.planner.core.types import SERVES, EncodeLoad, Observation, Policy
from pointsman.planner.core.workload.arrival_forecast import RateForecaster
from pointsman.planner.core.workload.request_lengths import LEAST_SPREAD


@dataclass(frozen=True, slots=True)
class Images:
    """How many images a request with any has: over the last hundreds, or over the last few once those differ for
    certain. ``mean`` None: none was seen."""

    requests: float = 0.0  # behind the mean
    mean: float | None = None
    squared: float = 1.0  # mean of the squares
    recent: float = 1.0
    recent_squared: float = 1.0

    def observe(self, images: float, squared: float, requests: float, tuning: Tuning = SHIPPED) -> "Images":
        """Take the means over so many requests. The mean is of 600, or of 60 once those differ."""
        if self.mean is None:
            return Images(requests, images, squared, images, squared)
        few, count = 60.0, min(self.requests + requests, 600.0)
        mean, squares = (_faded(*of, requests / count) for of in ((self.mean, images), (self.squared, squared)))
        recent = _faded(self.recent, images, requests / few)
        recent_squared = _faded(self.recent_squared, squared, requests / few)
        variance = max(squares - mean * mean, (LEAST_SPREAD * mean) ** 2)
        error = math.sqrt(variance / (2 * few))  # of a mean that fades
        certain = max(tuning.length_change_sigmas * error, tuning.min_length_change * mean)
        if count > 2 * few and abs(recent - mean) > certain:
            return Images(few, recent, recent_squared, recent, recent_squared)
        return Images(count, mean, squares, recent, recent_squared)


def _faded(before: float, seen: float, weight: float) -> float:
    return before + min(1.0, weight) * (seen - before)


@dataclass(frozen=True, slots=True)
class EncodeMemory:
    """What is remembered of the encode pool. ``forecaster``: of requests that have images."""

    forecaster: RateForecaster = field(default_factory=RateForecaster)
    images: Images = field(default_factory=Images)
    log_image_ms: float | None = None  # of a worker's time
    leads: Leads = field(default_factory=Leads)
    patience: Patience = field(default_factory=Patience)
    needs: Needs = field(default_factory=Needs)

    def observe(self, observation: Observation, policy: Policy) -> "EncodeMemory":
        """Take a look at the service; of one without an encode pool there is nothing to remember."""
        if policy.encode is None:
            return self
        now_s, window_s = observation.at_s, observation.window_s
        leads = self.leads.look(observation.encode_workers, now_s, window_s, policy.start_s, policy.tuning)
        seen = replace(self, leads=replace(leads, start_s=None) if policy.start_is_told else leads)
        load, tuning = observation.encode, policy.tuning
        if load is None or window_s <= 0:
            return replace(seen, forecaster=self.forecaster.observe(None, policy.interval_s, now_s, tuning))
        requests = load.requests_per_s * window_s
        return replace(
            seen._measured(load, requests, tuning),
            forecaster=self.forecaster.observe(requests, window_s, now_s, tuning),
        )

    def _measured(self, load: EncodeLoad, requests: float, tuning: Tuning) -> "EncodeMemory":
        images, log_ms = self.images, self.log_image_ms
        if load.images is not None and load.squared_images is not None and requests > 0:
            images = images.observe(max(1.0, load.images), max(1.0, load.squared_images), requests, tuning)
        if load.image_ms is not None and load.image_ms > 0:
            seen = math.log(load.image_ms)
            encoded = max(1.0, requests * (load.images or 1.0))
            log_ms = seen if log_ms is None else _faded(log_ms, seen, encoded / tuning.memory_requests)
        return replace(self, images=images, log_image_ms=log_ms)


@dataclass(frozen=True, slots=True)
class EncodeTarget:
    """Workers that are wanted within the pool's bounds, and the numbers behind them; rates are of requests that have
    images."""

    workers: int
    stuck: int  # workers that start and that nobody should wait for
    needed_now: int
    needed: int  # when a worker started now would serve
    busy: float  # … without rounding and waiting
    serving: int
    rate_per_s: float
    arrival_scv: float
    queue: EncodeQueue
    share: float  # of all requests that have images
    mean_s: float  # from arrival to the last embedding, by the pool that is wanted; mean over requests with images

    @property
    def ttft_share(self) -> float:
        """What encoding takes of the TTFT objective of a request with images, mean; above 1: more than all of it."""
        return self.mean_s / self.queue.ttft_s

    def kept(self, workers: int, times: float = 1.0) -> float:
        """Share of all requests that so many workers, or one, bring on in time; of so many times as many."""
        return 1 - self.share * self.queue.late_share(times * self.rate_per_s, self.arrival_scv, max(1, workers))


def target(
    memory: EncodeMemory, observation: Observation, policy: Policy, point: OperatingPoint, all_per_s: float
) -> tuple[EncodeMemory, EncodeTarget | None]:
    """What is wanted of ``all_per_s`` requests, some of which have images; None: not enough is known.

    ``point``: what the requests are to the other pools.
    """
    bounds, images, log_ms, tuning = policy.encode, memory.images, memory.log_image_ms, policy.tuning
    now_s, window_s, start_s = observation.at_s, observation.window_s, memory.leads.lead_s(policy.start_s)
    lead_s = start_s + policy.interval_s
    if bounds is None or memory.forecaster.trend is None or images.requests < tuning.ready_requests:
        return memory, None
    if images.mean is None or log_ms is None:
        return memory, None
    images_scv, image_s = max(0.0, images.squared / (images.mean * images.mean) - 1), math.exp(log_ms) / 1000
    queue = EncodeQueue(images.mean, images_scv, image_s, point.room_s, point.ttft_s, tuning=tuning)
    present_per_s, ahead_per_s = (memory.forecaster.expected(s, tuning) for s in (0.0, lead_s))
    scv, rate_per_s = memory.forecaster.dispersion, max(present_per_s, 1e-3)
    waiting = (observation.encode.waiting or 0.0 if observation.encode else 0.0) / queue.images
    late, least = late_share(policy.objectives.attainment), max(1, bounds.least)
    most, many = max(least, bounds.most), max(least, bounds.most, policy.max_gpus // observation.encode_gpus)

    def need(rate: float, queued: float = 0.0) -> int:
        extra = min(rate, queued / tuning.queue_clear_s) if queued > max(5.0, 2 * rate) else 0.0
        flowing = math.ceil(queue.busy(rate + extra) - 1e-9)
        return max(queue.workers(rate, scv, late, many), min(many, flowing))

    needed, needed_now = need(ahead_per_s, waiting), need(rate_per_s, waiting)
    enough_ahead = max(needed, need(tuning.rate_headroom * ahead_per_s))
    active = sum(w.condition in SERVES for w in observation.encode_workers)
    stuck = len(memory.leads.stuck(now_s, policy.start_s, tuning))
    has = max(active, observation.encode_desired - stuck)  # a missing worker will be replaced
    sudden, fell_s = is_sudden(memory.forecaster, now_s, tuning), last_fall_s(memory.forecaster, now_s, lead_s)
    keep_s = max(policy.scale_in_stabilization_s, start_s)
    patience, grow = memory.patience.grow(needed, has, now_s, window_s, sudden=sudden, tuning=tuning)
    in_part = observation.unread_gateways > 0
    needs = memory.needs.observe(needed, enough_ahead, has, now_s, window_s, keep_s, in_part=in_part, tuning=tuning)
    kept = min(has, needs.kept(now_s, keep_s, active, fell_s, tuning))
    stays = kept if policy.scale_in and not observation.unread else has
    wanted = min(max(grow if policy.scale_out else min(grow, has), stays, least), most)
    share = min(1.0, rate_per_s / max(all_per_s, 1e-9))
    seen = memory if observation.encode is None else replace(memory, patience=patience, needs=needs)
    return seen, EncodeTarget(
        workers=wanted,
        stuck=stuck,
        needed_now=needed_now,
        needed=needed,
        busy=max(queue.busy(ahead_per_s), min(1.0, needed)),
        serving=active,
        rate_per_s=rate_per_s,
        arrival_scv=scv,
        queue=queue,
        share=share,
        mean_s=queue.mean_s(rate_per_s, scv, max(wanted, min(most, needed_now))),
    )
