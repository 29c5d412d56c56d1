"""Embeddings between real processes, by TCP and by shared memory: whole, authenticated, and free again after a kill."""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from random import Random

import pytest

from fixtures.transfer_processes import TransferProcess, running
from integration.workers.multimodal.transfer_process import (
    BLOCK_SIZE,
    EMBEDDING_BYTES,
    MAX_REQUEST_TOKENS,
    TOKEN,
    Options,
    embedding,
)
from pointsman.workers.multimodal.transfer.allocator import ReqToMetadataBlockAllocator
from pointsman.workers.multimodal.transfer.buffers import MultimodalDataBuffers
from pointsman.workers.multimodal.transfer.client import EmbeddingClient
from pointsman.workers.multimodal.transfer.connection import Connection, greet_encode_side, greet_language_side
from pointsman.workers.multimodal.transfer.data_paths import SharedRegion, StreamLanguagePath
from pointsman.workers.multimodal.transfer.errors import (
    BadMessage,
    HandshakeRefused,
    LinkClosed,
    NoAllocation,
    TransferFailed,
)
from pointsman.workers.multimodal.transfer.messages import (
    Challenge,
    EncodeHello,
    Fetch,
    Incoming,
    LanguageHello,
    Message,
    NixlTarget,
    Part,
    Payload,
    Pull,
    Pulled,
)
from pointsman.workers.multimodal.transfer.server import EmbeddingServer
from waiting import eventually

PATHS = pytest.mark.parametrize("path", ["tcp", "unix"])
MODES = pytest.mark.parametrize("sizes_first", [True, False], ids=["sizes first", "default first"])


def allocator(blocks: int, default: int = 1) -> ReqToMetadataBlockAllocator:
    return ReqToMetadataBlockAllocator(blocks * BLOCK_SIZE, BLOCK_SIZE, default)


@asynccontextmanager
async def encode_process(folder: Path, requests: dict[str, int], sizes_first: bool) -> AsyncIterator[TransferProcess]:
    """A process that serves ``requests`` (tokens of each)."""
    options = Options("encode", blocks=4000, sizes_first=sizes_first, folder=str(folder))
    async with running(options) as process:
        await process.tell(put=requests)
        for request_id in requests:
            assert (await process.line("put"))["put"] == request_id
        yield process


@asynccontextmanager
async def language_process(address: str, requests: dict[str, int], sizes_first: bool) -> AsyncIterator[TransferProcess]:
    """A process that fetches ``requests``, all at once."""
    async with running(Options("language", blocks=20, sizes_first=sizes_first)) as process:
        await process.tell(fetch=requests, address=address)
        yield process


@asynccontextmanager
async def sides(
    folder: Path, path: str, encode: ReqToMetadataBlockAllocator, language: ReqToMetadataBlockAllocator, *,
    sizes_first: bool = True, timeout_s: float = 5.0, token: str = TOKEN, embedding_bytes: int = EMBEDDING_BYTES,
) -> AsyncIterator[tuple[EmbeddingServer, EmbeddingClient, str]]:  # fmt: skip
    """Both sides in this process."""
    server = EmbeddingServer(encode, EMBEDDING_BYTES, TOKEN, timeout_s)
    client = EmbeddingClient(
        language, embedding_bytes, token, timeout_s, max_request_tokens=MAX_REQUEST_TOKENS, sizes_first=sizes_first
    )
    if path == "unix":
        server.listen_unix(folder / "encode.sock")
        address = f"unix:{folder / 'encode.sock'}"
    else:
        address = "{}:{}".format(*server.listen_tcp("127.0.0.1"))
    try:
        yield server, client, address
    finally:
        await client.close()
        await server.close()


@PATHS
@MODES
async def test_an_embedding_of_100_blocks_arrives_through_a_default_reservation_of_one(
    tmp_path: Path, path: str, sizes_first: bool
) -> None:
    tokens = 100 * BLOCK_SIZE - 3
    async with sides(tmp_path, path, allocator(100), allocator(2), sizes_first=sizes_first) as (
        server,
        client,
        address,
    ):
        server.put("r", embedding("r", tokens))
        assert await client.fetch(address, "r") == embedding("r", tokens)
        assert client.usage.used_blocks == 0
        await eventually(lambda: server.usage.used_blocks == 0, "the blocks are free")


