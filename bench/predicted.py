"""The simulator's prediction beside the real engine: ``make bench-predicted``.

A service of one prefill and one decode worker on the local cluster, each with a CPU limit of 0.6 cores so that both fit
on two cores beside the rest (else each would be slower while the other computes, which no accelerator is), is profiled
as a user does it. Seeded traces of Poisson arrivals are sent through its gateway twice each, with prompts that nobody
has seen, and the same traces are simulated with the profiled table. Judged are the means over all requests, and each
request for itself (the mean of the relative errors): the prediction's error may be 15 %, or one and a half times what
the two measured runs differ in the same way, whichever is more.
"""

import asyncio
import random
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench.rows import Row, finish, options, repeated, row
from bench.services import serve
from pointsman.api.v1alpha1.engine_flags import ENGINE_CONTAINER
from pointsman.local.cluster import LocalCluster
from pointsman.local.engine.models import ModelSize, ensure_model
from pointsman.local.quickstart.examples import read_example, with_model
from pointsman.local.traffic import Api, Endpoint, Prompt, Record, open_loop
from pointsman.planner.core.types import Bounds, Objectives, Policy
from pointsman.planner.profile import command as profile
from pointsman.planner.replay.generators import generate, named_shape
from pointsman.planner.shipped_engines import table_engine, table_network
from pointsman.planner.simulator.baselines import PLANNERS
from pointsman.planner.simulator.simulate import simulate
from pointsman.planner.simulator.types import Floats, Simulation, Trace
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
Latencies = Mapping[str, Floats]
"""TTFT and TPOT of each request in milliseconds, in the trace's order; NaN where an answer is one token."""


def main(argv: list[str]) -> int:
    """Profile, measure, predict, write the rows; 1 if the prediction is further off than it may be."""
    asked = options(
        COMMAND, __doc__, argv,
        seconds=(60.0, "of each trace"), rates=((0.4, 0.8), "requests a second, a trace each"),
        cores=("600m", 'CPU limit of each worker; "": none, both take what there is of this computer\'s'),
        minutes=(3.0, "of profiling"), seed=(1, "of the first trace"),
    )  # fmt: skip
    traces = {rate: load(rate, asked.seconds, seed) for seed, rate in enumerate(asked.rates, asked.seed)}
    table, runs = measured(traces, asked.minutes, asked.cores)
    found: list[Row] = []
    for rate, trace in traces.items():
        what = f"{len(trace)} requests at {rate:g}/s, predicted by the simulator"
        found += rows(runs[rate], predicted(trace, table), what, repeated(COMMAND, argv))
    return finish("predicted", found)


def load(rate: float, seconds: float, seed: int) -> Trace:
    """The trace, with prompts that the workers can hold."""
    made = generate(named_shape(LOAD.format(rate=rate, seconds=seconds)), seed)
    return replace(made, prompt_tokens=np.minimum(made.prompt_tokens, MOST_PROMPT_TOKENS))


def rows(runs: Sequence[Latencies], said: Latencies, what: str, command: str = COMMAND) -> Iterator[Row]:
    """For TTFT and for TPOT: the error of the mean, both means, and the mean of the errors of the single requests."""
    for name in said:
        each = np.array([run[name] for run in runs])
        means, mean_said = np.nanmean(each, axis=1), float(np.nanmean(said[name]))
        error, limit = _error(means, mean_said)
        each_error, each_limit = _error(each, said[name])
        share = partial(row, unit="of measured", command=command)
        yield share(f"mean {name} of {what}: relative error", ours=[error], at_most=limit)
        yield row(
            f"mean {name} of {what}", "ms", [mean_said] * len(runs), [*map(float, means)], peer_name="measured",
            at_most=round(1 + limit, 4), of_ratio=True, command=command,
        )  # fmt: skip
        yield share(f"{name} of each of {what}: mean of the relative errors", ours=[each_error], at_most=each_limit)


def _error(runs: Floats, said: Floats | float) -> tuple[float, float]:
    """(the mean relative error of what was said, how much it may be: by how much the runs differ)."""
    mean = runs.mean(axis=0)
    differs = np.nanmean((runs.max(axis=0) - runs.min(axis=0)) / mean)
    error = np.nanmean(np.abs(said - mean) / mean)
    return float(error), round(max(LEAST_LIMIT, OF_DIFFERENCE * float(differs)), 4)


# --- measured ---


