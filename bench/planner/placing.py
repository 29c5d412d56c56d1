"""Where a prompt is computed by an estimate made for it alone, as Arrow and Mooncake's Conductor do: not as shipped.

An ablation of the local/remote rule (``pointsman.serving.local_remote``) in our simulator. For each prompt the time to
its first token is estimated at the prefill workers and at every decode worker, and it goes where that is shortest. What
an estimate is made of is what a gateway has:

* its own book, live, as flow control and the router use it: what it sent where and which of that has no first token,
  how many streams decode at a worker and their contexts; and how long the prefill queue is, which the shipped rule asks
  NATS for at every decision, with the lengths that the gateway sent there;
* once a metrics interval what the planner believes, as it publishes routing numbers (``Beliefs``).

Who will pull the prompt from the queue, how far a pass is, how long an answer will be, and the engine's true times are
not known to it.
"""

import math
from collections import deque
from dataclasses import dataclass, replace
from functools import cache
from typing import Any
from unittest.mock import patch

from pointsman.planner.core.performance import (
    CalibratedModel,
    PerformanceModel,
    decode_bucket,
    prefill_bucket,
)
from pointsman.planner.core.state import State, model_of
from pointsman.planner.core.types import Decision, NextTick, Observation, Policy
from pointsman.planner.simulator import simulate as simulator
from pointsman.planner.simulator.request import Request
from pointsman.planner.simulator.request_path import RequestPath
from pointsman.planner.simulator.types import Planner, PrefillPlace, Result, Simulation, Trace
from pointsman.planner.simulator.worker import SimulatedWorker
from pointsman.serving.local_remote import RoutingRule

ANY_LENGTH = 1 << 60  # of prompts or queues: longer than any
ALWAYS_REMOTE, ALWAYS_LOCAL = RoutingRule(0, ANY_LENGTH), RoutingRule(ANY_LENGTH, 0)


@dataclass(frozen=True, slots=True)
class Rule:
    """Where a prompt goes: to the place with the shortest estimated time to the first token.

    ``tpot_share``: of decode workers to those only whose streams would have at most so much of their TPOT objective;
    None: whatever becomes of them. ``if_late``: to a decode worker only where by the estimate no prefill worker is in
    time.
    """

    name: str
    tpot_share: float | None = None
    if_late: bool = False


# --- what is known ---


@dataclass(frozen=True, slots=True)
class Beliefs:
    """What the planner believes, sent to gateways once a metrics interval.

    ``held_by_prefill``: tokens that a prefill worker has cached of a prompt it is given, in the mean;
    ``output_tokens``: of an answer, mean; None: none has ended yet.
    """

    model: PerformanceModel
    transfer_s_per_token: float = 0.0
    held_by_prefill: float = 0.0
    output_tokens: float | None = None


@dataclass(frozen=True, slots=True)
class DecodePlace:
    """A decode worker in its gateway's book, for one prompt.

    ``step_ms``: of its ``decoding`` streams and the prompt's own; ``ahead_tokens`` and ``ahead_ms`` of prompts that
    were sent there to be computed and have no first token; ``lately_ms`` of all that were within the length of an
    answer.
    """

    step_ms: float
    decoding: int = 0
    ahead_tokens: int = 0
    ahead_ms: float = 0.0
    lately_ms: float = 0.0


# --- estimates ---


def work_ms(model: PerformanceModel, new_tokens: float, cached_tokens: float) -> float:
    """What a prompt adds to a pass that is made anyway: its time without the pass's fixed part."""
    return max(model.prefill_ms(max(new_tokens, 1), cached_tokens) - model.prefill_ms(0, 0), 0.0)


def remote_work_ms(beliefs: Beliefs, prompt_tokens: int) -> float:
    """Of whichever prefill worker will pull it: each has as much cached as they have in the mean."""
    cached = min(beliefs.held_by_prefill, prompt_tokens - 1)
    return work_ms(beliefs.model, prompt_tokens - cached, cached)


def remote_ttft_ms(
    beliefs: Beliefs,
    *,
    waiting_ms: float,
    prefill_workers: int,
    prompt_tokens: int,
    missing_tokens: int,
    place: DecodePlace,
) -> float:
    """By a prefill worker: behind the work that waits in the queue, shared by all of them; computed; the tokens that
    its decode worker lacks (``missing_tokens``) sent; then half a step there until it joins, and the first one."""
    passed = beliefs.model.prefill_ms(0, 0) + remote_work_ms(beliefs, prompt_tokens)
    sent = missing_tokens * beliefs.transfer_s_per_token * 1000
    return waiting_ms / prefill_workers + passed + sent + 1.5 * place.step_ms


