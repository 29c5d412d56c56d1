"""What it brings that members attend over the keys at hand while queries travel: decode steps, timed."""

import statistics
from pathlib import Path
from typing import Final

from bench.elastic.instances import Instances, prompt, running_instances
from bench.rows import Row, row
from pointsman.local.engine.environment import EngineEnvironment
from pointsman.serving.elastic.iterations import Step

PAIRS: Final = 30
BATCH: Final = 4
CONTEXT_TOKENS: Final = 1024  # of each request, half of them on each instance
STEPS: Final = 6  # of a pair; the median counts
AWAITING: Final = "bench.elastic.awaiting_instance"


async def overlap_rows(environment: EngineEnvironment, model: Path, folder: Path, command: str) -> list[Row]:
    """One row: the same steps of two instances of each kind, in turns."""
    slots = BATCH * (CONTEXT_TOKENS + PAIRS * STEPS)
    async with (
        running_instances(environment, model, folder, 2, slots) as ours,
        running_instances(environment, model, folder, 2, slots, program=AWAITING, network=8) as theirs,
    ):
        for each in (ours, theirs):
            await _begin(each)
        found: dict[bool, list[float]] = {True: [], False: []}
        for pair in range(PAIRS):
            for kind in (pair % 2 == 0, pair % 2 == 1):
                found[kind].append(await _steps(ours if kind else theirs, pair))
    return [
        row(
            f"decode step of {BATCH} requests of {CONTEXT_TOKENS} tokens on two instances", "s", found[True],
            peer=found[False], peer_name="exchanges awaited before attention", of_ratio=True, at_most=1.0,
            command=command,
        )
    ]  # fmt: skip


def _requests() -> list[str]:
    return [f"o-{number}" for number in range(BATCH)]


async def _begin(instances: Instances) -> None:
    owners = [(0, CONTEXT_TOKENS // 2), (1, CONTEXT_TOKENS // 2)]
    prompts = [prompt(each, CONTEXT_TOKENS, owners, seed) for seed, each in enumerate(_requests())]
    await instances.iterate(list(instances.hellos), prompts)


async def _steps(instances: Instances, pair: int) -> float:
    """Seconds of the median of some steps, each mastered by both."""
    took = []
    for number in range(pair * STEPS, (pair + 1) * STEPS):
        position = CONTEXT_TOKENS + number
        steps = [Step(each, 7, position, place % 2, (0, 1)) for place, each in enumerate(_requests())]
        took.append(await instances.iterate(list(instances.hellos), steps=steps))
    return statistics.median(took)
