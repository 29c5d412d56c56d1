"""The entry rank of a group: threads, sockets and shared memory around its state machine.

One thread sends; it is the only one, so the order of messages is the same for every rank. One thread receives. A few
threads materialise. The threads that schedule requests do none of it, unless the mode says so.
"""

import os
import queue
import selectors
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry

from pointsman.workers.multimodal.broadcast.entry import (
    ENTRY_RANK,
    EntryAction,
    EntryMachine,
    Free,
    Prepare,
    Resolve,
    SendEnd,
    SendParcel,
    SendVerdict,
    closed_envelope,
)
from pointsman.workers.multimodal.broadcast.errors import PendingMemoryFull
from pointsman.workers.multimodal.broadcast.inputs import Materialise, RequestInputs
from pointsman.workers.multimodal.broadcast.links import INLINE_BYTES, Link, LinkBroken, Meeting
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
    Verdict,
    encode,
    envelope,
)
from pointsman.workers.multimodal.broadcast.metrics import BroadcastMetrics
from pointsman.workers.multimodal.broadcast.modes import Mode, Stamp
from pointsman.workers.multimodal.broadcast.parcels import Parcel, pack, size_of
from pointsman.workers.multimodal.broadcast.segments import Segment, SegmentPool
from pointsman.workers.multimodal.broadcast.settings import InputBroadcastSettings

_NO_REQUEST: Final = -1
_PINGS: Final = 4  # in one stall time


@dataclass(slots=True)
class _Record:
    """What the shell has of one request. ``sent``: its parcel was sent, or never will be."""

    inputs: RequestInputs
    raw: object
    submitted_s: float
    value: object = None
    layout: Layout | None = None
    segment: Segment | None = None
    materialising: bool = False
    sent_s: float | None = None
    sent: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True, slots=True)
class _Packet:
    message: FromEntry
    fds: Sequence[int] = ()
    record: _Record | None = None


