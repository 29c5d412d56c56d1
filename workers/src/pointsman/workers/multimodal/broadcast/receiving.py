"""The state machine of every rank that is not the entry rank: it follows the entry rank's verdicts. Pure.

The stamp of a request and its parcel come by different ways, in either order. Each event returns what the shell has
to do, in order.
"""

from dataclasses import dataclass
from enum import Enum, auto

from pointsman.workers.multimodal.broadcast.messages import ErrorEnvelope, cancelled_envelope
from pointsman.workers.multimodal.broadcast.modes import Mode, Stamp


@dataclass(frozen=True, slots=True)
class Materialise:
    """Materialise the raw inputs in the background; answer with ``materialised``."""

    sequence: int


@dataclass(frozen=True, slots=True)
class SendReport:
    """Tell the entry rank how materialising ended here."""

    sequence: int
    error: ErrorEnvelope | None


@dataclass(frozen=True, slots=True)
class ResolveHere:
    """The request's inputs ended: they are here, or ``error``. A request that was stamped can now be answered."""

    sequence: int
    error: ErrorEnvelope | None


@dataclass(frozen=True, slots=True)
class Drop:
    """Nobody here needs the parcel or the inputs made from it."""

    sequence: int


ReceivingAction = Materialise | SendReport | ResolveHere | Drop


class _Parcel(Enum):
    ABSENT = auto()
    RAW = auto()
    REPORTED = auto()


@dataclass(slots=True)
class _Inputs:
    stamp: Stamp | None = None
    parcel: _Parcel = _Parcel.ABSENT
    decided: bool = False
    error: ErrorEnvelope | None = None
    unwanted: bool = False


class ReceivingMachine:
    """Inputs as one rank sees them."""

    def __init__(self) -> None:
        self._inputs: dict[int, _Inputs] = {}
        self._end: ErrorEnvelope | None = None

    @property
    def pending(self) -> int:
        """Requests that are undecided, or whose stamp has not come."""
        return len(self._inputs)

    def expect(self, stamp: Stamp) -> list[ReceivingAction]:
        """The request reached this rank, with its stamp."""
        inputs = self._of(stamp.sequence)
        inputs.stamp = stamp
        if inputs.decided:
            return self._finish(stamp.sequence, inputs)
        if self._end is not None:
            return self._decide(stamp.sequence, inputs, self._end)
        return self._materialise_if_due(stamp.sequence, inputs)

    def object_arrived(self, sequence: int) -> list[ReceivingAction]:
        """The materialised inputs are here: they count as delivered."""
        return self._decide(sequence, self._of(sequence), None)

    def raw_arrived(self, sequence: int) -> list[ReceivingAction]:
        """The raw inputs are here."""
        inputs = self._of(sequence)
        inputs.parcel = _Parcel.RAW
        return self._materialise_if_due(sequence, inputs)

    def materialised(self, sequence: int, error: ErrorEnvelope | None) -> list[ReceivingAction]:
        """The raw inputs are materialised here, or could not be."""
        inputs = self._inputs.get(sequence)
        if inputs is None or inputs.parcel is not _Parcel.RAW:
            return []
        inputs.parcel = _Parcel.REPORTED
        return [SendReport(sequence, error)]

    def verdict(self, sequence: int, error: ErrorEnvelope | None) -> list[ReceivingAction]:
        """How the request's inputs ended on every rank."""
        return self._decide(sequence, self._of(sequence), error)

    def discard(self, sequence: int) -> list[ReceivingAction]:
        """The request ended on this rank: it does not need its inputs any more."""
        inputs = self._inputs.get(sequence)
        if inputs is None:
            return [Drop(sequence)]
        inputs.unwanted = True
        return self._report_unwanted(sequence, inputs)

    def end(self, error: ErrorEnvelope) -> list[ReceivingAction]:
        """No message comes any more: what is undecided ends with ``error``."""
        if self._end is not None:
            return []
        self._end = error
        actions: list[ReceivingAction] = []
        for sequence, inputs in list(self._inputs.items()):
            if not inputs.decided:
                actions += self._decide(sequence, inputs, error) if inputs.stamp else self._forget(sequence)
        return actions

    def _forget(self, sequence: int) -> list[ReceivingAction]:
        del self._inputs[sequence]  # a stamp that comes later finds that the group has ended
        return [Drop(sequence)]

    def _of(self, sequence: int) -> _Inputs:
        return self._inputs.setdefault(sequence, _Inputs())

    def _materialise_if_due(self, sequence: int, inputs: _Inputs) -> list[ReceivingAction]:
        if inputs.parcel is not _Parcel.RAW or inputs.stamp is None:
            return []
        if inputs.unwanted:
            return self._report_unwanted(sequence, inputs)
        return [Materialise(sequence)] if inputs.stamp.mode is Mode.COMBINED else []

    def _report_unwanted(self, sequence: int, inputs: _Inputs) -> list[ReceivingAction]:
        """The other ranks wait for this one's report. It has nothing to deliver, so no rank may count it as there."""
        return self.materialised(sequence, cancelled_envelope(inputs.stamp.request_id) if inputs.stamp else None)

    def _decide(self, sequence: int, inputs: _Inputs, error: ErrorEnvelope | None) -> list[ReceivingAction]:
        if inputs.decided:
            return []
        inputs.decided = True
        inputs.error = error
        return self._finish(sequence, inputs) if inputs.stamp is not None else []

    def _finish(self, sequence: int, inputs: _Inputs) -> list[ReceivingAction]:
        del self._inputs[sequence]
        actions: list[ReceivingAction] = [ResolveHere(sequence, inputs.error)]
        return actions + ([Drop(sequence)] if inputs.error is not None or inputs.unwanted else [])
