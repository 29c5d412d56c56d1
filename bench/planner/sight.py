"""Ours on constant loads that differ in what the planner can see: clients, objectives, engines, gateways, lost pages.

A constant load needs one layout. A case that needs the plain load's layout is compared with the plain load; one that
needs another layout has to keep the goal.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from bench.planner.cells import OURS, Measurement, Run, judged, reversals, run_of
from bench.planner.scenarios import LEADS, SCENARIOS, TRUTH, Scenario
from bench.rows import Row
from pointsman.planner.core.types import Bounds, Policy
from pointsman.planner.replay.generators import generate, named_shape
from pointsman.planner.replay.requests import Arrived, trace_of
from pointsman.planner.simulator.baselines.pointsman import ours
from pointsman.planner.simulator.simulate import simulate
from pointsman.planner.simulator.types import Faults, Simulation, Trace

SIGHT: Final = "sight"
SIGHT_LARGE: Final = "sight of 65 workers"
RATE, SECONDS, PROMPT, OUTPUT = 8.0, 900.0, 2000, 500
SETTLED_S: Final = 300.0  # what is started for another layout than the first serves by then
GOAL: Final = 0.95
DEARER: Final = 1.02  # GPU-hours, of the plain load's
PLAIN: Final = "plain"
OF_OBJECTIVE: Final = "TPOT objective"
WIDE_SIGMA: Final = 1.2  # of a log-normal: the mean is twice the median
LONGEST: Final = 30_000  # tokens of a prompt
LARGE: Final = 13  # times the plain load and its layout: 65 workers


@dataclass(frozen=True)
class Case:
    """What is other than in the plain load.

    ``beside``: the case whose share and GPU-hours are the measure; None: the goal alone. ``kappa``: of prefill and
    decode, relative to the table. ``wide``: prompts of log-normal length. ``times``: of the rate, the layout and the
    budget. ``cheaper``: whether GPU-hours may only be as many as beside.
    """

    whole_answers_share: float = 0.0
    tpot_ms: float = 30.0
    kappa: tuple[float, float] = (TRUTH.prefill_kappa, TRUTH.decode_kappa)
    wide: bool = False
    gateways: int = 1
    lost: float = 0.0
    times: int = 1
    beside: str | None = PLAIN

    @property
    def scenario(self) -> Scenario:
        """The load's engine and objectives."""
        step = SCENARIOS["step"]
        return replace(step, objectives=replace(step.objectives, tpot_ms=self.tpot_ms), layout=self._layout)

    @property
    def _layout(self) -> tuple[int, int]:
        return 2 * self.times, 3 * self.times

    def trace(self, seed: int) -> Trace:
        """The requests."""
        lengths = f"prompt_tokens={PROMPT},output_tokens={OUTPUT}"
        plain = generate(named_shape(f"steady:rate={RATE * self.times:g},{lengths},duration_s={SECONDS:g}"), seed)
        if not self.wide:
            return plain
        draw = random.Random(seed)
        prompts = [int(PROMPT / 2 * draw.lognormvariate(0.0, WIDE_SIGMA)) for _ in range(len(plain))]
        asked = zip(plain.arrival_s, prompts, plain.output_tokens, strict=True)
        return trace_of(
            "wide", [Arrived(float(at), min(max(prompt, 16), LONGEST), int(out)) for at, prompt, out in asked]
        )

    def simulation(self, seed: int) -> Simulation:
        """The service."""
        prefill, decode = self.kappa
        return replace(
            self.scenario.simulation(seed),
            truth=replace(TRUTH, prefill_kappa=prefill, decode_kappa=decode),
            faults=Faults(metric_dropout_share=self.lost),
            gateways=self.gateways,
            whole_answers_share=self.whole_answers_share,
            leads=LEADS,
        )

    def policy(self) -> Policy:
        """The policy of the step, with room for the load."""
        policy, most = self.scenario.policy(), 16 * self.times
        return replace(policy, max_gpus=most, prefill=Bounds(1, most), decode=Bounds(1, most))


def _objective(tpot_ms: float) -> str:
    return f"{OF_OBJECTIVE} {tpot_ms:g} ms"


CASES: Final = {
    PLAIN: Case(beside=None),
    "30 % of clients do not stream": Case(whole_answers_share=0.3),
    "no client streams": Case(whole_answers_share=1.0),
    **{_objective(tpot_ms): Case(tpot_ms=tpot_ms, beside=None) for tpot_ms in (23.0, 28.0, 37.0)},
    **{
        f"{_objective(tpot_ms)}, no client streams": Case(1.0, tpot_ms=tpot_ms, beside=_objective(tpot_ms))
        for tpot_ms in (23.0, 28.0, 37.0)
    },
    **{f"engine κ {kappa:g}": Case(kappa=(kappa, kappa), beside=None) for kappa in (0.4, 0.7, 1.5, 2.0)},
    "prefill κ 3": Case(kappa=(3.0, TRUTH.decode_kappa), beside=None),
    "prompts of wide spread": Case(wide=True, beside=None),
    "three gateways": Case(gateways=3),
    "three gateways, 1 % of scrapes lost": Case(gateways=3, lost=0.01),
    "5 % of scrapes lost": Case(lost=0.05),
    f"{LARGE} times the load": Case(times=LARGE, beside=None),
    f"{LARGE} times the load, three gateways, 1 % of scrapes lost": Case(
        times=LARGE, gateways=3, lost=0.01, beside=f"{LARGE} times the load"
    ),
}


def cases(scenario: str, seed: int) -> Iterator[Measurement]:
    """Those of one of the two scenarios: the large ones take minutes each."""
    for what, case in CASES.items():
        if (case.times > 1) == (scenario == SIGHT_LARGE):
            yield name_of(what), partial(_measured, scenario, what, case, seed)


def name_of(what: str) -> str:
    """Of a run of ours."""
    return f"{OURS}, {what}"


def _measured(scenario: str, what: str, case: Case, seed: int) -> Run:
    result = simulate(case.trace(seed), case.simulation(seed), case.policy(), ours())
    settled = float(result.met[result.arrival_s >= SETTLED_S].mean())
    return replace(run_of(scenario, seed, name_of(what), result), attainment=round(settled, 4))


def rows(found: dict[str, list[Run]]) -> Iterator[Row]:
    """Each keeps the goal, and is no worse or dearer than the load that it is compared with."""
    for what, case in CASES.items():
        mine = found.get(name_of(what))
        if mine is None:
            continue
        load = f"{RATE:g} requests/s, {what}"
        yield judged(f"{load}: share within objectives after 5 minutes", mine, at_least=GOAL)
        peer = found.get(name_of(case.beside)) if case.beside is not None else None
        if peer is not None:
            yield judged(
                f"{load}: GPU-hours", mine, peer, of="gpu_hours", unit="h", peer_name=case.beside, of_ratio=True,
                at_most=DEARER,
            )  # fmt: skip
        yield reversals(f"{load}: reversals", mine)
