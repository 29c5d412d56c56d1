"""The encode pool: the images of a request go to whichever workers are free; it goes on when the last is done.

One queue, one image at a time in each worker. Workers start with the lead of all others and leave when their image is
done. They neither crash nor fail to start.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random

from pointsman.api.protocol import metrics as named
from pointsman.api.protocol.names import Role
from pointsman.planner.core.metrics.scrape_pair import Labels, Page
from pointsman.planner.core.types import Worker, WorkerCondition
from pointsman.planner.simulator.budget import Budget
from pointsman.planner.simulator.events import Events
from pointsman.planner.simulator.pages import SERVICE, CountedHistogram
from pointsman.planner.simulator.request import Request
from pointsman.planner.simulator.types import EncodePool, Simulation, TransitionRecord


@dataclass(slots=True, eq=False)
class _Job:
    """A request; of its images, those that no worker has begun and those that are not encoded yet."""

    request: Request
    to_begin: int
    to_end: int


@dataclass(slots=True, eq=False)
class _Change:
    """A TransitionRecord in the making."""

    kind: str
    worker: str
    began_s: float
    ended_s: float = math.nan
    succeeded: bool = False


@dataclass(slots=True, eq=False)
class _Worker:
    name: str
    condition: WorkerCondition
    since_s: float  # billed from here
    job: _Job | None = None
    took_s: float = 0.0  # its image
    encode_s: CountedHistogram = field(default_factory=lambda: CountedHistogram(named.WORKER_ENCODE_SECONDS.name))
    change: _Change | None = None  # that has not ended


class Encoders:
    """All encode workers, those that are gone included in the bill. ``go_on`` takes a request that is encoded."""

    def __init__(
        self,
        simulation: Simulation,
        pool: EncodePool,
        events: Events,
        budget: Budget,
        rng: Random,
        go_on: Callable[[Request, float], None],
    ) -> None:
        self._leads, self._events, self._budget, self._rng, self._go_on = simulation.leads, events, budget, rng, go_on
        self._image_s = pool.image_ms / 1000 * simulation.truth.encode_kappa
        self._sigma = simulation.truth.noise_sigma
        self._queue: deque[_Job] = deque()
        self._idle: deque[_Worker] = deque()
        self._workers: list[_Worker] = []
        self._changes: list[_Change] = []
        self._lacks_room = False
        self._billed_s = 0.0
        self._named = 0
        self._requests = self._images = self._squared = 0  # that came
        self.gpus_each = pool.gpus
        self.waiting = 0  # images that no worker has begun
        self.wanted = pool.workers
        for _ in range(self.wanted):
            self._idle.append(self._new(WorkerCondition.ACTIVE))
        budget.when_given_back(self._find_room)

    # --- images ---

    def add(self, request: Request, images: int, now_s: float) -> None:
        """A request comes with at least one image."""
        self._requests += 1
        self._images += images
        self._squared += images * images
        self._queue.append(_Job(request, images, images))
        self.waiting += images
        self._feed(now_s)

    def _feed(self, now_s: float) -> None:
        while self._queue and self._idle:
            worker, job = self._idle.popleft(), self._queue[0]
            job.to_begin -= 1
            self.waiting -= 1
            if job.to_begin == 0:
                self._queue.popleft()
            worker.job = job
            worker.took_s = self._image_s * (math.exp(self._rng.gauss(0.0, self._sigma)) if self._sigma > 0 else 1.0)
            self._events.at(now_s + worker.took_s, self._encoded, worker)

    def _encoded(self, worker: _Worker) -> None:
        now_s, job = self._events.now_s, worker.job
        assert job is not None
        worker.encode_s.observe(worker.took_s)
        worker.job = None
        if worker.condition is WorkerCondition.DRAINING:
            self._remove(worker)
        else:
            self._idle.append(worker)
        job.to_end -= 1
        if job.to_end == 0:
            self._go_on(job.request, now_s)
        self._feed(now_s)

    # --- what is seen ---

    def pages(self) -> list[tuple[Worker, Page]]:
        """Every worker as Kubernetes shows it, and its page."""
        found: list[tuple[Worker, Page]] = []
        for worker in self._workers:
            samples: dict[str, Mapping[Labels, float]] = {}
            worker.encode_s.show(samples)
            found.append((Worker(worker.name, Role.ENCODE, worker.condition, self.gpus_each), samples))
        return found

    def gateway_samples(self) -> dict[str, Mapping[Labels, float]]:
        """What a gateway counts of images."""
        of_service: Labels = (SERVICE,)
        encoding = sum(worker.job is not None for worker in self._workers)
        return {
            named.GATEWAY_ENCODE_REQUESTS.name: {of_service: float(self._requests)},
            named.GATEWAY_ENCODE_IMAGES_SQUARED.name: {of_service: float(self._squared)},
            named.GATEWAY_ENCODE_IMAGES.name: {of_service: float(self._images)},
            named.GATEWAY_ENCODE_IN_FLIGHT.name: {of_service: float(self.waiting + encoding)},
        }

    def count(self, condition: WorkerCondition) -> int:
        """Workers in a condition."""
        return sum(worker.condition is condition for worker in self._workers)

    def gpu_hours(self, now_s: float) -> float:
        """Of all workers so far."""
        running = sum(now_s - worker.since_s for worker in self._workers)
        return (self._billed_s + running) * self.gpus_each / 3600

    def transitions(self) -> tuple[TransitionRecord, ...]:
        """Starts and stops, in the order they began."""
        return tuple(TransitionRecord(c.kind, c.worker, None, c.began_s, c.ended_s, c.succeeded) for c in self._changes)

    # --- workers ---

    def scale(self, wanted: int) -> None:
        """Have so many; leaving ones are taken back first, unready ones leave first, then idle ones."""
        self.wanted = wanted
        self._reconcile()

    def _reconcile(self, _due: None = None) -> None:
        counted = [worker for worker in self._workers if worker.condition is not WorkerCondition.DRAINING]
        missing = self.wanted - len(counted)
        self._lacks_room = False
        if missing < 0:
            starting = WorkerCondition.STARTING
            order = sorted(counted, key=lambda w: (w.condition is not starting, w.job is not None, -w.since_s))
            for worker in order[:-missing]:
                self._stop(worker)
            return
        leaving = [worker for worker in self._workers if worker.condition is WorkerCondition.DRAINING]
        for worker in leaving[:missing]:
            self._return(worker)
            missing -= 1
        room = max(0, self._budget.left // self.gpus_each)
        self._lacks_room = room < missing
        for _ in range(min(missing, room)):
            worker = self._new(WorkerCondition.STARTING)
            self._begun(worker, "start")
            lead_s = self._leads.start_s * (1 + self._leads.start_spread * self._rng.uniform(-1, 1))
            self._events.at(self._events.now_s + lead_s, self._ready, worker)

    def _new(self, condition: WorkerCondition) -> _Worker:
        self._named += 1
        worker = _Worker(f"encode-{self._named:03}", condition, self._events.now_s)
        self._workers.append(worker)
        self._budget.take(self.gpus_each)
        return worker

    def _ready(self, worker: _Worker) -> None:
        if worker.condition is not WorkerCondition.STARTING:
            return  # it was taken away before
        worker.condition = WorkerCondition.ACTIVE
        self._ended(worker)
        self._idle.append(worker)
        self._feed(self._events.now_s)

    def _stop(self, worker: _Worker) -> None:
        worker.condition = WorkerCondition.DRAINING
        self._begun(worker, "stop")
        if worker in self._idle:
            self._idle.remove(worker)
        if worker.job is None:
            self._remove(worker)

    def _return(self, worker: _Worker) -> None:
        """A leaving worker is needed again; it still has its image."""
        worker.condition = WorkerCondition.ACTIVE
        self._begun(worker, "start")
        self._ended(worker)

    def _remove(self, worker: _Worker) -> None:
        self._ended(worker)
        self._workers.remove(worker)
        self._billed_s += self._events.now_s - worker.since_s
        self._budget.give_back(self.gpus_each)

    def _find_room(self) -> None:
        if self._lacks_room:
            self._events.at(self._events.now_s, self._reconcile)

    # --- records ---

    def _begun(self, worker: _Worker, kind: str) -> None:
        worker.change = _Change(kind, worker.name, self._events.now_s)
        self._changes.append(worker.change)

    def _ended(self, worker: _Worker) -> None:
        if worker.change is not None:
            worker.change.ended_s, worker.change.succeeded = self._events.now_s, True
            worker.change = None