def measured(traces: Mapping[float, Trace], minutes: float, cores: str) -> tuple[Table, dict[float, list[Latencies]]]:
    """The table of the decode worker, and what clients saw in each run of each trace, by its rate."""
    with LocalCluster() as cluster:
        cluster.install()
        url = serve(cluster, one_of_each(ensure_model(cluster.environment, ModelSize.SMALL), cores))
        if cores and (broken := cluster.kubectl("get", "events", *NOT_LIMITED)):
            raise RuntimeError(f'--cores {cores} is not kept here, "" measures without: {broken}')
        table = _profiled(cluster.kubeconfig, minutes)
        return table, asyncio.run(_runs(url, traces))


def one_of_each(model: Path, cores: str) -> dict[str, Any]:
    """The quick start's example on one prefill and one decode worker with this CPU limit, without a planner."""
    manifest = with_model(read_example(), model)
    manifest["metadata"] = {"name": SERVICE}
    manifest["spec"]["model"]["servedName"] = SERVICE
    manifest["spec"]["pools"] |= {role: {"replicas": 1} for role in ("prefill", "decode")}
    if cores:
        limited = {"name": ENGINE_CONTAINER, "resources": {"limits": {"cpu": cores}}}
        manifest["spec"]["worker"]["template"] = {"spec": {"containers": [limited]}}
    return manifest


async def _runs(url: str, traces: Mapping[float, Trace]) -> dict[float, list[Latencies]]:
    async with Endpoint(url, SERVICE) as endpoint:
        # The first prompts that move shake hands, and the gateway opens its connections.
        await _sent(endpoint, load(rate=4, seconds=2, seed=0), "warm")
        return {
            rate: [latencies(await _sent(endpoint, trace, f"{rate} {number}")) for number in range(RUNS)]
            for rate, trace in traces.items()
        }


def _profiled(kubeconfig: Path, minutes: float) -> Table:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "table.json"
        which = ["--service", SERVICE, "--kubeconfig", str(kubeconfig), "--minutes", str(minutes), *PROFILE_BOUNDS]
        if ended := profile.main([*which, "--out", str(out)]):
            raise RuntimeError(f"pointsman profile ended with {ended}")
        return read_table(out)


async def _sent(endpoint: Endpoint, trace: Trace, seed: str) -> list[Record]:
    """The trace, with prompts that nobody has seen."""
    rng = random.Random(f"prompts {seed}")
    requests = []
    each = zip(trace.arrival_s, trace.prompt_tokens, trace.output_tokens, strict=True)
    for index, (at_s, length, output) in enumerate(each):
        ids = tuple(rng.choices(range(3, 256), k=int(length)))
        prompt = Prompt(index, Api.COMPLETION, True, int(output), ignore_eos=True, token_ids=ids)
        requests.append((float(at_s), prompt))
    return await open_loop(endpoint, requests)


def latencies(records: Sequence[Record]) -> Latencies:
    """What clients saw. Raises RuntimeError if a request failed: the others' latencies would not be the trace's."""
    failed = [record.error for record in records if not record.served]
    if failed:
        raise RuntimeError(f"{len(failed)} of {len(records)} requests failed: {failed[0]}")
    in_order = sorted(records, key=lambda record: record.prompt.index)
    first_s, last_s = (np.array([record.token_seconds[at] for record in in_order]) for at in (0, -1))
    steps = np.array([float(record.prompt.max_tokens - 1) for record in in_order])
    return {"TTFT": first_s * 1000, "TPOT": (last_s - first_s) * 1000 / np.where(steps > 0, steps, np.nan)}


# --- predicted ---


def predicted(trace: Trace, table: Table) -> Latencies:
    """The same trace in the simulator: the profiled engine, no noise, the layout of the service, nobody plans.

    The simulated first token is the engine's; a client has it later by what the profile saw requests wait beside it.
    """
    engine = replace(table_engine(table), max_batched_tokens=PREFILL_STEP_TOKENS)
    simulation = Simulation(engine, prefill_workers=1, decode_workers=1, network=table_network(table))
    policy = Policy(objectives=Objectives(1e6, 1e6), max_gpus=2, prefill=Bounds(1, 1), decode=Bounds(1, 1))
    result = simulate(trace, simulation, policy, PLANNERS["static"]())
    return {"TTFT": result.ttft_s * 1000 + (table.document.request_overhead_ms or 0.0), "TPOT": result.tpot_s * 1000}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
