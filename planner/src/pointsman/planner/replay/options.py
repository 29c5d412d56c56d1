"""What ``pointsman replay`` is told."""

import argparse
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pointsman.planner.replay.comparison import parse_tolerance
from pointsman.planner.replay.generators import SHAPES
from pointsman.planner.replay.trace_files import TimeUnit
from pointsman.process.arguments import CommandParser, output_file

_DESCRIPTION: Final = """\
Run a trace through a simulated service, with the planner and the policy file that are used live. Prints attainment,
goodput, GPU-hours, latencies, switches, and the reason of each decision. Needs no cluster and no GPU.
"""
_EPILOG: Final = """\
examples:
  pointsman replay --trace step --policy examples/policies/chat.yaml
  pointsman replay --trace mixshift:at_s=300,duration_s=600 --policy chat.yaml --html report.html
  pointsman replay --trace bench/data/azure-llm-2023/AzureLLMInferenceTrace_conv.csv.xz --policy chat.yaml \\
                   --model meta-llama/Meta-Llama-3.1-8B --gpu h100_sxm --startup-seconds 120 --json before.json
  pointsman replay --trace chat.jsonl --policy chat.yaml --table chat.json      the engine as 'profile' measured it
  pointsman replay … --compare before.json --fail-if-worse 1%        exit status 1 if the policy became worse
  pointsman replay … --sweep budget.maxGpus=8,12,16                  one row a value, any field of the policy
  pointsman replay … --sweep startup-seconds=30,120,300 --sweep objectives.ttftMs=500,1500
  pointsman replay --trace step:images=3 --policy chat.yaml --encode-milliseconds 80    requests with images
  pointsman replay --trace day.jsonl --policy chat.yaml --group long-chat.yaml          an elastic group

exit status: 0 well, 1 worse than the baseline, 2 something given cannot be used, 70 an internal error of Pointsman
"""


@dataclass(frozen=True, slots=True)
class Sweep:
    """One thing to vary: a field of the policy by its path, or an option by its name."""

    key: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Options:
    """The choices of one command."""

    trace: str
    policy: Path
    model: str | None = None
    gpu: str | None = None
    engine: str | None = None
    tp: int | None = None
    table: Path | None = None
    max_sequences: int | None = None  # None: as the table's source has it
    workers: tuple[int, int] | None = None
    planner: str = "pointsman"
    seed: int = 1
    startup_s: float = 120.0
    switch_s: float = 2.0
    speed: float = 1.0
    copies: int = 1
    first_s: float | None = None
    block_tokens: int | None = None  # of one id of a prompt's blocks; None: as the trace says or shows
    time_unit: TimeUnit | None = None  # of numbers that are times; None: as the trace's format has it
    accept_times: bool = False
    engine_factors: tuple[float, float] | None = None  # None: as the table's source asks for
    noise: float = 0.08
    prefix_hit_share: float = 0.0
    metric_dropout: float = 0.0
    start_failures: float = 0.0
    switch_failures: float = 0.0
    encode_ms: float | None = None  # of an encode worker's time, for one image
    encode_workers: int | None = None
    encode_bounds: tuple[int, int] | None = None
    encode_gpus: int | None = None
    group: Path | None = None  # an elastic group in place of a service
    instances: int | None = None  # of a group at the start; None: as its spec has it
    step_s: tuple[float, float] | None = None  # of a group's decode step, and of each request in it; None: of a plan
    json: Path | None = None
    html: Path | None = None
    svg: Path | None = None
    compare: Path | None = None
    fail_if_worse: float | None = None
    sweeps: tuple[Sweep, ...] = ()


SWEPT_OPTIONS: Final = (
    "startup-seconds",
    "switch-seconds",
    "seed",
    "speed",
    "copies",
    "workers",
    "instances",
    "planner",
)
"""Options that may be varied beside the policy's fields."""
_OF_SERVICES: Final = (
    "table", "model", "gpu", "engine", "tp", "max_sequences", "engine_factors", "workers", "encode_milliseconds",
)  # fmt: skip
"""Options that say nothing of an elastic group."""


