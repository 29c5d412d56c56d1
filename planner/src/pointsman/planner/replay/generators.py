"""Synthetic loads by name: ``step``, ``ramp``, ``burst``, ``mixshift``, ``onoff``, ``steady``.

Arrivals are an inhomogeneous Poisson process (thinning, Lewis and Shedler 1979), lengths are gamma distributed with
the stated mean. No request shares a prefix with another. The same parameters and seed give the same trace; images do
not change the rest of it.

A name may be followed by parameters: ``burst:high=20,length_s=90``.
"""

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import ClassVar

from pointsman.planner.errors import TraceError
from pointsman.planner.replay.requests import Arrived, trace_of
from pointsman.planner.simulator.types import Trace

MIN_PROMPT_TOKENS = 16
MIN_OUTPUT_TOKENS = 2


@dataclass(frozen=True, slots=True)
class Segment:
    """From ``start_s`` on, the rate goes linearly from ``rate`` to ``end_rate``; lengths are means."""

    start_s: float
    end_s: float
    rate: float
    end_rate: float
    prompt_tokens: float
    output_tokens: float
    image_share: float | None = None  # None: the shape's


@dataclass(frozen=True, slots=True, kw_only=True)
class _WithImages:
    """``images``: mean of a request that has any, at least 1, or 0 where none has; ``image_share``: of requests."""

    images: float = 0.0
    image_share: float = 1.0


@dataclass(frozen=True, slots=True)
class Steady(_WithImages):
    """A constant rate: the load nothing should be switched for."""

    name: ClassVar[str] = "steady"
    rate: float = 6.0
    duration_s: float = 900.0
    prompt_tokens: float = 2000.0
    output_tokens: float = 250.0
    length_cv: float = 0.25

    def segments(self, _: random.Random) -> list[Segment]:
        return [Segment(0.0, self.duration_s, self.rate, self.rate, self.prompt_tokens, self.output_tokens)]


@dataclass(frozen=True, slots=True)
class Step(_WithImages):
    """A sudden rise, and back: nothing announces it."""

    name: ClassVar[str] = "step"
    low: float = 3.0
    high: float = 14.0
    up_s: float = 300.0
    down_s: float = 800.0
    duration_s: float = 1200.0
    prompt_tokens: float = 4000.0
    output_tokens: float = 250.0
    length_cv: float = 0.25

    def segments(self, _: random.Random) -> list[Segment]:
        return _pieces(self, [(0.0, self.low), (self.up_s, self.high), (self.down_s, self.low)])


@dataclass(frozen=True, slots=True)
class Ramp(_WithImages):
    """A steady rise over minutes, and a quicker fall: what a forecast is for."""

    name: ClassVar[str] = "ramp"
    low: float = 3.0
    high: float = 18.0
    rise_s: float = 600.0
    fall_s: float = 300.0
    level_s: float = 200.0  # before the rise and after the fall
    prompt_tokens: float = 4000.0
    output_tokens: float = 250.0
    length_cv: float = 0.25

    @property
    def duration_s(self) -> float:
        return 2 * self.level_s + self.rise_s + self.fall_s

    def segments(self, _: random.Random) -> list[Segment]:
        marks = [0.0, self.level_s, self.level_s + self.rise_s, self.level_s + self.rise_s + self.fall_s]
        rates = [(self.low, self.low), (self.low, self.high), (self.high, self.low), (self.low, self.low)]
        lengths = self.prompt_tokens, self.output_tokens
        ends = [*marks[1:], self.duration_s]
        return [Segment(a, b, r[0], r[1], *lengths) for a, b, r in zip(marks, ends, rates, strict=True)]


@dataclass(frozen=True, slots=True)
class Burst(_WithImages):
    """Ten times the load for a minute: shorter than a cold start of most models."""

    name: ClassVar[str] = "burst"
    low: float = 1.6
    high: float = 16.0
    at_s: float = 400.0
    length_s: float = 60.0
    duration_s: float = 1000.0
    prompt_tokens: float = 4000.0
    output_tokens: float = 250.0
    length_cv: float = 0.25

    def segments(self, _: random.Random) -> list[Segment]:
        return _pieces(self, [(0.0, self.low), (self.at_s, self.high), (self.at_s + self.length_s, self.low)])


@dataclass(frozen=True, slots=True)
class MixShift(_WithImages):
    """Long prompts and short answers turn into short prompts and long answers: the same workers, other roles."""

    name: ClassVar[str] = "mixshift"
    rate: float = 7.5
    prompt_tokens: float = 4000.0
    output_tokens: float = 100.0
    later_rate: float = 15.0
    later_prompt_tokens: float = 500.0
    later_output_tokens: float = 600.0
    later_image_share: float | None = None  # None: as before
    at_s: float = 600.0
    duration_s: float = 1200.0
    length_cv: float = 0.25

    def segments(self, _: random.Random) -> list[Segment]:
        later = self.later_prompt_tokens, self.later_output_tokens
        return [
            Segment(0.0, self.at_s, self.rate, self.rate, self.prompt_tokens, self.output_tokens),
            Segment(self.at_s, self.duration_s, self.later_rate, self.later_rate, *later, self.later_image_share),
        ]


