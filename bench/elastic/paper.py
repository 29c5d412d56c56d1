"""``make bench-elastic-paper``: LoongServe's evaluation in simulated time, with Pointsman's own manager."""

import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from bench.elastic.paper_mixes import L_EVAL, LV_EVAL, SHARE_GPT, Mix, Zipf, mixed
from bench.elastic.paper_search import Judged, Measure, Objectives, Tally, find_rates, mixes_and_seeds
from bench.elastic.paper_systems import (
    CHUNKED,
    ELASTIC,
    ELASTIC_WITH_OBJECTIVES,
    FIXED_SP,
    ONE_TP8,
    REFERENCE,
    REPLICAS,
    STATIC_PD,
    TP8,
    Candidate,
    Served,
)  # fmt: skip
from bench.elastic.simulation import Outcome, Run
from bench.rows import RESULTS, Row, finish, read, row, write

COMMAND: Final = "make bench-elastic-paper"
PATH: Final = RESULTS / "elastic_paper.json"
PEERS: Final = (TP8, CHUNKED, STATIC_PD, FIXED_SP)
ABLATION_PEERS: Final = (ONE_TP8, FIXED_SP, REPLICAS)
MEASURES: Final = (Measure.TOTAL, Measure.INPUT, Measure.ALL, Measure.GOODPUT)
SHORT_MEASURES: Final = (Measure.INPUT,)  # a run of seconds cannot be late by the others
ABLATION_MEASURES: Final = (Measure.ABLATION,)


@dataclass(frozen=True, slots=True)
class Experiment:
    """A mix, what it is judged by, and beside whom."""

    mix: Mix
    measures: tuple[Measure, ...]
    peers: tuple[Candidate, ...]
    ours: Candidate = ELASTIC
    variant: str = ""

    @property
    def name(self) -> str:
        """Of its rows."""
        return self.mix.name + self.variant


_SHARE_GPT: Final = Mix("ShareGPT", SHARE_GPT, 8, 160.0)

EXPERIMENTS: Final = (
    Experiment(_SHARE_GPT, SHORT_MEASURES, PEERS),
    Experiment(_SHARE_GPT, SHORT_MEASURES, PEERS, ELASTIC_WITH_OBJECTIVES, ", objectives known"),
    Experiment(Mix("L-Eval", L_EVAL, 600, 0.5), MEASURES, PEERS),
    Experiment(Mix("LV-Eval", LV_EVAL, 2400, 0.1), MEASURES, PEERS),
    Experiment(Mix("Mixed", mixed, 1200, 0.2), MEASURES, PEERS),
    Experiment(Mix("Zipf 1.0", Zipf(1.0), 400, 0.8), ABLATION_MEASURES, ABLATION_PEERS),
    Experiment(Mix("Zipf 1.2", Zipf(1.2), 200, 2.0), ABLATION_MEASURES, ABLATION_PEERS),
    Experiment(Mix("Zipf 1.4", Zipf(1.4), 100, 4.0), ABLATION_MEASURES, ABLATION_PEERS),
)


class Refuses(Exception):
    """A system has too little memory for some request."""

    def __init__(self, share: float) -> None:
        super().__init__(share)
        self.share = share


class _Hopeless(Exception):
    """Every measure is above 1, whatever else happens."""


def judge(served: Served, experiment: Experiment, objectives: Objectives, rate: float, seed: int) -> Judged:
    """Raises Refuses."""
    asked = experiment.mix.draw(rate, seed)
    tally = Tally(objectives, len(asked))

    def ended(outcome: Outcome) -> None:
        tally.add(outcome)
        if min(tally.judged[each] for each in experiment.measures) > 1:
            raise _Hopeless

    if isinstance(served, Run):
        with suppress(_Hopeless):  # without the rest of it, which takes long
            served.outcomes(asked, ended)
    else:
        for each in served.outcomes(asked):
            tally.add(each)
    if tally.refused:
        raise Refuses(tally.refused / len(asked))
    return tally.judged


def rates(candidate: Candidate, experiment: Experiment, seeds: Sequence[int]) -> dict[Measure, list[float]]:
    """By measure and seed. The variant is chosen by the first seed, for each measure. Raises Refuses."""
    mix, measures = experiment.mix, experiment.measures
    objectives = Objectives.of(mix, REFERENCE)

    def found(variant: Served, seed: int) -> dict[Measure, float]:
        return find_rates(lambda rate: judge(variant, experiment, objectives, rate, seed), measures, mix.first_rate)

    first = [found(variant, seeds[0]) for variant in candidate.variants]
    best = {each: max(range(len(first)), key=lambda number: first[number][each]) for each in measures}
    later = {
        (number, seed): found(candidate.variants[number], seed) for number in set(best.values()) for seed in seeds[1:]
    }
    return {
        each: [first[best[each]][each], *(later[best[each], seed][each] for seed in seeds[1:])] for each in measures
    }


def rows_of(experiment: Experiment, seeds: Sequence[int], command: str) -> list[Row]:
    """A row for each peer and measure: the target is that the elastic group is first."""
    ours = _timed(experiment.ours, experiment, seeds)
    beside = partial(row, of_ratio=True, of_means=True, at_least=1.0, command=command)
    rows = []
    for peer in experiment.peers:
        try:
            theirs = _timed(peer, experiment, seeds)
        except Refuses as refuses:
            name, peer_name = f"{experiment.name}: refused, too long for its memory", peer.name
            share = [refuses.share]
            rows.append(row(name, "of requests", [0.0], share, peer_name=peer_name, at_most=0, command=command))
            continue
        for measure in experiment.measures:
            name = f"{experiment.name}: {measure}"
            rows.append(beside(name, "requests/s", ours[measure], theirs[measure], peer_name=peer.name))
            print(name, peer.name, ours[measure], theirs[measure], rows[-1].ratio, flush=True)
    return rows


def _timed(candidate: Candidate, experiment: Experiment, seeds: Sequence[int]) -> dict[Measure, list[float]]:
    began_s = time.process_time()
    found = rates(candidate, experiment, seeds)
    print(f"{candidate.name}: {time.process_time() - began_s:.0f} s", flush=True)
    return found


def main(argv: list[str]) -> int:
    """Measure, write the rows; 1 if a target was missed."""
    asked = mixes_and_seeds(COMMAND, __doc__, argv, [each.name for each in EXPERIMENTS])
    rows = read(PATH) if asked.some else []
    for experiment in EXPERIMENTS:
        name = experiment.name
        if name in asked.mixes:
            began_s = time.process_time()
            rows = [each for each in rows if not each.name.startswith(f"{name}:")]
            rows += rows_of(experiment, asked.seeds, asked.command)
            write(PATH.stem, in_order(rows))
            print(f"{name}: {time.process_time() - began_s:.0f} s of a core", flush=True)
    return finish(PATH.stem, in_order(rows))


def in_order(rows: Sequence[Row]) -> list[Row]:
    """As the experiments are."""
    names = [each.name for each in EXPERIMENTS]
    return sorted(rows, key=lambda each: names.index(each.name.split(":")[0]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
