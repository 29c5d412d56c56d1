"""The simulator's prediction beside the real engine: ``make bench-predicted``.

A service of one prefill and one decode worker on the local cluster, each with a CPU limit of 0.6 cores so that both fit
on two cores beside the rest (else each would be slower while the other computes, which no accelerator is), is profiled
as a user does it. Seeded traces of Poisson arrivals are sent through its gateway twice each, with prompts that nobody
has seen, and the same traces are simulated with the profiled table. Judged are the means over all requests, and each
request for itself (the mean of the relative errors): the prediction's error may be 15 %, or one and a half times what
the two measured runs differ in the same way, whichever is more.
"""

import asyncio
import math
import random
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from bench.rows import Row, finish, options, repeated, row
from bench.services import one_of_each, served
from pointsman.local.cluster import LocalCluster
from pointsman.local.engine.models import ModelSize, ensure_model
from pointsman.local.traffic import Api, Endpoint, PrefillPath, Prompt, Record, open_loop
from pointsman.planner.core.types import Bounds, Objectives, Policy
from pointsman.planner.profile import command as profile
from pointsman.planner.replay.generators import generate, named_shape
from pointsman.planner.shipped_engines import table_engine, table_network
from pointsman.planner.simulator.baselines import PLANNERS
from pointsman.planner.simulator.simulate import simulate
from pointsman.planner.simulator.types import PrefillPlace, Result, Simulation, Trace
from pointsman.planner.table_files import Table, read_table

COMMAND: Final = "make bench-predicted"
SERVICE: Final = "predicted"
RUNS: Final = 2
LEAST_LIMIT: Final = 0.15
OF_DIFFERENCE: Final = 1.5
LOAD: Final = "steady:rate={rate},duration_s={seconds},prompt_tokens=600,output_tokens=40,length_cv=0.7"
MOST_PROMPT_TOKENS: Final = 2000
PREFILL_STEP_TOKENS: Final = 2048  # vLLM's default on CPU
NOT_LIMITED: Final = ("--field-selector=reason=CpuLimitNotKept", "-o", "jsonpath={.items[*].message}")
PROFILE_BOUNDS: Final = ("--max-prompt-tokens", "2048", "--max-batch", "8", "--gpu", "cpu")


@dataclass(frozen=True, slots=True)
class Means:
    """Over the requests of one run, milliseconds. ``remote``: share of prompts computed by the prefill worker.

    ``by_path``: mean TTFT of the prompts computed ``local`` and ``remote``. ``ttft_each``, ``tpot_each``: of each
    request, in the trace's order; NaN where an answer is one token.
    """

    ttft_ms: float
    tpot_ms: float
    remote: float
    by_path: Mapping[str, float] = field(default_factory=dict)
    ttft_each: Sequence[float] = ()
    tpot_each: Sequence[float] = ()


def main(argv: list[str]) -> int:
    """Profile, measure, predict, write the rows; 1 if the prediction is further off than it may be."""
    asked = options(
        COMMAND, __doc__, argv,
        seconds=(60.0, "of each trace"), rates=((0.4, 0.8), "requests a second, a trace each"),
        cores=("600m", 'CPU limit of each worker; "": none, both take what there is of this computer\'s'),
        minutes=(3.0, "of profiling"), seed=(1, "of the first trace"),
    )  # fmt: skip
    seeds = {asked.seed + number: rate for number, rate in enumerate(asked.rates)}
    traces = {seed: load(rate, asked.seconds, seed) for seed, rate in seeds.items()}
    table, runs_of = asyncio.run(measured(traces, asked.minutes, asked.cores or None))
    found = []
    for seed, trace in traces.items():
        runs, said = runs_of[seed], predicted(trace, table)
        for what, means in (*((f"measured, run {n}", run) for n, run in enumerate(runs, 1)), ("predicted", said)):
            paths = ", ".join(f"{path} {ms:.0f}" for path, ms in sorted(means.by_path.items()))
            print(
                f"{seeds[seed]:g} requests/s, {what}: TTFT {means.ttft_ms:.1f} ms ({paths}), "
                f"TPOT {means.tpot_ms:.2f} ms, {means.remote:.0%} computed remotely"
            )
        found += rows(runs, said, f"{len(trace)} requests at {seeds[seed]:g}/s", repeated(COMMAND, argv))
    return finish("predicted", found)


