"""From options to a result: the trace, the engine, the surroundings and the planner of one replay."""

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import yaml

from pointsman.api.v1alpha1.plannerpolicy import Mode, PerformanceTable, PlannerPolicySpec
from pointsman.api.v1alpha1.removed import removed_fields
from pointsman.planner.core.types import Bounds, Decision, Policy
from pointsman.planner.core.unreachable_objectives import out_of_reach, unreachable_share
from pointsman.planner.errors import ReplayError, TraceError, UnknownTable
from pointsman.planner.performance_tables import ENGINE, table_names
from pointsman.planner.policies import planner_policy
from pointsman.planner.replay import summary
from pointsman.planner.replay.generators import described, generate, named_shape
from pointsman.planner.replay.group_files import load_group
from pointsman.planner.replay.group_run import assumptions, run_group
from pointsman.planner.replay.options import Options
from pointsman.planner.replay.policy_files import PolicyFile
from pointsman.planner.replay.requests import faster, first, superposed
from pointsman.planner.replay.trace_files import load_trace
from pointsman.planner.shipped_engines import shipped_engine, table_engine, table_network
from pointsman.planner.simulator.baselines import PLANNERS
from pointsman.planner.simulator.elastic.types import GroupResult
from pointsman.planner.simulator.simulate import simulate
from pointsman.planner.simulator.types import (
    EncodePool,
    Engine,
    Faults,
    Leads,
    Network,
    Outcome,
    Planner,
    PrefixCache,
    Result,
    Simulation,
    Trace,
    Truth,
)
from pointsman.planner.table_files import read_table

COMPOSED_FACTORS: Final = (1.15, 1.2)  # shipped tables are composed from kernels' times, and optimistic
MEASURED_FACTORS: Final = (1.0, 1.0)
DEFAULT_TABLE: Final = PerformanceTable(model="meta-llama/Meta-Llama-3.1-8B", gpu="h100_sxm", tp=1)
"""The engine of a replay whose policy and options name none."""
PLAN_ENCODE: Final = ("pointsman", "static")
"""Planners that may be given an encode pool: the others are as published, for two pools."""

Progress = Callable[[float], None]
"""Called now and then with the simulated seconds since the trace's start."""


@dataclass(frozen=True, slots=True)
class Replay:
    """One run and what it was run with."""

    result: Result | GroupResult
    trace_digest: str
    simulation: dict[str, object]
    document: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Load:
    """A trace and what was assumed to make it one."""

    trace: Trace
    notes: tuple[str, ...]


def load(options: Options) -> Load:
    """The trace the options ask for. Raises TraceError."""
    path = Path(options.trace)
    if path.exists() or "/" in options.trace:
        loaded = load_trace(
            path,
            options.seed,
            _of_file_s(options),
            options.block_tokens,
            options.time_unit,
            options.accept_times,
        )
        trace, notes = loaded.trace, list(loaded.notes)
    else:
        shape = named_shape(options.trace)
        trace, notes = generate(shape, options.seed), [f"it is synthetic: {described(shape)}"]
    if options.block_tokens is not None:
        if trace.prefix_blocks is None:
            raise TraceError(f"{options.trace}: --block-tokens is of ids of prompts' blocks, and it has none")
        notes.append(f"each block id of its prompts stands for {options.block_tokens} tokens (--block-tokens)")
    if options.copies > 1:
        notes.append(f"{options.copies} copies of it at once, each begun at another point")
    if options.speed != 1:
        notes.append(f"played {options.speed:g} times as fast")
    trace = faster(superposed(trace, options.copies), options.speed)
    if options.first_s is not None:
        trace = first(trace, options.first_s)
        notes.append(f"only its first {options.first_s:g} s")
    return Load(trace, tuple(notes))


def _of_file_s(options: Options) -> float | None:
    """Seconds of the file that are needed; None: all, for copies begin at other points of it."""
    return None if options.first_s is None or options.copies > 1 else options.first_s * options.speed


