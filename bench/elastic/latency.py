"""How well the fitted latency model predicts prefills of lengths that it was not fitted to."""

import math
from collections.abc import Sequence
from random import Random
from typing import Final

from bench.elastic.instances import Instances, prompt
from bench.rows import Row, row
from pointsman.serving.elastic.iterations import Prompt
from pointsman.serving.elastic.latency_model import LARGEST_ERROR, PrefillTime
from pointsman.workers.elastic.manager.profiling import batches_up_to, measure_degree

LONGEST: Final = 2048
BATCHES: Final = 20
REPEATS: Final = 3
SEED: Final = 1


async def latency_rows(instances: Instances, slots: int, command: str) -> list[Row]:
    """A row for each degree: the relative error of each batch that was held out."""
    names = list(instances.hellos)
    return [(await degree_row(instances, names[:degree], slots, command))[0] for degree in range(1, len(names) + 1)]


async def degree_row(
    instances: Instances, members: list[str], slots: int, command: str, longest: int = LONGEST, served: int = LONGEST
) -> tuple[Row, PrefillTime]:
    """Of a group of ``members``, with the model that was fitted.

    ``longest``: tokens of a batch that is held out, at most; ``served``: of the longest prompt that the manager serves.
    """

    async def measure(prompts: Sequence[Prompt]) -> float:
        took_s = await instances.iterate(members, prompts)
        await instances.release(*(each.request for each in prompts))
        return took_s

    # As the manager measures: see the same module.
    model = await measure_degree(measure, len(members), slots, served)
    errors = []
    for lengths in held_out(longest):
        prompts = [prompt(f"h-{number}", tokens, shares(tokens, len(members))) for number, tokens in enumerate(lengths)]
        took_s = min([await measure(prompts) for _ in range(REPEATS)])
        predicted_s = model.seconds(sum(lengths), sum(length**2 for length in lengths))
        errors.append(abs(predicted_s - took_s) / took_s)
    found = row(
        f"error of the predicted time of prefills on {len(members)} of two instances, {BATCHES} batches held out",
        "of the time", errors, of_means=True, at_most=LARGEST_ERROR, command=command,
    )  # fmt: skip
    return found, model


def held_out(longest: int = LONGEST) -> list[list[int]]:
    """Batches of one to three prompts, whose lengths are drawn and not among those that the model is fitted to."""
    rng, fitted = Random(SEED), {length for lengths in batches_up_to(longest) for length in lengths}
    found: list[list[int]] = []
    while len(found) < BATCHES:
        lengths = [round(math.exp(rng.uniform(math.log(48), math.log(longest)))) for _ in range(rng.randint(1, 3))]
        if fitted.isdisjoint(lengths) and sum(lengths) <= longest:
            found.append(lengths)
    return found


def shares(tokens: int, members: int) -> list[tuple[int, int]]:
    """Owners of a prompt that is kept by all members alike."""
    share, more = divmod(tokens, members)
    return [(member, share + (member < more)) for member in range(members)]
