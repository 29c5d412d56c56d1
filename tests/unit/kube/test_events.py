"""Events are deduplicated, limited, bounded, and never in the way."""

import asyncio
from typing import Any

import pytest

from fakes.clock import FakeClock
from pointsman.kube.errors import Forbidden, KubeError, Unreachable
from pointsman.kube.events import EventRecorder, Reference
from pointsman.kube.objects import KubeObject, Metadata
from pointsman.kube.resources import LLM_SERVICES, NODES
from unit.kube.event_server import ApiServer

SERVICE = Reference("pointsman.dev/v1alpha1", "LLMService", "team", "llama", "u1")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def server() -> ApiServer:
    return ApiServer()


@pytest.fixture
def recorder(server: Any, clock: FakeClock) -> EventRecorder:
    return EventRecorder(server, controller="pointsman.dev/operator", instance="operator-0", clock=clock)


async def test_an_event_says_what_happened_to_what(recorder: EventRecorder, server: ApiServer) -> None:
    recorder.record(SERVICE, "WorkerLost", "worker llama-0 died", warning=True, action="Replace")
    await recorder.flush()
    [event] = server.events.values()
    assert event["metadata"]["name"].startswith("llama.")
    assert event["metadata"]["namespace"] == "team"
    assert (event["type"], event["reason"], event["action"], event["note"]) == (
        "Warning",
        "WorkerLost",
        "Replace",
        "worker llama-0 died",
    )
    assert event["regarding"] == {
        "apiVersion": "pointsman.dev/v1alpha1",
        "kind": "LLMService",
        "namespace": "team",
        "name": "llama",
        "uid": "u1",
    }
    assert (event["reportingController"], event["reportingInstance"]) == ("pointsman.dev/operator", "operator-0")
    assert event["eventTime"] == "2026-01-01T00:16:40.000000Z"
    assert "series" not in event


async def test_the_same_event_again_is_a_series_written_once_a_minute(
    recorder: EventRecorder, server: ApiServer, clock: FakeClock
) -> None:
    running = asyncio.create_task(recorder.run())
    for _ in range(119):
        recorder.record(SERVICE, "Waiting", "no GPU is free")
        await clock.advance(1)
    [event] = server.events.values()
    assert server.writes == 2
    assert event["series"] == {"count": 60, "lastObservedTime": "2026-01-01T00:17:39.000000Z"}
    await clock.advance(60)
    assert event["series"]["count"] == 119
    await clock.advance(600)
    assert server.writes == 3
    running.cancel()


async def test_events_that_differ_are_kept_apart(recorder: EventRecorder, server: ApiServer) -> None:
    other = SERVICE._replace(name="qwen", uid="u2")
    for regarding in (SERVICE, other):
        for note in ("scaled to 2", "scaled to 3"):
            recorder.record(regarding, "Scaled", note)
    recorder.record(SERVICE, "Scaled", "scaled to 3", warning=True)
    await recorder.flush()
    assert len(server.events) == 5


async def test_an_object_that_flaps_is_limited_and_others_are_not(
    recorder: EventRecorder, server: ApiServer, clock: FakeClock
) -> None:
    for number in range(100):
        recorder.record(SERVICE, "Flapping", f"note {number}")
    recorder.record(SERVICE._replace(uid="u2"), "Scaled", "scaled to 3")
    recorder.record(SERVICE, "SwitchRolledBack", "what its busy minute ended with", warning=True)
    await recorder.flush()
    assert len(server.events) == 27
    assert recorder.dropped == 75
    await clock.advance(60)
    for number in range(100, 110):
        recorder.record(SERVICE, "Flapping", f"note {number}")
    await recorder.flush()
    assert len(server.events) == 32


async def test_a_long_note_is_cut_at_a_character(recorder: EventRecorder, server: ApiServer) -> None:
    recorder.record(SERVICE, "Long", "ö" * 2000)
    await recorder.flush()
    [note] = server.notes
    assert len(note.encode()) <= 1024
    assert note == "ö" * 510 + "…"


@pytest.mark.parametrize("error", [Forbidden("no", status=403), Unreachable("down"), RuntimeError("a bug")])
async def test_an_event_that_cannot_be_written_is_logged_and_the_next_is_written(
    recorder: EventRecorder, server: ApiServer, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    server.error = error
    recorder.record(SERVICE, "First", "first")
    await recorder.flush()
    fields = caplog.records[-1].__dict__
    assert (fields["msg"], fields["reason"], fields["object"]) == ("event not written", "First", "team/llama")
    assert (recorder.dropped, server.writes) == (1 if isinstance(error, KubeError) else 0, 1)
    server.error = None
    recorder.record(SERVICE, "Second", "second")
    await recorder.flush()
    assert server.notes == ["second"]


async def test_a_series_whose_event_has_expired_begins_anew(
    recorder: EventRecorder, server: ApiServer, clock: FakeClock
) -> None:
    recorder.record(SERVICE, "Waiting", "no GPU is free")
    await recorder.flush()
    server.events.clear()
    await clock.advance(3600)
    recorder.record(SERVICE, "Waiting", "no GPU is free")
    await recorder.flush()
    [event] = server.events.values()
    assert event["series"]["count"] == 2


async def test_a_flush_at_the_end_writes_the_counts_that_wait(recorder: EventRecorder, server: ApiServer) -> None:
    recorder.record(SERVICE, "Waiting", "no GPU is free")
    await recorder.flush()
    recorder.record(SERVICE, "Waiting", "no GPU is free")
    await recorder.flush()
    [event] = server.events.values()
    assert event["series"]["count"] == 2


@pytest.mark.parametrize("arrived", [True, False])
async def test_a_write_that_the_end_of_the_process_cuts_off_is_made_again_as_it_was(
    recorder: EventRecorder, server: ApiServer, arrived: bool
) -> None:
    """The planner has no right to patch Events."""
    server.answers = False
    recorder.record(SERVICE, "PlannedPrefillShort", "chat-00001: switch a worker")
    writing = asyncio.create_task(recorder.run())
    await server.unanswered.wait()
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    if not arrived:
        server.events.clear()
    server.answers = True
    server.forbids_patch = True
    await recorder.flush()
    assert server.notes == ["chat-00001: switch a worker"]
    assert recorder.dropped == 0


async def test_an_event_of_a_cluster_wide_object_is_in_the_default_namespace(
    recorder: EventRecorder, server: ApiServer
) -> None:
    recorder.record(Reference.of(NODES, {"metadata": {"name": "n1", "uid": "u"}}), "Seen", "node seen")
    await recorder.flush()
    [event] = server.events.values()
    assert event["metadata"]["namespace"] == "default"
    assert "namespace" not in event["regarding"]


def test_a_reference_is_the_same_from_a_slim_and_a_raw_object() -> None:
    slim = KubeObject(metadata=Metadata(name="llama", namespace="team", uid="u1", resource_version="1"))
    raw = {"metadata": {"name": "llama", "namespace": "team", "uid": "u1", "resourceVersion": "1"}}
    assert Reference.of(LLM_SERVICES, slim) == Reference.of(LLM_SERVICES, raw) == SERVICE


async def test_memory_is_bounded_whatever_is_recorded(recorder: EventRecorder) -> None:
    for number in range(5000):
        recorder.record(SERVICE._replace(uid=f"u{number}"), "Seen", "seen")
    assert len(recorder._series) == len(recorder._buckets._tokens) == 2000
    assert len(recorder._dirty) <= 2000
