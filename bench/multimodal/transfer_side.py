"""One side of the embedding transfers that ``bench.multimodal.transfer`` measures; runs in the engine environment.

A command a line on stdin, an answer a line on stdout. The language side times itself.
"""

import asyncio
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from itertools import cycle
from pathlib import Path
from typing import Any, Final

from pointsman.workers.multimodal.transfer.allocator import ReqToMetadataBlockAllocator
from pointsman.workers.multimodal.transfer.buffers import Buffer, Embedding
from pointsman.workers.multimodal.transfer.client import EmbeddingClient
from pointsman.workers.multimodal.transfer.server import EmbeddingServer

TOKENS: Final = 2000
EMBEDDING_BYTES: Final = 4096 * 2  # bfloat16
BUFFER_TOKENS: Final = 8192
TOKEN: Final = "the token of the benchmark"
TIMEOUT_SECONDS: Final = 60.0
COPIES: Final = 3  # of which the middle one counts
SOURCES: Final = 8  # 130 MB, more than a cache holds
SIZE_BYTES: Final = TOKENS * (EMBEDDING_BYTES + 4 + 12)

Perform = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]


def say(answer: Mapping[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


class Memory:
    """Memory for embeddings that is used again, as an engine's pinned memory is."""

    def __init__(self) -> None:
        self._free: dict[int, list[memoryview]] = {}

    def lend(self, size_bytes: int) -> memoryview:
        """So many bytes; used longest ago."""
        free = self._free.get(size_bytes)
        return free.pop(0) if free else memoryview(bytearray(b"\1" * size_bytes))

    def take_back(self, *buffers: Buffer) -> None:
        """They are not needed any more."""
        for each in buffers:
            view = memoryview(each)
            self._free.setdefault(len(view), []).append(view)


def encode_side(folder: Path) -> Perform:
    """``{"put": requests}``: their embeddings are ready."""
    allocator = ReqToMetadataBlockAllocator(BUFFER_TOKENS)
    server = EmbeddingServer(
        allocator, EMBEDDING_BYTES, TOKEN, TIMEOUT_SECONDS, transports=("shared_memory", "nixl", "tcp")
    )
    server.listen_unix(folder / "encode.sock")
    _, port = server.listen_tcp("127.0.0.1")
    fields = (bytes(range(256)) * (TOKENS * size // 256 + 1) for size in (EMBEDDING_BYTES, 4, 12))
    sizes = (EMBEDDING_BYTES, 4, 12)
    embedding = Embedding(
        TOKENS, *(memoryview(each)[: TOKENS * size] for each, size in zip(fields, sizes, strict=True))
    )
    say({"port": port})

    async def perform(command: Mapping[str, Any]) -> Mapping[str, Any]:
        for request in command["put"]:
            server.put(request, embedding)
        return {"put": len(command["put"])}

    return perform


def language_side(unix: str, tcp: str) -> Perform:
    """``{"transport": …, "fetch": requests}`` and ``{"copy": buffers}``: the seconds that it took."""
    memory = Memory()
    clients = {
        (transport, sizes_first): EmbeddingClient(
            ReqToMetadataBlockAllocator(BUFFER_TOKENS),
            EMBEDDING_BYTES,
            TOKEN,
            TIMEOUT_SECONDS,
            max_request_tokens=BUFFER_TOKENS,
            sizes_first=sizes_first,
            transports=(transport,),
            allocate=memory.lend,
        )
        for transport in ("shared_memory", "nixl", "tcp")
        for sizes_first in (True, False)
    }
    sources = cycle([memoryview(bytearray(bytes([value + 1]) * SIZE_BYTES)) for value in range(SOURCES)])
    say({"ready": True})

    def copy(buffers: int) -> float:
        """Seconds for so many buffers that are in no cache, as bytes of another process are in none of this one."""
        targets = [memory.lend(SIZE_BYTES) for _ in range(buffers)]
        began_s = time.perf_counter()
        for target in targets:
            target[:] = next(sources)
        seconds = time.perf_counter() - began_s
        memory.take_back(*targets)
        return seconds

    async def perform(command: Mapping[str, Any]) -> Mapping[str, Any]:
        if "copy" in command:
            return {"seconds": statistics.median(copy(command["copy"]) for _ in range(COPIES))}
        transport = command["transport"]
        client = clients[transport, command["sizes_first"]]
        address = unix if transport == "shared_memory" else tcp
        num_tokens = TOKENS if command["known"] else None
        began_s = time.perf_counter()
        embeddings = await asyncio.gather(*(client.fetch(address, each, num_tokens) for each in command["fetch"]))
        seconds = time.perf_counter() - began_s
        used = client.statistics().sent_bytes
        assert list(used) == [transport], f"{transport} was measured, {used} was used"
        for embedding in embeddings:
            assert embedding.num_tokens == TOKENS
            assert bytes(memoryview(embedding.embeddings)[-256:]) == bytes(range(256)), "other bytes"
            memory.take_back(embedding.embeddings, embedding.fill_ids, embedding.mrope_positions)
        return {"seconds": seconds}

    return perform


async def main(arguments: list[str]) -> None:
    """Carry out commands until stdin ends."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    side, *where = arguments
    perform = encode_side(Path(*where)) if side == "encode" else language_side(*where)
    async for line in reader:
        say(await perform(json.loads(line)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
