"""How long a prefill takes on a group of instances: LoongServe's analytical model, fitted to measurements.

For each degree of parallelism, ``T(R) = alpha + beta * sum(len) + gamma * sum(len^2)`` over the prompts of the batch:
a constant, the linear layers, and attention (arXiv 2404.09526; the paper calls it the scaling information base).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from typing import Any, Final

LARGEST_ERROR: Final = 0.10
"""Mean relative error that a fit must stay below: the paper's bound."""

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

    def seconds(self, tokens: float, squared_tokens: float) -> float:
        """Of a batch whose prompts' lengths sum to ``tokens`` and their squares to ``squared_tokens``."""
        return self.alpha_s + self.beta_s * tokens + self.gamma_s * squared_tokens


@dataclass(frozen=True, slots=True)
class LatencyModel:
    """The fitted model of each degree that was measured."""

    by_degree: Mapping[int, PrefillTime]

    def prefill_time(self, degree: int) -> PrefillTime:
        """The model of ``degree``. Raises NotMeasured.

        There is no interpolation: the batching compares degrees, so it would prefer a degree for the error of a guess.
        """
        found = self.by_degree.get(degree)
        if found is None:
            raise NotMeasured(f"degree {degree} was not measured; measured are: {self._measured()}")
        return found

    def from_degree(self, least: int) -> "LatencyModel":
        """Without the degrees below ``least``."""
        return LatencyModel({degree: time for degree, time in self.by_degree.items() if degree >= least})

    def degrees_up_to(self, instances: int) -> list[int]:
        """The measured degrees that so many instances can form, ascending."""
        return sorted(degree for degree in self.by_degree if degree <= instances)

    def largest(self, instances: int) -> PrefillTime:
        """The model of the largest measured degree of so many instances. Raises NotMeasured."""
        degrees = self.degrees_up_to(instances)
        if not degrees:
            raise NotMeasured(f"no degree up to {instances} was measured; measured are: {self._measured()}")
        return self.by_degree[degrees[-1]]

    def seconds(self, prompts: Iterable[int], instances: int) -> float:
        """The time of one batch of ``prompts`` (tokens each) on the largest measured degree of ``instances``.

        Instances beyond that degree are counted as idle. Raises NotMeasured.
        """
        lengths = list(prompts)
        return self.largest(instances).seconds(sum(lengths), sum(length * length for length in lengths))

    def to_json(self) -> dict[str, dict[str, float]]:
        """Plain values for storage; ``from_json`` reads them."""
        return {
            str(degree): {
                "alphaSeconds": time.alpha_s,
                "betaSecondsPerToken": time.beta_s,
                "gammaSecondsPerSquaredToken": time.gamma_s,
                "error": time.error,
            }
            for degree, time in sorted(self.by_degree.items())
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Mapping[str, Any]]) -> "LatencyModel":
        """Raises ValueError with a sentence that names the degree and the field."""
        by_degree = {}
        for key, values in stored.items():
            if not key.isdecimal() or int(key) < 1:
                raise ValueError(f"latency model: degree is {key!r}; it must be a whole number of at least 1")
            numbers = []
            for field in ("alphaSeconds", "betaSecondsPerToken", "gammaSecondsPerSquaredToken", "error"):
                value = values.get(field)
                if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
                    raise ValueError(f"latency model: {field} of degree {key} is {value!r}; it must be 0 or more")
                numbers.append(float(value))
            by_degree[int(key)] = PrefillTime(*numbers)
        return cls(by_degree)

    def _measured(self) -> str:
        return ", ".join(map(str, sorted(self.by_degree))) or "none"


def extrapolate(one: PrefillTime, degree: int, efficiency: float, communication_s: float) -> PrefillTime:
    """The assumed model of ``degree`` from the one measured on a single instance, for simulations only.

    The linear and the quadratic term are divided by ``degree * efficiency``; the ring adds ``communication_s`` for
    each further member (``reference/algorithms.md``, section 3.8). A manager of real instances measures instead.
    """
    if degree < 1 or not 0 < efficiency <= 1 or communication_s < 0:
        raise ValueError(f"degree {degree}, efficiency {efficiency}, communication {communication_s}: not possible")
    speedup = degree * efficiency if degree > 1 else 1.0
    return PrefillTime(
        one.alpha_s + (degree - 1) * communication_s, one.beta_s / speedup, one.gamma_s / speedup, one.error
    )


def fit_prefill_time(
    batches: Sequence[tuple[Sequence[int], float]], largest_error: float = LARGEST_ERROR
) -> PrefillTime:
    """The model that fits ``batches``, (lengths of the prompts, seconds), with the least relative squared error.

    Rows are divided by the measured time, so that short batches count as much as long ones. No coefficient is
    negative, because more tokens never take less time. Raises BadFit for fewer than four batches, for a time that is
    not above 0, and for a mean relative error of ``largest_error`` or more.
    """
    if len(batches) <= TERMS:
        raise BadFit(f"{len(batches)} batches were measured; {TERMS} numbers need at least {TERMS + 1}")
    for lengths, took_s in batches:
        if not 0 < took_s < float("inf") or not lengths:
            raise BadFit(f"a batch of {len(lengths)} prompts took {took_s} s; both must be above 0")
    rows = [
        [1 / took_s, sum(lengths) / took_s, sum(length * length for length in lengths) / took_s]
        for lengths, took_s in batches
    ]
    best = min(
        (found for chosen in _subsets() if (found := _least_squares(rows, chosen)) is not None),
        key=lambda found: _residual(rows, found),
    )
    error = sum(abs(_product(row, best) - 1) for row in rows) / len(rows)
    if error >= largest_error:
        raise BadFit(f"the mean relative error of the fit is {error:.0%}; it must be below {largest_error:.0%}")
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
