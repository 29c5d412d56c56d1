"""What can be had without foresight: the present known exactly, the engine's true times too, nothing of the future.

Every few seconds it is told what arrives at that moment, each request's output length included, and what the true
engine takes for it; from that follow the workers each role needs, and how much may be under way before a request is
late. New workers pay their lead, roles are switched, past needs are kept for a while, and after a rise there may be
more until what queued is done. Several such reactions are played: the result is the best of them, chosen afterwards.
It is what was achieved, not a proof that nothing causal is better.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pointsman.planner.core.types import Policy, RoutingNumbers
from pointsman.planner.simulator.baselines.clairvoyant import SLOT_S, decoders, following, prefill_work_s
from pointsman.planner.simulator.baselines.layouts import ALL_REMOTE, clamped
from pointsman.planner.simulator.simulate import simulate
from pointsman.planner.simulator.types import Floats, Result, Simulation, Trace
from pointsman.serving.flow_control import FlowBounds

DECODE_USE = 0.95  # of the batch that keeps the objective
WINDOW_S = 30.0  # over which the present is counted, or since it last changed
SUDDEN_S = 5.0  # in which a change shows …
DEVIATIONS = 4.0  # … by so many standard deviations of a compound Poisson process
GREW = 1.25  # as many times the need of before is a rise
CLEAR_S = 60.0  # after new workers serve, until which a rise is given more
EQUAL = 0.01  # of attainment: then the cheaper one is the better


@dataclass(frozen=True, slots=True)
class Reaction:
    """``use``: of a prefill worker's time; ``hold_s``: how long a past need is kept; ``boost``: as many times the need
    after a rise."""

    use: float
    hold_s: float
    boost: float


REACTIONS = (
    Reaction(0.8, 120.0, 1.0),
    Reaction(0.8, 300.0, 1.0),
    Reaction(0.8, 300.0, 1.3),
    Reaction(0.8, 900.0, 1.0),
    Reaction(0.65, 300.0, 1.3),
    Reaction(0.95, 900.0, 1.0),
)
TRIED = len(REACTIONS)


def search(trace: Trace, simulation: Simulation, policy: Policy) -> Result:
    """The best of ``REACTIONS``: most within objectives, then cheapest."""
    work_s, found = prefill_work_s(trace, simulation), []
    for reaction in REACTIONS:
        layouts, routings = reacting(trace, work_s, simulation, policy, reaction)
        found.append(simulate(trace, simulation, policy, following(layouts, "causal", routings)))
    most = max(result.attainment for result in found)
    return min((r for r in found if r.attainment >= most - EQUAL), key=lambda result: result.gpu_hours)


def reacting(
    trace: Trace, work_s: Floats, simulation: Simulation, policy: Policy, reaction: Reaction
) -> tuple[list[tuple[int, int]], list[RoutingNumbers]]:
    """(prefill, decode) and routing of each slot, made of what had arrived when it begins."""
    decoding_s = trace.output_tokens * policy.objectives.tpot_ms / 1000
    kv_tokens = decoding_s * (trace.prompt_tokens + trace.output_tokens / 2)
    first = simulation.prefill_workers, simulation.decode_workers
    needs: list[tuple[int, int]] = []
    since_s = 0.0
    routings: list[RoutingNumbers] = []
    for slot in range(int(trace.duration_s / SLOT_S) + 2):
        now_s = slot * SLOT_S
        since_s = max(since_s, now_s - WINDOW_S)
        if _changed(trace.arrival_s, (np.ones(len(work_s)), work_s, kv_tokens), since_s, now_s):
            since_s = now_s - SUDDEN_S
        begin, end = np.searchsorted(trace.arrival_s, (since_s, now_s)).tolist()
        seen, window_s = slice(begin, end), max(SUDDEN_S, now_s - since_s)
        busy = float(work_s[seen].sum()) / window_s
        sequences, held = float(decoding_s[seen].sum()) / window_s, float(kv_tokens[seen].sum()) / window_s
        decode = decoders(sequences, held, simulation, policy, DECODE_USE)
        needs.append((max(1, math.ceil(busy / reaction.use)), decode) if now_s >= WINDOW_S else first)
        if end > begin and policy.flow_control:
            routings.append(replace(ALL_REMOTE, flow=_in_time(trace, work_s, seen, simulation, policy)))
        else:
            routings.append(routings[-1] if routings else ALL_REMOTE)
    wanted = _held(needs, first, simulation.leads.start_s, reaction)
    return [clamped(*layout, policy, simulation.engine.gpus) for layout in wanted], routings


def _changed(arrival_s: Floats, marks: Sequence[Floats], since_s: float, now_s: float) -> bool:
    """Whether the last ``SUDDEN_S`` are no chance beside what came since ``since_s``: in number, or in a mark's sum."""
    long_s = now_s - SUDDEN_S - since_s
    if long_s < SUDDEN_S:
        return False
    begin, recent, end = np.searchsorted(arrival_s, (since_s, now_s - SUDDEN_S, now_s)).tolist()
    share = SUDDEN_S / long_s
    for mark in marks:
        before, now = mark[begin:recent], mark[recent:end]
        expected, square = float(before.sum()) * share, float((before * before).sum()) * share
        one = float(mark[begin:end].mean()) if end > begin else 0.0  # of which at least the square is expected
        if abs(float(now.sum()) - expected) > DEVIATIONS * math.sqrt(max(square, one * one)):
            return True
    return False


def _held(
    needs: Sequence[tuple[int, int]], first: tuple[int, int], start_s: float, reaction: Reaction
) -> list[tuple[int, int]]:
    """The most that was needed in the last ``hold_s``, and more after a rise; before the first slot, ``first`` was."""
    hold, rise = int(reaction.hold_s / SLOT_S), int((start_s + CLEAR_S) / SLOT_S)
    past = [first] * (hold + rise) + list(needs)
    wanted = []
    for slot in range(hold + rise, len(past)):
        layout = []
        for role in (0, 1):
            most = max(need[role] for need in past[slot - hold : slot + 1])
            before = max(need[role] for need in past[slot - hold - rise : slot - rise + 1])
            layout.append(math.ceil(most * reaction.boost) if most > GREW * before else most)
        wanted.append((layout[0], layout[1]))
    return wanted


def _in_time(trace: Trace, work_s: Floats, seen: slice, simulation: Simulation, policy: Policy) -> FlowBounds:
    """What may be under way: prompts within the slack of the TTFT objective, the batch that keeps the other."""
    prompt, own_s = float(trace.prompt_tokens[seen].mean()), float(work_s[seen].mean())
    slack_s = policy.objectives.ttft_for(prompt) / 1000 - own_s
    context = prompt + float(trace.output_tokens[seen].mean()) / 2
    engine, kappa = simulation.engine, simulation.truth.decode_kappa
    most = max(1, min(engine.max_batch, int(engine.kv_capacity_tokens / context)))
    batch = bisect_right(
        range(1, most + 1),
        policy.objectives.tpot_ms,
        key=lambda size: kappa * engine.performance.decode_step_ms(size, size * context),
    )
    return FlowBounds(max(1, round(prompt * max(1.0, slack_s / own_s))), max(1, batch))
