"""Single iterations, timed: what it costs that a group shrinks after a prefill and grows while it decodes, and what it
brings that members attend over the keys at hand while queries travel.
"""

import statistics
from pathlib import Path
from typing import Final

from bench.elastic.instances import Environment, Instances, prompt, running_instances
from bench.elastic.latency import latency_rows
from bench.rows import Row, row
from pointsman.serving.elastic.iterations import Step

PROMPT_TOKENS: Final = 2048
PAIRS: Final = 30
BATCH: Final = 4
CONTEXT_TOKENS: Final = 256
STEPS: Final = 12  # of a pair; the median counts
OVERLAP_TOKENS: Final = 1024  # of each request, half of them on each instance
OVERLAP_STEPS: Final = 6
AWAITING: Final = "bench.elastic.awaiting_instance"


async def iteration_rows(environment: Environment, model: Path, folder: Path, command: str) -> list[Row]:
    """The rows of two instances."""
    slots = 3 * PROMPT_TOKENS
    async with running_instances(environment, model, folder, 2, slots=slots) as instances:
        scaling = [await scale_down_row(instances, command), await scale_up_row(instances, command)]
        return [*scaling, *await latency_rows(instances, slots, command)]


async def scale_down_row(instances: Instances, command: str) -> Row:
    """The same prefill by both: its KV kept by one of them, or by both as it was computed."""
    names = list(instances.hellos)
    half = PROMPT_TOKENS // 2

    async def seconds(owners: list[tuple[int, int]], number: int) -> float:
        request = f"p-{number}"
        took_s = await instances.iterate(names, [prompt(request, PROMPT_TOKENS, owners)])
        await instances.release(request)
        return took_s

    shrunk, kept = list[float](), list[float]()
    await seconds([(0, half), (1, half)], -1)  # the first group shakes hands
    for number in range(PAIRS):
        sides = [(shrunk, [(0, PROMPT_TOKENS)]), (kept, [(0, half), (1, half)])]
        for place, (found, owners) in enumerate(sides if number % 2 else sides[::-1]):
            found.append(await seconds(owners, 2 * number + place))
    return row(
        f"prefill of {PROMPT_TOKENS} tokens by two instances, KV kept by one", "s", shrunk,
        peer=kept, peer_name="KV kept by both", of_ratio=True, at_most=1.02, command=command,
    )  # fmt: skip


async def scale_up_row(instances: Instances, command: str) -> Row:
    """The same decode steps by one instance, and by two of which the second masters half of the requests."""
    names = list(instances.hellos)
    requests = [f"d-{number}" for number in range(BATCH)]
    grown, alone = list[float](), list[float]()
    for pair in range(PAIRS // 3):
        for found, members in (
            ((alone, names[:1]), (grown, names)) if pair % 2 else ((grown, names), (alone, names[:1]))
        ):
            prompts = [prompt(each, CONTEXT_TOKENS, [(0, CONTEXT_TOKENS)], seed) for seed, each in enumerate(requests)]
            await instances.iterate(names[:1], prompts)
            took = []
            holders: dict[str, tuple[int, ...]] = dict.fromkeys(requests, (0,))
            for number in range(STEPS):
                steps = []
                for place, request in enumerate(requests):
                    master = place % len(members)
                    steps.append(Step(request, 7, CONTEXT_TOKENS + number, master, holders[request]))
                    holders[request] = tuple(sorted({*holders[request], master}))
                took.append(await instances.iterate(members, steps=steps))
            await instances.release(*requests)
            found.append(statistics.median(took[2:]))  # the first ones shake hands
    return row(
        f"decode step of {BATCH} requests after a second instance joined", "s", grown,
        peer=alone, peer_name="one instance", of_ratio=True, at_most=1.10, command=command,
    )  # fmt: skip


async def overlap_rows(environment: Environment, model: Path, folder: Path, command: str) -> list[Row]:
    """The same steps of two instances that overlap exchanges with attention, and of two that await them, in turns."""
    slots = BATCH * (OVERLAP_TOKENS + PAIRS * OVERLAP_STEPS)
    requests = [f"o-{number}" for number in range(BATCH)]
    half = OVERLAP_TOKENS // 2
    prompts = [prompt(each, OVERLAP_TOKENS, [(0, half), (1, half)], seed) for seed, each in enumerate(requests)]

    async def median_s(instances: Instances, pair: int) -> float:
        took = []
        for number in range(pair * OVERLAP_STEPS, (pair + 1) * OVERLAP_STEPS):
            position = OVERLAP_TOKENS + number
            steps = [Step(each, 7, position, place % 2, (0, 1)) for place, each in enumerate(requests)]
            took.append(await instances.iterate(list(instances.hellos), steps=steps))
        return statistics.median(took)

    async with (
        running_instances(environment, model, folder, 2, slots) as ours,
        running_instances(environment, model, folder, 2, slots, program=AWAITING, network=8) as theirs,
    ):
        for each in (ours, theirs):
            await each.iterate(list(each.hellos), prompts)
        found: dict[bool, list[float]] = {True: [], False: []}
        for pair in range(PAIRS):
            for kind in (pair % 2 == 0, pair % 2 == 1):
                found[kind].append(await median_s(ours if kind else theirs, pair))
    name = f"decode step of {BATCH} requests of {OVERLAP_TOKENS} tokens on two instances"
    peer_name = "exchanges awaited before attention"
    return [row(name, "s", found[True], found[False], peer_name=peer_name, of_ratio=True, at_most=1.0, command=command)]