def load(rate: float, seconds: float, seed: int) -> Trace:
    """The trace, with prompts that the workers can hold."""
    made = generate(named_shape(LOAD.format(rate=rate, seconds=seconds)), seed)
    return replace(made, prompt_tokens=np.minimum(made.prompt_tokens, MOST_PROMPT_TOKENS))


def rows(runs: Sequence[Means], said: Means, requests: str, command: str = COMMAND) -> list[Row]:
    """For TTFT and for TPOT: the error of the mean, both means, and the mean of the errors of the single requests."""
    found = []
    both: tuple[tuple[str, Callable[[Means], float], Callable[[Means], Sequence[float]]], ...] = (
        ("TTFT", lambda means: means.ttft_ms, lambda means: means.ttft_each),
        ("TPOT", lambda means: means.tpot_ms, lambda means: means.tpot_each),
    )
    for name, measure, each_of in both:
        values = [measure(run) for run in runs]
        mean = statistics.fmean(values)
        limit = max(LEAST_LIMIT, OF_DIFFERENCE * (max(values) - min(values)) / mean)
        error = abs(measure(said) - mean) / mean
        each_error, differs = _of_each([each_of(run) for run in runs], each_of(said))
        each_limit = max(LEAST_LIMIT, OF_DIFFERENCE * differs)
        what = f"{name} of {requests}, predicted by the simulator"
        each = f"{name} of each of {requests}, predicted by the simulator: mean of the relative errors"
        share = partial(row, unit="of measured", command=command)
        found += [
            share(f"mean {what}: relative error", ours=[error], at_most=round(limit, 4)),
            row(
                f"mean {what}", "ms", [measure(said)] * len(values), values, peer_name="measured",
                at_most=round(1 + limit, 4), of_ratio=True, command=command,
            ),
            share(each, ours=[each_error], at_most=round(each_limit, 4)),
        ]  # fmt: skip
    return found


def _of_each(runs: Sequence[Sequence[float]], said: Sequence[float]) -> tuple[float, float]:
    """(mean error of the prediction of a single request, how much the runs differ: how well it can be known)."""
    seen = np.asarray(runs, dtype=float)
    mean = seen.mean(axis=0)
    differs = float(np.nanmean((seen.max(axis=0) - seen.min(axis=0)) / mean))
    return float(np.nanmean(np.abs(np.asarray(said, dtype=float) - mean) / mean)), differs


# --- measured ---


async def measured(
    traces: Mapping[int, Trace], minutes: float, cores: str | None
) -> tuple[Table, dict[int, list[Means]]]:
    """The table of the decode worker, and what clients saw in each run of each trace, by the trace's seed."""
    async with LocalCluster() as cluster:
        await asyncio.to_thread(cluster.install)
        manifest = one_of_each(SERVICE, ensure_model(cluster.environment, ModelSize.SMALL), cores)
        async with served(cluster, SERVICE, manifest) as (_, endpoint):
            if cores and (broken := await asyncio.to_thread(cluster.kubectl, "get", "events", *NOT_LIMITED)):
                raise RuntimeError(f'--cores {cores} is not kept here, "" measures without: {broken}')
            table = await asyncio.to_thread(_profiled, cluster.kubeconfig, minutes)
            # The first prompts that move shake hands, and the gateway opens its connections.
            await _sent(endpoint, load(rate=4, seconds=2, seed=min(traces) + 1), -1)
            runs = {
                seed: [means_of(await _sent(endpoint, trace, seed * RUNS + number)) for number in range(RUNS)]
                for seed, trace in traces.items()
            }
    return table, runs


