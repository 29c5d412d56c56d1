"""A process that publishes embeddings or fetches them, as an engine does, for the tests of the exchange.

It prints a line for each thing that happened: the test reads them, and kills it where it wants.
"""

import json
import sys
import time
from random import Random
from typing import Any

from pointsman.workers.multimodal.exchange.fetcher import EmbeddingFetcher
from pointsman.workers.multimodal.exchange.publisher import EmbeddingPublisher
from pointsman.workers.multimodal.exchange.references import EmbeddingReference, references
from pointsman.workers.multimodal.exchange.settings import ExchangeSettings

TOKEN = "a token of the service"
TOKEN_BYTES = 4096
MAX_TOKENS = 4096
BLOCKS = {"multimodal_block_size": 128, "default_multimodal_blocks": 8, "embedding_cache_buffer_size": 2}


def settings(address: str, port: int, **changes: Any) -> ExchangeSettings:
    """Of a worker at ``address``."""
    own: dict[str, Any] = {"pod_ip": address, "embedding_port": port, "control_token": TOKEN}
    return ExchangeSettings(**(own | BLOCKS | changes))


def vectors(key: str, num_tokens: int) -> bytes:
    """Other bytes for each key."""
    return Random(key).randbytes(num_tokens * TOKEN_BYTES)


def reference(key: str, num_tokens: int, at: ExchangeSettings) -> EmbeddingReference:
    """Where the embedding of the item ``key`` is."""
    return EmbeddingReference(key, at.address, key, num_tokens, TOKEN_BYTES, "float32", "model")


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


def publish(own: ExchangeSettings, lengths: dict[str, int]) -> None:
    """Publish ``lengths`` (tokens of each) until killed."""
    publisher = EmbeddingPublisher(own, TOKEN_BYTES, MAX_TOKENS)
    for key, num_tokens in lengths.items():
        publisher.publish(key, num_tokens, vectors(key, num_tokens))
    say(published=len(lengths))
    while True:
        time.sleep(1)


def fetch(own: ExchangeSettings, params: dict[str, Any]) -> None:
    """Fetch ``params``, all at once, until killed."""
    fetcher = EmbeddingFetcher(own, MAX_TOKENS)
    needed = references(params, TOKEN).values()
    say(fetching=len(needed))
    while not fetcher.admit("request", needed):
        time.sleep(0.001)
    say(ready=[each.item for each in needed if fetcher.is_ready(each.item)])
    while True:
        time.sleep(1)


if __name__ == "__main__":
    what, address, port, argument = sys.argv[1:]
    {"publish": publish, "fetch": fetch}[what](settings(address, int(port)), json.loads(argument))
