"""Each service has a login of its own on the chart's NATS: what a pod can do with the login of another service.

The server is real, and the authorizer runs beside it as in its pod. The prompts of a service lie on its queue as token
ids, so who reads the queue reads the prompts.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, Final

import nats
import nats.errors
import nats.js.errors
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DeliverPolicy,
    DiscardPolicy,
    RetentionPolicy,
    StorageType,
    StreamConfig,
    StreamSource,
)

from fixtures.asgi_engine import Fabric, answer_to
from fixtures.guarded_nats import SHARED, GuardedNats, guarded_nats
from fixtures.workers import settings, worker
from pointsman.api.protocol import names
from pointsman.api.protocol.names import Role
from pointsman.operator.core.nats_logins import Login
from waiting import eventually

NAMESPACE: Final = "tests"
PROMPT: Final = list(range(1, 40))
PATIENCE_S: Final = 1.0  # for an answer that must not come


@pytest.fixture(scope="module")
def server() -> Iterator[GuardedNats]:
    """A new installation's."""
    with guarded_nats() as running:
        yield running


@pytest.fixture(scope="module")
def upgraded() -> Iterator[GuardedNats]:
    """Of an installation whose pods may be of versions before services had logins."""
    with guarded_nats(earlier_versions=True) as running:
        yield running


class Pod:
    """A connection with the login of a service."""

    def __init__(self, client: Client, uid: str, refusals: list[str]) -> None:
        self.client = client
        self.uid = uid
        self.stream = names.prefill_stream(NAMESPACE, uid)
        self._refusals = refusals

    async def refused(self, subject: str) -> None:
        """Wait until the server has refused what was sent about ``subject``."""
        await self.client.flush()
        await eventually(lambda: any(subject.lower() in each for each in self._refusals), f"{subject} is refused")

    async def hears_nothing(self, subject: str) -> None:
        """Subscribing is refused."""
        await self.client.subscribe(subject)
        await self.refused(subject)

    async def gets_no_answer(self, subject: str, body: object = None) -> None:
        """A request is refused."""
        payload = json.dumps(body).encode() if body is not None else b""
        with pytest.raises(nats.errors.TimeoutError):
            await self.client.request(subject, payload, timeout=PATIENCE_S)
        await self.refused(subject)


@asynccontextmanager
async def pod(server: GuardedNats, uid: str, login: Login | None = None) -> AsyncIterator[Pod]:
    refusals: list[str] = []

    async def refuse(error: Exception) -> None:
        refusals.append(str(error).lower())

    login = login or server.login(NAMESPACE, uid)
    inbox = names.reply_inbox_prefix(NAMESPACE, uid, "pod-0").encode()
    client = await nats.connect(
        server.url,
        user=login.user,
        password=login.password,
        inbox_prefix=inbox,
        allow_reconnect=False,
        error_cb=refuse,
        connect_timeout=30,
    )
    try:
        yield Pod(client, uid, refusals)
    finally:
        await client.close()


async def let_in(server: GuardedNats, login: Login) -> bool:
    """Whether the server lets ``login`` in."""

    async def ignore(_: Exception) -> None:
        """The refusal comes as an exception too."""

    try:
        client = await nats.connect(
            server.url,
            user=login.user,
            password=login.password,
            allow_reconnect=False,
            error_cb=ignore,
            connect_timeout=30,
        )
        await client.flush(5)  # nats-py's connect may return although the server refused
    except (nats.errors.Error, OSError):
        return False
    await client.close()
    return True


def of_service(server: GuardedNats, uid: str, login: Login | None = None) -> dict[str, Any]:
    """Settings of a worker, as in its environment."""
    login = login or server.login(NAMESPACE, uid)
    return {
        "namespace": NAMESPACE,
        "service_uid": uid,
        "nats_url": server.url,
        "nats_user": login.user,
        "nats_password": login.password,
    }


async def prefills_remotely(server: GuardedNats, uid: str, login: Login | None = None) -> None:
    """A service with one worker of each role computes a prompt at its prefill worker."""
    fabric, own = Fabric(), of_service(server, uid, login)
    async with (
        worker(settings("prefill-0", **own), fabric, Role.PREFILL),
        worker(settings("decode-0", **own), fabric, Role.DECODE) as decode,
    ):
        await decode.sees("prefill-0")
        answer = await decode.call({"prompt": PROMPT}).whole()
        assert answer.headers["x-pointsman-prefill"] == "remote"
        assert answer.token_ids == answer_to(PROMPT, 16)


# --- a service with its own login ---


