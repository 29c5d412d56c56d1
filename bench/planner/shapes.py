"""Shapes of random loads: relative rates, one a second."""

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def _levels(draw: np.random.Generator, at_s: Floats) -> Floats:
    rates, mean_s, begin = np.ones_like(at_s), draw.uniform(60, 300), 0
    while begin < len(at_s):
        end = begin + int(draw.exponential(mean_s)) + 5
        rates[begin:end], begin = draw.uniform(0.4, 2.5), end
    return rates


def _spikes(draw: np.random.Generator, at_s: Floats) -> Floats:
    rates = np.ones_like(at_s)
    for _ in range(draw.integers(1, 6)):
        begin = int(draw.uniform(0, len(at_s)))
        rates[begin : begin + int(draw.uniform(15, 120))] *= draw.uniform(2, 8)
    return rates


def _step(draw: np.random.Generator, at_s: Floats) -> Floats:
    begin, end = sorted(draw.uniform(0.2, 0.9, 2) * len(at_s))
    return np.where((at_s > begin) & (at_s < end), draw.uniform(2, 5), 1.0)


def _walk(draw: np.random.Generator, at_s: Floats) -> Floats:
    rates: Floats = np.exp(np.cumsum(draw.normal(0, 0.012, len(at_s))))
    return np.clip(rates / np.median(rates), 0.25, 4)


def _pulses(draw: np.random.Generator, at_s: Floats) -> Floats:
    every_s = draw.uniform(60, 600)
    return np.where(at_s % every_s < every_s * draw.uniform(0.1, 0.5), draw.uniform(2, 6), 1.0)


def _fall_and_return(draw: np.random.Generator, at_s: Floats) -> Floats:
    fallen = 1 - 0.8 * np.clip((at_s - 300) / draw.uniform(200, 1000), 0, 1)
    return fallen + np.where(at_s > 0.75 * len(at_s), draw.uniform(0.3, 1.5), 0)


def _wave(draw: np.random.Generator, at_s: Floats) -> Floats:
    return 1 + draw.uniform(0.3, 0.8) * np.sin(2 * np.pi * at_s / draw.uniform(300, 1800) + draw.uniform(0, 6))


def _ramp(draw: np.random.Generator, at_s: Floats) -> Floats:
    return 1 + draw.uniform(1, 5) * np.clip((at_s - draw.uniform(100, 600)) / draw.uniform(120, 900), 0, 1)


def _drop(draw: np.random.Generator, at_s: Floats) -> Floats:
    return np.where(at_s < draw.uniform(0.3, 0.7) * len(at_s), 1.0, draw.uniform(0.1, 0.5))


SHAPES: Final[dict[str, Callable[[np.random.Generator, Floats], Floats]]] = {
    "constant": lambda draw, at_s: np.ones_like(at_s),
    "step": _step,
    "wave": _wave,
    "ramp": _ramp,
    "levels": _levels,
    "spikes": _spikes,
    "walk": _walk,
    "pulses": _pulses,
    "drop": _drop,
    "fall and return": _fall_and_return,
}
