"""One run: a trace through a simulated service, with the planner under test called as the live shell calls it."""

import math
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

import numpy as np

from pointsman.api.protocol.names import Role
from pointsman.api.v1alpha1.plannerpolicy import Mode
from pointsman.planner.core.metrics.observe import Reading, Seen, counted_once, observation
from pointsman.planner.core.metrics.scrape_pair import Page
from pointsman.planner.core.routing.publication import Publication, is_due
from pointsman.planner.core.types import Decision, Observation, Policy, Reason, WorkerCondition
from pointsman.planner.core.unreachable_objectives import unreachable_share
from pointsman.planner.simulator.budget import Budget
from pointsman.planner.simulator.decode_engine import (
    ITL_BINS,
    ITL_BINS_PER_DECADE,
    ITL_LEAST_S,
    DecodeEngine,
)
from pointsman.planner.simulator.encoders import Encoders
from pointsman.planner.simulator.events import Events
from pointsman.planner.simulator.fleet import Fleet
from pointsman.planner.simulator.latencies import with_latencies
from pointsman.planner.simulator.request_path import RequestPath
from pointsman.planner.simulator.timing import Timing, TrueModel
from pointsman.planner.simulator.types import (
    DecisionRecord,
    Distribution,
    Planner,
    Result,
    Simulation,
    TimelinePoint,
    Trace,
    TransitionRecord,
)


def simulate(
    trace: Trace,
    simulation: Simulation,
    policy: Policy,
    planner: Planner,
    *,
    progress: Callable[[float], None] | None = None,
) -> Result:
    """Run it. The same arguments give the same Result, whatever ran before.

    ``progress`` is told the simulated time, in seconds, at every tick of the planner.
    """
    return _Run(trace, simulation, policy, planner, progress).result()


@dataclass
class _Target:
    """The last two pages that were read of one gateway or worker, and when."""

    before: Page
    page: Page
    before_s: float
    page_s: float


