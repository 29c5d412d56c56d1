"""One request of a trace, and traces made of, or changed by, requests."""

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from pointsman.planner.errors import TraceError
from pointsman.planner.simulator.types import Ints, Trace


class Arrived(NamedTuple):
    """One request. ``prefix_blocks``: ids of the prompt's blocks in order, equal for an equal prefix; () if unknown."""

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    prefix_blocks: tuple[int, ...] = ()
    images: int = 0


def trace_of(name: str, requests: Iterable[Arrived], block_tokens: int = 512) -> Trace:
    """The requests in the order of their arrival, the first at 0 s or later as it is given."""
    ordered = sorted(requests, key=lambda request: request.arrival_s)
    prefixes_known = any(request.prefix_blocks for request in ordered)
    return Trace(
        name=name,
        arrival_s=np.array([request.arrival_s for request in ordered], dtype=np.float64),
        prompt_tokens=np.array([request.prompt_tokens for request in ordered], dtype=np.int64),
        output_tokens=np.array([request.output_tokens for request in ordered], dtype=np.int64),
        prefix_blocks=tuple(request.prefix_blocks for request in ordered) if prefixes_known else None,
        block_tokens=block_tokens,
        images=_images(request.images for request in ordered),
    )


def _images(counts: Iterable[int]) -> Ints | None:
    """None where nobody has any."""
    found = np.array(list(counts), dtype=np.int64)
    return found if found.any() else None


def faster(trace: Trace, times: float) -> Trace:
    """The same requests in ``1/times`` of the time: the rate grows ``times``-fold, and so does every burst."""
    if not times > 0:
        raise TraceError(f"the time scale is {times}: a number above 0 is needed")
    return trace if times == 1 else replace(trace, arrival_s=trace.arrival_s / times)


def first(trace: Trace, seconds: float) -> Trace:
    """The requests that arrive in the first ``seconds``. Raises TraceError if there is none."""
    count = int(np.searchsorted(trace.arrival_s, seconds, side="left"))
    if count == 0:
        raise TraceError(f"{trace.name}: no request arrives in the first {seconds:g} s; its last comes at "
                         f"{trace.duration_s:.0f} s")  # fmt: skip
    return replace(
        trace,
        arrival_s=trace.arrival_s[:count],
        prompt_tokens=trace.prompt_tokens[:count],
        output_tokens=trace.output_tokens[:count],
        prefix_blocks=trace.prefix_blocks[:count] if trace.prefix_blocks is not None else None,
        images=_images(trace.images[:count].tolist()) if trace.images is not None else None,
    )


def superposed(trace: Trace, copies: int) -> Trace:
    """``copies`` of the trace at once, each begun at another point of it and wrapped round at its end.

    The rate grows ``copies``-fold while minutes stay minutes: unlike ``faster`` it does not sharpen ramps. Prefixes are
    shared within a copy, not between copies.
    """
    if copies < 1:
        raise TraceError(f"copies is {copies}: 1 or more are needed")
    if copies == 1:
        return trace
    length_s = max(trace.duration_s, 1e-9)
    shifts = [number * length_s / copies for number in range(copies)]
    arrivals = np.concatenate([(trace.arrival_s + shift) % length_s for shift in shifts])
    order = np.argsort(arrivals, kind="stable")
    blocks = None
    if trace.prefix_blocks is not None:
        stride = 1 + max((max(ids) for ids in trace.prefix_blocks if ids), default=0)
        every = [tuple(block + copy * stride for block in ids) for copy in range(copies) for ids in trace.prefix_blocks]
        blocks = tuple(every[index] for index in order)
    return replace(
        trace,
        name=f"{copies}x {trace.name}",
        arrival_s=arrivals[order],
        prompt_tokens=np.tile(trace.prompt_tokens, copies)[order],
        output_tokens=np.tile(trace.output_tokens, copies)[order],
        prefix_blocks=blocks,
        images=np.tile(trace.images, copies)[order] if trace.images is not None else None,
    )