def local_ttft_ms(
    beliefs: Beliefs, *, prompt_tokens: int, cached_tokens: int, max_batched_tokens: int, place: DecodePlace
) -> float:
    """In mixed steps of a decode worker, behind prompts that were sent there before: their work and its own, and as
    many decode steps as it takes chunks; half a step until the first of them begins."""
    new_tokens = prompt_tokens - cached_tokens
    chunks = math.ceil((place.ahead_tokens + new_tokens) / max(max_batched_tokens - place.decoding, 1))
    work = place.ahead_ms + work_ms(beliefs.model, new_tokens, cached_tokens)
    if place.decoding == 0:
        return work + chunks * beliefs.model.prefill_ms(0, 0)
    return work + (chunks + 0.5) * place.step_ms


def tpot_ms(beliefs: Beliefs, *, prompt_tokens: int, cached_tokens: int, place: DecodePlace) -> float:
    """Mean time a token of the streams there, were the prompt computed beside them: their step, and this prompt and
    those computed there as long as an answer takes, spread over its tokens. Infinite before an answer has ended."""
    if beliefs.output_tokens is None:
        return math.inf
    work = place.lately_ms + work_ms(beliefs.model, prompt_tokens - cached_tokens, cached_tokens)
    return place.step_ms + work / max(beliefs.output_tokens, 1.0)


def keeps_tpot(
    rule: Rule, beliefs: Beliefs, objective_ms: float, *, prompt_tokens: int, cached_tokens: int, place: DecodePlace
) -> bool:
    """Whether the rule lets a prompt be computed there. Where nothing decodes, it disturbs nobody."""
    if rule.tpot_share is None or place.decoding == 0:
        return True
    expected = tpot_ms(beliefs, prompt_tokens=prompt_tokens, cached_tokens=cached_tokens, place=place)
    return expected <= rule.tpot_share * objective_ms


# --- in the simulator ---


class Told:
    """``beliefs`` that arrived last, None before the first look; ``errors`` of the estimates, relative to what came."""

    def __init__(self) -> None:
        self.beliefs: Beliefs | None = None
        self.errors: list[float] = []


def telling(planner: Planner, told: Told) -> Planner:
    """A planner of ours that also says what it believes, whenever it looks. It decides as before."""

    def decide(
        state: State, observation: Observation, policy: Policy, now_s: float, base: PerformanceModel | None
    ) -> tuple[Any, Decision, NextTick]:
        after, decision, tick = planner.decide(state, observation, policy, now_s, base)
        model = model_of(after, base)
        if model is not None:
            told.beliefs = Beliefs(
                _quick(model),
                after.transfers.s_per_token,
                after.lengths.prefixes.held_by_prefill,
                after.lengths.output_tokens,
            )
        return after, decision, tick

    return replace(planner, decide=decide)


