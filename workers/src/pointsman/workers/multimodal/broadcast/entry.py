"""The entry rank's state machine: it alone decides how every request's inputs end. Pure.

Each event returns what the shell has to do, in order. Messages go to all other ranks in that one order, so every rank
sees the same verdicts.
"""

from dataclasses import dataclass, field
from enum import Enum, auto

from pointsman.workers.multimodal.broadcast.errors import PendingMemoryFull
from pointsman.workers.multimodal.broadcast.messages import ErrorEnvelope, ErrorKind, cancelled_envelope, envelope
from pointsman.workers.multimodal.broadcast.modes import Mode, Stamp

ENTRY_RANK = 0


@dataclass(frozen=True, slots=True)
class Prepare:
    """Make the request's parcel in the background; answer with ``prepared``."""

    sequence: int


@dataclass(frozen=True, slots=True)
class SendParcel:
    """Send the parcel that was prepared, as Object or as Raw."""

    sequence: int


@dataclass(frozen=True, slots=True)
class SendVerdict:
    """Send how the request's inputs ended."""

    sequence: int
    error: ErrorEnvelope | None


@dataclass(frozen=True, slots=True)
class SendEnd:
    """Send the last message of the group."""

    error: ErrorEnvelope


@dataclass(frozen=True, slots=True)
class Resolve:
    """The request's inputs ended on this rank: it has them, or ``error``."""

    sequence: int
    error: ErrorEnvelope | None


@dataclass(frozen=True, slots=True)
class Free:
    """No rank reads the request's parcel any more."""

    sequence: int


EntryAction = Prepare | SendParcel | SendVerdict | SendEnd | Resolve | Free


class _Phase(Enum):
    PREPARING = auto()
    MATERIALISING = auto()  # the ranks do, from raw inputs
    DECIDED = auto()


@dataclass(slots=True)
class _Inputs:
    stamp: Stamp
    pending_bytes: int
    phase: _Phase = _Phase.PREPARING
    prepared: bool = False
    reports_missing: set[int] = field(default_factory=set)
    readers: set[int] = field(default_factory=set)  # ranks that may still read the parcel