def replay(options: Options, policy: PolicyFile, load: Load, command: str, progress: Progress) -> Replay:
    """Simulate. Raises ReplayError, UnknownTable or PolicyFileError for what cannot be used."""
    if options.group is not None:
        group = load_group(options.group)
        of_group, described = run_group(options, policy, group, load.trace, progress)
        assumed = [*assumptions(options, group), *_refused(of_group, "the instances of the group")]
        return _replay(options, policy, load, of_group, described, assumed, command)
    simulation, described = _simulation(options, policy.spec)
    if load.trace.images is not None and simulation.encode is None:
        raise ReplayError(
            f"{load.trace.name}: {int((load.trace.images > 0).sum())} requests have images, "
            f"{int(load.trace.images.sum())} in all; give the time for one as --encode-milliseconds MS"
        )
    core = _core_policy(options, policy.spec, simulation)
    result = simulate(load.trace, simulation, core, _planner(options.planner), progress=progress)
    assumed = [
        *_assumed_engine(options, policy.spec),
        *_start(options, simulation),
        *_missed(result),
        *_refused(result, _limit(simulation.engine)),
    ]
    return _replay(options, policy, load, result, described, assumed, command)


def _replay(
    options: Options,
    policy: PolicyFile,
    load: Load,
    result: Result | GroupResult,
    described: dict[str, object],
    assumed: list[str],
    command: str,
) -> Replay:
    digest = summary.digest(load.trace)
    document = summary.document(
        result,
        trace={
            "name": load.trace.name,
            "given": options.trace,
            "requests": len(load.trace),
            **({"images": int(load.trace.images.sum())} if load.trace.images is not None else {}),
            "duration_s": round(load.trace.duration_s, 3),
            "digest": digest,
            "notes": [*load.notes, *_ignored(policy.spec), *assumed],
        },
        policy={"name": policy.name, "text": _text(policy), "spec": policy.spec.model_dump(by_alias=True, mode="json")},
        simulation={**described, "planner": options.planner},
        command=command,
    )
    return Replay(result, digest, described, document)


def _ignored(spec: PlannerPolicySpec) -> list[str]:
    """Fields of the version before that were set, as a cluster reports them in the condition Accepted."""
    fields = removed_fields(spec)
    return [f"this version ignores fields of the policy: {', '.join(fields)}"] if fields else []


def _missed(result: Result) -> list[str]:
    """Objectives that no layout meets, by the mean of the planner's estimates over all requests. On a live service the
    condition PlannerHealthy has the estimate of the moment."""
    numbered = [made.decision for made in result.decisions if made.decision.inputs]
    if not numbered:
        return []
    of_some = result.unreachable
    last = numbered[-1] if of_some is None else _with_share(of_some, _mean_unreachable(result))
    sentence = out_of_reach(last, result.objectives, said=False)
    return [] if sentence is None else [f"objectives are out of reach: {sentence}"]


def _mean_unreachable(result: Result) -> float:
    """Of all requests that came while the planner had an estimate."""
    seen = [(p.unreachable_share, p.arrivals) for p in result.timeline if p.unreachable_share is not None]
    return sum(share * came for share, came in seen) / max(1, sum(came for _, came in seen))


def _with_share(decision: Decision, share: float) -> Decision:
    """The decision with another share of requests that miss an objective even if they are alone."""
    times, names = share / unreachable_share(decision), ("unreachableTtftShare", "unreachableTpotShare")
    return replace(decision, inputs=tuple((n, times * value if n in names else value) for n, value in decision.inputs))


def _refused(result: Result | GroupResult, limit: str) -> list[str]:
    """Why requests are refused."""
    number = int((result.outcome == Outcome.REFUSED).sum())
    return [f"requests refused: {number}; prompt and answer do not fit into {limit}"] if number else []


def _limit(engine: Engine) -> str:
    """What prompt and answer of a request must fit into."""
    if engine.kv_capacity_tokens < engine.max_context_tokens:
        return f"the {engine.kv_capacity_tokens} tokens of a worker's KV cache"
    return f"{engine.max_context_tokens} tokens, the longest context of a simulated engine"


