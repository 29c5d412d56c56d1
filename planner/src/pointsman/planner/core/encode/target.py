"""The encode pool: how many workers make embeddings of images, a third pool beside prefill and decode.

Its workers run another engine configuration, so it is only scaled. What a request asks of it (images, their time) is
learned from measurements alone; before any is there nothing is decided. It is sized by the rule of ``targets``: need,
grow, keep. One budget holds for all pools.
"""

import math
from dataclasses import dataclass, field, replace

from pointsman.api.protocol.names import Role
from pointsman.planner.core.encode.queue import EncodeQueue
from pointsman.planner.core.engine.startup_time import Leads
from pointsman.planner.core.sizing.demand import Pool, is_sudden, last_fall_s, late_share
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
        weight, quick = min(1.0, requests / count), min(1.0, requests / few)
        mean, squares = self.mean + weight * (images - self.mean), self.squared + weight * (squared - self.squared)
        recent = self.recent + quick * (images - self.recent)
        recent_squared = self.recent_squared + quick * (squared - self.recent_squared)
        variance = max(squares - mean * mean, (LEAST_SPREAD * mean) ** 2)
        error = math.sqrt(variance / (2 * few))  # of a mean that fades
        certain = max(tuning.length_change_sigmas * error, tuning.min_length_change * mean)
        if count > 2 * few and abs(recent - mean) > certain:
            return Images(few, recent, recent_squared, recent, recent_squared)
        return Images(count, mean, squares, recent, recent_squared)

    @property
    def scv(self) -> float:
        """Squared coefficient of variation."""
        return max(0.0, self.squared / (self.mean * self.mean) - 1) if self.mean is not None else 0.0


@dataclass(frozen=True, slots=True)
class EncodeMemory:
    """What is remembered of the encode pool. ``forecaster``: of requests that have images."""

    forecaster: RateForecaster = field(default_factory=RateForecaster)
    requests: float = 0.0
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
            requests=min(self.requests + requests, 1e9),
        )

    def lead_s(self, policy: Policy) -> float:
        """From a decision until a worker started for it serves."""
        return self.leads.lead_s(policy.start_s) + policy.interval_s

    def queue(self, point: OperatingPoint) -> EncodeQueue | None:
        """What requests with images ask of the pool; None: not measured yet."""
        if self.images.mean is None or self.log_image_ms is None:
            return None
        return EncodeQueue(
            images=self.images.mean,
            images_scv=self.images.scv,
            image_s=math.exp(self.log_image_ms) / 1000,
            room_s=point.room_s,
            ttft_s=point.ttft_s,
            tuning=point.tuning,
        )

    def _measured(self, load: EncodeLoad, requests: float, tuning: Tuning) -> "EncodeMemory":
        images, log_ms = self.images, self.log_image_ms
        if load.images is not None and load.squared_images is not None and requests > 0:
            images = images.observe(max(1.0, load.images), max(1.0, load.squared_images), requests, tuning)
        if load.image_ms is not None and load.image_ms > 0:
            seen = math.log(load.image_ms)
            weight = min(1.0, max(1.0, requests * (load.images or 1.0)) / tuning.memory_requests)
            log_ms = seen if log_ms is None else log_ms + weight * (seen - log_ms)
        return replace(self, images=images, log_image_ms=log_ms)


@dataclass(frozen=True, slots=True)
class EncodeTarget:
    """Workers that are wanted within the pool's bounds, and the numbers behind them; rates are of requests that have
    images."""

    workers: int
    needed_now: int
    needed: int  # when a worker started now would serve
    busy: float  # … without rounding and waiting
    rate_per_s: float
    ahead_per_s: float
    queue: EncodeQueue
    share: float  # of all requests that have images
    mean_s: float  # from arrival to the last embedding, by the pool that is wanted; mean over requests with images
    kept: float  # share of all requests that the workers that serve bring on in time …
    kept_if_executed: float  # … and those that are wanted

    @property
    def ttft_share(self) -> float:
        """What encoding takes of the TTFT objective of a request with images, mean; above 1: more than all of it."""
        return self.mean_s / self.queue.ttft_s


def target(
    memory: EncodeMemory, observation: Observation, policy: Policy, point: OperatingPoint, all_per_s: float
) -> tuple[EncodeMemory, EncodeTarget | None]:
    """What is wanted of ``all_per_s`` requests, some of which have images; None: nothing can be said.

    ``point``: what the requests are to the other pools.
    """
    bounds, queue, now_s, tuning = policy.encode, memory.queue(point), observation.at_s, policy.tuning
    lead_s = memory.lead_s(policy)
    present_per_s, ahead_per_s = (memory.forecaster.expected(s, tuning) for s in (0.0, lead_s))
    if bounds is None or queue is None or memory.forecaster.trend is None or memory.requests < tuning.ready_requests:
        return memory, None
    pool = _pool(memory, observation, policy)
    has, scv, rate_per_s = pool.committed, memory.forecaster.dispersion, max(present_per_s, 1e-3)
    load = observation.encode
    waiting = (load.waiting or 0.0 if load is not None else 0.0) / queue.images
    late, least, most = (
        late_share(policy.objectives.attainment),
        max(1, bounds.least),
        max(1, bounds.least, bounds.most),
    )

    def need(rate: float, queued: float = 0.0) -> int:
        found = queue.workers(rate, scv, late, most)
        extra = min(rate, queued / tuning.queue_clear_s) if queued > max(5.0, 2 * rate) else 0.0
        return max(found, min(most, math.ceil((rate + extra) * queue.work_s / tuning.max_prefill_utilization - 1e-9)))

    keep_s = max(policy.scale_in_stabilization_s, memory.leads.lead_s(policy.start_s))
    window_s = observation.window_s
    needed, needed_now = need(ahead_per_s, waiting), need(rate_per_s, waiting)
    sudden, enough_ahead = is_sudden(memory.forecaster, now_s, tuning), need(tuning.rate_headroom * ahead_per_s)
    patience, grow = memory.patience.grow(needed, has, now_s, window_s, sudden=sudden, tuning=tuning)
    needs = memory.needs.observe(
        needed, max(needed, enough_ahead), has, now_s, window_s, keep_s,
        in_part=observation.unread_gateways > 0, tuning=tuning,
    )  # fmt: skip
    memory = replace(memory, patience=patience, needs=needs)
    grow = grow if policy.scale_out else min(grow, has)
    fell_s = last_fall_s(memory.forecaster, now_s, lead_s)
    kept = min(has, memory.needs.kept(now_s, keep_s, pool.active, fell_s, tuning))
    stays = kept if policy.scale_in and not observation.unread else has
    wanted = min(max(grow, stays, least), most)
    share = min(1.0, rate_per_s / max(all_per_s, 1e-9))
    enough = max(wanted, needed_now)
    return memory, EncodeTarget(
        workers=wanted,
        needed_now=needed_now,
        needed=needed,
        busy=max(queue.busy(ahead_per_s), min(1.0, needed)),
        rate_per_s=rate_per_s,
        ahead_per_s=ahead_per_s,
        queue=queue,
        share=share,
        mean_s=queue.mean_s(rate_per_s, scv, enough),
        kept=1 - share * queue.late_share(rate_per_s, scv, max(1, pool.active)),
        kept_if_executed=1 - share * queue.late_share(rate_per_s, scv, wanted),
    )


def _pool(memory: EncodeMemory, observation: Observation, policy: Policy) -> Pool:
    starting = memory.leads.ready_in_s(Role.ENCODE, observation.at_s, policy.start_s, policy.tuning)
    return Pool(sum(w.condition in SERVES for w in observation.encode_workers), tuple(starting))
