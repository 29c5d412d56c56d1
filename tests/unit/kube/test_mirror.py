"""The mirror against a scripted API server: whatever happens to lists and watches, the copy becomes the truth."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.clock import FakeClock
from fixtures.log_text import log_text
from pointsman.kube.errors import Gone, ServerFault, Unreachable
from pointsman.kube.mirror import Key, Mirror, Unreadable
from pointsman.kube.objects import KubeObject, Slim
from pointsman.kube.resources import CONFIG_MAPS, Resource


class Spec(Slim):
    way: Literal["Hot"]


class Switch(KubeObject):
    """A kind of which a newer version knows another way."""

    spec: Spec


@dataclass
class ApiServer:
    """A collection with its history.

    ``watches`` says how each watch ends, after how many events and how long; when they are used up, watches stay open.
    """

    clock: FakeClock

    objects: dict[str, dict[str, Any]] = field(default_factory=dict)
    history: list[tuple[int, str, dict[str, Any]]] = field(default_factory=list)
    version: int = 10
    page_limit: int = 3
    watches: list[tuple[int, str]] = field(default_factory=list)
    between: list[list[tuple[str, str]]] = field(default_factory=list)  # changes made after each watch has ended
    watch_lasts_s: float = 0
    lists: int = 0
    watched_from: list[int] = field(default_factory=list)
    lists_fail: list[Exception] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, name: str, way: str = "Hot", **labels: str) -> None:
        self.version += 1
        old = self.objects.get(name)
        uid = old["metadata"]["uid"] if old else f"uid-{self.version}"
        item = {
            "metadata": {
                "name": name,
                "namespace": "n",
                "uid": uid,
                "resourceVersion": str(self.version),
                "labels": labels,
            },
            "spec": {"way": way},
        }
        self.objects[name] = item
        self._happened("MODIFIED" if old else "ADDED", item)

    def delete(self, name: str) -> None:
        item = self.objects.pop(name, None)
        if item is not None:
            self.version += 1
            last = item | {"metadata": item["metadata"] | {"resourceVersion": str(self.version)}}
            self._happened("DELETED", last)

    def change(self, changes: list[tuple[str, str]]) -> None:
        for verb, name in changes:
            if verb == "put":
                self.put(name)
            elif verb == "newer":
                self.put(name, way="Restart")
            elif verb == "delete":
                self.delete(name)
            else:
                self.delete(name)
                self.put(name)

    def _happened(self, kind: str, item: dict[str, Any]) -> None:
        self.history.append((self.version, kind, item))
        self.changed.set()

    @property
    def truth(self) -> dict[Key, tuple[str, str]]:
        return {("n", name): _version(item["metadata"]) for name, item in self.objects.items()}

    def readable(self) -> dict[Key, tuple[str, str]]:
        """Of the truth, what a mirror of ``Switch`` can read."""
        return {key: version for key, version in self.truth.items() if self.objects[key[1]]["spec"]["way"] == "Hot"}

    # --- what a mirror uses of Kube ---

    async def list_page(self, _: Resource, namespace: str | None, query: Mapping[str, str]) -> bytes:
        continue_token = query.get("continue")
        if not continue_token:
            self.lists += 1
            if self.lists_fail:
                raise self.lists_fail.pop(0)
            self._snapshot = (list(self.objects.values()), self.version)
        items, version = self._snapshot
        start = int(continue_token or 0)
        end = start + self.page_limit
        metadata = {"resourceVersion": str(version)} | ({"continue": str(end)} if end < len(items) else {})
        return json.dumps({"metadata": metadata, "items": items[start:end]}).encode()

    async def watch_lines(
        self, _: Resource, namespace: str | None, query: Mapping[str, str], **__: Any
    ) -> AsyncGenerator[bytes, None]:
        since = int(query["resourceVersion"])
        self.watched_from.append(since)
        assert since <= self.version
        events, ending = self.watches.pop(0) if self.watches else (None, "")
        if events is not None and self.watch_lasts_s:
            await self.clock.sleep(self.watch_lasts_s)
        sent = 0
        while events is None or sent < events:
            new = [entry for entry in self.history if entry[0] > since]
            if not new:
                if events is not None:
                    break
                self.changed.clear()
                await self.changed.wait()
                continue
            since, kind, item = new[0]
            yield json.dumps({"type": kind, "object": item}).encode()
            sent += 1
        if self.between:
            self.change(self.between.pop(0))
        match ending:
            case "cut":
                raise Unreachable("cut")
            case "gone":
                raise Gone("too old", status=410)
            case "expired":
                status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
                yield json.dumps({"type": "ERROR", "object": status}).encode()
            case "fault":
                yield b'{"type":"ERROR","object":{"kind":"Status","code":500,"message":"etcd leader changed"}}'
            case "nonsense":
                yield b'{"type":"ADDED","object":{"metadata":{"annotations":{"password":"hunter2"}}}}'
            case "bookmark":
                self.version += 100  # other kinds change too
                yield json.dumps(
                    {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(self.version)}}}
                ).encode()
            case "end":
                return


def _version(metadata: Any) -> tuple[str, str]:
    if isinstance(metadata, dict):
        return (metadata["uid"], metadata["resourceVersion"])
    return (metadata.uid, metadata.resource_version)


def copy_of(mirror: Mirror[KubeObject]) -> dict[Key, tuple[str, str]]:
    return {item.key: _version(item.metadata) for item in mirror.objects()}


def interruptions(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Why the mirror listed again."""
    return [vars(record)["why"] for record in caplog.records if record.msg.startswith("mirror interrupted")]