def parse(argv: list[str]) -> Options:
    """The options on a command line; exits with a usage message for a wrong one."""
    parser = _parser()
    given = parser.parse_args(argv)
    if given.fail_if_worse is not None and given.compare is None:
        parser.error("--fail-if-worse needs --compare FILE")
    if given.table is not None and (given.model or given.gpu or given.engine or given.tp):
        parser.error("--table FILE is the engine: --model, --gpu, --engine and --tp choose a shipped one instead")
    workers, encode_workers = given.workers or (None, None)
    if given.encode_milliseconds is None:
        if encode_workers is not None:
            parser.error("--workers with encode workers needs --encode-milliseconds MS, the time for one image")
        for flag in ("encode_workers", "encode_bounds", "encode_gpus"):
            if getattr(given, flag) is not None:
                parser.error(f"--{flag.replace('_', '-')} needs --encode-milliseconds MS, the time for one image")
    if given.encode_workers is not None and encode_workers not in (None, given.encode_workers):
        parser.error(
            f"--workers has {encode_workers} encode workers, --encode-workers {given.encode_workers}: write one"
        )
    if given.group is not None:
        for name in _OF_SERVICES:
            if getattr(given, name) is not None:
                parser.error(f"--{name.replace('_', '-')} applies to services only; with --group, the file sets it")
        if given.prefix_hits:
            parser.error("--prefix-hits applies to services only: an elastic group has no prefix cache")
    elif given.instances is not None or given.step_milliseconds is not None:
        parser.error("--instances and --step-milliseconds apply to elastic groups only: they need --group FILE")
    if given.sweep and (given.compare or given.html or given.svg):
        parser.error("--sweep goes with --json only: it makes a table, not one report")
    return Options(
        trace=given.trace, policy=given.policy, model=given.model, gpu=given.gpu, engine=given.engine, tp=given.tp,
        workers=workers, planner=given.planner, seed=given.seed, startup_s=given.startup_seconds,
        switch_s=given.switch_seconds, speed=given.speed, copies=given.copies, first_s=given.first_seconds,
        block_tokens=given.block_tokens, time_unit=given.time_unit, accept_times=given.accept_times,
        table=given.table, max_sequences=given.max_sequences, engine_factors=given.engine_factors, noise=given.noise,
        prefix_hit_share=given.prefix_hits, metric_dropout=given.metric_dropout,
        encode_ms=given.encode_milliseconds, encode_workers=given.encode_workers or encode_workers,
        encode_bounds=given.encode_bounds, encode_gpus=given.encode_gpus,
        group=given.group, instances=given.instances,
        step_s=given.step_milliseconds and tuple(each / 1000 for each in given.step_milliseconds),
        start_failures=given.start_failures, switch_failures=given.switch_failures, json=given.json, html=given.html,
        svg=given.svg, compare=given.compare, fail_if_worse=given.fail_if_worse, sweeps=tuple(given.sweep),
    )  # fmt: skip


def parse_workers(text: str) -> tuple[tuple[int, int], int | None]:
    """``2P4D`` as ((2, 4), None), ``3E2P4D`` as ((2, 4), 3). Raises ValueError for anything else, and for a role
    without a worker."""
    found = re.fullmatch(r"(?:(\d+)E)?(\d+)P(\d+)D", text, re.IGNORECASE)
    if found is None or any(number is not None and int(number) == 0 for number in found.groups()):
        raise ValueError(
            f"'{text}' is no layout; write 2P4D for two prefill and four decode workers, or 3E2P4D with three encode "
            "workers, at least one each"
        )
    return (int(found[2]), int(found[3])), None if found[1] is None else int(found[1])


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="pointsman replay",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    add = parser.add_argument
    add(
        "--trace",
        required=True,
        metavar="FILE|NAME",
        help=f"a Mooncake, Azure or own trace, or one of: {', '.join(SHAPES)} (with parameters: step:high=20)",
    )
    add("--policy", required=True, type=Path, metavar="FILE", help="a PlannerPolicy, with or without kind and metadata")

    engine = parser.add_argument_group("the simulated engine", "default: the policy's performance.table").add_argument
    engine("--table", type=Path, metavar="FILE", help="a table of your own, made by 'pointsman profile'")
    engine("--model", metavar="NAME", help="e.g. meta-llama/Meta-Llama-3.1-8B")
    engine("--gpu", metavar="NAME", help="e.g. h100_sxm")
    engine("--engine", metavar="NAME", help="vllm or sglang (default: the policy's, or vllm)")
    engine("--tp", type=_whole, metavar="N", help="tensor-parallel size: GPUs of one worker")
    engine(
        "--max-sequences",
        type=_whole,
        metavar="N",
        help=("most requests that one worker decodes at once, vLLM's --max-num-seqs (default: 256, or from --table)"),
    )
    engine(
        "--engine-factors",
        type=_factors,
        metavar="P,D",
        help=(
            "factors by which the real engine is slower than the table, in prefill and decode (default: "
            "1.15,1.2; 1,1 with --table)"
        ),
    )
    engine("--noise", type=_share, default=0.08, metavar="SHARE", help="spread of its times (default: 0.08)")

    service = parser.add_argument_group("the service and its surroundings").add_argument
    service(
        "--workers",
        type=_layout,
        metavar="nPmD",
        help="layout at the start, with encode workers e.g. 3E2P4D (default: the smallest in the budget)",
    )
    service("--startup-seconds", type=_seconds, default=120.0, metavar="S", help="a new worker takes (default: 120)")
    service("--switch-seconds", type=_seconds, default=2.0, metavar="S", help="a switch takes, drained (default: 2)")
    service(
        "--prefix-hits",
        type=_share,
        default=0.0,
        metavar="SHARE",
        help="cached share of each prompt, for traces without that column (default: 0)",
    )
    service("--metric-dropout", type=_share, default=0.0, metavar="SHARE", help="scrapes that fail (default: 0)")
    service("--start-failures", type=_share, default=0.0, metavar="SHARE", help="worker starts that fail (default: 0)")
    service("--switch-failures", type=_share, default=0.0, metavar="SHARE", help="switches that fail (default: 0)")
    service("--planner", default="pointsman", metavar="NAME", help="or a baseline: docs/planner/replay.md")

    images = parser.add_argument_group(
        "encode workers", "for requests with images: a third pool, which makes their embeddings before the prefill"
    ).add_argument
    images("--encode-milliseconds", type=_factor, metavar="MS", help="a worker takes for one image; without: no pool")
    images("--encode-workers", type=_whole, metavar="N", help="at the start (default: the least of the bounds)")
    images("--encode-bounds", type=_bounds, metavar="A-B", help="least and most (default: 1 to the rest of the budget)")
    images("--encode-gpus", type=_whole, metavar="N", help="of one worker (default: 1)")

    group = parser.add_argument_group(
        "an elastic group", "in place of a service; the options of engines, workers and switches are not used"
    ).add_argument
    group(
        "--group", type=Path, metavar="FILE", help="output of 'kubectl get eg NAME -o yaml', if possible with its plans"
    )
    group("--instances", type=_whole, metavar="N", help="at the start (default: the group's spec.instances.replicas)")
    group(
        "--step-milliseconds",
        type=_step,
        metavar="A,B",
        help="a decode step takes A, and B for each request in it (default: as the newest plan has it)",
    )

    load = parser.add_argument_group("the load").add_argument
    load("--seed", type=int, default=1, metavar="N", help="of everything random (default: 1)")
    load("--speed", type=_factor, default=1.0, metavar="X", help="replay the trace X times as fast (default: 1)")
    load(
        "--copies", type=_whole, default=1, metavar="N", help="N shifted copies at once: N times the rate (default: 1)"
    )
    load("--first-seconds", type=_seconds, metavar="S", help="only the first S seconds")
    load(
        "--time-unit",
        type=TimeUnit,
        choices=list(TimeUnit),
        help="of the times in a Mooncake file (default: ms) or a recording (default: s)",
    )
    load("--accept-times", action="store_true", help="replay a file with suspicious times")
    load(
        "--block-tokens",
        type=_whole,
        metavar="N",
        help=(
            "tokens for each id in hash_ids of a Mooncake file (default: 512, or estimated from their "
            "number; for a recording from its first line)"
        ),
    )

    out = parser.add_argument_group("output").add_argument
    out("--json", type=output_file, metavar="FILE", help="everything, for --compare and other programs")
    out("--html", type=output_file, metavar="FILE", help="a report with pictures, in one file")
    out("--svg", type=output_file, metavar="FILE", help="its pictures alone")
    out("--compare", type=Path, metavar="FILE", help="a --json of before: print the difference")
    out("--fail-if-worse", type=_tolerance, metavar="X%", help="exit status 1 if worse than that by more than X%%")
    out(
        "--sweep",
        type=_sweep,
        action="append",
        default=[],
        metavar="KEY=A,B,…",
        help=f"a row for every value; KEY is a field of the policy or one of {', '.join(SWEPT_OPTIONS)}; repeatable",
    )
    return parser  # fmt: skip