def _profiled(kubeconfig: Path, minutes: float) -> Table:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "table.json"
        which = ["--service", SERVICE, "--kubeconfig", str(kubeconfig), "--minutes", str(minutes), *PROFILE_BOUNDS]
        ended = profile.main([*which, "--out", str(out)])
        if ended:
            raise RuntimeError(f"pointsman profile ended with {ended}")
        return read_table(out)


async def _sent(endpoint: Endpoint, trace: Trace, seed: int) -> list[Record]:
    rng = random.Random(f"prompts {seed}")
    requests = []
    for index, (at_s, length, output) in enumerate(
        zip(trace.arrival_s, trace.prompt_tokens, trace.output_tokens, strict=True)
    ):
        ids = tuple(rng.choices(range(3, 256), k=int(length)))
        prompt = Prompt(index, Api.COMPLETION, True, int(output), ignore_eos=True, token_ids=ids)
        requests.append((float(at_s), prompt))
    return await open_loop(endpoint, requests)


def means_of(records: Sequence[Record]) -> Means:
    """What clients saw. Raises RuntimeError if a request failed: the others' latencies would not be the trace's."""
    failed = [record.error for record in records if not record.served]
    if failed:
        raise RuntimeError(f"{len(failed)} of {len(records)} requests failed: {failed[0]}")
    in_order = sorted(records, key=lambda record: record.prompt.index)
    ttft_each = [record.token_seconds[0] * 1000 for record in in_order]
    tpot_each = [
        (record.token_seconds[-1] - record.token_seconds[0]) * 1000 / (record.prompt.max_tokens - 1)
        if record.prompt.max_tokens > 1
        else math.nan
        for record in in_order
    ]
    return Means(
        ttft_ms=statistics.fmean(ttft_each),
        tpot_ms=float(np.nanmean(tpot_each)),
        ttft_each=ttft_each,
        tpot_each=tpot_each,
        remote=statistics.fmean(record.path is PrefillPath.REMOTE for record in records),
        by_path={
            path.value: statistics.fmean(r.token_seconds[0] for r in records if r.path is path) * 1000
            for path in PrefillPath
            if any(record.path is path for record in records)
        },
    )


# --- predicted ---


def predicted(trace: Trace, table: Table) -> Means:
    """The same trace in the simulator: the profiled engine, no noise, the layout of the service, nobody plans.

    The simulated first token is the engine's; a client has it later by what the profile saw requests wait beside it.
    """
    engine = replace(table_engine(table), max_batched_tokens=PREFILL_STEP_TOKENS)
    simulation = Simulation(engine, prefill_workers=1, decode_workers=1, network=table_network(table))
    policy = Policy(objectives=Objectives(1e6, 1e6), max_gpus=2, prefill=Bounds(1, 1), decode=Bounds(1, 1))
    found = means_of_result(simulate(trace, simulation, policy, PLANNERS["static"]()))
    late_ms = table.document.request_overhead_ms or 0.0
    by_path = {path: ms + late_ms for path, ms in found.by_path.items()}
    ttft_each = [ms + late_ms for ms in found.ttft_each]
    return replace(found, ttft_ms=found.ttft_ms + late_ms, by_path=by_path, ttft_each=ttft_each)


def means_of_result(result: Result) -> Means:
    """The same means of a simulated run."""
    return Means(
        ttft_ms=float(np.mean(result.ttft_s)) * 1000,
        tpot_ms=float(np.nanmean(result.tpot_s)) * 1000,
        remote=float(np.mean(result.prefilled == PrefillPlace.REMOTE)),
        ttft_each=[float(seconds) * 1000 for seconds in result.ttft_s],
        tpot_each=[float(seconds) * 1000 for seconds in result.tpot_s],
        by_path={
            place.name.lower(): float(np.mean(result.ttft_s[result.prefilled == place])) * 1000
            for place in (PrefillPlace.LOCAL, PrefillPlace.REMOTE)
            if (result.prefilled == place).any()
        },
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