async def test_workers_prefill_remotely_with_the_login_of_their_service(server: GuardedNats) -> None:
    await prefills_remotely(server, "served")


async def test_the_queue_is_as_long_as_the_service_says(server: GuardedNats) -> None:
    login = server.login(NAMESPACE, "short", 7)
    fabric, own = Fabric(), of_service(server, "short", login)
    first = worker(settings("decode-0", prefill_queue_limit=7, **own), fabric, Role.DECODE)
    async with first, pod(server, "short", login) as seen:
        info = await seen.client.jetstream().stream_info(seen.stream)
        assert info.config.max_msgs == 7
    # The limit was changed since this worker's pod was made: it takes the queue as it is.
    async with worker(settings("decode-1", prefill_queue_limit=9, **own), fabric, Role.DECODE) as late:
        assert late.state.nats_connected


async def test_workers_find_their_queue_again_after_the_server_lost_everything_and_no_operator_is_there() -> None:
    with guarded_nats() as server:
        own = of_service(server, "again")
        fabric = Fabric()
        async with (
            worker(settings("prefill-0", **own), fabric, Role.PREFILL),
            worker(settings("decode-0", **own), fabric, Role.DECODE) as decode,
        ):
            await decode.sees("prefill-0")
            await asyncio.to_thread(server.forget)
            await eventually(lambda: not decode.state.nats_connected, "the loss is noticed")
            await asyncio.to_thread(server.restart)
            await eventually(lambda: decode.state.nats_connected, "the queue is there again")
            await decode.sees("prefill-0")
            answer = await decode.call({"prompt": PROMPT}).whole()
            assert answer.headers["x-pointsman-prefill"] == "remote"


async def test_workers_that_are_connected_do_not_need_the_authorizer() -> None:
    with guarded_nats() as server:
        own = of_service(server, "alone")
        fabric = Fabric()
        async with (
            worker(settings("prefill-0", **own), fabric, Role.PREFILL),
            worker(settings("decode-0", **own), fabric, Role.DECODE) as decode,
        ):
            await decode.sees("prefill-0")
            server.kill_authorizer()
            answer = await decode.call({"prompt": PROMPT}).whole()
            assert answer.headers["x-pointsman-prefill"] == "remote"
            assert not await let_in(server, server.login(NAMESPACE, "alone"))
            server.start_authorizer()
            assert await let_in(server, server.login(NAMESPACE, "alone"))


# --- attacks with the login of another service ---


@pytest.fixture
async def victim(server: GuardedNats) -> AsyncIterator[Pod]:
    """A service with a queue and a worker's consumer."""
    async with pod(server, "victim") as found:
        jetstream = found.client.jetstream()
        subject = names.prefill_subject(NAMESPACE, "victim", "kv")
        await jetstream.add_consumer(
            found.stream,
            ConsumerConfig(durable_name="prefill-kv", filter_subject=subject, ack_policy=AckPolicy.EXPLICIT),
        )
        yield found


@pytest.fixture
async def attacker(server: GuardedNats) -> AsyncIterator[Pod]:
    async with pod(server, "attacker") as found:
        yield found


@pytest.mark.parametrize(
    "subject",
    [
        ">",
        "pointsman.>",
        "pointsman.prefill.>",
        "pointsman.prefill.tests.victim.*",
        "pointsman.reply.tests.>",
        "pointsman.signal.tests.victim.kv",
        "pointsman.kv.tests.*.*",
        "_INBOX.>",
        "$JS.API.>",
        "$JS.ACK.>",
        "$SYS.REQ.USER.AUTH",
        "$SYS.>",
    ],
)
async def test_nobody_listens_to_another_service(victim: Pod, attacker: Pod, subject: str) -> None:
    await attacker.hears_nothing(subject)


@pytest.mark.parametrize(
    "subject",
    [
        "pointsman.prefill.tests.victim.kv",
        "pointsman.reply.tests.victim.decode-0.x.y",
        "pointsman.signal.tests.victim.kv",
        "pointsman.presence.tests.victim.kv",
        "pointsman.kv.tests.victim.decode-0",
        "pointsman.elastic.tests.victim",
        "$JS.ACK.pointsman-prefill-tests-victim.prefill-kv.1.1.1.1.1",
    ],
)
async def test_nobody_publishes_to_another_service(victim: Pod, attacker: Pod, subject: str) -> None:
    await attacker.client.publish(subject, b"forged")
    await attacker.refused(subject)


