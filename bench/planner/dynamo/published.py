"""What is published: which cells, in which seeds, with how many runs of ours. The plain command measures just these.

Seeds 0 to 3 were looked at while the planner was made, 6 to 8 chose constants: none of them is here but Azure's 0,
whose trace no seed changes.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from bench.planner.dynamo.figures import PULSES

OURS = ("ours", "wrong")  # what is measured again when our planner has changed
PEERS = ("dynamo", "fixed", "clairvoyant", "causal")


@dataclass(frozen=True)
class Piece:
    """Workloads whose ``parts`` are measured in the same ``seeds``; ``runs``: of ours, as often in each cell."""

    workloads: tuple[str, ...]
    seeds: tuple[int, ...]
    parts: tuple[str, ...]
    runs: int = 1


PUBLISHED = (
    Piece(("step", "ramp", "burst", "mixshift"), (4, 5, 9), (*OURS, "dynamo", "clairvoyant", "causal")),
    # One seed: the trace is recorded, only stamps within 3 s differ. Three runs, whose results vary by thousandths.
    Piece(("moon_conv",), (9,), (*OURS, "dynamo", "clairvoyant", "causal"), runs=3),
    Piece(("azure_conv",), (0,), (*OURS, *PEERS), runs=3),
    Piece(PULSES, (12, 13, 14), ("ours", "dynamo", "fixed")),
)


def wanted(
    workloads: Collection[str] = (), seeds: Sequence[int] = (), parts: Collection[str] = (), runs: int | None = None
) -> Iterator[Piece]:
    """The published pieces, or less of them: only these workloads and parts (``ours``: wrong beliefs too).

    ``seeds`` and ``runs`` take the place of the published ones.
    """
    asked = {*parts, *(OURS if "ours" in parts else ())}
    for piece in PUBLISHED:
        chosen = tuple(each for each in piece.workloads if not workloads or each in workloads)
        kept = tuple(each for each in piece.parts if not asked or each in asked)
        if chosen and kept:
            yield replace(
                piece, workloads=chosen, seeds=tuple(seeds) or piece.seeds, parts=kept, runs=runs or piece.runs
            )