@PATHS
@MODES
async def test_many_transfers_share_small_buffers_and_each_gets_its_own_bytes(
    tmp_path: Path, path: str, sizes_first: bool
) -> None:
    rng = Random(1)
    lengths = {f"r{number}": rng.randint(1, 20 * BLOCK_SIZE) for number in range(60)}
    async with sides(tmp_path, path, allocator(22), allocator(6, 2), sizes_first=sizes_first) as (
        server,
        client,
        address,
    ):

        async def one(request_id: str) -> bool:
            return await client.fetch(address, request_id) == embedding(request_id, lengths[request_id])

        fetching = [asyncio.create_task(one(request_id)) for request_id in lengths]
        await asyncio.sleep(0)
        for request_id in rng.sample(list(lengths), len(lengths)):
            server.put(request_id, embedding(request_id, lengths[request_id]))
        assert all(await asyncio.gather(*fetching))
        assert client.usage.used_blocks == 0
        await eventually(lambda: server.usage.used_blocks == 0, "the blocks are free")


@PATHS
@MODES
@pytest.mark.parametrize("seed", range(4))
async def test_a_killed_encode_worker_frees_the_language_worker(
    tmp_path: Path, path: str, sizes_first: bool, seed: int
) -> None:
    rng = Random(f"{seed}{path}{sizes_first}")
    requests = {f"r{number}": rng.randint(100, 2000) for number in range(10)}
    client = EmbeddingClient(
        allocator(20), EMBEDDING_BYTES, TOKEN, 600, max_request_tokens=MAX_REQUEST_TOKENS, sizes_first=sizes_first
    )
    shared_before = set(Path("/dev/shm").iterdir())
    async with AsyncExitStack() as stack:
        stack.push_async_callback(client.close)
        child = await stack.enter_async_context(encode_process(tmp_path, requests, sizes_first))
        address = f"unix:{tmp_path / 'encode.sock'}" if path == "unix" else f"127.0.0.1:{child.port}"
        # Two are never encoded: they hold or wait for blocks until the kill.
        fetching = [asyncio.create_task(client.fetch(address, each)) for each in (*requests, "never", "nor this")]
        point = rng.randrange(len(requests))
        await eventually(lambda: sum(each.done() for each in fetching) >= point, "so many have arrived")
        if not sizes_first:
            await eventually(lambda: client.usage.used_blocks > 0, "blocks are reserved")
        await child.kill()
        async with asyncio.timeout(120):  # far less than the time-out of the transfers
            results = await asyncio.gather(*fetching, return_exceptions=True)
        for request_id, result in zip((*requests, "never", "nor this"), results, strict=True):
            if isinstance(result, BaseException):
                assert isinstance(result, TransferFailed | LinkClosed)
            else:
                assert result == embedding(request_id, requests[request_id])
        assert isinstance(results[-1], TransferFailed | LinkClosed)
        assert client.usage.used_blocks == 0
        assert set(Path("/dev/shm").iterdir()) <= shared_before
        assert regions_mapped() == 0

        again = await stack.enter_async_context(encode_process(tmp_path, {"new": 500}, sizes_first))
        address = f"unix:{tmp_path / 'encode.sock'}" if path == "unix" else f"127.0.0.1:{again.port}"
        assert await client.fetch(address, "new") == embedding("new", 500), "it serves on with the next one"


def regions_mapped() -> int:
    """Shared regions that this process still has."""
    return Path("/proc/self/maps").read_text().count("pointsman-embeddings")


@PATHS
@MODES
@pytest.mark.parametrize("seed", range(4))
async def test_a_killed_language_worker_frees_the_encode_worker(
    tmp_path: Path, path: str, sizes_first: bool, seed: int
) -> None:
    rng = Random(f"{seed}{path}{sizes_first}")
    requests = {f"r{number}": rng.randint(500, 2000) for number in range(10)}
    async with sides(tmp_path, path, allocator(800), allocator(20), timeout_s=600) as (server, client, address):
        for request_id, tokens in requests.items():
            server.put(request_id, embedding(request_id, tokens))
        async with language_process(address, requests, sizes_first) as child:
            for _ in range(rng.randrange(len(requests) - 1)):
                assert (await child.line("request"))["right"]
            await child.kill()
        # Far less than the time-out of the transfers.
        await eventually(lambda: server.usage.used_blocks == 0, "the blocks are free", timeout_s=120)
        server.put("new", embedding("new", 500))
        assert await client.fetch(address, "new") == embedding("new", 500), "it serves on"