class Listener:
    """What on_change told, folded: it must always be the copy."""

    def __init__(self) -> None:
        self.state: dict[Key, tuple[str, str]] = {}
        self.told: list[tuple[str | None, str | None]] = []

    def __call__(self, old: KubeObject | None, new: KubeObject | None) -> None:
        item = new or old
        assert item is not None
        assert self.state.get(item.key) == (None if old is None else _version(old.metadata)), (
            "old is what was told last"
        )
        if new is None:
            del self.state[item.key]
        else:
            self.state[item.key] = _version(new.metadata)
        self.told.append((old.metadata.name if old else None, new.metadata.name if new else None))


def make(server: Any, clock: FakeClock, **options: Any) -> Mirror[Any]:
    options = {"model": KubeObject} | options
    return Mirror(server, CONFIG_MAPS, clock=clock, **options)


@pytest.fixture
async def clock() -> AsyncIterator[FakeClock]:
    yield FakeClock()
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()


async def follow(mirror: Mirror[Any], clock: FakeClock) -> "asyncio.Task[None]":
    task = asyncio.create_task(mirror.run())
    await clock.settle()
    return task


async def test_a_list_of_several_pages_and_then_the_changes(clock: FakeClock) -> None:
    server, told = ApiServer(clock, page_limit=2), Listener()
    for name in "abcde":
        server.put(name)
    mirror = make(server, clock, on_change=told)
    assert not mirror.synced.is_set()
    assert mirror.age_s is None
    await follow(mirror, clock)
    assert mirror.synced.is_set()
    assert copy_of(mirror) == server.truth
    told.told.clear()
    server.put("f")
    server.put("a")
    server.delete("b")
    await clock.settle()
    assert told.told == [(None, "f"), ("a", "a"), ("b", None)]
    assert copy_of(mirror) == told.state == server.truth
    assert mirror.get("f", "n") is not None
    assert mirror.get("b", "n") is None


async def test_deletes_missed_during_a_cut_are_swept(clock: FakeClock) -> None:
    server, told = ApiServer(clock), Listener()
    for number in range(200):
        server.put(f"pod-{number}")
    mirror = make(server, clock, on_change=told)
    server.watches = [(0, "gone")]
    server.between = [[("delete", f"pod-{number}") for number in range(0, 200, 4)]]
    told.told.clear()
    await follow(mirror, clock)
    await clock.advance(5)
    assert mirror.size == 150
    assert told.told[200:] == [(f"pod-{number}", None) for number in range(0, 200, 4)]
    assert copy_of(mirror) == server.truth


async def test_an_object_replaced_during_a_cut_is_gone_and_then_added(clock: FakeClock) -> None:
    server, told = ApiServer(clock, watches=[(0, "cut")], between=[[("replace", "a")]]), Listener()
    server.put("a")
    mirror = make(server, clock, on_change=told)
    await follow(mirror, clock)
    await clock.advance(5)
    assert told.told == [(None, "a"), ("a", None), (None, "a")]
    assert copy_of(mirror) == server.truth


async def test_listing_again_tells_nothing_about_what_did_not_change(clock: FakeClock) -> None:
    server, told = ApiServer(clock, watches=[(0, "cut")]), Listener()
    server.put("a")
    mirror = make(server, clock, on_change=told)
    await follow(mirror, clock)
    before = mirror.get("a", "n")
    await clock.advance(5)
    assert server.lists == 2
    assert told.told == [(None, "a")]
    assert mirror.get("a", "n") is before


