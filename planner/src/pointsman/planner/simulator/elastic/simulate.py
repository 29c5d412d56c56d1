"""One run: a trace through a simulated elastic group, with the planner under test called as the live shell calls it."""

import math
from collections.abc import Callable
from dataclasses import replace
from random import Random

import numpy as np

from pointsman.api.v1alpha1.plannerpolicy import Mode
from pointsman.planner.core.elastic.observe import manager_window, seen_by_gateways
from pointsman.planner.core.elastic.types import GroupObservation
from pointsman.planner.core.types import Observation, Policy, Reason, WorkerCondition
from pointsman.planner.simulator.elastic.pages import Scrapes, manager_page
from pointsman.planner.simulator.elastic.pods import Pods
from pointsman.planner.simulator.elastic.serving import Serving
from pointsman.planner.simulator.elastic.types import (
    GroupDecisionRecord,
    GroupPlanner,
    GroupPoint,
    GroupResult,
    GroupSimulation,
)
from pointsman.planner.simulator.events import Events
from pointsman.planner.simulator.pages import GatewayPage
from pointsman.planner.simulator.types import Outcome, Trace
from pointsman.serving.elastic.latency_model import LatencyModel
from pointsman.serving.elastic.requests import Refused, Token
from pointsman.serving.objectives import Objectives


def simulate_group(
    trace: Trace,
    simulation: GroupSimulation,
    policy: Policy,
    planner: GroupPlanner,
    *,
    progress: Callable[[float], None] | None = None,
) -> GroupResult:
    """Run it. The same arguments give the same GroupResult, whatever ran before.

    ``progress`` gets the simulated time, in seconds, at every tick of the planner. Raises ValueError for a trace with
    images, which an elastic group does not take.
    """
    if trace.images is not None and trace.images.any():
        raise ValueError(f"{trace.name} has requests with images, which an elastic group does not take")
    return _Run(trace, simulation, policy, planner, progress).result()