class EntryRank:
    """Rank 0 of a group. Use ``assemble``, or the constructor with the links to the other ranks.

    ``takes_inputs``: whether this rank needs the inputs itself.
    """

    def __init__(
        self,
        links: Mapping[int, Link],
        materialise: Materialise,
        settings: InputBroadcastSettings | None = None,
        metrics: BroadcastMetrics | None = None,
        *,
        takes_inputs: bool = True,
    ) -> None:
        self._settings = settings or InputBroadcastSettings()
        self._metrics = metrics or BroadcastMetrics(CollectorRegistry(), ENTRY_RANK)
        self._materialise = materialise
        self._takes_inputs = takes_inputs
        self._world_size = len(links) + 1
        self._rule = self._settings.auto_rule
        self._links = dict(links)
        self._lock = threading.Lock()  # of the machine, the records and the segments
        max_pending_bytes = self._settings.input_broadcast_max_pending_bytes
        self._machine = EntryMachine(self._world_size, max_pending_bytes, takes_inputs=takes_inputs)
        self._records: dict[int, _Record] = {}
        self._segments = SegmentPool(max_idle_bytes=max_pending_bytes)
        self._last_segments: list[Segment] = []  # of requests that were undecided or read when the group ended
        self._outbox: queue.SimpleQueue[_Packet | None] = queue.SimpleQueue()
        self._parted: set[int] = set()  # ranks that have said goodbye
        self._all_parted = threading.Event()
        self._unanswered = dict.fromkeys(links, 0)  # pings since a rank was heard; of the receiving thread
        self._wake_read, self._wake_write = os.pipe()
        self._pool = ThreadPoolExecutor(self._settings.input_broadcast_threads, "input-broadcast")
        self._threads = [
            threading.Thread(target=target, name=f"input-broadcast-{name}", daemon=True)
            for name, target in (("send", self._send), ("receive", self._receive))
        ]
        for link in self._links.values():
            link.bound_sends(self._settings.input_broadcast_stall_seconds)
        for thread in self._threads:
            thread.start()

    @classmethod
    def assemble(
        cls,
        path: Path,
        world_size: int,
        materialise: Materialise,
        settings: InputBroadcastSettings | None = None,
        metrics: BroadcastMetrics | None = None,
        *,
        takes_inputs: bool = True,
    ) -> "EntryRank":
        """The entry rank of a group whose other ranks join at ``path``. Raises GroupNotJoined."""
        settings = settings or InputBroadcastSettings()
        links = Meeting(path).assemble(world_size, settings.input_broadcast_join_seconds) if world_size > 1 else {}
        return cls(links, materialise, settings, metrics, takes_inputs=takes_inputs)

    @property
    def pending_bytes(self) -> int:
        """Bytes of inputs that are not read on every rank yet."""
        return self._machine.pending_bytes

    @property
    def ended(self) -> bool:
        """Whether the group has ended, by ``close`` or because a rank was lost."""
        return self._machine.ended

    def submit(self, request_id: str, raw: object) -> RequestInputs:
        """Have the inputs of a request reach every rank. ``raw`` is None if it has none.

        The stamp of the result goes to every rank with the request. Raises PendingMemoryFull if too many bytes are
        pending: the request has to wait. Raises RankLost and GroupClosed if the group has ended.
        """
        began_s = time.perf_counter()
        if raw is None:
            return self._without_inputs(request_id)
        size_bytes = size_of(raw)
        with self._lock:
            mode = self._settings.input_broadcast_mode
            if mode is Mode.AUTO:
                mode = self._rule.choose(size_bytes, self._machine.undecided, self._world_size)
            try:
                stamp, actions = self._machine.submit(request_id, size_bytes, mode)
            except PendingMemoryFull:
                self._metrics.refused()
                raise
            inputs = RequestInputs(stamp, self, self._metrics)
            record = self._records[stamp.sequence] = _Record(inputs, raw, began_s)
            self._run(actions)
        if not mode.in_background:
            with self._metrics.working():
                self._prepare(stamp.sequence)
            record.sent.wait()
        self._metrics.blocked(time.perf_counter() - began_s)
        return inputs

    def materialise_if_due(self, sequence: int) -> None:
        """See Rank."""
        with self._lock:
            record = self._records.get(sequence)
            if record is None or record.inputs.stamp.mode is not Mode.DELAYED or record.materialising:
                return
            record.materialising = True
        with self._metrics.working():
            self._materialise_own(sequence, record)

    def cancel(self, sequence: int) -> None:
        """See Rank: it is cancelled for all ranks, or decided already."""
        with self._lock:
            self._run(self._machine.cancel(sequence))

    def close(self, timeout_s: float = 30.0) -> None:
        """Accept nothing more, wait until everything submitted has ended on all ranks, and end the group.

        What has not ended after ``timeout_s`` ends with GroupClosed.
        """
        deadline_s = time.monotonic() + timeout_s
        with self._lock:
            self._run(self._machine.close())
        if self._links and not self._all_parted.wait(timeout_s):
            with self._lock:
                self._run(self._machine.end(closed_envelope()))
            self._all_parted.wait(max(1.0, deadline_s - time.monotonic()))
        self._pool.shutdown(wait=True, cancel_futures=False)
        with self._lock:
            self._run(self._machine.end(closed_envelope()))
        self._outbox.put(None)
        self._threads[0].join()
        os.write(self._wake_write, b"\0")
        self._threads[1].join()
        for link in self._links.values():
            link.close()
        os.close(self._wake_read)
        os.close(self._wake_write)
        for segment in self._last_segments:
            segment.close()
        self._segments.close()

    def _without_inputs(self, request_id: str) -> RequestInputs:
        stamp = Stamp(request_id, _NO_REQUEST, Mode.NONE)
        inputs = RequestInputs(stamp, self, self._metrics)
        inputs.end(None, None)
        self._metrics.ended(Mode.NONE, None, 0.0)
        return inputs

    def _run(self, actions: Sequence[EntryAction]) -> None:
        """Carry out what the machine decided. The caller has the lock, so the outbox has the machine's order."""
        for action in actions:
            match action:
                case Prepare(sequence):
                    self._pool.submit(self._prepare_in_background, sequence)
                case SendParcel(sequence):
                    self._post_parcel(self._records[sequence])
                case SendVerdict(sequence, error):
                    self._outbox.put(_Packet(Verdict(sequence, error)))
                case SendEnd(error):
                    self._outbox.put(_Packet(End(error)))
                case Resolve(sequence, error):
                    self._resolve(self._records[sequence], error)
                case Free(sequence):
                    self._free(self._records.pop(sequence))
        self._metrics.show_pending(self._machine.pending_bytes)

    def _post_parcel(self, record: _Record) -> None:
        assert record.layout is not None
        layout, fds = record.layout, []
        if record.segment is not None and not record.segment.announced:
            record.segment.announced = True
            fds = [record.segment.fd]
            layout = Layout(layout.part_bytes, layout.inline, layout.segment, record.segment.size_bytes)
        sequence = record.inputs.stamp.sequence
        kind = Raw if record.inputs.stamp.mode.sends_raw else Object
        self._outbox.put(_Packet(kind(sequence, layout), fds, record))

    def _resolve(self, record: _Record, error: ErrorEnvelope | None) -> None:
        record.inputs.end(record.value if error is None else None, error)
        record.raw = record.value = None
        if error is not None or self._world_size == 1:
            record.sent.set()
        self._metrics.ended(record.inputs.stamp.mode, error, time.perf_counter() - record.submitted_s)

    def _free(self, record: _Record) -> None:
        if record.segment is not None and self._machine.ended:
            self._last_segments.append(record.segment)  # messages with it may be unsent, and ranks may read it
        elif record.segment is not None:
            for number in self._segments.give_back(record.segment):
                self._outbox.put(_Packet(Retire(number)))
        record.segment = None
        record.sent.set()

    def _prepare_in_background(self, sequence: int) -> None:
        with self._metrics.working():
            record = self._prepare(sequence)
            if record is not None and record.inputs.stamp.mode is Mode.COMBINED and self._takes_inputs:
                self._materialise_own(sequence, record)

    def _prepare(self, sequence: int) -> _Record | None:
        """Make the parcel, outside the lock. Returns the record if it is undecided then."""
        with self._lock:
            record = self._records[sequence]
            if record.inputs.ended:  # cancelled
                self._run(self._machine.prepared(sequence, None, 0))
                return None
            raw = record.raw
        error = None
        size_bytes = 0
        try:
            value = raw if record.inputs.stamp.mode.sends_raw else self._materialised(raw)
            size_bytes = self._pack(record, value)
            if self._takes_inputs and not record.inputs.stamp.mode.sends_raw:
                record.value = value
        except Exception as raised:  # noqa: BLE001  # whatever it is, every rank gets it
            error = materialise_envelope(ENTRY_RANK, record.inputs.stamp.request_id, raised)
        with self._lock:
            self._run(self._machine.prepared(sequence, error, size_bytes))
            return None if record.inputs.ended else record

    def _pack(self, record: _Record, value: object) -> int:
        """Bytes of the parcel that is ready to be sent; without other ranks, of the value."""
        if self._world_size == 1:
            record.sent.set()
            return size_of(value)
        began_s = time.perf_counter()
        parcel: Parcel = pack(value)
        if parcel.size_bytes <= INLINE_BYTES:
            record.layout = Layout(parcel.part_bytes, inline=parcel.to_bytes())
        else:
            with self._lock:
                segment = record.segment = self._segments.take(parcel.size_bytes)
            parcel.write_into(segment.copy)
            record.layout = Layout(parcel.part_bytes, segment=segment.number)
        record.sent_s = began_s
        return parcel.size_bytes

    def _materialised(self, raw: object) -> object:
        with self._metrics.materialising():
            return self._materialise(raw)

    def _materialise_own(self, sequence: int, record: _Record) -> None:
        """Materialise raw inputs for this rank, and report that like any other."""
        error = None
        raw = record.raw
        if record.inputs.ended:
            return
        try:
            value = self._materialised(raw)
        except Exception as raised:  # noqa: BLE001  # whatever it is, every rank gets it
            error = materialise_envelope(ENTRY_RANK, record.inputs.stamp.request_id, raised)
        else:
            record.value = value
        with self._lock:
            self._run(self._machine.reported(ENTRY_RANK, sequence, error))

    def _send(self) -> None:
        """Send everything, in the one order, until the outbox ends."""
        while (packet := self._outbox.get()) is not None:
            with self._metrics.working():
                encoded = encode(packet.message)
                for rank, link in self._links.items():
                    if rank in self._parted:
                        continue
                    try:
                        link.send_packet(encoded, packet.fds)
                    except LinkBroken as error:
                        self._lose(rank, str(error))
                if packet.record is not None:
                    if packet.record.sent_s is not None:
                        self._metrics.sent(time.perf_counter() - packet.record.sent_s)
                    packet.record.sent.set()

    def _receive(self) -> None:
        """Hear the other ranks until all have parted and the group is closed."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake_read, selectors.EVENT_READ)
            for rank, link in self._links.items():
                selector.register(link.sock, selectors.EVENT_READ, rank)
            pause_s = self._settings.input_broadcast_stall_seconds / _PINGS
            pinged_s = time.monotonic()
            while True:
                for key, _ in selector.select(pause_s):
                    if key.fd == self._wake_read:
                        return
                    with self._metrics.working():
                        if not self._hear(key.data):
                            selector.unregister(key.fileobj)
                if time.monotonic() - pinged_s >= pause_s:
                    pinged_s = time.monotonic()
                    self._ping()

    def _hear(self, rank: int) -> bool:
        """Take one message of ``rank``; returns whether there can be another."""
        try:
            message = self._links[rank].receive_to_entry()
        except LinkBroken as broken:
            self._lose(rank, str(broken))
            return False
        self._unanswered[rank] = 0
        with self._lock:
            match message:
                case Pong():
                    pass
                case Report(sequence, error):
                    self._run(self._machine.reported(rank, sequence, error))
                case Released(sequence):
                    self._run(self._machine.released(rank, sequence))
                case Goodbye(reason):
                    self._part(rank)
                    self._run(self._machine.lost(rank, reason or "it left the group"))  # no effect after the end
                    return False
                case _:
                    self._part(rank)
                    self._run(self._machine.lost(rank, f"it sent {type(message).__name__} in the middle"))
                    return False
        return True

    def _lose(self, rank: int, why: str) -> None:
        with self._lock:
            if rank not in self._parted:
                self._part(rank)
                self._run(self._machine.lost(rank, why))

    def _part(self, rank: int) -> None:
        self._parted.add(rank)
        self._links[rank].shut_down()
        if len(self._parted) == len(self._links):
            self._all_parted.set()

    def _ping(self) -> None:
        """Ask every rank whether it follows; lose those that have not answered several times."""
        for rank, link in self._links.items():
            if rank in self._parted:
                continue
            if self._unanswered[rank] >= _PINGS:
                self._lose(rank, f"it has not answered for {self._settings.input_broadcast_stall_seconds:g} s")
            else:
                self._unanswered[rank] += 1
                link.try_send(Ping())


def materialise_envelope(rank: int, request_id: str, raised: Exception) -> ErrorEnvelope:
    """What every rank gets when ``rank`` could not materialise a request's inputs."""
    name = type(raised).__name__
    what = f"the inputs of request {request_id[:200]} cannot be materialised on rank {rank}"
    return envelope(ErrorKind.MATERIALISE, f"{what}: {name}: {raised}", name)