@dataclass(frozen=True, slots=True)
class OnOff(_WithImages):
    """Bursts of random length with random pauses (both exponential): waiting for a cold start is always too late."""

    name: ClassVar[str] = "onoff"
    low: float = 1.0
    high: float = 12.0
    on_s: float = 30.0
    off_s: float = 90.0
    duration_s: float = 1800.0
    prompt_tokens: float = 2000.0
    output_tokens: float = 200.0
    length_cv: float = 0.25

    def segments(self, rng: random.Random) -> list[Segment]:
        for name in ("on_s", "off_s"):
            if getattr(self, name) <= 0:
                raise TraceError(f"{self.name}: {name} is {getattr(self, name):g}: a number above 0 is needed")
        marks, at_s, on = [], 0.0, False
        while at_s < self.duration_s:
            marks.append((at_s, self.high if on else self.low))
            at_s += rng.expovariate(1 / (self.on_s if on else self.off_s))
            on = not on
        return _pieces(self, marks)


Shape = Steady | Step | Ramp | Burst | MixShift | OnOff
"""A load over time: rates are requests a second, lengths mean tokens, ``length_cv`` their coefficient of variation and
that of images a request."""

SHAPES: Mapping[str, type[Shape]] = {made.name: made for made in (Steady, Step, Ramp, Burst, MixShift, OnOff)}


def named_shape(text: str) -> Shape:
    """``step`` or ``step:high=20,up_s=100`` as a shape.

    Raises TraceError for an unknown name or parameter (with the nearest), and for a value that cannot be.
    """
    name, _, rest = text.partition(":")
    if name not in SHAPES:
        near = get_close_matches(name, SHAPES, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(SHAPES)}"
        raise TraceError(f"there is no file and no synthetic load '{name}'; {hint}")
    made = SHAPES[name]
    known = [field.name for field in fields(made) if field.init]
    values: dict[str, float] = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if key not in known:
            near = get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
            raise TraceError(f"{name} has no parameter '{key}'; {hint}")
        values[key] = _number(f"{name}: {key}", value if equals else "")
    return made(**values)


def described(shape: Shape) -> str:
    """Its name and parameters, as they are written after it; those of images only where it has some.

    What is None is as something else is: it is not said.
    """
    values = {field.name: getattr(shape, field.name) for field in fields(shape) if field.init}
    known = {key: value for key, value in values.items() if value is not None and (shape.images or "image" not in key)}
    return f"{shape.name}:{','.join(f'{key}={value:g}' for key, value in known.items())}"


def generate(shape: Shape, seed: int) -> Trace:
    """The load's requests. Raises TraceError if the shape gives none, or cannot be."""
    rng, images = random.Random(seed), random.Random(f"{seed} images")
    for name in ("image_share", "later_image_share"):
        share = getattr(shape, name, None)
        if share is not None and share > 1:
            raise TraceError(f"{shape.name}: {name} is {share:g}: a share of 0 to 1 is needed")
    if 0 < shape.images < 1:
        raise TraceError(f"{shape.name}: images is {shape.images:g}: 1 or more of a request that has any, or 0")
    requests = [
        Arrived(
            arrival_s=at_s,
            prompt_tokens=_length(rng, piece.prompt_tokens, shape.length_cv, MIN_PROMPT_TOKENS),
            output_tokens=_length(rng, piece.output_tokens, shape.length_cv, MIN_OUTPUT_TOKENS),
            images=_images(images, shape, piece),
        )
        for piece in shape.segments(rng)
        for at_s in _arrivals(rng, piece)
    ]
    if not requests:
        raise TraceError(f"{shape.name} gives no request: its rates or its duration are 0")
    return trace_of(shape.name, requests)


def _arrivals(rng: random.Random, piece: Segment) -> Iterator[float]:
    peak = max(piece.rate, piece.end_rate)
    if peak <= 0 or piece.end_s <= piece.start_s:
        return
    length_s, at_s = piece.end_s - piece.start_s, piece.start_s
    while (at_s := at_s + rng.expovariate(peak)) < piece.end_s:
        rate = piece.rate + (piece.end_rate - piece.rate) * (at_s - piece.start_s) / length_s
        if rng.random() * peak <= rate:
            yield at_s


def _length(rng: random.Random, mean: float, cv: float, least: int) -> int:
    if cv <= 0 or mean <= 0:
        return max(least, round(mean))
    return max(least, round(rng.gammavariate(1 / cv**2, mean * cv**2)))


def _images(rng: random.Random, shape: Shape, piece: Segment) -> int:
    share = shape.image_share if piece.image_share is None else piece.image_share
    if shape.images <= 0 or rng.random() >= share:
        return 0
    return _length(rng, shape.images, shape.length_cv, 1)


def _pieces(shape: "Step | Burst | OnOff", marks: list[tuple[float, float]]) -> list[Segment]:
    """Constant rates from each mark to the next, cut at the shape's end."""
    ends = [*(at_s for at_s, _ in marks), shape.duration_s][1:]
    lengths = shape.prompt_tokens, shape.output_tokens
    return [
        Segment(at_s, min(end_s, shape.duration_s), rate, rate, *lengths)
        for (at_s, rate), end_s in zip(marks, ends, strict=True)
        if at_s < shape.duration_s
    ]


def _number(what: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0:
        raise TraceError(f"{what} is '{text}': a number of 0 or more is needed")
    return value
