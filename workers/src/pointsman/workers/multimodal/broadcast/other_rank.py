"""Every rank of a group that is not the entry rank: threads, a socket and shared memory around its state machine."""

import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry

from pointsman.workers.multimodal.broadcast.entry_rank import materialise_envelope
from pointsman.workers.multimodal.broadcast.inputs import Materialise, RequestInputs
from pointsman.workers.multimodal.broadcast.links import Link, LinkBroken, meet
from pointsman.workers.multimodal.broadcast.messages import (
    End,
    ErrorEnvelope,
    ErrorKind,
    FromEntry,
    Goodbye,
    Layout,
    Object,
    Ping,
    Pong,
    Raw,
    Released,
    Report,
    Retire,
    ToEntry,
    Verdict,
    envelope,
)
from pointsman.workers.multimodal.broadcast.metrics import BroadcastMetrics
from pointsman.workers.multimodal.broadcast.modes import Mode, Stamp
from pointsman.workers.multimodal.broadcast.parcels import unpack
from pointsman.workers.multimodal.broadcast.receiving import (
    Drop,
    ReceivingAction,
    ReceivingMachine,
    ResolveHere,
    SendReport,
)
from pointsman.workers.multimodal.broadcast.receiving import (
    Materialise as MaterialiseHere,
)
from pointsman.workers.multimodal.broadcast.segments import MappedSegments
from pointsman.workers.multimodal.broadcast.settings import InputBroadcastSettings


@dataclass(slots=True)
class _Record:
    """What the shell has of one request."""

    inputs: RequestInputs | None = None
    expected_s: float = 0.0
    parcel: tuple[memoryview, Sequence[int]] | None = None
    value: object = None
    materialising: bool = False