class PlacingPath(RequestPath):
    """The simulator's way of a request, where a prompt's place is chosen by ``placing`` once beliefs were told.

    Before that, without prefill workers, and where nothing is to be computed, the shipped rule decides. The decode
    worker of what is computed remotely is the router's; what is computed locally may go to any with room for its KV.
    """

    def __init__(self, *arguments: Any, placing: Rule, told: Told) -> None:
        self._placing, self._told = placing, told
        self._chosen: tuple[SimulatedWorker, int] | None = None
        self._remote_ms: dict[int, float] = {}  # work of prompts sent to prefill workers, without a first token
        self._ahead: dict[str, dict[int, tuple[int, float]]] = {}  # by decode worker, of prompts it computes: the same
        self._lately: dict[str, deque[tuple[float, float]]] = {}  # by decode worker: (when it was sent, work)
        self._expected: dict[int, tuple[float, float]] = {}  # (when it was sent, time to the first token then)
        super().__init__(*arguments)

    def dispatch(self, request: Request, now_s: float) -> None:
        beliefs = self._told.beliefs
        if beliefs is None or not self.decoders:
            super().dispatch(request, now_s)
            return
        shipped = self._rule
        if self.prefillers:
            worker, cached, remote, takes_ms = self._place(request, beliefs, now_s)
            self._chosen, self._rule = (worker, cached), ALWAYS_REMOTE if remote else ALWAYS_LOCAL
            if math.isnan(request.first_token_s):
                self._expected[request.index] = now_s, takes_ms
                if remote:
                    self._remote_ms[request.index] = remote_work_ms(beliefs, request.prompt_tokens)
        try:
            super().dispatch(request, now_s)
        finally:
            self._rule, self._chosen = shipped, None
        if self.prefilled[request.index] == PrefillPlace.LOCAL and request.worker is not None:
            self._computes(request.worker, request, beliefs, now_s)

    def started(self, request: Request) -> None:
        self._remote_ms.pop(request.index, None)
        if request.worker is not None:
            self._ahead.get(request.worker.name, {}).pop(request.index, None)
        sent_s, takes_ms = self._expected.pop(request.index, (0.0, 0.0))
        if takes_ms > 0:
            self._told.errors.append(takes_ms / 1000 / (request.first_token_s - sent_s) - 1)
        super().started(request)

    def displace(self, worker: SimulatedWorker, now_s: float, died: bool) -> None:
        self._ahead.pop(worker.name, None)
        super().displace(worker, now_s, died)

    def _choose(self, request: Request) -> SimulatedWorker:
        if self._chosen is None:
            return super()._choose(request)
        worker, request.cached_tokens = self._chosen
        return worker

    def _computes(self, worker: SimulatedWorker, request: Request, beliefs: Beliefs, now_s: float) -> None:
        """Into the book: a decode worker was sent a prompt to compute."""
        work = work_ms(beliefs.model, request.new_tokens, request.cached_tokens) if request.new_tokens else 0.0
        self._lately.setdefault(worker.name, deque()).append((now_s, work))
        if math.isnan(request.first_token_s):
            self._ahead.setdefault(worker.name, {})[request.index] = request.new_tokens, work

    def _place(self, request: Request, beliefs: Beliefs, now_s: float) -> tuple[SimulatedWorker, int, bool, float]:
        """(the decode worker, what it has cached of the prompt, whether a prefill worker computes it, expected ms)."""
        routed, prompt, objectives = super()._choose(request), request.prompt_tokens, self._objectives
        routed_cached = request.cached_tokens
        if routed_cached >= prompt:
            return routed, routed_cached, False, 0.0
        at_routed = self._seen(routed, beliefs, prompt, now_s)
        remote_ms = remote_ttft_ms(
            beliefs,
            waiting_ms=sum(self._remote_ms.get(waiting.index, 0.0) for waiting in self.queue),
            prefill_workers=self.prefillers,
            prompt_tokens=prompt,
            missing_tokens=prompt - routed_cached,
            place=at_routed,
        )
        best = routed, routed_cached, True, remote_ms
        passed_ms = (now_s - request.arrived_s) * 1000
        if self._placing.if_late and passed_ms + remote_ms <= objectives.ttft_for(prompt):
            return best
        for worker in self.decoders:
            engine = worker.engine
            if engine.context + engine.held + worker.decoding + prompt >= self._engine.kv_capacity_tokens:
                continue
            cached = routed_cached
            if request.blocks:
                cached = min(worker.cache.matched(request.blocks) * self._block_tokens, prompt)
            place = at_routed if worker is routed else self._seen(worker, beliefs, prompt, now_s)
            local_ms = local_ttft_ms(
                beliefs, prompt_tokens=prompt, cached_tokens=cached,
                max_batched_tokens=self._engine.max_batched_tokens, place=place,
            )  # fmt: skip
            if local_ms < best[3] and keeps_tpot(
                self._placing, beliefs, objectives.tpot_ms, prompt_tokens=prompt, cached_tokens=cached, place=place
            ):
                best = worker, cached, False, local_ms
        return best

    def _seen(self, worker: SimulatedWorker, beliefs: Beliefs, prompt_tokens: int, now_s: float) -> DecodePlace:
        step_ms = beliefs.model.decode_step_ms(worker.decoding + 1, worker.engine.context + prompt_tokens)
        ahead = self._ahead.get(worker.name, {}).values()
        lately = self._lately.get(worker.name)
        if lately and beliefs.output_tokens is not None:
            since_s = now_s - beliefs.output_tokens * step_ms / 1000
            while lately and lately[0][0] < since_s:
                lately.popleft()
        return DecodePlace(
            step_ms,
            worker.decoding,
            sum(tokens for tokens, _ in ahead),
            sum(work for _, work in ahead),
            sum(work for _, work in lately or ()),
        )


def simulate_with(
    trace: Trace, simulation: Simulation, policy: Policy, planner: Planner, placing: Rule
) -> tuple[Result, list[float]]:
    """``simulate``, with prompts placed by a rule, and the estimates' relative errors; everything else, the planner
    too, as it is."""
    told = Told()

    def path(*arguments: Any) -> PlacingPath:
        return PlacingPath(*arguments, placing=placing, told=told)

    # In the place of its class: the simulator's sources, to which measured results are bound, stay as they are.
    with patch.object(simulator, "RequestPath", path):
        return simulator.simulate(trace, simulation, policy, telling(planner, told)), told.errors


# --- speed ---


def _quick(model: PerformanceModel) -> PerformanceModel:
    return _Quick(model) if isinstance(model, CalibratedModel) else model


class _Quick:
    """The same calibrated model for one metrics interval: its factors, and the work of a prompt, looked up once."""

    def __init__(self, model: CalibratedModel) -> None:
        self._base = model.base
        self._prefill, self._decode = cache(model.prefill.kappa), cache(model.decode.kappa)
        self.prefill_ms = cache(self._prefill_ms)

    def _prefill_ms(self, new_tokens: float, prefix_tokens: float) -> float:
        return self._base.prefill_ms(new_tokens, prefix_tokens) * self._prefill(prefill_bucket(new_tokens))

    def decode_step_ms(self, batch: float, kv_tokens: float) -> float:
        return self._base.decode_step_ms(batch, kv_tokens) * self._decode(decode_bucket(batch, kv_tokens))
