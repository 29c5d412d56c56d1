"""Which decode worker a request goes to: cost functions over a snapshot, lowest cost wins, ties at random.

A cost function sees all candidates at once (some terms are relative to the fleet) and returns one number each.
Unknown is not zero: a worker whose load is unknown is taken to be as loaded as the most loaded one that is known, so
silence never attracts requests; when nobody's load is known the term says nothing.
"""

from collections.abc import Callable, Sequence
from enum import StrEnum
from random import Random

from pointsman.gateway.types import Candidate, Choice
from pointsman.serving import worker_cost

CostFunction = Callable[[int, Sequence[Candidate]], list[float]]
"""(prompt tokens, candidates) -> one cost each."""


class RouterName(StrEnum):
    """The cost functions by the name settings use."""

    TOKEN_LOAD = "token-load"
    OVERLAP_RATIO = "overlap-ratio"
    LEAST_LOADED = "least-loaded"
    ROUND_ROBIN = "round-robin"


class NoCandidates(LookupError):
    """A choice among no workers."""


def token_load(prompt_tokens: int, candidates: Sequence[Candidate]) -> list[float]:
    """Work in tokens that stands between this request and its answer there: the default.

    Time to first token: what is not cached, plus the prompts already sent there and not yet begun, plus what others
    queued there (taken to be as long as this one). Harm to running streams: their context, weighted, including streams
    of other gateways. Memory: near a full KV cache, the prompt that a preemption would compute again.
    """
    waiting = _known_or_worst([c.load.waiting for c in candidates])
    usage = _known_or_worst([c.load.kv_usage for c in candidates])
    contexts = _known_or_worst([_context_of_others(prompt_tokens, c) for c in candidates])
    costs = []
    for candidate, queued, used, others_tokens in zip(candidates, waiting, usage, contexts, strict=True):
        queued_by_others = max(queued - candidate.pending_requests, 0) * prompt_tokens
        costs.append(
            worker_cost.token_load(
                prompt_tokens=prompt_tokens,
                cached_tokens=candidate.overlap_tokens,
                pending_tokens=candidate.pending_tokens + queued_by_others,
                prefilled_elsewhere=candidate.prefilled_elsewhere,
                context_tokens=candidate.active_tokens + others_tokens,
                kv_usage=used,
            )
        )
    return costs


def _context_of_others(prompt_tokens: int, candidate: Candidate) -> int | None:
    """Context in tokens of the requests that other gateways have there; None where the engine reports nothing.

    There are some if the engine computes more requests than this gateway sent. Their context is what the engine reports
    beyond this gateway's; without such a report each is taken to be as long as this prompt.
    """
    running = candidate.load.running
    if running is None:
        return None
    others = running - candidate.pending_requests - candidate.active_requests
    if others <= 0:
        return 0
    if candidate.engine_context_tokens is None:
        return others * prompt_tokens
    return max(candidate.engine_context_tokens - candidate.active_tokens, 0)


def overlap_ratio(prompt_tokens: int, candidates: Sequence[Candidate]) -> list[float]:
    """``-(2 · overlap/prompt − kv_usage − waiting/max(waiting))``: the KV router of Dynamo's 2025 design."""
    waiting = _known_or_worst([c.load.waiting for c in candidates])
    usage = _known_or_worst([c.load.kv_usage for c in candidates])
    most = max(waiting, default=0)
    return [
        -(
            2 * (candidate.overlap_tokens / prompt_tokens if prompt_tokens else 0.0)
            - used
            - (queued / most if most else 0.0)
        )
        for candidate, queued, used in zip(candidates, waiting, usage, strict=True)
    ]


def least_loaded(_prompt_tokens: int, candidates: Sequence[Candidate]) -> list[float]:
    """Fewest requests of this gateway in flight."""
    return [float(candidate.pending_requests + candidate.active_requests) for candidate in candidates]


def round_robin(_prompt_tokens: int, candidates: Sequence[Candidate]) -> list[float]:
    """The one chosen longest ago."""
    return [float(candidate.last_chosen) for candidate in candidates]


COST_FUNCTIONS: dict[RouterName, CostFunction] = {
    RouterName.TOKEN_LOAD: token_load,
    RouterName.OVERLAP_RATIO: overlap_ratio,
    RouterName.LEAST_LOADED: least_loaded,
    RouterName.ROUND_ROBIN: round_robin,
}


def choose(cost: CostFunction, prompt_tokens: int, candidates: Sequence[Candidate], rng: Random) -> Choice:
    """The candidate of lowest cost, at random among equals. Raises NoCandidates."""
    if not candidates:
        raise NoCandidates("no candidates")
    costs = cost(prompt_tokens, candidates)
    lowest = min(costs)
    # Sums of the same terms in another order differ in the last bits only: those are ties too.
    tolerance = 1e-9 * max(1.0, abs(lowest))
    best = [candidate for candidate, value in zip(candidates, costs, strict=True) if value - lowest <= tolerance]
    chosen = best[0] if len(best) == 1 else rng.choice(best)
    return Choice(chosen, candidates, costs)


def _known_or_worst(values: Sequence[float | None]) -> list[float]:
    worst = max((value for value in values if value is not None), default=0.0)
    return [worst if value is None else value for value in values]