def _assumed_engine(options: Options, spec: PlannerPolicySpec) -> list[str]:
    """Which engine was assumed where nobody named one."""
    named = (options.table, options.model, options.gpu, options.engine, options.tp, spec.performance.table)
    if any(each is not None for each in named):
        return []
    table = DEFAULT_TABLE
    return [
        f"the policy has no performance.table: the engine is assumed to be {table.model} on {table.gpu} "
        f"({ENGINE}, TP {table.tp}); --model and --gpu, or --table, choose another"
    ]


def _start(options: Options, simulation: Simulation) -> list[str]:
    """What was assumed of the layout at the start."""
    if options.workers is not None:
        return []
    encode = f"{simulation.encode.workers}E" if simulation.encode is not None else ""
    layout = f"{encode}{simulation.prefill_workers}P{simulation.decode_workers}D"
    return [f"starts with {layout}, the fewest workers of the budget; --workers sets another layout"]


def _simulation(options: Options, spec: PlannerPolicySpec) -> tuple[Simulation, dict[str, object]]:
    chosen = _engine(options, spec)
    engine = chosen.engine
    if options.max_sequences is not None:
        engine = replace(engine, max_batch=options.max_sequences)
    most = spec.budget.max_gpus // engine.gpus
    if most < 2:
        raise ReplayError(
            f"budget.maxGpus is {spec.budget.max_gpus}: two workers of {engine.gpus} GPUs are needed, one of each role"
        )
    prefill, decode = options.workers or _smallest(spec, engine.gpus)
    if prefill + decode > most:
        raise ReplayError(
            f"--workers {prefill}P{decode}D needs {(prefill + decode) * engine.gpus} GPUs, "
            f"budget.maxGpus is {spec.budget.max_gpus}"
        )
    encode = _encode_pool(options, spec, (prefill + decode) * engine.gpus)
    simulation = Simulation(
        engine=engine,
        prefill_workers=prefill,
        decode_workers=decode,
        network=chosen.network,
        truth=Truth(*chosen.factors, options.noise),
        leads=Leads(start_s=options.startup_s, flip_s=options.switch_s),
        prefix_cache=PrefixCache(assumed_hit_share=options.prefix_hit_share),
        faults=Faults(
            start_failure_share=options.start_failures,
            switch_failure_share=options.switch_failures,
            metric_dropout_share=options.metric_dropout,
        ),
        encode=encode,
        seed=options.seed,
    )
    described: dict[str, object] = {
        **chosen.described,
        "max_sequences": engine.max_batch,
        "prefill_workers": prefill,
        "decode_workers": decode,
        "startup_s": options.startup_s,
        "switch_s": options.switch_s,
        "prefill_factor": chosen.factors[0],
        "decode_factor": chosen.factors[1],
        "noise": options.noise,
        "prefix_hit_share": options.prefix_hit_share,
        "metric_dropout": options.metric_dropout,
        "start_failures": options.start_failures,
        "switch_failures": options.switch_failures,
        "seed": options.seed,
    }
    if encode is not None:
        described |= {"encode_ms": encode.image_ms, "encode_workers": encode.workers, "encode_gpus": encode.gpus}
    return simulation, described