class OtherRank:
    """A rank that follows the entry rank. Use ``join``, or the constructor with the link to the entry rank.

    Large arrays of what it delivers lie in shared memory, read-only. They count as pending until nothing refers to
    them. ``private_copies``: they are this process's own, for an engine that keeps them as long as the request lives.
    """

    def __init__(
        self,
        rank: int,
        link: Link,
        materialise: Materialise,
        settings: InputBroadcastSettings | None = None,
        metrics: BroadcastMetrics | None = None,
        *,
        private_copies: bool = False,
    ) -> None:
        self.rank = rank
        self._private_copies = private_copies
        self._settings = settings or InputBroadcastSettings()
        self._metrics = metrics or BroadcastMetrics(CollectorRegistry(), rank)
        self._materialise = materialise
        self._link = link
        self._lock = threading.Lock()  # of the machine, the records and the segments
        self._machine = ReceivingMachine()
        self._records: dict[int, _Record] = {}
        self._segments = MappedSegments()
        self._outbox: queue.SimpleQueue[ToEntry | None] = queue.SimpleQueue()
        self._pool = ThreadPoolExecutor(self._settings.input_broadcast_threads, "input-broadcast")
        link.bound_sends(self._settings.input_broadcast_stall_seconds)
        self._threads = [
            threading.Thread(target=target, name=f"input-broadcast-{name}", daemon=True)
            for name, target in (("send", self._send), ("receive", self._receive))
        ]
        for thread in self._threads:
            thread.start()

    @classmethod
    def join(
        cls,
        path: Path,
        rank: int,
        world_size: int,
        materialise: Materialise,
        settings: InputBroadcastSettings | None = None,
        metrics: BroadcastMetrics | None = None,
        *,
        private_copies: bool = False,
    ) -> "OtherRank":
        """Rank ``rank`` of the group whose entry rank is at ``path``. Raises GroupNotJoined."""
        settings = settings or InputBroadcastSettings()
        link = meet(path, rank, world_size, settings.input_broadcast_join_seconds)
        return cls(rank, link, materialise, settings, metrics, private_copies=private_copies)

    def expect(self, stamp: Stamp) -> RequestInputs:
        """The inputs of the request with ``stamp``. Modes that block wait for its parcel here."""
        began_s = time.perf_counter()
        inputs = RequestInputs(stamp, self, self._metrics)
        if stamp.mode is Mode.NONE:
            inputs.end(None, None)
            self._metrics.ended(Mode.NONE, None, 0.0)
            return inputs
        with self._lock:
            record = self._records.setdefault(stamp.sequence, _Record())
            record.inputs = inputs
            record.expected_s = began_s
            self._run(self._machine.expect(stamp))
        if stamp.mode is Mode.SYNC:
            with suppress(Exception):  # get_inputs raises it
                inputs.get_inputs()
        return inputs

    def materialise_if_due(self, sequence: int) -> None:
        """See Rank."""
        with self._lock:
            record = self._records.get(sequence)
            if record is None or record.inputs is None or record.inputs.stamp.mode is not Mode.DELAYED:
                return
            record.materialising = True  # the parcel may come later: whoever receives it then hands it over
            if record.parcel is None:
                return
        with self._metrics.working():
            self._materialise_here(sequence)

    def cancel(self, sequence: int) -> None:
        """See Rank: this rank needs the inputs no more; the entry rank decides how they end."""
        with self._lock:
            self._run(self._machine.discard(sequence))

    def close(self) -> None:
        """Leave the group; again: nothing. Before the entry rank has ended it, the others see a lost rank."""
        self._link.shut_down()
        self._threads[1].join()
        self._outbox.put(None)
        self._threads[0].join()
        self._pool.shutdown(wait=True)
        self._link.close()

    def wait_closed(self, timeout_s: float | None = None) -> bool:
        """Wait until the group has ended; returns whether it has."""
        self._threads[1].join(timeout_s)
        return not self._threads[1].is_alive()

    def _run(self, actions: Sequence[ReceivingAction]) -> None:
        """Carry out what the machine decided. The caller has the lock."""
        for action in actions:
            match action:
                case MaterialiseHere(sequence):
                    self._pool.submit(self._materialise_in_background, sequence)
                case SendReport(sequence, error):
                    self._outbox.put(Report(sequence, error))
                case ResolveHere(sequence, error):
                    record = self._records.pop(sequence)
                    assert record.inputs is not None
                    record.inputs.end(record.value if error is None else None, error)
                    seconds = time.perf_counter() - record.expected_s
                    self._metrics.ended(record.inputs.stamp.mode, error, seconds)
                case Drop(sequence):
                    self._records.pop(sequence, None)

    def _materialise_in_background(self, sequence: int) -> None:
        with self._metrics.working():
            self._materialise_here(sequence)

    def _materialise_here(self, sequence: int) -> None:
        with self._lock:
            record = self._records.get(sequence)
            if record is None or record.parcel is None or record.inputs is None:
                return
            parcel, record.parcel = record.parcel, None
        error = None
        value: object = None
        try:
            with self._metrics.materialising():
                value = self._materialise(unpack(*parcel, private_copies=self._private_copies))
        except Exception as raised:  # noqa: BLE001  # whatever it is, every rank gets it
            error = materialise_envelope(self.rank, record.inputs.stamp.request_id, raised)
        del parcel
        with self._lock:
            record.value = value
            self._run(self._machine.materialised(sequence, error))

    def _send(self) -> None:
        """Send everything, in order. What cannot be sent is lost: the receiving thread sees the broken link."""
        while (message := self._outbox.get()) is not None:
            with self._metrics.working(), suppress(LinkBroken):
                self._link.send(message)

    def _receive(self) -> None:
        """Follow the entry rank until it ends the group, or is lost."""
        end: ErrorEnvelope | None = None
        reason = ""
        try:
            while end is None:
                message, fds = self._link.receive_from_entry()
                with self._metrics.working():
                    end = self._follow(message, fds)
                del message
        except LinkBroken as error:
            end = envelope(ErrorKind.RANK_LOST, f"rank 0 of the group is lost: {error}")
        except Exception as error:  # noqa: BLE001  # this rank cannot go on: the others must not wait for it
            reason = f"{type(error).__name__}: {error}"
            end = envelope(ErrorKind.RANK_LOST, f"rank {self.rank} of the group is lost: {reason}")
        with self._lock:
            self._run(self._machine.end(end))
        with suppress(LinkBroken):
            self._link.send(Goodbye(reason[:500].encode(errors="replace").decode()))
        self._link.shut_down()

    def _follow(self, message: FromEntry, fds: Sequence[int]) -> ErrorEnvelope | None:
        """Take one message; returns why the group ended, if it did."""
        match message:
            case Object(sequence, layout):
                value = unpack(*self._place(sequence, layout, fds), private_copies=self._private_copies)
                with self._lock:
                    self._records.setdefault(sequence, _Record()).value = value
                    self._run(self._machine.object_arrived(sequence))
            case Raw(sequence, layout):
                parcel = self._place(sequence, layout, fds)
                with self._lock:
                    record = self._records.setdefault(sequence, _Record())
                    record.parcel = parcel
                    due = record.materialising
                    self._run(self._machine.raw_arrived(sequence))
                    if due:  # a thread waits in get_inputs already
                        self._pool.submit(self._materialise_in_background, sequence)
            case Verdict(sequence, error):
                with self._lock:
                    self._records.setdefault(sequence, _Record())
                    self._run(self._machine.verdict(sequence, error))
            case Ping():
                self._outbox.put(Pong())
            case Retire(segment):
                self._segments.retire(segment)
            case End(error):
                return error
            case _:
                raise LinkBroken(f"the entry rank sent {type(message).__name__} in the middle")
        return None

    def _place(self, sequence: int, layout: Layout, fds: Sequence[int]) -> tuple[memoryview, Sequence[int]]:
        """Where the parcel is; once nothing refers to it, the entry rank is told."""

        def released() -> None:
            self._outbox.put(Released(sequence))  # from any thread, at any time: this queue may be used there

        if layout.segment < 0:
            released()
            return memoryview(layout.inline), layout.part_bytes
        if layout.segment_bytes:
            (fd,) = fds
            self._segments.add(layout.segment, fd, layout.segment_bytes)
        size_bytes = sum(-(-size // 64) * 64 for size in layout.part_bytes)
        return self._segments.view(layout.segment, size_bytes, released), layout.part_bytes
