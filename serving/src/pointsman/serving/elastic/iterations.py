"""What the manager asks of a group in one iteration: plain data, the same for all members.

Members are numbered by their place in the group, 0 first.
"""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request to prefill. ``owners``: (member, tokens), which member keeps the KV of the next so many tokens.

    Owners are chosen before the prefill (proactive scale-down): those that are to decode, with as many tokens as each
    has room for. Their counts sum to the tokens of the prompt.
    """

    request: str
    token_ids: tuple[int, ...]
    owners: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        kept = sum(count for _, count in self.owners)
        if kept != len(self.token_ids) or not self.token_ids:
            raise ValueError(f"request {self.request}: owners keep {kept} tokens of {len(self.token_ids)}")

    def owned(self) -> Iterator[tuple[int, range]]:
        """Each owner with the positions that it keeps."""
        start = 0
        for member, count in self.owners:
            yield member, range(start, start + count)
            start += count


@dataclass(frozen=True, slots=True)
class Move:
    """``tokens`` of a request's KV go from ``source`` to ``target``: an instance is drained, or vacated for a prefill.

    Those go that ``source`` got last. A group that shrinks or grows needs no move.
    """

    request: str
    source: int
    target: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Step:
    """One token of a running request: ``token_id`` at ``position`` is computed, and kept, by ``master``.

    ``holders``: all members that keep KV of the request before this step; the master need not be one of them.
    """

    request: str
    token_id: int
    position: int
    master: int
    holders: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sampling:
    """A request's own numbers, as OpenAI names them. ``temperature`` 0: the likeliest token; ``top_k`` 0: no bound.

    ``logprobs``: how many of the likeliest tokens are told, None: none, and not the chosen one either.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    logprobs: int | None = None


@dataclass(frozen=True, slots=True)
class Sampled:
    """A token; its log-probability and rank (1: the likeliest), and the likeliest ones with theirs, where asked for.

    Log-probabilities are those of the model, before temperature and bounds, as vLLM's.
    """

    token_id: int
    logprob: float | None = None
    rank: int = 1
    likeliest: tuple[tuple[int, float], ...] = ()
