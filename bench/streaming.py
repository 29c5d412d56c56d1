"""The prefill token budget's effect on running streams: ``make bench-streaming``.

roseinfer's streaming benchmark on real vLLM: two local engines, one without and one with ``--prefill-max-tokens``, get
the same workload in turns. While one is measured the other is idle. 32 requests may be active, as in roseinfer, whose
batch of 8 is of decoding ones that take turns.
"""

import asyncio
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

from bench.rows import Row, finish, options, row
from bench.services import known
from pointsman.local.streaming.client import Target, run
from pointsman.local.streaming.engine import SERVED_NAME, EngineKnobs, local_engine
from pointsman.local.streaming.figures import Figures, figures
from pointsman.local.streaming.workload import Workload

COMMAND = "make bench-streaming"
WITHOUT = "no budget"
BUDGET_TOKENS = 224
WORKLOAD = Workload(
    prompt="Hello", repeats=(1, 1, 1, 64), unique=True, requests=32, interval_s=0.02, max_new_tokens=32,
    stop_on_eos=False,
)  # fmt: skip
ITL_RATIO = 0.75
NOT_WORSE = 1.0


def main(argv: list[str]) -> int:
    """Measure, write the rows; 1 if a target was missed."""
    asked = options(COMMAND, __doc__, argv, rounds=(7, "runs of either engine"))
    return finish("streaming", asyncio.run(measure(asked.rounds)))


async def measure(rounds: int) -> list[Row]:
    """The rows. Raises RuntimeError when a request failed: its latencies would mean nothing."""
    knobs = {
        budget: EngineKnobs(max_batch_size=32, prefill_max_batch_size=32, prefill_max_tokens=budget)
        for budget in (None, BUDGET_TOKENS)
    }
    found: dict[int | None, list[Figures]] = {budget: [] for budget in knobs}
    async with AsyncExitStack() as stack:
        urls = {budget: await stack.enter_async_context(local_engine(each, print)) for budget, each in knobs.items()}
        for number in range(-1, rounds):  # the first round warms up
            for budget, url in urls.items():
                measured = await run(Target(url, SERVED_NAME), WORKLOAD, timeout_s=300, on_end=lambda _: None)
                failed = [sample.error for sample in measured.samples if sample.error is not None]
                if failed:
                    raise RuntimeError(f"{len(failed)} requests failed, the first: {failed[0]}")
                each = figures(
                    measured.samples, submit_wall_s=measured.submit_wall_s, total_wall_s=measured.total_wall_s
                )
                latencies = f"ITL p99 {each.itl.p99:.0f} ms, TTFT p99 {each.ttft.p99:.0f} ms"
                print(f"round {number + 1}, budget {budget}: {latencies}")
                if number >= 0:
                    found[budget].append(each)

    mix = f"3 short prompts to 1 long, a budget of {BUDGET_TOKENS} tokens"
    of: tuple[tuple[str, str, Callable[[Figures], float | None], dict[str, Any]], ...] = (
        (f"ITL p99, {mix}", "ms", lambda each: each.itl.p99, {"at_most": ITL_RATIO}),
        ("TTFT p99 of the same", "ms", lambda each: each.ttft.p99, {"at_most": NOT_WORSE}),
        ("throughput of the same", "tokens/s", lambda each: each.throughput, {"at_least": NOT_WORSE}),
    )
    return [
        row(
            name, unit, *([known(value(each)) for each in found[side]] for side in (BUDGET_TOKENS, None)),
            peer_name=WITHOUT, of_ratio=True, command=COMMAND, **target,
        )
        for name, unit, value, target in of
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
