"""``pointsman bench streaming``: measure streamed answers of any OpenAI endpoint, or of a local engine it starts."""

import argparse
import asyncio
import os
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from pointsman.local.engine.models import ModelSize
from pointsman.local.errors import LocalError
from pointsman.local.streaming import result_file
from pointsman.local.streaming.client import Run, Target, only_model, run
from pointsman.local.streaming.engine import SERVED_NAME, EngineKnobs, local_engine
from pointsman.local.streaming.figures import LATENCIES, Figures, Sample, differences, figures
from pointsman.local.streaming.page import page
from pointsman.local.streaming.result_file import Result
from pointsman.local.streaming.workload import Workload
from pointsman.process.arguments import CommandParser

API_KEY: Final = "OPENAI_API_KEY"
ENGINE_ONLY: Final = ("max_batch_size", "prefill_max_batch_size", "prefill_max_tokens", "model_size")

_DESCRIPTION: Final = """\
Submit streamed completions at a steady interval and report time to first token (TTFT), time per output token (TPOT),
inter-token latency (ITL), latency and throughput. Give --url for any OpenAI endpoint; without it a local vLLM server
(CPU, a small random model) is started with the batch sizes and the prefill token budget given here.
"""
_EPILOG: Final = """\
examples:
  # an endpoint: three short prompts, then a long one, 20 ms apart
  pointsman bench streaming --url http://chat-gateway:8000/v1 --prompt Hello --prompt-repeats 1,1,1,64 \\
      --unique-prompts --num-requests 32 --submit-interval-ms 20 --max-new-tokens 32 --no-stop-on-eos

  # a local engine without and with a prefill token budget, and the difference
  pointsman bench streaming --prompt Hello --prompt-repeats 1,1,1,64 --num-requests 32 --submit-interval-ms 20 \\
      --prefill-max-batch-size 32 --max-new-tokens 32 --no-stop-on-eos --json before.json
  pointsman bench streaming ... --prefill-max-tokens 224 --json after.json
  pointsman bench streaming --compare before.json after.json --html compare.html

The key in the environment variable OPENAI_API_KEY, if set, is sent to --url. Exit status: 0 all requests were answered,
1 some failed, 2 wrong usage or an endpoint that cannot be used.
"""


