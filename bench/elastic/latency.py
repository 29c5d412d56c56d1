"""How well the fitted latency model predicts prefills of lengths that it was not fitted to."""

import math
from collections.abc import Sequence
from random import Random
from typing import Final

from bench.elastic.instances import Instances, prompt
from bench.rows import Row, row
from pointsman.serving.elastic.iterations import Prompt
from pointsman.serving.elastic.latency_model import LARGEST_ERROR
from pointsman.workers.elastic.manager.profiling import batches_up_to, measure_degree

LONGEST: Final = 2048
BATCHES: Final = 20
REPEATS: Final = 3
SEED: Final = 1


async def latency_rows(instances: Instances, slots: int, command: str) -> list[Row]:
    """A row for each degree: the relative error of each batch that was held out."""
    names = list(instances.hellos)
    return [await _degree(instances, names[:degree], slots, command) for degree in range(1, len(names) + 1)]


async def _degree(instances: Instances, members: list[str], slots: int, command: str) -> Row:
    async def measure(prompts: Sequence[Prompt]) -> float:
        took_s = await instances.iterate(members, prompts)
        await instances.release(*(each.request for each in prompts))
        return took_s

    # As the manager measures: see the same module.
    model = await measure_degree(measure, len(members), slots, LONGEST)
    errors = []
    for lengths in held_out():
        prompts = [
            prompt(f"h-{number}", tokens, _shares(tokens, len(members))) for number, tokens in enumerate(lengths)
        ]
        took_s = min([await measure(prompts) for _ in range(REPEATS)])
        predicted_s = model.seconds(sum(lengths), sum(length**2 for length in lengths))
        errors.append(abs(predicted_s - took_s) / took_s)
    return row(
        f"error of the predicted time of prefills on {len(members)} of two instances, {BATCHES} batches held out",
        "of the time", errors, of_means=True, at_most=LARGEST_ERROR, command=command,
    )  # fmt: skip


def held_out() -> list[list[int]]:
    """Batches of one to three prompts, whose lengths are drawn and not among those that the model is fitted to."""
    rng, fitted = Random(SEED), {length for lengths in batches_up_to(LONGEST) for length in lengths}
    found: list[list[int]] = []
    while len(found) < BATCHES:
        lengths = [round(math.exp(rng.uniform(math.log(48), math.log(LONGEST)))) for _ in range(rng.randint(1, 3))]
        if fitted.isdisjoint(lengths) and sum(lengths) <= LONGEST:
            found.append(lengths)
    return found


def _shares(tokens: int, members: int) -> list[tuple[int, int]]:
    share, more = divmod(tokens, members)
    return [(member, share + (member < more)) for member in range(members)]