class _Run:
    def __init__(
        self,
        trace: Trace,
        simulation: Simulation,
        policy: Policy,
        planner: Planner,
        progress: Callable[[float], None] | None,
    ) -> None:
        self._progress = progress
        self._trace, self._simulation, self._planner = trace, simulation, planner
        # Whatever the mode, decisions are carried out: a simulation shows what they would bring.
        self._policy = policy = replace(policy, mode=Mode.ACTIVE, role_switch_needs_approval=False)
        # One source of chance each, so that a fault drawn does not change the noise of what would have run anyhow.
        noise, fleet, metrics, images = (
            Random(f"{simulation.seed} {of}") for of in ("noise", "fleet", "metrics", "images")
        )
        self._metrics_rng = metrics
        self._events = Events()
        timing = Timing(simulation.engine, simulation.truth, noise)
        self._itl_counts = [0.0] * ITL_BINS
        self._path = path = RequestPath(trace, simulation, policy.objectives, timing, self._events)

        def new_engine() -> DecodeEngine:
            return DecodeEngine(simulation.engine, timing, self._itl_counts, path.started, path.finished)

        self._budget = budget = Budget(policy.max_gpus)
        self._fleet = Fleet(simulation, policy, path, self._events, budget, fleet, new_engine, trace.block_tokens)
        self._encoders: Encoders | None = None
        if simulation.encode is not None:
            path.encoders = self._encoders = Encoders(
                simulation, simulation.encode, self._events, budget, images, path.enter
            )
        elif trace.images is not None and trace.images.any():
            raise ValueError(f"{trace.name} has requests with images, so simulation.encode must be set")
        self._state = planner.first_state()
        believed = simulation.engine.performance
        known = TrueModel(believed, simulation.truth) if planner.measured else believed
        self._base = known if simulation.planner_knows_performance else None
        self._published: Publication | None = None  # the last routing numbers
        self._seen: deque[Observation] = deque()  # waits for the metric delay
        self._targets: dict[str, _Target] = {}
        self._last: tuple[Observation, Reason] | None = None  # what was seen, and decided
        self._scraped_s = 0.0  # when targets were last scraped
        self._timeline: list[TimelinePoint] = []
        self._decisions: list[DecisionRecord] = []
        self._unreachable: Decision | None = None
        self._said: Reason | None = None
        self._arrivals = 0
        self._read(0.0)

    def result(self) -> Result:
        ended_s = self._play()
        path = self._path
        edges = ITL_LEAST_S * 10 ** (np.arange(ITL_BINS + 1) / ITL_BINS_PER_DECADE)
        return Result(
            trace=self._trace.name,
            planner=self._planner.name,
            seed=self._simulation.seed,
            objectives=self._policy.objectives,
            arrival_s=self._trace.arrival_s,
            prompt_tokens=self._trace.prompt_tokens,
            output_tokens=self._trace.output_tokens,
            outcome=path.outcome,
            prefilled=path.prefilled,
            ttft_s=path.ttft_s,
            tpot_s=path.tpot_s,
            end_s=path.end_s,
            held_s=path.held_s,
            preemptions=path.preemptions,
            itl_s=Distribution(edges, np.array(self._itl_counts)),
            timeline=tuple(self._timeline),
            decisions=tuple(self._decisions),
            transitions=self._transitions(),
            unreachable=self._unreachable,
            gpu_hours=self._gpu_hours(ended_s),
            peak_gpus=self._budget.peak,
            ended_s=ended_s,
        )

    def _transitions(self) -> tuple[TransitionRecord, ...]:
        of_fleet = self._fleet.transitions()
        if self._encoders is None:
            return of_fleet
        return tuple(sorted((*of_fleet, *self._encoders.transitions()), key=lambda change: change.began_s))

    def _gpu_hours(self, now_s: float) -> float:
        encoding = self._encoders.gpu_hours(now_s) if self._encoders is not None else 0.0
        return self._fleet.gpu_hours(now_s) + encoding

    def _play(self) -> float:
        """Until every request ended, or ``drain_s`` after the last arrival; returns when that was."""
        events, path, fleet = self._events, self._path, self._fleet
        arrivals = array("d", np.asarray(self._trace.arrival_s, dtype=np.float64).tobytes())  # of Python's floats
        count, index = len(arrivals), 0
        stop_s = self._trace.duration_s + self._simulation.drain_s
        events.at(self._policy.interval_s, self._tick)
        while index < count or path.open:
            due_s = events.next_s
            if index < count and arrivals[index] <= due_s:
                events.now_s = arrivals[index]
                self._arrivals += 1
                path.arrive(index, events.now_s)
                index += 1
                continue
            if due_s > stop_s:
                events.now_s = stop_s
                break
            events.step()
            if path.freed:
                fleet.look_at_freed()
        path.stop(events.now_s)
        return events.now_s

    # --- the planner ---

    def _tick(self, _: None) -> None:
        now_s = self._events.now_s
        read = self._read(now_s)
        self._scraped_s = now_s
        self._seen.append(read)
        due_s = now_s - self._simulation.faults.metric_delay_s
        while len(self._seen) > 1 and self._seen[1].at_s <= due_s:
            self._seen.popleft()
        late = self._seen[0]
        if late.at_s > due_s:  # nothing is old enough to have come through
            seen = replace(read, load=None, service=None, encode=None, samples=(), age_s=math.inf)
        elif late is read:
            seen = read
        else:
            # Roles and counts come from Kubernetes and are not late.
            seen = replace(
                late,
                at_s=now_s,
                age_s=late.age_s + now_s - late.at_s,
                workers=read.workers,
                routing=read.routing,
                encode_workers=read.encode_workers,
                encode_replicas=read.encode_replicas,
                plan_in_progress=read.plan_in_progress,
            )
        if self._last is not None and self._last[1] is not Reason.STALE_METRICS:
            seen = counted_once(seen, self._last[0])
        self._state, decision, next_tick = self._planner.decide(self._state, seen, self._policy, now_s, self._base)
        refused = ""
        publishes = self._publishes(decision, seen, now_s)
        if decision.changes_layout:
            refused = self._fleet.submit(decision)
        if decision.changes_encode:
            refused = refused or self._scale_encode(decision)
        acts = decision.changes_layout or publishes or decision.changes_encode
        if acts or decision.reason is not self._said:
            self._decisions.append(DecisionRecord(now_s, decision, refused))
        if unreachable_share(decision) > 0:
            self._unreachable = decision
        self._said = decision.reason
        self._last = seen, decision.reason
        self._timeline.append(self._point(now_s, seen, decision))
        self._arrivals = 0
        if self._progress is not None:
            self._progress(now_s)
        self._events.at(now_s + max(next_tick.after_s, 1e-3), self._tick)

    def _publishes(self, decision: Decision, seen: Observation, now_s: float) -> bool:
        """Whether the decision's routing numbers are in force from now on."""
        if not decision.changes_routing:
            return False
        if self._planner.damped:
            if not is_due(decision, seen, self._policy, None, self._published, now_s):
                return False
            reason = decision.routing_reason or decision.reason
            self._published = Publication(now_s, reason, seen.routing, decision.routing, self._policy.objectives)
        self._path.route(decision.routing)
        return True

    def _scale_encode(self, decision: Decision) -> str:
        """Have it carried out; returns why it is refused, "" if it is not."""
        replicas, bounds, encoders = decision.encode, self._policy.encode, self._encoders
        if replicas is None or bounds is None or encoders is None:
            return "there is no encode pool"
        if not bounds.least <= replicas <= bounds.most:
            return f"Encode {replicas} is not within {bounds.least} to {bounds.most}"
        self._events.at(self._events.now_s + self._simulation.leads.reaction_s, encoders.scale, replicas)
        return ""

    def _read(self, now_s: float) -> Observation:
        """Scrape every target; each may fail."""
        path, fleet, encoders = self._path, self._fleet, self._encoders
        stale_after_s = self._policy.stale_after_s
        out = any(begin <= now_s < end for begin, end in self._simulation.faults.metric_outages_s)
        targets = set(self._targets)
        workers = []
        for worker, shown in zip(fleet.workers, fleet.shown(), strict=True):
            if shown.condition is WorkerCondition.STARTING:
                workers.append(Seen(shown, None))
                continue
            worker.engine.count_up_to(now_s)
            page = worker.page.page(worker.gauges(now_s, len(path.queue)))
            reading, age_s = self._scrape(worker.name, page, now_s), now_s - self._targets[worker.name].page_s
            targets.discard(worker.name)
            workers.append(Seen(shown, reading.within(age_s, stale_after_s), reading.is_old, age_s))
        more = encoders.gateway_samples() if encoders is not None else {}
        gateways = []
        refused = self._simulation.refused_per_s * (now_s - self._scraped_s) / len(path.gateways)
        for number, gateway in enumerate(path.gateways):
            gateway.refused(refused)
            page = {**gateway.page(len(path.held) if number == 0 else 0), **(more if number == 0 else {})}
            gateways.append(self._scrape(f"gateway-{number}", page, now_s, out))
            targets.discard(f"gateway-{number}")
        encoding = []
        for shown_encoder, encode_page in encoders.pages() if encoders is not None else ():
            reading = self._scrape(shown_encoder.name, encode_page, now_s)
            age_s = now_s - self._targets[shown_encoder.name].page_s
            targets.discard(shown_encoder.name)
            encoding.append(Seen(shown_encoder, reading.within(age_s, stale_after_s), reading.is_old))
        for gone in targets:
            del self._targets[gone]
        found = observation(
            at_s=now_s,
            age_s=now_s - min(self._targets[f"gateway-{number}"].page_s for number in range(len(path.gateways))),
            gateways=gateways,
            workers=workers,
            routing=path.routing,
            objectives=self._policy.objectives,
            plan_in_progress=fleet.plan_in_progress,
            worker_gpus=self._simulation.engine.gpus,
            pods_start_s=fleet.pods_start_s,
            encoders=encoding,
            encode_replicas=encoders.wanted if encoders is not None else None,
            encode_gpus=encoders.gpus_each if encoders is not None else 1,
        )
        return with_latencies(found, gateways)

    def _scrape(self, name: str, page: Page, now_s: float, out: bool = False) -> Reading:
        """The last two pages of a target, as the live scraper has them; where its page is lost the two before."""
        lost = self._simulation.faults.metric_dropout_share
        target = self._targets.get(name)
        if target is None:
            # Live it was read before it served, when it had counted nothing.
            nothing: Page = {family: dict.fromkeys(samples, 0.0) for family, samples in page.items()}
            target = self._targets[name] = _Target(nothing, nothing, self._scraped_s, self._scraped_s)
        failed = out or (lost > 0 and self._metrics_rng.random() < lost)
        if not failed:
            target.before, target.before_s = target.page, target.page_s
            target.page, target.page_s = page, now_s
        known = target.page if target.page_s > target.before_s else None  # it was never read
        return Reading(target.before, known, target.page_s - target.before_s, is_old=failed)

    def _point(self, now_s: float, seen: Observation, decision: Decision) -> TimelinePoint:
        fleet, path, encoders = self._fleet, self._path, self._encoders
        decoders = [worker.engine for worker in fleet.workers if worker.role is Role.DECODE]
        capacity = self._simulation.engine.kv_capacity_tokens * max(len(decoders), 1)
        return TimelinePoint(
            at_s=now_s,
            prefill_active=fleet.count(WorkerCondition.ACTIVE, Role.PREFILL),
            decode_active=fleet.count(WorkerCondition.ACTIVE, Role.DECODE),
            starting=fleet.count(WorkerCondition.STARTING),
            switching=fleet.count(WorkerCondition.SWITCHING),
            draining=fleet.count(WorkerCondition.DRAINING),
            prefill_queue=len(path.queue),
            held=len(path.held),
            decoding=sum(engine.running for engine in decoders),
            decode_waiting=sum(len(engine.waiting) for engine in decoders),
            kv_usage=sum(engine.kv_tokens(now_s) for engine in decoders) / capacity,
            max_local_prefill_tokens=path.routing.max_local_prefill_tokens,
            arrivals=self._arrivals,
            observed=seen.load is not None and not seen.old_pages,
            encode_active=encoders.count(WorkerCondition.ACTIVE) if encoders is not None else 0,
            encode_starting=encoders.count(WorkerCondition.STARTING) if encoders is not None else 0,
            encode_draining=encoders.count(WorkerCondition.DRAINING) if encoders is not None else 0,
            images_waiting=encoders.waiting if encoders is not None else 0,
            unreachable_share=unreachable_share(decision) if decision.inputs else None,
        )
