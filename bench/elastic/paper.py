"""``make bench-elastic-paper``: LoongServe's evaluation in simulated time, with Pointsman's own manager.

Eight A800-80GB GPUs. What does not depend on Pointsman, other systems on the same GPUs, is kept in
``bench/data/loongserve.yaml``.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import yaml

from bench.elastic.paper_costs import SLOTS, SequenceParallel, TensorParallel
from bench.elastic.paper_mixes import L_EVAL, LV_EVAL, SHARE_GPT, Mix, mixed
from bench.elastic.paper_search import INPUT, MEASURES, Judged, Tally, find_rates, objectives_of
from bench.elastic.simulation import Group
from bench.rows import RESULTS, Row, measure_parts, row
from pointsman.serving.elastic.types import Settings

COMMAND: Final = "make bench-elastic-paper"
PATH: Final = RESULTS / "elastic_paper.json"
LOONGSERVE: Final[Mapping[str, Any]] = yaml.safe_load((RESULTS.parent / "data" / "loongserve.yaml").read_text())
SEEDS: Final = (1, 2, 3)
REFUSED: Final = "refused, too long for its memory"


def elastic(*degrees: int) -> Group:
    """Pointsman's own book and rounds, with four instances of two GPUs; ``degrees``: of the groups that may form."""
    one = TensorParallel(2)
    times = SequenceParallel(one)
    settings = Settings(migration_s_per_token=one.send_s(1), min_degree=min(degrees))
    return Group((0, 0, 0, 0), SLOTS, times.latency_model(degrees), times, settings)


ELASTIC: Final = elastic(1, 2, 3, 4)
FIXED_SP: Final = elastic(4)
EXPERIMENTS: Final[Sequence[tuple[Mix, Sequence[str]]]] = (
    (Mix("ShareGPT", SHARE_GPT, 8, 160.0), [INPUT]),  # a run of seconds cannot be late by other measures
    (Mix("L-Eval", L_EVAL, 600, 0.5), MEASURES),
    (Mix("LV-Eval", LV_EVAL, 2400, 0.1), MEASURES),
    (Mix("Mixed", mixed, 1200, 0.2), MEASURES),
)


def rates(group: Group, mix: Mix, measures: Sequence[str], seeds: Iterable[int] = SEEDS) -> dict[str, list[float]]:
    """By measure, of each seed."""
    objectives = objectives_of(mix)

    def judge(seed: int, rate: float) -> Judged:
        asked = mix.draw(rate, seed)
        tally = Tally(objectives, len(asked))
        for outcome in group.outcomes(asked):
            tally.add(outcome)
            if min(tally.judged[each] for each in measures) > 1:
                break  # without the rest of it, which takes long
        return tally.judged

    found = [find_rates(partial(judge, seed), measures, mix.first_rate) for seed in seeds]
    return {each: [of_seed[each] for of_seed in found] for each in measures}


def rows_of(mix: Mix, measures: Sequence[str]) -> Iterator[Row]:
    """A row for each peer and measure: the target is that the elastic group is first."""
    beside, ours = partial(row, of_means=True, command=COMMAND), rates(ELASTIC, mix, measures)
    peers = {
        peer: {what: [rate] * len(SEEDS) for what, rate in found.items()}
        for peer, found in LOONGSERVE["simulated"][mix.name].items()
    }
    for peer, found in (peers | {"fixed TP2 x SP4": rates(FIXED_SP, mix, measures)}).items():
        for what, theirs in found.items():
            name = f"{mix.name}: {what}"
            if what == REFUSED:
                yield beside(name, "of requests", [0.0], theirs[:1], peer_name=peer, at_most=0)
            else:
                yield beside(name, "requests/s", ours[what], theirs, peer_name=peer, of_ratio=True, at_least=1.0)


def main(argv: Sequence[str]) -> int:
    """Measure, write the rows; 1 if a target was missed."""
    parts = {mix.name: partial(rows_of, mix, measures) for mix, measures in EXPERIMENTS}
    return measure_parts(PATH.stem, COMMAND, __doc__, argv, parts)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