@pytest.mark.parametrize(
    "request_of",
    [
        "CONSUMER.MSG.NEXT.{stream}.prefill-kv",
        "CONSUMER.CREATE.{stream}.mine.pointsman.prefill.tests.victim.kv",
        "CONSUMER.DELETE.{stream}.prefill-kv",
        "STREAM.INFO.{stream}",
        "STREAM.MSG.GET.{stream}",
        "STREAM.MSG.DELETE.{stream}",
        "STREAM.PURGE.{stream}",
        "STREAM.DELETE.{stream}",
        "STREAM.UPDATE.{stream}",
        "STREAM.SNAPSHOT.{stream}",
        "STREAM.NAMES",
        "STREAM.LIST",
    ],
)
async def test_nobody_reads_or_deletes_the_queue_of_another_service(
    victim: Pod, attacker: Pod, request_of: str
) -> None:
    await attacker.gets_no_answer("$JS.API." + request_of.format(stream=victim.stream), {})


async def test_nobody_has_a_stream_of_his_own_take_the_prompts_of_another_service(victim: Pod, attacker: Pod) -> None:
    """A stream may source others and subscribe to any subject of its account: nobody may make or change one."""
    stolen = StreamConfig(name=attacker.stream, sources=[StreamSource(name=victim.stream)])
    await attacker.gets_no_answer(f"$JS.API.STREAM.UPDATE.{attacker.stream}", stolen.as_dict())
    await attacker.gets_no_answer(f"$JS.API.STREAM.CREATE.{attacker.stream}", stolen.as_dict())
    await attacker.gets_no_answer("$JS.API.STREAM.CREATE.mine", stolen.evolve(name="mine").as_dict())
    info = await attacker.client.jetstream().stream_info(attacker.stream)
    assert info.config.sources in (None, [])
    assert info.config.subjects == [names.prefill_subjects(NAMESPACE, "attacker")]


async def test_nobody_hears_or_takes_the_answers_to_another_service(victim: Pod, attacker: Pod) -> None:
    """Neither a copy of them, nor as one of a queue group, of which the server gives each message to one member."""
    inbox = names.reply_inbox_prefix(NAMESPACE, "victim", "pod-0")
    stolen: list[bytes] = []

    async def steal(message: Msg) -> None:
        stolen.append(message.data)

    async def answer(message: Msg) -> None:
        await message.respond(b"for the victim")

    for subject in (f"{inbox}.>", f"{inbox}.*.*", "pointsman.reply.tests.victim.>", "pointsman.*.tests.victim.>"):
        for queue in ("", "workers"):
            await attacker.client.subscribe(subject, queue=queue, cb=steal)
            await attacker.refused(subject)
    asked = names.prefill_signal_subject(NAMESPACE, "victim", "kv")
    await victim.client.subscribe(asked, cb=answer)
    for _ in range(20):
        assert (await victim.client.request(asked, timeout=30)).data == b"for the victim"
    await attacker.client.flush()
    assert stolen == []


async def test_an_answer_of_an_own_queue_may_go_to_another_service_and_brings_nothing_back(
    victim: Pod, attacker: Pod
) -> None:
    """The limit that docs/operate/security.md names: NATS checks no reply subjects of requests to JetStream."""
    jetstream = attacker.client.jetstream()
    own, theirs = (names.prefill_subject(NAMESPACE, uid, "kv") for uid in ("attacker", "victim"))
    config = ConsumerConfig(durable_name="prefill-kv", filter_subject=own, ack_policy=AckPolicy.EXPLICIT)
    await jetstream.add_consumer(attacker.stream, config)
    await jetstream.publish(own, b"forged")
    signal = names.prefill_signal_subject(NAMESPACE, "victim", "kv")
    heard = await victim.client.subscribe(signal)
    for _ in range(2):  # nats-py sends a ping ahead of a subscription that it has not sent yet
        await victim.client.flush()
    await attacker.client.publish(f"$JS.API.CONSUMER.MSG.NEXT.{attacker.stream}.prefill-kv", b"", reply=signal)
    assert (await heard.next_msg(timeout=30)).data == b"forged"
    # The other way round: the victim's prompt to a subject of the attacker's.
    await victim.client.jetstream().publish(theirs, b"a prompt")
    inbox = f"{names.reply_inbox_prefix(NAMESPACE, 'attacker', 'pod-0')}.mine"
    stolen = await attacker.client.subscribe(inbox)
    next_of_victim = f"$JS.API.CONSUMER.MSG.NEXT.{victim.stream}.prefill-kv"
    await attacker.client.publish(next_of_victim, b"", reply=inbox)
    await attacker.refused(next_of_victim)
    assert stolen.pending_msgs == 0


