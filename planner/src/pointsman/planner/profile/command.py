"""``pointsman profile``: measure a worker, write its table, say what is in it."""

import asyncio
import json
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from pointsman.kube.errors import KubeError
from pointsman.planner.errors import PlannerError, ProfileError
from pointsman.planner.profile.document import document
from pointsman.planner.profile.find import decode_worker
from pointsman.planner.profile.fitting import missing
from pointsman.planner.profile.measure import Measurement
from pointsman.planner.profile.options import Options, parse
from pointsman.planner.profile.points import rounds
from pointsman.planner.profile.types import Measured, Point, WorkerFacts
from pointsman.planner.profile.worker import LiveWorker
from pointsman.planner.table_files import parse_table

EXIT_UNUSABLE: Final = 2
EXIT_INTERRUPTED: Final = 130


def main(argv: list[str]) -> int:
    """Measure a live worker and write its performance table."""
    options = parse(argv)
    try:
        made = asyncio.run(profiled(options))
        text = json.dumps(made, indent=1) + "\n"
        parse_table(text, str(options.out))  # what is written can be read, or nothing is
        options.out.write_text(text, encoding="utf-8")
    except (PlannerError, KubeError) as error:
        print(f"pointsman profile: {error}", file=sys.stderr)
        return EXIT_UNUSABLE
    except OSError as error:
        print(f"pointsman profile: {options.out}: it cannot be written: {error.strerror}", file=sys.stderr)
        return EXIT_UNUSABLE
    except KeyboardInterrupt:
        print("pointsman profile: interrupted; nothing is written", file=sys.stderr)
        return EXIT_INTERRUPTED
    print("\n".join(told(made)))
    print(f"wrote {options.out}; try it with: pointsman replay --table {options.out} --trace step --policy …")
    return 0


async def profiled(options: Options) -> dict[str, Any]:
    """The table's document. Raises ProfileError, or KubeError where a service is to be found."""
    seed = secrets.randbits(32) if options.seed is None else options.seed
    url = options.url
    if url is None:
        name, url = await decode_worker(options.service or "", options.namespace, options.kubeconfig)
        print(f"profiling {name} at {url}", file=sys.stderr)
    async with LiveWorker(url, model=options.served_model, seed=seed) as worker:
        facts = await worker.facts()
        measured = await _measured(worker, facts, options)
    lacking = missing(measured.prefills, measured.steps)
    if lacking is not None:
        raise ProfileError(
            f"in {options.minutes:g} minutes only {lacking} were measured, too few for a table; give more --minutes"
        )
    return document(measured, options, datetime.now(UTC))


async def _measured(worker: LiveWorker, facts: WorkerFacts, options: Options) -> Measured:
    points = rounds(facts, most_prompt_tokens=options.most_prompt_tokens, most_batch=options.most_batch, transfers=True)
    with _bar(options.minutes * 60) as on_point:
        return await Measurement(worker, facts).run(points, seconds=options.minutes * 60, on_point=on_point)


def told(made: dict[str, Any]) -> list[str]:
    """What a table says, in lines."""
    fit, measured = made["fit"], made["measured"]
    lines = [
        f"{made['model']} on {made['system']}: KV of {made['kv_capacity_tokens']} tokens"
        + (f", {made['kv_bytes_per_token']} bytes each" if made["kv_bytes_per_token"] else ", of unknown size"),
        f"prefill {fit['prefill']['a']:.2f} ms + {fit['prefill']['b'] * 1000:.1f} ms per 1000 tokens + "
        f"{fit['prefill']['c'] * 5e5:.2f} ms per square of that (within {fit['prefill']['error']:.0%}); "
        f"{measured['prefills']} measured",
        f"decode step {fit['decode']['d0']:.2f} ms + {fit['decode']['d1']:.3f} ms a sequence + "
        f"{fit['decode']['d2'] * 1000:.3f} ms per 1000 tokens of KV (within {fit['decode']['error']:.0%}); "
        f"{measured['decode_steps']} steps in {measured['decode_batches']} batches",
    ]
    transfer = made["kv_transfer"]
    lines.append(
        f"KV from a prefill worker: {transfer['hop_ms']:.1f} ms + {transfer['bytes_per_second'] / 1e9:.3g} GB/s"
        if transfer
        else "KV from a prefill worker: not seen; a replay assumes a fast network"
    )
    if made["max_batch"]:
        lines.append(f"it runs {made['max_batch']} sequences at once")
    if measured["disturbed"]:
        lines.append(f"{measured['disturbed']} measurements were disturbed by other requests and are not counted")
    return lines


@contextmanager
def _bar(seconds: float) -> Iterator[Callable[[Point], None]]:
    """A progress bar over the time that was given, on a terminal only."""
    columns = (TextColumn("{task.description:<42}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
    screen = Console(stderr=True)
    began_s = time.monotonic()
    with Progress(*columns, TimeElapsedColumn(), console=screen, transient=True, disable=not screen.is_terminal) as bar:
        task = bar.add_task("warming up", total=seconds)
        yield lambda point: bar.update(task, completed=time.monotonic() - began_s, description=str(point))
