"""How long a prefill takes on a group of instances: LoongServe's analytical model, fitted to measurements.

For each degree of parallelism, ``T(R) = alpha + beta * sum(len) + gamma * sum(len^2)`` over the prompts of the batch:
a constant, the linear layers, attention (section 5.1 of the paper, its scaling information base).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from typing import Final

LARGEST_ERROR: Final = 0.10
"""Mean relative error that a fit may have: the paper's bound."""

TERMS: Final = 3


class NotMeasured(LookupError):
    """There is no model for this degree."""


class BadFit(ValueError):
    """The measurements do not follow the model closely enough, or are too few."""


@dataclass(frozen=True, slots=True)
class PrefillTime:
    """Of one degree: seconds, seconds a token, seconds a squared token; ``error``: mean relative error of the fit."""

    alpha_s: float
    beta_s: float
    gamma_s: float
    error: float = 0.0

    def seconds(self, tokens: int, squared_tokens: int) -> float:
        """Of a batch whose prompts' lengths sum to ``tokens`` and their squares to ``squared_tokens``."""
        return self.alpha_s + self.beta_s * tokens + self.gamma_s * squared_tokens


@dataclass(frozen=True, slots=True)
class LatencyModel:
    """The fitted model of each degree that was measured."""

    by_degree: Mapping[int, PrefillTime]

    def of(self, degree: int) -> PrefillTime:
        """The model of ``degree``. Raises NotMeasured: a guess between degrees would be chosen for being one."""
        found = self.by_degree.get(degree)
        if found is None:
            measured = ", ".join(map(str, sorted(self.by_degree))) or "none"
            raise NotMeasured(f"degree {degree} was not measured; measured are: {measured}")
        return found


def fitted(batches: Sequence[tuple[Sequence[int], float]]) -> PrefillTime:
    """The model that fits ``batches``, (lengths of the prompts, seconds), with the least relative squared error.

    No coefficient is negative: more tokens never take less time. Raises BadFit for fewer than four batches, and for a
    mean relative error of `LARGEST_ERROR` and more.
    """
    if len(batches) <= TERMS:
        raise BadFit(f"{len(batches)} batches were measured; {TERMS} numbers need at least {TERMS + 1}")
    rows = [
        [1 / took_s, sum(lengths) / took_s, sum(length * length for length in lengths) / took_s]
        for lengths, took_s in batches
    ]
    best = min(
        (found for chosen in _subsets() if (found := _least_squares(rows, chosen)) is not None),
        key=lambda found: _residual(rows, found),
    )
    error = sum(abs(_product(row, best) - 1) for row in rows) / len(rows)
    if error >= LARGEST_ERROR:
        raise BadFit(f"the mean relative error of the fit is {error:.0%}; it must be below {LARGEST_ERROR:.0%}")
    alpha_s, beta_s, gamma_s = best
    return PrefillTime(alpha_s, beta_s, gamma_s, error)


def _subsets() -> list[tuple[int, ...]]:
    """Which terms may be above 0: the best of these fits is the best one without negative numbers."""
    return list(chain.from_iterable(combinations(range(TERMS), count) for count in range(1, TERMS + 1)))


def _least_squares(rows: Sequence[Sequence[float]], chosen: Sequence[int]) -> list[float] | None:
    """Numbers of the ``chosen`` terms with which each row comes nearest to 1; None: not one answer, or one below 0."""
    size = len(chosen)
    # Terms are of very different sizes (1, tokens, squared tokens): each is scaled by its own length.
    scales = [sum(row[term] ** 2 for row in rows) ** 0.5 for term in chosen]
    if not all(scales):
        return None
    columns = [[row[term] / scale for row in rows] for term, scale in zip(chosen, scales, strict=True)]
    matrix = [[*(_product(one, other) for other in columns), sum(one)] for one in columns]
    for pivot in range(size):  # Gauss and Jordan, the largest pivot first
        largest = max(range(pivot, size), key=lambda row: abs(matrix[row][pivot]))
        matrix[pivot], matrix[largest] = matrix[largest], matrix[pivot]
        if abs(matrix[pivot][pivot]) < 1e-9:
            return None
        for row in range(size):
            if row != pivot:
                factor = matrix[row][pivot] / matrix[pivot][pivot]
                matrix[row] = [a - factor * b for a, b in zip(matrix[row], matrix[pivot], strict=True)]
    found = [0.0] * TERMS
    for number, (term, scale) in enumerate(zip(chosen, scales, strict=True)):
        found[term] = matrix[number][size] / matrix[number][number] / scale
    return found if min(found) >= 0 else None


def _residual(rows: Sequence[Sequence[float]], numbers: Sequence[float]) -> float:
    return sum((_product(row, numbers) - 1) ** 2 for row in rows)


def _product(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))