@PATHS
@MODES
async def test_a_language_worker_that_stands_still_is_left_after_the_time_out(
    tmp_path: Path, path: str, sizes_first: bool
) -> None:
    requests = {"first": 10, "r": 4000}
    async with AsyncExitStack() as stack:
        server, _, address = await stack.enter_async_context(
            sides(tmp_path, path, allocator(800), allocator(20), timeout_s=2)
        )
        server.put("first", embedding("first", 10))
        child = await stack.enter_async_context(language_process(address, requests, sizes_first))
        await child.line("right")  # so both are fetched
        child.child.send_signal(signal.SIGSTOP)
        server.put("r", embedding("r", 4000))
        await eventually(lambda: server.usage.used_blocks > 0, "the transfer has begun")
        await eventually(lambda: server.usage.used_blocks == 0, "the blocks are free")
        child.child.send_signal(signal.SIGCONT)
        said = await child.line("request")
        assert "error" in said, "it must not take a part for the whole"


@PATHS
@MODES
async def test_an_encode_worker_that_stands_still_is_left_after_the_time_out(
    tmp_path: Path, path: str, sizes_first: bool
) -> None:
    client = EmbeddingClient(
        allocator(20), EMBEDDING_BYTES, TOKEN, 0.5, max_request_tokens=MAX_REQUEST_TOKENS, sizes_first=sizes_first
    )
    async with encode_process(tmp_path, {"first": 100, "second": 100}, sizes_first) as child:
        address = f"unix:{tmp_path / 'encode.sock'}" if path == "unix" else f"127.0.0.1:{child.port}"
        assert await client.fetch(address, "first") == embedding("first", 100)
        child.child.send_signal(signal.SIGSTOP)
        with pytest.raises(TransferFailed, match=r"waiting for the encode worker for 0.5 s"):
            await client.fetch(address, "second")
        await eventually(lambda: client.usage.used_blocks == 0, "the blocks are free")
        await client.close()
    await client.close()


@PATHS
async def test_a_fetch_that_is_cancelled_leaves_nothing_on_either_side(tmp_path: Path, path: str) -> None:
    async with AsyncExitStack() as stack:
        server, client, address = await stack.enter_async_context(
            sides(tmp_path, path, allocator(100), allocator(3), sizes_first=False, timeout_s=300)
        )
        waiting = asyncio.create_task(client.fetch(address, "never encoded"))
        await eventually(lambda: client.usage.used_blocks == 1, "the default reservation is held")
        waiting.cancel()
        await eventually(lambda: client.usage.used_blocks == 0, "the blocks are free", timeout_s=120)
        for after in range(12):
            request_id = f"r{after}"
            server.put(request_id, embedding(request_id, 700))
            fetching = asyncio.create_task(client.fetch(address, request_id))
            for _ in range(after * 3):
                await asyncio.sleep(0)
            fetching.cancel()
            await asyncio.wait([fetching])
        await eventually(lambda: client.usage.used_blocks == server.usage.used_blocks == 0, "the blocks are free")


@PATHS
async def test_a_client_without_the_token_or_of_another_model_is_refused_with_the_reason(
    tmp_path: Path, path: str
) -> None:
    async with sides(tmp_path, path, allocator(9), allocator(9), token="another token") as (_, client, address):
        with pytest.raises(HandshakeRefused, match="control token is missing or wrong"):
            await client.fetch(address, "r")
    async with sides(tmp_path, path, allocator(9), allocator(9), embedding_bytes=7) as (_, client, address):
        with pytest.raises(HandshakeRefused, match="embedding_bytes is 7: it must be 1000"):
            await client.fetch(address, "r")


async def test_a_server_without_the_token_gets_no_request(tmp_path: Path) -> None:
    server = EmbeddingServer(allocator(9), EMBEDDING_BYTES, "another token", 5)
    client = EmbeddingClient(allocator(9), EMBEDDING_BYTES, TOKEN, 5, max_request_tokens=MAX_REQUEST_TOKENS)
    host, port = server.listen_tcp("127.0.0.1")
    with pytest.raises(HandshakeRefused):
        await client.fetch(f"{host}:{port}", "r")
    await client.close()
    await server.close()


async def test_an_encode_worker_that_does_not_prove_the_token_is_refused() -> None:
    here, there = socket.socketpair(socket.AF_UNIX)
    encode, language = Connection(here), Connection(there)
    greeting = asyncio.create_task(
        greet_encode_side(language, TOKEN, embedding_bytes=EMBEDDING_BYTES, sizes_first=True, paths=("tcp",))
    )
    await encode.send(Challenge(b"nonce"))
    hello = await encode.receive()
    assert isinstance(hello, LanguageHello)
    await encode.send(EncodeHello(hello.proof, "tcp", sizes_first=True))  # it can only repeat this one
    with pytest.raises(HandshakeRefused, match="does not have the service's control token"):
        await greeting
    encode.close()
    language.close()


