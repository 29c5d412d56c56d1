"""Parcels, shared memory, settings and metrics of input broadcasts."""

import gc
import os
from array import array
from pathlib import Path
from pickle import PickleBuffer
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from pointsman.process.errors import BadSettings
from pointsman.workers.multimodal.broadcast.entry_rank import materialise_envelope
from pointsman.workers.multimodal.broadcast.links import INLINE_BYTES
from pointsman.workers.multimodal.broadcast.messages import (
    ErrorEnvelope,
    ErrorKind,
    Layout,
    Object,
    Verdict,
    decode_from_entry,
    encode,
)
from pointsman.workers.multimodal.broadcast.metrics import BroadcastMetrics
from pointsman.workers.multimodal.broadcast.modes import Mode
from pointsman.workers.multimodal.broadcast.parcels import pack, size_of, unpack
from pointsman.workers.multimodal.broadcast.segments import MappedSegments, SegmentPool
from pointsman.workers.multimodal.broadcast.settings import InputBroadcastSettings
from pointsman.workers.multimodal.exported_metrics import ExportedMetrics

MIB = 1 << 20


class Pixels:
    """An object with a large buffer, as an array is pickled."""

    def __init__(self, buffer: Any) -> None:
        self.buffer = buffer

    def __reduce__(self) -> tuple[Any, ...]:
        return Pixels, (PickleBuffer(self.buffer),)


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 70_000, MIB + 1])
@pytest.mark.parametrize("private", [False, True])
def test_an_object_comes_out_of_its_parcel_as_it_went_in(size: int, private: bool) -> None:
    large = bytes(range(256)) * (size // 256) + bytes(size % 256)
    value = {"id": "r", "file": large, "pixels": Pixels(bytearray(large)), "more": [1, None, Pixels(large)]}
    parcel = pack(value)
    assert parcel.size_bytes >= 3 * size - 2 * 64
    packed = parcel.to_bytes()
    assert len(packed) == parcel.size_bytes
    out: Any = unpack(memoryview(packed), parcel.part_bytes, private_copies=private)
    assert out["file"] == large
    assert bytes(out["pixels"].buffer) == bytes(out["more"][2].buffer) == large


def test_a_parcel_refers_to_large_buffers_and_does_not_copy_them() -> None:
    pixels = bytearray(MIB)
    parcel = pack(Pixels(pixels))
    pixels[5] = 7
    out: Any = unpack(memoryview(parcel.to_bytes()), parcel.part_bytes)
    assert out.buffer[5] == 7


@pytest.mark.parametrize(
    ("value", "size"),
    [
        (None, 0),
        (b"abc", 3),
        ("text", 4),
        ({"a": b"12", "b": [b"3", ("4", 5)]}, 4),
        (memoryview(array("i", [1, 2])), 8),
    ],
)
def test_the_size_of_inputs_is_that_of_their_buffers_and_text(value: object, size: int) -> None:
    assert size_of(value) == size


def test_a_segment_is_read_in_place_and_reported_when_the_last_view_is_gone() -> None:
    pool, mapped, unread = SegmentPool(8 * MIB), MappedSegments(), []
    segment = pool.take(3 * MIB)
    segment.copy(64, b"abc")
    segment.copy(MIB, bytearray(b"writable"))
    segment.copy(2 * MIB, memoryview(b"read only")[5:])
    mapped.add(segment.number, os.dup(segment.fd), segment.size_bytes)
    view = mapped.view(segment.number, 3 * MIB, lambda: unread.append(segment.number))
    assert bytes(view[64:67]) == b"abc" and bytes(view[MIB : MIB + 8]) == b"writable"
    assert bytes(view[2 * MIB : 2 * MIB + 4]) == b"only"
    with pytest.raises(TypeError):
        view[0] = 1
    part = memoryview(view[64:67])
    del view
    gc.collect()
    assert unread == [], "a view of a view still reads"
    mapped.retire(segment.number)
    assert bytes(part) == b"abc", "a segment that is given up stays as long as it is read"
    del part
    gc.collect()
    assert unread == [segment.number]
    pool.give_back(segment)
    pool.close()


def test_segments_are_used_again_and_unused_ones_bounded() -> None:
    pool = SegmentPool(max_idle_bytes=4 * MIB)
    first = pool.take(2 * MIB)
    assert pool.give_back(first) == []
    assert pool.take(MIB) is first, "one that fits is used again"
    small = pool.take(10)
    assert small is not first and small.size_bytes == MIB
    first.announced = True
    pool.give_back(first)
    pool.give_back(small)
    large = pool.take(100 * MIB)
    assert pool.give_back(large) == [first.number], "the oldest is closed, and known by ranks if it was announced"
    assert pool.idle_bytes <= 4 * MIB
    with pytest.raises(ValueError, match="5 bytes at 1048575 do not fit a segment of 1048576"):
        pool.take(MIB).copy(MIB - 1, b"12345")
    pool.close()


def test_messages_arrive_as_they_were_sent() -> None:
    for message in (
        Object(7, Layout((3, 70_000), segment=4, segment_bytes=MIB)),
        Verdict(7, ErrorEnvelope(ErrorKind.MATERIALISE, "no picture", "ValueError")),
    ):
        assert decode_from_entry(encode(message)) == message


def test_an_error_fits_a_packet_whatever_the_exception_says() -> None:
    raised = ValueError("\udcff and so on" * 10_000)
    packed = encode(Verdict(7, materialise_envelope(1, "r" * 70_000, raised)))
    assert len(packed) < INLINE_BYTES
    verdict = decode_from_entry(packed)
    assert isinstance(verdict, Verdict) and verdict.error is not None
    assert verdict.error.message.startswith("the inputs of request rrr")


def test_a_wrong_setting_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POINTSMAN_INPUT_BROADCAST_MODE", "combined")
    assert InputBroadcastSettings.read().input_broadcast_mode is Mode.COMBINED
    monkeypatch.setenv("POINTSMAN_INPUT_BROADCAST_MODE", "later")
    with pytest.raises(BadSettings, match="POINTSMAN_INPUT_BROADCAST_MODE"):
        InputBroadcastSettings.read()


def test_the_metrics_of_all_ranks_are_shown_together(tmp_path: Path) -> None:
    for rank in (0, 1):
        registry = CollectorRegistry()
        metrics = BroadcastMetrics(registry, rank)
        metrics.ended(Mode.ASYNC, None if rank else ErrorEnvelope(ErrorKind.CANCELLED, "aborted"), 0.3)
        (tmp_path / f"rank{rank}.prom").write_bytes(generate_latest(registry))
    shown = CollectorRegistry()
    shown.register(ExportedMetrics(tmp_path))
    for own in ("0", "1"):
        labels = {"rank": own, "mode": "async"}
        assert shown.get_sample_value("pointsman_input_broadcast_requests_total", labels) == 1
        assert shown.get_sample_value("pointsman_input_broadcast_request_seconds_sum", labels) == 0.3
        errors = {"rank": own, "reason": "cancelled"}
        assert shown.get_sample_value("pointsman_input_broadcast_errors_total", errors) == (0 if own == "1" else 1)
    text = generate_latest(shown).decode()
    assert text.count("# TYPE pointsman_input_broadcast_requests_total counter") == 1