# --- values; argparse shows the message of an ArgumentTypeError ---


def _number(text: str, *, least: float, what: str, above: bool = False, most: float = 1e9) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value <= most or (above and value == least):
        raise argparse.ArgumentTypeError(f"'{text}' is {what}")
    return value


def _seconds(text: str) -> float:
    return _number(text, least=0, what="no number of seconds")


def _factor(text: str) -> float:
    return _number(text, least=0, above=True, what="no number above 0")


def _share(text: str) -> float:
    return _number(text, least=0, most=1, what="no share of 0 to 1")


def _whole(text: str) -> int:
    value = _number(text, least=1, what="no whole number of 1 or more")
    if value != int(value):
        raise argparse.ArgumentTypeError(f"'{text}' is no whole number of 1 or more")
    return int(value)


def _bounds(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)-(\d+)", text)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise argparse.ArgumentTypeError(f"'{text}': write 1-6 for one worker at least and six at most")
    return int(found[1]), int(found[2])


def _factors(text: str) -> tuple[float, float]:
    parts = text.split(",")
    if len(parts) != 2:
        raise argparse.ArgumentTypeError(f"'{text}': two factors are needed, e.g. 1.15,1.2")
    return _factor(parts[0]), _factor(parts[1])


def _step(text: str) -> tuple[float, float]:
    parts = text.split(",")
    if len(parts) != 2:
        raise argparse.ArgumentTypeError(f"'{text}': two times are needed, e.g. 12,0.2")
    fixed, each = (_number(part, least=0, what="no number of milliseconds") for part in parts)
    return fixed, each


def _layout(text: str) -> tuple[tuple[int, int], int | None]:
    try:
        return parse_workers(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _tolerance(text: str) -> float:
    try:
        return parse_tolerance(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is no share such as 1%") from None


def _sweep(text: str) -> Sweep:
    key, equals, values = text.partition("=")
    found = tuple(value.strip() for value in values.split(",") if value.strip())
    if not equals or not key or not found:
        raise argparse.ArgumentTypeError(f"'{text}': write KEY=A,B,C")
    return Sweep(key.strip(), found)
