"""One request on its way."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pointsman.planner.simulator.worker import SimulatedWorker


@dataclass(slots=True, eq=False)
class Request:
    """Token counts and where it is. ``prompt_tokens`` is what must be in the KV cache before the next token."""

    index: int
    prompt_tokens: int  # grows by what was generated when it must be computed again
    to_generate: int  # tokens still to come
    arrived_s: float
    blocks: tuple[int, ...] = ()
    cached_tokens: int = 0  # of the prompt, at the decode worker it was sent to
    new_tokens: int = 0  # to be computed, where it is prefilled
    computed_tokens: int = 0  # of a local prefill that takes several steps
    ends_at_step: int = -1  # of its decode worker's count; -1: not decoding there
    pulled_tokens: int = 0  # whose KV is sent …
    pulling_s: float = 0.0  # … in so long
    ready_s: float = float("nan")  # its images, if it has any, were encoded
    first_token_s: float = float("nan")
    preemptions: int = 0
    pending_tokens: int = 0  # what it adds to its worker's pending work, until its first token …
    counted_tokens: int = 0  # … and to what flow control counts as pending
    worker: "SimulatedWorker | None" = None  # the decode worker it is assigned to
