"""Embeddings from one engine's process to another's, in the background: once, in bounded memory, whoever is killed."""

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from threading import Event
from typing import Any

import pytest

from integration.workers.multimodal.exchange_process import (
    MAX_TOKENS,
    TOKEN,
    TOKEN_BYTES,
    reference,
    settings,
    vectors,
)
from pointsman.local.addresses import free_port
from pointsman.workers.multimodal.exchange.fetcher import EmbeddingFetcher
from pointsman.workers.multimodal.exchange.publisher import EmbeddingPublisher
from pointsman.workers.multimodal.exchange.references import EmbeddingReference
from pointsman.workers.multimodal.exchange.settings import ExchangeSettings
from pointsman.workers.multimodal.transfer.buffers import Embedding
from waiting import DEADLINE_S, until

PROCESS = Path(__file__).with_name("exchange_process.py")


@pytest.fixture
def own() -> ExchangeSettings:
    """Of an encode worker at a free port, which the kernel gives to nobody meanwhile."""
    return settings("127.0.0.1", free_port())


@contextmanager
def publishing(own: ExchangeSettings) -> Iterator[EmbeddingPublisher]:
    publisher = EmbeddingPublisher(own, TOKEN_BYTES, MAX_TOKENS)
    try:
        yield publisher
    finally:
        publisher.close()


@contextmanager
def fetching(**changes: Any) -> Iterator[EmbeddingFetcher]:
    fetcher = EmbeddingFetcher(settings("127.0.0.1", 1, **changes), MAX_TOKENS)
    try:
        yield fetcher
    finally:
        fetcher.close()
        assert all(usage.used_blocks == 0 for usage in fetcher.usages)


