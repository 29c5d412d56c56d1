"""Single iterations of two elastic instances without a manager, timed: what it costs that a group shrinks after a
prefill and grows while it decodes, and how well the fitted model predicts prefills of other lengths.

    python -m bench.elastic.iterations MODEL_FOLDER

Prints the rows as JSON. Runs in the engine environment.
"""

import asyncio
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from random import Random
from statistics import median
from typing import Final

from bench.rows import Row, row
from engine.elastic.members import Members
from pointsman.serving.elastic.iterations import Prompt, Step
from pointsman.serving.elastic.latency_model import LARGEST_ERROR, PrefillTime
from pointsman.workers.elastic.manager.profiling import batches_up_to, measure_degree

COMMAND: Final = "make bench-elastic"
PROMPT_TOKENS: Final = 2048
SLOTS: Final = 3 * PROMPT_TOKENS
PAIRS: Final = 30
BATCH: Final = 4
CONTEXT_TOKENS: Final = 256
STEPS: Final = 12
AT_ONCE: Final = 16  # prompts of a batch before decode steps
BATCHES: Final = 20
REPEATS: Final = 3
VOCABULARY: Final = 90


def main(model: Path) -> None:
    """All of it, on CPU."""
    with closing(Members(model, 2, SLOTS)) as members:
        rows = [scale_down_row(members), scale_up_row(members)]
        rows += [latency_row(members, degree, SLOTS)[0] for degree in (1, 2)]
    print(json.dumps({"rows": [asdict(each) for each in rows]}))


def prompt(request: str, tokens: int, owners: Sequence[int], seed: int = 0) -> Prompt:
    """A drawn prompt, of whose KV all ``owners`` keep equal shares."""
    rng = Random(f"{seed}/{tokens}")
    share, more = divmod(tokens, len(owners))
    kept = tuple((owner, share + (number < more)) for number, owner in enumerate(owners))
    return Prompt(request, tuple(rng.randrange(VOCABULARY) for _ in range(tokens)), kept)


def iterate_s(members: Members, degree: int, prompts: Sequence[Prompt] = (), steps: Sequence[Step] = ()) -> float:
    """Seconds of an iteration of the first ``degree`` members."""
    began_s = time.monotonic()
    members.iterate(range(degree), prompts, steps)
    return time.monotonic() - began_s


def prefill_s(members: Members, degree: int, prompts: Sequence[Prompt]) -> float:
    """Seconds of a prefill, whose KV is freed then."""
    took_s = iterate_s(members, degree, prompts)
    for each in prompts:
        members.asked("release", each.request)
    return took_s


def decode_s(members: Members, degree: int, owners: Sequence[int], batch: int, context: int) -> list[float]:
    """Seconds of decode steps: of requests that ``owners`` have prefilled, each of which gets one of the first
    ``degree`` members as its master.
    """
    requests = [f"d-{number}" for number in range(batch)]
    prompts = [prompt(request, context, owners, number) for number, request in enumerate(requests)]
    for first in range(0, batch, AT_ONCE):
        members.iterate(owners, prompts[first : first + AT_ONCE], ())
    took = []
    for number in range(STEPS):
        steps = []
        for place, request in enumerate(requests):
            master = place % degree
            holders = {*owners, master} if number else {*owners}
            steps.append(Step(request, 7, context + number, master, tuple(sorted(holders))))
        took.append(iterate_s(members, degree, steps=steps))
    for request in requests:
        members.asked("release", request)
    return took[2:]  # the first ones shake hands


def row_beside(
    name: str, pairs: int, at_most: float, ours: Callable[[], float], peer_name: str, peer: Callable[[], float]
) -> Row:
    """Of seconds of ours and of a peer's, in turns."""
    took: dict[Callable[[], float], list[float]] = {ours: [], peer: []}
    for number in range(pairs):
        for each in (ours, peer) if number % 2 else (peer, ours):
            took[each].append(each())
    return row(name, "s", took[ours], took[peer], peer_name=peer_name, of_ratio=True, at_most=at_most, command=COMMAND)


def scale_down_row(members: Members) -> Row:
    """The same prefill by both: its KV kept by one of them, or by both as it was computed."""

    def seconds(*owners: int) -> float:
        return prefill_s(members, 2, [prompt("p", PROMPT_TOKENS, owners)])

    seconds(0, 1)  # the first group shakes hands
    name = f"prefill of {PROMPT_TOKENS} tokens by two instances, KV kept by one"
    return row_beside(name, PAIRS, 1.02, partial(seconds, 0), "KV kept by both", partial(seconds, 0, 1))


def scale_up_row(members: Members) -> Row:
    """The same decode steps by one instance, and by two of which the second masters half of the requests."""

    def seconds(degree: int) -> float:
        return median(decode_s(members, degree, (0,), BATCH, CONTEXT_TOKENS))

    name = f"decode step of {BATCH} requests after a second instance joined"
    return row_beside(name, PAIRS // 3, 1.10, partial(seconds, 2), "one instance", partial(seconds, 1))


def latency_row(
    members: Members, degree: int, slots: int, longest: int = PROMPT_TOKENS, served: int = PROMPT_TOKENS
) -> tuple[Row, PrefillTime]:
    """The relative error of each batch that was held out, and the model that was fitted.

    ``longest``: tokens of a batch that is held out, at most; ``served``: of the longest prompt that the manager serves.
    """

    async def measure(prompts: Sequence[Prompt]) -> float:
        return prefill_s(members, degree, prompts)

    model = asyncio.run(measure_degree(measure, degree, slots, served))  # as the manager measures
    errors = []
    for lengths in held_out(longest):
        prompts = [prompt(f"h-{number}", tokens, range(degree)) for number, tokens in enumerate(lengths)]
        took_s = min(prefill_s(members, degree, prompts) for _ in range(REPEATS))
        predicted_s = model.seconds(sum(lengths), sum(length**2 for length in lengths))
        errors.append(abs(predicted_s - took_s) / took_s)
    found = row(
        f"error of the predicted time of prefills on {degree} of two instances, {BATCHES} batches held out",
        "of the time", errors, of_means=True, at_most=LARGEST_ERROR, command=COMMAND,
    )  # fmt: skip
    return found, model


def held_out(longest: int) -> list[list[int]]:
    """Batches of one to three prompts, whose lengths are drawn and not among those that the model is fitted to."""
    rng, fitted = Random(1), {length for lengths in batches_up_to(longest) for length in lengths}
    found: list[list[int]] = []
    while len(found) < BATCHES:
        lengths = [round(math.exp(rng.uniform(math.log(48), math.log(longest)))) for _ in range(rng.randint(1, 3))]
        if fitted.isdisjoint(lengths) and sum(lengths) <= longest:
            found.append(lengths)
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]))
