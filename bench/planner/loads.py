"""The loads of the planner's own benchmark, as ``bench/data/planner-loads.yaml`` has them."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator

from bench.rows import DATA, data
from pointsman.api.v1alpha1.plannerpolicy import PlannerPolicySpec
from pointsman.planner.core.engine.startup_time import start_of_model
from pointsman.planner.core.types import Bounds, Policy
from pointsman.planner.policies import planner_policy
from pointsman.planner.replay.generators import generate, named_shape
from pointsman.planner.replay.policy_files import load_policy
from pointsman.planner.replay.requests import Arrived, faster, superposed, trace_of
from pointsman.planner.replay.trace_files import load_trace
from pointsman.planner.shipped_engines import shipped_engine
from pointsman.planner.simulator.baselines.pointsman import PARTS
from pointsman.planner.simulator.types import Faults, Leads, Simulation, Trace, Truth

LEADS: Final = Leads(start_spread=0.1, drain_timeout_s=7.0)
TRUTH: Final = Truth(prefill_kappa=1.15, decode_kappa=1.2, noise_sigma=0.08)
EXAMPLES: Final = DATA.parents[1] / "examples" / "policies"
EACH_PART: Final = "Pointsman without each part"  # in ``Load.planners``
WIDE_SIGMA: Final = 1.2  # of a log-normal: the mean is twice the median


@dataclass(frozen=True)
class Service:
    """What a seed makes of a load."""

    trace: Trace
    simulation: Simulation
    policy: Policy
    note: str = ""


class Piece(BaseModel):
    """Of a trace: what comes from ``from_s`` to ``to_s`` of a file of ``bench/data``, or of a shape."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    source: str
    faster: float = 1
    copies: int = 1
    from_s: float = 0
    to_s: float
    repeats: int = 1  # one after the other, of a seed each

    def requests(self, seed: int, at_s: float) -> Iterator[Arrived]:
        """From ``at_s`` on."""
        is_file = "/" in self.source
        found = load_trace(DATA / self.source, seed).trace if is_file else generate(named_shape(self.source), seed)
        found = superposed(faster(found, self.faster), self.copies)
        columns = found.arrival_s.tolist(), found.prompt_tokens.tolist(), found.output_tokens.tolist()
        for came_s, prompt, output, blocks in zip(*columns, found.prefix_blocks or ((),) * len(found), strict=True):
            if self.from_s <= came_s < self.to_s:
                yield Arrived(came_s + (at_s - self.from_s), prompt, output, blocks)


