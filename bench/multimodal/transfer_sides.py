"""The two sides of the embedding transfers that ``bench.multimodal.transfer`` measures; runs in the engine environment.

The encode side is a process of its own, and has each request ready that its pipe brings. Argument: rounds. Printed is,
as JSON, what each way took in each round, in GB/s.
"""

import asyncio
import json
import multiprocessing
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from itertools import cycle, islice
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Final

from pointsman.workers.multimodal.transfer.allocator import ReqToMetadataBlockAllocator
from pointsman.workers.multimodal.transfer.buffers import Embedding
from pointsman.workers.multimodal.transfer.client import EmbeddingClient
from pointsman.workers.multimodal.transfer.server import EmbeddingServer

TRANSPORTS: Final = ("shared_memory", "nixl", "tcp")
TOKENS: Final = 2000
EMBEDDING_BYTES: Final = 4096 * 2  # bfloat16
BUFFER_TOKENS: Final = 8192
COMMON: Final = (EMBEDDING_BYTES, "the token of the benchmark", 60.0)
SIZE_BYTES: Final = TOKENS * (EMBEDDING_BYTES + 4 + 12)
BUFFERS: Final = 8  # 130 MB, more than a cache holds
WARM_UP_ROUNDS: Final = 3


@cache
def buffers(size_bytes: int) -> Iterator[memoryview]:
    """Memory that is used again, that used longest ago first, as an engine's pinned memory is."""
    return cycle([memoryview(bytearray(b"\1" * size_bytes)) for _ in range(BUFFERS)])


async def encode(folder: Path, requests: Connection) -> None:
    """Put the embedding of each request into the buffer."""
    server = EmbeddingServer(ReqToMetadataBlockAllocator(BUFFER_TOKENS), *COMMON, transports=TRANSPORTS)
    server.listen_unix(folder / "encode.sock")
    fields = (bytes(islice(cycle(range(256)), TOKENS * size)) for size in (EMBEDDING_BYTES, 4, 12))
    embedding = Embedding(TOKENS, *fields)
    requests.send(server.listen_tcp("127.0.0.1")[1])

    def put() -> None:
        server.put(requests.recv(), embedding)
        requests.send("ready")

    asyncio.get_running_loop().add_reader(requests, put)
    await asyncio.Event().wait()


async def fetch(rounds: int, folder: Path, requests: Connection) -> dict[str, list[float]]:
    """GB/s of one and of four embeddings at once by each transport, and of copies, in another order each round."""
    tcp = f"127.0.0.1:{requests.recv()}"
    addresses = dict.fromkeys(TRANSPORTS, tcp) | {"shared_memory": f"unix:{folder}/encode.sock"}
    clients = {
        transport: EmbeddingClient(
            ReqToMetadataBlockAllocator(BUFFER_TOKENS), *COMMON, max_request_tokens=BUFFER_TOKENS,
            transports=(transport,), allocate=lambda size_bytes: next(buffers(size_bytes)),
        )
        for transport in TRANSPORTS
    }  # fmt: skip
    ways = [(transport, at_once) for transport in ("memcpy", *TRANSPORTS) for at_once in (1, 4)]
    sources = cycle([memoryview(bytearray(bytes([value + 1]) * SIZE_BYTES)) for value in range(BUFFERS)])
    rng, found = Random(1), defaultdict(list)

    def copy(count: int) -> float:
        began_s = time.perf_counter()
        for _ in range(count):
            next(buffers(SIZE_BYTES))[:] = next(sources)
        return time.perf_counter() - began_s

    async def transferred(transport: str, ids: list[str]) -> float:
        for each in ids:
            requests.send(each)
            requests.recv()
        began_s = time.perf_counter()
        fetched = (clients[transport].fetch(addresses[transport], each, TOKENS) for each in ids)
        embeddings = await asyncio.gather(*fetched)
        seconds = time.perf_counter() - began_s
        assert list(clients[transport].statistics().sent_bytes) == [transport], "another transport was used"
        assert all(memoryview(each.embeddings)[-256:] == bytes(range(256)) for each in embeddings), "other bytes"
        return seconds

    for number in range(WARM_UP_ROUNDS + rounds):
        for transport, at_once in rng.sample(ways, len(ways)):
            if transport == "memcpy":
                seconds = statistics.median(copy(at_once) for _ in range(3))
            else:
                seconds = await transferred(transport, [f"{number} {transport} {each}" for each in range(at_once)])
            if number >= WARM_UP_ROUNDS:
                found[f"{transport} {at_once}"].append(at_once * SIZE_BYTES / seconds / 1e9)
    return found


def main() -> None:
    """Fork the encode side, and be the language side."""
    here, there = multiprocessing.Pipe()
    with TemporaryDirectory() as folder:
        side = multiprocessing.Process(target=lambda: asyncio.run(encode(Path(folder), there)), daemon=True)
        side.start()
        print(json.dumps(asyncio.run(fetch(int(sys.argv[1]), Path(folder), here))), flush=True)


if __name__ == "__main__":
    main()