@contextmanager
def process(what: str, at: ExchangeSettings, argument: object) -> Iterator[subprocess.Popen[str]]:
    """A process of its own; killed at the end."""
    command = [sys.executable, str(PROCESS), what, at.pod_ip, str(at.embedding_port), json.dumps(argument)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            yield child
        finally:
            child.kill()


def said(child: subprocess.Popen[str], key: str) -> Any:
    """The next line with ``key``."""
    assert child.stdout is not None
    for line in child.stdout:
        if key in (found := json.loads(line)):
            return found[key]
    raise AssertionError(f"the process ended before it printed {key}")


def fetched(fetcher: EmbeddingFetcher, needed: list[EmbeddingReference], request: str = "request") -> list[str]:
    """The items that came, all of them right; the engine has taken them."""
    until(lambda: fetcher.admit(request, needed), "the request need not wait")
    ready = [each for each in needed if fetcher.is_ready(each.item)]
    for each in ready:
        assert fetcher.take(each.item) == (each, vectors(each.key, each.num_tokens))
    fetcher.finished(request)
    return [each.item for each in ready]


def test_an_embedding_is_fetched_once_for_two_requests_and_again_for_a_later_one(own: ExchangeSettings) -> None:
    with publishing(own) as publisher, fetching() as fetcher:
        publisher.publish("a", 2000, vectors("a", 2000))
        item = reference("a", 2000, own)
        assert not fetcher.admit("first", [item])
        assert not fetcher.admit("second", [item])
        until(lambda: fetcher.admit("first", [item]) and fetcher.admit("second", [item]), "both have it")
        assert fetcher.take("a")[1] == vectors("a", 2000)
        assert fetcher.reserved_bytes == 0
        assert fetched(fetcher, [item], "third") == ["a"]
        assert fetched(fetcher, [reference("b", 2000, own)], "fourth") == [], "nobody has encoded it"
        counts, seconds = fetcher.outcomes()
        assert counts == {"succeeded": 2, "failed": 1}
        assert len(seconds) == 2
        until(lambda: publisher.usage.used_blocks == 0, "the blocks are free")


def test_more_than_memory_holds_comes_one_after_the_other(own: ExchangeSettings) -> None:
    with publishing(own) as publisher, fetching(embedding_cache_mib=8) as fetcher:  # 2 048 tokens
        items = [reference(f"item {number}", 1500, own) for number in range(6)]
        for each in items:
            publisher.publish(each.key, 1500, vectors(each.key, 1500))
        waiting = {f"request {number}": each for number, each in enumerate(items)}
        while waiting:
            for request, each in list(waiting.items()):
                if fetcher.admit(request, [each]):
                    assert fetched(fetcher, [each], request) == [each.item]
                    del waiting[request]
                assert fetcher.reserved_bytes <= 8 * 2**20


def test_the_oldest_embeddings_go_when_the_encode_worker_has_no_memory(own: ExchangeSettings) -> None:
    with publishing(own.model_copy(update={"embedding_cache_mib": 8})) as publisher, fetching() as fetcher:
        items = [reference(f"item {number}", 1500, own) for number in range(3)]
        for each in items:
            publisher.publish(each.key, 1500, vectors(each.key, 1500))
        assert fetched(fetcher, items) == ["item 2"]


@pytest.mark.parametrize("token", ["a token of another service", TOKEN])
def test_only_a_worker_of_the_service_is_served(own: ExchangeSettings, token: str) -> None:
    with publishing(own) as publisher, fetching(control_token=token) as fetcher:
        publisher.publish("a", 10, vectors("a", 10))
        assert fetched(fetcher, [reference("a", 10, own)]) == (["a"] if token == TOKEN else [])


@pytest.mark.parametrize("seed", range(3))
def test_an_encode_worker_killed_while_it_sends_holds_nobody_up(own: ExchangeSettings, seed: int) -> None:
    dice = Random(seed)
    lengths = {f"item {number}": dice.randrange(500, 2000) for number in range(8)}
    items = [reference(key, num_tokens, own) for key, num_tokens in lengths.items()]
    with process("publish", own, lengths) as child, fetching(embedding_fetch_timeout_seconds=30.0) as fetcher:
        said(child, "published")
        before_kill = dice.randrange(len(items))
        until(
            lambda: fetcher.admit("request", items) or sum(map(fetcher.is_ready, lengths)) > before_kill,
            "some are here",
        )
        child.kill()
        came = fetched(fetcher, items)
        assert len(came) > before_kill
        assert fetcher.reserved_bytes == 0


def test_an_encode_worker_that_stands_still_is_given_up_in_time(own: ExchangeSettings) -> None:
    with process("publish", own, {"a": 3000}) as child, fetching(embedding_fetch_timeout_seconds=0.5) as fetcher:
        said(child, "published")
        os.kill(child.pid, signal.SIGSTOP)
        assert fetched(fetcher, [reference("a", 3000, own)]) == []
        os.kill(child.pid, signal.SIGCONT)
        assert fetcher.outcomes()[0] == {"timed-out": 1}
        assert fetcher.reserved_bytes == 0


@pytest.mark.parametrize("seed", range(3))
def test_a_killed_language_worker_leaves_no_block_in_use(
    own: ExchangeSettings, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    dice = Random(seed)
    lengths = {f"item {number}": dice.randrange(500, 2000) for number in range(8)}
    with publishing(own) as publisher:
        for key, num_tokens in lengths.items():
            publisher.publish(key, num_tokens, vectors(key, num_tokens))
        params = {key: reference(key, num_tokens, own).sealed(TOKEN) for key, num_tokens in lengths.items()}
        put, point, served = publisher._server.put, dice.randrange(len(lengths)), itertools.count()
        begun, killed = Event(), Event()

        def serve(item: str, embedding: Embedding) -> None:
            """In the publisher's thread, which stands still from the drawn point on until the kill."""
            put(item, embedding)
            if next(served) == point:
                begun.set()
                assert killed.wait(DEADLINE_S)

        monkeypatch.setattr(publisher._server, "put", serve)
        with process("fetch", own, params) as child:
            said(child, "fetching")
            assert begun.wait(DEADLINE_S), "it is being served"
            child.kill()
            child.wait()
            killed.set()
        until(lambda: publisher.usage.used_blocks == 0, "the blocks are free")
        with fetching() as fetcher:
            publisher.publish("later", 4000, vectors("later", 4000))
            assert fetched(fetcher, [reference("later", 4000, own)]) == ["later"]