async def test_expired_history_is_listed_again_at_once_other_errors_after_a_pause(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    server = ApiServer(clock, watches=[(0, "gone")])
    mirror = make(server, clock)
    await follow(mirror, clock)
    await clock.advance(0)
    assert server.lists == 2
    server = ApiServer(clock, watches=[(0, "fault")])
    mirror = make(server, clock, backoff_first_s=4)
    await follow(mirror, clock)
    await clock.advance(1.9)
    assert (server.lists, interruptions(caplog)) == (1, ["too old", "etcd leader changed"])
    await clock.advance(2.2)
    assert (server.lists, len(interruptions(caplog))) == (2, 2)


async def test_repeated_failure_backs_off_and_stays_bounded(clock: FakeClock) -> None:
    server = ApiServer(clock, lists_fail=[ServerFault("down", status=500)] * 1000)
    mirror = make(server, clock, backoff_first_s=1, backoff_max_s=30)
    await follow(mirror, clock)
    await clock.advance(31)
    early = server.lists
    assert 5 <= early <= 8  # 0, 1, 2, 4, 8, 16 s, each at least half
    await clock.advance(300)
    assert 10 <= server.lists - early <= 22  # every 15 to 30 s
    assert not mirror.synced.is_set()
    server.lists_fail.clear()
    await clock.advance(31)
    assert mirror.synced.is_set()


async def test_a_server_that_ends_each_watch_at_once_is_not_hammered(clock: FakeClock) -> None:
    server = ApiServer(clock, watches=[(0, "end")] * 1000)
    await follow(make(server, clock), clock)
    await clock.advance(60)
    assert server.lists == len(server.watched_from) < 15


async def test_a_watch_that_ended_in_order_goes_on_where_it_was_without_a_list(clock: FakeClock) -> None:
    server, told = ApiServer(clock, watches=[(2, "end")], between=[[("put", "c")]], watch_lasts_s=5), Listener()
    server.put("a")
    listed_at = server.version
    mirror = make(server, clock, on_change=told)
    running = await follow(mirror, clock)
    assert not running.done()
    await clock.advance(6)
    assert (server.lists, server.watched_from) == (1, [listed_at, listed_at])
    server.put("b")
    await clock.settle()
    assert told.told == [(None, "a"), (None, "c"), (None, "b")]


async def test_a_new_watch_begins_after_the_last_event_or_bookmark(clock: FakeClock) -> None:
    server = ApiServer(clock, watches=[(1, "end"), (0, "bookmark")], watch_lasts_s=5)
    mirror = make(server, clock)
    await follow(mirror, clock)
    listed_at = server.version
    server.put("a")
    await clock.advance(20)
    assert server.watched_from == [listed_at, listed_at + 1, listed_at + 101]
    assert (server.lists, copy_of(mirror)) == (1, server.truth)


async def test_age_tells_how_long_ago_the_server_was_heard(clock: FakeClock) -> None:
    server = ApiServer(clock)
    mirror = make(server, clock)
    await follow(mirror, clock)
    await clock.advance(50)
    assert mirror.age_s == 50
    server.put("a")
    await clock.settle()
    assert mirror.age_s == 0


async def test_objects_are_found_by_their_index_key_as_it_changes(clock: FakeClock) -> None:
    server = ApiServer(clock)
    server.put("a", owner="x")
    server.put("b", owner="x")
    server.put("c")
    mirror = make(server, clock, index=lambda item: item.metadata.labels.get("owner"))
    await follow(mirror, clock)
    assert [item.metadata.name for item in mirror.by("x")] == ["a", "b"]
    server.put("a", owner="x")
    await clock.settle()
    assert [item.metadata.name for item in mirror.by("x")] == ["a", "b"], "a change keeps an object's place"
    server.put("a", owner="y")
    server.delete("b")
    await clock.settle()
    assert mirror.by("x") == ()
    assert [item.metadata.name for item in mirror.by("y")] == ["a"]
    assert mirror.by(None) == ()


async def test_a_listener_that_fails_does_not_stop_the_mirror(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(old: object, new: object) -> None:
        raise RuntimeError("listener broken")

    server = ApiServer(clock)
    server.put("a")
    mirror = make(server, clock, on_change=broken)
    await follow(mirror, clock)
    server.put("b")
    await clock.settle()
    assert copy_of(mirror) == server.truth
    assert "listener broken" in log_text(caplog)


async def test_what_does_not_parse_is_an_error_seen_and_never_printed(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    server = ApiServer(clock, watches=[(0, "nonsense")])
    server.put("a")
    mirror = make(server, clock)
    await follow(mirror, clock)
    [why] = interruptions(caplog)
    assert "metadata.uid: Field required" in why
    assert "hunter2" not in log_text(caplog)
    await clock.advance(5)
    assert copy_of(mirror) == server.truth


async def test_an_object_that_cannot_be_read_blocks_no_other(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    server, found = ApiServer(clock, page_limit=2), list[Unreadable]()
    for name in "abcd":
        server.put(name, way="Restart" if name == "b" else "Hot")
    mirror = make(server, clock, model=Switch, on_unreadable=found.append)
    await follow(mirror, clock)
    assert mirror.synced.is_set()
    assert sorted(copy_of(mirror)) == [("n", "a"), ("n", "c"), ("n", "d")]
    assert [item.metadata.name for item in mirror.unreadable()] == ["b"]
    assert mirror.why_unreadable("b", "n") == "spec.way: Input should be 'Hot'"
    assert mirror.why_unreadable("a", "n") is None
    assert mirror.stats().unreadable == 1
    server.put("c")
    await clock.settle()
    assert copy_of(mirror) == server.readable(), "the watch goes on"
    assert (server.lists, interruptions(caplog)) == (1, [])
    assert [item.metadata.name for item in found] == ["b"]
    assert "object=n/b why=\"spec.way: Input should be 'Hot'\"" in log_text(caplog)
    assert "Restart" not in log_text(caplog), "what it holds may be a secret"


async def test_an_object_becomes_unreadable_and_readable_again(clock: FakeClock) -> None:
    told, found = Listener(), list[Unreadable]()
    server = ApiServer(clock)
    server.put("a")
    server.put("b")
    mirror = make(server, clock, model=Switch, on_change=told, on_unreadable=found.append)
    await follow(mirror, clock)
    told.told.clear()
    server.put("a", way="Restart")
    server.put("a", way="Restart")
    await clock.settle()
    assert told.told == [("a", None)], "it is left out as if it were not there"
    assert len(found) == 1, "the same of the same object is told once"
    server.put("a")
    await clock.settle()
    assert told.told == [("a", None), (None, "a")]
    assert mirror.unreadable() == ()
    server.put("b", way="Restart")
    server.delete("b")
    await clock.settle()
    assert (mirror.unreadable(), copy_of(mirror)) == ((), server.truth)


async def test_what_cannot_be_read_is_told_once_though_it_is_listed_again(clock: FakeClock) -> None:
    found = list[Unreadable]()
    server = ApiServer(clock, watches=[(0, "cut"), (0, "cut")])
    server.put("a", way="Restart")
    mirror = make(server, clock, model=Switch, on_unreadable=found.append)
    await follow(mirror, clock)
    await clock.advance(30)
    assert (server.lists, len(found)) == (3, 1)


async def test_raw_objects_carry_their_kind(clock: FakeClock) -> None:
    server = ApiServer(clock)
    server.put("a", colour="red")
    mirror: Mirror[dict[str, Any]] = make(server, clock, model=dict)
    await follow(mirror, clock)
    item = mirror.get("a", "n")
    assert item is not None
    assert (item["apiVersion"], item["kind"], item["metadata"]["labels"]) == ("v1", "ConfigMap", {"colour": "red"})


_names = st.sampled_from(["a", "b", "c", "d", "e", "f"])
_changes = st.lists(st.tuples(st.sampled_from(["put", "put", "newer", "delete", "replace"]), _names), max_size=8)
_ends = st.tuples(st.integers(0, 6), st.sampled_from(["cut", "gone", "expired", "fault", "nonsense", "end"]))


@settings(deadline=None, max_examples=150)
@given(
    start=_changes,
    script=st.lists(st.tuples(_ends, _changes), max_size=6),
    end=_changes,
    failing_lists=st.integers(0, 3),
    watch_lasts_s=st.sampled_from([0, 2]),
)
def test_the_copy_becomes_the_truth_and_the_listener_heard_it(
    start: list[tuple[str, str]],
    script: list[tuple[tuple[int, str], list[tuple[str, str]]]],
    end: list[tuple[str, str]],
    failing_lists: int,
    watch_lasts_s: float,
) -> None:
    async def check() -> None:
        clock, told = FakeClock(), Listener()
        server = ApiServer(
            clock,
            watch_lasts_s=watch_lasts_s,
            watches=[ending for ending, _ in script],
            between=[changes for _, changes in script],
            lists_fail=[Unreachable("refused")] * failing_lists,
        )
        server.change(start)
        mirror = make(server, clock, model=Switch, on_change=told, index=lambda item: item.metadata.uid[-1])
        task = await follow(mirror, clock)
        await clock.advance(400)
        server.change(end)
        await clock.settle()
        assert copy_of(mirror) == told.state == server.readable()
        assert {("n", item.metadata.name) for item in mirror.unreadable()} == server.truth.keys() - told.state.keys()
        by_index = [item.key for key in {item.metadata.uid[-1] for item in mirror.objects()} for item in mirror.by(key)]
        assert sorted(by_index) == sorted(copy_of(mirror))
        task.cancel()

    asyncio.run(check())
