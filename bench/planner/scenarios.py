"""The traces, engines and objectives of the planner's own benchmark: one configuration for all of them."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from pointsman.api.v1alpha1.plannerpolicy import PlannerPolicySpec
from pointsman.planner.core.types import Bounds, Objectives, Policy
from pointsman.planner.policies import planner_policy
from pointsman.planner.replay.generators import Segment, generate, named_shape
from pointsman.planner.replay.requests import first, superposed
from pointsman.planner.replay.trace_files import load_trace
from pointsman.planner.shipped_engines import shipped_engine
from pointsman.planner.simulator.types import Engine, Leads, Simulation, Trace, Truth

DATA = Path(__file__).parent.parent / "data"
HALF_HOUR_S = 1800.0
LEADS = Leads(start_s=120.0, start_spread=0.1, flip_s=2.0, verify_s=1.0, drain_timeout_s=7.0)
TRUTH = Truth(prefill_kappa=1.15, decode_kappa=1.2, noise_sigma=0.08)


@dataclass(frozen=True)
class Scenario:
    """One load on one engine. ``trace(seed)`` makes it; ``layout`` is what everybody begins with."""

    name: str
    note: str
    trace: Callable[[int], Trace]
    gpu: str
    objectives: Objectives
    layout: tuple[int, int]
    told_start_s: float | None = None  # what a start takes, and the policy says so; None: LEADS, and nobody says

    def simulation(self, seed: int) -> Simulation:
        """The service: 8B on one GPU a worker, the real engine slower than the table says."""
        leads = LEADS if self.told_start_s is None else replace(LEADS, start_s=self.told_start_s)
        return Simulation(self.engine(), *self.layout, truth=TRUTH, leads=leads, seed=seed)

    def engine(self) -> Engine:
        """The shipped table."""
        return shipped_engine("meta-llama/Meta-Llama-3.1-8B", self.gpu, "vllm", 1)

    def policy(self) -> Policy:
        """The defaults of a PlannerPolicy, but for the objectives and what the budget allows."""
        spec = PlannerPolicySpec.model_validate(
            {
                "objectives": {
                    "ttftMs": self.objectives.ttft_ms,
                    "tpotMs": self.objectives.tpot_ms,
                    "ttftMsPerPromptToken": self.objectives.ttft_ms_per_prompt_token,
                },
                "budget": {"maxGpus": 16},
                "actions": {"scaleOut": {"leadSeconds": self.told_start_s}},
            }
        )
        return planner_policy(spec, prefill=Bounds(1, 12), decode=Bounds(1, 12))


@dataclass(frozen=True)
class Synthetic:
    """A shape of ``pointsman replay``, another one for each seed."""

    shape: str

    def __call__(self, seed: int) -> Trace:
        """Its requests."""
        return generate(named_shape(self.shape), seed)

    def segments(self, seed: int) -> list[Segment]:
        """The true rates that those of this seed were drawn from."""
        return named_shape(self.shape).segments(random.Random(seed))


def azure(seed: int) -> Trace:
    """Azure 2023 conversation, two copies of it at once, the first half hour. Seeds differ by noise and starts only."""
    trace = load_trace(DATA / "azure-llm-2023" / "AzureLLMInferenceTrace_conv.csv.xz", seed).trace
    return first(superposed(trace, 2), HALF_HOUR_S)


def mooncake(seed: int) -> Trace:
    """Mooncake conversation with its prefixes, the first half hour; the stamps' bins of 3 s are spread by the seed."""
    return first(load_trace(DATA / "mooncake" / "conversation_trace.jsonl.xz", seed).trace, HALF_HOUR_S)


CHAT = Objectives(ttft_ms=1500, tpot_ms=30)
SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("step", "3 to 14 requests/s of 4000+250, and back", Synthetic("step"), "a100_sxm", CHAT, (2, 2)),
        Scenario("mixshift", "7.5/s of 4000+100, then 15 of 500+600", Synthetic("mixshift"), "a100_sxm", CHAT, (4, 2)),
        Scenario("burst", "ten times the load for a minute", Synthetic("burst"), "a100_sxm", CHAT, (2, 2)),
        Scenario("ramp", "3 to 18 requests/s in 10 min, back in 5", Synthetic("ramp"), "a100_sxm", CHAT, (2, 2)),
        Scenario(
            "moon_conv",
            "Mooncake's long conversations, half an hour",
            mooncake,
            "a100_sxm",
            Objectives(ttft_ms=15_000, tpot_ms=40),
            (4, 4),
        ),
        Scenario(
            "azure_conv",
            "two copies of Azure's conversations, half an hour",
            azure,
            "l40s",
            Objectives(ttft_ms=2000, tpot_ms=50),
            (2, 3),
        ),
    )
}
FAST_START_S = 10.0  # a pool of workers kept warm, or a start from a snapshot
FAST = {
    what: replace(SCENARIOS[name], name=what, told_start_s=FAST_START_S)
    for name in ("step", "mixshift", "burst")
    for what in [f"{name} with starts of {FAST_START_S:.0f} s"]
}
"""What one sees with starts as fast as a role switch: not the cold starts of ``SCENARIOS``."""
RETURNING = {
    "onoff": Scenario(
        "onoff",
        "1.5 requests/s, 12 for half a minute every two minutes, both of random length",
        Synthetic("onoff:low=1.5,high=12,on_s=30,off_s=90,prompt_tokens=4000,output_tokens=250"),
        "a100_sxm",
        CHAT,
        (2, 2),
    )
}
"""Bursts that come back before a worker could start for one: only workers that stay between them can serve them."""

STEADY_LOADS = (
    ("a100_sxm", 4, 4000, 2, 2),
    ("a100_sxm", 6, 4000, 3, 3),
    ("a100_sxm", 7, 4000, 3, 3),
    ("a100_sxm", 8, 4000, 4, 4),
    ("a100_sxm", 9, 4000, 4, 4),
    ("a100_sxm", 10, 4000, 5, 5),
    ("a100_sxm", 12, 4000, 6, 6),
    ("a100_sxm", 13, 4000, 5, 6),
    ("h100_sxm", 20, 2000, 3, 4),
    ("h100_sxm", 30, 2000, 4, 5),
    ("h100_sxm", 40, 2000, 5, 6),
)
"""GPU, requests a second, prompt tokens, first layout. Which of them lies between two layouts, noise decides."""
STEADY_SEEDS = 40  # beyond the others': the first ones were looked at


def steady(rate: float, prompt_tokens: float) -> Synthetic:
    """One of ``STEADY_LOADS``, for half an hour."""
    return Synthetic(f"steady:rate={rate:g},prompt_tokens={prompt_tokens:g},duration_s={HALF_HOUR_S:g}")