def main(argv: list[str]) -> int:
    """Measure the latencies of streamed answers of an OpenAI endpoint or of a local engine."""
    parser = CommandParser(prog="pointsman bench", description=main.__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    streaming = commands.add_parser(
        "streaming", help="streamed answers under a mix of short and long prompts", description=_DESCRIPTION,
        epilog=_EPILOG,
    )  # fmt: skip
    _add_options(streaming)
    options = parser.parse_args(argv)
    console = Console(stderr=True)
    try:
        if options.compare is not None:
            return _compare(options)
        _check(streaming, options)
        return asyncio.run(_measure(options, console))
    except LocalError as error:
        print(f"pointsman: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"pointsman: cannot write the result: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--url", metavar="URL", help="an OpenAI endpoint, up to and including /v1 (default: start a local engine)")
    add("--model", metavar="NAME", help="model to request (default: the first that the endpoint lists)")
    add("--prompt", metavar="TEXT", help="the base prompt (required to measure)")
    add("--prompt-repeats", type=_repeats, default=(1,), metavar="N,N,...",
        help="repeats of the base prompt, cycled over the requests: 1,1,1,64 is three short, one long")  # fmt: skip
    add("--unique-prompts", action="store_true", help="append the request's number to its prompt")
    add("--num-requests", type=_whole, default=16, metavar="N", help="streamed requests (default: 16)")
    add("--submit-interval-ms", type=_milliseconds, default=0.0, metavar="MS",
        help="pause between two submissions (default: 0)")  # fmt: skip
    add("--max-new-tokens", type=_whole, default=64, metavar="N", help="output tokens per request (default: 64)")
    add("--no-stop-on-eos", action="store_true", help="exactly --max-new-tokens each (vLLM's ignore_eos)")
    add("--timeout-seconds", type=_whole, default=600, metavar="S", help="limit of one request (default: 600)")
    engine = parser.add_argument_group("local engine")
    engine.add_argument(
        "--model-size", type=ModelSize, choices=list(ModelSize), help="default: small (26 M parameters)"
    )
    engine.add_argument("--max-batch-size", type=_whole, metavar="N", help="sequences that run at a time (default: 8)")
    engine.add_argument("--prefill-max-batch-size", type=_whole, metavar="N",
        help="prompts that one step may admit (default: --max-batch-size)")  # fmt: skip
    engine.add_argument("--prefill-max-tokens", type=_whole, metavar="N",
        help="prompt tokens that one step may admit; a longer prompt goes alone (default: unlimited)")  # fmt: skip
    output = parser.add_argument_group("output")
    output.add_argument("--json", type=Path, metavar="FILE", help="write every request and the figures as JSON")
    output.add_argument("--html", type=Path, metavar="FILE", help="write a page with pictures")
    output.add_argument("--compare", nargs=2, type=Path, metavar=("BEFORE", "AFTER"),
        help="measure nothing; compare two JSON files of earlier runs")  # fmt: skip


def _check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    if not options.prompt:
        parser.error("--prompt is missing or empty; give the base prompt, or --compare two results")
    if options.url is not None:
        if not options.url.startswith(("http://", "https://")):
            parser.error(f"--url is {options.url!r}; it must begin with http:// or https://")
        for name in ENGINE_ONLY:
            if getattr(options, name) is not None:
                parser.error(f"--{name.replace('_', '-')} is for the local engine; leave it out with --url")


async def _measure(options: argparse.Namespace, console: Console) -> int:
    workload = Workload(
        prompt=options.prompt,
        repeats=options.prompt_repeats,
        unique=options.unique_prompts,
        requests=options.num_requests,
        interval_s=options.submit_interval_ms / 1000,
        max_new_tokens=options.max_new_tokens,
        stop_on_eos=not options.no_stop_on_eos,
    )
    key = os.environ.get(API_KEY) if options.url is not None else None
    async with AsyncExitStack() as stack:
        if options.url is None:
            url = await stack.enter_async_context(local_engine(_knobs(options), console.print))
            target, endpoint = Target(url, SERVED_NAME), "a local vLLM server (CPU)"
        else:
            url = options.url.rstrip("/")
            target, endpoint = Target(url, options.model or await only_model(url, key), key), url
        measured = await _with_progress(target, workload, options.timeout_seconds, console)
    found = figures(measured.samples, submit_wall_s=measured.submit_wall_s, total_wall_s=measured.total_wall_s)
    result = Result(endpoint, target.model, _settings(options), found, measured.samples)
    _print(found, endpoint, target.model)
    if options.json is not None:
        result_file.write(result, options.json)
    if options.html is not None:
        options.html.write_text(page([(options.html.stem, result)]))
    errors = sorted({sample.error for sample in measured.samples if sample.error is not None})
    for error in errors[:5]:
        print(f"pointsman: a request failed: {error}", file=sys.stderr)
    return 1 if errors else 0


async def _with_progress(target: Target, workload: Workload, timeout_s: float, console: Console) -> Run:
    if not console.is_terminal:
        return await run(target, workload, timeout_s=timeout_s, on_end=lambda _: None)
    columns = (TextColumn("answered"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=workload.requests)

        def ended(_: Sample) -> None:
            progress.advance(task)

        return await run(target, workload, timeout_s=timeout_s, on_end=ended)


def _knobs(options: argparse.Namespace) -> EngineKnobs:
    return EngineKnobs(
        size=options.model_size or ModelSize.SMALL,
        max_batch_size=options.max_batch_size or 8,
        prefill_max_batch_size=options.prefill_max_batch_size,
        prefill_max_tokens=options.prefill_max_tokens,
    )


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    left_out = {"command", "url", "model", "json", "html", "compare", "timeout_seconds"}
    return {
        name: str(value) if isinstance(value, ModelSize) else value
        for name, value in vars(options).items()
        if name not in left_out
    }


def _print(found: Figures, endpoint: str, model: str) -> None:
    console = Console()
    console.print(f"Streaming benchmark: {model} at {endpoint}", highlight=False, markup=False)
    console.print(f"Requests: {found.requests}, {found.failed} failed", highlight=False)
    console.print(f"Prompt tokens (total): {_count(found.prompt_tokens)}", highlight=False)
    console.print(f"Completion tokens (total): {_count(found.completion_tokens)}", highlight=False)
    console.print(f"Submit wall: {found.submit_wall_s:.3f} s", highlight=False)
    table = Table("", "p50", "p95", "p99", "unit")
    for field, label in LATENCIES.items():
        at = getattr(found, field)
        table.add_row(label, *map(_number, (at.p50, at.p95, at.p99)), "ms/token" if field == "tpot" else "ms")
    console.print(table)
    console.print(f"Throughput: {_number(found.throughput)} completion tokens/s", highlight=False)


def _compare(options: argparse.Namespace) -> int:
    paths = options.compare
    before, after = (result_file.read(path) for path in paths)
    names = [path.stem for path in paths]
    if names[0] == names[1]:
        names = [str(path) for path in paths]
    changed = [
        f"{name} {before.settings.get(name)} -> {after.settings.get(name)}"
        for name in sorted({*before.settings, *after.settings})
        if before.settings.get(name) != after.settings.get(name)
    ]
    console = Console()
    console.print(f"Changed settings: {'; '.join(changed) or 'none'}", highlight=False, markup=False)
    table = Table("", *names, "ratio", "")
    for each in differences(before.figures, after.figures):
        ratio = each.ratio
        better = ratio is not None and abs(ratio - 1) >= 0.005 and (ratio < 1) == each.lower_is_better
        worse = ratio is not None and abs(ratio - 1) >= 0.005 and not better
        table.add_row(
            f"{each.name} ({each.unit})", _number(each.before), _number(each.after),
            "unknown" if ratio is None else f"{ratio:.2f}", "better" if better else "worse" if worse else "",
        )  # fmt: skip
    console.print(table)
    if options.html is not None:
        options.html.write_text(page([(names[0], before), (names[1], after)]))
    return 0


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.2f}"


def _count(value: int | None) -> str:
    return "unknown" if value is None else str(value)


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number of at least 1")
    return int(text)


def _milliseconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 3_600_000:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number of milliseconds from 0 to one hour")
    return value


def _repeats(text: str) -> tuple[int, ...]:
    return tuple(_whole(part.strip()) for part in text.split(","))