class EntryMachine:
    """Inputs of a group of ``world_size`` ranks, of which this is rank 0.

    ``takes_inputs``: whether this rank itself needs the inputs. ``max_pending_bytes`` bounds what is accepted: inputs
    count from their submission until no other rank reads their parcel.
    """

    def __init__(self, world_size: int, max_pending_bytes: int, *, takes_inputs: bool = True) -> None:
        self._others = frozenset(range(1, world_size))
        self._max_pending_bytes = max_pending_bytes
        self._takes_inputs = takes_inputs
        self._inputs: dict[int, _Inputs] = {}
        self._next_sequence = 0
        self._undecided = 0
        self._end: ErrorEnvelope | None = None
        self._closing = False
        self.pending_bytes = 0

    @property
    def undecided(self) -> int:
        """Requests whose inputs have not ended yet."""
        return self._undecided

    @property
    def ended(self) -> bool:
        """Whether the last message of the group was sent."""
        return self._end is not None

    @property
    def pending(self) -> int:
        """Requests that still hold memory or are undecided."""
        return len(self._inputs)

    def submit(self, request_id: str, size_bytes: int, mode: Mode) -> tuple[Stamp, list[EntryAction]]:
        """Accept the inputs of a request; ``mode`` is neither ``auto`` nor ``none``.

        Raises PendingMemoryFull if they do not fit, GroupClosed and RankLost if the group has ended.
        """
        if self._end is not None:
            raise self._end.exception()
        if self._closing:
            raise closed_envelope().exception()
        if self.pending_bytes + size_bytes > self._max_pending_bytes:
            raise PendingMemoryFull(
                f"the inputs of request {request_id} have {size_bytes} bytes, and {self.pending_bytes} bytes are "
                f"pending: together they must be at most {self._max_pending_bytes}"
            )
        stamp = Stamp(request_id, self._next_sequence, mode)
        self._next_sequence += 1
        self._inputs[stamp.sequence] = _Inputs(stamp, size_bytes)
        self._undecided += 1
        self.pending_bytes += size_bytes
        return stamp, [Prepare(stamp.sequence)] if mode.in_background else []

    def prepared(self, sequence: int, error: ErrorEnvelope | None, size_bytes: int) -> list[EntryAction]:
        """The parcel of ``size_bytes`` is ready to be sent, or could not be made. Called once for each submission."""
        inputs = self._inputs[sequence]
        inputs.prepared = True
        if inputs.phase is _Phase.DECIDED:  # cancelled, or the group has ended
            return self._free_if_unread(inputs)
        if error is not None:
            return self._decide(inputs, error)
        self._resize(inputs, size_bytes)
        inputs.readers = set(self._others)
        if inputs.stamp.mode.sends_raw:
            inputs.phase = _Phase.MATERIALISING
            inputs.reports_missing = set(self._others) | ({ENTRY_RANK} if self._takes_inputs else set())
            actions: list[EntryAction] = [SendParcel(sequence)] if self._others else []
            return actions + (self._decide(inputs, None) if not inputs.reports_missing else [])
        actions = [SendParcel(sequence)] if self._others else []
        return actions + self._settle(inputs, None)

    def reported(self, rank: int, sequence: int, error: ErrorEnvelope | None) -> list[EntryAction]:
        """``rank`` has materialised raw inputs, or could not. The first error is that of every rank."""
        inputs = self._inputs.get(sequence)
        if inputs is None or inputs.phase is not _Phase.MATERIALISING:
            return []
        inputs.reports_missing.discard(rank)
        return self._decide(inputs, error) if error is not None or not inputs.reports_missing else []

    def released(self, rank: int, sequence: int) -> list[EntryAction]:
        """``rank`` does not read the parcel any more."""
        inputs = self._inputs.get(sequence)
        if inputs is None:
            return []
        inputs.readers.discard(rank)
        return self._free_if_unread(inputs)

    def cancel(self, sequence: int) -> list[EntryAction]:
        """The request was aborted. Without effect once its inputs are decided: every rank has got them."""
        inputs = self._inputs.get(sequence)
        if inputs is None or inputs.phase is _Phase.DECIDED:
            return []
        return self._decide(inputs, cancelled_envelope(inputs.stamp.request_id))

    def close(self) -> list[EntryAction]:
        """Accept nothing more; the group ends as soon as everything is decided."""
        self._closing = True
        return self._end_if_drained()

    def lost(self, rank: int, why: str) -> list[EntryAction]:
        """``rank`` is gone or does not answer: the group ends, and with it what is undecided."""
        return self.end(envelope(ErrorKind.RANK_LOST, f"rank {rank} of the group is lost: {why}"))

    def end(self, error: ErrorEnvelope) -> list[EntryAction]:
        """End the group at once with ``error`` for what is undecided."""
        if self._end is not None:
            return []
        self._end = error
        actions: list[EntryAction] = [SendEnd(error)]
        for inputs in list(self._inputs.values()):
            inputs.readers.clear()  # whoever reads has mapped the segment, which is not used again
            if inputs.phase is _Phase.DECIDED:
                actions += self._free_if_unread(inputs)
            else:
                actions += self._settle(inputs, error)
        return actions

    def _decide(self, inputs: _Inputs, error: ErrorEnvelope | None) -> list[EntryAction]:
        sent: list[EntryAction] = [SendVerdict(inputs.stamp.sequence, error)] if self._others else []
        return sent + self._settle(inputs, error)

    def _settle(self, inputs: _Inputs, error: ErrorEnvelope | None) -> list[EntryAction]:
        inputs.phase = _Phase.DECIDED
        self._undecided -= 1
        actions: list[EntryAction] = [Resolve(inputs.stamp.sequence, error)]
        return actions + self._free_if_unread(inputs) + self._end_if_drained()

    def _free_if_unread(self, inputs: _Inputs) -> list[EntryAction]:
        sequence = inputs.stamp.sequence
        # A parcel that is still being made is freed when it is: until then its memory is in use.
        if inputs.phase is not _Phase.DECIDED or inputs.readers or not inputs.prepared:
            return []
        del self._inputs[sequence]
        self.pending_bytes -= inputs.pending_bytes
        return [Free(sequence)]

    def _resize(self, inputs: _Inputs, size_bytes: int) -> None:
        self.pending_bytes += size_bytes - inputs.pending_bytes
        inputs.pending_bytes = size_bytes

    def _end_if_drained(self) -> list[EntryAction]:
        return self.end(closed_envelope()) if self._closing and not self._undecided else []


def closed_envelope() -> ErrorEnvelope:
    """What a request gets after the group was shut down."""
    return ErrorEnvelope(ErrorKind.CLOSED, "the input broadcast was shut down")
