"""Two instances on one GPU, told what to compute without a manager: how long their iterations take over gloo."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from bench.elastic.gpu.findings import Findings
from bench.elastic.instances import Environment, Instances, prompt, running_instances
from bench.elastic.iterations import scale_down_row, scale_up_row
from bench.elastic.latency import degree_row, shares
from pointsman.serving.elastic.iterations import Step

STEPS = 8
AT_ONCE = 16  # prompts of a batch before decode steps


async def together(
    environment: Environment, model: Path, findings: Findings, *, gpus: int, lengths: Sequence[int],
    batches: Sequence[int], context: int, repeats: int, command: str,
) -> None:  # fmt: skip
    """Writes what it finds after each part. ``lengths`` of prompts, ``batches`` of steps with ``context`` tokens."""
    slots = max(*lengths, max(batches) * (context + 4 * STEPS)) + 4096
    began_s = time.monotonic()
    async with running_instances(environment, model, model.parent, 2, slots, gpus=gpus, dtype="bfloat16") as instances:
        findings.found["start_s"] = round(time.monotonic() - began_s, 1)
        for degree in (1, 2):
            members = list(instances.hellos)[:degree]
            found = await _prefills(instances, members, lengths, repeats)
            found |= await _decodes(instances, members, batches, context)
            findings.step(f"degree {degree}", lambda found=found: found)  # type: ignore[misc]
        row = await scale_down_row(instances, command)
        findings.step("scale down", lambda: asdict(row))
        for degree in (1, 2):
            members = list(instances.hellos)[:degree]
            of_degree, fitted = await degree_row(instances, members, slots, command, sorted(lengths)[-2], max(lengths))
            measured = findings.found[f"degree {degree}"]
            predicted = {
                f"prefill {tokens}": [
                    round(fitted.seconds(tokens, tokens**2), 4), statistics.median(measured[f"prefill {tokens}"]),
                ]
                for tokens in lengths
            }  # fmt: skip
            findings.step(
                f"latency {degree}",
                lambda row=of_degree, fitted=fitted, predicted=predicted: {  # type: ignore[misc]
                    "row": asdict(row), "model": asdict(fitted), "predicted and measured": predicted,
                },
            )  # fmt: skip
        grown = await scale_up_row(instances, command)
        findings.step("scale up", lambda: asdict(grown))


async def _prefills(
    instances: Instances, members: list[str], lengths: Sequence[int], repeats: int
) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for tokens in lengths:
        for number in range(repeats + 1):
            asked = prompt("p", tokens, shares(tokens, len(members)), number)
            took_s = await instances.iterate(members, [asked])
            await instances.release("p")
            if number:
                found.setdefault(f"prefill {tokens}", []).append(round(took_s, 5))
    return found


async def _decodes(
    instances: Instances, members: list[str], batches: Sequence[int], context: int
) -> dict[str, list[float]]:
    """Each request's KV is on all members, and its tokens are mastered by one of them."""
    found: dict[str, list[float]] = {}
    holders = tuple(range(len(members)))
    for batch in batches:
        requests = [f"d-{number}" for number in range(batch)]
        for first in range(0, batch, AT_ONCE):
            asked = [
                prompt(each, context, shares(context, len(members)), seed)
                for seed, each in enumerate(requests[first : first + AT_ONCE])
            ]
            await instances.iterate(members, asked)
        for number in range(STEPS + 1):
            steps = [
                Step(each, 7, context + number, place % len(members), holders) for place, each in enumerate(requests)
            ]
            took_s = await instances.iterate(members, steps=steps)
            if number:
                found.setdefault(f"decode {batch}", []).append(round(took_s, 5))
        await instances.release(*requests)
    return found
