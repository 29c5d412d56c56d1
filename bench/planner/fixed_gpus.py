"""Six GPUs that are always there, and a mix that moves: what role switches, the threshold and flow control are worth.

No worker starts or stops, so GPU-hours are the same for everybody but the Dynamo-like planner. It has no role switch:
it removes a worker of one role and starts one of the other on the freed GPU.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Final

from bench.planner import robust
from bench.planner.cells import ABLATION, OURS, STATIC, Measurement, Run, judged, run_of
from bench.planner.scenarios import DATA, SCENARIOS, Scenario
from bench.rows import Row
from pointsman.planner.core.types import Bounds, Objectives, Policy
from pointsman.planner.replay.requests import Arrived, faster, first, superposed, trace_of
from pointsman.planner.replay.trace_files import load_trace
from pointsman.planner.simulator.baselines.arrow import arrow
from pointsman.planner.simulator.baselines.dynamo import dynamo
from pointsman.planner.simulator.baselines.layouts import ALL_REMOTE
from pointsman.planner.simulator.baselines.pointsman import ours, without
from pointsman.planner.simulator.baselines.static import static
from pointsman.planner.simulator.simulate import simulate
from pointsman.planner.simulator.types import FIRST_ROUTING, Planner, Result, Simulation, Trace

GPUS: Final = 6
CHANGING: Final = "changing mix on 6 GPUs"
PARTS: Final = ("role switch", "threshold", "flow control")
LONG_S, SHORT_S = 900.0, 180.0  # of the pieces of the splice
LONG_SPEED, SHORT_COPIES = 0.7, 14
SHARE_S: Final = 30.0  # of the picture: requests within objectives are counted over so many seconds of arrivals


@dataclass(frozen=True)
class Load:
    """A scenario that six GPUs serve: nothing starts or stops."""

    scenario: Scenario

    @property
    def name(self) -> str:
        """As cells have it."""
        return self.scenario.name

    def policy(self) -> Policy:
        """The scenario's, with a budget of the GPUs that there are and without scaling."""
        each = Bounds(1, GPUS - 1)
        return replace(self.restarting(), prefill=each, decode=each, scale_out=False, scale_in=False)

    def restarting(self) -> Policy:
        """The same for who can only remove one worker and start another."""
        each = Bounds(1, GPUS - 1)
        return replace(self.scenario.policy(), max_gpus=GPUS, prefill=each, decode=each)


def spliced(seed: int) -> Trace:
    """Mooncake's long conversations, Azure's short ones, and Mooncake's again.

    Each piece is scaled so that its best split of six GPUs is about right: Mooncake's recorded rate times
    ``LONG_SPEED``, ``SHORT_COPIES`` copies of Azure's.
    """
    long = faster(load_trace(DATA / "mooncake" / "conversation_trace.jsonl.xz", seed).trace, LONG_SPEED)
    azure = load_trace(DATA / "azure-llm-2023" / "AzureLLMInferenceTrace_conv.csv.xz", seed).trace
    short = first(superposed(azure, SHORT_COPIES), SHORT_S)
    prefixes = long.prefix_blocks or ((),) * len(long)
    requests = [
        Arrived(at_s if at_s < LONG_S else at_s + SHORT_S, prompt, output, blocks)
        for at_s, prompt, output, blocks in zip(
            long.arrival_s.tolist(), long.prompt_tokens.tolist(), long.output_tokens.tolist(), prefixes, strict=True
        )
        if at_s < 2 * LONG_S
    ]
    requests += [
        Arrived(LONG_S + at_s, prompt, output)
        for at_s, prompt, output in zip(
            short.arrival_s.tolist(), short.prompt_tokens.tolist(), short.output_tokens.tolist(), strict=True
        )
    ]
    return trace_of("spliced", requests, long.block_tokens)


LOADS: Final = {
    load.name: load
    for load in (
        Load(
            replace(
                robust.CHANGING,
                name="full changing mix on 6 GPUs",
                trace=partial(robust.changing, rates=",rate=10,later_rate=20"),
                note=f"10 requests/s of 4000+100 tokens and 20 of 500+600 in turns of {robust.CHANGES_S:.0f} s: each "
                "is served by some split of six GPUs, and no split serves both",
            )
        ),
        Load(
            replace(
                robust.CHANGING,
                name=CHANGING,
                note=f"7.5 requests/s of 4000+100 tokens and 15 of 500+600 in turns of {robust.CHANGES_S:.0f} s: "
                "three quarters of the load above, which 3P3D serves",
            )
        ),
        Load(
            replace(
                SCENARIOS["mixshift"],
                name="mixshift on 6 GPUs",
                note="7.5 requests/s of 4000+100 tokens for ten minutes, then 15 of 500+600",
            )
        ),
        Load(
            Scenario(
                "real traces on 6 GPUs",
                f"Mooncake's long conversations for {LONG_S / 60:.0f} min ({LONG_SPEED:g} times as fast as recorded), "
                f"Azure's short ones for {SHORT_S / 60:.0f} min ({SHORT_COPIES} copies at once), and Mooncake's again",
                spliced,
                "h100_sxm",
                Objectives(ttft_ms=3000, tpot_ms=14, ttft_ms_per_prompt_token=0.3),
                (3, 3),
            )
        ),
    )
}


