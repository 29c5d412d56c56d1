"""LoongServe's evaluation set-up: eight A800-80GB GPUs, and the systems that share them in turn."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from bench.elastic.paper_costs import SLOTS, SequenceParallel, TensorParallel
from bench.elastic.paper_static import ChunkedPrefill, PrefillDecode, WholePrompts
from bench.elastic.simulation import Asked, Outcome, Run, System
from pointsman.serving.elastic.types import Settings
from pointsman.serving.objectives import Objectives

REFERENCE: Final = TensorParallel(8)
"""What a request that is alone is timed on, for the objectives of all systems: all GPUs, nothing to schedule."""

FACTOR: Final = 25.0
"""Objectives are so many times what a request takes alone."""

OBJECTIVES: Final = Objectives(
    ttft_s=FACTOR * REFERENCE.prefill_s([1]),
    tpot_s=FACTOR * REFERENCE.step_s(1, 0),
    ttft_s_per_prompt_token=FACTOR * (REFERENCE.prefill_s([2001]) - REFERENCE.prefill_s([1])) / 2000,
)

CHUNKS: Final = (256, 512, 2048, 4096, 16384)
"""Sizes that chunked prefill is tried with: the paper's artifact uses these, but 4096."""


class Served(Protocol):
    """A system over requests in simulated time."""

    def outcomes(self, asked: Sequence[Asked]) -> list[Outcome]:
        """Of each request, in order of arrival."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A system by its name in the results; of several ``variants`` the best one counts."""

    name: str
    variants: tuple[Served, ...]


def elastic(name: str, tensor_parallel: int, domains: Sequence[int], degrees: Sequence[int]) -> Run:
    """Pointsman's own book and rounds; ``degrees``: of the groups that may form, ``domains``: see System."""
    times = SequenceParallel(TensorParallel(tensor_parallel))
    system = System(name, tuple(domains), SLOTS[tensor_parallel], times.latency_model(degrees))
    settings = Settings(migration_s_per_token=times.move_s_per_token, min_degree=min(degrees))
    return Run(system, settings=settings, times=times)


_ELASTIC: Final = (elastic("elastic", 2, (0, 0, 0, 0), (1, 2, 3, 4)),)
ELASTIC: Final = Candidate("elastic", _ELASTIC)
ELASTIC_WITH_OBJECTIVES: Final = Candidate(
    "elastic", tuple(replace(each, settings=replace(each.settings, objectives=OBJECTIVES)) for each in _ELASTIC)
)
"""Of a group with a policy: its manager knows the objectives."""

FIXED_SP: Final = Candidate("fixed TP2 x SP4", (elastic("fixed", 2, (0, 0, 0, 0), (4,)),))
REPLICAS: Final = Candidate("4 x TP2", (elastic("replicas", 2, (0, 1, 2, 3), (1,)),))
ONE_TP8: Final = Candidate("TP8, same code", (elastic("one", 8, (0,), (1,)),))
TP8: Final = Candidate("TP8 as vLLM", (WholePrompts("TP8", TensorParallel(8)),))
CHUNKED: Final = Candidate(
    "TP8 with chunked prefill", tuple(ChunkedPrefill("chunked", TensorParallel(8), each) for each in CHUNKS)
)
STATIC_PD: Final = Candidate("static P/D", (PrefillDecode("P/D", TensorParallel(4), TensorParallel(4)),))
