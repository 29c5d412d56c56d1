"""The prefill token budget's effect on running streams: ``make bench-streaming``.

roseinfer's streaming benchmark on real vLLM: two local engines, one without and one with ``--prefill-max-tokens``, get
the same workload in turns. While one is measured the other is idle. 32 requests may be active, as in roseinfer, whose
batch of 8 is of decoding ones that take turns.
"""

import asyncio
import sys
from contextlib import AsyncExitStack

from bench.rows import Row, finish, listed, options
from pointsman.local.streaming.client import Target, run
from pointsman.local.streaming.engine import SERVED_NAME, EngineKnobs, local_engine
from pointsman.local.streaming.figures import Figures, figures
from pointsman.local.streaming.workload import Workload

COMMAND = "make bench-streaming"
BUDGET_TOKENS = 224
WORKLOAD = Workload(
    prompt="Hello", repeats=(1, 1, 1, 64), unique=True, requests=32, interval_s=0.02, max_new_tokens=32,
    stop_on_eos=False,
)  # fmt: skip


def main(argv: list[str]) -> int:
    """Measure, write the rows; 1 if a target was missed."""
    asked = options(COMMAND, __doc__, argv, rounds=(7, "runs of either engine"))
    return finish("streaming", rows(*asyncio.run(measure(asked.rounds))))


async def measure(rounds: int) -> tuple[list[Figures], list[Figures]]:
    """With and without the budget. Raises RuntimeError when a request failed: its latencies would mean nothing."""
    found: dict[int | None, list[Figures]] = {None: [], BUDGET_TOKENS: []}
    async with AsyncExitStack() as stack:
        urls = {}
        for budget in found:
            knobs = EngineKnobs(max_batch_size=32, prefill_max_batch_size=32, prefill_max_tokens=budget)
            urls[budget] = await stack.enter_async_context(local_engine(knobs, print))
        for number in range(-1, rounds):  # the first round warms up
            for budget, url in urls.items():
                told = await run(Target(url, SERVED_NAME), WORKLOAD, timeout_s=300, on_end=lambda _: None)
                each = figures(told.samples, submit_wall_s=told.submit_wall_s, total_wall_s=told.total_wall_s)
                if each.failed:
                    raise RuntimeError(f"{each.failed} requests failed: {[sample.error for sample in told.samples]}")
                print(f"round {number + 1}, budget {budget}: ITL p99 {each.itl.p99} ms, TTFT p99 {each.ttft.p99} ms")
                found[budget] += [each] * (number >= 0)
    return found[BUDGET_TOKENS], found[None]


def rows(budget: list[Figures], without: list[Figures]) -> list[Row]:
    """The rows of the benchmark."""
    ours, peer = (
        [{"itl_p99": each.itl.p99, "ttft_p99": each.ttft.p99, "throughput": each.throughput} for each in side]
        for side in (budget, without)
    )
    return listed("streaming", COMMAND, ours, peer, budget=BUDGET_TOKENS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