def picture_name(load: str) -> str:
    """Of a load's picture."""
    return f"planner-{load.lower().replace(' ', '-')}.svg"


# --- runs ---


def cases(name: str, seed: int) -> Iterator[Measurement]:
    """All planners of one load and seed, from the same first layout; best static has the split that serves most."""
    load = LOADS[name]
    trace, simulation, policy = load.scenario.trace(seed), load.scenario.simulation(seed), load.policy()

    def of(planner: Planner, rules: Policy = policy, note: str = "") -> Measurement:
        return planner.name, lambda: _run(load, seed, planner.name, simulate(trace, simulation, rules, planner), note)

    @cache
    def fixed() -> tuple[str, Result]:
        return _best_split(trace, simulation, policy)

    prefill, decode = load.scenario.layout
    yield of(ours())
    yield from (of(without(part)) for part in PARTS)
    yield STATIC, lambda: _run(load, seed, STATIC, fixed()[1], fixed()[0])
    yield of(static(), note=f"the first layout, {prefill}P{decode}D")
    yield of(arrow())
    yield of(dynamo(), load.restarting())


def _best_split(trace: Trace, simulation: Simulation, policy: Policy) -> tuple[str, Result]:
    """(what it is, what it gave): of each split with each prompt sent to prefill workers, or with the first rule."""
    tried = {}
    for prefill, routing in itertools.product(range(1, GPUS), (ALL_REMOTE, FIRST_ROUTING)):
        layout = replace(simulation, prefill_workers=prefill, decode_workers=GPUS - prefill, routing=routing)
        split = f"{prefill}P{GPUS - prefill}D"
        what = split if routing is ALL_REMOTE else f"{split}, threshold {routing.max_local_prefill_tokens}"
        tried[what] = simulate(trace, layout, policy, static())
    return max(tried.items(), key=lambda each: each[1].attainment)


def _run(load: Load, seed: int, planner: str, result: Result, note: str = "") -> Run:
    run = run_of(load.name, seed, planner, result, note)
    return replace(run, layouts=_layouts(result), shares=_shares(result)) if planner in (OURS, STATIC) else run


def _layouts(result: Result) -> str:
    """When other workers serve than before, e.g. ``0 4P2D, 155 3P2D, 160 3P3D``."""
    points: list[str] = []
    before = ""
    for point in result.timeline:
        layout = f"{point.prefill_active}P{point.decode_active}D"
        if layout != before:
            points.append(f"{point.at_s if points else 0:g} {layout}")
            before = layout
    return ", ".join(points)


def _shares(result: Result) -> str:
    """Of each ``SHARE_S`` of arrivals, within objectives: ``1 0.98 -``; a stroke where none arrived."""
    met, slot = result.met, (result.arrival_s // SHARE_S).astype(int)
    return " ".join(
        f"{met[here].mean():.3g}" if (here := slot == number).any() else "-" for number in range(int(slot.max()) + 1)
    )


# --- rows ---


def rows(found: dict[str, dict[str, list[Run]]], budget: Sequence[Run]) -> Iterator[Row]:
    """Each load beside everybody; and the changing mix with ``budget``, the runs of a budget of 16 GPUs and scaling."""
    beside = partial(judged, of_ratio=True)
    for name in LOADS:
        of_load = found.get(name, {})
        mine = of_load.get(OURS, [])
        if mine:
            yield judged(f"{name}: share of requests within objectives", mine, at_least=0.95)
        for who, theirs in of_load.items():
            here = [run for run in mine if run.seed in {run.seed for run in theirs}]
            if here and who != OURS:
                kind = "ablation" if who.startswith(ABLATION) else "same GPUs"
                yield beside(f"{name}: share within objectives, {kind}", here, theirs, peer_name=who, at_least=1.0)
    mine = found.get(CHANGING, {}).get(OURS, [])
    both = [(a, b) for a in budget for b in mine if a.seed == b.seed]
    if both:
        sides = [a for a, _ in both], [b for _, b in both]
        name, peer = "changing mix, budget of 16 GPUs", f"{GPUS} fixed GPUs"
        yield beside(f"{name}: share within objectives", *sides, peer_name=peer, at_least=1.0)
        yield beside(f"{name}: GPU-hours", *sides, of="gpu_hours", unit="h", peer_name=peer, at_most=1.0)
