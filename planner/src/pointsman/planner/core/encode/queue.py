"""How many encode workers a load of images needs, and how long a request is there.

The images of a request are jobs of their own: they come together, go to whichever workers are free (as vLLM's own proxy
sends them), and the request goes on when the last is done. So c workers are to requests of k images like ⌊c/k⌋ groups
of workers (one at least), each of which takes a request at a time and k·t·⌊c/k⌋/c seconds for it: the same work in the
same number of steps. On these groups the formulas of ``core.queueing`` hold as they do for prefill: arrivals are those
of requests, and a service varies as the number of images does, and a little as the images do. Against events that gives
the mean wait within a third or on the safe side; a queue of single images with their batches as its dispersion is up to
ten times too short where workers are many, since who waits there waits behind a whole batch.

A request cannot be quicker than its images one after the other on all workers, nor than its last image; of the others'
images that are there, some are always before the last one.
"""

import math
from dataclasses import dataclass

from pointsman.planner.core.sizing.queueing import delayed_wait_s, erlang_c
from pointsman.planner.core.tuning import SHIPPED, Tuning


@dataclass(frozen=True, slots=True)
class EncodeQueue:
    """Requests with images. ``images``: mean of such a request, at least 1; ``images_scv``: its squared coefficient of
    variation; ``image_s``: of a worker's time; ``room_s``: what the TTFT objective leaves beside prefill, transfer and
    first step; ``ttft_s``: the objective."""

    images: float
    images_scv: float
    image_s: float
    room_s: float
    ttft_s: float
    image_scv: float = 0.5  # of the time of single images: their sizes differ, and only the mean is measured
    tuning: Tuning = SHIPPED

    @property
    def work_s(self) -> float:
        """Of a worker's time, for one request."""
        return self.images * self.image_s

    def alone_s(self, rate_per_s: float, workers: int) -> float:
        """From the first image's begin to the last one's end, mean over requests."""
        utilisation = min(1.0, rate_per_s * self.work_s / workers)
        steps = max(self.images / workers, 1 + utilisation * (self.images - 1) / workers)
        return steps * self.image_s

    def patience_s(self, rate_per_s: float, workers: int) -> float:
        """How long a request may wait for its first image's begin; below 0: it is late even so.

        Half of what TTFT leaves beside all services: as much may be waited for an encode as for a prefill.
        """
        return 0.5 * (self.room_s - self.alone_s(rate_per_s, workers))

    def wait(self, rate_per_s: float, arrival_scv: float, workers: int) -> tuple[float, float]:
        """(the share of requests that wait for their first image's begin, how long those wait on average)."""
        groups = max(1, math.floor(workers / self.images + 1e-9))
        service_s = self.work_s * groups / workers
        scv = self.images_scv + self.image_scv / self.images
        delay_s = delayed_wait_s(groups, rate_per_s, service_s, arrival_scv, scv)
        return erlang_c(groups, rate_per_s * service_s), delay_s

    def late_share(self, rate_per_s: float, arrival_scv: float, workers: int, patience_s: float | None = None) -> float:
        """Of requests with images, those that wait longer than they may."""
        patience_s = self.patience_s(rate_per_s, workers) if patience_s is None else patience_s
        if patience_s < 0:
            return 1.0
        waits, delay_s = self.wait(rate_per_s, arrival_scv, workers)
        return waits * math.exp(-min(50.0, patience_s / max(delay_s, 1e-9)))

    def mean_s(self, rate_per_s: float, arrival_scv: float, workers: int) -> float:
        """From arrival to the last image's end; of a pool that is too small, what the objective gives to it."""
        waits, delay_s = self.wait(rate_per_s, arrival_scv, workers)
        longest_s = max(self.patience_s(rate_per_s, workers), self._least_patience_s)
        return self.alone_s(rate_per_s, workers) + min(waits * delay_s, longest_s)

    def busy(self, rate_per_s: float) -> float:
        """Workers that such a rate keeps as busy as they may be; no whole number."""
        return rate_per_s * self.work_s / self.tuning.max_prefill_utilization

    def workers(self, rate_per_s: float, arrival_scv: float, late: float, most: int) -> int:
        """The least pool where at most a share ``late`` of the requests waits longer than it may, or ``most``.

        Where a request that is alone is late with ``most`` workers already, as many as the load needs to flow: further
        ones would change nothing.
        """
        if rate_per_s <= 0:
            return 1
        least_s = self._least_patience_s
        reachable = self.patience_s(0.0, most) >= least_s
        for workers in range(1, most):
            if rate_per_s * self.work_s > self.tuning.max_prefill_utilization * workers:
                continue
            patience_s = self.patience_s(rate_per_s, workers) if reachable else least_s
            late_share = self.late_share(rate_per_s, arrival_scv, workers, patience_s)
            if least_s <= patience_s and late_share <= late:
                return workers
        return most

    @property
    def _least_patience_s(self) -> float:
        return 0.5 * self.tuning.min_slack_share * self.ttft_s