async def test_the_bytes_of_a_part_that_nobody_waits_for_are_read_past() -> None:
    here, there = socket.socketpair(socket.AF_UNIX)
    encode, language = Connection(here), Connection(there)
    buffers = MultimodalDataBuffers(allocator(9), EMBEDDING_BYTES)
    sending = asyncio.create_task(encode.send(Payload(1, 0, 70), (memoryview(bytes(buffers.part_bytes(70))),)))
    payload = await language.receive()
    assert isinstance(payload, Payload)
    await StreamLanguagePath(language, buffers).receive(payload, lambda *_: None)
    await sending
    await encode.send(Part(1, 0, 70, is_last=True))
    assert await language.receive() == Part(1, 0, 70, is_last=True)
    encode.close()
    language.close()


async def test_a_failed_encoding_is_told_to_who_waits_and_nonsense_is_hung_up_on(tmp_path: Path) -> None:
    async with sides(tmp_path, "tcp", allocator(9), allocator(9)) as (server, client, address):
        fetching = asyncio.create_task(client.fetch(address, "r"))
        while not fetching.done():  # it takes a moment until the encode side knows of it
            server.fail("r", "the image cannot be decoded")
            await asyncio.sleep(0)
        with pytest.raises(TransferFailed, match="the image cannot be decoded"):
            await fetching
        with pytest.raises(NoAllocation, match="embeddings has 1 bytes"):
            server.put("s", embedding("s", 1).__class__(1, b"1", b"1234", bytes(12)))
        host, port = address.split(":")
        for nonsense in (b"\xff" * 8, b"\0\0\0\x04abcd", b""):
            with socket.create_connection((host, int(port))) as sock:
                sock.setblocking(False)
                await asyncio.get_running_loop().sock_recv(sock, 100)
                await asyncio.get_running_loop().sock_sendall(sock, nonsense)
                sock.shutdown(socket.SHUT_WR)
                with suppress(ConnectionResetError):
                    assert await asyncio.get_running_loop().sock_recv(sock, 100) == b""


async def test_an_encode_worker_that_is_not_there_is_an_error_at_once(tmp_path: Path) -> None:
    client = EmbeddingClient(allocator(9), EMBEDDING_BYTES, TOKEN, 5, max_request_tokens=MAX_REQUEST_TOKENS)
    with pytest.raises(LinkClosed, match="cannot be reached"):
        await client.fetch(f"unix:{tmp_path / 'none'}", "r")
    await client.close()


class HostileEncodeSide:
    """Has the token, and sends what it must not."""

    def __init__(self, folder: Path) -> None:
        self.address = f"unix:{folder / 'hostile.sock'}"
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(folder / "hostile.sock"))
        self._listening.listen()
        self._listening.setblocking(False)

    async def greeted(self, path: str, *, sizes_first: bool = False) -> Connection:
        """A connection of a language side, past the handshake."""
        sock, _ = await asyncio.get_running_loop().sock_accept(self._listening)
        self._listening.close()
        connection = Connection(sock)
        await greet_language_side(
            connection,
            TOKEN,
            embedding_bytes=EMBEDDING_BYTES,
            sizes_first=sizes_first,
            choose_path=lambda _: path,
        )
        return connection


def client_of(transports: tuple[str, ...] = ("shared_memory", "tcp"), *, sizes_first: bool = False) -> EmbeddingClient:
    return EmbeddingClient(
        allocator(9), EMBEDDING_BYTES, TOKEN, 5, max_request_tokens=100, sizes_first=sizes_first, transports=transports
    )


@pytest.mark.parametrize(
    "hostile",
    [
        Payload(1, 0, 10**12), Payload(1, 0, 0), Payload(1, 0, -5), Pulled(1, 0), Incoming(1, 0, 1),
        NixlTarget(b""), Fetch(1, "r"), Challenge(b""),
    ],
    ids=str,
)  # fmt: skip
async def test_a_message_that_is_wrong_at_its_place_ends_the_connection(tmp_path: Path, hostile: Message) -> None:
    side, client = HostileEncodeSide(tmp_path), client_of(("tcp",))
    fetching = asyncio.create_task(client.fetch(side.address, "r"))
    connection = await side.greeted("tcp")
    assert isinstance(await connection.receive(), Fetch)
    await connection.send(hostile)
    with pytest.raises(TransferFailed, match="was closed"):
        await fetching
    assert client.usage.used_blocks == 0
    connection.close()
    await client.close()


