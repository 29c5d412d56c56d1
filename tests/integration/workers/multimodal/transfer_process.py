"""A process with one side of embedding transfers: commands on stdin, a line on stdout for each thing that happened.

The embeddings are pseudo-random bytes. Tests kill the process where they want; it ends with its stdin.
"""

import asyncio
import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

from pointsman.workers.multimodal.transfer.allocator import ReqToMetadataBlockAllocator
from pointsman.workers.multimodal.transfer.buffers import Embedding
from pointsman.workers.multimodal.transfer.client import EmbeddingClient
from pointsman.workers.multimodal.transfer.data_paths import DEFAULT_TRANSPORTS
from pointsman.workers.multimodal.transfer.errors import TransferError
from pointsman.workers.multimodal.transfer.server import EmbeddingServer

EMBEDDING_BYTES = 1000
BLOCK_SIZE = 8
MAX_REQUEST_TOKENS = 4000
TOKEN = "a token of the service"


@dataclass(frozen=True)
class Options:
    """What a side is."""

    side: str  # encode | language
    blocks: int
    default_blocks: int = 1
    block_size: int = BLOCK_SIZE
    embedding_bytes: int = EMBEDDING_BYTES
    sizes_first: bool = True
    transports: tuple[str, ...] = DEFAULT_TRANSPORTS
    timeout_s: float = 30.0
    max_request_tokens: int = MAX_REQUEST_TOKENS
    folder: str = ""  # of the encode side's Unix socket

    @property
    def argument(self) -> str:
        """For the command line."""
        return json.dumps(asdict(self))

    def allocator(self) -> ReqToMetadataBlockAllocator:
        """The blocks of the buffer."""
        return ReqToMetadataBlockAllocator(self.blocks * self.block_size, self.block_size, self.default_blocks)


def embedding(request_id: str, tokens: int, embedding_bytes: int = EMBEDDING_BYTES) -> Embedding:
    """Other bytes for each request."""
    rng = Random(request_id)
    return Embedding(tokens, *(rng.randbytes(tokens * size) for size in (embedding_bytes, 4, 12)))


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


class EncodeSide:
    """Commands: ``{"put": {request: tokens}}``, ``{"usage": …}``."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._server = EmbeddingServer(
            options.allocator(), options.embedding_bytes, TOKEN, options.timeout_s,
            sizes_first=options.sizes_first, transports=options.transports,
        )  # fmt: skip
        self._server.listen_unix(Path(options.folder) / "encode.sock")
        _, port = self._server.listen_tcp("127.0.0.1")
        say(ready=True, port=port)

    def perform(self, command: Mapping[str, Any]) -> None:
        """Carry out one command."""
        for request_id, tokens in command.get("put", {}).items():
            self._server.put(request_id, embedding(request_id, tokens, self._options.embedding_bytes))
            say(put=request_id)
        if "usage" in command:
            say(usage=self._server.usage.used_blocks)


class LanguageSide:
    """Commands: ``{"fetch": {request: tokens}, "address": …}``, ``{"usage": …}``, ``{"region": …}``."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._fetching: set[asyncio.Task[None]] = set()
        self._client = EmbeddingClient(
            options.allocator(), options.embedding_bytes, TOKEN, options.timeout_s,
            max_request_tokens=options.max_request_tokens, sizes_first=options.sizes_first,
            transports=options.transports,
        )  # fmt: skip
        say(ready=True, port=0)

    def perform(self, command: Mapping[str, Any]) -> None:
        """Carry out one command."""
        for request_id, tokens in command.get("fetch", {}).items():
            task = asyncio.create_task(self._fetch(command["address"], request_id, tokens))
            self._fetching.add(task)
            task.add_done_callback(self._fetching.discard)
        if "usage" in command:
            say(usage=self._client.usage.used_blocks)
        if "region" in command:
            say(region=hashlib.sha256(self._client._buffers.region).hexdigest())

    async def _fetch(self, address: str, request_id: str, tokens: int) -> None:
        try:
            got = await self._client.fetch(address, request_id)
        except TransferError as error:
            say(request=request_id, error=str(error))
        else:
            right = got == embedding(request_id, tokens, self._options.embedding_bytes)
            say(request=request_id, right=right, transports=list(self._client.statistics().sent_bytes))


async def main(options: Options) -> None:
    """Carry out the commands of stdin, as they come."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    side = EncodeSide(options) if options.side == "encode" else LanguageSide(options)
    async for line in reader:
        side.perform(json.loads(line))


if __name__ == "__main__":
    asyncio.run(main(Options(**json.loads(sys.argv[1]))))