def _encode_pool(options: Options, spec: PlannerPolicySpec, others_gpus: int) -> EncodePool | None:
    """The pool the options ask for. Raises ReplayError where the budget has no room for it, or nobody plans it."""
    if options.encode_ms is None:
        return None
    if options.planner not in PLAN_ENCODE:
        known = " or ".join(PLAN_ENCODE)
        raise ReplayError(
            f"--planner {options.planner} does not plan encode workers: with --encode-milliseconds, use {known}"
        )
    bounds, gpus = options.encode_bounds, options.encode_gpus or 1
    workers = options.encode_workers or (bounds[0] if bounds else 1)
    if bounds and not bounds[0] <= workers <= bounds[1]:
        raise ReplayError(
            f"{workers} encode workers at the start are not within --encode-bounds {bounds[0]}-{bounds[1]}"
        )
    if others_gpus + workers * gpus > spec.budget.max_gpus:
        raise ReplayError(
            f"{workers} encode worker(s) of {gpus} GPU(s) and {others_gpus} GPUs of the others at the start: "
            f"budget.maxGpus is {spec.budget.max_gpus}"
        )
    return EncodePool(options.encode_ms, workers, gpus)


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The engine of a replay, how far the real one is from its table, and its name in the document."""

    engine: Engine
    network: Network
    factors: tuple[float, float]
    described: dict[str, object]


def _engine(options: Options, spec: PlannerPolicySpec) -> _Chosen:
    """Raises ReplayError, UnknownTable or TableError for one that cannot be had."""
    if options.table is not None:
        own = read_table(options.table)
        found = own.document
        described: dict[str, object] = {
            "model": found.model, "gpu": found.system, "engine": found.backend, "tp": found.tp,
            "table": hashlib.sha256(found.model_dump_json().encode()).hexdigest()[:16],
        }  # fmt: skip
        return _Chosen(table_engine(own), table_network(own), options.engine_factors or MEASURED_FACTORS, described)
    table = spec.performance.table
    if spec.performance.config_map is not None and not (options.model and options.gpu):
        raise ReplayError(
            f"performance.configMap is '{spec.performance.config_map.name}', which is in a cluster: --table FILE gives "
            "the same table as a file"
        )
    if table is None and not (options.model or options.gpu or options.engine or options.tp):
        table = DEFAULT_TABLE
    model = options.model or (table.model if table else None)
    gpu = options.gpu or (table.gpu if table else None)
    if model is None or gpu is None:
        missing = " and ".join(flag for flag, value in (("--model", model), ("--gpu", gpu)) if value is None)
        verb = "are" if " and " in missing else "is"
        raise ReplayError(
            f"{missing} {verb} needed, or --table: the policy names no performance.table; "
            f"shipped are {', '.join(_matching(options))}"
        )
    engine = options.engine or ENGINE
    tp = options.tp or (table.tp if table else 1)
    try:
        shipped = shipped_engine(model, gpu, engine, tp)
    except UnknownTable as error:
        if not (options.model or options.gpu or options.engine or options.tp):
            raise  # it is the policy's, as the message has it
        told = str(error).removeprefix("performance.table is ")
        raise ReplayError(f"--model, --gpu, --engine and --tp make {told}") from None
    return _Chosen(
        shipped,
        Network(),
        options.engine_factors or COMPOSED_FACTORS,
        {"model": model, "gpu": gpu, "engine": engine, "tp": tp},
    )


def _matching(options: Options) -> list[str]:
    """The shipped tables that the options which were given leave."""
    given = (options.model and options.model.rsplit("/", 1)[-1], options.gpu, options.engine)
    names = [name for name in table_names() if all(part is None or part in name.split() for part in given)]
    return names or list(table_names())


def _smallest(spec: PlannerPolicySpec, gpus: int) -> tuple[int, int]:
    """The fewest workers the budget allows, a third of them for prefill."""
    workers = max(2, math.ceil(spec.budget.min_gpus / gpus))
    prefill = max(1, workers // 3)
    return prefill, workers - prefill


def _core_policy(options: Options, spec: PlannerPolicySpec, simulation: Simulation) -> Policy:
    """Each pool may take what the budget leaves beside one worker of each other.

    Whatever the policy's mode, decisions are carried out: a replay shows what they would bring.
    """
    gpus, encode, bounds = spec.budget.max_gpus, simulation.encode, None
    if encode is not None:
        rest = (gpus - 2 * simulation.engine.gpus) // encode.gpus
        bounds = Bounds(*(options.encode_bounds or (1, max(encode.workers, rest))))
        gpus -= bounds.least * encode.gpus
    most = max(1, gpus // simulation.engine.gpus - 1)
    return replace(planner_policy(spec, Bounds(1, most), Bounds(1, most)), mode=Mode.ACTIVE, encode=bounds)


def _planner(name: str) -> Planner:
    if name not in PLANNERS:
        raise ReplayError(f"--planner is '{name}'; known: {', '.join(PLANNERS)}")
    return PLANNERS[name]()


def _text(policy: PolicyFile) -> str:
    document = policy.document
    spec = document["spec"] if isinstance(document.get("spec"), dict) else document
    return yaml.safe_dump(dict(spec), sort_keys=False, default_flow_style=False, width=100)