async def test_the_login_of_a_service_is_of_no_other(server: GuardedNats) -> None:
    mine, theirs = server.login(NAMESPACE, "one"), server.login(NAMESPACE, "other")
    assert await let_in(server, mine)
    assert not await let_in(server, Login(theirs.user, mine.password))
    assert not await let_in(server, Login(mine.user, ""))
    assert not await let_in(server, Login(SHARED.user, SHARED.password)), "a new installation shares no login"


# --- pods of earlier versions, and rotations ---


async def test_pods_with_the_shared_login_and_pods_with_their_own_serve_together(upgraded: GuardedNats) -> None:
    fabric = Fabric()
    async with (
        worker(settings("prefill-0", **of_service(upgraded, "mixed", SHARED)), fabric, Role.PREFILL),
        worker(settings("decode-0", **of_service(upgraded, "mixed")), fabric, Role.DECODE) as decode,
    ):
        await decode.sees("prefill-0")
        answer = await decode.call({"prompt": PROMPT}).whole()
        assert answer.headers["x-pointsman-prefill"] == "remote"


async def _make_queue_as_earlier_versions(found: Pod, timeout_s: float = 30.0) -> None:
    """What workers of ec6a7b8 do whenever they connect."""
    jetstream = found.client.jetstream(timeout=timeout_s)
    stream = StreamConfig(
        name=found.stream,
        subjects=[names.prefill_subjects(NAMESPACE, found.uid)],
        retention=RetentionPolicy.WORK_QUEUE,
        discard=DiscardPolicy.NEW,
        max_msgs=1024,
        max_age=900.0,
        storage=StorageType.FILE,
        duplicate_window=30.0,
    )
    consumer = ConsumerConfig(
        durable_name="prefill-kv",
        filter_subject=names.prefill_subject(NAMESPACE, found.uid, "kv"),
        ack_policy=AckPolicy.EXPLICIT,
        deliver_policy=DeliverPolicy.ALL,
        ack_wait=5.0,
        max_ack_pending=1024,
        max_deliver=-1,
    )
    try:
        await jetstream.add_stream(stream)
    except nats.js.errors.BadRequestError:
        await jetstream.update_stream(stream)
    await jetstream.add_consumer(found.stream, consumer)


async def test_workers_of_an_earlier_image_work_with_the_login_of_their_service(upgraded: GuardedNats) -> None:
    """A new pod may have an earlier image; it finds its service's login where the shared one was."""
    async with pod(upgraded, "earlier") as found:
        await _make_queue_as_earlier_versions(found)


async def test_a_new_installation_has_no_right_that_only_earlier_versions_need(server: GuardedNats) -> None:
    async with pod(server, "earlier") as found:
        with pytest.raises(nats.errors.TimeoutError):
            await _make_queue_as_earlier_versions(found, PATIENCE_S)
        await found.refused(f"$JS.API.STREAM.CREATE.{found.stream}")


async def test_a_rotation_of_the_key_loses_no_worker() -> None:
    """Old pods keep the login of their environment until none is left; then the previous key is dropped."""
    with guarded_nats() as server:
        (before,) = server.keys
        old = server.login(NAMESPACE, "rotated")
        fabric = Fabric()
        async with worker(settings("prefill-0", **of_service(server, "rotated", old)), fabric, Role.PREFILL):
            server.restart(keys=("a-new-key-of-all-services-in-these-tests", before))
            new = server.login(NAMESPACE, "rotated")
            assert new != old
            async with worker(
                settings("decode-0", **of_service(server, "rotated", new)), fabric, Role.DECODE
            ) as decode:
                await decode.sees("prefill-0")
                answer = await decode.call({"prompt": PROMPT}).whole()
                assert answer.headers["x-pointsman-prefill"] == "remote"
        server.restart(keys=server.keys[:1])
        assert await let_in(server, new)
        assert not await let_in(server, old)


async def test_the_shared_login_is_closed_by_a_restart() -> None:
    with guarded_nats(earlier_versions=True) as server:
        assert await let_in(server, SHARED)
        server.restart(earlier_versions=False)
        assert not await let_in(server, SHARED)
        assert await let_in(server, server.login(NAMESPACE, "one"))


async def test_a_hundred_pods_that_connect_at_once_are_all_let_in(server: GuardedNats) -> None:
    """After a restart of NATS all workers come back at the same time."""
    logins = [server.login(NAMESPACE, f"many-{number % 20}") for number in range(100)]
    assert all(await asyncio.gather(*(let_in(server, login) for login in logins)))
