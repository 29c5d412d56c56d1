"""Shapes of random loads: relative rates, one a second."""

from typing import Final

import numpy as np

from pointsman.planner.simulator.types import Floats


def constant(_: np.random.Generator, at_s: Floats) -> Floats:
    """Always the same."""
    return np.ones_like(at_s)


def levels(draw: np.random.Generator, at_s: Floats) -> Floats:
    rates, mean_s, begin = np.ones_like(at_s), draw.uniform(60, 300), 0
    while begin < len(at_s):
        end = begin + int(draw.exponential(mean_s)) + 5
        rates[begin:end], begin = draw.uniform(0.4, 2.5), end
    return rates


def spikes(draw: np.random.Generator, at_s: Floats) -> Floats:
    rates = np.ones_like(at_s)
    for _ in range(draw.integers(1, 6)):
        begin = int(draw.uniform(0, len(at_s)))
        rates[begin : begin + int(draw.uniform(15, 120))] *= draw.uniform(2, 8)
    return rates


def step(draw: np.random.Generator, at_s: Floats) -> Floats:
    begin, end = sorted(draw.uniform(0.2, 0.9, 2) * len(at_s))
    return np.where((at_s > begin) & (at_s < end), draw.uniform(2, 5), 1.0)


def walk(draw: np.random.Generator, at_s: Floats) -> Floats:
    rates: Floats = np.exp(np.cumsum(draw.normal(0, 0.012, len(at_s))))
    return np.clip(rates / np.median(rates), 0.25, 4)


def pulses(draw: np.random.Generator, at_s: Floats) -> Floats:
    every_s = draw.uniform(60, 600)
    return np.where(at_s % every_s < every_s * draw.uniform(0.1, 0.5), draw.uniform(2, 6), 1.0)


def fall_and_return(draw: np.random.Generator, at_s: Floats) -> Floats:
    fallen = 1 - 0.8 * np.clip((at_s - 300) / draw.uniform(200, 1000), 0, 1)
    return fallen + np.where(at_s > 0.75 * len(at_s), draw.uniform(0.3, 1.5), 0)


def wave(draw: np.random.Generator, at_s: Floats) -> Floats:
    return 1 + draw.uniform(0.3, 0.8) * np.sin(2 * np.pi * at_s / draw.uniform(300, 1800) + draw.uniform(0, 6))


def ramp(draw: np.random.Generator, at_s: Floats) -> Floats:
    return 1 + draw.uniform(1, 5) * np.clip((at_s - draw.uniform(100, 600)) / draw.uniform(120, 900), 0, 1)


def drop(draw: np.random.Generator, at_s: Floats) -> Floats:
    return np.where(at_s < draw.uniform(0.3, 0.7) * len(at_s), 1.0, draw.uniform(0.1, 0.5))


SHAPES: Final = {
    shape.__name__.replace("_", " "): shape
    for shape in (constant, step, wave, ramp, levels, spikes, walk, pulses, drop, fall_and_return)
}


def arrivals(draw: np.random.Generator, rates: Floats) -> Floats:
    """Seconds at which requests of a Poisson process come, whose rate is given for each second."""
    counts = draw.poisson(rates)
    return np.sort(np.repeat(np.arange(len(rates)), counts) + draw.random(counts.sum()))