class Load(BaseModel):
    """A service, what comes to it, and what is measured.

    ``kappa``: how many times as slow as the table the true engine is, in prefill and in decode. ``first_start_s``: what
    starts of the first workers took, as their pods show it. ``first_starts_shown``: they do; else the first start is
    estimated from the model's size, as of a service whose pods are not seen starting. ``added_s``: what gateways and
    network add to a first token, and to each other one. ``told``: the policy says what a
    start takes. ``table``: the planner has a performance table. ``interval_s``: from one evaluation to the next, as by
    Prometheus' scrapes. ``median_prompt_tokens``: prompts are of log-normal length. ``remembered_tokens``: the planner
    remembers prompts and outputs of this length from before a pause. ``target``: share within objectives, of requests
    after ``judged_from_s``. ``most_lost``: share that may be less than that of the load ``beside``, or of the causal
    reference; ``least_of_share``, ``least_of_gpu_hours`` and ``most_of_gpu_hours``: relative to ``beside``, which rows
    name ``beside_as``; ``most_of_static``: GPU-hours, relative to those of the cheapest fixed layout that keeps enough.
    ``each_seed``: every one has to keep ``target``, without a reversal. ``example``: a policy of ``examples/policies``,
    and all else as ``pointsman replay`` has it by default; the load's own objectives, budget, engine and leads are not
    used. ``drawn``: engine, lengths, rate, layout and objectives are drawn from the seed (``random_loads``).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    name: str
    note: str = ""
    trace: str | tuple[Piece, ...] = "step"
    median_prompt_tokens: float | None = None
    drawn: bool = False
    example: str | None = None
    model: str = "meta-llama/Meta-Llama-3.1-8B"
    gpu: str = "a100_sxm"
    tp: int = 1
    kappa: tuple[float, float] = (TRUTH.prefill_kappa, TRUTH.decode_kappa)
    layout: tuple[int, int] = (2, 2)
    start_s: float = LEADS.start_s
    first_start_s: float | None = None
    first_starts_shown: bool = True
    told: bool = False
    table: bool = True
    interval_s: float = 2.5
    faults: Faults = Faults()
    gateways: int = 1
    whole_answers_share: float = 0
    added_s: tuple[float, float] = (0, 0)
    refused_per_s: float = 0
    ttft_ms: float = 1500
    ttft_ms_per_prompt_token: float = 0
    tpot_ms: float = 30
    attainment: float = 0.95
    max_gpus: int = 16
    most_of_a_role: int = 12
    scaling: bool = True
    remembered_tokens: tuple[float, float] | None = None
    judged_from_s: float = 0
    planners: tuple[str, ...] = ("Pointsman",)
    seeds: tuple[int, ...] = (11, 12, 13)
    target: float | None = None
    beside: str | None = None
    beside_as: str = ""
    each_seed: bool = False
    most_lost: float | None = None
    least_of_share: float | None = None
    least_of_gpu_hours: float | None = None
    most_of_gpu_hours: float | None = None
    most_of_static: float | None = None

    @field_validator("planners")
    @classmethod
    def _with_each_part(cls, planners: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        """``EACH_PART``: ours without each part that is not named, and that can do anything on this load."""
        if EACH_PART not in planners:
            return planners
        named = [who for who in planners if who != EACH_PART]
        parts = [part for part in PARTS if info.data["scaling"] or part != "scaling"]
        return *named, *(who for part in parts if (who := f"Pointsman without {part}") not in named)

    def service(self, seed: int) -> Service:
        """The load, the service as it is, and the policy: the defaults but for objectives, budget and actions."""
        if self.example is not None:
            return self._replayed(load_policy(EXAMPLES / f"{self.example}.yaml").spec, seed)
        simulation = Simulation(
            shipped_engine(self.model, self.gpu, "vllm", self.tp),
            *self.layout,
            truth=Truth(*self.kappa, TRUTH.noise_sigma),
            leads=replace(
                LEADS,
                start_s=self.start_s,
                first_start_s=self.first_start_s,
                first_starts_shown=self.first_starts_shown,
            ),
            faults=self.faults,
            gateways=self.gateways,
            whole_answers_share=self.whole_answers_share,
            added_s=self.added_s,
            refused_per_s=self.refused_per_s,
            seed=seed,
        )
        objectives = {"ttftMs": self.ttft_ms, "tpotMs": self.tpot_ms, "attainment": self.attainment}
        objectives["ttftMsPerPromptToken"] = self.ttft_ms_per_prompt_token
        scale_out = {"enabled": self.scaling, "leadSeconds": self.start_s if self.told else None}
        actions = {"scaleOut": scale_out, "scaleIn": {"enabled": self.scaling}}
        rules = policy(objectives, self.max_gpus, Bounds(1, self.most_of_a_role), actions)
        stale_after_s = max(rules.stale_after_s, 2.5 * self.interval_s)
        rules = replace(rules, interval_s=self.interval_s, stale_after_s=stale_after_s)
        if not (self.told or self.first_starts_shown):
            rules = replace(rules, start_s=start_of_model(self.model, self.tp))  # as live, of a service
        return Service(self.arrivals(seed), simulation, rules)

    def _replayed(self, spec: PlannerPolicySpec, seed: int) -> Service:
        """As ``pointsman replay --policy … --workers … --seed …`` plays it."""
        table = spec.performance.table
        assert table is not None, self.name
        engine = shipped_engine(table.model, table.gpu, "vllm", table.tp)
        leads, truth = Leads(start_s=LEADS.start_s), Truth(*self.kappa, TRUTH.noise_sigma)
        each = Bounds(1, spec.budget.max_gpus // engine.gpus - 1)
        simulation = Simulation(engine, *self.layout, truth=truth, leads=leads, seed=seed)
        return Service(self.arrivals(seed), simulation, planner_policy(spec, each, each))

    def arrivals(self, seed: int) -> Trace:
        """The requests of a load that is not drawn."""
        if isinstance(self.trace, str):
            plain = generate(named_shape(self.trace), seed)
            if self.median_prompt_tokens is None:
                return plain
            draw = random.Random(seed)
            prompts = [int(self.median_prompt_tokens * draw.lognormvariate(0.0, WIDE_SIGMA)) for _ in range(len(plain))]
            return replace(plain, name="wide", prompt_tokens=np.clip(prompts, 16, 30_000))
        at_s, requests = 0.0, list[Arrived]()
        for piece in self.trace:
            for number in range(piece.repeats):
                requests += piece.requests(1000 * seed + number if piece.repeats > 1 else seed, at_s)
                at_s += piece.to_s - piece.from_s
        return trace_of(self.name, requests)


def policy(objectives: dict[str, float], max_gpus: int, each: Bounds, actions: dict[str, object]) -> Policy:
    """Of a PlannerPolicy with these fields."""
    fields = {"objectives": objectives, "budget": {"maxGpus": max_gpus}, "actions": actions}
    return planner_policy(PlannerPolicySpec.model_validate(fields), prefill=each, decode=each)


GROUPS: Final = {
    group: {name: Load(name=name, **fields) for name, fields in loads.items()}
    for group, loads in data("planner-loads").items()
}
LOADS: Final = {name: load for loads in GROUPS.values() for name, load in loads.items()}