@pytest.mark.parametrize("chunk", [(-1000, 1000), (1, 1000), (10**15, 1000), (0, 999), (0, 10**9)])
async def test_a_place_outside_the_shared_region_ends_the_connection(tmp_path: Path, chunk: tuple[int, int]) -> None:
    side, client = HostileEncodeSide(tmp_path), client_of()
    fetching = asyncio.create_task(client.fetch(side.address, "r"))
    connection = await side.greeted("shared_memory")
    SharedRegion(1000).hand_over(connection)
    assert isinstance(await connection.receive(), Fetch)
    await connection.send(Pull(1, 0, 1, (chunk, (0, 4), (0, 12), (0, 64))))
    with pytest.raises(TransferFailed, match="was closed"):
        await fetching
    connection.close()
    await client.close()


async def test_a_region_that_can_shrink_is_refused(tmp_path: Path) -> None:
    """Who reads past the end of a file that was cut is killed by the kernel."""
    side, client = HostileEncodeSide(tmp_path), client_of()
    fetching = asyncio.create_task(client.fetch(side.address, "r"))
    connection = await side.greeted("shared_memory")
    region = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
    os.ftruncate(region, 1000)
    socket.send_fds(connection.sock, [b"\0"], [region])
    with pytest.raises(BadMessage, match="can shrink"):
        await fetching
    os.close(region)
    connection.close()
    await client.close()


async def test_a_data_path_that_was_not_offered_is_refused(tmp_path: Path) -> None:
    side, client = HostileEncodeSide(tmp_path), client_of(("tcp",))
    fetching = asyncio.create_task(client.fetch(side.address, "r"))
    connection = await side.greeted("nixl")
    with pytest.raises(BadMessage, match="chose the data path nixl, which was not offered"):
        await fetching
    connection.close()
    await client.close()


async def test_strangers_that_prove_nothing_leave_room_for_others_and_are_hung_up_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pointsman.workers.multimodal.transfer.server.MAX_HANDSHAKES", 3)
    async with sides(tmp_path, "tcp", allocator(9), allocator(9)) as (server, client, address):
        host, port = address.split(":")
        strangers = [socket.create_connection((host, int(port))) for _ in range(5)]
        for each in strangers:
            each.setblocking(False)
        received = [await asyncio.get_running_loop().sock_recv(each, 100) for each in strangers]
        assert [bool(each) for each in received] == [True, True, True, False, False]
        for each in strangers:
            each.close()
        server.put("r", embedding("r", 5))
        await eventually(lambda: not server._handshakes, "the strangers are gone")
        assert await client.fetch(address, "r") == embedding("r", 5)


async def test_what_was_transferred_is_counted_once_on_both_sides(tmp_path: Path) -> None:
    async with sides(tmp_path, "tcp", allocator(9), allocator(9), sizes_first=False) as (server, client, address):
        server.put("r", embedding("r", 20))
        assert (server.usage.used_blocks, server.usage.lent_blocks) == (0, 3), "it is copied before it is asked for"
        await client.fetch(address, "r")
        await eventually(lambda: server.usage.used_blocks == 0, "the blocks are free")
        for side in (client, server):
            statistics = side.statistics()
            assert statistics.ended == {"succeeded": 1}
            assert statistics.resumes == 1
            assert statistics.sent_bytes == {"tcp": 20 * (EMBEDDING_BYTES + 16) + 2 * 64}
            assert len(statistics.seconds) == 1
            assert not side.statistics().ended


async def test_an_address_that_is_none_is_an_error_at_once() -> None:
    client = client_of()
    for address in ("no-such-host.invalid:1", "127.0.0.1", "127.0.0.1:http!"):
        with pytest.raises(LinkClosed, match="there is no encode worker at"):
            await client.fetch(address, "r")
    await client.close()


async def test_nixl_that_does_not_work_here_is_replaced_by_tcp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sides believe that it is installed; this environment does not have it."""
    monkeypatch.setattr("pointsman.workers.multimodal.transfer.shell.is_installed", lambda: True)
    server = EmbeddingServer(allocator(9), EMBEDDING_BYTES, TOKEN, 5, transports=("nixl", "tcp"))
    client = client_of(("nixl", "tcp"))
    host, port = server.listen_tcp("127.0.0.1")
    server.put("r", embedding("r", 20))
    assert await client.fetch(f"{host}:{port}", "r") == embedding("r", 20)
    assert list(client.statistics().sent_bytes) == ["tcp"]
    await client.close()
    await server.close()
