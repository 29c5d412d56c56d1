"""A process that serves embeddings of pseudo-random bytes, or one that fetches them, for the tests of transfers.

It prints a line for each thing that happened: the test reads them, and kills it where it wants.
"""

import asyncio
import json
import sys
from pathlib import Path
from random import Random

from pointsman.workers.multimodal.transfer.allocator import ReqToMetadataBlockAllocator
from pointsman.workers.multimodal.transfer.buffers import Embedding
from pointsman.workers.multimodal.transfer.client import EmbeddingClient
from pointsman.workers.multimodal.transfer.errors import TransferError
from pointsman.workers.multimodal.transfer.server import EmbeddingServer

EMBEDDING_BYTES = 1000
BLOCK_SIZE = 8
MAX_REQUEST_TOKENS = 4000
TOKEN = "a token of the service"


def embedding(request_id: str, tokens: int) -> Embedding:
    """Other bytes for each request."""
    rng = Random(request_id)
    return Embedding(tokens, *(rng.randbytes(tokens * size) for size in (EMBEDDING_BYTES, 4, 12)))


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


async def serve(folder: Path, requests: dict[str, int], *, sizes_first: bool) -> None:
    """Serve ``requests`` (tokens of each) until killed."""
    allocator = ReqToMetadataBlockAllocator(sum(requests.values()) + 200 * BLOCK_SIZE, BLOCK_SIZE, 1)
    server = EmbeddingServer(allocator, EMBEDDING_BYTES, TOKEN, timeout_s=30, sizes_first=sizes_first)
    server.listen_unix(folder / "encode.sock")
    _, port = server.listen_tcp("127.0.0.1")
    for request_id, tokens in requests.items():
        server.put(request_id, embedding(request_id, tokens))
    say(port=port)
    await asyncio.Event().wait()


async def fetch(address: str, requests: dict[str, int], *, sizes_first: bool) -> None:
    """Fetch ``requests``, all at once."""
    allocator = ReqToMetadataBlockAllocator(20 * BLOCK_SIZE, BLOCK_SIZE, 1)
    client = EmbeddingClient(
        allocator,
        EMBEDDING_BYTES,
        TOKEN,
        timeout_s=30,
        max_request_tokens=MAX_REQUEST_TOKENS,
        sizes_first=sizes_first,
    )

    async def one(request_id: str, tokens: int) -> None:
        try:
            got = await client.fetch(address, request_id)
        except TransferError as error:
            say(request=request_id, error=str(error))
        else:
            say(request=request_id, right=got == embedding(request_id, tokens))

    await asyncio.gather(*(one(*each) for each in requests.items()))
    await client.close()


if __name__ == "__main__":
    what, where, requests, sizes_first = sys.argv[1:]
    if what == "serve":
        asyncio.run(serve(Path(where), json.loads(requests), sizes_first=sizes_first == "True"))
    else:
        asyncio.run(fetch(where, json.loads(requests), sizes_first=sizes_first == "True"))
