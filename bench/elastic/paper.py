"""``make bench-elastic-paper``: LoongServe's evaluation in simulated time, with Pointsman's own manager.

Eight A800-80GB GPUs, and the systems that share them in turn.
"""

import sys
from collections.abc import Mapping, Sequence
from functools import cache, partial
from statistics import mean
from typing import Final

from bench.elastic.paper_costs import SequenceParallel, TensorParallel
from bench.elastic.paper_mixes import EVALUATION, LENGTHS, Mix
from bench.elastic.paper_search import MEASURES, Judged, Tally, find_rates, objectives_of
from bench.elastic.paper_static import OneEngine, PrefillDecode
from bench.elastic.simulation import Group
from bench.rows import RESULTS, Row, measure_parts, row
from pointsman.serving.elastic.types import Settings

COMMAND: Final = "make bench-elastic-paper"
PATH: Final = RESULTS / "elastic_paper.json"
SEEDS: Final = (1, 2, 3)
REFUSED: Final = "refused, too long for its memory"

CHUNKS: Final = (256, 512, 2048, 4096, 16384)
"""Sizes that chunked prefill is tried with: the paper's artifact uses these, but 4096."""

Served = Group | OneEngine | PrefillDecode


def elastic(*degrees: int) -> Group:
    """Pointsman's own book and rounds, with four instances of two GPUs; ``degrees``: of the groups that may form."""
    one = TensorParallel(2)
    times = SequenceParallel(one)
    settings = Settings(migration_s_per_token=one.send_s(1), min_degree=min(degrees))
    return Group((0, 0, 0, 0), one.slots, times.latency_model(degrees), times, settings)


ELASTIC: Final = elastic(1, 2, 3, 4)
FIXED_SP: Final = elastic(4)
PEERS: Final[Mapping[str, Sequence[Served]]] = {
    "TP8 as vLLM": [OneEngine(TensorParallel(8))],
    "TP8 with chunked prefill": [OneEngine(TensorParallel(8), each) for each in CHUNKS],
    "static P/D": [PrefillDecode(TensorParallel(4))],
    "fixed TP2 x SP4": [FIXED_SP],
}
"""By name in the results; of several variants the best one counts."""
EXPERIMENTS: Final[Sequence[tuple[Mix, Sequence[str]]]] = [
    (Mix(name, LENGTHS[name], each["seconds"], each["first_rate"]), each.get("measures", MEASURES))
    for name, each in EVALUATION["mixes"].items()
]


def refused(served: Served, mix: Mix) -> float:
    """The share of the requests that a system has too little memory for."""
    return mean(each.kv_tokens > served.capacity for each in mix.draw(mix.first_rate, SEEDS[0]))


def rates(variants: Sequence[Served], mix: Mix, measures: Sequence[str]) -> dict[str, list[float]]:
    """By measure and seed. The variant is chosen by the first seed, for each measure."""
    objectives = objectives_of(mix)

    def judge(served: Served, seed: int, rate: float) -> Judged:
        asked = mix.draw(rate, seed)
        tally = Tally(objectives, len(asked))
        for outcome in served.outcomes(asked):
            tally.add(outcome)
            if min(tally.judged[each] for each in measures) > 1:
                break  # without the rest of it, which takes long
        return tally.judged

    @cache
    def found(number: int, seed: int) -> dict[str, float]:
        return find_rates(partial(judge, variants[number], seed), measures, mix.first_rate)

    best = {each: max(range(len(variants)), key=lambda number: found(number, SEEDS[0])[each]) for each in measures}
    return {each: [found(best[each], seed)[each] for seed in SEEDS] for each in measures}


def rows_of(mix: Mix, measures: Sequence[str]) -> list[Row]:
    """A row for each peer and measure: the target is that the elastic group is first."""
    beside = partial(row, of_ratio=True, of_means=True, at_least=1.0, command=COMMAND)
    ours = rates([ELASTIC], mix, measures)
    rows = []
    for peer, variants in PEERS.items():
        if share := refused(variants[0], mix):
            name = f"{mix.name}: {REFUSED}"
            rows.append(row(name, "of requests", [0.0], [share], peer_name=peer, at_most=0, command=COMMAND))
            continue
        theirs = rates(variants, mix, measures)
        print(f"measured {mix.name}, {peer}", flush=True)
        for each in measures:
            rows.append(beside(f"{mix.name}: {each}", "requests/s", ours[each], theirs[each], peer_name=peer))
    return rows


def main(argv: Sequence[str]) -> int:
    """Measure, write the rows; 1 if a target was missed."""
    parts = {mix.name: partial(rows_of, mix, measures) for mix, measures in EXPERIMENTS}
    return measure_parts(PATH.stem, COMMAND, __doc__, argv, parts)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