class _Run:
    def __init__(
        self,
        trace: Trace,
        simulation: GroupSimulation,
        policy: Policy,
        planner: GroupPlanner,
        progress: Callable[[float], None] | None,
    ) -> None:
        self._trace, self._simulation, self._planner, self._progress = trace, simulation, planner, progress
        # Whatever the mode, decisions are carried out: a simulation shows what they would bring.
        self._policy = replace(policy, mode=Mode.ACTIVE)
        # One source of chance each, so that a fault drawn does not change the noise of what would have run anyhow.
        noise, pods, metrics, clients = (
            Random(f"{simulation.seed} {of}") for of in ("noise", "pods", "metrics", "clients")
        )
        self._events = Events()
        goals = policy.objectives
        aims = Objectives(goals.ttft_ms / 1000, goals.tpot_ms / 1000, goals.ttft_ms_per_prompt_token / 1000)
        sigma = simulation.noise_sigma
        self._serving = Serving(
            replace(simulation.settings, objectives=aims),
            simulation.instances.times,
            simulation.instances.latency,
            self._events,
            token=self._token,
            refused=self._refused,
            dismissed=lambda name: self._pods.dismissed(name),
            noise=(lambda: math.exp(noise.gauss(0.0, sigma))) if sigma > 0 else (lambda: 1.0),
        )
        self._pods = Pods(simulation, self._serving, self._events, pods)
        lost = simulation.faults.metric_dropout_share
        self._gateways = [GatewayPage(None) for _ in range(simulation.gateways)]
        self._gateway_scrapes = [Scrapes(lost, metrics) for _ in self._gateways]
        self._manager_scrapes = Scrapes(lost, metrics)
        self._published = LatencyModel({})  # status.latencyModel
        self._state = planner.first_state()
        count = len(trace)
        self._streams = [clients.random() < simulation.streaming_share for _ in range(count)]
        self._outcome = np.full(count, int(Outcome.UNFINISHED), dtype=np.int8)
        self._ttft_s = np.full(count, np.nan)
        self._tpot_s = np.full(count, np.nan)
        self._end_s = np.full(count, np.nan)
        self._open = 0
        self._arrivals = 0
        self._timeline: list[GroupPoint] = []
        self._decisions: list[GroupDecisionRecord] = []
        self._last_reason: Reason | None = None
        self._decided_on: Observation | None = None

    def result(self) -> GroupResult:
        self._play()
        return GroupResult(
            trace=self._trace.name,
            planner=self._planner.name,
            seed=self._simulation.seed,
            objectives=self._policy.objectives,
            arrival_s=self._trace.arrival_s,
            prompt_tokens=self._trace.prompt_tokens,
            output_tokens=self._trace.output_tokens,
            outcome=self._outcome,
            ttft_s=self._ttft_s,
            tpot_s=self._tpot_s,
            end_s=self._end_s,
            gpu_hours=self._pods.gpu_hours(),
            peak_gpus=self._pods.peak_gpus,
            ended_s=self._events.now_s,
            timeline=tuple(self._timeline),
            decisions=tuple(self._decisions),
            transitions=tuple(self._pods.transitions),
            iterations=dict(self._serving.iterations),
            moved_tokens=dict(self._serving.moved_tokens),
            recomputed=self._serving.recomputed,
        )

    def _play(self) -> None:
        """Until every request ended, or ``drain_s`` after the last arrival."""
        events = self._events
        arrivals: list[float] = self._trace.arrival_s.tolist()
        prompts: list[int] = self._trace.prompt_tokens.tolist()
        outputs: list[int] = self._trace.output_tokens.tolist()
        count, index = len(arrivals), 0
        stop_s = self._trace.duration_s + self._simulation.drain_s
        self._pods.begin()
        self._publish(None)
        events.at(self._policy.interval_s, self._tick)
        while index < count or self._open:
            due_s = events.next_s
            if index < count and arrivals[index] <= due_s:
                events.now_s = arrivals[index]
                self._arrivals += 1
                self._open += 1
                self._gateway(index).accepted(prompts[index])
                self._serving.arrive(str(index), prompts[index], outputs[index])
                index += 1
                continue
            if due_s > stop_s:
                events.now_s = stop_s
                return
            events.step()

    # --- requests ---

    def _gateway(self, index: int) -> GatewayPage:
        return self._gateways[index % len(self._gateways)]

    def _token(self, token: Token) -> None:
        index, now_s = int(token.request), self._events.now_s
        arrived_s = float(self._trace.arrival_s[index])
        if math.isnan(self._ttft_s[index]):
            self._ttft_s[index] = now_s - arrived_s
            prompt_tokens = int(self._trace.prompt_tokens[index])
            self._gateway(index).got_first_token(now_s - arrived_s, prompt_tokens, self._streams[index])
        if token.finish is None:
            return
        self._open -= 1
        self._end_s[index] = now_s
        self._outcome[index] = int(Outcome.COMPLETED)
        tokens = int(self._trace.output_tokens[index])
        tpot_s = None
        if tokens > 1:
            tpot_s = self._tpot_s[index] = (now_s - arrived_s - self._ttft_s[index]) / (tokens - 1)
        self._gateway(index).ended(
            float(self._ttft_s[index]), tpot_s, int(self._trace.prompt_tokens[index]), tokens, self._streams[index]
        )

    def _refused(self, refused: Refused) -> None:
        """The manager's front reports an engine error, with status 500."""
        self._open -= 1
        self._gateway(int(refused.request)).failed()
        self._outcome[int(refused.request)] = int(Outcome.REFUSED)

    # --- the planner ---

    def _publish(self, _: None) -> None:
        """The operator looks at the manager."""
        self._published = self._serving.measured
        self._events.at(self._events.now_s + self._simulation.leads.status_s, self._publish)

    def _tick(self, _: None) -> None:
        now_s, simulation, policy = self._events.now_s, self._simulation, self._policy
        observation = self._observe(now_s)
        self._state, decision = self._planner.decide(self._state, observation, policy, simulation.bounds, now_s)
        refused = self._pods.submit(decision.instances, policy.max_gpus) if decision.changes_layout else ""
        if decision.changes_layout or decision.reason is not self._last_reason:
            self._decisions.append(GroupDecisionRecord(now_s, decision, refused))
        self._last_reason = decision.reason
        self._decided_on = None if decision.reason is Reason.STALE_METRICS else observation.seen
        self._timeline.append(self._point(now_s, observation))
        self._arrivals = 0
        if self._progress is not None:
            self._progress(now_s)
        self._events.at(now_s + policy.interval_s, self._tick)

    def _observe(self, now_s: float) -> GroupObservation:
        """Read the pages of all targets."""
        out = any(begin <= now_s < end for begin, end in self._simulation.faults.metric_outages_s)
        for page, scrapes in zip(self._gateways, self._gateway_scrapes, strict=True):
            scrapes.scrape(page.page(held=0), now_s, out=out)
        serving, manager = self._serving, self._manager_scrapes
        _, waiting = serving.book.counts()
        manager.scrape(manager_page(serving.step_sums, serving.book.slots(), waiting), now_s, out=out)
        seen = seen_by_gateways(
            self._policy.objectives,
            at_s=now_s,
            ages_s=[each.age_s(now_s) for each in (*self._gateway_scrapes, manager)],
            gateways=[each.reading for each in self._gateway_scrapes],
            manager=manager.reading,
            before=self._decided_on,
            plan_in_progress=self._pods.plan_in_progress,
        )
        return GroupObservation(
            seen=seen,
            instances=self._pods.workers(),
            desired=self._pods.desired,
            max_degree=self._simulation.max_degree,
            latency=self._published,
            manager=manager_window(manager.reading),
            gpus_each=max(1, self._simulation.instances.gpus),
        )

    def _point(self, now_s: float, observation: GroupObservation) -> GroupPoint:
        book, pods = self._serving.book, self._pods
        running, waiting = book.counts()
        slots = book.slots()
        return GroupPoint(
            at_s=now_s,
            desired=pods.desired,
            serving=pods.count(WorkerCondition.ACTIVE),
            starting=pods.count(WorkerCondition.STARTING),
            draining=pods.count(WorkerCondition.DRAINING),
            degree=max((len(each.members) for each in book.iterations()), default=0),
            running=running,
            waiting=waiting,
            slots=slots.total,
            used_slots=slots.used,
            arrivals=self._arrivals,
            observed=observation.seen.load is not None and not observation.seen.unread,
        )
