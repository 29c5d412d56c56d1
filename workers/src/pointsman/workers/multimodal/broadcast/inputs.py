"""The inputs of one request on one rank, there or to come."""

import threading
import time
from collections.abc import Callable
from typing import Protocol

from pointsman.workers.multimodal.broadcast.messages import ErrorEnvelope
from pointsman.workers.multimodal.broadcast.metrics import BroadcastMetrics
from pointsman.workers.multimodal.broadcast.modes import Stamp

Materialise = Callable[[object], object]
"""Raw inputs to what the model takes. Called by several threads at once; what it raises reaches every rank."""


class Rank(Protocol):
    """What inputs need of the shell of their rank."""

    def materialise_if_due(self, sequence: int) -> None:
        """Materialise raw inputs on this thread, if that is not done in the background."""

    def cancel(self, sequence: int) -> None:
        """The request was aborted on this rank."""


class RequestInputs:
    """A request's inputs. ``get_inputs`` is called where they are needed, and not before."""

    def __init__(self, stamp: Stamp, rank: Rank, metrics: BroadcastMetrics) -> None:
        self.stamp = stamp
        self._rank = rank
        self._metrics = metrics
        self._ended = threading.Event()
        self._value: object = None
        self._error: ErrorEnvelope | None = None

    @property
    def ended(self) -> bool:
        """Whether ``get_inputs`` returns or raises at once."""
        return self._ended.is_set()

    def get_inputs(self, timeout_s: float | None = None) -> object:
        """The materialised inputs; None if the request has none. Waits for them.

        Raises the BroadcastError that every rank raises for this request; TimeoutError if nothing is known after
        ``timeout_s``.
        """
        if not self._ended.is_set():
            began_s = time.perf_counter()
            self._rank.materialise_if_due(self.stamp.sequence)
            came = self._ended.wait(timeout_s)
            self._metrics.blocked(time.perf_counter() - began_s)
            if not came:
                raise TimeoutError(f"the inputs of request {self.stamp.request_id} did not come in {timeout_s} s")
        if self._error is not None:
            raise self._error.exception()
        return self._value

    def cancel(self) -> None:
        """The request was aborted: on the entry rank, cancel for all ranks; on another rank, need them no more."""
        self._rank.cancel(self.stamp.sequence)

    def end(self, value: object, error: ErrorEnvelope | None) -> None:
        """Of the shell: how the inputs ended."""
        self._value = value
        self._error = error
        self._ended.set()
